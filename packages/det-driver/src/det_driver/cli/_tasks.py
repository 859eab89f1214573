"""`det cmd`, `det shell` and `det notebook`: work on slots, as experiments without a trial."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from det_core.errors import DetError, StoreError, nearest
from det_core.support.paths import open_regular, read_regular
from det_node.limits import GRACE_SECONDS
from det_node.notebook import INFO, LOOPBACK, UNIX, is_installed, missing
from det_node.task import NOTEBOOK, SHELL, STATUS, task_words
from det_node.terminal import attach_terminal

from ..store import ExperimentState, Run, Store
from ..terminals import find_terminal
from ._console import EXPERIMENTS, Settings, ago, as_json, open_browser, print_json
from ._run import IN_PROCESS, LOCAL
from ._table import print_table
from ._words import BELOW

F = TypeVar("F", bound=Callable[..., Any])

COMMAND = "command"
_POLL_SECONDS = 0.1
_BY_ITSELF = (ExperimentState.COMPLETED, ExperimentState.ERROR)
_LONGEST_NAME = 60
_CHUNK = 1 << 16
_TERMINAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_NOTEBOOK_IDLE_MINUTES = 240.0
_ENDS_SECONDS = 10.0
"""How long a shell that has ended may take to give its slots back."""
_RANKS = {"id": 0, "command": 1, "state": 2, "slots": 3, "created": 4}


class Duration(click.FloatRange):
    """A finite number in a range: comparisons let "nan" through, which would be no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Bad input ends the command with a sentence."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


_STARTING = (
    click.option(
        "--slots",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="The GPUs that it gets, or CPU workers on a machine without GPUs.",
    ),
    click.option(
        "--priority",
        type=click.IntRange(1, 99),
        help="Its place in the queue for slots: 1 before 99. 42 if not given.",
    ),
    click.option(
        "--max-hours",
        type=Duration(min=0, min_open=True),
        help="End it after so many hours.",
    ),
    click.option(
        "--idle",
        type=Duration(min=0, min_open=True),
        metavar="MINUTES",
        help="End it when it has been idle for so long.",
    ),
)
_ELSEWHERE = (
    click.option(
        "--code",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="On a server or by an engine, run it in a copy of this directory. Without it, in an"
        " empty one.",
    ),
    click.option(
        "--engine",
        metavar="NAME",
        help="Run it on a node that the engine of this name provides, as its own queue decides.",
    ),
)


def _starting(command: F) -> F:
    """Add the options with which a task starts."""
    for option in reversed(_STARTING):
        command = option(command)
    return command


def _starting_elsewhere(command: F) -> F:
    """Add the options with which a task starts, also on another machine."""
    for option in reversed(_ELSEWHERE):
        command = option(command)
    return _starting(command)


@click.group()
def cmd() -> None:
    """Run commands on the slots of this machine: each waits in the queue like an experiment."""


@cmd.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_starting_elsewhere
@click.option(
    "--detach", "-d", "in_background", is_flag=True, help="Print its number and return at once."
)
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def run(
    settings: Settings,
    /,
    words: tuple[str, ...],
    in_background: bool,
    code: Path | None,
    engine: str | None,
    **options: Any,
) -> int:
    """Run COMMAND in this directory when there are slots, print its output, and end as it ends.

    Ctrl-C ends the command. It goes on if this terminal is closed, and det cmd logs prints what it
    wrote. It is idle while it writes nothing and uses less than 1 % of a CPU core.
    """
    _refuse_options(words)
    experiment = _start(settings, COMMAND, words, code, engine, **options)
    if in_background:
        sys.stdout.write(
            f"command {experiment} runs in the background; follow it: det cmd logs -f"
            f" {experiment}\n"
        )
        return 0
    if settings.server:
        from ._remote import follow_task

        return follow_task(settings, experiment)
    return _follow(settings, experiment)


def _refuse_options(words: Sequence[str]) -> None:
    """Raise click.NoSuchOption for an option before the command. No program has such a name."""
    if words and words[0].startswith("-"):
        raise click.NoSuchOption(words[0].partition("=")[0], ctx=click.get_current_context())


def _config(
    kind: str,
    words: Sequence[str],
    directory: Path | None,
    *,
    slots: int,
    priority: int | None,
    max_hours: float | None,
    idle: float | None,
    name: str = "",
) -> dict[str, Any]:
    """Return the configuration of a task."""
    name = " ".join((name or shlex.join(words)).split()) or kind
    resources: dict[str, Any] = {"slots_per_trial": slots}
    return {
        "name": name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}...",
        "entrypoint": task_words(
            kind,
            words,
            directory=directory,
            max_seconds=None if max_hours is None else 3600 * max_hours,
            idle_seconds=None if idle is None else 60 * idle,
        ),
        "resources": resources | ({"priority": priority} if priority is not None else {}),
        "searcher": {"name": "single", "metric": ""},
        "max_restarts": 0,
        "preemption_timeout": GRACE_SECONDS,
    }


