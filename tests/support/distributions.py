"""Distributions that tests install by laying them out in a directory on Python's path."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path


def lay_out(
    site: Path,
    name: str,
    *,
    version: str = "1.0",
    entry_points: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
    modules: Mapping[str, str] | None = None,
) -> Path:
    """Install a distribution of the given modules, by name and source, as pip leaves one behind.

    Return `site`.
    """
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    )
    (about / "entry_points.txt").write_text(
        "[det]\n" + "".join(f"{key} = {value}\n" for key, value in (entry_points or {}).items())
    )
    for module, source in (modules or {}).items():
        file = site / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return site


def lay_out_project(site: Path, project: Path) -> Path:
    """Install a project from its source tree, so that what it imports is what lies there.

    Return `site`.
    """
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lay_out(
        site,
        about["name"],
        version=about["version"],
        entry_points=about["entry-points"]["det"],
        requires=tuple(about["dependencies"]),
    )
    for package in (project / "src").iterdir():
        if (package / "__init__.py").is_file():
            (site / package.name).symlink_to(package.absolute())
    return site


def on_path(*sites: Path) -> dict[str, str]:
    """Return the environment variable that puts directories on the path of a process."""
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([*map(str, sites), *([before] if before else [])])}
