"""The callbacks of a trial: they get Keras's hooks for the trial's epochs, and det's own hooks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from det_core import RunInfo, TrialError

from .callbacks import Callback, TensorBoard
from .changes import check_compiled, check_trained, compiled, trained
from .state import equal, is_plain
from .unsaved import digests, held_by
from .versions import VERBOSE, keras

# min_delta is here because Keras 3 changes its sign at the first comparison.
KERAS_OWN = {
    "params",
    "model",
    "_model",
    "validation_data",
    "_chief_worker_only",
    "_supports_tf_logs",
    "min_delta",
}
_CLOSED = (Callback.__module__, "keras.", "tf_keras.")
_BATCH_HOOKS = ("_batch_begin", "_batch_end")
_OF_SCRIPTS = ("BackupAndRestore", "ModelCheckpoint")


class Listeners:
    """Calls callbacks in their order."""

    def __init__(
        self, callbacks: Any, model: Any, params: dict[str, Any], directory: Path | None = None
    ) -> None:
        if not isinstance(callbacks, (list, tuple)):
            raise TrialError(
                f"keras_callbacks returned {type(callbacks).__name__}; return a list of callbacks"
            )
        for callback in callbacks:
            _check(callback)
            if isinstance(callback, TensorBoard) and directory is not None:
                callback.log_dir = str(directory)
        self.callbacks = list(callbacks)
        self._list = keras.callbacks.CallbackList(
            self.callbacks, add_history=False, add_progbar=False, model=model, **params
        )
        self._model = model
        self.after: Callable[[], None] = lambda: None
        self._made = [_attributes(callback) for callback in self.callbacks]
        self._unsaved = self._digests()
        self._named: set[str] = set()

    def __call__(self, hook: str, *arguments: Any) -> None:
        """Call one of Keras's hooks, and then `after`.

        Raises TrialError if a callback replaces the optimizer, compiles the model again or changes
        which weights are trained. This is not checked in batch hooks. Each run calls
        `on_train_begin`, which may compile.
        """
        if not self.callbacks:
            return
        if hook.endswith(_BATCH_HOOKS):
            getattr(self._list, hook)(*arguments)
            return
        model = self._model
        optimizer, weights, parts = model.optimizer, trained(model), compiled(model)
        getattr(self._list, hook)(*arguments)
        check_compiled(model, optimizer, compiled(model) if hook == "on_train_begin" else parts)
        check_trained(model, weights, f"{hook} of a callback")
        self.after()

    def refuse_epochs(self, name: str) -> None:
        """Raise TrialError for a callback that needs epochs.

        `name` returned data without a known length.
        """
        for callback in self.callbacks:
            if _overrides(callback, "on_epoch_begin", "on_epoch_end"):
                raise TrialError(
                    f"{name} returned data that does not know its length, so that the callback"
                    f" {type(callback).__name__} would never hear of epochs; set records_per_epoch"
                    " in the configuration, or apply"
                    " tf.data.experimental.assert_cardinality(batches) to the dataset"
                )

    def directly(self, hook: str, *arguments: Any) -> None:
        """Call a hook of the callbacks that have it, with exactly these arguments.

        A callback may change them.
        """
        for callback in self.callbacks:
            method: Callable[..., Any] | None = getattr(callback, hook, None)
            if method is not None:
                method(*arguments)

    @property
    def begin_tests(self) -> bool:
        """Whether a callback acts when a validation begins, for example to replace the weights."""
        return any(_overrides(callback, "on_test_begin") for callback in self.callbacks)

    def of_tests(self, *, ended: bool) -> list[Any]:
        """Return the callbacks to call at a validation.

        When training has `ended`, Keras's own are closed and left out.
        """
        if not ended:
            return self.callbacks
        return [
            each
            for each in self.callbacks
            if not type(each).on_test_end.__module__.startswith(_CLOSED)
        ]

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each callback.

        That is the result of `get_state`, or the attributes of plain data or arrays that have
        changed. Other attributes that have changed are named once.
        """
        self._name_unsaved()
        return [
            {"class": type(callback).__name__, "state": _state(callback, made)}
            for callback, made in zip(self.callbacks, self._made, strict=True)
        ]

    def _name_unsaved(self) -> None:
        for name, checksum in self._digests().items():
            if name not in self._named and self._unsaved.get(name) != checksum:
                self._named.add(name)
                warnings.warn(
                    f"training changes the attribute {name} of a callback, which no checkpoint"
                    " holds, so that a resumed run begins with it as it is built; keep numbers,"
                    " text, arrays, lists and dicts in it, or define get_state() and"
                    " load_state(state)",
                    stacklevel=2,
                )

    def _digests(self) -> dict[str, str]:
        """Return checksums of the callbacks' attributes that no checkpoint holds."""
        held = [*held_by(self._model), *self.callbacks]
        return {
            f"{type(callback).__name__}.{name}": checksum
            for callback in self.callbacks
            if not _own(callback, "get_state")
            for name, checksum in digests(callback, held).items()
            if name not in KERAS_OWN
        }

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Restore each state to the first callback of its class that has not been restored yet."""
        left = list(self.callbacks)
        for saved in states:
            callback = next((each for each in left if type(each).__name__ == saved["class"]), None)
            if callback is not None:
                left.remove(callback)
                _set_state(callback, saved["state"])


def _overrides(callback: Any, *hooks: str) -> bool:
    """Return whether a callback overrides one of Keras's hooks."""
    own = (getattr(type(callback), hook) for hook in hooks)
    bases = [getattr(keras.callbacks.Callback, hook) for hook in hooks]
    return any(hook not in bases and hook.__module__ != Callback.__module__ for hook in own)


