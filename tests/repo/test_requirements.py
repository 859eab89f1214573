"""Installing a plugin brings its framework, and no other."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECTS = {
    project["name"]: project
    for pattern in ("packages/*/pyproject.toml", "examples/plugins/*/pyproject.toml")
    for project in (
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in sorted(ROOT.glob(pattern))
    )
}
FRAMEWORKS = {
    **dict.fromkeys(("torch", "torchvision", "torchdata"), "PyTorch"),
    **dict.fromkeys(("lightning", "pytorch-lightning", "lightning-fabric"), "Lightning"),
    **dict.fromkeys(
        ("tensorflow", "tensorflow-cpu", "tensorflow-estimator", "keras", "tf-keras"), "TensorFlow"
    ),
    **dict.fromkeys(("jax", "jaxlib", "flax", "optax"), "JAX"),
    **dict.fromkeys(("mxnet", "paddlepaddle", "deepspeed"), "another"),
}
BRINGS = {
    "det-compat": set(),
    "det-compat[estimator]": set(),
    "det-compat[keras]": set(),
    "det-compat[lightning]": {"PyTorch", "Lightning"},
    "det-compat[torch]": {"PyTorch"},
    "det-training-core": set(),
    "det-training-core[gpu]": set(),
    "det-training-core[tensorboard]": set(),
    "det-driver": set(),
    "det-driver[parquet]": set(),
    "det-driver[plot]": set(),
    "det-driver[tensorboard]": set(),
    "det-env": set(),
    "det-estimator": set(),
    "det-estimator[cpu]": {"TensorFlow"},
    "det-estimator[horovod]": set(),
    "det-estimator[tensorflow]": {"TensorFlow"},
    "det-horovod": set(),
    "det-jax": {"JAX"},
    "det-keras": set(),
    "det-keras[cpu]": {"TensorFlow"},
    "det-keras[horovod]": set(),
    "det-keras[tensorflow]": {"TensorFlow"},
    "det-kubernetes": set(),
    "det-lightning": {"PyTorch", "Lightning"},
    "det-lightning[horovod]": {"PyTorch", "Lightning"},
    "det-migrate": set(),
    "det-migrate[parquet]": set(),
    "det-migrate[postgresql]": set(),
    "det-migrate[tensorboard]": set(),
    "det-mlflow": set(),
    "det-mlflow[sqlite]": set(),
    "det-node": set(),
    "det-numpy": set(),
    "det-optuna": set(),
    "det-optuna[cmaes]": set(),
    "det-optuna[gp]": {"PyTorch"},
    "det-optuna[qmc]": set(),
    "det-ray": set(),
    "det-server": set(),
    "det-server[notebook]": set(),
    "det-slurm": set(),
    "det-testing": set(),
    "det-torch": {"PyTorch"},
    "det-torch[export]": {"PyTorch"},
    "det-torch[horovod]": {"PyTorch"},
    "det-torch[transformers]": {"PyTorch"},
    "det-web": set(),
}
"""Every distribution of this repository, with each of its extras, and their frameworks."""

CONSTRAINTS = {
    "det-estimator[cpu]": ("det-estimator",),
    "det-jax": ("det-jax",),
    "det-keras[cpu]": ("det-keras",),
    "det-lightning": ("det-lightning", "det-torch"),
    "det-mlflow[sqlite]": ("det-mlflow",),
    "det-torch": ("det-torch",),
}
"""Those that are resolved as pip would, with all that their requirements require.

The pins for it come, too, where there are any.
"""

UNREACHABLE = (
    "NewConnectionError",
    "No matching distribution",
    "Could not find a version",
    "Temporary failure",
    "timed out",
)


def outside(text: str) -> Iterator[str]:
    """Yield what a requirement asks of distributions that are not this repository's."""
    requirement = Requirement(text)
    project = PROJECTS.get(requirement.name)
    if project is None:
        yield text
        return
    extras = project.get("optional-dependencies", {})
    for each in (
        *project["dependencies"],
        *(each for extra in requirement.extras for each in extras[extra]),
    ):
        yield from outside(each)


def frameworks(names: Iterator[str] | list[str]) -> set[str]:
    return {FRAMEWORKS[name] for name in map(canonicalize_name, names) if name in FRAMEWORKS}


def test_the_table_has_every_distribution_with_every_extra() -> None:
    known = set(PROJECTS)
    known |= {
        f"{name}[{extra}]"
        for name, about in PROJECTS.items()
        for extra in about.get("optional-dependencies", {})
    }
    assert known == set(BRINGS)


@pytest.mark.parametrize(("what", "brought"), BRINGS.items(), ids=BRINGS)
def test_what_it_requires_is_of_its_own_framework(what: str, brought: set[str]) -> None:
    assert frameworks([Requirement(each).name for each in outside(what)]) == brought


@functools.cache
def resolved(what: str) -> list[str]:
    """Return the names of all distributions that pip would install; nothing is installed."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    ]
    pins = [
        f"--constraint={path}"
        for path in (ROOT / "constraints").glob("*.txt")
        if path.stem in CONSTRAINTS[what]
    ]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", *pins, *outside(what)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"no index has what {what} requires: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return [
        canonicalize_name(each["metadata"]["name"]) for each in json.loads(done.stdout)["install"]
    ]


@pytest.mark.process
@pytest.mark.parametrize("what", CONSTRAINTS)
def test_pip_brings_that_framework_and_no_other(what: str) -> None:
    if "estimator" in what and sys.version_info >= (3, 12):
        pytest.skip("TensorFlow 2.15 is for Python 3.11 at most")
    assert frameworks(resolved(what)) == BRINGS[what]


@pytest.mark.process
def test_tensorflow_comes_under_one_of_its_names() -> None:
    assert {"tensorflow", "tensorflow-cpu"} & set(resolved("det-keras[cpu]")) == {"tensorflow-cpu"}


@pytest.mark.parametrize("extra", ["cpu", "tensorflow"])
def test_keras_installs_what_its_tensorboard_callback_needs(extra: str) -> None:
    """TensorFlow 2.21 brings no tensorboard, and Keras's callback does not work without."""
    asked = PROJECTS["det-keras"]["optional-dependencies"][extra]
    assert "tensorboard" in {canonicalize_name(Requirement(each).name) for each in asked}
