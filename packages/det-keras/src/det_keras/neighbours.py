"""The callbacks that a `fit` has beside a given one, and what of theirs survives a restart."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from det_core import TrialError

from .state import is_plain
from .versions import keras

_RIVALS = ("BackupAndRestore", "ModelCheckpoint")
_MEMORY = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
}


def neighbours_of(callback: Any) -> list[Any]:
    """Return the other callbacks of the `fit` that is calling this one.

    Keras shows a callback its neighbours nowhere; they are in the list whose method is calling it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        listed = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(listed, list) and any(each is callback for each in listed):
            return [each for each in listed if each is not callback]
        frame = frame.f_back
    return []


def refuse_rivals(name: str, neighbours: list[Any]) -> None:
    """Raise TrialError for a callback that saves and restores too."""
    for rival in _RIVALS:
        if any(isinstance(each, getattr(keras.callbacks, rival)) for each in neighbours):
            raise TrialError(f"{name} and {rival} both save and restore; leave {rival} out of the callbacks")
    if any(type(each).__name__ == name for each in neighbours):
        raise TrialError(f"the callbacks of fit() have two of {name}; leave one out")


def memory(neighbours: list[Any]) -> list[list[Any]]:
    """Return what the callbacks have to remember, each with its class: by `get_state`, or as is known of Keras's own."""
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
    """Give callbacks their memory back: to the first of a class that has none yet."""
    left = list(neighbours)
    for kind, state in memories:
        each = next((one for one in left if type(one).__name__ == kind), None)
        if each is None:
            continue
        left.remove(each)
        if hasattr(each, "load_state"):
            each.load_state(state)
        else:
            vars(each).update({name: value for name, value in state.items() if name in _names(each)})


def _names(callback: Any) -> tuple[str, ...]:
    known = (name for base in type(callback).__mro__ for name in _MEMORY.get(base.__name__, ()))
    return tuple(known)
