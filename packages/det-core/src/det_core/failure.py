"""What a person is shown of an exception: the user's frames, not det's."""

from __future__ import annotations

import traceback
from pathlib import Path

from .errors import DetError, InvalidHP, StorageError
from .host import HostLost, Outcome

_OURS = ("det_core", "det_torch", "det_keras", "det_estimator", "det_lightning", "pluggy")


def explained(error: BaseException) -> tuple[Outcome, str, str]:
    """Return how a run ended with `error`: the outcome, the sentence for a person, and the traceback where it helps."""
    match error:
        case InvalidHP():
            return Outcome.INVALID_HP, str(error) or "these hyperparameters cannot work", ""
        case StorageError():
            return Outcome.BLOCKED, str(error), ""
        case DetError():
            return Outcome.MISTAKE, str(error), ""
        case HostLost():
            return Outcome.PREEMPTED, str(error), ""
        case KeyboardInterrupt():
            return Outcome.PREEMPTED, "interrupted", ""
        case SystemExit():
            message = f"the trial called sys.exit({error.code!r}); return, or raise det_core.InvalidHP"
            return Outcome.MISTAKE, message, ""
    return Outcome.ERROR, summary(error), user_traceback(error)


def user_traceback(error: BaseException) -> str:
    """Format `error` with the frames from the first that is not det's; all of them where the user has none."""
    shown = traceback.TracebackException.from_exception(error)
    _trim(shown, set())
    return "".join(shown.format())


def summary(error: BaseException) -> str:
    """Return the exception in one line: its type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _trim(shown: traceback.TracebackException, seen: set[int]) -> None:
    if id(shown) in seen:
        return
    seen.add(id(shown))
    first = next((i for i, frame in enumerate(shown.stack) if not _is_ours(frame.filename)), None)
    if first is not None:
        theirs = [frame for frame in list(shown.stack)[first:] if not _is_ours(frame.filename)]
        shown.stack = traceback.StackSummary.from_list(theirs)
    for inner in (shown.__cause__, shown.__context__):
        if inner is not None:
            _trim(inner, seen)


def _is_ours(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return True
    parts = Path(filename).parts
    return any(package in parts for package in _OURS) or filename.endswith("runpy.py")
