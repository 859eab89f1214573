"""The user's code: which files of a directory belong to an experiment, and copies of them.

`.detignore` at the top holds patterns in gitignore's syntax. They need pathspec, which det-driver
installs. A worker without it has a copy of the code to which they were applied. Links that lead out
of the tree are refused. Checkpoints and event files that runs leave in the tree are not code: a
checkpoint that included them would hold all earlier ones.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ..errors import DetError
from ..storage import MANIFEST, is_manifest_of
from ..support.paths import read_regular

IGNORE_FILE = ".detignore"
MAX_BYTES = 96 * 2**20
_ALWAYS = (
    "__pycache__",
    "*.py[co]",
    ".git",
    ".hg",
    ".svn",
    ".ipynb_checkpoints",
    ".venv",
    ".nox",
    ".tox",
    ".DS_Store",
)
_OF_RUNS = ("events.out.tfevents.*", "*.pt.trace.json")


def code_files(root: Path) -> list[Path]:
    """Return the files of `root` that belong to an experiment, relative to it, sorted.

    Raises DetError if `root` is not a directory, cannot be read, or has a link that leads out of
    it.
    """
    if not root.is_dir():
        raise DetError(
            f"the code directory {root} is not a directory; name the one that holds your model"
        )
    return sorted(map(Path, _walk(root, "", (os.path.realpath(root),), _ignored_in(root))))


def copy_code(
    source: Path, target: Path, max_bytes: int = MAX_BYTES, without: Iterable[Path] = ()
) -> int:
    """Copy the files of an experiment, except those below `without`, and return their bytes.

    `target` may lie inside `source`: it is never copied into itself. Raises DetError above
    `max_bytes`, naming the largest file.
    """
    left_out, root = [path.resolve() for path in (target, *without)], source.resolve()
    files = code_files(source)
    if any(path.is_relative_to(root) or root.is_relative_to(path) for path in left_out):
        files = [
            f
            for f in files
            if not any((source / f).resolve().is_relative_to(path) for path in left_out)
        ]
    try:
        sizes: dict[Path, int] = {}
        for file in files:
            # Another process may remove a file at any time, as programs do with temporary ones.
            with suppress(FileNotFoundError):
                sizes[file] = (source / file).stat().st_size
        total = sum(sizes.values())
        if total > max_bytes:
            largest = max(sizes, key=sizes.__getitem__)
            raise DetError(
                f"the code directory {source} holds {total / 2**20:.0f} MiB, more than"
                f" {max_bytes / 2**20:.0f}; the largest file is {largest}"
                f" ({sizes[largest] / 2**20:.0f} MiB); list what is not code in {IGNORE_FILE}"
            )
        for directory in {Path(), *(file.parent for file in sizes)}:
            (target / directory).mkdir(parents=True, exist_ok=True)
        for file in sizes:
            _copy(source / file, target / file)
    except PermissionError as error:
        raise _unreadable(source, error) from error
    return total


def _copy(source: Path, target: Path) -> None:
    """Copy a small file, if it is still there, with its mode and times, with one `fstat`."""
    with (
        suppress(FileNotFoundError),
        open(source, "rb", buffering=0) as old,
        open(target, "wb") as new,
    ):
        status = os.fstat(old.fileno())
        new.write(old.read())
        new.flush()
        os.fchmod(new.fileno(), stat.S_IMODE(status.st_mode))
        os.utime(new.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _walk(
    root: Path, inside: str, around: tuple[str, ...], ignored: Callable[[str], bool]
) -> Iterator[str]:
    """Yield the names of the files below `inside`.

    `around` are the real paths of `inside` and of the directories through which it was reached.
    """
    try:
        entries = sorted(os.scandir(root / inside), key=lambda e: e.name)
    except FileNotFoundError:
        # Another process removed the directory after its parent was read.
        if inside:
            return
        raise
    except PermissionError as error:
        raise _unreadable(root, error) from error
    for entry in entries:
        name, is_dir, is_link = f"{inside}{entry.name}", entry.is_dir(), entry.is_symlink()
        if ignored(f"{name}/" if is_dir else name):
            continue
        real = os.path.realpath(entry.path) if is_link else os.path.join(around[-1], entry.name)
        if (
            is_link
            and os.path.commonpath((real, around[0])) != around[0]
            and not os.path.lexists(real)
        ):
            raise DetError(
                f"{Path(entry.path)} is a link to {os.readlink(entry.path)}, which is not there;"
                f" mend or remove it, or list it in {IGNORE_FILE}"
            )
        if is_link and os.path.commonpath((real, around[0])) != around[0]:
            raise DetError(
                f"{Path(entry.path)} is a link that leads out of the code directory; copy the file,"
                f" or list it in {IGNORE_FILE}"
            )
        if real in around:
            raise DetError(
                f"{Path(entry.path)} is a link to a directory around it; remove it, or list it in"
                f" {IGNORE_FILE}"
            )
        if is_dir:
            if not _is_checkpoint(Path(entry.path)):
                yield from _walk(root, f"{name}/", (*around, real), ignored)
        # Not a pipe, a socket or a link to nothing, such as an editor's lock.
        elif entry.is_file():
            yield name


def _is_checkpoint(directory: Path) -> bool:
    """Return whether a directory is a checkpoint: its manifest has the directory's name."""
    try:
        return is_manifest_of(directory.name, read_regular(directory / MANIFEST))
    except OSError:
        return False


def _unreadable(root: Path, error: PermissionError) -> DetError:
    return DetError(
        f"the code directory {root} cannot be read: {error.strerror}: {error.filename}; "
        f"change its mode, or list it in {IGNORE_FILE}"
    )


@cache
def _matching(*patterns: str) -> Callable[[str], bool]:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns).match_file


def _ignored_in(root: Path) -> Callable[[str], bool]:
    """Return a function that says whether a pattern leaves out a name.

    Names are relative and posix. Those of directories end with `/`.
    """
    always = (*_ALWAYS, *_OF_RUNS)
    if find_spec("pathspec") is None:
        return lambda name: any(fnmatchcase(Path(name).name, pattern) for pattern in always)
    file = root / IGNORE_FILE
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return _matching(*always, *lines)
    except PermissionError as error:
        raise _unreadable(root, error) from error
    except UnicodeDecodeError as error:
        raise DetError(f"{file} is not UTF-8 text; write one pattern on each line") from error
    except ValueError as error:
        raise DetError(
            f"{file} holds a pattern that gitignore does not know: {error}; correct it"
        ) from error