def _start(
    settings: Settings,
    kind: str,
    words: Sequence[str],
    code: Path | None,
    engine: str | None,
    **options: Any,
) -> int:
    """Start a task here, on a node or on the server. Return the number of its experiment."""
    if settings.server:
        return _submit(settings, kind, words, code, engine, **options)
    from det_core.hooks import extensions_of

    from ..config import load
    from ..driver import check_startable, create

    chosen = settings.plugins.engines()[engine or LOCAL].name
    if chosen == IN_PROCESS:
        raise DetError(f"the engine {IN_PROCESS} has no slots and no terminal; leave it out")
    is_here = chosen == LOCAL
    if code is not None and is_here:
        raise DetError(
            f"--code is for a server or a node; on this machine a {kind} runs in this directory"
        )
    content = _config(kind, words, Path.cwd() if is_here else None, **options)
    if not is_here:
        _add_terminal(content, kind, settings.environ)
    config = load(
        content,
        # They have the settings of the engine.
        defaults=None if is_here else settings.defaults,
        engine=engine,
        extensions=extensions_of(settings.plugins),
    ).config
    driver = settings.driver(chosen)
    check_startable(config, driver)
    with settings.store() as store:
        experiment = create(
            store,
            config,
            code,
            engine=chosen,
            plugins=settings.plugins,
            environments=driver.root,
        )
    _start_driver(settings, experiment)
    return experiment


def _start_driver(settings: Settings, experiment: int) -> None:
    """Start the driver of a task in the background."""
    from ..driver import start_driver

    with settings.reader() as store:
        try:
            start_driver(store, settings.home, experiment, settings.environ)
        except KeyboardInterrupt:
            # The driver is in a session of its own, and goes on.
            _end(settings, experiment, at_once=True)
            raise


def _add_terminal(content: dict[str, Any], kind: str, environ: Mapping[str, str]) -> None:
    """Name the kind of this terminal for the programs of a shell on another machine."""
    term = environ.get("TERM", "")
    if kind == SHELL and _TERMINAL.fullmatch(term):
        content["environment"] = {"environment_variables": [f"TERM={term}"]}


def _submit(
    settings: Settings,
    kind: str,
    words: Sequence[str],
    code: Path | None,
    engine: str | None,
    **options: Any,
) -> int:
    """Submit a task to the server, and return its number."""
    from det_core.hooks import extensions_of

    from ..config import load
    from ..remote import submit_experiment
    from ._remote import open_server

    content = _config(kind, words, None, **options)
    _add_terminal(content, kind, settings.environ)
    loaded = load(content, extensions=extensions_of(settings.plugins)).config
    with tempfile.TemporaryDirectory(prefix="det-code-") as empty:
        return submit_experiment(
            open_server(settings),
            json.dumps(content),
            loaded,
            code or Path(empty),
            name=content["name"],
            engine=engine,
            quiet=code is None,
        )


def _follow(settings: Settings, experiment: int) -> int:
    """Print what a command writes until it ends, and return its exit status."""
    with settings.reader() as store, _interrupts() as interrupts:
        output, sent, noticed = _Output(store, experiment), 0, False
        while True:
            # What was written before the end is read after it is seen.
            over = store.experiments.get(experiment).state is not ExperimentState.ACTIVE
            orphaned = store.experiments.orphaned(store.experiments.get(experiment))
            output.print_new()
            if over or orphaned:
                break
            if not noticed and experiment in store.slots.waiting():
                noticed = True
                sys.stderr.write(f"det: command {experiment} waits for slots; see: det queue\n")
            if len(interrupts) > sent:
                sent = len(interrupts)
                _end(settings, experiment, at_once=sent > 1)
            time.sleep(_POLL_SECONDS)
        return _say_end(store, experiment, output.run)


def _say_end(store: Store, experiment: int, run: Run | None) -> int:
    """Print how a command ended, if it did not end well, and return its exit status."""
    found = store.experiments.get(experiment)
    if found.state is ExperimentState.ACTIVE:
        sys.stderr.write(f"det: {found.abandoned}\n")
        return 1
    status = _status(run) if found.state in _BY_ITSELF else None
    if status is None and found.state is ExperimentState.COMPLETED:
        return 0
    if status is None:
        reason = f": {found.reason}" if found.reason else ""
        sys.stderr.write(f"det: {found.task} {experiment} is {found.state.lower()}{reason}\n")
        return 1
    return status


