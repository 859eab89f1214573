"""From a class that a user wrote to a trial; what it lacks, or takes otherwise than it must, is a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .errors import TrialError

T = TypeVar("T")


def make_trial(trial_class: type[T], base: type, context: Any, **arguments: Any) -> T:
    """Return a trial, which knows its context even where its class does not call that of its `base`.

    Raises TrialError for a class that lacks a method which every `base` must have, or whose constructor takes something else.
    """
    missing = sorted(getattr(trial_class, "__abstractmethods__", ()))
    if missing:
        raise TrialError(f"{trial_class.__name__} does not define {', '.join(missing)}; every {base.__name__} must")
    must_take(trial_class, f"{trial_class.__name__}.__init__", [("context",)], **arguments)
    make: Callable[..., Any] = trial_class
    trial = make(context, **arguments)
    if not hasattr(trial, "context"):
        trial.context = context
    return trial  # type: ignore[no-any-return]


def must_take(function: Callable[..., Any], name: str, forms: Sequence[Sequence[str]], **arguments: Any) -> None:
    """Raise TrialError unless a user's method can be called with the parameters of one of the forms, and the keywords."""
    signature = inspect.signature(function)
    for form in forms:
        try:
            signature.bind(*form, **arguments)
            return
        except TypeError:
            continue
    wanted = ", ".join(("self", *forms[0], *arguments))
    raise TrialError(f"{name} takes {signature}; define it as {name.rpartition('.')[2]}({wanted})")
