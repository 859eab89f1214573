"""`det launch`: start the ranks of a script; the options are read where training runs, in `det_core.launch`."""

from __future__ import annotations

import click

from ._settings import Settings


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
