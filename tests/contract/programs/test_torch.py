"""Whole programs in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.contract.programs.suite import ProgramSuite

pytest.importorskip("det_torch")

HERE = __name__.rpartition(".")[0]
LANGUAGE = f"{HERE}.torch_language_model"


class TestTorchPrograms(ProgramSuite):
    framework = "torch"
    hooks = "det_torch._hooks"
    backend = "torch"
    programs: ClassVar = [
        f"{HERE}.torch_{name}" for name in ("unet", "language_model", "wgan", "lora", "contrastive")
    ]
    variants: ClassVar = {f"{LANGUAGE}, FSDP": (LANGUAGE, {"sharding": "fsdp"})}
    killed = """
class Trial(Program):
    def train_batch(self, batch, epoch_idx, batch_idx):
        dies(batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)
"""

    def contents(self, path: Path) -> Any:
        from det_torch.testing import contents

        return contents(path)

    def weights(self, path: Path) -> dict[str, Any]:
        states = self.contents(path)["models_state_dict"]
        return {
            f"{number}.{name}": value
            for number, state in enumerate(states)
            for name, value in state.items()
        }
