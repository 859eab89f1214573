"""The question before an experiment goes on with other code."""

from __future__ import annotations

from pathlib import Path

import click

MOST_LINES = 60
"""The most lines of a code diff that are shown before the question."""


def ask_for_code(old: Path, new: Path, experiment: int) -> None:
    """Show the difference and ask whether to continue.

    Raises click.Abort for no, or where nobody can answer.
    """
    from ..provenance import diff

    changed = diff(old, new).splitlines()
    for line in changed[:MOST_LINES]:
        click.echo(line, err=True)
    if len(changed) > MOST_LINES:
        click.echo(f"... {len(changed) - MOST_LINES} more lines", err=True)
    question = (
        f"go on with experiment {experiment} with this code (--yes does not ask)?"
        if changed
        else "nothing has changed; go on?"
    )
    click.confirm(question, abort=True, err=True)
