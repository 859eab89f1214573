"""Arguments of optimizers that Keras no longer takes, with the line of the user's that gives them, and what to write there."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from det_core import TrialError

from .versions import KERAS_VERSION

_IN_PLACE = {
    "decay": "learning_rate=keras.optimizers.schedules.InverseTimeDecay(RATE, 1, DECAY)",
    "lr": "learning_rate",
}
_NOT_THE_USERS = {"absl", "det_core", "det_keras", "keras", "tensorflow", "tf_keras"}


@contextmanager
def refusals_explained() -> Iterator[None]:
    """Turn Keras's refusal of an old argument of an optimizer into a TrialError that says which line to change, and how."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, at = _refused(str(error)), _line(error.__traceback__)
        if name is None or at is None:
            raise
        file, line, text = at
        raise TrialError(
            f"{file}:{line}: Keras {KERAS_VERSION} takes no {name}; give {_IN_PLACE[name]} in its place: {text}"
        ) from error


def _refused(message: str) -> str | None:
    """Return the argument that a refusal is about, in the words of Keras 2 or 3; None for any other message."""
    found = re.match(
        r"`?(\w+)`? is deprecated in the new Keras optimizer|Argument\(s\) not recognized: \{'(\w+)'", message
    )
    name = found and (found[1] or found[2])
    return name if name in _IN_PLACE else None


def _line(trace: TracebackType | None) -> tuple[str, int, str] | None:
    """Return the last line of the user's own code that led to an error: its file, number and text."""
    known = [(frame, line) for frame, line in traceback.walk_tb(trace) if _home(frame) not in _NOT_THE_USERS]
    if not known:
        return None
    frame, line = known[-1]
    file = frame.f_code.co_filename
    return Path(file).name, line, linecache.getline(file, line).strip()


def _home(frame: FrameType) -> str:
    """Return the top-level package that a frame's code is of."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
