"""Registers `det ui`. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name

from det_core import CommandRecord, hookimpl


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    load = partial(resolve_name, "det_web.command:ui")
    report = partial(resolve_name, "det_web.report:report")
    yield CommandRecord(
        name="report",
        load=report,
        help="Write what came of an experiment into one HTML file to send.",
    )
    yield CommandRecord(
        name="ui", load=load, help="Open the page: experiments, trials, curves and logs, live."
    )
