"""Commands and options of Determined that det does not have, and what to use instead."""

from __future__ import annotations

from typing import ClassVar

import click

from det_core.errors import DetError

_NO_PROJECTS = "labels: det label N LABEL"
_OF_LOGS = {
    "--head": "det logs N --trial TRIAL | head",
    **dict.fromkeys(
        ("--timestamp-before", "--timestamp-after"),
        "det logs N --trial TRIAL, whose lines begin with their time",
    ),
    **dict.fromkeys(("--rank-id", "--container-id"), "det logs N --rank RANK"),
    **dict.fromkeys(
        ("--level", "--source", "--stdtype"),
        "det logs N | grep: a log is what the processes wrote",
    ),
    "--json": "det logs N, whose lines begin with their time and process",
}
_PAGES = ("--limit", "--offset", "--pages")
_ORDER = ("--sort-by", "--order-by")

INSTEAD = {
    "experiment fork": "det run CONFIG with searcher.source_trial_id",
    "experiment move": _NO_PROJECTS,
    "experiment list-files": "det e download-model-def N",
    "experiment edit": "det rename N NAME, det note N TEXT and det label N LABEL",
    "experiment set gc-policy": (
        "checkpoint_storage in the configuration, and det checkpoint delete UUID"
    ),
    "experiment set log-retention": "det rm N, which deletes its logs with all else",
    "experiment delete-tb-files": "det rm N, which deletes them with all else",
    "trial set": "det rm N, which deletes its logs with all else",
    "trial support-bundle": "det export N FILE",
    "trial list-checkpoints": "det t describe TRIAL, which lists them",
}
"""Determined's commands, and what to use instead."""

OPTIONS = {
    "experiment list": {
        "--show_parameters": "det show N, which has a column for each hyperparameter",
        "--show_project": _NO_PROJECTS,
        "--csv": "--json",
        **dict.fromkeys(_PAGES, "det list --limit N"),
        **dict.fromkeys(_ORDER, "det list --sort COLUMN"),
    },
    "experiment list-trials": {
        "--csv": "--json",
        **dict.fromkeys(_PAGES, "det show N --limit M"),
        **dict.fromkeys(_ORDER, "det show N --sort COLUMN"),
    },
    "experiment logs": {**_OF_LOGS, "--head": "det logs N, and the shell's head"},
    "experiment download": {
        **dict.fromkeys(
            ("--top-n", "--sort-by", "--smaller-is-better", "--trials"),
            "det checkpoint list N, and det checkpoint export UUID DIRECTORY",
        ),
        "--mode": "nothing: files come from where they are stored",
    },
    "experiment list-checkpoints": {
        "--best": "det checkpoint list N, the best ones first",
        "--csv": "--json",
    },
    "experiment describe": {
        "--metrics": "det metrics N",
        "--csv": "--json",
        "--outdir": "det metrics N --csv > FILE",
    },
    "experiment continue": {
        "--config": (
            "det run CONFIG with searcher.source_trial_id: the configuration of an experiment does"
            " not change"
        ),
        "--config-file": (
            "det run CONFIG with searcher.source_trial_id: the configuration of an experiment does"
            " not change"
        ),
    },
    "experiment create": {
        **dict.fromkeys(
            ("--git", "--git-remote", "--git-commit", "--git-branch"),
            "a clone of it: det run CONFIG DIRECTORY, which records the commit",
        ),
        "-p": "the port itself: without a container it is the machine's",
        "--publish": "the port itself: without a container it is the machine's",
    },
    "trial describe": {"--csv": "det metrics N --trial TRIAL --csv", "--json": "det show N --json"},
    "trial logs": _OF_LOGS,
    "trial download": {"--mode": "nothing: files come from where they are stored"},
}
"""Options of Determined's commands, and what to use instead."""


class Word(click.Command):
    """A command that says what to use instead of an option which only Determined has."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            found = OPTIONS.get(_path(ctx), {}).get(error.option_name)
            if found is None:
                raise
            raise DetError(f"no such option {error.option_name!r}; use {found}") from None


class Words(click.Group):
    """A group that says what to use instead of a command which only Determined has."""

    command_class = Word
    aliases: ClassVar[dict[str, str]] = {
        "ls": "list",
        "lt": "list-trials",
        "lc": "list-checkpoints",
    }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name) or super().get_command(
            ctx, self.aliases.get(cmd_name, cmd_name)
        )
        name = f"{_path(ctx)} {cmd_name}"
        if found is None and name in INSTEAD:
            raise DetError(f"no such command {name!r}; use {INSTEAD[name]}")
        return found


def _path(ctx: click.Context) -> str:
    """Return a command's full name in Determined, with those of its groups."""
    names: list[str] = []
    context: click.Context | None = ctx
    while context is not None and context.parent is not None:
        names.insert(0, context.command.name or "")
        context = context.parent
    return " ".join(names)
