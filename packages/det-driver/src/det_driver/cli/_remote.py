"""Commands on a `det server`: sign-in, submission, and commands that the server executes."""

from __future__ import annotations

import copy
import getpass
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from det_core.errors import DetError

from ._console import open_browser
from ._output import coloured, raw

if TYPE_CHECKING:
    from det_core.config import ExperimentConfig

    from ..remote import RemoteServer, RemoteTerminal
    from ._console import Settings

READS = frozenset(
    (
        *("list", "show", "compare", "logs", "metrics", "checkpoint list", "checkpoint show"),
        *(
            "checkpoint describe",
            "queue",
            "model list",
            "model show",
            "model describe",
            "alerts list",
        ),
        *("cmd list", "cmd status", "shell list", "notebook list"),
    )
)
"""The commands that change nothing."""
CHANGES = frozenset(
    (
        *("pause", "resume", "cancel", "search", "set", "rename", "label", "note", "rm"),
        *("cmd kill", "shell kill", "notebook kill"),
    )
)
"""The commands that a server executes for those who may change the experiment."""
SHARED = frozenset(
    (
        *("model create", "model add-version", "model register-version", "model alias"),
        *("model edit", "model delete", "alerts test", "alerts retry"),
    )
)
"""The commands about what no experiment owns. The server knows who may execute which."""
_ASKING = {"rm": "experiment", "model delete": "model"}
"""The commands that ask before they delete, with the argument that names what."""
HERE = frozenset(
    (
        *("run", "login", "logout", "user", "server", "check", "preview", "config", "engine"),
        *("plugins", "plugin", "version", "launch", "env", "horovod", "ui"),
        "sync",
        *("experiment", "e", "trial", "t", "preview-search"),
    )
)
"""The commands that this machine executes. Some of them ask the server."""
_BY_CLIENT = frozenset(
    (
        *("checkpoint export", "checkpoint download", "checkpoint delete"),
        *("cmd run", "cmd logs", "shell start", "notebook start", "notebook open"),
    )
)
"""The commands that this machine executes with the help of the server."""
_OF_DRIVING = {"in_process", "page", "keep", "in_job"}
MARK, END = "\x1e", "\x1f"
"""What is around the position of a log's line: `MARK file offset END`."""
_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)
_ENDS_SECONDS = 10.0
"""How long a shell that has ended may take to give its slots back."""
_STATUS = {"COMPLETED": 0, "PAUSED": 130}


@dataclass(frozen=True)
class RemoteCall:
    """A command for a server: its full name and its parameters."""

    name: str
    params: Mapping[str, Any]

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.name in READS

    @property
    def is_shared(self) -> bool:
        """Whether it changes what no experiment owns, such as a model."""
        return self.name in SHARED

    @property
    def experiments(self) -> set[int]:
        """The experiments that its words name."""
        named = self.params.get("experiment")
        return {*named} if isinstance(named, tuple) else set() if named is None else {named}


class RemoteCommand(click.Command):
    """A command whose words are checked here and executed by the server."""

    def __init__(self, name: str, command: click.Command) -> None:
        super().__init__(
            name,
            params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
            callback=self._execute,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        )
        self._command = command

    def _execute(self, words: tuple[str, ...]) -> int:
        context = click.get_current_context()
        settings: Settings = context.obj
        first = words[0] if words else ""
        # A shell and a notebook are started without `start`, too, with options.
        is_start = self.name in ("shell", "notebook") and (
            f"{self.name} {first}" not in READS | CHANGES
        )
        if is_start or f"{self.name} {first}" in _BY_CLIENT:
            assert isinstance(self._command, click.Group)
            with self._command.make_context(self.name, [*words], parent=context.parent) as inner:
                return int(self._command.invoke(inner) or 0)
        name, params = parse(self._command, str(self.name), words, context.parent)
        with_yes = ["--yes"] if _confirm(name, params, settings.server) else []
        server = open_server(settings)
        if name in READS:
            return (_follow if params.get("follow") else _run)(server, [str(self.name), *words])
        if name in SHARED:
            return _run(server, [*name.split(), *with_yes, *words[1:]], shared=True)
        argv = [str(self.name), *with_yes, *words]
        if name == "resume":
            return _resume(settings, server, argv, params)
        chosen = params["experiment"]
        if isinstance(chosen, int):
            return _run(server, argv, chosen)
        # Each has its own owner.
        each = [[name, *with_yes, str(id)] for id in dict.fromkeys(chosen)]
        options = ["--keep-checkpoints"] if params.get("keep_checkpoints") else []
        return max(_run(server, [*argv, *options], int(argv[-1])) for argv in each)


