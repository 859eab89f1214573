"""What has changed since an experiment was trained: packages, code, files of data."""

from __future__ import annotations

import difflib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from det_core.origin import packages

from ._spec import Seen

_MOST = 20
_OURS = ("/proc/", "/sys/", "/dev/", "/etc/")


def changes(recorded: Mapping[str, Any], seen: Seen, since: float | None, scratch: Path) -> list[str]:
    """Return what is known to have changed, a sentence each; files are told by their time, as they were not kept."""
    found = list(_packages(recorded.get("packages", {})))
    if recorded.get("python") and recorded["python"] != sys.version.split()[0]:
        found.append(f"Python was {recorded['python']} and is {sys.version.split()[0]}")
    if since is not None:
        modules = {os.path.realpath(file) for file in seen.modules}
        found += [f"code has changed since: {file}" for file in _newer(modules, since, scratch)]
        opened = {os.path.realpath(file) for file in seen.opened} - modules
        data = (file for file in opened if not file.endswith((".py", ".pyc")))
        found += [f"a file that training reads has changed since: {file}" for file in _newer(set(data), since, scratch)]
    return found[:_MOST]


def code_changes(before: Path, now: Path) -> list[str]:
    """Return the files of two directories of code that differ, each with the first line that does."""
    found = []
    for file in sorted(p for p in before.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        name, other = file.relative_to(before), now / file.relative_to(before)
        if not other.is_file():
            found.append(f"{name} is gone")
        elif file.read_bytes() != other.read_bytes():
            old, new = (each.read_text(errors="replace").splitlines() for each in (file, other))
            blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            line = next((start + 1 for tag, _, _, start, _ in blocks if tag != "equal"), 1)
            found.append(f"{name} differs from line {line} on")
    return found[:_MOST]


def _packages(before: Mapping[str, str]) -> Iterator[str]:
    now = packages() if before else {}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{name} was {before.get(name, 'not installed')} and is {now.get(name, 'not installed')}"


def _newer(files: set[str], since: float, scratch: Path) -> Iterator[str]:
    installed = tuple(f"{os.path.realpath(path)}{os.sep}" for path in {*sysconfig.get_paths().values(), sys.prefix})
    for file in sorted(files):
        if file.startswith((*_OURS, *installed, f"{os.path.realpath(scratch)}{os.sep}")):
            continue
        try:
            changed = os.stat(file).st_mtime
        except OSError:
            continue
        if changed > since and os.path.isfile(file):
            yield file
