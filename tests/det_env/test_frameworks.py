"""One driver without any framework, and one queue.

PyTorch, Keras 2, Keras 3, and a script under another Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
LOCKED = {
    "torch": "torch==2.13.0, numpy",
    "keras-2": "tensorflow-cpu==2.15.1, keras==2.15.0, numpy==1.26.4",
    "keras-3": "tensorflow-cpu==2.21.0, keras==3.15.1",
}
FORKED = (
    "\nimport sys\nprint('begun by', 'a fork' if 'det_node.forkserver' in sys.orig_argv else 'an"
    " interpreter')\n"
)


def written(place: Path, name: str) -> Path:
    """Copy an example, shortened, that asks for its framework.

    Its search has trials enough to share what is imported.
    """
    plugin = name.partition("-")[0]
    shutil.copytree(ROOT / f"examples/digits_{plugin}", place)
    model, config = place / "model_def.py", place / "const.yaml"
    version = f"\nimport {plugin}\nprint('trained by', {plugin}.__version__)\n"
    model.write_text(model.read_text() + version + FORKED)
    text = re.sub(r"epochs: \d+", "epochs: 1", config.read_text())
    if name == "torch":
        text = text.replace("name: single", "name: random\n  max_trials: 2")
    requirements = f"[{LOCKED[name]}, scikit-learn, {ROOT / f'packages/det-{plugin}'}]"
    config.write_text(f"{text}environment: {{requirements: {requirements}}}\n")
    return config


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_one_driver_without_a_framework_runs_them_all_at_once(
    det: Any, experiment: Callable[..., Path], root: Path, tmp_path: Path
) -> None:
    assert not [name for name in ("torch", "tensorflow", "keras") if find_spec(name)]
    cache = subprocess.run(
        [find_uv_bin(), "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    env = {
        "DET_ENVIRONMENTS": str(root),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", cache),
        "DET_SLOTS_TOTAL": "2",
    }
    configs = {name: written(tmp_path / name, name) for name in LOCKED}
    configs["script"] = experiment('{python: "3.12", requirements: ["six==1.16.0"]}')
    started = {
        name: det.start("run", config, "-c", f"name={name}", env=env)
        for name, config in configs.items()
    }
    for name, process in started.items():
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, f"{name}: {said}"
    numbers = {each["experiment"]["name"]: each["experiment"]["id"] for each in det.json("list")}
    logs = {name: det("logs", number).stdout for name, number in numbers.items()}
    assert "trained by 2.13.0" in logs["torch"]
    assert "begun by a fork" in logs["torch"]
    assert "trained by 2.15.0" in logs["keras-2"]
    assert "trained by 3.15.1" in logs["keras-3"]
    assert "it is 1.16.0 (3, 12)" in logs["script"]
    checked = det("check", configs["torch"], env=env).stdout
    assert checked.count("is valid") == 1  # said before the environment's own det goes on
    assert "restored it and trained on" in checked
