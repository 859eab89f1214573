"""The command `det`.

Each subcommand is imported when it is called, so that `det --help` is fast.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from det_core.errors import DetError, did_you_mean, nearest
from det_core.support.installation import how_to_install
from det_node.output import discard

from ._console import Settings
from ._output import escaped, flush, open_closed_streams, printable
from ._remote import (
    CHANGES,
    HERE,
    READS,
    SHARED,
    RemoteCall,
    RemoteCommand,
    parse,
    sign_in,
)
from ._remote import logout as sign_out
from ._words import ALIASES, BELOW, INSTEAD

_COMMANDS = {
    "run": ("_run", "Train an experiment: a configuration and its code."),
    "resume": ("_run", "Go on with an experiment that was paused, killed or blocked."),
    "pause": ("_run", "Checkpoint an experiment's trials and pause it."),
    "cancel": ("_run", "Checkpoint an experiment's trials and end it for good."),
    "search": (
        "_search",
        "Change a search: more trials, known hyperparameters, slots, when it stops.",
    ),
    "set": ("_queue:set_", "Change an experiment's priority, weight or slots while it runs."),
    "queue": ("_queue", "List what waits for slots of this machine, and what holds them."),
    "cmd": ("_tasks", "Run commands on slots."),
    "shell": ("_tasks", "Open a shell on slots."),
    "notebook": ("_tasks", "Open JupyterLab on slots."),
    "list": ("_experiments:list_", "List the experiments."),
    "show": ("_show", "Show an experiment and its trials."),
    "compare": ("_show", "Compare experiments side by side."),
    "logs": ("_reports", "Print what a trial's processes wrote."),
    "metrics": ("_reports", "Print what trials reported."),
    "checkpoint": ("_checkpoint", "List, show, export or delete checkpoints."),
    "model": ("_model", "Name checkpoints as versions of models, and keep them."),
    "gc": (
        "_checkpoint",
        "Delete the checkpoints that ended experiments do not keep, where that was interrupted.",
    ),
    "preview": (
        "_preview",
        "Simulate a search: how many trials reach which length, and how long it takes.",
    ),
    "rename": ("_experiments", "Call an experiment by another name."),
    "label": ("_experiments", "Give an experiment labels, or take them away."),
    "note": ("_experiments", "Write a note on an experiment."),
    "rm": ("_experiments", "Delete experiments and what came of them."),
    "alerts": ("_alerts", "About alerts: where they are sent, and those that are not sent yet."),
    "export": ("_experiments", "Write an experiment to one file."),
    "import": ("_experiments:import_", "Import an experiment from a file."),
    "sync": ("_sync:sync_", "Send what scripts recorded without det run, or take it up here."),
    "trust": ("_experiments", "Allow an imported experiment to run."),
    "home": ("_experiments", "Repair the index of the home."),
    "launch": ("_run", "Start the ranks of a script on this or several hosts."),
    "check": ("_config", "Validate a configuration and train one batch of its trial."),
    "verify": ("_verify", "Train a trial again, and compare metrics and weights."),
    "config": ("_config", "About configurations: a first one, the schema, the complete form."),
    "engine": ("_engine", "About engines: whether one works."),
    "plugins": (
        "_plugins",
        "List the plugins, with what they register and what is wrong with them.",
    ),
    "tensorboard": ("_reports", "Open TensorBoard on experiments."),
    "login": ("_remote", "Sign in to a det server, which commands then act on."),
    "logout": ("_remote", "Sign out of the det server that commands act on."),
    "version": ("_plugins", "Print the versions of det, Python and the installed frameworks."),
}


_GROUPS = {
    "Train": ("run", "resume", "pause", "cancel", "search", "check", "preview", "verify", "launch"),
    "Work on slots": ("cmd", "shell", "notebook"),
    "Look": ("list", "show", "compare", "metrics", "logs", "tensorboard", "ui", "server"),
    "Keep in order": (
        "checkpoint",
        "model",
        "gc",
        "rename",
        "label",
        "note",
        "queue",
        "set",
        "rm",
        "export",
        "import",
        "sync",
        "trust",
        "migrate",
        "home",
    ),
    "Set up": (
        "login",
        "logout",
        "config",
        "alerts",
        "engine",
        "plugins",
        "version",
        "env",
        "horovod",
        "plugin",
    ),
}
"""The sections of `det --help`. Commands of other plugins come last."""
_ELSEWHERE = {
    **{
        "horovod": "det-horovod",
        "plugin": "det-testing",
        "ui": "det-web",
        "server": "det-server",
        "env": "det-env",
        "migrate": "det-migrate",
    },
    **dict.fromkeys(("experiment", "e", "trial", "t", "preview-search"), "det-compat"),
}
"""Commands of packages that may not be installed."""
_NO_EXPERIMENT = re.compile(
    r"Invalid value for '\[?EXPERIMENT[^']*': ('.*') is not a valid integer"
)
_NO_CHOICE = re.compile(r"'([^']*)' is not one of '")
_LONGEST_WORDS = 30_000
"""Of four bytes each, they are fewer than the 128 KiB that Linux takes as one word."""
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click raises for a group without a command, with the help. Before 8.2 it prints the help."""


