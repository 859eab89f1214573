"""Whether TensorFlow is one that has estimators; imports det_core only."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from det_core import PluginError

_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")
_LAST = (2, 15)
_WAY_OUT = "with a GPU: pip install 'det-estimator[tensorflow]', without one: pip install 'det-estimator[cpu]'"


def need_tensorflow() -> None:
    """Raise PluginError, saying what to install, unless this is Python 3.11 with TensorFlow 2.15."""
    if problem := problem_with(installed(), sys.version_info[:2]):
        raise PluginError(problem)


def installed() -> str | None:
    """Return the version of the TensorFlow that would be imported, '' where nobody says, None where there is none."""
    if find_spec("tensorflow") is None:
        return None
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def problem_with(tensorflow: str | None, python: tuple[int, ...]) -> str:
    """Return what is wrong with a pair of versions, and what to install; nothing where they fit."""
    if python != (3, 11):
        found = ".".join(map(str, python))
        return (
            f"det-estimator needs Python 3.11, the last that TensorFlow 2.15 has packages for, and this is {found}; make an "
            f"environment of Python 3.11, and there, {_WAY_OUT}"
        )
    if tensorflow is None:
        return f"det-estimator needs TensorFlow 2.15, which is not installed; {_WAY_OUT}"
    if tensorflow and _release(tensorflow) != _LAST:
        return (
            f"det-estimator needs TensorFlow 2.15, as later ones have no tf.estimator, and {tensorflow} is installed; in an "
            f"environment of its own, {_WAY_OUT}"
        )
    return ""


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
