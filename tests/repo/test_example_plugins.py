"""The plugins in examples/plugins are what a stranger could have published.

Whole packages on public names alone.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.distributions import lay_out_project, on_path

PLUGINS = sorted(
    path.parent
    for path in (Path(__file__).parents[2] / "examples/plugins").glob("*/pyproject.toml")
)
HEAVY = ("jax", "keras", "lightning", "mlflow", "numpy", "optax", "tensorflow", "torch")
NEEDS = {"det-jax": "optax", "det-mlflow": "mlflow", "det-numpy": "numpy"}

each = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)


def about(plugin: Path) -> dict:
    return tomllib.loads((plugin / "pyproject.toml").read_text(encoding="utf-8"))


def run(plugin: Path, site: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the plugin installed in `site`."""
    env = {**os.environ, **on_path(lay_out_project(site, plugin)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *argv],
        cwd=plugin,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.process
@each
def test_it_passes_its_own_tests(plugin: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[plugin.name])
    done = run(plugin, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr


@each
def test_it_imports_public_names_of_core_only(plugin: Path) -> None:
    private = []
    for path in plugin.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules += [f"{node.module}.{alias.name}" for alias in node.names]
            private += [
                f"{path.name}:{node.lineno}: {m}"
                for m in modules
                if re.match(r"det_core\b.*\._", m)
            ]
    assert private == []


@pytest.mark.process
@each
def test_its_hook_module_imports_nothing_heavy(plugin: Path, tmp_path: Path) -> None:
    (entry,) = about(plugin)["project"]["entry-points"]["det"].values()
    module = entry.partition(":")[0]
    done = run(
        plugin,
        tmp_path,
        "-c",
        f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])",
    )
    assert done.stdout.strip() == "[]", done.stderr


@each
def test_it_is_an_ordinary_package(plugin: Path) -> None:
    project, groups = about(plugin)["project"], about(plugin)["dependency-groups"]
    assert project["name"] == plugin.name
    assert project["license"] == "Apache-2.0"
    assert [need for need in project["dependencies"] if not re.search(r">=", need)] == []
    assert "det-training-core>=0.1,<0.2" in project["dependencies"]
    assert any(need.startswith("pytest") for need in groups["test"])
    tests = "".join(
        path.read_text(encoding="utf-8") for path in plugin.rglob("*.py") if "tests" in path.parts
    )
    used = [house for house in ("det-driver", "det-testing") if house.replace("-", "_") in tests]
    assert [need for need in groups["test"] if need.startswith("det-")] == [f"{used[-1]}>=0.1,<0.2"]
    assert (plugin / "README.md").read_text(encoding="utf-8").startswith(f"# {plugin.name}\n")
    assert (plugin / "src" / plugin.name.replace("-", "_") / "py.typed").is_file()


def test_the_smallest_has_fewer_than_a_hundred_lines() -> None:
    (plugin,) = (plugin for plugin in PLUGINS if plugin.name == "det-numpy")
    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in (plugin / "src").rglob("*.py")
    )
    assert lines < 100
