"""The entrypoint of experiments that a script has made of itself: `det_driver.native.script:Trial`.

A worker that loads it executes the script of the working directory until it hands over its trial.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from det_core.environ import WorkerEnv
from det_core.errors import EntrypointError

from ._command import read_command
from ._loading import LOADING, Found, Loading


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
    except Found as found:
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
