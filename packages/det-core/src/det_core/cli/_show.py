"""`det show`."""

from __future__ import annotations

import sys

import click
import msgspec

from ._output import as_json, print_json, print_table
from ._settings import Settings


@click.command()
@click.argument("experiment", type=int)
@click.option("--config", "with_config", is_flag=True, help="Print the complete configuration, secrets masked.")
@as_json
@click.pass_obj
def show(settings: Settings, experiment: int, with_config: bool, as_json: bool) -> None:
    """Show EXPERIMENT and its trials, the best first."""
    from ..config import from_json, masked, to_yaml

    with settings.reader() as store:
        found = store.experiments.get(experiment)
        trials = store.trials.list(experiment, best_first=True)
    config = from_json(found.config)
    if as_json:
        described = msgspec.to_builtins(found) | {"config": masked(config)}
        print_json({"experiment": described, "trials": [msgspec.to_builtins(t) for t in trials]})
        return
    if with_config:
        sys.stdout.write(to_yaml(config, masked=True))
        return
    facts = f"experiment {found.id} ({found.name}) is {found.state.lower()}, {found.progress:.0%}"
    sys.stdout.write(f"{facts}\nentrypoint: {found.entrypoint}   metric: {found.metric}\n\n")
    print_table(
        ("trial", "state", "batches", "runs", "restarts", f"best {found.metric}".strip(), "at", "hyperparameters"),
        [(t.id, str(t.state), t.batches, t.runs, t.restarts, t.best_metric, t.best_batches, t.hparams) for t in trials],
    )
    for trial in trials:
        if trial.exit_reason and trial.state in ("ERROR", "INVALID_HP", "PAUSED"):
            sys.stdout.write(f"trial {trial.id}: {trial.exit_reason}\n")
