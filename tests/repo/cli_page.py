"""Writes docs/reference/cli.md from the commands' own help: python tests/repo/cli_page.py."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from det_core.hooks import OURS, Plugins, discover
from det_driver.cli import Settings
from det_driver.cli._main import det
from det_node.launch import parser

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
HEAD = """\
# Command line

`det COMMAND --help` says what this page says. Every command works on the store in `$DET_HOME` (`~/.det`).

| exit status | meaning |
|---|---|
| 0 | it was done; the experiment completed |
| 1 | the training failed, or was canceled; a traceback is that of your code; with `det check --strict`, a rule is broken |
| 2 | a mistake in what was asked, in one line; nothing was started |
| 130 | the experiment was paused |

Commands that take `--json` print JSON on the standard output, for programs; what people should read goes to the standard error.
Numbers that JSON has not are text: `"NaN"`, `"Infinity"`, `"-Infinity"`. In a terminal `det run` and `det resume` redraw a table,
elsewhere they print a line for each thing that happens, with `--json` [an event](events.md), with `--quiet` what was learnt.
`NO_COLOR=1` leaves out colours. Completion in the shell, of the numbers of experiments, too:
`eval "$(_DET_COMPLETE=bash_source det)"` (or `zsh_source`, `fish_source`).

`det ui` and `det report` come with det-web, `det server` with det-server, `det env` with det-env, `det horovod` with det-horovod, `det migrate` with
det-migrate, and `det plugin` with det-testing. Commands that other plugins register with [`det_commands`](../hooks.md) are
listed by `det --help`.
"""
WITH_COMMANDS = ("det-env", "det-horovod", "det-migrate", "det-server", "det-testing", "det-web")


class Builtin(Plugins):
    """The plugins of core, and ours that have commands.

    So the page does not depend on what else is installed.
    """

    @classmethod
    def here(cls) -> Plugins:
        plugins = cls()
        plugins.load(found for found in discover() if found.distribution in (*OURS, *WITH_COMMANDS))
        return plugins


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command of core with its full name, groups before what is in them."""
    settings = Settings.read({})
    settings.__dict__["plugins"] = Builtin.here()
    yield from _below("det", det, click.Context(det, info_name="det", obj=settings))


def _below(
    name: str, command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield name, command, context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _below(
                f"{name} {child}", found, click.Context(found, info_name=child, parent=context)
            )


def options(command: click.Command) -> list[click.Option]:
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]


def render() -> str:
    parts = [HEAD]
    for name, command, context in commands():
        if name == "det":
            continue
        if name == "det launch":
            parts += _launch(parser(name))
            continue
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        listed = [option for option in options(command) if option.name != "version"]
        parts += _section(name, usage, inspect.cleandoc(command.help or ""), map(_row, listed))
    return "\n".join(parts)


def _launch(read: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the section of the command whose options are read without click."""
    rows = [
        f"| {', '.join(f'`{name} {option.metavar}`' if option.metavar else f'`{name}`' for name in option.option_strings)}"
        f" | {option.help} |"
        for option in launch_options(read)
    ]
    assert read.usage is not None
    text = "\n\n".join(textwrap.fill(part or "", 120) for part in (read.description, read.epilog))
    yield from _section(read.prog, read.usage, text, rows)


def launch_options(read: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in read._actions if action.option_strings and action.dest != "help"]


def _section(name: str, usage: str, text: str, rows: Iterable[str]) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"`{usage}`\n"
    yield f"{text}\n"
    listed = list(rows)
    if listed:
        yield "\n".join(["| option | meaning |", "|---|---|", *listed]) + "\n"


def _row(option: click.Option) -> str:
    names = [*option.opts, *option.secondary_opts]
    value = (
        ""
        if option.is_flag
        else " " + (option.metavar or option.type.name.upper().removesuffix(" RANGE"))
    )
    default = f" Default: {option.default}." if option.show_default else ""
    return f"| {', '.join(f'`{name}{value}`' for name in names)} | {option.help or ''}{default} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
