"""`det list`."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from det_core.errors import StoreError

from ..store import ExperimentSummary
from ._output import ago, as_json, print_json, print_table
from ._settings import Settings


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Archived ones too.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The newest so many.")
@as_json
@click.pass_obj
def list_(settings: Settings, everything: bool, limit: int, as_json: bool) -> None:
    """List the experiments of the store, newest first."""
    if not (settings.home / "det.db").exists():
        if as_json:
            print_json([])
            return
        raise StoreError(f"no experiments in {settings.home} yet; start one with: det run CONFIG")
    from ..driver import orphaned

    with settings.reader() as store:
        found = store.experiments.list(archived=None if everything else False, limit=limit)
        summaries = store.experiments.summaries(found)
        died = {experiment.id for experiment in found if orphaned(store, experiment)}
    if as_json:
        print_json([_as_dict(s, s.experiment.id in died) for s in summaries])
        return
    now = time.time()
    print_table(
        ("id", "name", "state", "progress", "trials", "metric", "best", "created"),
        [
            (
                *(s.experiment.id, s.experiment.name, _state(s, died), f"{s.experiment.progress:.0%}"),
                *(sum(s.trials.values()), s.experiment.metric, s.best_metric, ago(s.experiment.created, now)),
            )
            for s in summaries
        ],
    )

    for id in sorted(died):
        sys.stdout.write(f"the driver of experiment {id} is gone; go on with: det resume {id}\n")


def _state(summary: ExperimentSummary, died: set[int]) -> str:
    return str(summary.experiment.state) + ("*" if summary.experiment.id in died else "")


def _as_dict(summary: ExperimentSummary, died: bool) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(summary, str_keys=True), "orphaned": died}
