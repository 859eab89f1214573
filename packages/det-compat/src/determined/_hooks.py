"""Registers Determined's commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from det_core import CommandRecord, hookimpl

if TYPE_CHECKING:
    import click

_WORDS = (
    (
        "experiment",
        "experiment",
        "Determined's words for experiments: create, list, describe, logs, pause, activate, ...",
    ),
    ("e", "experiment", "Short for experiment."),
    ("trial", "trial", "Determined's words for trials: describe, logs, download."),
    ("t", "trial", "Short for trial."),
    ("preview-search", "preview_search", "Determined's word for preview."),
)


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    for name, command, line in _WORDS:
        yield CommandRecord(name=name, load=_loader(command), help=line)


def _loader(name: str) -> Callable[[], click.Command]:
    def load() -> click.Command:
        from . import _commands

        command: click.Command = getattr(_commands, name)
        return command

    return load
