"""Reads what a checkpoint says of its trial, so that plugins can make the trial again for use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ..checkpoint import read_json_object
from ..config import (
    ExperimentConfig,
    find_secrets,
    hparams_with_secrets,
    parse,
    with_secrets,
)
from ..errors import CheckpointError, ConfigError
from ..hooks import Plugins
from ..ranks.distributed import DistributedContext
from ..support.imports import import_from_path
from .adapter import RunInfo
from .entrypoint import load_trial
from .saving import LOAD_FILE

# Early versions of Determined wrote it in the second file.
_FILES = (LOAD_FILE, "metadata.json")
_complete: ContextVar[ExperimentConfig | None] = ContextVar("complete", default=None)


@contextmanager
def known_config(config: ExperimentConfig | None) -> Iterator[None]:
    """Let `read_load_data` restore the secrets of a configuration, which checkpoints mask."""
    token = _complete.set(config)
    try:
        yield
    finally:
        _complete.reset(token)


def read_load_data(directory: Path, given: type | None = None) -> dict[str, Any]:
    """Return the facts that a checkpoint holds about its trial.

    In a body of `known_config` they have their secrets. They may be missing if the trial class is
    `given`. Raises CheckpointError where they are needed and missing, or damaged.
    """
    file = next((directory / name for name in _FILES if (directory / name).is_file()), None)
    if file is None and given is not None:
        return {}
    if file is None:
        raise CheckpointError(
            f"{directory} holds neither {' nor '.join(_FILES)}; name the directory of a checkpoint"
        )
    facts = read_json_object(file)
    parts = (facts.get(key) or {} for key in ("hparams", "experiment_config"))
    if not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{file} says nothing of a trial; the checkpoint is damaged")
    if complete := _complete.get():
        hparams, shown = (facts.get(key) or {} for key in ("hparams", "experiment_config"))
        facts |= {
            "hparams": hparams_with_secrets(hparams, complete),
            "experiment_config": with_secrets(shown, find_secrets(complete)),
        }
    return facts


@contextmanager
def trial_class_of(
    directory: Path, facts: Mapping[str, Any], base: type, given: type | None = None
) -> Iterator[type[Any]]:
    """Give the class of a checkpoint's trial: `given`, or the one in the checkpoint's `code/`.

    That code is imported, and imports in the body find it, too. Raises CheckpointError for a class
    that is not derived from `base`, and if the checkpoint names none that can be imported.
    """
    code = directory / "code"
    with import_from_path(code) if given is None and code.is_dir() else nullcontext():
        chosen = given or load_trial(_entrypoint(facts, directory), code)
        if not issubclass(chosen, base):
            raise CheckpointError(
                f"{chosen.__module__}.{chosen.__qualname__} is no {base.__name__}; give the"
                " trial_class of the checkpoint"
            )
        yield chosen


def _entrypoint(facts: Mapping[str, Any], directory: Path) -> str:
    spec = facts.get("trial_cls_spec") or (facts.get("experiment_config") or {}).get("entrypoint")
    if not isinstance(spec, str) or ":" not in spec:
        raise CheckpointError(
            f"{directory} does not say which trial class it is of; give it as trial_class"
        )
    module, _, name = spec.partition(":")
    if module == "__main__" or "<locals>" in name:
        where = "in a script or a notebook" if module == "__main__" else "inside a function"
        raise CheckpointError(
            f"the trial of {directory} was defined {where} ({spec}), from where it cannot be"
            " imported; give it as trial_class, or keep it in a module of its own"
        )
    return spec


def loading_run(
    framework: str, hparams: Mapping[str, Any] | None, config: Mapping[str, Any] | None
) -> RunInfo:
    """Return a run that trains nothing. Only the framework's own plugin takes part in it.

    A configuration that only another version understands still gives its `data`, with a warning.
    """
    return RunInfo(
        config=_parsed(config) if config else ExperimentConfig(),
        hparams=dict(hparams or {}),
        seed=0,
        build=Plugins().build(framework),
        distributed=DistributedContext(),
    )


def _parsed(config: Mapping[str, Any]) -> ExperimentConfig:
    try:
        return parse(dict(config)).config
    except ConfigError as error:
        warnings.warn(
            f"the checkpoint's configuration is read in part: {error.problems[0]}", stacklevel=3
        )
        data = config.get("data")
        return ExperimentConfig(data=dict(data) if isinstance(data, Mapping) else {})
