"""What trials reported and wrote: `det metrics`, `det logs` and `det tensorboard`."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import click

from det_core.config import from_json
from det_core.errors import DetError, StoreError, did_you_mean

from ..client import Space
from ..store import Metric, Store
from ._console import EXPERIMENTS, TRIALS, Settings, optional, print_json, print_table


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option("--trial", type=int, shell_complete=TRIALS, help="Of this trial only.")
@click.option("--group", help="Of this group only, such as training or validation.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--parquet", type=click.Path(path_type=Path), help="Write a Parquet file, for pandas.")
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

    CSV and Parquet have a column hparams.NAME for each hyperparameter that the search chose. JSON has NaN and Infinity as text.
    """
    with settings.reader() as store:
        space = Space(from_json(store.experiments.get(experiment).config).hyperparameters)
        of_experiment(store, trial, experiment)
        known = store.metrics.groups(experiment)
        if group is not None and group not in known:
            way_out = did_you_mean(group, known) or f"; known: {', '.join(known) or 'none yet'}"
            raise StoreError(f"experiment {experiment} has no metrics of the group {group!r}{way_out}")
        found = store.metrics.read(trial_id=trial, experiment_id=experiment if trial is None else None, group=group)
        if as_csv or parquet is not None:
            trials = store.trials.list(experiment)
            names = space.names(each.hparams for each in trials)
            chosen = {each.id: space.chosen(each.hparams) for each in trials}
            full = (_row(m, {f"hparams.{name}": chosen[m.trial_id].get(name) for name in names}) for m in found)
        if parquet is not None:
            count = _write_parquet(parquet, full)
            sys.stdout.write(f"{count} reports written to {parquet}\n")
            return
        if as_json:
            for metric in found:
                print_json(_row(metric))
            return
        rows = list(full) if as_csv else [_row(metric) for metric in found]
    columns = _columns(rows)
    if as_csv:
        writer = csv.DictWriter(sys.stdout, columns)
        writer.writeheader()
        writer.writerows(rows)
    else:
        print_table(columns, ([row.get(column) for column in columns] for row in rows))


def of_experiment(store: Store, trial: int | None, experiment: int) -> None:
    """Raise StoreError unless the trial, if one is given, is of this experiment."""
    if trial is not None and store.trials.get(trial).experiment_id != experiment:
        raise StoreError(f"trial {trial} is not of experiment {experiment}; det show {experiment} lists its trials")