class Commands(click.Group):
    """det's own commands, and those that plugins register."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _quiet_without_reader():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet_without_reader():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted(_settings(ctx).plugins.commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command. One that acts on experiments is executed by the chosen server."""
        command = self._own_command(ctx, cmd_name)
        name = ALIASES.get(cmd_name, cmd_name)
        if (
            command is None
            or name in HERE
            or ctx.resilient_parsing
            or not _chosen_server(ctx.params.get("master"), _settings(ctx).environ)
        ):
            return command
        return RemoteCommand(name, command)

    def _own_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        records = _settings(ctx).plugins.commands() if cmd_name not in _COMMANDS else {}
        name = cmd_name if cmd_name in records else ALIASES.get(cmd_name, cmd_name)
        if name in _COMMANDS:
            return _import_command(name)
        if name in records:
            registered: click.Command = records[name].load()
            return _expecting_text(registered)
        if name in _ELSEWHERE:
            package = _ELSEWHERE[name]
            raise DetError(
                f"det {name} comes with {package}, which is not installed; run:"
                f" {how_to_install(package)}"
            )
        if name in ("user", "u"):
            return user
        if name in INSTEAD:
            raise DetError(f"no such command {name!r}; use {INSTEAD[name]}")
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in sections from their one-line help, without importing them."""
        lines = {name: text for name, (_, text) in _COMMANDS.items()}
        lines |= {
            name: record.help for name, record in sorted(_settings(ctx).plugins.commands().items())
        }
        groups = {
            title: [name for name in names if name in lines] for title, names in _GROUPS.items()
        }
        groups["Of plugins"] = [
            name for name in lines if not any(name in names for names in _GROUPS.values())
        ]
        widest = max(map(len, lines))
        for title, names in groups.items():
            if names:
                with formatter.section(title):
                    # All sections have the same width, so that their texts are aligned.
                    formatter.write_dl([(name.ljust(widest), lines[name]) for name in names])


def _import_command(name: str) -> click.Command:
    module, _, attribute = _COMMANDS[name][0].partition(":")
    command: click.Command = getattr(
        importlib.import_module(f".{module}", __package__), attribute or name
    )
    return _expecting_text(command)


class _Text(click.types.StringParamType):
    """Refuses bytes that are no text, which nothing can store or print, except of a file's name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not os.path.lexists(value):
            try:
                value.encode()
            except UnicodeEncodeError:
                self.fail(f"{printable(value)} is not UTF-8 text", param, ctx)
        return super().convert(value, param, ctx)


def _expecting_text(command: click.Command) -> click.Command:
    """Return a command whose words must be text where they are not paths."""
    for param in command.params:
        if param.type is click.STRING:
            param.type = _Text()
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _expecting_text(each)
    return command


def parse_remote(argv: Sequence[str]) -> RemoteCall:
    """Check the words of a command that a server executes for someone else.

    Raises DetError for a command or an option that a server does not execute, and for words that
    the command does not accept.
    """
    name = argv[0] if argv else ""
    if name not in {each.partition(" ")[0] for each in READS | CHANGES | SHARED}:
        raise DetError(f"a server does not execute det {name}")
    if sum(map(len, argv)) > _LONGEST_WORDS or any("\0" in word for word in argv):
        raise DetError(
            f"the words of a command have no NUL, and {_LONGEST_WORDS} characters at most"
        )
    try:
        full, params = parse(_import_command(name), name, argv[1:])
    except ValueError as error:
        raise DetError(f"det {name}: {error}") from None
    except click.ClickException as error:
        raise DetError(_one_line(error)) from None
    return RemoteCall(full, params)


@contextlib.contextmanager
def _quiet_without_reader() -> Iterator[None]:
    """End with status 0 where the reader of the output's pipe has closed it.

    click and rich would exit with status 1.
    """
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(
            error.__context__, BrokenPipeError
        ):
            raise
        discard(sys.stdout)
        raise click.exceptions.Exit(0) from None


def _settings(ctx: click.Context) -> Settings:
    settings = ctx.find_object(Settings)
    assert settings is not None
    return settings


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="det-driver", prog_name="det")
@click.option(
    "-m",
    "--master",
    metavar="URL",
    help="Act on the det server at this address, or with '' on the home of this machine.",
)
@click.option("-u", "--user", "name", hidden=True, help="As Determined's users type it.")
@click.pass_context
def det(context: click.Context, master: str | None, name: str | None) -> None:
    """Train machine-learning models from one configuration: run, search, pause, resume.

    Experiments are kept in $DET_HOME (~/.det). Exit status: 0 completed, 1 the training failed, 2 a
    mistake in what was asked, 130 paused.
    """
    settings = _settings(context)
    context.obj = replace(settings, server=_chosen_server(master, settings.environ))


