"""`det metrics`, `det logs` and `det tensorboard`: what trials have reported and written."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO

import click
import msgspec

from det_core.config import from_json
from det_core.errors import DetError, StoreError, did_you_mean
from det_core.support.paths import open_regular

from ..client import Space
from ..store import LogTimes, Metric, Store
from ._console import EXPERIMENTS, TRIALS, Settings, optional, print_json, shown_time
from ._output import coloured, raw
from ._remote import END, MARK
from ._table import print_table
from ._words import refuse_word

_CHUNK = 1 << 20
_RESULT_SECONDS = 20.0
"""How long a driver may take to print the result, at most."""


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option("--trial", type=int, shell_complete=TRIALS, help="Of this trial only.")
@click.option("--group", help="Of this group only, such as training or validation.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--parquet", type=click.Path(path_type=Path), help="Write a Parquet file, for pandas."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each report.")
@click.pass_obj
def metrics(
    settings: Settings,
    experiment: int,
    trial: int | None,
    group: str | None,
    as_csv: bool,
    parquet: Path | None,
    as_json: bool,
) -> None:
    """Print what the trials of EXPERIMENT reported, in order, or write it into a file.

    CSV and Parquet have a column hparams.NAME for each hyperparameter that the search chose, and a
    metric by the name of another column as metrics.NAME. JSON has the metrics under a key of their
    own, NaN and Infinity as text.
    """
    with settings.reader() as store:
        space = Space(from_json(store.experiments.get(experiment).config).hyperparameters)
        of_experiment(store, trial, experiment)
        known = store.metrics.groups(experiment)
        if group is not None and group not in known:
            way_out = did_you_mean(group, known) or f"; known: {', '.join(known) or 'none yet'}"
            raise StoreError(
                f"experiment {experiment} has no metrics of the group {group!r}{way_out}"
            )
        found = store.metrics.read(
            trial_id=trial, experiment_id=experiment if trial is None else None, group=group
        )
        if as_csv or parquet is not None:
            trials = store.trials.list(experiment)
            names = space.names(each.hparams for each in trials)
            chosen = {each.id: space.chosen(each.hparams) for each in trials}
            full = (
                _row(m, {f"hparams.{name}": chosen[m.trial_id].get(name) for name in names})
                for m in found
            )
        if parquet is not None:
            count = _write_parquet(parquet, full)
            sys.stdout.write(f"{count} reports written to {parquet}\n")
            return
        if as_json:
            for metric in found:
                own = {"trial": metric.trial_id, "group": metric.group, "batches": metric.batches}
                print_json({**own, "metrics": _values(metric)})
            return
        rows = list(full) if as_csv else [_row(metric) for metric in found]
    columns = _columns(rows)
    if as_csv:
        writer = csv.DictWriter(sys.stdout if sys.stdout.isatty() else raw(sys.stdout), columns)
        writer.writeheader()
        writer.writerows(rows)
    else:
        print_table(columns, ([row.get(column) for column in columns] for row in rows))


def of_experiment(store: Store, trial: int | None, experiment: int) -> None:
    """Raise StoreError unless the trial, if one is given, belongs to this experiment."""
    if trial is not None and store.trials.get(trial).experiment_id != experiment:
        raise StoreError(
            f"trial {trial} is not of experiment {experiment}; det show {experiment} lists its"
            " trials"
        )


_OWN = ("trial", "group", "batches")


def _row(metric: Metric, hparams: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return a report as a row. A metric with the name of another column is `metrics.NAME`."""
    row = {"trial": metric.trial_id, "group": metric.group, "batches": metric.batches, **hparams}
    return row | {_column(name): value for name, value in _values(metric).items()}


def _column(name: str) -> str:
    return f"metrics.{name}" if name in _OWN or name.startswith(("hparams.", "metrics.")) else name