def _row(metric: Metric, hparams: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    values = {name: value for name, value in metric.values.items() if name != "batches"}
    return {"trial": metric.trial_id, "group": metric.group, "batches": metric.batches, **hparams, **values}


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(("trial", "group", "batches"))
    return list(names | {name: None for row in rows for name in row})


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write one row for each report, one column for each metric; return the number of rows.

    A metric that is a number everywhere is a column of numbers; any other, of text, JSON where it is no text.
    """
    pyarrow, parquet = (optional(name, "--parquet writes") for name in ("pyarrow", "pyarrow.parquet"))
    listed = list(rows)
    table = pyarrow.table({name: _of_one_type([row.get(name) for row in listed]) for name in _columns(listed)})
    try:
        parquet.write_table(table, path)
    except OSError as error:
        reason = error.strerror or error
        raise DetError(f"cannot write {path}: {reason}; give a file in a directory that exists") from error
    return len(listed)


def _of_one_type(values: list[Any]) -> list[Any]:
    """Return the values so that they are of one type."""
    real = [value for value in values if value is not None]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in real):
        return [v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in values]
    if any(isinstance(value, float) for value in real):
        return [None if value is None else float(value) for value in values]
    return values


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option("--trial", type=int, shell_complete=TRIALS, help="Of this trial only (its id, as det show prints it).")
@click.option("--rank", type=int, help="Of this rank only.")
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the experiment ends.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last so many lines of each process.")
@click.pass_obj
def logs(
    settings: Settings, experiment: int, trial: int | None, rank: int | None, follow: bool, tail: int | None
) -> None:
    """Print what the processes of EXPERIMENT's trials wrote and, at the end, why those ended that failed."""
    from ._show import why_ended

    with settings.reader() as store:
        store.experiments.get(experiment)
        of_experiment(store, trial, experiment)
        printers: dict[Path, _Printer] = {}
        while True:
            over = store.experiments.get(experiment).state != "ACTIVE"
            for label, file in _files(store, experiment, trial, rank):
                printers.setdefault(file, _Printer(file, label, tail)).print_new()
            if not printers and (over or not follow):
                _say_why_none(store, experiment, trial, rank)
            if not follow or over:
                break
            time.sleep(0.2)
        shown = [row for row in store.trials.list(experiment) if trial in (None, row.id)]
        sys.stderr.writelines(f"det: {line}\n" for line in why_ended(store, experiment, shown))


def _files(store: Store, experiment: int, trial: int | None, rank: int | None) -> list[tuple[str, Path]]:
    """Return the log files there are now, in order of trials, runs and ranks."""
    pattern = "rank-*.log" if rank is None else f"rank-{rank}.log"
    trials = [row.id for row in store.trials.list(experiment) if trial in (None, row.id)]
    return [
        (f"trial {id} run {run.number} {file.stem}", file)
        for id in trials
        for run in store.runs.list(id)
        for file in sorted(run.log_dir.glob(pattern))
    ]


def _say_why_none(store: Store, experiment: int, trial: int | None, rank: int | None) -> None:
    """Say why there are no logs; StoreError where there have been some."""
    runs = [run for row in store.trials.list(experiment) if trial in (None, row.id) for run in store.runs.list(row.id)]
    if not runs:
        sys.stderr.write(f"det: no run of experiment {experiment} has started; see: det show {experiment}\n")
    elif rank is not None and any(any(run.log_dir.glob("rank-*.log")) for run in runs):
        raise StoreError(f"no run of experiment {experiment} has a rank {rank}; leave out --rank for all of them")
    elif not any(run.log_dir.is_dir() or run.ended is None for run in runs):  # one elsewhere may have said nothing yet
        raise StoreError(
            f"the logs of experiment {experiment} are gone: {runs[-1].log_dir} and the like have been deleted"
        )


class _Printer:
    """Prints a file's new lines, each behind its label."""

    def __init__(self, file: Path, label: str, tail: int | None) -> None:
        self._file: TextIO = file.open(errors="replace")
        self._label = label
        self._rest = ""
        if tail is not None:
            lines = self._file.readlines()
            self._write(lines[len(lines) - tail :] if tail else [])

    def print_new(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        self._write(lines)

    def _write(self, lines: list[str]) -> None:
        sys.stdout.writelines(f"[{self._label}] {line.rstrip()}\n" for line in lines)
        sys.stdout.flush()


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS, nargs=-1, required=True)
@click.option("--port", type=int, help="The port to listen on; TensorBoard's default otherwise.")
@click.option("--logdir", "print_only", is_flag=True, help="Print the directories only.")
@click.pass_obj
def tensorboard(settings: Settings, experiment: tuple[int, ...], port: int | None, print_only: bool) -> None:
    """Open TensorBoard on EXPERIMENTs."""
    with settings.reader() as store:
        places = {store.experiments.get(id).id: store.experiment_dir(id) / "tensorboard" for id in experiment}
    spec = ",".join(f"experiment-{id}:{path}" for id, path in places.items())
    if print_only:
        sys.stdout.write("".join(f"{path}\n" for path in places.values()))
        return
    if find_spec("tensorboard") is None:
        raise DetError("tensorboard is not installed; pip install tensorboard")
    arguments = ["--logdir_spec", spec] if len(places) > 1 else ["--logdir", str(next(iter(places.values())))]
    if port is not None:
        arguments += ["--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tensorboard.main", *arguments])
