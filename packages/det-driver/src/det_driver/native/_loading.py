"""A script that is executed to find the trial in it: how far, and what comes of it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import NoReturn

from det_core.environ import WorkerEnv


class Found(BaseException):
    """Ends a script in a worker where its trial is known; no Exception, so that no `except Exception` keeps it going."""

    def __init__(self, trial: type) -> None:
        self.trial = trial
        super().__init__(trial.__qualname__)


@dataclass(frozen=True)
class Loading:
    """A script that a worker executes; `module` is the name under which it could be imported."""

    env: WorkerEnv
    module: str


LOADING: ContextVar[Loading | None] = ContextVar("det_loading", default=None)


def take_over(trial: type) -> NoReturn:
    """Hand a trial class to the worker that executes this script; the script ends here."""
    loading = LOADING.get()
    if loading is not None and trial.__module__ == "__main__":
        trial.__module__ = loading.module  # where a checkpoint's reader will find it
    raise Found(trial)
