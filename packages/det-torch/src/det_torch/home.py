"""Where a script finds itself: under `det run`, or on its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from det_core import DistributedContext, Framework, Keep, Plugins, RunInfo, Session, TrialError
from det_core.backends import wanted_backend
from det_core.config import Const, ExperimentConfig, parse
from det_core.plugins import extensions_of
from det_core.storage import Storage

from .context import PyTorchTrialContext
from .data import seed_everything
from .device import choose_device
from .ranks import backend_of_script, join_ranks


class ArgumentError(TrialError, ValueError):
    """An argument of `init` or `Trainer.fit` that cannot be meant."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """What `init` finds and a `Trainer` needs; `session` is None outside of `det run`."""

    framework: Framework
    session: Session | None
    storage: Storage
    keep: Keep
    events: bool

    @property
    def place(self) -> str:
        """Where checkpoints go: a directory or a URL."""
        return self.storage.url("x").removesuffix("x").rstrip("/")


@contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
    distributed: DistributedContext | None = None,
    aggregation_frequency: int | None = None,
    enable_tensorboard_logging: bool = True,
) -> Iterator[PyTorchTrialContext]:
    """Give the context of a trial that a script or a notebook trains.

    `exp_conf` is an experiment configuration of which anything may be missing; `hparams` go over its constants. Under
    `det run` the experiment's own configuration and hyperparameters go over both. The generators of Python, NumPy and torch
    are seeded, by `reproducibility.experiment_seed` or else by a number drawn from torch's generator, so that a
    `torch.manual_seed` before this decides. With `enable_tensorboard_logging` false, `fit` writes no event files.
    """
    plugins = Plugins.installed()
    session = Session.join(plugins)
    with ExitStack() as stack:
        if session is not None:
            stack.enter_context(session)
        info = _joined(session, hparams, distributed) if session else _alone(plugins, hparams, exp_conf, distributed)
        info = replace(info, config=_aggregating(info.config, aggregation_frequency))
        info = replace(info, extras={"home": _home(plugins, session, info, enable_tensorboard_logging)})
        device = choose_device(info)
        wanted = wanted_backend(info.config)
        info = replace(info, backend=backend_of_script(info.distributed, wanted, plugins))
        backend = join_ranks(info)
        if backend is not None:
            stack.callback(backend.shutdown)
        seed_everything(info.seed)
        context = PyTorchTrialContext(info, device, backend=backend)
        stack.callback(context.close)
        yield context


def home_of(context: PyTorchTrialContext) -> Home:
    """Return what `init` found. Raises TrialError for a context that it did not make."""
    home = context.run.extras.get("home")
    if not isinstance(home, Home):
        raise TrialError(
            "Trainer needs the context of det_torch.init(); a trial class that `det run` trains itself has no Trainer"
        )
    return home


def _alone(
    plugins: Plugins,
    hparams: Mapping[str, Any] | None,
    exp_conf: Mapping[str, Any] | None,
    distributed: DistributedContext | None,
) -> RunInfo:
    ranks = distributed or DistributedContext()
    config = _config(plugins, exp_conf)
    seed = config.reproducibility.experiment_seed
    if seed is None:
        seed = int(torch.randint(2**31 - 1, ()).item())
    here = Path.cwd()
    return RunInfo(
        config=config,
        hparams={**_constants(config.hyperparameters), **(hparams or {})},
        seed=ranks.broadcast(seed),
        build=plugins.build("torch"),
        distributed=ranks,
        slots=ranks.size,
        code_dir=here,
        tensorboard_dir=here / "tensorboard" / datetime.now().strftime("%Y%m%d-%H%M%S"),
    )


def _joined(session: Session, hparams: Mapping[str, Any] | None, distributed: DistributedContext | None) -> RunInfo:
    if session.slots > 1 and distributed is None:
        raise ArgumentError(
            f"this run has {session.slots} slots; give init() a DistributedContext, such as from_torch_distributed()"
        )
    info = session.info("torch", distributed or DistributedContext())
    return replace(info, hparams={**(hparams or {}), **info.hparams})


def _config(plugins: Plugins, exp_conf: Mapping[str, Any] | None) -> ExperimentConfig:
    if exp_conf is None:
        return ExperimentConfig()
    loaded = parse(dict(exp_conf), extensions=extensions_of(plugins), name="exp_conf")
    for notice in loaded.notices:
        sys.stderr.write(f"det: {notice}\n")
    return loaded.config


def _constants(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that have one value; out of a range, only a search chooses one."""
    found: dict[str, Any] = {}
    for name, value in hyperparameters.items():
        if isinstance(value, Const):
            found[name] = value.val
        elif isinstance(value, dict):
            found[name] = _constants(value)
    return found


def _aggregating(config: ExperimentConfig, frequency: int | None) -> ExperimentConfig:
    if frequency is None:
        return config
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
        raise ArgumentError(f"aggregation_frequency is {frequency!r}; give a whole number of 1 or more")
    optimizations = msgspec.structs.replace(config.optimizations, aggregation_frequency=frequency)
    return msgspec.structs.replace(config, optimizations=optimizations)


def _home(plugins: Plugins, session: Session | None, info: RunInfo, events: bool) -> Home:
    framework = plugins.frameworks()["torch"]
    if session is not None:
        keep = session.keep
        return Home(framework=framework, session=session, storage=keep.storage, keep=keep, events=False)
    storage = plugins.storage_of(info.config, (info.code_dir or Path.cwd()) / "checkpoints")
    return Home(framework=framework, session=None, storage=storage, keep=Keep(storage=storage), events=events)
