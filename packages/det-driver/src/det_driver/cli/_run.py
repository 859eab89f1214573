"""Starting and stopping: `det run`, `det resume`, `det pause`, `det cancel`; and `det launch`, where training runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from det_core.errors import StoreError

from ._config import of_config
from ._console import EXPERIMENTS, Settings, as_json

if TYPE_CHECKING:
    from ..config import Loaded

F = TypeVar("F", bound=Callable[..., Any])
LOCAL, IN_PROCESS = "local", "in-process"
_DRIVING = (
    click.option(
        "--detach",
        "in_background",
        is_flag=True,
        help="Leave the driver in the background, or in a job of the engine's.",
    ),
    click.option("--in-process", is_flag=True, help="Train in this process, one trial at a time: for a debugger."),
    click.option("--engine", metavar="NAME", help="Execute runs by the engine of this name, which a plugin registers."),
    click.option("--ui", "page", is_flag=True, help="Open the page (det ui) for as long as it runs; needs det-web."),
    click.option("--quiet", "-q", is_flag=True, help="Print the result only."),
    as_json,
)


def _driving(command: F) -> F:
    """Add the options that say how an experiment is driven."""
    for option in reversed(_DRIVING):
        command = option(command)
    return command


def _chosen(
    settings: Settings, engine: str | None, in_process: bool, in_background: bool, default: str, page: bool = False
) -> str:
    """Return the engine's name, once it is known that there is one. Raises PluginError for another name."""
    for option, given in (("--detach", in_background), ("--engine", engine)):
        if given and in_process:
            raise click.UsageError(f"{option} and --in-process contradict each other; choose one")
    if page and in_background:
        raise click.UsageError("--ui is for as long as this command runs, and --detach returns at once; start det ui")
    if page and "ui" not in settings.plugins.commands():
        raise click.UsageError("--ui needs the page, which is not installed: pip install det-web")
    name = engine or (IN_PROCESS if in_process else default)
    return settings.plugins.engines()[name].name


@click.command()
@of_config
@_driving
def run(
    settings: Settings,
    config: Path,
    loaded: Loaded,
    code: Path,
    in_background: bool,
    in_process: bool,
    engine: str | None,
    **output: bool,
) -> int:
    """Train the experiment that the YAML file CONFIG describes, with the code in DIRECTORY.

    DIRECTORY is by default the one that holds CONFIG. Ctrl-C checkpoints and pauses; a second Ctrl-C ends at once.
    """
    from ..driver import check_startable, create
    from ._drive import drive

    configured = loaded.config.engine
    default = str(type(configured).__struct_config__.tag) if configured else LOCAL
    chosen = _chosen(settings, engine, in_process, in_background, default, output["page"])
    driver = settings.driver(chosen)
    check_startable(loaded.config, driver)
    with settings.store() as store:
        experiment = create(
            store,
            loaded.config,
            code,
            default_name=config.absolute().parent.name,
            engine=LOCAL if in_process else chosen,
            plugins=settings.plugins,
            environments=driver.root,
        )
    return drive(settings, experiment, chosen, in_background, **output)


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@_driving
@click.option(
    "--in-job", is_flag=True, hidden=True, help="As the driver of a job: only what goes on, and to be killed."
)
@click.pass_obj
def resume(
    settings: Settings, /, experiment: int, in_background: bool, in_process: bool, engine: str | None, **output: bool
) -> int:
    """Go on with EXPERIMENT from its trials' checkpoints: after a pause, a crash, or a failure that was mended.

    Trials that had failed are tried again where the searcher has only one. Runs are executed by the engine that executed
    them before, unless --engine names another.
    """
    from ..driver import reopen
    from ..store import ExperimentState
    from ._drive import drive

    chosen = _chosen(settings, engine, in_process, in_background, LOCAL, output["page"])
    with settings.store() as store:
        if output["in_job"] and store.experiments.get(experiment).state is not ExperimentState.ACTIVE:
            return 0
        if engine:
            store.experiments.update(experiment, engine=chosen)
        elif not in_process:
            recorded = store.experiments.get(experiment).engine
            chosen = _chosen(settings, recorded, False, in_background, LOCAL)
        reopen(store, experiment)
    return drive(settings, experiment, chosen, in_background, **output)


_wait = click.option("--wait/--no-wait", default=True, help="Wait until it is done (the default).")


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@_wait
@click.pass_obj
def pause(settings: Settings, experiment: int, wait: bool) -> None:
    """Checkpoint the trials of EXPERIMENT and pause it; go on with det resume."""
    _command(settings, experiment, "pause", wait)


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@_wait
@click.option("--now", is_flag=True, help="Without checkpoints.")
@click.option("--trial", type=int, metavar="TRIAL", help="End this trial only; the search goes on without it.")
@click.pass_obj
def cancel(settings: Settings, experiment: int, wait: bool, now: bool, trial: int | None) -> None:
    """Checkpoint the trials of EXPERIMENT and end it for good."""
    if trial is not None:
        _cancel_trial(settings, experiment, trial, now)
        return
    _command(settings, experiment, "kill" if now else "cancel", wait)


def _cancel_trial(settings: Settings, experiment: int, trial: int, now: bool) -> None:
    from ..driver import give_up

    with settings.store() as store:
        if (of := store.trials.get(trial).experiment_id) != experiment:
            raise StoreError(f"trial {trial} is one of experiment {of}, not of {experiment}")
        give_up(store, trial, now=now)
        sys.stdout.write(f"trial {trial} is canceled\n")


def _command(settings: Settings, id: int, kind: str, wait: bool) -> None:
    from ..driver import ask

    with settings.store() as store:
        ask(store, id, kind)
        while wait and store.experiments.driven(id):
            time.sleep(0.1)
        sys.stdout.write(f"experiment {id} is {store.experiments.get(id).state.lower()}\n")


@click.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch(context: click.Context, words: tuple[str, ...]) -> int:
    """Start the ranks of a script on this or several hosts; `det launch --help` lists the options."""
    from det_core.launch import launch as started

    settings: Settings = context.obj
    named = bool(words) and not words[0].startswith("-")
    name, options = (words[0], words[1:]) if named else (None, words)
    return started(name, options, settings.plugins, settings.environ, context.command_path)
