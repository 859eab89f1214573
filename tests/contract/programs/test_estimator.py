"""Whole programs in TensorFlow's Estimator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.contract.programs.suite import ProgramSuite

pytest.importorskip("det_estimator")
if sys.version_info[:2] != (3, 11):
    pytest.skip("TensorFlow 2.15 is for Python 3.11", allow_module_level=True)
pytest.importorskip("tensorflow_estimator", reason="later TensorFlows have no estimators")

HERE = __name__.rpartition(".")[0]


class TestEstimatorPrograms(ProgramSuite):
    framework = "estimator"
    hooks = "det_estimator._hooks"
    backend = "sockets"
    metric = "loss"
    programs: ClassVar = [f"{HERE}.estimator_columns"]
    killed = """
from det_estimator import RunHook


class Dying(RunHook):
    def on_checkpoint_load(self, checkpoint_dir):
        self.done = int(Path(checkpoint_dir, "done").read_text())

    def on_checkpoint_end(self, checkpoint_dir):
        Path(checkpoint_dir, "done").write_text(str(self.done))

    def begin(self):
        self.done = getattr(self, "done", 0)

    def after_run(self, run_context, run_values):
        self.done += 1
        dies(self.done)


class Trial(Program):
    def hooks(self):
        return [Dying()]
"""

    def contents(self, path: Path) -> Any:
        from det_estimator.testing import contents

        return contents(path)

    def weights(self, path: Path) -> dict[str, Any]:
        from tests.contract.programs.estimator_columns import served

        from det_estimator.load import tensors

        return {**tensors(path), "served": served(path)}
