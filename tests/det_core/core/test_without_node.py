"""What needs det-node, and what a script does without it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from det_core import DistributedContext, PluginError
from det_core.hooks import runtime

ALONE = """
import pkgutil
import sys
from importlib import import_module


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cryptography", "det_driver", "det_node"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
import det_core

for module in pkgutil.walk_packages(det_core.__path__, "det_core."):
    import_module(module.name)
with det_core.core.init() as context:
    context.train.report_validation_metrics(1, {"error": 0.5})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weight").write_text("0.5")
    with context.checkpoint.restore_path(uuid) as path:
        print((path / "weight").read_text())
"""


@pytest.mark.process
def test_a_script_outside_of_det_run_needs_no_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every module of det_core is imported, too."""
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0.5"


def test_several_ranks_without_det_node_name_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **selected: ())
    runtime.runtime.cache_clear()
    ranks = {
        "rank": 0,
        "size": 2,
        "local_rank": 0,
        "local_size": 2,
        "cross_rank": 0,
        "cross_size": 1,
    }
    with pytest.raises(
        PluginError, match=r"needs det-node, which is not installed; run: python3 -m pip install .+"
    ):
        DistributedContext(**ranks, key=bytes(16))
