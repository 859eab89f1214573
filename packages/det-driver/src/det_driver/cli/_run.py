"""`det run`, `det resume`, `det pause` and `det cancel`, and `det launch`, which starts ranks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from det_core.errors import DetError, StoreError
from det_core.support.installation import how_to_install
from det_core.support.paths import expand_user

from ._config import of_config
from ._console import EXPERIMENTS, Settings, as_json
from ._new_code import ask_for_code
from ._words import refuse_word

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
    click.option(
        "--in-process",
        is_flag=True,
        help="Train in this process, one trial at a time: for a debugger.",
    ),
    click.option(
        "--engine",
        metavar="NAME",
        help="Execute runs by the engine of this name, which a plugin registers.",
    ),
    click.option(
        "--ui",
        "page",
        is_flag=True,
        help="Open the page for as long as this command runs; needs det-web.",
    ),
    click.option(
        "--keep",
        is_flag=True,
        help="With --ui: leave the page in the background, where it stays afterwards.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="Print the result only."),
    as_json,
)


def _driving(command: F) -> F:
    """Add the options for driving an experiment."""
    for option in reversed(_DRIVING):
        command = option(command)
    return command


def _chosen(
    settings: Settings,
    engine: str | None,
    in_process: bool,
    in_background: bool,
    default: str,
    *,
    page: bool = False,
    keep: bool = False,
) -> str:
    """Return the name of the chosen engine. Raises PluginError where it does not exist.

    Raises UsageError for options that contradict each other.
    """
    for option, given in (("--detach", in_background), ("--engine", engine)):
        if given and in_process:
            raise click.UsageError(f"{option} and --in-process contradict each other; choose one")
    if keep and not page:
        raise click.UsageError("--keep is about the page; give --ui, too")
    if page and in_background and not keep:
        raise click.UsageError(
            "--ui is for as long as this command runs, and --detach returns at once; give"
            " --keep, too"
        )
    if page and "ui" not in settings.plugins.commands():
        raise click.UsageError(
            f"--ui needs the page, which is not installed; run: {how_to_install('det-web')}"
        )
    name = engine or (IN_PROCESS if in_process else default)
    return settings.plugins.engines()[name].name


class _Run(click.Command):
    """Answers the words that Determined's users type after `det run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_word("run", args[:1])
        return super().parse_args(ctx, args)


@click.command(cls=_Run)
@of_config
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="HOST:CONTAINER",
    help=(
        "Make a link at CONTAINER to HOST, for code that reads the paths of a container. May be"
        " repeated."
    ),
)
@_driving
def run(
    settings: Settings,
    config: Path,
    loaded: Loaded,
    code: Path,
    binds: tuple[str, ...],
    in_background: bool,
    in_process: bool,
    engine: str | None,
    **output: bool,
) -> int:
    """Train the experiment that the YAML file CONFIG describes, with the code in DIRECTORY.

    DIRECTORY is by default the one that holds CONFIG. Ctrl-C checkpoints and pauses; a second
    Ctrl-C ends at once. On a server, Ctrl-C leaves the experiment running.
    """
    if settings.server:
        return _submit(
            settings, config, loaded, code, binds, in_background, in_process, engine, output
        )
    from ..driver import check_startable, create
    from ._drive import drive

    configured = loaded.config.engine
    default = str(type(configured).__struct_config__.tag) if configured else LOCAL
    chosen = _chosen(
        settings,
        engine,
        in_process,
        in_background,
        default,
        page=output["page"],
        keep=output["keep"],
    )
    driver = settings.driver(chosen)
    if binds:
        _bind(loaded, chosen, binds)
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


def _submit(
    settings: Settings,
    config: Path,
    loaded: Loaded,
    code: Path,
    binds: tuple[str, ...],
    in_background: bool,
    in_process: bool,
    engine: str | None,
    output: dict[str, bool],
) -> int:
    from ._remote import submit

    here = {"--bind": bool(binds), "--in-process": in_process, "--ui": output["page"]}
    if given := [option for option, is_given in here.items() if is_given]:
        raise click.UsageError(f"{given[0]} is for training on this machine, and not on a server")
    params = click.get_current_context().params
    return submit(
        settings,
        config,
        loaded.config,
        code,
        template=params["template"],
        overrides=params["override"],
        engine=engine,
        in_background=in_background,
        quiet=output["quiet"],
        as_json=output["as_json"],
    )


def _bind(loaded: Loaded, engine: str, binds: tuple[str, ...]) -> None:
    if loaded.config.environment.container:
        raise click.UsageError(
            "--bind is for trials without a container; this one has one: write bind_mounts"
        )
    if engine not in (LOCAL, IN_PROCESS):
        raise click.UsageError(
            f"--bind makes links on this machine, and the engine is {engine}; make them on its"
            " machines"
        )
    link_paths(binds)