def parse(
    command: click.Command, name: str, words: Sequence[str], parent: click.Context | None = None
) -> tuple[str, dict[str, Any]]:
    """Return a command's full name and its parameters, without executing it.

    Without a `parent`, help is not printed. Raises DetError for a command or an option that makes
    no sense on a server, and UsageError for words that the command does not accept.
    """
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        inner = command.get_command(click.Context(command), rest[0])
        if inner is None:
            break
        command, name, rest = inner, f"{name} {rest[0]}", rest[1:]
    if parent is None:
        command = copy.copy(command)
        command.add_help_option = False
    params = command.make_context(name, rest, parent=parent).params
    if name not in READS | CHANGES | SHARED:
        raise DetError(
            f"det {name} acts on a home only, and not on a server; with the home of this machine:"
            f" det -m '' {name}"
        )
    for parameter in command.params:
        given = params.get(parameter.name or "")
        # The code is sent instead of the words.
        is_sent = parent is not None and (name, parameter.name) == ("resume", "code")
        if (
            given
            and not is_sent
            and (isinstance(parameter.type, click.Path) or parameter.name in _OF_DRIVING)
        ):
            word = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.name
            raise DetError(
                f"det {name} with {word} acts on a home only, and not on a server; leave it out"
            )
    return name, params


def _confirm(name: str, params: Mapping[str, Any], address: str) -> bool:
    """Ask before something is deleted. Return whether it was asked, as the server cannot."""
    if name not in _ASKING:
        return False
    if not params["yes"]:
        kind = _ASKING[name]
        named = params[kind] if isinstance(params[kind], tuple) else (params[kind],)
        listed = ", ".join(map(str, named))
        click.confirm(f"delete {kind} {listed} of {address} for good?", abort=True)
    return True


def open_server(settings: Settings, **options: float) -> RemoteServer:
    """Return the chosen server. Raises DetError where this user is not signed in to it."""
    from ..remote import RemoteServer, SignIns

    token = SignIns(settings.environ).get(settings.server).token
    return RemoteServer(settings.server, token, **options)


def _run(
    server: RemoteServer,
    argv: Sequence[str],
    experiment: int | None = None,
    shown: Callable[[str], None] | None = None,
    *,
    shared: bool = False,
) -> int:
    """Have the server execute a command, print its output, and return its status.

    One that changes anything names the `experiment`, or is `shared`. `shown` gets the text for
    stdout instead.
    """
    from ..remote import Lost

    if shared:
        frames = server.frames("POST", "/commands", {"argv": argv})
    elif experiment is not None:
        frames = server.frames("POST", f"/experiments/{experiment}/command", {"argv": argv})
    else:
        frames = server.frames("GET", f"/commands?{urlencode({'argv': json.dumps(argv)})}")
    for frame in frames:
        if "out" in frame:
            (shown or _print)(frame["out"])
        if "err" in frame:
            sys.stderr.write(frame["err"])
            sys.stderr.flush()
        if "status" in frame:
            return int(frame["status"])
    raise Lost(f"the connection to {server.address} is lost; try again")


