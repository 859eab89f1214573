"""The callbacks of a trial: Keras's hooks as its author knows them, and those that det adds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from det_core import RunInfo, TrialError

from .callbacks import Callback, TensorBoard
from .state import is_plain
from .versions import VERBOSE, keras

# min_delta: Keras 3 turns its sign when it first compares
_KERAS_OWN = {"params", "model", "_model", "validation_data", "_chief_worker_only", "_supports_tf_logs", "min_delta"}
_CLOSED = (Callback.__module__, "keras.", "tf_keras.")
_OF_SCRIPTS = ("BackupAndRestore", "ModelCheckpoint")


class Listeners:
    """Calls callbacks in their order."""

    def __init__(self, callbacks: Any, model: Any, params: dict[str, Any], directory: Path | None = None) -> None:
        if not isinstance(callbacks, (list, tuple)):
            raise TrialError(f"keras_callbacks returned {type(callbacks).__name__}; return a list of callbacks")
        for callback in callbacks:
            _check(callback)
            if isinstance(callback, TensorBoard) and directory is not None:
                callback.log_dir = str(directory)
        self.callbacks = list(callbacks)
        self._list = keras.callbacks.CallbackList(
            self.callbacks, add_history=False, add_progbar=False, model=model, **params
        )
        self._made = [_attributes(callback) for callback in self.callbacks]

    def __call__(self, hook: str, *arguments: Any) -> None:
        """Call one of Keras's hooks."""
        if self.callbacks:
            getattr(self._list, hook)(*arguments)

    def directly(self, hook: str, *arguments: Any) -> None:
        """Call a hook, where a callback has it, with these very arguments, which a callback may change."""
        for callback in self.callbacks:
            method: Callable[..., Any] | None = getattr(callback, hook, None)
            if method is not None:
                method(*arguments)

    def validated(self, logs: dict[str, Any], *, ended: bool) -> None:
        """Tell of a validation's metrics, to which callbacks may add; when training has `ended`, Keras's own have closed."""
        for callback in self.callbacks:
            if not (ended and type(callback).on_test_end.__module__.startswith(_CLOSED)):
                callback.on_test_end(logs)

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each: what `get_state` returns, else its attributes of plain data or arrays that have changed."""
        return [
            {"class": type(callback).__name__, "state": _state(callback, made)}
            for callback, made in zip(self.callbacks, self._made, strict=True)
        ]

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Give each callback its state back: to the first of its class that has none yet."""
        left = list(self.callbacks)
        for saved in states:
            callback = next((each for each in left if type(each).__name__ == saved["class"]), None)
            if callback is not None:
                left.remove(callback)
                _set_state(callback, saved["state"])


def _check(callback: Any) -> None:
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise TrialError(f"keras_callbacks returned {name} in its list; give instances of keras.callbacks.Callback")
    if name in _OF_SCRIPTS:
        raise TrialError(f"keras_callbacks returned a {name}, but det saves and restores; leave it out")


def _state(callback: Any, made: dict[str, Any]) -> Any:
    if _own(callback, "get_state"):
        state = callback.get_state()
        if not is_plain(state):
            raise TrialError(
                f"get_state() of the callback {type(callback).__name__} returned what a checkpoint cannot hold safely; return "
                "numbers, text, arrays, lists and dicts"
            )
        return state
    return {
        name: value
        for name, value in _attributes(callback).items()
        if name not in made or not _equal(value, made[name])
    }


def _attributes(callback: Any) -> dict[str, Any]:
    """Return copies of what may be state."""
    found = {name: value for name, value in vars(callback).items() if name not in _KERAS_OWN and is_plain(value)}
    return copy.deepcopy(found)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(np.array_equal(one, other))


def _set_state(callback: Any, state: Any) -> None:
    if _own(callback, "load_state"):
        callback.load_state(state)
    elif isinstance(state, dict):
        for name, value in state.items():
            setattr(callback, name, value)


def _own(callback: Any, method: str) -> bool:
    return hasattr(callback, method) and getattr(type(callback), method, None) is not getattr(Callback, method)


class Tests(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes on the beginning and the batches of a validation; its end comes later, with the metrics of all ranks."""

    def __init__(self, listeners: Listeners) -> None:
        super().__init__()
        self._listeners = listeners

    def on_test_begin(self, logs: Any = None) -> None:
        self._listeners("on_test_begin")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._listeners("on_test_batch_begin", batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._listeners("on_test_batch_end", batch, logs)


def tensorboard_dir(run: RunInfo) -> Path | None:
    """Return where this rank writes event files: the chief in the trial's own place, others below it."""
    directory, rank = run.tensorboard_dir, run.distributed.rank
    return directory / f"rank-{rank}" if directory is not None and rank else directory


def params_of_fit(batches: int | None, epoch: int | None, verbose: Any) -> dict[str, Any]:
    """Return what Keras's own `fit` over so many batches would tell callbacks; `epochs` is None where nobody knows that."""
    epochs = None if batches is None or not epoch else -(-batches // epoch)
    return {"verbose": VERBOSE if verbose is None else verbose, "epochs": epochs, "steps": epoch}
