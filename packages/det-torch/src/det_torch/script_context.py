"""Finds out whether a script runs under `det run` or on its own, and makes its context."""

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

from det_core import (
    CheckpointSink,
    DistributedContext,
    Framework,
    Plugins,
    RunInfo,
    Session,
    TrialError,
)
from det_core.config import Const, ExperimentConfig, parse
from det_core.hooks import extensions_of
from det_core.ranks.choice import wanted_backend
from det_core.storage import Storage
from det_core.train.saving import check_storage

from .context import PyTorchTrialContext
from .data import seed_everything
from .device import choose_device
from .ranks import backend_of_script, join_ranks


class ArgumentError(TrialError, ValueError):
    """Raised for an invalid argument of `init` or `Trainer.fit`."""


@dataclass(frozen=True, kw_only=True)
class ScriptContext:
    """What `init` provides for a `Trainer`. `session` is None outside of `det run`."""

    framework: Framework
    session: Session | None
    storage: Storage
    sink: CheckpointSink
    events: bool

    @property
    def place(self) -> str:
        """Where checkpoints are stored: a directory or a URL."""
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
    """Yield the context of a trial that a script or a notebook trains.

    `exp_conf` is an experiment configuration, which may be partial. `hparams` override its constant
    hyperparameters. Under `det run` the experiment's own configuration and hyperparameters override
    both.

    The generators of Python, NumPy and torch are seeded by `reproducibility.experiment_seed`.
    Without it, the seed is drawn from torch's generator, so that an earlier `torch.manual_seed`
    determines it. With `enable_tensorboard_logging` false, `fit` writes no event files.
    """
    plugins = Plugins.installed()
    session = Session.join(plugins)
    with ExitStack() as stack:
        if session is not None:
            stack.enter_context(session)
        info = (
            _joined(session, hparams, distributed)
            if session
            else _run_without_det(plugins, hparams, exp_conf, distributed)
        )
        info = replace(info, config=_aggregating(info.config, aggregation_frequency))
        info = replace(
            info,
            extras={
                "home": _make_script_context(plugins, session, info, enable_tensorboard_logging)
            },
        )
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


def get_script_context(context: PyTorchTrialContext) -> ScriptContext:
    """Return the `ScriptContext` of a context.

    Raises TrialError for a context that `init` did not make.
    """
    script = context.run.extras.get("home")
    if not isinstance(script, ScriptContext):
        raise TrialError(
            "Trainer needs the context of det_torch.init(); a trial class that `det run` trains"
            " itself has no Trainer"
        )
    return script


def _run_without_det(
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
    directory = Path.cwd()
    return RunInfo(
        config=config,
        hparams={**_constants(config.hyperparameters), **(hparams or {})},
        seed=ranks.broadcast(seed),
        build=plugins.build("torch"),
        distributed=ranks,
        slots=ranks.size,
        code_dir=directory,
        tensorboard_dir=directory / "tensorboard" / datetime.now().strftime("%Y%m%d-%H%M%S"),
    )


def _joined(
    session: Session, hparams: Mapping[str, Any] | None, distributed: DistributedContext | None
) -> RunInfo:
    if session.slots > 1 and distributed is None:
        raise ArgumentError(
            f"this run has {session.slots} slots; give init() a DistributedContext, such as"
            " from_torch_distributed()"
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
    """Return the hyperparameters that have one value.

    Only a search chooses a value from a range.
    """
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
        raise ArgumentError(
            f"aggregation_frequency is {frequency!r}; give a whole number of 1 or more"
        )
    optimizations = msgspec.structs.replace(config.optimizations, aggregation_frequency=frequency)
    return msgspec.structs.replace(config, optimizations=optimizations)


def _make_script_context(
    plugins: Plugins, session: Session | None, info: RunInfo, events: bool
) -> ScriptContext:
    framework = plugins.frameworks()["torch"]
    if session is not None:
        sink = session.keep
        if session.check_first and info.distributed.rank == 0:
            check_storage(sink.storage)
        return ScriptContext(
            framework=framework, session=session, storage=sink.storage, sink=sink, events=False
        )
    storage = plugins.storage_of(info.config, (info.code_dir or Path.cwd()) / "checkpoints")
    return ScriptContext(
        framework=framework,
        session=None,
        storage=storage,
        sink=CheckpointSink(storage=storage),
        events=events,
    )
