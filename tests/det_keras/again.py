"""What is tested with both Kerases, and what with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from det_keras.versions import KERAS_3


def again(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test of processes that says with Keras 2 what it says with Keras 3.

    Each process takes seconds for TensorFlow.
    """
    return test if KERAS_3 else pytest.mark.thorough(test)