def _status(run: Run | None) -> int | None:
    """Return the exit status of a command, or None if it was killed or ran on another machine."""
    if run is not None:
        with suppress(OSError, ValueError):
            return int(read_regular(run.log_dir / STATUS))
    return None


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, which do not end this process."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Output:
    """Copies what the runs of a command write to the standard output, byte for byte.

    A command that was preempted has several runs. `run` is the newest one.
    """

    def __init__(self, store: Store, experiment: int) -> None:
        self.run: Run | None = None
        self._store = store
        self._experiment = experiment
        self._printed: dict[Path, int] = {}

    def print_new(self) -> None:
        for trial in self._store.trials.list(self._experiment):
            for run in self._store.runs.list(trial.id):
                self.run = run
                self._print(run.log_dir / "rank-0.log")

    def _print(self, log: Path) -> None:
        with suppress(FileNotFoundError), open_regular(log) as file:
            file.seek(self._printed.get(log, 0))
            while chunk := file.read(_CHUNK):
                while chunk:
                    chunk = chunk[os.write(1, chunk) :]
            self._printed[log] = file.tell()


def _end(settings: Settings, experiment: int, *, at_once: bool) -> None:
    from ..driver import send_command

    # It may have ended by itself.
    with settings.store() as store, suppress(StoreError):
        send_command(store, experiment, "kill" if at_once else "cancel")


def _rows(settings: Settings, kind: str, everything: bool) -> list[dict[str, Any]]:
    from det_core.config import from_json

    with settings.reader() as store:
        return [
            {
                "id": summary.experiment.id,
                "command": summary.experiment.name,
                "state": summary.shown,
                "slots": from_json(summary.experiment.config).resources.slots_per_trial,
                "created": summary.experiment.created,
                "reason": summary.experiment.reason,
            }
            for summary in store.experiments.list(archived=None)
            if summary.experiment.task == kind
            and (everything or not summary.experiment.state.ended)
        ]


@cmd.command()
@click.argument("experiment", metavar="ID", type=int, shell_complete=EXPERIMENTS)
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the command ends.")
@click.pass_obj
def logs(settings: Settings, experiment: int, follow: bool) -> int | None:
    """Print what the command ID wrote: byte for byte, from a server line by line."""
    if settings.server:
        from ._remote import print_task_logs

        return print_task_logs(settings, experiment, follow=follow)
    with settings.reader() as store:
        check_task(store, experiment, COMMAND)
        output = _Output(store, experiment)
        while True:
            found = store.experiments.get(experiment)
            over = found.state is not ExperimentState.ACTIVE or store.experiments.orphaned(found)
            output.print_new()
            if over or not follow:
                return None
            time.sleep(_POLL_SECONDS)


@cmd.command()
@click.argument("experiment", metavar="ID", type=int, shell_complete=EXPERIMENTS)
@click.pass_obj
def status(settings: Settings, experiment: int) -> int:
    """End with the exit status of the command ID, or with 1 if it was canceled or killed."""
    with settings.reader() as store:
        check_task(store, experiment, COMMAND)
        found = store.experiments.get(experiment)
        if found.state is ExperimentState.ACTIVE and not store.experiments.orphaned(found):
            raise DetError(f"command {experiment} has not ended; follow it: det cmd logs -f")
        runs = [run for row in store.trials.list(experiment) for run in store.runs.list(row.id)]
        return _say_end(store, experiment, runs[-1] if runs else None)


