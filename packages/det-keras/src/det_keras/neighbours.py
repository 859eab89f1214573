"""The other callbacks of a `fit`, and the part of their state that a checkpoint keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from det_core import TrialError

from .listeners import KERAS_OWN
from .state import is_plain
from .unsaved import digests, held_by, is_users
from .versions import KERAS_3, keras

_RIVALS = ("BackupAndRestore", "ModelCheckpoint")
_MEMORY = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
}


class Place(keras.callbacks.Callback):  # type: ignore[misc]
    """A first or last callback of a `fit`.

    It calls functions at the begin and end of epochs, and at those of training.
    """

    _supports_tf_logs = True

    def __init__(
        self,
        begins: Callable[[], None],
        ends: Callable[[int], None],
        over: Callable[[], None] = lambda: None,
        starts: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._begins, self._ends, self._over, self._starts = begins, ends, over, starts

    def on_train_begin(self, logs: Any = None) -> None:
        self._starts()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begins()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._ends(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        self._over()


def show_neighbours() -> None:
    """Make each list of callbacks in Keras call `set_neighbours(callbacks)` of those that have it.

    Keras gives a callback its model and its params, but never the other callbacks.
    """
    kind = keras.callbacks.CallbackList
    if hasattr(kind.set_params, "__wrapped__"):
        return

    @functools.wraps(kind.set_params)
    def set_params(self: Any, params: Any) -> None:
        for each in list(self.callbacks):
            if hasattr(each, "set_neighbours"):
                each.set_neighbours(self.callbacks)
        set_params.__wrapped__(self, params)

    kind.set_params = set_params


def refuse_rivals(name: str, neighbours: list[Any]) -> None:
    """Raise TrialError for another callback that saves and restores."""
    for rival in _RIVALS:
        if any(isinstance(each, getattr(keras.callbacks, rival)) for each in neighbours):
            raise TrialError(
                f"{name} and {rival} both save and restore; leave {rival} out of the callbacks"
            )
    if any(type(each).__name__ == name for each in neighbours):
        raise TrialError(f"the callbacks of fit() have two of {name}; leave one out")


def overwrites(neighbours: list[Any]) -> bool:
    """Return whether a callback may replace the weights before others see the epoch's end.

    In Keras 2 an EarlyStopping with `restore_best_weights` does so. In Keras 3 it does so when
    training ends.
    """
    stopping = keras.callbacks.EarlyStopping
    return not KERAS_3 and any(
        isinstance(each, stopping) and each.restore_best_weights for each in neighbours
    )


def begins_training(callback: Any) -> bool:
    """Return whether a callback has an `on_train_begin` of its own, or a function for it.

    Those of Keras change no model.
    """
    module = getattr(callback.on_train_begin, "__module__", None) or ""
    return module.partition(".")[0] not in ("keras", "tf_keras")


def memory(neighbours: list[Any]) -> list[list[Any]]:
    """Return the state of each callback with its class.

    The state comes from `get_state`, or from the known attributes of Keras's own callbacks.
    """
    found = []
    for each in neighbours:
        if hasattr(each, "get_state"):
            state = each.get_state()
        else:
            names = _names(each)
            state = {name: value for name, value in vars(each).items() if name in names}
        if state and is_plain(state):
            found.append([type(each).__name__, state])
    return found


def remind(neighbours: list[Any], memories: list[list[Any]]) -> None:
    """Restore each state to the first callback of its class that has not been restored yet."""
    left = list(neighbours)
    for kind, state in memories:
        each = next((one for one in left if type(one).__name__ == kind), None)
        if each is None:
            continue
        left.remove(each)
        if hasattr(each, "load_state"):
            each.load_state(state)
        else:
            vars(each).update(
                {name: value for name, value in state.items() if name in _names(each)}
            )


def unsaved(neighbours: list[Any], model: Any) -> dict[str, str]:
    """Return checksums, by name, of the attributes of the user's callbacks that nobody saves."""
    held = [*held_by(model), *neighbours]
    return {
        f"{type(each).__name__}.{name}": checksum
        for each in neighbours
        if is_users(type(each)) and not hasattr(each, "get_state")
        for name, checksum in digests(each, held, plain=True).items()
        if name not in KERAS_OWN and name not in _names(each)
    }


def _names(callback: Any) -> tuple[str, ...]:
    known = (name for base in type(callback).__mro__ for name in _MEMORY.get(base.__name__, ()))
    return tuple(known)
