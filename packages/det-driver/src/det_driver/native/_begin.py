"""Where a script that is its own experiment finds itself when it says so."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from det_core.adapter import RunInfo
from det_core.backend import Backend, Ranks
from det_core.config import ExperimentConfig
from det_core.distributed import DistributedContext
from det_core.environ import WorkerEnv
from det_core.errors import DetError
from det_core.plugins import Plugins, extensions_of
from det_core.run import length_of
from det_core.trial_context import TrialContext
from det_core.worker import run_info

from ..check import first_choice
from ..config import load
from ._submit import submit
from .script import ENTRYPOINT, LOADING

Data = dict[str, Any]
_DEFAULTS: Data = {"searcher": {"name": "single", "metric": "val_loss"}}
_ELSEWHERE = ("bind_mounts", "checkpoint_storage", "environment", "pbs", "resources", "slurm")


class Mode(enum.Enum):
    """LOCAL trains here and now, with one choice of hyperparameters; CLUSTER submits the experiment and follows it."""

    CLUSTER = "cluster"
    LOCAL = "local"

    @classmethod
    def of(cls, mode: Mode | str) -> Mode:
        """Return the mode that a value means; DetError where it means none."""
        try:
            return cls(mode)
        except ValueError:
            raise DetError(f"mode is {mode!r}; give Mode.LOCAL or Mode.CLUSTER") from None


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
        return ScriptPlace(
            run=run_info(env, plugins, framework, Path.cwd(), _standing(env)), local=False, home=home, plugins=plugins
        )
    if as_trial and WorkerEnv.read(os.environ) is not None:
        raise DetError(f"this script is run by a worker that looks for no trial; its entrypoint has to be {ENTRYPOINT}")
    data = {**_DEFAULTS, **(config or {})}
    if Mode.of(mode) is Mode.CLUSTER:
        several = (data.get("resources") or {}).get("slots_per_trial", 1) != 1
        start = f"python3 -m {launcher} -- " if launcher and several else ""
        submit(data, context_dir, command, home=home, entrypoint=ENTRYPOINT if as_trial else None, start=start)
    return ScriptPlace(
        run=_local(data, framework, plugins, context_dir, as_trial), local=True, home=home, plugins=plugins
    )


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


def _standing(env: WorkerEnv) -> DistributedContext:
    return DistributedContext() if env.ranks.size == 1 else DistributedContext.from_backend(_Before(env.ranks))


class _Before(Backend):
    """Knows where this process stands, and cannot talk to the others yet."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def init(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def barrier(self) -> NoReturn:
        raise DetError(
            "the ranks of this run talk to one another once training has begun; ask for ranks and sizes before"
        )

    def allgather(self, value: Any) -> NoReturn:
        self.barrier()

    def broadcast(self, value: Any) -> NoReturn:
        self.barrier()
