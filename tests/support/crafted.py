"""Files that somebody else made: what a reader of them must not do, and ways to craft them.

`watched` records what an interpreter does while a reader reads, by Python's audit events, which
nothing gets around without running code first. A test of a reader gives it crafted files, and
mutants of good ones.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

CANARY = "det_canary"
"""A module that a crafted file asks for, and that is on nobody's path."""

_PROCESSES = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "pty.spawn",
)
_CODE = (
    "pickle.find_class",
    "ctypes.dlopen",
    "code.__new__",
    "cpython.run_command",
    "webbrowser.open",
    "sys.addaudithook",
)
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_INSTALLED = (part for part in sys.path if part.endswith("site-packages"))
_OWN = tuple(
    str(Path(part).resolve())
    for part in {*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix, *_INSTALLED}
)
_REPOSITORY = str(Path(__file__).resolve().parents[2])


class _Watch:
    """What was seen, while there is a `scratch` directory that may be written.

    `others` are threads that earlier tests have left, which go on with their work.
    """

    def __init__(self) -> None:
        self.scratch: str | None = None
        self.seen: list[str] = []
        self.others = frozenset[int | None]()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.scratch is None or threading.get_ident() in self.others:
            return
        if what := self._find_harm(event, args):
            self.seen.append(what)
            raise PermissionError(what)

    def _find_harm(self, event: str, args: tuple[Any, ...]) -> str | None:
        if event.startswith("socket.") and event not in ("socket.gethostname", "socket.__new__"):
            return f"{event} {args[1:]}"
        if event in _PROCESSES or event in _CODE:
            return f"{event} {args}"
        if event == "import" and args[0].partition(".")[0] == CANARY:
            return f"import {args[0]}"
        if event == "open":
            path, mode, flags = args
            writes = (isinstance(flags, int) and flags & _WRITES) or set("wax+") & set(mode or "")
            return f"open {path} {mode}" if writes and self._is_outside(path) else None
        if event in _CHANGES or event == "shutil.rmtree":
            # A link may say anything, and does not change what it is to: writing through it is what
            # counts.
            written = args[1:2] if event in ("os.link", "os.symlink") else args
            paths = [each for each in written if isinstance(each, (str, bytes, os.PathLike))]
            # Where a directory is open, names count from there: `shutil.rmtree` removes what is in
            # one so.
            at = (
                args[-1]
                if event in ("os.remove", "os.rmdir", "os.mkdir") and args[-1] >= 0
                else None
            )
            base = os.getcwd() if at is None else os.readlink(f"/proc/self/fd/{at}")
            outside = [
                each for each in paths if self._is_outside(os.path.join(base, os.fsdecode(each)))
            ]
            return f"{event} {outside}" if outside else None
        if event in ("exec", "marshal.loads"):
            # What installed modules execute as they are imported is theirs. Of text, the one who
            # evaluates it counts.
            code = args[0]
            file = getattr(code, "co_filename", "<string>")
            frame = sys._getframe(2).f_code.co_filename
            own = _is_of(file, (*_OWN, _REPOSITORY)) or (
                file.startswith("<") and _is_of(frame, _OWN)
            )
            return None if own else f"{event} of {file} by {frame}"
        return None

    def _is_outside(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        text = os.fsdecode(path)
        place = (
            os.path.realpath(text)
            if os.path.isabs(text)
            else os.path.realpath(os.path.join(os.getcwd(), text))
        )
        allowed = (str(self.scratch), "/dev/null", "/dev/shm", "/proc")
        return not place.startswith(allowed) and "__pycache__" not in place


def _is_of(file: str, places: tuple[str, ...]) -> bool:
    return file.startswith(("<frozen", *places))


@cache
def _watch() -> _Watch:
    watch = _Watch()
    # It cannot be taken away again, and costs a comparison from here on.
    sys.addaudithook(watch)
    return watch


@contextmanager
def watched(scratch: Path) -> Iterator[list[str]]:
    """Give the list of what was done inside that no reader of a file may do.

    Such a deed fails, too.

    That is to run foreign code, to start a process, to open a connection, to write or remove files
    outside of `scratch`.
    """
    watch = _watch()
    collects = gc.isenabled()
    # What earlier tests left as garbage may have temporary directories, which it would remove here.
    gc.disable()
    here = threading.get_ident()
    watch.others = frozenset(each.ident for each in threading.enumerate() if each.ident != here)
    watch.scratch, watch.seen = str(scratch.resolve()), []
    try:
        yield watch.seen
    finally:
        watch.scratch = None
        if collects:
            gc.enable()


def reads_safely(
    read: Callable[[], Any], scratch: Path, allowed: type[Exception] | tuple[type[Exception], ...]
) -> bool:
    """Read a file that may be anything, and return whether it was read.

    What is raised must be `allowed`, and nothing be done.
    """
    with watched(scratch) as seen:
        try:
            read()
            good = True
        except allowed:
            good = False
    assert seen == []
    return good


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def harmful_pickles(file: Path) -> list[bytes]:
    """Return pickles that would make `file`, in several protocols.

    Or import a module that nobody has asked for.
    """
    asks = [f"c{CANARY}\nrun\n(S'x'\ntR.".encode(), b"cbuiltins\neval\n(S'__import__(\"os\")'\ntR."]
    return [*(pickle.dumps(Harm(file), protocol) for protocol in (0, 2, 4)), *asks]


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw a function that changes, cuts, repeats or inserts bytes at a few places."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["flip", "cut", "drop", "repeat", "insert"]),
                st.floats(0, 1, exclude_max=True),
                st.integers(1, 64),
                st.binary(min_size=1, max_size=16),
            ),
            min_size=1,
            max_size=4,
        )
    )

    def mutate(data: bytes) -> bytes:
        for kind, where, length, more in steps:
            data = _mutated(data, kind, int(where * len(data)), length, more)
        return data

    return mutate


def _mutated(data: bytes, kind: str, at: int, length: int, more: bytes) -> bytes:
    match kind:
        case "flip":
            return (
                data[:at]
                + bytes(byte ^ more[0] or 1 for byte in data[at : at + 1])
                + data[at + 1 :]
            )
        case "cut":
            return data[:at]
        case "drop":
            return data[:at] + data[at + length :]
        case "repeat":
            return data[: at + length] + data[at:]
    return data[:at] + more + data[at:]


def mutate_one(files: Sequence[Path], which: int, mutate: Callable[[bytes], bytes]) -> Path:
    """Mutate one of several files in its place, and return it."""
    file = sorted(files)[which % len(files)]
    file.write_bytes(mutate(file.read_bytes()))
    return file
