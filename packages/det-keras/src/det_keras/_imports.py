"""Whether there is a TensorFlow; imports det_core only."""

from __future__ import annotations

from importlib.util import find_spec

from det_core import PluginError


def need_tensorflow() -> None:
    """Raise PluginError, with both ways to install it, where there is no TensorFlow."""
    if find_spec("tensorflow") is None:
        raise PluginError(
            "det-keras needs TensorFlow, which is not installed; with a GPU: pip install 'det-keras[tensorflow]', "
            "without one: pip install 'det-keras[cpu]'"
        )
