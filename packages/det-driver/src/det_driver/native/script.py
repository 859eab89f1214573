"""A script that is its own experiment: submitting it, or a notebook, and following that; and its entrypoint in a worker.

A worker that loads `det_driver.native.script:Trial` executes the script of the working directory until it hands over its trial.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from det_core.code import copy_code
from det_core.environ import WorkerEnv
from det_core.errors import DetError, EntrypointError
from det_core.plugins import Plugins, extensions_of

from ..client import Client, StatusLine
from ..config import load
from ..store import Store

ENTRYPOINT = "det_driver.native.script:Trial"
_FILE = "det-native.json"  # of the code of an experiment: its command
_SUFFIX = "__det__.py"
_POLL_SECONDS = 0.5
_MAGIC = ("!", "%")


def submit(
    config: Mapping[str, Any],
    context_dir: str | Path,
    command: str | Sequence[str] | None,
    *,
    home: Path,
    entrypoint: str | None,
    start: str = "",
) -> NoReturn:
    """Make an experiment of the script, follow it, and end this process with the status of `det run`.

    `entrypoint` is what the workers load; by default they run the script itself, with `start` before it. What `config` says of
    the entrypoint is not used.
    """
    script = ScriptCommand.of(context_dir, command)
    plugins = Plugins.installed()
    data = {"name": Path(script.path).stem, **config, "entrypoint": entrypoint or start + script.shell()}
    notices = load(data, extensions=extensions_of(plugins)).notices
    with tempfile.TemporaryDirectory(prefix="det-code-") as scratch:
        code = Path(scratch) / "code"
        copy_code(script.context_dir, code)
        script.write(code)
        experiment = Client(home).create_experiment(data, code, start=False)
    for notice in notices:
        sys.stderr.write(f"det: {notice}\n")
    sys.stdout.write(
        f"experiment {experiment.id} ({experiment.name}) is submitted; its workers run {script.path} again, and nothing that "
        "follows runs here\n"
    )
    sys.stdout.flush()
    raise SystemExit(_follow(experiment.id, home))


def _follow(experiment: int, home: Path) -> int:
    """Drive the experiment in a process of its own, as `det resume` does; Ctrl-C is for that one."""
    argv = [sys.executable, "-P", "-m", "det_driver.cli", "resume", str(experiment)]
    notebook = "ipykernel" in sys.modules
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if notebook or hasattr(sys, "ps1") else {}
    env = {**os.environ, "DET_HOME": str(home)}
    argv += ["--quiet"] if notebook else []
    with _interrupts_ignored(), subprocess.Popen(argv, env=env, text=True, **output) as process:  # type: ignore[call-overload]
        if notebook:
            _say_progress(process, experiment, home)
        for line in process.stdout or ():
            sys.stdout.write(line)
        return int(process.wait())


def _is_readable(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], _POLL_SECONDS)[0])


def _say_progress(process: subprocess.Popen[str], experiment: int, home: Path) -> None:
    """Keep one line up to date until a driver, which says nothing before, has last words."""
    line = StatusLine(shown=True)
    with Store.reader(home) as store:
        while not _is_readable(process):
            line.write(store.experiments.summary(experiment))
        line.write(store.experiments.summary(experiment))
    line.close()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Leave Ctrl-C, which a terminal sends to both, to the process that is followed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class ScriptCommand:
    """A script, or a notebook, by its path below `context_dir`, with its arguments."""

    context_dir: Path
    path: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, context_dir: str | Path, command: str | Sequence[str] | None) -> ScriptCommand:
        """Return what `command` means, by default the running script with its arguments.

        Raises DetError where there is no such file in the context directory, or what runs is no script.
        """
        if str(context_dir) == "":
            raise DetError("context_dir is empty; name the directory of your code, such as '.'")
        root = Path(context_dir).resolve()
        if not root.is_dir():
            raise DetError(f"context_dir is {str(context_dir)!r}, which is no directory; name that of your code")
        words = _running(root) if command is None else _words(command)
        path = words[0]
        if not path.endswith((".py", ".ipynb")):
            raise DetError(
                f"command is {' '.join(words)!r}; begin it with the path of a .py or .ipynb file in context_dir"
            )
        file = (root / path).resolve()
        if not file.is_file() or not file.is_relative_to(root):
            raise DetError(f"command begins with {path!r}, which is no file in {root}; give a path below context_dir")
        return cls(root, path, tuple(words[1:]))

    @property
    def script(self) -> str:
        """The path of what the workers run: the script, or that which is made of the notebook."""
        return self.path.removesuffix(".ipynb") + _SUFFIX if self.path.endswith(".ipynb") else self.path

    def write(self, code: Path) -> None:
        """Add to a copy of the context directory what the workers need."""
        if self.script != self.path:
            (code / self.script).write_text(script_of(self.context_dir / self.path), encoding="utf-8")
        (code / _FILE).write_text(json.dumps([self.script, *self.arguments]))

    def shell(self) -> str:
        """Return the command as a shell line."""
        return shlex.join(["python3", self.script, *self.arguments])


def _running(root: Path) -> list[str]:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None or hasattr(sys, "ps1"):
        raise DetError(
            "this is no script that a worker could run again; give command=['notebook.ipynb'], or the path of a script"
        )
    script = Path(file).resolve()
    if not script.is_relative_to(root):
        raise DetError(f"the script {script} is not in context_dir {str(root)!r}; name a directory that holds it")
    return [script.relative_to(root).as_posix(), *sys.argv[1:]]


def _words(command: str | Sequence[str]) -> list[str]:
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    if not words:
        raise DetError("command is empty; begin it with the path of a script in context_dir")
    return words


def script_of(notebook: Path) -> str:
    """Return the code cells of a notebook as a script, without the lines for the shell and for IPython.

    Raises DetError for a file that is no notebook.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]  # a text, or its lines
    except (OSError, ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise DetError(f"{notebook} cannot be read as a notebook: {kind}; give an .ipynb file") from error
    return "\n\n".join(_plain(code) for code in codes) + "\n"


def _plain(code: str) -> str:
    if code.lstrip().startswith("%%"):
        return ""  # a cell in another language, or for another program
    return "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(_MAGIC))


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
    try:
        script, *arguments = json.loads((code_dir / _FILE).read_text())
    except (OSError, ValueError) as error:
        raise DetError(f"{code_dir} holds no {_FILE}; submit the script itself, by running it") from error
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
