"""A script that is its own experiment: its submission, and its entrypoint in a worker.

It may also be a notebook. A worker that loads `det_driver.native.script:Trial` executes the script
of the working directory until it passes its trial to `take_over`.
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

from det_core.checkpoint.code import copy_code
from det_core.errors import DetError, EntrypointError
from det_core.hooks import Plugins, extensions_of
from det_core.train.environ import WorkerEnv

from ..client import Client, StatusLine
from ..config import load
from ..store import Store

ENTRYPOINT = "det_driver.native.script:Trial"
# The file with the command, in the code of an experiment.
_FILE = "det-native.json"
_SUFFIX = "__det__.py"
_POLL_SECONDS = 0.5
_STATUS = {"COMPLETED": 0, "PAUSED": 130}
_MAGIC = ("!", "%")


def submit(
    config: Mapping[str, Any],
    context_dir: str | Path,
    command: str | Sequence[str] | None,
    *,
    home: Path,
    entrypoint: str | None,
    start: str = "",
    master: str = "",
) -> NoReturn:
    """Make an experiment of the script, follow it, and end this process with its status.

    With a `master`, it is made on the server at that address.

    The status is that of `det run`. `entrypoint` is what the workers load. By default they run the
    script itself, with `start` before it. An entrypoint in `config` is ignored.
    """
    script = ScriptCommand.of(context_dir, command)
    plugins = Plugins.installed()
    data = {
        "name": Path(script.path).stem,
        **config,
        "entrypoint": entrypoint or start + script.shell(),
    }
    notices = load(data, extensions=extensions_of(plugins)).notices
    with tempfile.TemporaryDirectory(prefix="det-code-") as scratch:
        code = Path(scratch) / "code"
        copy_code(script.context_dir, code)
        script.write(code)
        client = Client(master=master) if master else Client(home)
        experiment = client.create_experiment(data, code, start=bool(master))
    to = f" to {master}" if master else ""
    for notice in notices:
        sys.stderr.write(f"det: {notice}\n")
    sys.stdout.write(
        f"experiment {experiment.id} ({experiment.name}) is submitted{to}; its workers run"
        f" {script.path} again, and nothing that follows runs here\n"
    )
    sys.stdout.flush()
    if master:
        argv = ["-m", master, "logs", "--follow", str(experiment.id), "--driver"]
        status = _execute(argv, home)
        raise SystemExit(status or _STATUS.get(experiment.state, 1))
    raise SystemExit(_follow(experiment.id, home))


def _follow(experiment: int, home: Path) -> int:
    """Drive the experiment in a child process, as `det resume` does.

    Ctrl-C goes to that process.
    """
    notebook = "ipykernel" in sys.modules
    argv = ["-m", "", "resume", str(experiment), *(["--quiet"] if notebook else [])]
    return _execute(argv, home, experiment if notebook else None)


def _execute(argv: Sequence[str], home: Path, shown: int | None = None) -> int:
    """Execute a command of det, and print what it prints. Show the progress of an experiment."""
    notebook = "ipykernel" in sys.modules
    output = (
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        if notebook or hasattr(sys, "ps1")
        else {}
    )
    env = {**os.environ, "DET_HOME": str(home)}
    words = [sys.executable, "-P", "-m", "det_driver.cli", *argv]
    with _interrupts_ignored(), subprocess.Popen(words, env=env, text=True, **output) as process:  # type: ignore[call-overload]
        if shown is not None:
            _say_progress(process, shown, home)
        for line in process.stdout or ():
            sys.stdout.write(line)
        return int(process.wait())


def _is_readable(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], _POLL_SECONDS)[0])


def _say_progress(process: subprocess.Popen[str], experiment: int, home: Path) -> None:
    """Update one status line until the driver writes its final output. It writes nothing before."""
    line = StatusLine(shown=True)
    with Store.reader(home) as store:
        while not _is_readable(process):
            line.write(store.experiments.summary(experiment))
        line.write(store.experiments.summary(experiment))
    line.close()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C, which a terminal sends to both processes, in this one."""
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
    """A script or a notebook, by its path below `context_dir`, with its arguments."""

    context_dir: Path
    path: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, context_dir: str | Path, command: str | Sequence[str] | None) -> ScriptCommand:
        """Return the parsed `command`, by default the running script with its arguments.

        Raises DetError if the context directory has no such file, or if no script is running.
        """
        if str(context_dir) == "":
            raise DetError("context_dir is empty; name the directory of your code, such as '.'")
        root = Path(context_dir).resolve()
        if not root.is_dir():
            raise DetError(
                f"context_dir is {str(context_dir)!r}, which is no directory; name that of your"
                " code"
            )
        words = _running(root) if command is None else _words(command)
        path = words[0]
        if not path.endswith((".py", ".ipynb")):
            raise DetError(
                f"command is {' '.join(words)!r}; begin it with the path of a .py or .ipynb file in"
                " context_dir"
            )
        file = (root / path).resolve()
        if not file.is_file() or not file.is_relative_to(root):
            raise DetError(
                f"command begins with {path!r}, which is no file in {root}; give a path below"
                " context_dir"
            )
        return cls(root, path, tuple(words[1:]))

    @property
    def script(self) -> str:
        """The path of the script that the workers run. For a notebook it is generated."""
        return (
            self.path.removesuffix(".ipynb") + _SUFFIX
            if self.path.endswith(".ipynb")
            else self.path
        )

    def write(self, code: Path) -> None:
        """Add the files that the workers need to a copy of the context directory."""
        if self.script != self.path:
            (code / self.script).write_text(
                script_of(self.context_dir / self.path), encoding="utf-8"
            )
        (code / _FILE).write_text(json.dumps([self.script, *self.arguments]))

    def shell(self) -> str:
        """Return the command as a shell line."""
        return shlex.join(["python3", self.script, *self.arguments])