def _check(callback: Any) -> None:
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise TrialError(
            f"keras_callbacks returned {name} in its list; give instances of"
            " keras.callbacks.Callback"
        )
    if name in _OF_SCRIPTS:
        raise TrialError(
            f"keras_callbacks returned a {name}, but det saves and restores; leave it out"
        )


def _state(callback: Any, made: dict[str, Any]) -> Any:
    if _own(callback, "get_state"):
        state = callback.get_state()
        if not is_plain(state):
            raise TrialError(
                f"get_state() of the callback {type(callback).__name__} returned what a checkpoint"
                " cannot hold safely; return numbers, text, arrays, lists and dicts"
            )
        return state
    return {
        name: value
        for name, value in _attributes(callback).items()
        if name not in made or not equal(value, made[name])
    }


def _attributes(callback: Any) -> dict[str, Any]:
    """Return copies of the attributes that may be state."""
    found = {
        name: value
        for name, value in vars(callback).items()
        if name not in KERAS_OWN and is_plain(value)
    }
    return copy.deepcopy(found)


def _set_state(callback: Any, state: Any) -> None:
    if _own(callback, "load_state"):
        callback.load_state(state)
    elif isinstance(state, dict):
        for name, value in state.items():
            setattr(callback, name, value)


def _own(callback: Any, method: str) -> bool:
    return hasattr(callback, method) and getattr(type(callback), method, None) is not getattr(
        Callback, method
    )


class Tests(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes on the batches of a validation.

    The adapter calls the hooks for its begin and end, with the metrics of all ranks.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        super().__init__()
        self._callbacks = callbacks

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        for callback in self._callbacks:
            callback.on_test_batch_begin(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self._callbacks:
            callback.on_test_batch_end(batch, logs)


def tensorboard_dir(run: RunInfo) -> Path | None:
    """Return the directory of this rank's event files: the trial's, or one below it."""
    directory, rank = run.tensorboard_dir, run.distributed.rank
    return directory / f"rank-{rank}" if directory is not None and rank else directory


def params_of_fit(batches: int | None, epoch: int | None, verbose: Any) -> dict[str, Any]:
    """Return the parameters that Keras's `fit` over so many batches gives callbacks.

    `epochs` is None if the number is unknown.
    """
    epochs = None if batches is None or not epoch else -(-batches // epoch)
    return {"verbose": VERBOSE if verbose is None else verbose, "epochs": epochs, "steps": epoch}
