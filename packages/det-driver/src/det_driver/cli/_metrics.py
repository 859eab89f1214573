"""`det metrics`: what trials reported, printed, or as a Parquet file with pyarrow where it is installed."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from det_core.errors import DetError

from ..store import Metric
from ._output import optional, print_json, print_table
from ._settings import Settings


@click.command()
@click.argument("experiment", type=int)
@click.option("--trial", type=int, help="Of this trial only.")
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
    """Print what the trials of EXPERIMENT reported, in order, or write it into a file."""
    with settings.reader() as store:
        store.experiments.get(experiment)
        if trial is not None:
            store.trials.get(trial)
        found = store.metrics.read(trial_id=trial, experiment_id=experiment if trial is None else None, group=group)
        if parquet is not None:
            count = _write_parquet(parquet, map(_row, found))
            sys.stdout.write(f"{count} reports written to {parquet}\n")
            return
        if as_json:
            for metric in found:
                print_json(_row(metric))
            return
        rows = [_row(metric) for metric in found]
    columns = _columns(rows)
    if as_csv:
        writer = csv.DictWriter(sys.stdout, columns)
        writer.writeheader()
        writer.writerows(rows)
    else:
        print_table(columns, ([row.get(column) for column in columns] for row in rows))


def _row(metric: Metric) -> dict[str, Any]:
    values = {name: value for name, value in metric.values.items() if name != "batches"}
    return {"trial": metric.trial_id, "group": metric.group, "batches": metric.batches, **values}


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
