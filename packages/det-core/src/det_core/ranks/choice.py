"""Which backend reduces the gradients of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import ConfigError, did_you_mean
from ..support.installation import how_to_install
from .backend import BackendRecord

if TYPE_CHECKING:
    from ..config import ExperimentConfig
    from ..hooks.records import Framework

HOROVOD = "horovod"


def choose_backend(wanted: str, framework: str, records: Iterable[BackendRecord]) -> BackendRecord:
    """Return the record that `distributed.backend: wanted` means for a framework.

    `auto` is the available backend with the highest priority. `native` is the same without Horovod.
    Any other word is the name of a backend. Raises ConfigError, which lists the backends, where
    none fits.
    """
    served = [record for record in records if record.framework == framework]
    if not served:
        raise ConfigError(
            f"the framework {framework!r} trains in one process; set resources.slots_per_trial to"
            f" 1, or install a plugin that registers a backend for {framework!r}"
        )
    if wanted == "auto":
        meant = served
    elif wanted == "native":
        meant = [record for record in served if record.name != HOROVOD]
    else:
        meant = [record for record in served if record.name == wanted]
    if not meant:
        names = ("auto", "native", *(record.name for record in served))
        raise ConfigError(
            f"distributed.backend is {wanted!r}, which no plugin registers for {framework!r}"
            f"{did_you_mean(wanted, names) or f'; give auto, native or {_listed(served)}'}"
        )
    ready = [record for record in meant if record.available()]
    if not ready:
        way_out = f"install what {_listed(meant)} needs"
        if wanted == HOROVOD:
            way_out = f"run: {how_to_install('det-horovod')}, then: det horovod install"
        raise ConfigError(
            f"distributed.backend is {wanted!r}, which is not available here; {way_out}"
        )
    return max(ready, key=lambda record: record.priority)


def wanted_backend(config: ExperimentConfig) -> str:
    """Return the wanted backend: `native` in place of `auto` where models are sharded.

    Sharding uses the framework's own means.
    """
    wanted = config.distributed.backend
    return "native" if wanted == "auto" and config.optimizations.sharding != "none" else wanted


def must_shard(config: ExperimentConfig, framework: Framework) -> None:
    """Raise ConfigError where sharding is configured and the framework only copies models."""
    if config.optimizations.sharding != "none" and "sharding" not in framework.capabilities:
        raise ConfigError(
            f"optimizations.sharding is {config.optimizations.sharding!r}, but {framework.name!r}"
            " gives each rank a copy of the model; set it to none"
        )


def _listed(records: Iterable[BackendRecord]) -> str:
    return " or ".join(sorted({record.name for record in records}))
