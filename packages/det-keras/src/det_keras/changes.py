"""Detects what callbacks change in a model, apart from its weights.

A restarted run builds the model again and then restores the checkpoint.

- What it could not restore is refused: another optimizer, another `compile`, frozen layers.
- Plain numbers of layers and optimizers, such as a Dropout's rate, are saved and restored. A
  compiled step uses the numbers that it was traced with. A later change takes effect only after
  `make_train_function(force=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from det_core import TrialError

from .versions import KERAS_3, keras

# Numbers that Keras itself sets in training.
_OF_KERAS = {
    "autocast",
    "autotune_steps_per_execution",
    "built",
    "compiled",
    "jit_compile",
    "run_eagerly",
    "steps_per_execution",
    "stop_training",
    "unrolled_steps_per_execution",
}
_PLAIN = (bool, int, float, type(None))
_PHASES = "train in two phases, as a script with two calls of fit()"

Settings = dict[str, dict[str, Any]]


class Changes:
    """Compares a model with what it was when training began.

    `optimizers` are the optimizers that a checkpoint restores, in an order that each run repeats.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any]) -> None:
        self._model, self._optimizers = model, optimizers
        self._before = self._settings()
        # What the compiled step was traced with, that step, and how far it has trained.
        self._traced = self._before
        self._function: Any = None
        self._position: Any = None
        self._tested: Any = model.test_function
        self._tests_again = False
        self.begin()

    def begin(self) -> None:
        """Note what is trained, after the hooks that each run calls."""
        self._optimizer, self._compiled = self._model.optimizer, compiled(self._model)
        self._trained = trained(self._model)

    def check(self) -> None:
        """Raise TrialError as `check_compiled` does, and if other weights are trained.

        The latter is checked only for Keras's own step. Another may freeze weights for a moment.
        """
        self.check_compiled()
        if type(self._model).train_step is keras.Model.train_step:
            check_trained(self._model, self._trained, "a callback")

    def check_compiled(self) -> None:
        """Raise TrialError if a callback has replaced the optimizer or compiled the model again."""
        check_compiled(self._model, self._optimizer, self._compiled)

    def look(self, position: Any) -> None:
        """Note the settings of a step that has not trained a batch since it was made.

        `position` tells how far the model is trained.
        """
        function = self._model.train_function
        if self._model.run_eagerly or (
            function is not None and (function is not self._function or position == self._position)
        ):
            self._traced = self._settings()
            self._function, self._position = function, position
        tested = self._model.test_function
        self._tests_again |= self._tested is not None and tested is not self._tested
        self._tested = tested

    def state(self, position: Any) -> dict[str, Any]:
        """Return the settings of the step that were changed, for a checkpoint."""
        self.look(position)
        changed = {
            owner: {
                name: value
                for name, value in values.items()
                if not _same(value, self._before.get(owner, {}).get(name))
            }
            for owner, values in self._traced.items()
        }
        return {
            "settings": {owner: values for owner, values in changed.items() if values},
            "tests": self._tests_again,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the saved numbers of layers and optimizers. Call it before the model trains.

        `state` is the result of the method `state`. An attribute that is no plain number now, such
        as a schedule instead of a learning rate, keeps its value.
        """
        for owner, thing in self._owners():
            held = vars(thing)
            for name, saved in state.get("settings", {}).get(owner, {}).items():
                # A number of NumPy is an array in a file.
                value = saved[()] if isinstance(saved, np.ndarray) else saved
                # Another object of this name is not a setting.
                free = _is_plain(held[name]) if name in held else not hasattr(thing, name)
                if free and _is_plain(value):
                    setattr(thing, name, value)
        if state.get("tests"):
            self._model.test_function, self._tests_again = None, True
        self._traced = self._settings()

    def _settings(self) -> Settings:
        return {
            owner: {
                name: value
                for name, value in vars(thing).items()
                if name[0] != "_" and name not in _OF_KERAS and _is_plain(value)
            }
            for owner, thing in self._owners()
        }

    def _owners(self) -> Iterator[tuple[str, Any]]:
        for place, layer in enumerate(self._model._flatten_layers()):
            yield f"layers[{place}]", layer
        for place, optimizer in enumerate(self._optimizers):
            yield f"optimizers[{place}]", optimizer
            if hasattr(optimizer, "inner_optimizer"):
                yield f"optimizers[{place}].inner_optimizer", optimizer.inner_optimizer


def trained(model: Any) -> dict[int, tuple[Any, bool]]:
    """Return each weight that exists, and whether it is trained."""
    # Keras 2 raises an error for the weights of a model that is not built.
    if not model.built:
        return {}
    kinds = ((True, model.trainable_variables), (False, model.non_trainable_variables))
    return {id(each): (each, flag) for flag, variables in kinds for each in variables}


def check_trained(model: Any, before: Mapping[int, tuple[Any, bool]], where: str) -> None:
    """Raise TrialError if other weights are trained than `before`. New ones do not count."""
    now = trained(model)
    if any(key in now and now[key][1] != flag for key, (_, flag) in before.items()):
        raise TrialError(
            f"{where} changed which weights are trained, which no checkpoint can restore; set"
            f" trainable before training begins, or {_PHASES}"
        )


def compiled(model: Any) -> tuple[Any, ...]:
    """Return objects that each `compile` replaces."""
    parts = (
        ("_compile_loss", "_compile_metrics") if KERAS_3 else ("compiled_loss", "compiled_metrics")
    )
    return tuple(getattr(model, name, None) for name in ("_compile_config", *parts))


def check_compiled(model: Any, optimizer: Any, before: tuple[Any, ...]) -> None:
    """Raise TrialError if a callback has replaced the optimizer or compiled the model again."""
    if model.optimizer is not optimizer:
        raise TrialError(
            f"a callback gave the model another optimizer than its {type(optimizer).__name__},"
            " whose state no checkpoint would hold; set model.optimizer.learning_rate, or"
            f" {_PHASES}"
        )
    if any(one is not other for one, other in zip(compiled(model), before, strict=True)):
        raise TrialError(
            "a callback compiled the model again, and a resumed run would go on with the loss and"
            f" metrics that it began with; {_PHASES}"
        )


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (isinstance(value, np.generic) and value.dtype.kind in "biuf")


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)
