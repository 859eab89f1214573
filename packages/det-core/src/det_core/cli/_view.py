"""What is seen while an experiment runs: a live table in a terminal, lines elsewhere. An observer like a stranger's."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from ..hookspecs import hookimpl
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
    return Live() if sys.stdout.isatty() else Lines()


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
        _print(f"trial {trial.id} batch {batches} {group}: {_numbers(metrics)}")

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        _print(f"trial {trial.id} batch {checkpoint.batches} checkpoint {checkpoint.uuid}")

    @hookimpl
    def det_run_finished(self, trial: Any, outcome: str) -> None:
        _print(f"trial {trial.id} {outcome}")


class Live(Silent):
    """A table of trials with their progress, the newest metrics and the time that is left, redrawn in place."""

    ROWS = 12

    def __init__(self) -> None:
        from rich.live import Live as Screen

        self._title = ""
        self._metric = ""
        self._started = time.monotonic()
        self._trials: dict[int, dict[str, Any]] = {}
        self._screen = Screen(get_renderable=self._table, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._screen.refresh()
        self._screen.stop()

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        self._title = f"experiment {experiment.id} ({experiment.name})"
        self._metric = (experiment.config.searcher.metric or "") if experiment.config.searcher else ""

    @hookimpl
    def det_run_started(self, trial: Any, run: Any) -> None:
        row = self._trials.setdefault(trial.id, {"hparams": trial.hparams})
        row.update(state="running", batches=run.first_batch, since=time.monotonic(), progress=trial.progress)
        row["from"] = trial.progress

    @hookimpl
    def det_metrics_reported(self, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        row = self._trials.setdefault(trial.id, {"hparams": trial.hparams})
        row.update(batches=batches, progress=trial.progress, best=trial.best_metric)
        row[group] = _numbers(metrics)

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        self._trials.setdefault(trial.id, {"hparams": trial.hparams})["checkpoint"] = checkpoint.batches

    @hookimpl
    def det_run_finished(self, trial: Any, outcome: str) -> None:
        self._trials.setdefault(trial.id, {"hparams": trial.hparams}).update(
            state=str(trial.state).lower(), progress=trial.progress
        )

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self._heading(), title_justify="left", box=None, pad_edge=False)
        for column in ("trial", "state", "batch", "done", "left", f"best {self._metric}".strip(), "newest"):
            table.add_column(column, overflow="ellipsis", no_wrap=True)
        for id, row in self._chosen():
            progress = row.get("progress") or 0.0
            cells = [str(id), row.get("state", ""), str(row.get("batches", "")), f"{progress:.0%}", self._left(row)]
            newest = row.get("validation") or row.get("training") or ""
            table.add_row(*(Text(cell) for cell in [*cells, shown(row.get("best")), newest]))
        return table

    def _heading(self) -> str:
        running = sum(row.get("state") == "running" for row in self._trials.values())
        passed = time.monotonic() - self._started
        return f"{self._title}  {running} running of {len(self._trials)} trials  {_clock(passed)}"

    def _chosen(self) -> list[tuple[int, dict[str, Any]]]:
        """Running trials first, then the newest."""
        order = sorted(self._trials.items(), key=lambda item: (item[1].get("state") != "running", -item[0]))
        return order[: self.ROWS]

    def _left(self, row: dict[str, Any]) -> str:
        done = (row.get("progress") or 0.0) - (row.get("from") or 0.0)
        if row.get("state") != "running" or done <= 0.0:
            return ""
        return _clock((time.monotonic() - row["since"]) / done * (1.0 - row["progress"]))


def _numbers(metrics: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={shown(value)}" for name, value in metrics.items() if name not in ("batches", "epochs"))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
