"""The run that a script is part of, and training of a trial class from a script."""

from __future__ import annotations

import enum
import inspect
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from det_core.config import ExperimentConfig
from det_core.errors import DetError
from det_core.hooks import Plugins, extensions_of
from det_core.ranks.backend import Ranks, Serial
from det_core.ranks.distributed import DistributedContext
from det_core.storage import LocalStorage
from det_core.support.paths import expand_user
from det_core.train.adapter import RunInfo
from det_core.train.environ import WorkerEnv
from det_core.train.host import Target
from det_core.train.interrupts import preempted_by
from det_core.train.local import LocalHost
from det_core.train.run import length_of, run_trial
from det_core.train.run_setup import run_info
from det_core.train.saving import CheckpointSink
from det_core.train.trial_context import TrialContext

from ..check import first_choice
from ..config import load
from .script import ENTRYPOINT, LOADING, submit, take_over

Data = dict[str, Any]
_DEFAULTS: Data = {"searcher": {"name": "single", "metric": "val_loss"}}
_ELSEWHERE = ("bind_mounts", "checkpoint_storage", "environment", "pbs", "resources", "slurm")


class Mode(enum.Enum):
    """Where to train.

    - LOCAL trains in this process, with one choice of hyperparameters.
    - CLUSTER submits the experiment and follows it.
    """

    CLUSTER = "cluster"
    LOCAL = "local"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise DetError(f"mode is {value!r}; give Mode.LOCAL or Mode.CLUSTER")


@dataclass(frozen=True, kw_only=True)
class ScriptPlace:
    """The run that a script is part of, in a worker (`local` is false) or in this process.

    With several ranks, `run.distributed` has ranks and sizes only, and cannot communicate until
    training begins.
    """

    run: RunInfo
    local: bool
    home: Path
    plugins: Plugins


class NativeContext(TrialContext):
    """Hyperparameters, batch sizes, ids and the configuration of the data.

    Plugins derive their contexts from it. `place` is the run that the script is part of.
    """

    def __init__(self, place: ScriptPlace) -> None:
        super().__init__(place.run)
        self.place = place


def begin(
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
    *,
    framework: str,
    as_trial: bool = True,
    launcher: str = "",
) -> ScriptPlace:
    """Return the run that this script is part of.

    In CLUSTER mode, outside of a worker, this submits the script instead and never returns: to the
    server of `$DET_MASTER`, or to the home where that is not set.

    - With `as_trial`, workers execute the script to find its trial, which it passes to `take_over`.
    - Otherwise the script is the entrypoint and trains by itself. If a trial has several slots, the
      module `launcher` (`det_node.launch...`) starts it on each.

    Raises ConfigError for mistakes in `config`, and DetError for other errors.
    """
    plugins = Plugins.installed()
    home = expand_user(os.environ.get("DET_HOME") or "~/.det").absolute()
    loading = LOADING.get()
    env = loading.env if loading else None if as_trial else WorkerEnv.read(os.environ)
    if env is not None:
        env = env.typed(extensions_of(plugins))
        alone = env.ranks.size == 1
        distributed = (
            DistributedContext() if alone else DistributedContext.from_backend(_Before(env.ranks))
        )
        run = run_info(env, plugins, framework, Path.cwd(), distributed)
        return ScriptPlace(run=run, local=False, home=home, plugins=plugins)
    if as_trial and WorkerEnv.read(os.environ) is not None:
        raise DetError(
            "this script is run by a worker that looks for no trial; its entrypoint has to be"
            f" {ENTRYPOINT}"
        )
    data = {**_DEFAULTS, **(config or {})}
    if Mode(mode) is Mode.CLUSTER:
        several = (data.get("resources") or {}).get("slots_per_trial", 1) != 1
        start = f"python3 -m {launcher} -- " if launcher and several else ""
        submit(
            data,
            context_dir,
            command,
            home=home,
            entrypoint=ENTRYPOINT if as_trial else None,
            start=start,
            master=os.environ.get("DET_MASTER", ""),
        )
    run = _local(data, framework, plugins, context_dir, as_trial)
    return ScriptPlace(run=run, local=True, home=home, plugins=plugins)


