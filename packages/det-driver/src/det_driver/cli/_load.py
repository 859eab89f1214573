"""Reading a configuration for a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._settings import Settings

if TYPE_CHECKING:
    from det_core.config import Loaded

overrides = click.option(
    "--config",
    "-c",
    "override",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the configuration, such as hyperparameters.lr=0.1; may be repeated.",
)
template = click.option(
    "--template", type=click.Path(path_type=Path), help="A YAML file of defaults, which CONFIG is merged over."
)


def load_config(settings: Settings, path: Path, override: tuple[str, ...], template: Path | None) -> Loaded:
    """Read and validate a configuration; print its notices on stderr."""
    from det_core.config import load
    from det_core.extensions import extensions_of

    loaded = load(path, template=template, overrides=override, extensions=extensions_of(settings.plugins))
    for notice in loaded.notices:
        sys.stderr.write(f"det: {notice}\n")
    return loaded
