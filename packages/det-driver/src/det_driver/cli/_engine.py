"""Where runs are executed, as the command line asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ._settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
LOCAL, IN_PROCESS = "local", "in-process"


def engine_options(command: F) -> F:
    """Add `--in-process` and `--engine`."""
    command = click.option(
        "--engine", metavar="NAME", help="Execute runs by the engine of this name, which a plugin registers."
    )(command)
    return click.option(
        "--in-process", is_flag=True, help="Train in this process, one trial at a time: for a debugger."
    )(command)


def chosen_engine(settings: Settings, *, engine: str | None, in_process: bool, in_background: bool) -> str:
    """Return the engine's name, once it is known that there is one. Raises PluginError for another name."""
    if in_background and in_process:
        raise click.UsageError("--detach and --in-process contradict each other; choose one")
    if engine and in_process:
        raise click.UsageError("--engine and --in-process contradict each other; choose one")
    name = engine or (IN_PROCESS if in_process else LOCAL)
    return settings.plugins.engines()[name].name