def _chosen_server(master: str | None, environ: Mapping[str, str]) -> str:
    from ..remote import chosen_server

    return chosen_server(master, environ)


class _Users(click.Group):
    """Refuses Determined's commands for users, other than those that are registered."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if found := super().get_command(ctx, cmd_name):
            return found
        raise DetError(
            f"no such command 'user {cmd_name}'; the users of a server are managed on its machine:"
            " det server user"
        )


@click.group(cls=_Users)
def user() -> None:
    """Determined's words for det login and det logout."""


@user.command()
@click.argument("name", required=False)
@click.pass_context
def login(context: click.Context, name: str | None) -> None:
    """Sign in as NAME to the server of det -m or DET_MASTER."""
    settings = _settings(context)
    if not settings.server:
        raise DetError("which server? sign in to one with: det login URL")
    sign_in(settings, settings.server, name or context.find_root().params["name"])


user.add_command(sign_out)


def main(argv: list[str] | None = None) -> Any:
    """Run `det` and exit with its status.

    A user's mistake is printed as one line on stderr, and the status is 2. A group without a
    command prints its help.
    """
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Lines are written at once in a pipe, too, and before an error. The locale may have an
            # encoding without some characters.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    with escaped():
        status, failure = 0, ""
        try:
            status = _run(argv)
        except BrokenPipeError:
            # The reader of the pipe has closed it.
            discard(sys.stdout)
        except OSError as error:
            # An error with a file name is not about the output.
            if error.filename is not None or error.errno not in _OF_OUTPUT:
                raise
            failure = error.strerror or str(error)
        failure = failure or flush()
        if failure:
            discard(sys.stdout)
            with contextlib.suppress(OSError):
                sys.stderr.write(f"det: cannot write what is printed: {failure}\n")
                sys.stderr.flush()
            status = status or 2
    sys.exit(status if isinstance(status, int) else 0)


_OF_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF, errno.EFBIG)


def _run(argv: list[str] | None) -> Any:
    """Return the exit status of a command. Errors are printed."""
    try:
        settings = replace(Settings.read(os.environ), own_commands=tuple(_COMMANDS))
        return det.main(args=argv, prog_name="det", obj=settings, standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return 130
    except _NO_COMMAND as error:
        sys.stdout.write(f"{error.format_message()}\n")
        return 0
    except click.ClickException as error:
        sys.stderr.write(f"det: {_one_line(error)}\n")
        return 2
    except DetError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"det: {line}\n")
        return 2
    except OSError as error:
        # The file system has refused a file, or the disk fails.
        if not isinstance(error.filename, (str, bytes)):
            if error.errno != errno.EAGAIN:
                raise
            # No more threads or processes can be started.
            sys.stderr.write(f"det: {error.strerror}\n")
            return 2
        refused = isinstance(error, PermissionError) and _is_below(error.filename, settings.home)
        way_out = "; choose a home of your own (DET_HOME)" if refused else ""
        sys.stderr.write(
            f"det: {os.fsdecode(error.filename)}: {(error.strerror or '').lower()}{way_out}\n"
        )
        return 2


def _is_below(path: str | bytes, home: Path) -> bool:
    return Path(os.fsdecode(path)).absolute().is_relative_to(home)


def _path(context: click.Context) -> str:
    """Return the full name of a command, without `det`."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.command.name or "")
        context = context.parent
    return " ".join(names)


def _one_line(error: click.ClickException) -> str:
    """Return a mistake in the command line as one line, with a similar name or the help to see."""
    text = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return text
    way_out = f"; see {context.command_path} --help"
    below = BELOW.get(_path(context), {})
    if isinstance(error, click.NoSuchOption):
        if instead := below.get(error.option_name):
            return f"no such option {error.option_name!r}; use {instead}"
        options = [
            name for each in context.command.params for name in (*each.opts, *each.secondary_opts)
        ]
        near = nearest(error.option_name.lstrip("-"), [name.lstrip("-") for name in options])
        meant = f"; did you mean {'--' + near!r}?" if near else way_out
        return f"no such option {error.option_name!r}{meant}"
    if isinstance(error, click.BadParameter) and (named := _NO_EXPERIMENT.fullmatch(text)):
        return f"{named[1]} is no number of an experiment; give the number from det list"
    if isinstance(error, click.BadParameter) and (chosen := _NO_CHOICE.search(text)):
        kind = error.param.type if error.param is not None else None
        choices = [*map(str, kind.choices)] if isinstance(kind, click.Choice) else []
        way_out = did_you_mean(chosen[1], choices) or way_out
    if isinstance(context.command, click.Group) and text.startswith("No such command '"):
        name = text.split("'")[1]
        if instead := below.get(name):
            return f"no such command {f'{_path(context)} {name}'!r}; use {instead}"
        known = context.command.list_commands(context)
        if context.parent is None:
            known = [*known, *ALIASES]
        return f"no such command {name!r}{did_you_mean(name, known) or way_out}"
    return f"{text[:1].lower()}{text[1:]}{way_out}"
