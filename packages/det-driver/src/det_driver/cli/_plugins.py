"""`det plugins` and `det version`: what is installed.

Each plugin is imported in a process of its own, as frameworks may conflict. `python -m
det_driver.cli._plugins PLUGIN` tries one, and prints a JSON list of problems on its last line.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import click
from packaging.requirements import Requirement

from det_core.hooks import OURS, PluginInfo, Plugins
from det_core.support.installation import CORE, DISTRIBUTIONS, how_to_install, own_version

from ._console import Settings, as_json, print_json
from ._table import print_table

_LOAD_SECONDS = 120.0
_SLOW_SECONDS = 1.0


@click.command()
@click.option(
    "--no-load",
    is_flag=True,
    help="Do not try to import what they register, which takes as long as that does.",
)
@as_json
@click.pass_obj
def plugins(settings: Settings, no_load: bool, as_json: bool) -> None:
    """List the plugins: what each registers, whether its requirements are met, what is wrong.

    What they register is imported in processes of their own. An observer that raised in the last
    experiment is named.
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
        [
            (row["name"], row["distribution"], " ".join(row["hooks"]), row["problem"])
            for row in rows
        ],
        {"plugin": 0, "problem": 1, "distribution": 2, "registers": 3},
    )


def _problems(
    settings: Settings, found: Plugins, *, load: bool
) -> Iterator[tuple[PluginInfo, list[str]]]:
    """Yield each plugin with its problems. One with a known reason not to import is not tried."""
    sound = [info for info in found.infos if not info.problem]
    needs = {info.name: _unmet(found, info.name) for info in sound}
    tried = [
        info.name
        for info in sound
        if load
        and info.distribution not in OURS
        and not needs[info.name]
        and any(found.imports(info.name))
    ]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
        failing = dict(zip(tried, threads.map(_tried, tried), strict=True))
    for info in found.infos:
        more = [
            *needs.get(info.name, ()),
            *failing.get(info.name, ()),
            *settings.observers.of(info.name),
        ]
        if info.seconds > _SLOW_SECONDS:
            more.append(
                f"its import takes {info.seconds:.1f} s, which every command waits for; import what"
                " is slow in functions, not in its hooks or in its package's __init__.py"
            )
        yield info, [info.problem] if info.problem else more


def _unmet(found: Plugins, plugin: str) -> list[str]:
    """Return a sentence for each requirement of a plugin's frameworks that is not satisfied."""
    problems = []
    for text in (text for record in found.frameworks_of(plugin) for text in record.requires):
        requirement = Requirement(text)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            ours = requirement.name in DISTRIBUTIONS
            install = how_to_install(requirement.name) if ours else f"pip install '{text}'"
            problems.append(f"requires {text}, which is not installed: {install}")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"requires {text}, but {requirement.name} {version} is installed")
    return problems


@click.command()
@as_json
@click.pass_obj
def version(settings: Settings, as_json: bool) -> None:
    """Print the versions of det, Python and what the frameworks' plugins require.

    Nothing is imported for it.
    """
    rows = {CORE: own_version(), "python": platform.python_version()}
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


def _tried(plugin: str) -> list[str]:
    """Return a sentence for each record of a plugin that does not load."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name, plugin],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"what it registers does not load within {_LOAD_SECONDS:g} s"]
    if done.returncode:
        number = -done.returncode
        how = signal.Signals(number).name if number > 0 else f"status {done.returncode}"
        return [f"loading what it registers ends the process with {how}"]
    problems: list[str] = json.loads(done.stdout.splitlines()[-1])
    return problems


def _try(plugin: str) -> None:
    """Load what a plugin registers, print the problems, and exit."""
    problems = []
    for what, load in Plugins.installed(warn=lambda message: None).imports(plugin):
        try:
            load()
        except (Exception, SystemExit) as error:
            problems.append(
                f"the {what} does not load: {type(error).__name__}: {' '.join(str(error).split())}"
            )
    sys.stdout.write(f"\n{json.dumps(problems)}\n")
    sys.stdout.flush()
    # Frameworks take seconds to exit normally.
    os._exit(0)


if __name__ == "__main__":
    _try(sys.argv[1])
