"""Training a trial class of a script: here and now, or as an experiment of its own."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from det_core.errors import DetError
from det_core.host import Target
from det_core.interrupts import preempted_by
from det_core.local import LocalHost
from det_core.run import Keep, run_trial
from det_core.storage import LocalStorage

from ._begin import Mode, ScriptPlace, begin
from .script import LOADING, take_over


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
    shown = " ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}" for name, value in metrics.items()
    )
    sys.stdout.write(f"batch {batches} {group}: {shown}\n")
    sys.stdout.flush()
