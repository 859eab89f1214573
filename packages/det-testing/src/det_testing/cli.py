"""`det plugin`: about plugins of one's own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from det_core.errors import DetError
from det_driver.cli import Settings

from .scaffold import KINDS, Names, write_plugin


@click.group()
def plugin() -> None:
    """About plugins of your own."""


@plugin.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(list(KINDS)), required=True, help="What it brings: " + ", ".join(KINDS) + ".")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where its directory is made; here by default.",
)
@click.pass_obj
def new(settings: Settings, name: str, kind: str, directory: Path) -> None:
    """Write a complete package for a plugin NAME, which passes its own tests as it is.

    It is called det-NAME, with an entry point, hooks, a skeleton that works, a conformance test, a nox file and a README.
    """
    names = Names.of(name)
    _check_free(settings, names, kind)
    written = write_plugin(names, kind, directory)
    root = directory / names.distribution
    for file in written:
        sys.stdout.write(f"{file}\n")
    path = shlex.quote(str(root) if root.is_absolute() else f"./{root}")
    sys.stdout.write(
        f"\nit works as it is:\n  python3 -m pip install -e {path} det-testing\n  cd {path} && python3 -m pytest\n"
    )


def _check_free(settings: Settings, names: Names, kind: str) -> None:
    """Refuse a name under which something is registered that could not be there together with the new plugin."""
    plugins = settings.plugins
    for info in plugins.infos:
        if info.name == names.name:
            raise DetError(f"a plugin {names.name!r} is installed already, by {info.distribution}; give another name")
    registered: dict[str, Mapping[str, object]] = {
        "framework": plugins.frameworks(),
        "searcher": plugins.searchers(),
        "storage": plugins.storages(),
        "engine": plugins.engines(),
        "observer": plugins.plugin_configs(),
    }
    if names.name in registered[kind]:
        raise DetError(f"the {kind} {names.name!r} is registered already; give another name")
