"""Whole programs in Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.contract.programs.suite import SEED, ProgramSuite

pytest.importorskip("tensorflow")
pytest.importorskip("det_keras")
pytest.importorskip("sklearn")

HERE = __name__.rpartition(".")[0]


def test_a_plain_program_begins_with_the_weights_of_a_trial() -> None:
    """A process that has run no trial gives them too; Keras 2 by itself does not."""
    from tests.contract.programs.keras_parts import seed_everything

    from det_keras import rng
    from det_keras.versions import KERAS_3, keras

    if KERAS_3:
        pytest.skip("Keras 3 seeds random layers in one way only")

    def drawn() -> list[float]:
        layers = [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
        return list(keras.Sequential(layers).get_weights()[0].flat)

    keras.backend.experimental.disable_tf_random_generator()
    keras.utils.set_random_seed(SEED)
    alone = drawn()
    seed_everything()
    plain = drawn()
    rng.seed_everything(SEED)
    assert plain == drawn() != alone


class TestKerasPrograms(ProgramSuite):
    framework = "keras"
    hooks = "det_keras._hooks"
    backend = "collectives"
    programs: ClassVar = [
        f"{HERE}.keras_{name}" for name in ("augmented", "text", "adversarial", "mixed")
    ]
    killed = """
from det_keras.versions import keras


class Dying(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        dies(int(self.model.optimizer.iterations))


class Trial(Program):
    def keras_callbacks(self):
        return [Dying()]
"""

    def contents(self, path: Path) -> Any:
        from det_keras.testing import contents

        return contents(path)

    def weights(self, path: Path) -> dict[str, Any]:
        from det_keras.load import tensors

        found: dict[str, Any] = tensors(path)["weights"]
        return found
