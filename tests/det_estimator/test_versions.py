"""The wrong Python or TensorFlow is one sentence that says what to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from det_core import PluginError
from det_core.support.installation import how_to_install
from det_estimator._imports import installed, need_tensorflow, problem_with

WAY_OUT = (
    f"with a GPU: {how_to_install('det-estimator', 'tensorflow')}, "
    f"without one: {how_to_install('det-estimator', 'cpu')}"
)
PROJECT = Path(__file__).parents[2] / "packages" / "det-estimator" / "pyproject.toml"


@pytest.mark.parametrize("version", ["2.15.0", "2.15.1", "2.15.0.post1", ""])
def test_the_last_tensorflow_with_estimators_is_the_right_one(version: str) -> None:
    """A build without a version is trusted."""
    assert problem_with(version, (3, 11)) == ""


@pytest.mark.parametrize("version", ["2.16.1", "2.21.0", "2.14.1", "3.0.0"])
def test_another_tensorflow_is_named(version: str) -> None:
    assert (
        problem_with(version, (3, 11))
        == f"det-estimator needs TensorFlow 2.15, as later ones have no tf.estimator, and {version}"
        f" is installed; in an environment of its own, {WAY_OUT}"
    )


def test_no_tensorflow_is_told_with_both_ways_to_install_one() -> None:
    assert (
        problem_with(None, (3, 11))
        == f"det-estimator needs TensorFlow 2.15, which is not installed; {WAY_OUT}"
    )


@pytest.mark.parametrize("python", [(3, 12), (3, 10)])
def test_another_python_is_named(python: tuple[int, int]) -> None:
    found = ".".join(map(str, python))
    assert (
        problem_with("2.15.1", python)
        == "det-estimator needs Python 3.11, the last that TensorFlow 2.15 has packages for, and"
        f" this is {found}; make an environment of Python 3.11, and there, {WAY_OUT}"
    )


def test_pip_refuses_another_python_by_itself() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.12"
    assert project["optional-dependencies"]["cpu"] == ["tensorflow-cpu>=2.15,<2.16"]


@pytest.mark.process
def test_whoever_imports_a_name_from_the_package_is_told() -> None:
    """In a process of its own, with a TensorFlow that is none of ours.

    The sentence, and not an AttributeError of TensorFlow's.
    """
    code = (
        "import det_estimator._imports as i; i.installed = lambda: '2.21.0'\n"
        "try:\n    from det_estimator import EstimatorTrial\n"
        "except Exception as error:\n    print(type(error).__name__, str(error)[:35])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "PluginError det-estimator needs TensorFlow 2.15"


def test_what_is_installed_decides() -> None:
    """Here as everywhere else."""
    if problem_with(installed(), sys.version_info[:2]):
        with pytest.raises(PluginError):
            need_tensorflow()
    else:
        need_tensorflow()
