"""The commands of `det migrate`, which import the history of other systems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from det_driver.cli import Settings

from .adoption import adopt
from .migration import Options
from .migration import migrate as run
from .mlflow import find_mlflow
from .others import OtherOptions, OtherProject, migrate_projects
from .sources import open_source
from .tables import Columns, find_csv
from .tally import Tally
from .wandb import find_wandb

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _read_numbers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> frozenset[int] | None:
    """Return numbers and ranges of them, such as 1,5-9."""
    found: set[int] = set()
    for part in value.split(",") if value is not None else ():
        first, _, last = part.partition("-")
        try:
            found.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise click.BadParameter(
                f"{part!r} is no number and no range; give some such as 1,5-9"
            ) from None
    return None if value is None else frozenset(found)


def _read_moved(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    """Return the new path for each old path, from arguments of the form OLD=NEW."""
    found = {}
    for each in value:
        old, _, new = each.partition("=")
        if not old.startswith("/") or not new.startswith("/"):
            raise click.BadParameter(
                f"{each!r} is not OLD=NEW, two absolute paths such as /mnt/shared=/data/shared"
            )
        found[old] = new
    return found


class _Commands(click.Group):
    """Reads `det migrate SOURCE` as `det migrate determined SOURCE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["determined", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Commands)
def migrate() -> None:
    """Import the history of another system.

    `det migrate SOURCE` is short for `det migrate determined SOURCE`.
    """


@migrate.command()
@click.argument("source")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@click.option(
    "--experiments",
    callback=_read_numbers,
    metavar="1,5-9",
    help="These experiments, by their numbers there.",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Those that began on this day (UTC) or later.",
)
@click.option("--project", metavar="[W/]P", help="Those of a project, or of a workspace's project.")
@click.option("--user", metavar="NAME", help="Those of a user.")
@click.option(
    "--archived/--no-archived", default=True, help="Take archived ones, the default, or not."
)
@click.option("--no-logs", is_flag=True, help="Leave out logs, which are most of many databases.")
@click.option(
    "--storage",
    callback=_read_moved,
    multiple=True,
    metavar="OLD=NEW",
    help="Where a directory of checkpoints lies today.",
)
@click.option(
    "--batch-metrics",
    is_flag=True,
    help="Take the metrics of single batches as well, as the group batch.",
)
@click.option(
    "--checkpoints",
    "files",
    type=click.Choice(["leave", "copy"]),
    default="leave",
    help=(
        "Leave the files of checkpoints where they lie, or copy them (see det migrate checkpoints)."
    ),
)
@click.option(
    "--to", metavar="STORAGE", help="With --checkpoints copy: where to, by default the home."
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read back what is stored, also by earlier calls, and compare it with SOURCE.",
)
@click.option(
    "--renumber",
    is_flag=True,
    help="Give other numbers to experiments and trials whose own are taken here.",
)
@click.pass_obj
def determined(
    settings: Settings,
    source: str,
    dry_run: bool,
    experiments: frozenset[int] | None,
    since: datetime | None,
    project: str | None,
    user: str | None,
    archived: bool,
    no_logs: bool,
    storage: dict[str, str],
    batch_metrics: bool,
    files: str,
    to: str | None,
    verify: bool,
    renumber: bool,
) -> None:
    """Import the history of a Determined master from SOURCE: its database, or a dump of it.

    A dump is what pg_dump writes: a file in the plain format, packed by gzip or not, or one of
    another format, or its directory, which pg_restore reads; no server is needed. The address of a
    server is postgresql://USER@HOST/DATABASE, with the password in PGPASSWORD or at a prompt;
    nothing is changed there. Each experiment is written as a whole, with its number and those of
    its trials. What is there already stays as it is, so that it can be called again.
    """
    options = Options(
        experiments=experiments,
        since=since.replace(tzinfo=UTC).timestamp() if since else None,
        project=project,
        user=user,
        archived=archived,
        logs=not no_logs,
        renumber=renumber,
        dry_run=dry_run,
        verify=verify,
        batch_metrics=batch_metrics,
        storage=storage,
    )
    tally = run(open_source(source), settings.home, options, _show_progress)
    _print(tally, dry_run)
    copied = [_copy(settings, number, to, None) for number in tally.numbers if files == "copy"]
    if tally.failed or not all(copied):
        sys.exit(1)


@migrate.command()
@click.argument("experiment", type=int)
@click.option(
    "--to",
    metavar="STORAGE",
    help=(
        "A directory, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. By default the home's checkpoints."
    ),
)
@click.option(
    "--from", "source", metavar="STORAGE", help="Where they lie, if not where the experiment says."
)
@click.pass_obj
def checkpoints(settings: Settings, experiment: int, to: str | None, source: str | None) -> None:
    """Copy the checkpoints of an imported EXPERIMENT to a storage, so that det can go on from them.

    Each gets a manifest with the digests of its files. Nothing is changed where they lie. The trial
    of an experiment of PyTorch that had not completed can then be resumed. For a search, start
    another with searcher.source_trial_id. The copies are deleted by det checkpoint delete only, not
    by det rm or det gc.
    """
    if not _copy(settings, experiment, to, source):
        sys.exit(1)


def _of_other(command: _Command) -> _Command:
    """Add the options of every tracker but Determined."""
    for option in (
        click.option(
            "--dry-run", is_flag=True, help="Say what would be written, and write nothing."
        ),
        click.option(
            "--larger-is-better",
            is_flag=True,
            help="With --metric: its largest value is the best, not its smallest.",
        ),
        click.option(
            "--metric", metavar="NAME", help="Compare the trials of an experiment by this metric."
        ),
    ):
        command = option(command)
    return command


def _migrate_projects(
    settings: Settings,
    projects: list[OtherProject],
    metric: str | None,
    larger_is_better: bool,
    dry_run: bool,
) -> None:
    options = OtherOptions(metric, smaller_is_better=not larger_is_better, dry_run=dry_run)
    _print(migrate_projects(projects, settings.home, options, _show_progress), dry_run)


@migrate.command()
@click.argument("store")
@_of_other
@click.pass_obj
def mlflow(
    settings: Settings, store: str, metric: str | None, larger_is_better: bool, dry_run: bool
) -> None:
    """Import the experiments of MLflow from STORE.

    STORE is MLflow's directory mlruns or its SQLite database: a path, or an address such as
    sqlite:///mlflow.db. Deleted experiments and runs are left out. Runs become trials, and the
    steps of metrics become numbers of batches. If a metric was logged without steps, its values are
    numbered from 0 in order of time. A parent run and its child runs, such as those of a search,
    become a separate experiment. Artifacts are not copied: det show --all prints where they are.
    """
    _migrate_projects(settings, find_mlflow(store), metric, larger_is_better, dry_run)


@migrate.command()
@click.argument("directory", type=click.Path(path_type=Path))
@_of_other
@click.pass_obj
def tensorboard(
    settings: Settings, directory: Path, metric: str | None, larger_is_better: bool, dry_run: bool
) -> None:
    """Import the event files of TensorBoard in DIRECTORY, which becomes an experiment.

    A folder with event files becomes a trial, with all values of its scalars and with its
    hyperparameters.
    """
    from .tensorboard import find_tensorboard

    _migrate_projects(settings, find_tensorboard(directory), metric, larger_is_better, dry_run)


@migrate.command()
@click.argument("directory", type=click.Path(path_type=Path))
@_of_other
@click.pass_obj
def wandb(
    settings: Settings, directory: Path, metric: str | None, larger_is_better: bool, dry_run: bool
) -> None:
    """Import the runs of Weights & Biases from DIRECTORY, which holds their files run-ID.wandb.

    That is the directory wandb, with runs that were synchronised or not. Each project and each
    sweep becomes an experiment. A run has its metrics, config, notes, tags, summary and the output
    that it printed.
    """
    _migrate_projects(settings, find_wandb(directory), metric, larger_is_better, dry_run)


@migrate.command()
@click.argument("directory", type=click.Path(path_type=Path))
@_of_other
@click.pass_obj
def neptune(
    settings: Settings, directory: Path, metric: str | None, larger_is_better: bool, dry_run: bool
) -> None:
    """Import the runs of Neptune from DIRECTORY, the Parquet files that its exporter wrote.

    Each project becomes an experiment. Attributes below parameters/, params/, hyperparameters/ and
    config/ become hyperparameters, and series of numbers become metrics.
    """
    from .neptune import find_neptune

    _migrate_projects(settings, find_neptune(directory), metric, larger_is_better, dry_run)


@migrate.command("csv")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--run",
    metavar="COLUMN",
    help="The column that names the run; without it, all rows are of one run.",
)
@click.option(
    "--step",
    metavar="COLUMN",
    help="The column with the steps; without it, rows are numbered from 0.",
)
@click.option(
    "--time",
    metavar="COLUMN",
    help="The column with times: Unix seconds, or dates and times (UTC).",
)
@click.option(
    "--param", "params", multiple=True, metavar="COLUMN", help="A column with a hyperparameter."
)
@click.option("--skip", multiple=True, metavar="COLUMN", help="A column to leave out.")
@_of_other
@click.pass_obj
def import_csv(
    settings: Settings,
    file: Path,
    run: str | None,
    step: str | None,
    time: str | None,
    params: tuple[str, ...],
    skip: tuple[str, ...],
    metric: str | None,
    larger_is_better: bool,
    dry_run: bool,
) -> None:
    """Import the runs of a CSV FILE, which becomes an experiment.

    The first line names the columns. Those that no option names are metrics, and an empty cell is
    no value.
    """
    columns = Columns(run, step, time, params, skip)
    _migrate_projects(settings, find_csv(file, columns), metric, larger_is_better, dry_run)


def _copy(settings: Settings, experiment: int, to: str | None, source: str | None) -> bool:
    """Copy the checkpoints of an experiment and print what came of it. Return whether all were."""
    found = adopt(settings.home, experiment, to=to, source=source)
    sys.stdout.write(f"copied {len(found.copied)} checkpoints of experiment {experiment}")
    sys.stdout.write(f", {len(found.present)} were there already\n" if found.present else "\n")
    sys.stdout.writelines(f"not copied: {uuid}: {why}\n" for uuid, why in found.failed.items())
    if found.stays:
        sys.stdout.write(
            f"it cannot be resumed: {found.stays}; start another with searcher.source_trial_id\n"
        )
    else:
        sys.stdout.write(f"go on with it: det resume {experiment}\n")
    return not found.failed


def _show_progress(each: Iterable[Any], label: str, length: int | None) -> Iterable[Any]:
    """Yield the same items, with a progress bar and the time left on a terminal."""
    with click.progressbar(
        each, label=label, length=length, file=sys.stderr, show_eta=length is not None
    ) as bar:
        yield from bar


def _print(tally: Tally, dry_run: bool) -> None:
    if dry_run:
        sys.stdout.write("nothing was written; what would be, as far as rows tell:\n")
    sys.stdout.writelines(f"{line}\n" for line in tally.lines())
    if not dry_run and tally.written["experiments"]:
        sys.stdout.write("look at them: det list\n")