def _local(
    data: Data, framework: str, plugins: Plugins, context_dir: str | Path, as_trial: bool
) -> RunInfo:
    left_out = sorted(name for name in _ELSEWHERE if name in data)
    if left_out:
        sys.stderr.write(
            f"det: {', '.join(left_out)} of the configuration is for Mode.CLUSTER and not used"
            " here\n"
        )
    kept = {name: value for name, value in data.items() if name not in left_out}
    entrypoint = ENTRYPOINT if as_trial else "python3 script.py"
    config: ExperimentConfig = load(
        {**kept, "entrypoint": entrypoint}, extensions=extensions_of(plugins)
    ).config
    code_dir = Path(context_dir).resolve() if str(context_dir) else None
    hparams, seed = first_choice(config, plugins, code_dir or Path.cwd())
    return RunInfo(
        config=config,
        hparams=hparams,
        seed=seed,
        build=plugins.build(framework),
        distributed=DistributedContext(),
        length=length_of(config),
        code_dir=code_dir,
    )


class _Before(Serial):
    """Ranks and sizes before training begins. It cannot communicate yet."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def barrier(self) -> NoReturn:
        raise DetError(
            "the ranks of this run talk to one another once training has begun; ask for ranks and"
            " sizes before"
        )

    def allgather(self, value: Any) -> NoReturn:
        self.barrier()

    def broadcast(self, value: Any) -> NoReturn:
        self.barrier()


def create(
    trial_def: type,
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
    *,
    stacklevel: int = 1,
) -> LocalResult | None:
    """Train a trial class. `config` is an experiment configuration without its entrypoint.

    - `Mode.LOCAL` trains in this process, to the searcher's `max_length`, with the hyperparameters
      of the search's first trial. It returns the result.
    - `Mode.CLUSTER` submits the code in `context_dir` to the home, or to the server of
      `$DET_MASTER`, follows the experiment, and ends this process with its status. Each worker
      executes the script again, up to this call, by its path and arguments in `command`. By default
      these are the path and the arguments of this process. For a notebook, give its path.

    If the script is imported, for example to load a checkpoint, nothing happens and the result is
    None. `stacklevel` is the number of calls between the script and this function.

    Raises ConfigError for mistakes in `config`, and DetError for other errors.
    """
    if not inspect.isclass(trial_def):
        raise DetError(f"create got {trial_def!r:.60}; give a trial class")
    if LOADING.get() is not None:
        take_over(trial_def)
    if sys._getframe(stacklevel).f_globals.get("__name__") != "__main__":
        return None
    place = begin(config, mode, context_dir, command, framework="")
    return train_here(trial_def, place)


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """The result of training in this process.

    `reports` are (group, batches, metrics) in order. `checkpoints` are the directories of
    checkpoints, the newest last.
    """

    hparams: Mapping[str, Any]
    reports: list[tuple[str, int, dict[str, Any]]]
    checkpoints: list[str]

    @property
    def validation(self) -> dict[str, Any]:
        """The metrics of the last validation. Empty if there was none."""
        return next(
            (metrics for group, _, metrics in reversed(self.reports) if group == "validation"), {}
        )


def train_here(trial: type, place: ScriptPlace) -> LocalResult:
    """Train a trial class to the searcher's `max_length`.

    Ctrl-C saves a checkpoint and returns. A second Ctrl-C ends at once.
    """
    framework = place.plugins.framework_of(trial)
    searcher = place.run.config.searcher
    length = getattr(searcher, "max_length", None)
    if searcher is None or length is None:
        raise DetError(
            "searcher.max_length is missing, and Mode.LOCAL trains until there; give it, such as"
            " {'epochs': 3}"
        )
    host = LocalHost(
        Target(n=length.n, unit=length.unit),
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
        listener=_say,
    )
    info = replace(place.run, build=place.plugins.build(framework.name))
    keep = CheckpointSink(storage=LocalStorage(place.home / "checkpoints"))
    shown = " ".join(f"{name}={value}" for name, value in sorted(info.hparams.items()))
    sys.stdout.write(
        f"training {trial.__qualname__} here for {length.n}"
        f" {length.unit}{': ' if shown else ''}{shown}\n"
    )
    with preempted_by(host.preempted, signal.SIGINT, signal.SIGTERM):
        run_trial(framework, trial, info, host, keep)
    saved = [storage.removeprefix("file://") for _, storage in host.checkpoints]
    return LocalResult(hparams=dict(info.hparams), reports=host.history, checkpoints=saved)


def _say(group: str, batches: int, metrics: Mapping[str, Any]) -> None:
    shown = " ".join(
        f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in metrics.items()
    )
    sys.stdout.write(f"batch {batches} {group}: {shown}\n")
    sys.stdout.flush()
