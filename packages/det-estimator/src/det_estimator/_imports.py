"""Checks whether the installed TensorFlow has estimators. Imports det_core only."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from det_core import PluginError
from det_core.support.installation import how_to_install

_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")
_LAST = (2, 15)


def need_tensorflow() -> None:
    """Raise PluginError with what to install, unless this is Python 3.11 with TensorFlow 2.15."""
    if problem := problem_with(installed(), sys.version_info[:2]):
        raise PluginError(problem)


def installed() -> str | None:
    """Return the version of the TensorFlow that would be imported.

    Return an empty string if its version is unknown, and None if there is no TensorFlow.
    """
    if find_spec("tensorflow") is None:
        return None
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def problem_with(tensorflow: str | None, python: tuple[int, ...]) -> str:
    """Return what is wrong with a pair of versions and what to install, or an empty string."""
    way_out = (
        f"with a GPU: {how_to_install('det-estimator', 'tensorflow')}, "
        f"without one: {how_to_install('det-estimator', 'cpu')}"
    )
    if python != (3, 11):
        found = ".".join(map(str, python))
        return (
            "det-estimator needs Python 3.11, the last that TensorFlow 2.15 has packages for, and"
            f" this is {found}; make an environment of Python 3.11, and there, {way_out}"
        )
    if tensorflow is None:
        return f"det-estimator needs TensorFlow 2.15, which is not installed; {way_out}"
    if tensorflow and _release(tensorflow) != _LAST:
        return (
            "det-estimator needs TensorFlow 2.15, as later ones have no tf.estimator, and"
            f" {tensorflow} is installed; in an environment of its own, {way_out}"
        )
    return ""


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
