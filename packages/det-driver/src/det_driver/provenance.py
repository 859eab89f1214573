"""The origin of an experiment: its code's commit and diff, interpreter, packages and hardware."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from det_core.checkpoint.code import code_files
from det_core.config import ExperimentConfig, without_secrets
from det_core.support.origin import THREADS, origin
from det_core.support.paths import read_regular

FILE = "provenance.json"
ELSEWHERES = ("determined.json", "elsewhere.json")
"""The files in an experiment's directory with the data that det migrate has no other place for: of
Determined, and of other trackers."""
_LONGEST = 1_000_000


class _Commit(TypedDict):
    commit: str
    dirty: bool


class _Submission(TypedDict):
    by: str
    key: str


class _Origin(TypedDict, total=False):
    """The parts of an origin that det reads. Other parts are ignored."""

    host: str
    python: str
    packages: dict[str, str]
    devices: list[str]
    threads: str | int | None
    tensorflow_threads: str | int | None
    git: _Commit | None
    code: list[dict[str, Any]]
    submitted: _Submission
    user: str
    written: list[str]


_origin = msgspec.json.Decoder(_Origin)
_SECONDS = 10.0


def gather(code: Path | None, config: ExperimentConfig) -> dict[str, Any]:
    """Return the present origin as plain JSON.

    Secrets of the configuration are masked. The address of a Git remote is left out.
    """
    found = origin()
    if code is not None and (commit := _lines("git", "-C", str(code), "rev-parse", "HEAD")):
        changed = "\n".join(
            _lines("git", "-C", str(code), "diff", "HEAD", "--no-ext-diff", "--", ".")
        )
        found["git"] = {"commit": commit[0], "dirty": bool(changed)}
        if changed:
            found["git"]["diff"] = without_secrets(changed[:_LONGEST], config)
    return found


def replaced(
    found: Mapping[str, Any], old: Path, new: Path, config: ExperimentConfig
) -> dict[str, Any]:
    """Return the origin of an experiment after a change of its code.

    It has the earlier changes, and the digest and the diff of this one.
    """
    change = {
        "time": time.time(),
        "digest": digest(new),
        "diff": without_secrets(diff(old, new)[:_LONGEST], config),
    }
    known = {key: value for key, value in found.items() if key != "git"}
    git = {key: value for key, value in gather(new, config).items() if key == "git"}
    return {**known, **git, "code": [*found.get("code", ()), change]}


def digest(code: Path) -> str:
    """Return the SHA-256 of a directory's code: of the names and the content of its files."""
    checksum = hashlib.sha256()
    for name in code_files(code):
        data = (code / name).read_bytes()
        checksum.update(
            f"{name.as_posix()}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data
        )
    return checksum.hexdigest()


def diff(old: Path, new: Path) -> str:
    """Return the differences of two directories of code as a unified diff.

    For a file that is no text it only says that the file differs.
    """
    lines: list[str] = []
    for name in sorted({*code_files(old), *code_files(new)}):
        before, after = (
            (root / name).read_bytes() if (root / name).is_file() else b"" for root in (old, new)
        )
        if before == after and (old / name).is_file() == (new / name).is_file():
            continue
        try:
            was, now = (data.decode().splitlines() for data in (before, after))
        except UnicodeDecodeError:
            lines.append(f"{name} differs")
            continue
        changed = list(unified_diff(was, now, f"a/{name}", f"b/{name}", lineterm=""))
        lines += changed or [f"{name} differs"]
    return "\n".join(lines)


def write(directory: Path, found: Mapping[str, Any]) -> None:
    """Write the origin to an experiment's directory, from where exports take it."""
    content = json.dumps(found, indent=1)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE}.", dir=directory)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, directory / FILE)
    except BaseException:
        os.unlink(temporary)
        raise


def adopt(directory: Path, found: Mapping[str, Any]) -> None:
    """Keep the origin that came from another home, except for whose experiment it is.

    One that is none is left out.
    """
    foreign = {key: value for key, value in found.items() if key not in ("submitted", "user")}
    with suppress(msgspec.ValidationError):
        msgspec.convert(foreign, _origin.type)
        change(
            directory,
            lambda own: {**foreign, **{k: v for k, v in own.items() if k in ("submitted", "user")}},
        )


def read(directory: Path) -> dict[str, Any]:
    """Return the origin of an experiment.

    Empty for one made before origins were recorded, and for a file that is none.
    """
    try:
        found: dict[str, Any] = json.loads(read_regular(directory / FILE))
        msgspec.convert(found, _origin.type)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        return {}
    return found


def last_written(directory: Path) -> int:
    """Return when the origin of an experiment was written, in nanoseconds. 0 if there is none."""
    try:
        return os.stat(directory / FILE).st_mtime_ns
    except OSError:
        return 0


def change(directory: Path, how: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Replace the origin of an experiment by what `how` returns for it.

    Changes by several processes follow one another.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = read(directory)
        if (changed := how(found)) != found:
            write(directory, changed)
    finally:
        os.close(descriptor)


def set_user(directory: Path, name: str) -> None:
    """Record whose experiment it is, unless its submission says so."""
    change(directory, lambda found: found if user_in(found) else {**found, "user": name})


def user_of(directory: Path) -> str:
    """Return the user whose experiment it is, by a server. Empty where none is known."""
    return user_in(read(directory))


def user_in(found: Mapping[str, Any]) -> str:
    """Return the user that an origin names. Empty where it names none."""
    submitted = found.get("submitted")
    by = submitted.get("by") if isinstance(submitted, dict) else None
    return str(by or found.get("user") or "")


def set_written(directory: Path, keys: Iterable[str]) -> None:
    """Record what an experiment's configuration says of the keys that users have defaults for."""
    change(directory, lambda found: {**found, "written": [*keys]})


def written_in(directory: Path) -> list[str] | None:
    """Return the recorded keys. None where they are not known."""
    found: list[str] | None = read(directory).get("written")
    return found


def commit(found: Mapping[str, Any]) -> str | None:
    """Return the commit of the code, with a + if there are changes. None without a repository."""
    git = found.get("git")
    return f"{git['commit']}{'+' if git['dirty'] else ''}" if git else None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences of two origins: packages by versions, and the host name last."""
    try:
        for each in (before, after):
            msgspec.convert(each, _origin.type)
    except msgspec.ValidationError:
        # They may come from elsewhere.
        return []
    theirs, mine = before.get("packages", {}), after.get("packages", {})
    changed = [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]
    lines = [
        f"{name} {mine.get(name, 'gone')} (was {theirs.get(name, 'not there')})" for name in changed
    ]
    for key in ("python", *THREADS.values(), "os", "cpu", "devices", "host"):
        was, now = (
            ", ".join(each) if isinstance(each, list) else each
            for each in (before.get(key), after.get(key))
        )
        lines += [f"{key} {now or 'none'} (was {was or 'none'})"] if was != now else []
    return lines


def _lines(*command: str) -> list[str]:
    """Return the output of a command, in lines. Empty if it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def elsewhere(directory: Path) -> dict[str, Any]:
    """Return the data from another system that det migrate kept in an experiment's directory.

    Empty for det's own experiments.
    """
    for name in ELSEWHERES:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(read_regular(directory / name))
            return found if isinstance(found, dict) else {}
    return {}
