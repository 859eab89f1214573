"""The script of an experiment, as its workers find it: a path below the context directory, and arguments."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from det_core.errors import DetError

from ._notebook import SUFFIX, script_of

FILE = "det-native.json"  # of the code of an experiment: its command


@dataclass(frozen=True)
class Command:
    """A script, or a notebook, by its path below `context_dir`, with its arguments."""

    context_dir: Path
    path: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, context_dir: str | Path, command: str | Sequence[str] | None) -> Command:
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
        return self.path.removesuffix(".ipynb") + SUFFIX if self.path.endswith(".ipynb") else self.path

    def write(self, code: Path) -> None:
        """Add to a copy of the context directory what the workers need."""
        if self.script != self.path:
            (code / self.script).write_text(script_of(self.context_dir / self.path), encoding="utf-8")
        (code / FILE).write_text(json.dumps([self.script, *self.arguments]))

    def shell(self) -> str:
        """Return the command as a shell line."""
        return shlex.join(["python3", self.script, *self.arguments])


def read_command(code: Path) -> list[str]:
    """Return the script and its arguments; DetError where the code has none."""
    try:
        words: list[str] = json.loads((code / FILE).read_text())
    except (OSError, ValueError) as error:
        raise DetError(f"{code} holds no {FILE}; submit the script itself, by running it") from error
    return words


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
