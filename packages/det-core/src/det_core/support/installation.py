"""How det was installed, and the command that installs another of its packages."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

CORE = "det-training-core"
"""The distribution of this package: `det-core` on PyPI is another project's."""
DISTRIBUTIONS = frozenset(
    {
        CORE,
        *("det-compat", "det-driver", "det-env", "det-estimator", "det-horovod", "det-keras"),
        *(
            "det-kubernetes",
            "det-lightning",
            "det-migrate",
            "det-node",
            "det-optuna",
            "det-ray",
            "det-server",
            "det-slurm",
            "det-testing",
        ),
        *("det-torch", "det-web"),
    }
)
"""The distributions of det. Other packages may also have names that begin with `det-`."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,\s-]+)\])?")


def own_version() -> str:
    """Return the version of this code. The metadata of an editable install may be out of date."""
    return str(import_module("det_core").__version__)


def how_to_install(
    distribution: str, extra: str | None = None, *, upgrade: bool = False, python: str = "python3"
) -> str:
    """Return the command that installs a distribution of det, from where det_core came.

    From a clone, it also installs the packages of the clone that the distribution needs and that
    are missing, as no index has them. From a repository that pip cloned by itself, the package
    comes from the same commit. Otherwise it comes from the index.
    """
    origin = _origin()
    projects = _projects(_directory(origin))
    vcs = origin.get("vcs_info")
    if vcs and distribution in DISTRIBUTIONS:
        address = _address(origin, distribution)
        # Without a name, pip also accepts `file:` URLs.
        wanted = [f"{_with(distribution, extra)} @ {address}" if extra else address]
    elif distribution in projects:
        wanted = list(dict.fromkeys(_needed(projects, distribution, extra)))
    else:
        wanted = [_with(distribution, extra)]
    options = ["--upgrade"] if upgrade else []
    return shlex.join([python, "-m", "pip", "install", *options, *wanted])


def sources(distribution: str) -> list[str]:
    """Return what pip has to be given to install a distribution of det into a new environment.

    These are the folders of it and of all that it needs in the clone, or their addresses in the
    repository, that det_core came from. The list is empty if it came from an index.
    """
    origin = _origin()
    projects = _projects(_directory(origin))
    if distribution in projects:
        return list(dict.fromkeys(_needed(projects, distribution, None, again=True)))
    if "vcs_info" in origin:
        from importlib import metadata

        needed = (_REQUIREMENT.match(text) for text in metadata.requires(distribution) or ())
        names = [found["name"] for found in needed if found and found["name"] in DISTRIBUTIONS]
        return [_address(origin, name) for name in (*names, distribution)]
    return []


def _address(origin: Mapping[str, Any], distribution: str) -> str:
    """Return pip's address of a distribution in the repository that det_core came from."""
    folder = "det-core" if distribution == CORE else distribution
    vcs = origin["vcs_info"]
    return f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}#subdirectory=packages/{folder}"


def _needed(
    projects: Mapping[str, Path], name: str, extra: str | None, *, again: bool = False
) -> Iterator[str]:
    """Yield the paths of the projects that a project needs and that are missing, then its own.

    With `again`, also those that are installed here.
    """
    import tomllib

    about = tomllib.loads((projects[name] / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    texts = [*about.get("dependencies", ()), *about.get("optional-dependencies", {}).get(extra, ())]
    for text in texts:
        found = _REQUIREMENT.match(text)
        if found and found["name"] in projects and (again or not _is_installed(found["name"])):
            yield from _needed(projects, found["name"], found["extras"], again=again)
    yield _with(str(projects[name]), extra)


def _with(what: str, extra: str | None) -> str:
    return f"{what}[{extra}]" if extra else what


def _is_installed(distribution: str) -> bool:
    from importlib import metadata

    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _projects(core: Path | None) -> dict[str, Path]:
    """Return the folders of the packages next to det_core's folder, by the distribution's name."""
    import tomllib

    found = {}
    for file in sorted(core.parent.glob("*/pyproject.toml")) if core else ():
        about = tomllib.loads(file.read_text(encoding="utf-8"))
        found[str(about.get("project", {}).get("name"))] = file.parent
    return found


def _directory(origin: Mapping[str, Any]) -> Path | None:
    """Return the directory that a `direct_url.json` names, or None if it names something else."""
    from urllib.parse import unquote, urlparse

    return Path(unquote(urlparse(origin["url"]).path)) if "dir_info" in origin else None


def _origin() -> dict[str, Any]:
    """Return what pip or uv recorded about where det_core came from.

    Empty if it came from an index.
    """
    # The module imports socket, which a script that calls nothing of this does not need.
    from importlib import metadata

    entries = metadata.entry_points(group="det", value="det_core._hooks")
    texts = [entry.dist.read_text("direct_url.json") for entry in entries if entry.dist is not None]
    found: dict[str, Any] = json.loads(next(filter(None, texts), "{}"))
    return found
