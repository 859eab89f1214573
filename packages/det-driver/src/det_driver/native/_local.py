"""Training a trial class here and now."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from det_core.errors import DetError
from det_core.host import Target
from det_core.interrupts import preempted_by
from det_core.local import LocalHost
from det_core.run import Keep, run_trial
from det_core.storage import LocalStorage

from ._begin import Place


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


def train_here(trial: type, place: Place) -> LocalResult:
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
