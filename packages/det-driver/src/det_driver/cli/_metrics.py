"""`det metrics`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from ..store import Metric
from ._output import print_json, print_table
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
            found = store.metrics.read(trial_id=trial, group=group)
        else:
            found = store.metrics.read(experiment_id=experiment, group=group)
        if parquet is not None:
            from ._parquet import write

            count = write(parquet, map(_row, found))
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
    return list(dict.fromkeys(_names(rows)))


def _names(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield from ("trial", "group", "batches")
    for row in rows:
        yield from row
