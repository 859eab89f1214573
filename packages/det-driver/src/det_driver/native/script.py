"""The entrypoint of experiments that a script has made of itself: `det_driver.native.script:Trial`.

A worker that loads it executes the script of the working directory until it hands over its trial.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from det_core.environ import WorkerEnv
from det_core.errors import EntrypointError

from ._submit import read_command

ENTRYPOINT = "det_driver.native.script:Trial"


class TrialFound(BaseException):
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
    raise TrialFound(trial)


def __getattr__(name: str) -> Any:
    """Return `Trial`, the class that the script hands over; it is executed once."""
    if name != "Trial":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    env = WorkerEnv.read(os.environ)
    if env is None:
        raise EntrypointError("det_driver.native.script is loaded by det's workers; run the script itself")
    trial = execute(Path.cwd(), env)
    globals()[name] = trial
    return trial


def execute(code_dir: Path, env: WorkerEnv) -> type:
    """Execute the script of an experiment's code; return its trial. Raises EntrypointError where it hands over none."""
    script, *arguments = read_command(code_dir)
    module = ".".join(Path(script).with_suffix("").parts)
    before, token = sys.argv, LOADING.set(Loading(env, module))
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(str(code_dir / script), run_name="__main__")
    except TrialFound as found:
        if env.ranks.rank == 0:
            sys.stdout.write(f"{script} has handed over {found.trial.__qualname__}; what follows in it does not run\n")
            sys.stdout.flush()
        return found.trial
    except SystemExit as error:
        raise EntrypointError(f"{script} called sys.exit({error.code!r}) before it began to train") from error
    finally:
        sys.argv = before
        LOADING.reset(token)
    raise EntrypointError(f"{script} came to its end and began no training; call create(), or fit what init() wrapped")
