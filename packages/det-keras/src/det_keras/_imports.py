"""Whether there is a TensorFlow; imports det_core only."""

from __future__ import annotations

from importlib.util import find_spec

from det_core import PluginError


def has_tensorflow() -> bool:
    """Tell whether there is a TensorFlow, without importing it."""
    return find_spec("tensorflow") is not None


def need_tensorflow() -> None:
    """Raise PluginError, with both ways to install it, where there is no TensorFlow."""
    if not has_tensorflow():
        raise PluginError(
            "det-keras needs TensorFlow, which is not installed; with a GPU: pip install 'det-keras[tensorflow]', "
            "without one: pip install 'det-keras[cpu]'"
        )
