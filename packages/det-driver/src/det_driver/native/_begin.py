"""Where a script that is its own experiment finds itself when it says so, and what it makes there of a trial class."""

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

from det_core.adapter import RunInfo
from det_core.backend import Ranks, Serial
from det_core.config import ExperimentConfig
from det_core.distributed import DistributedContext
from det_core.environ import WorkerEnv
from det_core.errors import DetError
from det_core.host import Target
from det_core.interrupts import preempted_by
from det_core.local import LocalHost
from det_core.plugins import Plugins, extensions_of
from det_core.run import length_of, run_trial
from det_core.saving import Keep
from det_core.storage import LocalStorage
from det_core.trial_context import TrialContext
from det_core.worker import run_info

from ..check import first_choice
from ..config import load
from .script import ENTRYPOINT, LOADING, submit, take_over

Data = dict[str, Any]
_DEFAULTS: Data = {"searcher": {"name": "single", "metric": "val_loss"}}
_ELSEWHERE = ("bind_mounts", "checkpoint_storage", "environment", "pbs", "resources", "slurm")


class Mode(enum.Enum):
    """LOCAL trains here and now, with one choice of hyperparameters; CLUSTER submits the experiment and follows it."""

    CLUSTER = "cluster"
    LOCAL = "local"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise DetError(f"mode is {value!r}; give Mode.LOCAL or Mode.CLUSTER")


@dataclass(frozen=True, kw_only=True)
class ScriptPlace:
    """The run that a script is part of: in a worker (`local` false), or here and now.

    Until training begins, `run.distributed` of several ranks knows where this one stands, and cannot talk to the others.
    """

    run: RunInfo
    local: bool
    home: Path
    plugins: Plugins


class NativeContext(TrialContext):
    """Hyperparameters, batch sizes, ids and the data's configuration; a plugin's own derives from it.

    `place` says where the script finds itself.
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
    """Return where this script finds itself; in CLUSTER mode, outside of a worker, submit it and never return.

    With `as_trial` the workers execute the script to find its trial, which it hands over by `take_over`; without, the script is
    the entrypoint, and trains by itself; where a trial has several slots, the module `launcher` (`det_core.launch...`) starts it on
    each. Raises ConfigError for what is wrong with `config`, DetError for the rest.
    """
    plugins = Plugins.installed()
    home = Path(os.environ.get("DET_HOME") or Path.home() / ".det").expanduser().absolute()
    loading = LOADING.get()
    env = loading.env if loading else None if as_trial else WorkerEnv.read(os.environ)
    if env is not None:
        env = env.typed(extensions_of(plugins))
        alone = env.ranks.size == 1
        distributed = DistributedContext() if alone else DistributedContext.from_backend(_Before(env.ranks))
        run = run_info(env, plugins, framework, Path.cwd(), distributed)
        return ScriptPlace(run=run, local=False, home=home, plugins=plugins)
    if as_trial and WorkerEnv.read(os.environ) is not None:
        raise DetError(f"this script is run by a worker that looks for no trial; its entrypoint has to be {ENTRYPOINT}")
    data = {**_DEFAULTS, **(config or {})}
    if Mode(mode) is Mode.CLUSTER:
        several = (data.get("resources") or {}).get("slots_per_trial", 1) != 1
        start = f"python3 -m {launcher} -- " if launcher and several else ""
        submit(data, context_dir, command, home=home, entrypoint=ENTRYPOINT if as_trial else None, start=start)
    run = _local(data, framework, plugins, context_dir, as_trial)
    return ScriptPlace(run=run, local=True, home=home, plugins=plugins)


def _local(data: Data, framework: str, plugins: Plugins, context_dir: str | Path, as_trial: bool) -> RunInfo:
    left_out = sorted(name for name in _ELSEWHERE if name in data)
    if left_out:
        sys.stderr.write(f"det: {', '.join(left_out)} of the configuration is for Mode.CLUSTER and not used here\n")
    kept = {name: value for name, value in data.items() if name not in left_out}
    entrypoint = ENTRYPOINT if as_trial else "python3 script.py"
    config: ExperimentConfig = load({**kept, "entrypoint": entrypoint}, extensions=extensions_of(plugins)).config
    hparams, seed = first_choice(config, plugins)
    return RunInfo(
        config=config,
        hparams=hparams,
        seed=seed,
        build=plugins.build(framework),
        distributed=DistributedContext(),
        length=length_of(config),
        code_dir=Path(context_dir).resolve() if str(context_dir) else None,
    )


class _Before(Serial):
    """Knows where this process stands, and cannot talk to the others yet."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def barrier(self) -> NoReturn:
        raise DetError(
            "the ranks of this run talk to one another once training has begun; ask for ranks and sizes before"
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
    """Train a trial class: `config` is an experiment configuration without its entrypoint.

    `Mode.LOCAL` trains here, to the searcher's `max_length`, with the hyperparameters of the search's first trial, and returns
    what came of it. `Mode.CLUSTER` submits the code in `context_dir`, follows the experiment, and ends this process with its
    status: each worker executes the script again, as `command` says (by default as it was called here; a notebook by its path), up
    to this call. When the script is imported, such as by who loads a checkpoint, nothing happens and None is returned;
    `stacklevel` says how many calls away the script is.

    Raises ConfigError for what is wrong with `config`, and DetError for the rest.
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
    """What came of a training here and now.

    `reports` are (group, batches, metrics) in order; `checkpoints` the directories that were saved, newest last.
    """

    hparams: Mapping[str, Any]
    reports: list[tuple[str, int, dict[str, Any]]]
    checkpoints: list[str]

    @property
    def validation(self) -> dict[str, Any]:
        """The metrics of the last validation, empty where there was none."""
        return next((metrics for group, _, metrics in reversed(self.reports) if group == "validation"), {})


def train_here(trial: type, place: ScriptPlace) -> LocalResult:
    """Train a trial class to the searcher's `max_length`; Ctrl-C saves and returns, twice ends at once."""
    framework = place.plugins.framework_of(trial)
    searcher = place.run.config.searcher
    length = getattr(searcher, "max_length", None)
    if searcher is None or length is None:
        raise DetError(
            "searcher.max_length is missing, and Mode.LOCAL trains until there; give it, such as {'epochs': 3}"
        )
    host = LocalHost(
        Target(n=length.n, unit=length.unit),
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
        listener=_say,
    )
    info = replace(place.run, build=place.plugins.build(framework.name))
    keep = Keep(storage=LocalStorage(place.home / "checkpoints"))
    shown = " ".join(f"{name}={value}" for name, value in sorted(info.hparams.items()))
    sys.stdout.write(f"training {trial.__qualname__} here for {length.n} {length.unit}{': ' if shown else ''}{shown}\n")
    with preempted_by(host.preempted, signal.SIGINT, signal.SIGTERM):
        run_trial(framework, trial, info, host, keep)
    saved = [storage.removeprefix("file://") for _, storage in host.checkpoints]
    return LocalResult(hparams=dict(info.hparams), reports=host.history, checkpoints=saved)


def _say(group: str, batches: int, metrics: Mapping[str, Any]) -> None:
    shown = " ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in metrics.items())
    sys.stdout.write(f"batch {batches} {group}: {shown}\n")
    sys.stdout.flush()
