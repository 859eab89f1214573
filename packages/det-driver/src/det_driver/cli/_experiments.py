"""Experiments as a whole: `det list`, `det show`, `det rm`, `det export`, `det import`; and `det home`, which holds them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from det_core.config import from_json, masked
from det_core.errors import ExperimentBusy, StoreError

from ..client import Client
from ..config import to_yaml
from ..driver import is_driven, orphaned
from ..store import ExperimentRow, Store, TrialRow
from ._console import Settings, ago, as_json, print_json, print_table


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Archived ones too.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The newest so many.")
@as_json
@click.pass_obj
def list_(settings: Settings, everything: bool, limit: int, as_json: bool) -> None:
    """List the experiments of the store, newest first."""
    if not Store.is_at(settings.home):
        if as_json:
            print_json([])
            return
        raise StoreError(f"no experiments in {settings.home} yet; start one with: det run CONFIG")
    with settings.reader() as store:
        summaries = store.experiments.list(archived=None if everything else False, limit=limit)
        died = {s.experiment.id for s in summaries if orphaned(store, s.experiment)}
    if as_json:
        print_json([msgspec.to_builtins(s, str_keys=True) | {"orphaned": s.experiment.id in died} for s in summaries])
        return
    now = time.time()
    print_table(
        ("id", "name", "state", "progress", "trials", "metric", "best", "created"),
        [
            (
                *(e.id, e.name, f"{e.state}{'*' * (e.id in died)}", f"{e.progress:.0%}"),
                *(sum(s.trials.values()), e.metric, s.best_metric, ago(e.created, now)),
            )
            for s in summaries
            for e in (s.experiment,)
        ],
    )
    for id in sorted(died):
        sys.stdout.write(f"the driver of experiment {id} is gone; go on with: det resume {id}\n")


@click.command()
@click.argument("experiment", type=int)
@click.option("--config", "with_config", is_flag=True, help="Print the complete configuration, secrets masked.")
@click.option("--limit", type=click.IntRange(min=1), help="The best so many trials; all by default.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the trials into this file, such as search.png.")
@as_json
@click.pass_obj
def show(
    settings: Settings, experiment: int, with_config: bool, limit: int | None, plot: Path | None, as_json: bool
) -> None:
    """Show EXPERIMENT and its trials, the best first, with their hyperparameters.

    --plot draws the searcher's metric against batches, a line for each trial, and the trials as lines across their
    hyperparameters, coloured by the metric.
    """
    with settings.reader() as store:
        found = store.experiments.get(experiment)
        trials = store.trials.list(experiment, best_first=True, limit=limit)
        died = orphaned(store, found)
        hparams = [_flat(trial.hparams) for trial in trials]
        varied = _varied(hparams)
        if plot is not None:
            from ._plots import draw_trials

            draw_trials(found, trials, {name: [each.get(name) for each in hparams] for name in varied}, store, plot)
    if as_json:
        described = msgspec.to_builtins(found) | {"config": masked(from_json(found.config)), "orphaned": died}
        print_json({"experiment": described, "trials": [msgspec.to_builtins(t) for t in trials]})
    elif with_config:
        sys.stdout.write(to_yaml(from_json(found.config), masked=True))
    else:
        _print(found, trials, hparams, varied, died)
        if plot is not None:
            sys.stdout.write(f"drawn in {plot}\n")


def _print(
    found: ExperimentRow, trials: Sequence[TrialRow], hparams: list[dict[str, Any]], names: list[str], died: bool
) -> None:
    sys.stdout.write(f"experiment {found.id} ({found.name}) is {found.state.lower()}, {found.progress:.0%}\n")
    if died:
        sys.stdout.write(f"its driver is gone; go on with: det resume {found.id}\n")
    if found.reason:
        sys.stdout.write(f"because: {found.reason}\n")
    sys.stdout.write(f"entrypoint: {found.entrypoint}   metric: {found.metric}\n")
    same = {name: value for name, value in (hparams[0] if hparams else {}).items() if name not in names}
    if same:
        sys.stdout.write("hyperparameters: " + "  ".join(f"{name}={value}" for name, value in same.items()) + "\n")
    sys.stdout.write("\n")
    print_table(
        ("trial", "state", f"best {found.metric}".strip(), "at", *names, "batches", "runs", "restarts"),
        [
            (
                *(t.id, str(t.state), t.best_metric, t.best_batches, *(values.get(name) for name in names)),
                *(t.batches, t.runs, t.restarts),
            )
            for t, values in zip(trials, hparams, strict=True)
        ],
    )
    for trial in trials:
        if trial.exit_reason and trial.state in ("ERROR", "INVALID_HP", "PAUSED"):
            sys.stdout.write(f"trial {trial.id}: {trial.exit_reason}\n")


def _flat(hparams: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested hyperparameters by dotted names."""
    found: dict[str, Any] = {}
    for name, value in hparams.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def _varied(hparams: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of those that differ among trials, sorted."""
    names = {name for each in hparams for name in each}
    first = hparams[0] if hparams else {}
    return sorted(n for n in names if any(n not in each or each[n] != first.get(n) for each in hparams))


@click.command()
@click.argument("experiment", type=int, nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--keep-checkpoints", is_flag=True, help="Leave the files of its checkpoints where they are.")
@click.pass_obj
def rm(settings: Settings, experiment: tuple[int, ...], yes: bool, keep_checkpoints: bool) -> None:
    """Delete EXPERIMENTs for good: metrics, logs, code and checkpoints.

    Checkpoints that trials of other experiments start from are kept. An experiment that is driven is refused; pause it
    first.
    """
    chosen = [Client(settings.home).get_experiment(id) for id in dict.fromkeys(experiment)]
    with settings.reader() as store:
        for each in chosen:
            if is_driven(store, each.id):
                raise ExperimentBusy(f"experiment {each.id} is being driven; stop it first: det pause {each.id}")
    if not yes:
        listed = ", ".join(f"{each.id} ({each.name})" for each in chosen)
        click.confirm(f"delete {listed} for good?", abort=True)
    for each in chosen:
        kept = each.delete(keep_checkpoints=keep_checkpoints)
        sys.stdout.write(f"deleted experiment {each.id}\n")
        if kept:
            sys.stdout.write(f"kept, as other experiments start from them: {', '.join(kept)}\n")


@click.command()
@click.argument("experiment", type=int)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-checkpoints", is_flag=True, help="Leave out the checkpoints that lie in the home.")
@click.pass_obj
def export(settings: Settings, experiment: int, file: Path, no_checkpoints: bool) -> None:
    """Write EXPERIMENT to FILE, a tar: for another home, or to keep.

    The checkpoints that lie in the home come along; those in other storage stay there.
    """
    count = Client(settings.home).get_experiment(experiment).export(file, checkpoints=not no_checkpoints)
    sys.stdout.write(f"exported experiment {experiment} with {count} checkpoint{'s' * (count != 1)} to {file}\n")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def import_(settings: Settings, file: Path) -> None:
    """Take over the experiment that det export wrote to FILE.

    It keeps its number and those of its trials, unless they are taken here.
    """
    made = Client(settings.home).import_experiment(file)
    sys.stdout.write(f"imported experiment {made.id} ({made.name}); look at it: det show {made.id}\n")


@click.group()
def home() -> None:
    """About the home, the directory that holds the experiments."""


@home.command()
@click.pass_obj
def repair(settings: Settings) -> None:
    """Make the home's index again of the experiments' directories.

    It happens by itself where the index is missing or damaged. Directories that cannot be read are named.
    """
    with settings.store() as store:
        found = store.index.repair()
    for id, summary, _ in found:
        if summary is None:
            sys.stderr.write(f"det: {store.experiment_dir(id)} holds no experiment that can be read\n")
    read = sum(summary is not None for _, summary, _ in found)
    sys.stdout.write(f"{store.index.path} is made again of {read} experiment{'s' * (read != 1)}\n")