def link_paths(pairs: Iterable[str]) -> None:
    """Create a link from each container path to its host path, and print a note.

    Existing links to the same path are left. Raises UsageError for an invalid pair, and DetError
    where something else exists or the link cannot be created.
    """
    for pair in pairs:
        host, container = _parse_bind(pair)
        if container.exists() and host.samefile(container):
            continue
        if os.path.lexists(container):
            raise DetError(
                f"--bind {pair}: {container} is there already, and is not {host}; move it, or set"
                " environment.container"
            )
        try:
            container.parent.mkdir(parents=True, exist_ok=True)
            container.symlink_to(host, target_is_directory=host.is_dir())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DetError(
                f"--bind {pair}: the link {container} cannot be made: {reason}; have it made once"
                f" with: sudo ln -s {host} {container}, or set environment.container"
            ) from None
        sys.stderr.write(
            f"det: {container} is a link to {host} now, and stays; remove it with: rm {container}\n"
        )


def _parse_bind(pair: str) -> tuple[Path, Path]:
    host, _, container = pair.partition(":")
    if not host or not Path(container).is_absolute():
        raise click.UsageError(
            f"--bind is {pair!r}; give a path of this machine and an absolute one, as"
            " /home/me/data:/data"
        )
    if not expand_user(host).exists():
        raise click.UsageError(f"--bind {pair}: there is no {host}")
    return expand_user(host).absolute(), Path(container)


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option(
    "--code",
    metavar="DIRECTORY",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Go on with the code in DIRECTORY, such as a corrected one; asks before it does.",
)
@click.option("--yes", "-y", is_flag=True, help="Take the new code without asking.")
@click.option(
    "--checkpoint", "uuid", metavar="UUID", help="Go on from this one, not from its trial's latest."
)
@click.option("--trial", type=int, metavar="TRIAL", help="The trial that the checkpoint is of.")
@_driving
@click.option(
    "--in-job",
    is_flag=True,
    hidden=True,
    help="As the driver of a job: only what goes on, and to be killed.",
)
@click.pass_obj
def resume(
    settings: Settings,
    /,
    experiment: int,
    code: Path | None,
    yes: bool,
    uuid: str | None,
    trial: int | None,
    in_background: bool,
    in_process: bool,
    engine: str | None,
    **output: bool,
) -> int:
    """Go on with EXPERIMENT from its trials' checkpoints: after a pause, crash or mended failure.

    Trials that had failed are tried again where the searcher has only one. Runs are executed by the
    engine that executed them before, unless --engine names another.
    """
    from ..driver import reopen, replace_code, resume_from_checkpoint
    from ..store import ExperimentState
    from ._drive import drive

    chosen = _chosen(
        settings, engine, in_process, in_background, LOCAL, page=output["page"], keep=output["keep"]
    )
    if trial is not None and uuid is None:
        raise click.UsageError("--trial says of which trial --checkpoint is; give that, too")
    with settings.store() as store:
        if (
            output["in_job"]
            and store.experiments.get(experiment).state is not ExperimentState.ACTIVE
        ):
            return 0
        if engine:
            store.experiments.update(experiment, engine=chosen)
        elif not in_process:
            recorded = store.experiments.get(experiment)
            if not recorded.outside:
                chosen = _chosen(settings, recorded.engine, False, in_background, LOCAL)
        if code is not None:
            if not yes:
                ask_for_code(store.code_dir(experiment), code, experiment)
            replace_code(store, experiment, code)
        reopen(store, experiment)
        if uuid:
            resume_from_checkpoint(store, experiment, uuid, trial)
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
@click.option(
    "--trial", type=int, metavar="TRIAL", help="End this trial only; the search goes on without it."
)
@click.pass_obj
def cancel(settings: Settings, experiment: int, wait: bool, now: bool, trial: int | None) -> None:
    """Checkpoint the trials of EXPERIMENT and end it for good."""
    if trial is not None:
        _cancel_trial(settings, experiment, trial, now)
        return
    _command(settings, experiment, "kill" if now else "cancel", wait)


def _cancel_trial(settings: Settings, experiment: int, trial: int, now: bool) -> None:
    from ..driver import cancel_trial

    with settings.store() as store:
        if (of := store.trials.get(trial).experiment_id) != experiment:
            raise StoreError(f"trial {trial} is one of experiment {of}, not of {experiment}")
        cancel_trial(store, trial, now=now)
        sys.stdout.write(f"trial {trial} is canceled\n")


def _command(settings: Settings, id: int, kind: str, wait: bool) -> None:
    from ..driver import send_command

    with settings.store() as store:
        send_command(store, id, kind)
        while wait and store.experiments.driven(id):
            time.sleep(0.1)
        sys.stdout.write(f"experiment {id} is {store.experiments.get(id).state.lower()}\n")


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch(context: click.Context, words: tuple[str, ...]) -> int:
    """Start the ranks of a script on this or several hosts.

    `det launch --help` lists the options.
    """
    from det_node.launch import launch as started

    settings: Settings = context.obj
    named = bool(words) and not words[0].startswith("-")
    name, options = (words[0], words[1:]) if named else (None, words)
    return started(name, options, settings.plugins, settings.environ, context.command_path)
