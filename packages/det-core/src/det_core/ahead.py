"""What runs import of others' packages, imported by their fork server ahead of them, where that leaves nothing but modules.

The first run that ends well notes what it had imported. A fork of the server tries that: a module that starts a thread or a
process, opens a file or catches signals is left to each run, with all that comes after it, and so is one that draws from a
generator, with all that needs it: a run that imports it itself is to draw the same.
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


class Ahead:
    """For the server of one directory of code, and its forks; made when it has imported the framework.

    `unfit` says why a fork of this process would not be a new interpreter; empty where it would.
    """

    def __init__(self, code_dir: Path, unfit: Callable[[Path], str]) -> None:
        self._code_dir, self._unfit = code_dir.resolve(), unfit
        self._known = frozenset(sys.modules)
        self._note: Path | None = None  # what is being tried
        self._over = False

    def tell(self, log_dir: Path) -> None:
        """In a run that ends well: note what it has imported, unless that is known; to look at modules takes a fork their pages."""
        if self._over:
            return
        names = [
            name for name, module in list(sys.modules.items()) if name not in self._known and self._is_other(module)
        ]
        with contextlib.suppress(OSError):
            (log_dir / _NOTE).write_text(json.dumps(names))

    def hear(self, log_dir: Path, release: Callable[[], None]) -> int | None:
        """In the server, after a run: try what it noted; return the process, of whose end `take` is to be told, if there is one.

        It calls `release` first, to close what is the server's.
        """
        note = log_dir / _NOTE
        if self._over or not note.exists():
            note.unlink(missing_ok=True)
            return None
        self._over, self._note = True, note
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

    def take(self, *, well: bool) -> None:
        """Import what was found to be harmless, where trying it has ended `well`."""
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
        """Tell whether a module is found again by its name, and is none of the code's."""
        spec = getattr(module, "__spec__", None)
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec and spec.name in sys.modules else []
        return bool(places) and not any(
            Path(place).resolve().is_relative_to(self._code_dir) for place in places if place
        )

    def _harmless(self, names: list[str]) -> list[str]:
        """Import what can be; one that draws is forgotten again, so that another that needs it is seen to draw, too."""
        found: list[str] = []
        known, left, drawn = set(sys.modules), self._left(), _drawn({})
        for name in names:
            if name in sys.modules:  # it came with one before it
                found.append(name)
                continue
            try:
                importlib.import_module(name)
                failed = False
            except Exception:  # it is found by a path that the code has added
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
        """Return what an import may leave beside modules."""
        return [
            self._unfit(self._code_dir),
            sorted(os.listdir("/proc/self/fd")),
            Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
            [signal.getsignal(number) for number in signal.valid_signals()],
            os.getcwd(),
            sys.path[:],
        ]


def _drawn(before: dict[str, Any]) -> dict[str, Any]:
    """Return how far generators are that every run seeds: NumPy's, too, where it was there `before`, or nothing was."""
    numpy = sys.modules.get("numpy.random") if "numpy" in before or not before else None
    return {"random": random.getstate()} | ({"numpy": str(numpy.get_state())} if numpy else {})
