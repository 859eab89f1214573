"""`det plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

import click

from ._loads import failing_loads
from ._output import as_json, print_json, print_table
from ._settings import Settings

if TYPE_CHECKING:
    from det_core.plugins import PluginInfo, Plugins


@click.command()
@click.option(
    "--no-load", is_flag=True, help="Do not try to import what they register, which takes as long as that does."
)
@as_json
@click.pass_obj
def plugins(settings: Settings, no_load: bool, as_json: bool) -> None:
    """List the plugins: what each registers, whether what it requires is there, what is wrong with it.

    What they register is imported in processes of their own. An observer that raised in the last experiment is named.
    """
    found = settings.plugins
    rows = [
        {
            "name": info.name,
            "distribution": f"{info.distribution} {info.version}".strip(),
            "hooks": [hook.removeprefix("det_") for hook in info.hooks],
            "problem": "; ".join(problems),
        }
        for info, problems in _problems(settings, found, load=not no_load)
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("plugin", "distribution", "registers", "problem"),
        [(row["name"], row["distribution"], " ".join(row["hooks"]), row["problem"]) for row in rows],
    )


def _problems(settings: Settings, found: Plugins, *, load: bool) -> Iterator[tuple[PluginInfo, list[str]]]:
    """Yield each plugin with what is wrong with it; what cannot be imported for a known reason is not tried."""
    from det_core.plugins import OURS

    needs = {info.name: _unmet_needs(found, info.name) for info in found.infos if not info.problem}
    tried = [
        info.name
        for info in found.infos
        if load and info.distribution not in OURS and needs.get(info.name) == [] and any(found.imports(info.name))
    ]
    failing = failing_loads(tried)
    for info in found.infos:
        more = [*needs.get(info.name, ()), *failing.get(info.name, ()), *settings.observers.of(info.name)]
        yield info, [info.problem] if info.problem else more


def _unmet_needs(found: Plugins, plugin: str) -> list[str]:
    return [problem for record in found.frameworks_of(plugin) for problem in unmet(record.requires)]


def unmet(requires: tuple[str, ...]) -> list[str]:
    """Return a sentence for each requirement that is not installed in a fitting version."""
    from packaging.requirements import Requirement

    problems = []
    for text in requires:
        requirement = Requirement(text)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            problems.append(f"requires {text}, which is not installed: pip install '{text}'")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"requires {text}, but {requirement.name} {version} is installed")
    return problems