def _running(root: Path) -> list[str]:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None or hasattr(sys, "ps1"):
        raise DetError(
            "this is no script that a worker could run again; give command=['notebook.ipynb'], or"
            " the path of a script"
        )
    script = Path(file).resolve()
    if not script.is_relative_to(root):
        raise DetError(
            f"the script {script} is not in context_dir {str(root)!r}; name a directory that"
            " holds it"
        )
    return [script.relative_to(root).as_posix(), *sys.argv[1:]]


def _words(command: str | Sequence[str]) -> list[str]:
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    if not words:
        raise DetError("command is empty; begin it with the path of a script in context_dir")
    return words


def script_of(notebook: Path) -> str:
    """Return the code cells of a notebook as a script, without shell and IPython lines.

    Raises DetError for a file that is no notebook.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        # A source is a text, or a list of its lines.
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise DetError(
            f"{notebook} cannot be read as a notebook: {kind}; give an .ipynb file"
        ) from error
    return "\n\n".join(_plain(code) for code in codes) + "\n"


def _plain(code: str) -> str:
    # A cell in another language, or for another program.
    if code.lstrip().startswith("%%"):
        return ""
    return "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(_MAGIC))


class TrialFound(BaseException):
    """Ends a script in a worker once its trial is known.

    It is no Exception, so that no `except Exception` catches it.
    """

    def __init__(self, trial: type) -> None:
        self.trial = trial
        super().__init__(trial.__qualname__)


@dataclass(frozen=True)
class Loading:
    """A script that a worker executes. `module` is the name under which it could be imported."""

    env: WorkerEnv
    module: str


LOADING: ContextVar[Loading | None] = ContextVar("det_loading", default=None)


def take_over(trial: type) -> NoReturn:
    """Pass a trial class to the worker that executes this script. The script ends here."""
    loading = LOADING.get()
    if loading is not None and trial.__module__ == "__main__":
        # The module from which a reader of the checkpoint imports it.
        trial.__module__ = loading.module
    raise TrialFound(trial)


def __getattr__(name: str) -> Any:
    """Return `Trial`, the trial class of the script, which is executed once."""
    if name != "Trial":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    env = WorkerEnv.read(os.environ)
    if env is None:
        raise EntrypointError(
            "det_driver.native.script is loaded by det's workers; run the script itself"
        )
    trial = execute(Path.cwd(), env)
    globals()[name] = trial
    return trial


def execute(code_dir: Path, env: WorkerEnv) -> type:
    """Execute the script of an experiment's code and return its trial.

    Raises EntrypointError if the script does not provide one.
    """
    try:
        script, *arguments = json.loads((code_dir / _FILE).read_text())
    except (OSError, ValueError) as error:
        raise DetError(
            f"{code_dir} holds no {_FILE}; submit the script itself, by running it"
        ) from error
    module = ".".join(Path(script).with_suffix("").parts)
    before, token = sys.argv, LOADING.set(Loading(env, module))
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(str(code_dir / script), run_name="__main__")
    except TrialFound as found:
        if env.ranks.rank == 0:
            sys.stdout.write(
                f"{script} has handed over {found.trial.__qualname__}; what follows in it does not"
                " run\n"
            )
            sys.stdout.flush()
        return found.trial
    except SystemExit as error:
        raise EntrypointError(
            f"{script} called sys.exit({error.code!r}) before it began to train"
        ) from error
    finally:
        sys.argv = before
        LOADING.reset(token)
    raise EntrypointError(
        f"{script} came to its end and began no training; call create(), or fit what init() wrapped"
    )
