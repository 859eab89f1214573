"""The group of commands: each is imported when it is called, so that `det --help` stays quick."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from det_core.errors import DetError, did_you_mean, nearest

from ._console import Settings

_COMMANDS = {
    "run": ("_run", "Train an experiment: a configuration and the code beside it."),
    "resume": ("_run", "Go on with an experiment that was paused, killed or blocked."),
    "pause": ("_run", "Checkpoint an experiment's trials and pause it."),
    "cancel": ("_run", "Checkpoint an experiment's trials and end it for good."),
    "list": ("_experiments:list_", "List the experiments."),
    "show": ("_show", "Show an experiment and its trials."),
    "compare": ("_show", "Put experiments beside each other."),
    "logs": ("_reports", "Print what a trial's processes wrote."),
    "metrics": ("_reports", "Print what trials reported."),
    "checkpoint": ("_checkpoint", "List, show, export or delete checkpoints."),
    "gc": ("_checkpoint", "Delete the checkpoints that ended experiments do not keep, where that was interrupted."),
    "preview": ("_preview", "Simulate a search: how many trials reach which length, and how long it takes."),
    "rename": ("_experiments", "Call an experiment by another name."),
    "label": ("_experiments", "Give an experiment labels, or take them away."),
    "note": ("_experiments", "Say something of an experiment."),
    "rm": ("_experiments", "Delete experiments and what came of them."),
    "export": ("_experiments", "Write an experiment to one file."),
    "import": ("_experiments:import_", "Take over an experiment from a file."),
    "home": ("_experiments", "About the home: mend its index."),
    "launch": ("_run", "Start the ranks of a script on this or several hosts."),
    "check": ("_config", "Validate a configuration and train one batch of its trial."),
    "verify": ("_verify", "Train a trial again, and compare metrics and weights."),
    "config": ("_config", "About configurations: a first one, the schema, the complete form."),
    "engine": ("_engine", "About engines: whether one works."),
    "plugins": ("_plugins", "List the plugins, with what they register and what is wrong with them."),
    "tensorboard": ("_reports", "Open TensorBoard on experiments."),
    "version": ("_plugins", "Print the versions of det, Python and the installed frameworks."),
}


_ELSEWHERE = {"horovod": "det-horovod", "plugin": "det-testing"}
"""Commands of packages that may not be installed."""
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What a bare group raises, with its help; before click 8.2 it printed that itself."""


class Commands(click.Group):
    """det's own commands, and those that plugins register."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted(_settings(ctx).plugins.commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(f".{module}", __package__), attribute or cmd_name)
            return command
        records = _settings(ctx).plugins.commands()
        if cmd_name not in records and cmd_name in _ELSEWHERE:
            package = _ELSEWHERE[cmd_name]
            raise DetError(f"det {cmd_name} comes with {package}, which is not installed; run: pip install {package}")
        return records[cmd_name].load() if cmd_name in records else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from their one-line help, importing none of them."""
        rows = [(name, text) for name, (_, text) in _COMMANDS.items()]
        rows += [(name, record.help) for name, record in sorted(_settings(ctx).plugins.commands().items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _settings(ctx: click.Context) -> Settings:
    settings = ctx.find_object(Settings)
    assert settings is not None
    return settings


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="det-driver", prog_name="det")
def det() -> None:
    """Train machine-learning models from one configuration: run, search, pause, resume.

    Experiments are kept in $DET_HOME (~/.det). Exit status: 0 completed, 1 the training failed, 2 a mistake in what was
    asked, 130 paused.
    """


def main(argv: list[str] | None = None) -> Any:
    """Run `det`; a mistake of the user's is one line on stderr and status 2, a group without a command prints its help."""
    settings = Settings.read(os.environ)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            line_buffering=True
        )  # in a pipe, too, lines come when they are said, and before an error
    try:
        status = det.main(args=argv, prog_name="det", obj=settings, standalone_mode=False)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.Abort:
        status = 130
    except _NO_COMMAND as error:
        sys.stdout.write(f"{error.format_message()}\n")
        status = 0
    except click.ClickException as error:
        sys.stderr.write(f"det: {_one_line(error)}\n")
        status = 2
    except DetError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"det: {line}\n")
        status = 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left; nothing more to say
        status = 0
    sys.exit(status if isinstance(status, int) else 0)


def _one_line(error: click.ClickException) -> str:
    """Say what is wrong with the command line, and what was meant, or which help says what would be right."""
    text = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return text
    way_out = f"; see {context.command_path} --help"
    if isinstance(error, click.NoSuchOption):
        options = [name for each in context.command.params for name in (*each.opts, *each.secondary_opts)]
        near = nearest(error.option_name.lstrip("-"), [name.lstrip("-") for name in options])
        meant = f"; did you mean {'--' + near!r}?" if near else way_out
        return f"no such option {error.option_name!r}{meant}"
    if isinstance(context.command, click.Group) and text.startswith("No such command '"):
        name = text.split("'")[1]
        return f"no such command {name!r}{did_you_mean(name, context.command.list_commands(context)) or way_out}"
    return f"{text[:1].lower()}{text[1:]}{way_out}"
