"""What is seen while an experiment runs: a live table in a terminal, lines elsewhere. An observer like a stranger's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from det_core.hookspecs import hookimpl

from ._output import shown


class View(Protocol):
    """An observer that is entered before the first event and left after the last."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def view(silent: bool) -> View:
    """Return the view that suits where the output goes."""
    if silent:
        return Silent()
    if not sys.stdout.isatty():
        return Lines()
    from ._live import Live

    return Live()


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        pass


class Lines(Silent):
    """Prints a line for each thing that happens: for logs and pipes."""

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        _print(f"experiment {experiment.id} ({experiment.name})")

    @hookimpl
    def det_run_started(self, trial: Any, run: Any) -> None:
        again = f", run {run.number} from batch {run.first_batch}" if run.number > 1 else ""
        _print(f"trial {trial.id} starts{again}: {shown(trial.hparams)}")

    @hookimpl
    def det_metrics_reported(self, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        _print(f"trial {trial.id} batch {batches} {group}: {numbers(metrics)}")

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        _print(f"trial {trial.id} batch {checkpoint.batches} checkpoint {checkpoint.uuid}")

    @hookimpl
    def det_run_finished(self, trial: Any, outcome: str) -> None:
        _print(f"trial {trial.id} {outcome}")


def numbers(metrics: Mapping[str, Any]) -> str:
    """Return reported metrics as text, without the counters that come with all of them."""
    return "  ".join(f"{name}={shown(value)}" for name, value in metrics.items() if name not in ("batches", "epochs"))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
