"""How much importing a plugin's hooks costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions

from det_core.plugins import discover
from det_core.records import Framework


def hooks_of(framework: Framework) -> str:
    """Return the name of the installed module that registers the framework."""
    for found in discover():
        module = found.entry.load()
        register = getattr(module, "det_frameworks", None)
        if register is not None and framework.name in {record.name for record in register()}:
            return found.entry.module
    raise LookupError(f"no entry point registers {framework.name!r}; install the plugin, or override `hooks`")


def imported_by(module: str) -> set[str]:
    """Return the names of all modules that a new process has after importing this one."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ImportError(f"{module} cannot be imported by itself: {done.stderr.strip().splitlines()[-1]}")
    return set(json.loads(done.stdout))


def heavy_modules(framework: Framework) -> set[str]:
    """Return what a framework's hooks must not import: its adapter, and the modules of what it requires."""
    required = {_normal(re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0]) for need in framework.requires}
    packages = packages_distributions().items()
    modules = {module for module, distributions in packages if required & set(map(_normal, distributions))}
    return modules | {framework.load().__module__}


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
