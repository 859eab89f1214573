"""`det sync`: what scripts have recorded on this machine, for a server or a home."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from det_core.errors import DetError

from ..recording import Sent, recordings, sync, wanted_recordings
from ..remote import Lost, check_address
from ..store import Store
from ._console import Settings

_PROGRESS_SECONDS = 2.0


@click.command("sync")
@click.argument("what", nargs=-1, metavar="[DIRECTORY|N]...")
@click.option(
    "--to",
    "to",
    metavar="home|URL",
    help="Where to: the home of this machine, or the server at URL. By default the server that"
    " commands act on, else the home.",
)
@click.pass_obj
def sync_(settings: Settings, what: tuple[str, ...], to: str | None) -> int:
    """Send what scripts have recorded without det run to a server, or take it into the home.

    DIRECTORY is one that DET_RECORD named, or a copy of it; N is an experiment of the home. Without
    both, everything that the home holds for the server is sent. Each record is taken up once, so
    the command may be interrupted and repeated, also while a script records.
    """
    target = _target(settings, to)
    found = [*_chosen(settings, what, target)]
    status, accepted = 0, 0
    for home, id in found:
        shown = f"experiment {id}" if home == settings.home else f"experiment {id} of {home}"
        try:
            done = sync(home, id, target, settings.environ, _Progress(shown))
        except Lost:
            raise
        except DetError as error:
            sys.stderr.write(f"det: {shown} is not taken up: {error}\n")
            status = 2
            continue
        there = "" if isinstance(target, Path) else f" of {target}"
        if done.is_here or not (done.sent.reports or done.sent.checkpoints):
            sys.stdout.write(f"{shown} is experiment {done.experiment}{there} already\n")
            continue
        accepted += 1
        sys.stdout.write(
            f"{shown} is experiment {done.experiment}{there}: {_described(done.sent)} taken up\n"
        )
    if len(found) != 1:
        where = settings.home if isinstance(target, Path) else target
        sys.stdout.write(f"{accepted} of {len(found)} recordings had something new for {where}\n")
    return status


def _target(settings: Settings, to: str | None) -> Path | str:
    if to == "home":
        return settings.home
    if to is not None:
        if "/" not in to and "." not in to and ":" not in to:
            raise DetError(f"--to is {to!r}; give home, or the address of a server")
        return check_address(to, insecure=True)
    return settings.server or settings.home


def _chosen(
    settings: Settings, what: tuple[str, ...], target: Path | str
) -> Iterator[tuple[Path, int]]:
    """Yield the homes and numbers of the recordings that are meant."""
    if not what:
        if isinstance(target, Path):
            raise DetError(
                "which recordings? give a directory that DET_RECORD named, or sign in to the server"
                " that is to have those of this home: det login URL"
            )
        for id in wanted_recordings(settings.home, target):
            yield settings.home, id
    for word in dict.fromkeys(what):
        place = Path(word).absolute()
        if word.isascii() and word.isdecimal() and not place.is_dir():
            if target == settings.home:
                raise DetError(
                    f"experiment {word} is in the home {settings.home} already; name a server:"
                    " --to URL"
                )
            yield settings.home, int(word)
            continue
        if not place.is_dir():
            raise DetError(f"{word} is no directory, and no number of an experiment")
        ids = recordings(place) if Store.is_at(place) else []
        if not ids:
            raise DetError(
                f"{word} has no recordings; give the directory that DET_RECORD named, or a copy of"
                " it"
            )
        for id in ids:
            yield place, id


class _Progress:
    """Prints how much is taken up, now and then, on a terminal."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._due = time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, sent: Sent) -> None:
        if sys.stderr.isatty() and time.monotonic() > self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            sys.stderr.write(f"{self._shown}: {_described(sent)} so far\n")


def _described(sent: Sent) -> str:
    reports = f"{sent.reports:,} report{'s' * (sent.reports != 1)}"
    if not sent.checkpoints:
        return reports
    return f"{reports} and {sent.checkpoints:,} checkpoint{'s' * (sent.checkpoints != 1)}"
