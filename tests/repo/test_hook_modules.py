"""Every process of det imports the hook modules of all that is installed: they must be light."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT = """
import importlib, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(*(set(sys.modules) - before))
"""


def hook_modules() -> list[str]:
    """Return what each package's metadata registers with det."""
    found = []
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found += [
            each.partition(":")[0]
            for each in project.get("entry-points", {}).get("det", {}).values()
        ]
    return found


def test_each_package_registers_a_hook_module() -> None:
    """Without one, the test below would not see the package."""
    packages = {
        path.name for path in ROOT.glob("packages/*/src/*") if (path / "__init__.py").exists()
    }
    assert {name.partition(".")[0] for name in hook_modules()} == packages


@pytest.mark.process
@pytest.mark.parametrize("name", hook_modules())
def test_a_hook_module_loads_det_core_and_its_own_package_only(name: str) -> None:
    own = name.partition(".")[0]
    if find_spec(own) is None:
        pytest.skip(f"{own} is not installed")
    command = [sys.executable, "-P", "-c", IMPORT, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = {module.partition(".")[0] for module in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) - {"det_core", own, "pluggy"} == set()


@pytest.mark.process
def test_hook_specifications_load_little_of_det_core() -> None:
    """What a hook module needs is all that each process pays for each plugin."""
    command = [sys.executable, "-P", "-c", IMPORT, "det_core.hooks.hookspecs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("det_core.")}
    assert loaded == {
        "det_core.errors",
        "det_core.hooks",
        "det_core.hooks.hookspecs",
        "det_core.hooks.records",
        "det_core.ranks",
        "det_core.ranks.backend",
        "det_core.support",
        "det_core.support.lazy",
        "det_core.train",
        "det_core.train.adapter",
        "det_core.train.metrics",
    }
