"""Imports in a fork server the third-party modules that its runs import, where that is safe.

The first run that ends well notes its imports. A fork of the server tries them. These are left to
each run:

- A module that starts a thread or a process, opens a file, or handles signals, and all modules
  after it.
- A module that draws random numbers, and all modules that import it. A run that imports it itself
  must draw the same numbers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NOTE = ".imports.json"
_TRIES_SECONDS = 60


class Preimporter:
    """The preimporter of a fork server, made when the framework is imported.

    `unfit` returns why a fork of this process would differ from a new interpreter, or an empty
    text.
    """

    def __init__(self, code_dir: Path, unfit: Callable[[Path], str]) -> None:
        self._code_dir, self._unfit = code_dir.resolve(), unfit
        self._known = frozenset(sys.modules)
        # The note that is being tried.
        self._note: Path | None = None
        self._done = False

    def note_imports(self, log_dir: Path) -> None:
        """Note the imports of a run that ends well, unless that has happened before.

        It is called in the run. Looking at modules copies pages of memory in a fork.
        """
        if self._done:
            return
        names = [
            name
            for name, module in list(sys.modules.items())
            if name not in self._known and self._is_other(module)
        ]
        with contextlib.suppress(OSError):
            (log_dir / _NOTE).write_text(json.dumps(names))

    def try_imports(self, log_dir: Path, release: Callable[[], None]) -> int | None:
        """Try the imports that a run has noted, in a new process.

        Return its number, if there is one.

        It is called in the server after a run. The caller has to call `import_safe_modules` when
        the process has ended. `release` is called in the new process, and closes the server's
        descriptors.
        """
        note = log_dir / _NOTE
        if self._done or not note.exists():
            note.unlink(missing_ok=True)
            return None
        self._done, self._note = True, note
        if note.read_text() == "[]":
            note.unlink()
            return None
        if (pid := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                release()
                signal.alarm(_TRIES_SECONDS)
                silent = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(silent, stream)
                found = self._harmless(json.loads(note.read_text()))
                partial = note.with_suffix(".part")
                partial.write_text(json.dumps(found))
                partial.rename(note)
            os._exit(0)
        return pid

    def import_safe_modules(self, *, well: bool) -> None:
        """Import the modules that are safe, where the trial process has ended `well`."""
        note, self._note = self._note, None
        assert note is not None
        names: list[str] = []
        with contextlib.suppress(OSError, ValueError):
            names = json.loads(note.read_text()) if well else []
            note.unlink()
        for name in names:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)

    def _is_other(self, module: Any) -> bool:
        """Return whether a module can be imported by its name, and is not in the code directory."""
        spec = getattr(module, "__spec__", None)
        places = (
            [spec.origin, *(spec.submodule_search_locations or ())]
            if spec and spec.name in sys.modules
            else []
        )
        return bool(places) and not any(
            Path(place).resolve().is_relative_to(self._code_dir) for place in places if place
        )

    def _harmless(self, names: list[str]) -> list[str]:
        """Import what is safe, and return the names.

        A module that draws random numbers is removed again, so that other modules that need it are
        seen to draw, too.
        """
        found: list[str] = []
        known, left, drawn = set(sys.modules), self._left(), _drawn({})
        for name in names:
            # An earlier module imported it.
            if name in sys.modules:
                found.append(name)
                continue
            try:
                importlib.import_module(name)
                failed = False
            except Exception:
                # It is on a path that the user's code has added.
                failed = True
            if self._left() != left:
                break
            if failed or _drawn(drawn) != drawn:
                for each in sys.modules.keys() - known:
                    del sys.modules[each]
                random.setstate(drawn["random"])
            else:
                known, drawn = set(sys.modules), _drawn({})
                found.append(name)
        return found

    def _left(self) -> list[Any]:
        """Return what an import may leave behind apart from modules."""
        return [
            self._unfit(self._code_dir),
            sorted(os.listdir("/proc/self/fd")),
            Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
            [signal.getsignal(number) for number in signal.valid_signals()],
            os.getcwd(),
            sys.path[:],
        ]


def _drawn(before: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the random generators that every run seeds.

    NumPy's state is included where it is in `before`, or where `before` is empty.
    """
    numpy = sys.modules.get("numpy.random") if "numpy" in before or not before else None
    return {"random": random.getstate()} | ({"numpy": str(numpy.get_state())} if numpy else {})
