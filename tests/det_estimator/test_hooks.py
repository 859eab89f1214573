"""The hook module is light."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.process
def test_the_hook_module_imports_neither_tensorflow_nor_numpy() -> None:
    modules = "{'tensorflow', 'numpy', 'det_estimator.adapter'}"
    code = (
        f"import sys, det_estimator._hooks, det_estimator; print(sorted({modules} &"
        " set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_there() -> None:
    import det_estimator

    assert det_estimator.__all__ == sorted(det_estimator.__all__)
    assert all(getattr(det_estimator, name) is not None for name in det_estimator.__all__)