class _Shell(click.Group):
    """Starts a shell where no other command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        word = args[0] if args else ""
        known = word in self.commands or self.is_argument(word)
        if not known and (nearest(word, self.commands) or word in BELOW[self.name or ""]):
            raise click.UsageError(f"No such command {word!r}.", ctx)
        if word not in {*self.commands, *ctx.help_option_names}:
            args = ["start", *args]
        return super().parse_args(ctx, args)

    def is_argument(self, word: str) -> bool:
        """Return whether a word is what to start."""
        return shutil.which(word) is not None


@click.group(cls=_Shell)
def shell() -> None:
    """Open a shell on slots: det shell [OPTIONS] is det shell start [OPTIONS]."""


@shell.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_starting_elsewhere
@click.argument("words", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def start(
    settings: Settings,
    /,
    words: tuple[str, ...],
    code: Path | None,
    engine: str | None,
    **options: Any,
) -> int:
    """Open a shell in this directory when there are slots, or another interactive COMMAND.

    On a server it runs there, in the directory that --code says. Its end gives the slots back. If
    this terminal is closed, or this process is killed, the shell ends with all that it started. It
    is idle while nothing is typed or written.
    """
    _refuse_options(words)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise DetError(
            "det shell needs a terminal; without one, run a command: det cmd run -- COMMAND"
        )
    # On another machine the shell is that of the account there.
    if not settings.server and engine in (None, LOCAL):
        words = words or (settings.environ.get("SHELL") or "/bin/sh",)
    experiment = _start(settings, SHELL, words, code, engine, **options)
    if settings.server:
        from ._remote import attach_shell

        return attach_shell(settings, experiment)
    with settings.reader() as store:
        try:
            socket = _await_terminal(store, experiment)
        except KeyboardInterrupt:
            _end(settings, experiment, at_once=True)
            return 130
        status = None if socket is None else attach_terminal(socket)
        deadline = time.monotonic() + _ENDS_SECONDS
        while (found := store.experiments.get(experiment)).state is ExperimentState.ACTIVE:
            # It would wait for slots again, where it was preempted.
            if status is None or time.monotonic() > deadline:
                _end(settings, experiment, at_once=True)
                break
            time.sleep(_POLL_SECONDS)
        if status is None:
            reason = f": {found.reason}" if found.reason else ""
            sys.stderr.write(f"det: the shell ended without its status{reason}\n")
        return 1 if status is None else status


def _await_terminal(store: Store, experiment: int) -> Path | None:
    """Return the socket of a shell, or None if the shell or its driver has ended before."""
    noticed = False
    while (found := store.experiments.get(experiment)).state is ExperimentState.ACTIVE:
        if store.experiments.orphaned(found):
            return None
        if socket := find_terminal(store, experiment):
            return socket
        if not noticed and experiment in store.slots.waiting():
            noticed = True
            sys.stderr.write(
                f"det: shell {experiment} waits for slots; see: det queue. Ctrl-C gives up\n"
            )
        time.sleep(_POLL_SECONDS)
    return None


def check_task(store: Store, experiment: int, kind: str) -> None:
    """Raise DetError for an experiment that is no task of a kind."""
    if store.experiments.get(experiment).task != kind:
        raise DetError(
            f"experiment {experiment} is no {kind}; det show {experiment} shows what it is"
        )


class _Notebook(_Shell):
    """Starts a notebook where no other command is given."""

    def is_argument(self, word: str) -> bool:
        """Return whether a word is a directory."""
        return os.path.isdir(word)


@click.group(cls=_Notebook)
def notebook() -> None:
    """Open JupyterLab on slots: det notebook [OPTIONS] is det notebook start [OPTIONS]."""


@notebook.command("start")
@_starting
@click.option("--detach", "-d", "in_background", is_flag=True, help="Do not wait until it ends.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "--code",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="On a server, open it in a copy of this directory, without which it gets an empty one.",
)
@click.argument(
    "directory", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False
)
@click.pass_obj
def start_notebook(
    settings: Settings,
    /,
    directory: Path | None,
    code: Path | None,
    in_background: bool,
    no_browser: bool,
    **options: Any,
) -> int:
    """Open JupyterLab in DIRECTORY, or in this one, when there are slots, and print its address.

    Ctrl-C ends it. It goes on if this terminal is closed, and det notebook open prints the address
    again. It is idle while no cell runs and no kernel or terminal does anything, also if its page
    is open, and ends after 240 minutes of that, or of --idle.
    """
    place = (code or directory or Path.cwd()).absolute()
    options["name"] = f"{NOTEBOOK} in {place.name or place}"
    options["idle"] = options["idle"] or _NOTEBOOK_IDLE_MINUTES
    if settings.server:
        if directory is not None:
            raise DetError("on a server, a notebook gets a copy of a directory by --code DIRECTORY")
        options["name"] = options["name"] if code else NOTEBOOK
        # The server passes on what listens on its machine.
        experiment = _submit(settings, NOTEBOOK, [UNIX], code, LOCAL, **options)
    elif code is not None:
        raise DetError("--code is for a server; on this machine give the directory itself")
    elif not is_installed():
        raise DetError(missing())
    else:
        words = [LOOPBACK, str(place)]
        experiment = _start(settings, NOTEBOOK, words, None, None, **options)
    if in_background:
        sys.stdout.write(
            f"notebook {experiment} runs in the background; open it: det notebook open"
            f" {experiment}\n"
        )
        return 0
    if settings.server:
        from ._remote import await_notebook

        return await_notebook(settings, experiment, browser=not no_browser)
    return _follow_notebook(settings, experiment, browser=not no_browser)


def _follow_notebook(settings: Settings, experiment: int, *, browser: bool) -> int:
    """Print the address of a notebook, wait until it ends, and return its exit status."""
    with settings.reader() as store, _interrupts() as interrupts:
        shown, sent, noticed = False, 0, False
        while _goes_on(store, experiment):
            if not shown and (page := _find_page(store, experiment)):
                shown = True
                _show_page(experiment, page, browser=browser)
            if not shown and not noticed and experiment in store.slots.waiting():
                noticed = True
                sys.stderr.write(
                    f"det: notebook {experiment} waits for slots; see: det queue. Ctrl-C gives up\n"
                )
            if len(interrupts) > sent:
                sent = len(interrupts)
                _end(settings, experiment, at_once=sent > 1)
            time.sleep(_POLL_SECONDS)
        if not (shown or sent):
            sys.stderr.write(f"det: see what it wrote: det logs {experiment}\n")
        runs = [run for row in store.trials.list(experiment) for run in store.runs.list(row.id)]
        return _say_end(store, experiment, runs[-1] if runs else None)


def _goes_on(store: Store, experiment: int) -> bool:
    found = store.experiments.get(experiment)
    return found.state is ExperimentState.ACTIVE and not store.experiments.orphaned(found)


def _find_page(store: Store, experiment: int) -> tuple[str, Path] | None:
    """Return the address of a notebook, and a file that leads there, or None if it has none."""
    for trial in store.trials.list(experiment):
        for run in store.runs.list(trial.id):
            with suppress(OSError, ValueError, KeyError):
                found = json.loads(read_regular(run.log_dir / "scratch" / INFO))
                return str(found["address"]), Path(found["page"])
    return None


def _show_page(experiment: int, page: tuple[str, Path], *, browser: bool) -> None:
    address, file = page
    sys.stdout.write(f"notebook {experiment} is at {address}\n")
    sys.stdout.flush()
    if browser:
        # Others can read command lines, and so a browser gets no token.
        open_browser(file.as_uri())


@notebook.command("open")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.argument("experiment", metavar="ID", type=int, shell_complete=EXPERIMENTS)
@click.pass_obj
def open_notebook(settings: Settings, experiment: int, no_browser: bool) -> int:
    """Print the address of the notebook ID, and open it in a browser."""
    if settings.server:
        from ._remote import await_notebook

        return await_notebook(settings, experiment, browser=not no_browser)
    with settings.reader() as store:
        check_task(store, experiment, NOTEBOOK)
        page = _find_page(store, experiment) if _goes_on(store, experiment) else None
        if page is None or not page[0]:
            waits = ", and waits for slots" if experiment in store.slots.waiting() else ""
            state = store.experiments.get(experiment).state
            behind = ", and is opened on the server" if page else waits
            raise DetError(f"notebook {experiment} has no address: it is {state}{behind}")
    _show_page(experiment, page, browser=not no_browser)
    return 0


def _look_after(group: click.Group, kind: str) -> None:
    """Add the commands `list` and `kill` to the group of a kind of task."""

    @group.command("list", help=f"List the {kind}s that wait or run, the newest first.")
    @click.option("--all", "everything", is_flag=True, help="Also those that have ended.")
    @as_json
    @click.pass_obj
    def list_(settings: Settings, everything: bool, as_json: bool) -> None:
        rows = _rows(settings, kind, everything) if Store.is_at(settings.home) else []
        if as_json:
            print_json(rows)
            return
        if not rows:
            sys.stdout.write(f"no {kind}s{'' if everything else ' wait or run'}\n")
            return
        now = time.time()
        shown = [
            (row["id"], row["command"], row["state"], row["slots"], ago(row["created"], now))
            for row in rows
        ]
        print_table(("id", "command", "state", "slots", "created"), shown, _RANKS)

    @group.command(
        "kill",
        help=f"End the {kind} ID: it gets SIGTERM, and is killed if it does not end within"
        f" {GRACE_SECONDS} seconds.",
    )
    @click.argument("experiment", metavar="ID", type=int, shell_complete=EXPERIMENTS)
    @click.option("--now", is_flag=True, help="End it at once, without SIGTERM before.")
    @click.pass_obj
    def kill(settings: Settings, experiment: int, now: bool) -> None:
        from ..driver import send_command

        with settings.store() as store:
            check_task(store, experiment, kind)
            send_command(store, experiment, "kill" if now else "cancel")
        sys.stdout.write(f"{kind} {experiment} is asked to end\n")


_look_after(cmd, COMMAND)
_look_after(shell, SHELL)
_look_after(notebook, NOTEBOOK)