def _print(text: str) -> None:
    # The server has escaped what is no log. Of a log, only colours take effect on a terminal.
    raw(sys.stdout).write(coloured(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


class _Marked:
    """Prints lines with marks, and keeps the position of each file after its last line."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self._rest = ""

    def __call__(self, text: str) -> None:
        *lines, self._rest = f"{self._rest}{text}".split("\n")
        for line in lines:
            mark, _, shown = line.removeprefix(MARK).partition(END)
            file, _, offset = mark.rpartition(" ")
            self.positions[file] = int(offset)
            if shown:
                _print(f"{shown[1:]}\n")

    def reset(self) -> None:
        """Drop the incomplete line of a connection that is lost."""
        self._rest = ""


def _follow(server: RemoteServer, argv: Sequence[str], marked: _Marked | None = None) -> int:
    """Print logs as they grow. After a lost connection, go on where it was."""
    from ..remote import Lost

    marked, failures = marked or _Marked(), 0
    # What is wrong from the start is not waited for.
    server.get("/me")
    while True:
        after = ["--after", json.dumps(marked.positions)] if marked.positions else []
        before = dict(marked.positions)
        try:
            return _run(server, [*argv, "--marks", *after], shown=marked)
        except Lost as error:
            failures = 0 if marked.positions != before else failures
            if not failures:
                sys.stderr.write(f"det: {error}; going on where it was as soon as possible\n")
            marked.reset()
            time.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
            failures += 1


def _resume(
    settings: Settings, server: RemoteServer, argv: list[str], params: Mapping[str, Any]
) -> int:
    experiment, marked = int(params["experiment"]), _Marked()
    if params["code"] is not None:
        _send_code(settings, server, experiment, params)
        options = {"--checkpoint": params["uuid"], "--trial": params["trial"]}
        options["--engine"] = params["engine"]
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        argv = ["resume", str(experiment), *given]
        argv += ["--detach"] if params["in_background"] else []
    if params["in_background"]:
        return _run(server, argv, experiment)
    # Earlier drivers have written to the same log.
    _run(server, ["logs", str(experiment), "--driver", "--tail", "0", "--marks"], shown=marked)
    output: list[str] = []
    if status := _run(server, [*argv, "--detach"], experiment, output.append):
        return status
    return _watch(server, experiment, marked, quiet=params["quiet"])


def print_task_logs(settings: Settings, experiment: int, *, follow: bool) -> int:
    """Print what a command on the server wrote."""
    show = _follow if follow else _run
    return show(open_server(settings), _task_logs(experiment, follow=follow))


def _task_logs(experiment: int, *, follow: bool) -> list[str]:
    return ["logs", str(experiment), "--of-command", *(["--follow"] if follow else [])]


def follow_task(settings: Settings, experiment: int) -> int:
    """Print what a command on the server writes until it ends, and return its exit status.

    Ctrl-C ends the command, at the second time at once.
    """
    server, sent, marked = open_server(settings), 0, _Marked()
    while True:
        try:
            _follow(server, _task_logs(experiment, follow=True), marked)
            return _run(server, ["cmd", "status", str(experiment)])
        except KeyboardInterrupt:
            now = ["--now"] if sent else []
            sent += 1
            _run(server, ["cmd", "kill", *now, str(experiment)], experiment, lambda text: None)


def attach_shell(settings: Settings, experiment: int) -> int:
    """Connect this terminal with a shell on the server, and return its status when it has ended.

    Ctrl-C gives up while the shell waits for slots.
    """
    from det_node.terminal import relay_terminal

    from ..remote import REPLY_SECONDS, RemoteTerminal

    server = open_server(settings)

    def end() -> None:
        _run(server, ["shell", "kill", "--now", str(experiment)], experiment, lambda text: None)

    connect = partial(open_server, settings, seconds=REPLY_SECONDS)
    with RemoteTerminal(connect, experiment) as terminal:
        try:
            _await_shell(terminal, experiment)
        except KeyboardInterrupt:
            end()
            return 130
        status = relay_terminal(terminal.socket)
    if status is None:
        sys.stderr.write(f"det: the shell ended without its status: {terminal.problem}\n")
        return 1
    deadline = time.monotonic() + _ENDS_SECONDS
    while server.get(f"/experiments/{experiment}")["state"] == "ACTIVE":
        # It would wait for slots again, where it was preempted.
        if time.monotonic() > deadline:
            end()
            break
        time.sleep(_RETRY_SECONDS[0] / 4)
    return status


def _await_shell(terminal: RemoteTerminal, experiment: int) -> None:
    noticed, pause = False, 0.1
    while True:
        is_open, waits = terminal.open()
        if is_open:
            return
        if waits and not noticed:
            noticed = True
            sys.stderr.write(
                f"det: shell {experiment} waits for slots; see: det queue. Ctrl-C gives up\n"
            )
        time.sleep(pause)
        pause = min(1.5 * pause, _RETRY_SECONDS[1])


def await_notebook(settings: Settings, experiment: int, *, browser: bool) -> int:
    """Wait until a notebook on the server answers, and print the address that opens it.

    Ctrl-C ends it before.
    """
    server, noticed = open_server(settings), False
    try:
        while (found := server.get(f"/experiments/{experiment}/notebook"))["state"] == "ACTIVE":
            if found["ready"]:
                address = f"{server.address}{found['path']}"
                sys.stdout.write(f"notebook {experiment} is at {address}\n")
                if browser:
                    open_browser(address)
                return 0
            if found["waits"] and not noticed:
                noticed = True
                sys.stderr.write(
                    f"det: notebook {experiment} waits for slots; see: det queue. Ctrl-C gives up\n"
                )
            time.sleep(_RETRY_SECONDS[0])
    except KeyboardInterrupt:
        words = ["notebook", "kill", str(experiment)]
        _run(server, words, experiment)
        return 130
    reason = f": {found['reason']}" if found["reason"] else ""
    sys.stderr.write(
        f"det: notebook {experiment} is {found['state'].lower()}{reason}; see what it wrote: det"
        f" logs {experiment}\n"
    )
    return 1


def _send_code(
    settings: Settings, server: RemoteServer, experiment: int, params: Mapping[str, Any]
) -> None:
    """Replace the code of an experiment by that of a directory, after showing the difference."""
    from ..remote import send_code
    from ._new_code import ask_for_code

    code: Path = params["code"]
    if not params["yes"]:
        with tempfile.TemporaryDirectory(prefix="det-code-") as scratch:
            old = Path(scratch, "code")
            settings.client().get_experiment(experiment).download_code(old)
            ask_for_code(old, code, experiment)
    digest = send_code(server, code, quiet=params["quiet"])
    server.post(f"/experiments/{experiment}/replace-code", {"code": digest})


def _watch(server: RemoteServer, experiment: int, marked: _Marked, *, quiet: bool = False) -> int:
    """Print what the driver of an experiment prints, and return the status as `det run` does.

    Ctrl-C leaves the experiment running.
    """
    try:
        _follow(
            server,
            ["logs", str(experiment), "--driver", "--follow", *(["--tail", "0"] if quiet else [])],
            marked,
        )
    except KeyboardInterrupt:
        sys.stderr.write(
            f"\ndet: experiment {experiment} goes on on {server.address}; follow it: det logs -f"
            f" {experiment} --driver; stop it: det pause {experiment}\n"
        )
        return 130
    state = server.get(f"/experiments/{experiment}")["state"]
    return _STATUS.get(state, 1)


def submit(
    settings: Settings,
    config: Path,
    loaded: ExperimentConfig,
    code: Path,
    *,
    template: Path | None,
    overrides: Sequence[str],
    engine: str | None,
    in_background: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Send a configuration and its code to the server, and follow the experiment there."""
    from ..remote import submit_experiment

    server = open_server(settings)
    id = submit_experiment(
        server,
        config.read_text(encoding="utf-8"),
        loaded,
        code,
        name=config.absolute().parent.name,
        template=template.read_text(encoding="utf-8") if template else None,
        overrides=overrides,
        engine=engine,
        quiet=quiet or as_json,
    )
    if as_json:
        sys.stdout.write(json.dumps({"experiment": id, "server": server.address}) + "\n")
    if as_json or in_background:
        if not as_json:
            sys.stdout.write(
                f"experiment {id} runs on {server.address}; follow it: det logs -f {id}\n"
            )
        return 0
    sys.stdout.write(f"experiment {id} is submitted to {server.address}\n")
    return _watch(server, id, _Marked())


@click.command()
@click.argument("address", metavar="URL")
@click.option("--user", metavar="NAME", help="Your name there; by default, as on this machine.")
@click.option(
    "--password-stdin", is_flag=True, help="Read the password from the first line of stdin."
)
@click.option(
    "--insecure-http",
    is_flag=True,
    help="Allow plain http to another machine, where others may read the password on the way.",
)
@click.pass_obj
def login(
    settings: Settings, address: str, user: str | None, password_stdin: bool, insecure_http: bool
) -> None:
    """Sign in to the det server at URL; commands act on it from then on, until det logout.

    The token is kept in ~/.config/det/servers.json, which only you can read.
    """
    user = user or click.get_current_context().find_root().params.get("name")
    sign_in(settings, address, user, password_stdin=password_stdin, insecure=insecure_http)


def sign_in(
    settings: Settings,
    address: str,
    user: str | None,
    *,
    password_stdin: bool = False,
    insecure: bool = False,
) -> None:
    """Ask for the password, get a token for it, and keep that."""
    from ..remote import check_address
    from ..remote import sign_in as keep_sign_in

    address = check_address(address, insecure=insecure)
    name = user or getpass.getuser()
    password = (
        sys.stdin.readline().rstrip("\r\n")
        if password_stdin
        else click.prompt(f"password of {name} at {address}", hide_input=True, err=True)
    )
    made, role = keep_sign_in(settings.environ, address, name, password, insecure=insecure)
    until = time.strftime("%Y-%m-%d", time.localtime(made.expires))
    sys.stdout.write(f"signed in to {address} as {made.name} ({role}) until {until}\n")
    if settings.environ.get("DET_HOME") and not settings.environ.get("DET_MASTER"):
        sys.stderr.write(
            "det: DET_HOME is set, and commands act on that home: unset it, or write det -m"
            f" {address}\n"
        )


@click.command()
@click.pass_obj
def logout(settings: Settings) -> None:
    """Sign out of the server that commands act on. Experiments there go on."""
    from ..remote import RemoteServer, SignIns

    kept = SignIns(settings.environ)
    address = settings.server or kept.current
    if not address:
        raise DetError("you are not signed in to a server")
    try:
        token = kept.get(address).token
    finally:
        # A token that has expired is of no use here, either.
        kept.remove(address)
    RemoteServer(address, token).delete("/session")
    sys.stdout.write(f"signed out of {address}\n")
