"""`det config`: about configurations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ._load import load_config, overrides, template
from ._settings import Settings


@click.group()
def config() -> None:
    """About configurations: the schema, the complete form."""


@config.command()
@click.option("--indent", type=int, default=2, show_default=True, help="Spaces for each level.")
def schema(indent: int) -> None:
    """Print the JSON Schema of configurations, for editors."""
    from det_core.config import schema as make

    sys.stdout.write(json.dumps(make(), indent=indent) + "\n")


@config.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@overrides
@template
@click.pass_obj
def show_(settings: Settings, path: Path, override: tuple[str, ...], template: Path | None) -> None:
    """Print the configuration PATH in its complete form, defaults filled in, secrets masked."""
    from det_core.config import to_yaml

    sys.stdout.write(to_yaml(load_config(settings, path, override, template).config, masked=True))