def _values(metric: Metric) -> dict[str, Any]:
    return {name: value for name, value in metric.values.items() if name != "batches"}


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(_OWN)
    return list(names | {name: None for row in rows for name in row})


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a row for each report and a column for each metric, and return the number of rows.

    A column is numeric if all its values are numbers. Otherwise it has text, and JSON for values
    that are no text.
    """
    pyarrow, parquet = (
        optional(name, "--parquet writes") for name in ("pyarrow", "pyarrow.parquet")
    )
    listed = list(rows)
    table = pyarrow.table(
        {name: _of_one_type([row.get(name) for row in listed]) for name in _columns(listed)}
    )
    try:
        parquet.write_table(table, path)
    except OSError as error:
        reason = error.strerror or error
        raise DetError(
            f"cannot write {path}: {reason}; give a file in a directory that exists"
        ) from error
    return len(listed)


def _of_one_type(values: list[Any]) -> list[Any]:
    """Return the values converted to one type."""
    real = [value for value in values if value is not None]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in real):
        return [
            v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in values
        ]
    if any(isinstance(value, float) for value in real):
        return [None if value is None else float(value) for value in values]
    return values


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option(
    "--trial",
    type=int,
    shell_complete=TRIALS,
    help="Of this trial only (its id, as det show prints it).",
)
@click.option("--rank", type=int, help="Of this rank only.")
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the experiment ends.")
@click.option(
    "--tail", type=click.IntRange(min=0), help="Only the last so many lines of each process."
)
@click.option(
    "--times/--no-times",
    default=True,
    help="Print when each line was written, to about a second (the default).",
)
@click.option(
    "--driver",
    is_flag=True,
    help="What a driver in the background printed: the progress and the result, as det run does.",
)
@click.option("--marks", is_flag=True, hidden=True, help="With the position after each line.")
@click.option("--after", hidden=True, help="The positions, as JSON, after which to print.")
@click.option("--of-command", is_flag=True, hidden=True, help="Only lines, as det cmd logs does.")
@click.pass_obj
def logs(
    settings: Settings,
    experiment: int,
    trial: int | None,
    rank: int | None,
    follow: bool,
    tail: int | None,
    times: bool,
    driver: bool,
    marks: bool,
    after: str | None,
    of_command: bool,
) -> None:
    """Print what the processes of EXPERIMENT's trials wrote, and at the end why some failed.

    Of a line that was redrawn, such as a progress bar, the last state is printed. What was written
    while no driver looked has the time at which one came back.
    """
    from ._show import why_ended
    from ._tasks import COMMAND, check_task

    if driver and (trial is not None or rank is not None):
        raise click.UsageError("--driver is of the whole experiment; leave out --trial and --rank")
    known = _positions(after)
    with settings.reader() as store:
        if of_command:
            check_task(store, experiment, COMMAND)
            times = False
        store.experiments.get(experiment)
        of_experiment(store, trial, experiment)
        printers: dict[Path, _Printer] = {}
        while True:
            over = _is_over(store, experiment, driver)
            for label, file in (
                _of_driver(store, experiment) if driver else _files(store, experiment, trial, rank)
            ):
                if file not in printers:
                    dated = LogTimes(file) if times and not driver else None
                    printers[file] = _Printer(file, label, dated, marks, labels=not of_command)
                    printers[file].start(known.get(label), tail)
                printers[file].print_new(all_of_it=over or not follow)
            if not printers and (over or not follow):
                if driver:
                    _say_no_driver(experiment)
                else:
                    _say_why_none(store, experiment, trial, rank)
            if not follow or over:
                break
            time.sleep(0.2)
        if driver or of_command:
            return
        shown = [row for row in store.trials.list(experiment) if trial in (None, row.id)]
        sys.stderr.writelines(f"det: {line}\n" for line in why_ended(store, experiment, shown))


_decode_positions = msgspec.json.Decoder(dict[str, Annotated[int, msgspec.Meta(ge=0)]]).decode


def _positions(after: str | None) -> dict[str, int]:
    """Return the position of each file that `--after` has."""
    if after is None:
        return {}
    try:
        return _decode_positions(after)
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--after is no positions: {error}") from None


def _is_over(store: Store, experiment: int, driver: bool) -> bool:
    """Return whether nothing more is written to the logs, or to the driver's."""
    found = store.experiments.get(experiment)
    if not driver:
        return found.state != "ACTIVE"
    if store.experiments.driven(experiment) or (
        found.state == "ACTIVE" and not store.experiments.orphaned(found)
    ):
        return False
    # A driver prints the result after the end of its experiment.
    deadline = time.monotonic() + _RESULT_SECONDS
    files = [file for _, file in _of_driver(store, experiment)]
    while any(map(_is_open, files)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return True


def _is_open(log: Path) -> bool:
    """Return whether the driver that writes a log is still there."""
    with open_regular(log) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _of_driver(store: Store, experiment: int) -> list[tuple[str, Path]]:
    file = store.experiment_dir(experiment) / "driver.log"
    return [("", file)] if file.exists() else []


def _say_no_driver(experiment: int) -> None:
    sys.stderr.write(
        f"det: no driver of experiment {experiment} ran in the background; see: det show"
        f" {experiment}\n"
    )


def _files(
    store: Store, experiment: int, trial: int | None, rank: int | None
) -> list[tuple[str, Path]]:
    """Return the current log files, in the order of trials, runs and ranks."""
    pattern = "rank-*.log" if rank is None else f"rank-{rank}.log"
    trials = [row.id for row in store.trials.list(experiment) if trial in (None, row.id)]
    return [
        (f"trial {id} run {run.number} {file.stem}", file)
        for id in trials
        for run in store.runs.list(id)
        for file in sorted(run.log_dir.glob(pattern))
    ]


def _say_why_none(store: Store, experiment: int, trial: int | None, rank: int | None) -> None:
    """Print why there are no logs. Raises StoreError where they have been deleted."""
    runs = [
        run
        for row in store.trials.list(experiment)
        if trial in (None, row.id)
        for run in store.runs.list(row.id)
    ]
    if store.experiments.get(experiment).outside:
        sys.stderr.write(
            f"det: det did not start the script of experiment {experiment}, and keeps of its output"
            " only the traceback of a failure\n"
        )
    elif not runs:
        sys.stderr.write(
            f"det: no run of experiment {experiment} has started; see: det show {experiment}\n"
        )
    elif rank is not None and any(any(run.log_dir.glob("rank-*.log")) for run in runs):
        raise StoreError(
            f"no run of experiment {experiment} has a rank {rank}; leave out --rank for all of them"
        )
    # A run on another host may not have written anything yet.
    elif not any(run.log_dir.is_dir() or run.ended is None for run in runs):
        raise StoreError(
            f"the logs of experiment {experiment} are gone: {runs[-1].log_dir} and the like have"
            " been deleted"
        )


class _Printer:
    """Prints the new lines of a file with a label. Of a redrawn line, it prints the last state.

    Progress bars redraw their line.
    """

    def __init__(
        self, file: Path, label: str, times: LogTimes | None, marks: bool, *, labels: bool
    ) -> None:
        self._file: BinaryIO = open_regular(file)
        self._label = label
        self._shown_label = f"[{label}] " if label and labels else ""
        self._times = times
        self._marks = marks
        self._parts: list[bytes] = []
        self._offset = 0

    def start(self, offset: int | None, tail: int | None) -> None:
        """Begin at an offset, or else with the last lines."""
        if offset is None and tail is not None:
            offset = _start_of_last(self._file, tail)
        self._offset = self._file.seek(offset or 0)
        if self._marks:
            raw(sys.stdout).write(self._mark() + "\n")
            sys.stdout.flush()

    def print_new(self, *, all_of_it: bool) -> None:
        """Print the complete lines. With `all_of_it`, an incomplete last line is printed, too."""
        while chunk := self._file.read(_CHUNK):
            first, *more = chunk.split(b"\n")
            self._parts.append(first)
            if more:
                self._write([b"".join(self._parts), *more[:-1]])
                self._parts = more[-1:]
        if all_of_it and any(self._parts):
            self._write([b"".join(self._parts)])
            self._parts = []

    def _write(self, lines: list[bytes]) -> None:
        # In a file or a pipe, a log is printed unchanged. On a terminal, only its colours take
        # effect.
        shown = coloured if sys.stdout.isatty() else str
        if self._times is not None:
            self._times.read()
        out = raw(sys.stdout)
        for line in lines:
            when = self._time_of(line)
            self._offset += len(line) + 1
            text = line.rstrip().rpartition(b"\r")[2].decode(errors="replace")
            mark = f"{self._mark()} " if self._marks else ""
            out.write(f"{mark}{when}{self._shown_label}{shown(text)}\n")
        sys.stdout.flush()

    def _mark(self) -> str:
        return f"{MARK}{self._label} {self._offset}{END}"

    def _time_of(self, line: bytes) -> str:
        """Return the time at which the next line was written, with a space.

        Empty where it is unknown.
        """
        when = self._times.at(self._offset + len(line) - 1) if self._times is not None else None
        return "" if when is None else shown_time(when, "%m-%d %H:%M:%S ")


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return the offset of the last `lines` lines of a file, which is read from its end."""
    end = start = file.seek(0, os.SEEK_END)
    if not lines:
        return end
    left = lines
    while start:
        size = min(_CHUNK, start)
        start -= size
        file.seek(start)
        chunk = file.read(size)
        at = len(chunk)
        # The newline at the end of the last line does not begin a new one.
        if start + size == end and chunk.endswith(b"\n"):
            at -= 1
        while (at := chunk.rfind(b"\n", 0, at)) >= 0:
            left -= 1
            if not left:
                return start + at + 1
    return 0


class _Started(click.Command):
    """Ignores the word `start` that Determined's users type, and answers their other words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_word("tensorboard", args)
        return super().parse_args(ctx, args[args[:1] == ["start"] :])


@click.command(cls=_Started, context_settings={"ignore_unknown_options": True})
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS, nargs=-1, required=True)
@click.option("--port", type=int, help="The port to listen on; TensorBoard's default otherwise.")
@click.option(
    "--no-browser", is_flag=True, hidden=True, help="As Determined's users type it; none is opened."
)
@click.option("--logdir", "print_only", is_flag=True, help="Print the directories only.")
@click.pass_obj
def tensorboard(
    settings: Settings,
    experiment: tuple[int, ...],
    port: int | None,
    no_browser: bool,
    print_only: bool,
) -> None:
    """Open TensorBoard on EXPERIMENTs."""
    with settings.reader() as store:
        places = {
            store.experiments.get(id).id: store.experiment_dir(id) / "tensorboard"
            for id in experiment
        }
    spec = ",".join(f"experiment-{id}:{path}" for id, path in places.items())
    if print_only:
        sys.stdout.write("".join(f"{path}\n" for path in places.values()))
        return
    if find_spec("tensorboard") is None:
        raise DetError("tensorboard is not installed; pip install tensorboard")
    arguments = (
        ["--logdir_spec", spec]
        if len(places) > 1
        else ["--logdir", str(next(iter(places.values())))]
    )
    if port is not None:
        arguments += ["--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tensorboard.main", *arguments])
