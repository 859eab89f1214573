"""`det version`."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from ._output import as_json, print_json, print_table
from ._settings import Settings


@click.command()
@as_json
@click.pass_obj
def version(settings: Settings, as_json: bool) -> None:
    """Print the versions of det, Python and what the frameworks' plugins require; nothing is imported for it."""
    from packaging.requirements import Requirement

    rows = {"det-core": metadata.version("det-core"), "python": platform.python_version()}
    for info in settings.plugins.infos:
        if info.version and info.distribution not in rows:
            rows[info.distribution] = info.version
    for framework in settings.plugins.frameworks().values():
        for text in framework.requires:
            name = Requirement(text).name
            try:
                rows[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                rows[name] = "not installed"
    if as_json:
        print_json(rows)
    else:
        print_table(("package", "version"), list(rows.items()))
