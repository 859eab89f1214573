"""Commands for whole experiments: list, name, delete, export and import, and `det home`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from det_core.config import from_json
from det_core.errors import StoreError, did_you_mean

from ..store import ExperimentSummary, Store, missing_secrets
from ..store import trust as trust_experiment
from ._console import EXPERIMENTS, Settings, ago, as_json, print_json, share_done
from ._select import filtered, ordered, select
from ._table import print_table


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Archived ones too.")
@click.option("--commands", is_flag=True, help="Those that det cmd started, too.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Show this many at most.",
)
@filtered
@ordered
@as_json
@click.pass_obj
def list_(
    settings: Settings,
    everything: bool,
    commands: bool,
    limit: int,
    conditions: tuple[str, ...],
    sort: str | None,
    as_json: bool,
) -> None:
    """List the experiments of the store, newest first.

    Columns for --filter and --sort are id, name, state, progress (0 to 1), trials, metric, best (or
    the metric by its name), created (in seconds since 1970), label, and note.
    """
    if not Store.is_at(settings.home):
        if as_json:
            print_json([])
            return
        raise StoreError(f"no experiments in {settings.home} yet; start one with: det run CONFIG")
    with settings.reader() as store:
        early, unread = None if conditions or sort else limit, dict[int, str]()
        listed = store.experiments.list(
            archived=None if everything else False, limit=early, unread=unread, tasks=commands
        )
        found = {s.experiment.id: s for s in listed}
        every = [*map(_row, listed), *({"id": id, "state": UNREADABLE} for id in unread)]
        rows = select(sorted(every, key=lambda row: -row["id"]), conditions, sort, limit)
        for row in rows:
            # The index does not show that a database has been damaged since.
            try:
                found[row["id"]] = store.experiments.summary(row["id"])
            except StoreError as error:
                unread[row["id"]] = str(error)
        shown = [row["id"] for row in rows]
        died = {
            id
            for id in shown
            if id not in unread and store.experiments.orphaned(found[id].experiment)
        }
    if as_json:
        print_json(
            [
                _unread(id, unread[id]) if id in unread else _described(found[id], id in died)
                for id in shown
            ]
        )
        return
    now = time.time()
    labelled = any(found[id].experiment.labels for id in shown if id not in unread)
    columns = ("id", "name", "state", "progress", "trials", "metric", "best", "created")
    lines: list[tuple[Any, ...]] = []
    for id in shown:
        if id in unread:
            lines.append((id, unread[id], UNREADABLE, *[None] * (5 + labelled)))
            continue
        s, e = found[id], found[id].experiment
        line: tuple[Any, ...] = (
            id,
            e.name,
            s.shown if id not in died else "KILLED" if e.outside else f"{s.shown}*",
            share_done(e.progress, str(e.state)),
            sum(s.trials.values()),
        )
        line += (e.metric, s.best_metric, ago(e.created, now))
        lines.append((*line, ", ".join(e.labels)) if labelled else line)
    print_table((*columns, "labels") if labelled else columns, lines, _RANKS)
    for id in sorted(died):
        sys.stdout.write(f"{found[id].experiment.abandoned}\n")


UNREADABLE = "UNREADABLE"
"""The state that is printed for an experiment that cannot be read."""
_RANKS = {
    "id": 0,
    "state": 1,
    "name": 2,
    "best": 3,
    "progress": 4,
    "created": 5,
    "trials": 6,
    "metric": 7,
    "labels": 8,
}


def _row(summary: ExperimentSummary) -> dict[str, Any]:
    e = summary.experiment
    row = {
        "id": e.id,
        "name": e.name,
        "state": summary.shown,
        "progress": e.progress,
        "metric": e.metric,
    }
    row |= {
        "trials": sum(summary.trials.values()),
        "best": summary.best_metric,
        "created": e.created,
    }
    row = {e.metric: summary.best_metric} | row
    return row | {"label": e.labels, "note": e.description}


def _unread(id: int, why: str) -> dict[str, Any]:
    experiment = {"id": id, "state": UNREADABLE, "reason": why}
    return {
        "experiment": experiment,
        "trials": {},
        "best_metric": None,
        "best_trial": None,
        "orphaned": False,
    }


def _described(summary: ExperimentSummary, orphaned: bool) -> dict[str, Any]:
    from det_core.config import from_json, masked

    described: dict[str, Any] = msgspec.to_builtins(summary, str_keys=True)
    described["experiment"]["config"] = masked(from_json(summary.experiment.config))
    return described | {"orphaned": orphaned}


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.argument("name")
@click.pass_obj
def rename(settings: Settings, experiment: int, name: str) -> None:
    """Call EXPERIMENT by another NAME, whether it runs or not."""
    if not name.strip():
        raise click.UsageError("the name is empty; give one by which you will know it")
    settings.client().get_experiment(experiment).set_name(name)
    sys.stdout.write(f"experiment {experiment} is called {name}\n")


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.argument("labels", metavar="[LABEL]...", nargs=-1)
@click.option("--remove", is_flag=True, help="Take these labels away; without any, all of them.")
@click.pass_obj
def label(settings: Settings, experiment: int, labels: tuple[str, ...], remove: bool) -> None:
    """Give EXPERIMENT labels, by which det list --filter label=LABEL finds it.

    Without any, print those it has.
    """
    found = settings.client().get_experiment(experiment)
    if missing := [each for each in labels if remove and each not in found.labels]:
        raise StoreError(
            f"experiment {experiment} has no label"
            f" {missing[0]!r}{did_you_mean(missing[0], found.labels)}"
        )
    if remove:
        found.set_labels(each for each in found.labels if labels and each not in labels)
    elif labels:
        found.set_labels([*found.labels, *labels])
    sys.stdout.write(f"labels of experiment {experiment}: {', '.join(found.labels) or 'none'}\n")


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.argument("text", required=False)
@click.pass_obj
def note(settings: Settings, experiment: int, text: str | None) -> None:
    """Write TEXT as the note on EXPERIMENT, in the place of its description.

    Without TEXT, print the note.
    """
    found = settings.client().get_experiment(experiment)
    if text is not None:
        found.set_description(text)
    sys.stdout.write(f"note on experiment {experiment}: {found.description or 'none'}\n")


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS, nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option(
    "--keep-checkpoints", is_flag=True, help="Leave the files of its checkpoints where they are."
)
@click.pass_obj
def rm(settings: Settings, experiment: tuple[int, ...], yes: bool, keep_checkpoints: bool) -> None:
    """Delete EXPERIMENTs for good: metrics, logs, code and checkpoints.

    Checkpoints that trials of other experiments start from are kept. An experiment that is driven
    is refused; pause it first. So is one with a checkpoint that is a version of a model.
    """
    chosen = [settings.client().get_experiment(id) for id in dict.fromkeys(experiment)]
    for each in chosen:
        each.check_deletable()
    if not yes:
        listed = ", ".join(f"{each.id} ({each.name})" for each in chosen)
        click.confirm(f"delete {listed} for good?", abort=True)
    for each in chosen:
        kept = each.delete(keep_checkpoints=keep_checkpoints)
        sys.stdout.write(f"deleted experiment {each.id}\n")
        if kept:
            sys.stdout.write(
                "kept, as other experiments start from them, or as they came with det import or"
                f" det migrate: {', '.join(kept)}\n"
            )


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--no-checkpoints", is_flag=True, help="Leave out the checkpoints that lie in the home."
)
@click.pass_obj
def export(settings: Settings, experiment: int, file: Path, no_checkpoints: bool) -> None:
    """Write EXPERIMENT to FILE, a tar: for another home, or to keep.

    The checkpoints that lie in the home come along; those in other storage stay there.
    """
    count = (
        settings.client().get_experiment(experiment).export(file, checkpoints=not no_checkpoints)
    )
    sys.stdout.write(
        f"exported experiment {experiment} with {count} checkpoint{'s' * (count != 1)} to {file}\n"
    )


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def import_(settings: Settings, file: Path) -> None:
    """Import the experiment that det export wrote to FILE.

    It keeps its number and those of its trials, unless they are taken here. Nothing of it runs
    before det resume or det trust.
    """
    made = settings.client().import_experiment(file)
    sys.stdout.write(
        f"imported experiment {made.id} ({made.name}); look at it: det show {made.id}\n"
    )
    with settings.reader() as store:
        missing = missing_secrets(from_json(store.experiments.get(made.id).config))
    if missing:
        sys.stdout.write(
            "without its secrets, which det resume needs in the environment:"
            f" {', '.join(missing)}\n"
        )


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.pass_obj
def trust(settings: Settings, experiment: int) -> None:
    """Allow the code and the configuration of EXPERIMENT, which came with det import, to run.

    Read both first: they run as you. det resume allows it, too. Before, det verify, det search, det
    set, forks and exports of its models refuse.
    """
    with settings.store() as store:
        trust_experiment(store, experiment)
    sys.stdout.write(f"experiment {experiment} may run\n")


@click.group()
def home() -> None:
    """About the home, the directory that holds the experiments."""


@home.command()
@click.pass_obj
def repair(settings: Settings) -> None:
    """Make the home's index again of the experiments' directories.

    It happens by itself where the index is missing or damaged. Directories that cannot be read are
    named.
    """
    with settings.store() as store:
        found = store.index.repair()
    for id, summary, _ in found:
        if summary is None:
            sys.stderr.write(
                f"det: {store.experiment_dir(id)} holds no experiment that can be read\n"
            )
    read = sum(summary is not None for _, summary, _ in found)
    sys.stdout.write(f"{store.index.path} is made again of {read} experiment{'s' * (read != 1)}\n")
