"""`det run --bind HOST:CONTAINER`: links for paths of a container, for trials without one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from det_core.errors import DetError
from det_core.support.paths import expand_user


def link_paths(pairs: Iterable[str]) -> None:
    """Create a link from each container path to its host path, and print a note.

    Existing links to the same path are left. Raises UsageError for an invalid pair, and DetError
    where something else exists or the link cannot be created.
    """
    for pair in pairs:
        host, container = _parsed(pair)
        if container.exists() and host.samefile(container):
            continue
        if os.path.lexists(container):
            raise DetError(
                f"--bind {pair}: {container} is there already, and is not {host}; move it, or set"
                " environment.container"
            )
        try:
            container.parent.mkdir(parents=True, exist_ok=True)
            container.symlink_to(host, target_is_directory=host.is_dir())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DetError(
                f"--bind {pair}: the link {container} cannot be made: {reason}; have it made once"
                f" with: sudo ln -s {host} {container}, or set environment.container"
            ) from None
        sys.stderr.write(
            f"det: {container} is a link to {host} now, and stays; remove it with: rm {container}\n"
        )


def _parsed(pair: str) -> tuple[Path, Path]:
    host, _, container = pair.partition(":")
    if not host or not Path(container).is_absolute():
        raise click.UsageError(
            f"--bind is {pair!r}; give a path of this machine and an absolute one, as"
            " /home/me/data:/data"
        )
    if not expand_user(host).exists():
        raise click.UsageError(f"--bind {pair}: there is no {host}")
    return expand_user(host).absolute(), Path(container)
