"""`det plugins`."""

from __future__ import annotations

from importlib import metadata

import click

from ._output import as_json, print_json, print_table
from ._settings import Settings


@click.command()
@as_json
@click.pass_obj
def plugins(settings: Settings, as_json: bool) -> None:
    """List the plugins: what each registers, whether what it requires is there, what is wrong with it."""
    found = settings.plugins
    needs = {name: unmet(record.requires) for name, record in found.frameworks().items()}
    rows = [
        {
            "name": info.name,
            "distribution": f"{info.distribution} {info.version}".strip(),
            "hooks": [hook.removeprefix("det_") for hook in info.hooks],
            "problem": info.problem or "; ".join(needs.get(info.name, ())),
        }
        for info in found.infos
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("plugin", "distribution", "registers", "problem"),
        [(row["name"], row["distribution"], " ".join(row["hooks"]), row["problem"]) for row in rows],
    )


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
