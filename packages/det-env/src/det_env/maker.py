"""Environments by uv: locks requirements with digests, and installs from the lock."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from det_core.errors import ConfigError, DetError
from det_core.support.paths import expand_user
from det_node.environments import READY, EnvironmentMaker, Wanted

from . import requirements, wheels
from .uv import UvFailed, find_settings, uv

_HOUSES = ("det-driver", "det-horovod")
_OLDEST = 11
LOCK = "requirements.lock"
PYTHON = "python.json"
REMEMBERED_SECONDS = 86_400.0
"""How long a lock is reused. The same requirements give the same versions on that day, at once."""
_SHARE_WITH = 3
_LOCAL = re.compile(r"^(?:-e )?(?:\S+ @ )?(?P<place>file://\S+|[./~]\S*)")


class UvMaker(EnvironmentMaker):
    """Locks with `uv pip compile` and installs with `uv pip sync`.

    Packages that are not on an index are kept as wheels in the directory of the lock.
    """

    def solve(self, wanted: Wanted, into: Path) -> None:
        asked = requirements.read(
            wanted.requirements, wanted.directory, lambda file: _export(file, wanted.root)
        )
        brought = _pack([*wanted.brings, *_names(asked.lines)], wanted.root)
        python = wanted.python or asked.python or sys.executable
        known = wanted.root / "solved" / _question(asked, python, brought, wanted.root)
        if not _local(asked, wanted.directory):
            with suppress(OSError):
                if time.time() - known.stat().st_mtime < REMEMBERED_SECONDS:
                    shutil.copytree(known, into, dirs_exist_ok=True)
                    return
        self._solve(asked, python, brought, wanted, into)
        with (
            tempfile.TemporaryDirectory(prefix=".", dir=_made(known.parent)) as scratch,
            suppress(OSError),
        ):
            shutil.copytree(into, Path(scratch) / "new")
            shutil.rmtree(known, ignore_errors=True)
            (Path(scratch) / "new").rename(known)
            os.utime(known)

    def _solve(
        self,
        asked: requirements.Requested,
        python: str,
        brought: list[Path],
        wanted: Wanted,
        into: Path,
    ) -> None:
        # Plugins in the code may require these, even if they are directories of the user's. They
        # are used only if something requires them.
        others = [each for each in _pack(_HOUSES, wanted.root) if each not in brought]
        found = _find_python(python, wanted.root)
        with tempfile.TemporaryDirectory(prefix=".solve-", dir=wanted.root) as scratch:
            lines, overrides, lock = (
                Path(scratch) / name for name in ("requirements.in", "overrides.txt", LOCK)
            )
            lines.write_text("\n".join([*asked.lines, *map(_as_line, brought), ""]))
            overrides.write_text("\n".join([*map(_as_line, others), ""]))
            options = (
                "--python",
                found,
                "--generate-hashes",
                "--no-header",
                "--no-annotate",
                "--quiet",
                "--override",
                overrides,
            )
            try:
                uv(
                    "pip",
                    "compile",
                    *options,
                    "-o",
                    lock,
                    lines,
                    root=wanted.root,
                    cwd=wanted.directory,
                )
            except UvFailed as error:
                problem = str(error).replace(f"`{lines}`", "them").replace(str(lines), "them")
                raise ConfigError(
                    f"environment.requirements cannot be met: {problem}; change them, or"
                    " environment.python"
                ) from error
            solved = lock.read_text()
        options_of = [
            line
            for line in asked.lines
            if line.startswith("-") and not line.startswith(("-r", "-e", "-c"))
        ]
        kept = _keep_local(solved, wanted.directory, into, found, wanted.root)
        (into / LOCK).write_text("\n".join([*options_of, kept]))
        version = uv(
            "python", "find", "--show-version", found, root=wanted.root, cwd=wanted.directory
        ).strip()
        given = python if os.sep in python and python != sys.executable else ""
        (into / PYTHON).write_text(
            json.dumps({"version": ".".join(version.split(".")[:2]), "path": given})
        )

    def install(self, solved: Path, into: Path) -> Path:
        asked, root = json.loads((solved / PYTHON).read_text()), into.parent
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        python = asked["path"] or (sys.executable if asked["version"] == here else asked["version"])
        sys.stdout.write(f"making an environment of Python {asked['version']} in {into}\n")
        try:
            uv("venv", "--no-project", "--python", python, into, root=root, cwd=solved, loud=True)
            uv(
                "pip",
                "sync",
                "--python",
                into / "bin" / "python",
                LOCK,
                root=root,
                cwd=solved,
                loud=True,
            )
        except UvFailed as error:
            raise DetError(
                f"{error}; the lock was solved for Python {asked['version']}, and this is"
                f" {platform.machine()} with the indexes that pip or uv knows here"
            ) from error
        _share_byte_code(into)
        return into / "bin" / "python"


def _share_byte_code(environment: Path) -> None:
    """Link the byte code of identical files in the environments that were used last.

    For PyTorch this saves 20 MB and some seconds.
    """
    (own,) = environment.glob("lib/python3*/site-packages")
    used = [ready for ready in environment.parent.glob(f"*/{READY}") if ready.parent != environment]
    for ready in sorted(used, key=lambda ready: ready.stat().st_mtime, reverse=True)[:_SHARE_WITH]:
        other = ready.parent / own.relative_to(environment)
        for place, folders, files in os.walk(other):
            if place.endswith("__pycache__"):
                # Another process may remove it.
                with suppress(OSError):
                    _link_byte_code(
                        Path(place).parent, own / Path(place).parent.relative_to(other), files
                    )
                folders.clear()


def _link_byte_code(there: Path, here: Path, files: list[str]) -> None:
    found = {entry.name: entry.inode() for entry in os.scandir(there)}
    mine = {entry.name: entry.inode() for entry in os.scandir(here)}
    for name in files:
        source = f"{name.partition('.')[0]}.py"
        # It is the same file: uv has linked it.
        if source in mine and mine[source] == found.get(source):
            target = here / "__pycache__" / name
            target.parent.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                target.hardlink_to(there / "__pycache__" / name)


def _pack(names: Iterable[str], root: Path) -> list[Path]:
    return [wheels.pack(each, root) for each in wheels.closure(names)]


def _as_line(wheel: Path) -> str:
    return f"{wheel.name.partition('-')[0].replace('_', '-')} @ {wheel.as_uri()}"


def _find_python(python: str, root: Path) -> str:
    """Return the path of an interpreter. Raises ConfigError where there is none."""
    if python == sys.executable:
        return python
    if (old := re.fullmatch(r"3\.(\d+)(\.\d+)?", python)) and int(old[1]) < _OLDEST:
        raise ConfigError(
            f"environment.python is {python!r}, and there is no det before Python 3.{_OLDEST}; give"
            " a newer one"
        )
    try:
        return uv("python", "find", "--no-project", python, root=root, cwd=root).strip()
    except UvFailed as error:
        raise ConfigError(
            f"environment.python is {python!r}: {error}; install it, or give the path of an"
            " interpreter that is there"
        ) from error


def _export(file: Path, root: Path) -> str:
    options = (
        "--frozen",
        "--no-emit-project",
        "--no-hashes",
        "--no-header",
        "--no-annotate",
        "--quiet",
    )
    try:
        return uv("export", *options, "--project", file.parent, root=root, cwd=file.parent)
    except UvFailed as error:
        raise ConfigError(
            f"environment.requirements is {file.name!r}: {error}; make it again with: uv lock"
        ) from error


def _names(lines: tuple[str, ...]) -> list[str]:
    """Return the required names, without an URL, that are det or a plugin and are installed here.

    They are installed from here, not from an index.
    """
    found = []
    for line in lines:
        with suppress(InvalidRequirement):
            requirement = Requirement(line.partition(" #")[0].strip())
            if requirement.url is None:
                found.append(requirement.name)
    known = wheels.ours()
    return [name for name in found if canonicalize_name(name) in known]


def _local(asked: requirements.Requested, directory: Path) -> bool:
    """Return whether files of this machine are required, which may change without notice."""
    text = "\n".join([*asked.lines, asked.source])
    return "file:" in text or any(
        line.startswith(("-e", ".", "/", "-r", "-c")) and not line.startswith(f"-r {directory}")
        for line in text.splitlines()
    )


def _question(asked: requirements.Requested, python: str, brought: list[Path], root: Path) -> str:
    """Return a hash of everything that the lock depends on."""
    parts = [
        asked.lines,
        asked.source,
        python,
        [each.parts[-2:] for each in brought],
        find_settings(root),
    ]
    return hashlib.sha256(json.dumps([*parts, platform.machine()]).encode()).hexdigest()[:32]


def _keep_local(lock: str, directory: Path, into: Path, python: str, root: Path) -> str:
    """Copy or build the local packages of a lock as wheels into `into`, and return the new lock."""
    lines = lock.replace("\\\n", " ").splitlines()
    return "\n".join(_kept(line, directory, into, python, root) for line in lines) + "\n"


def _kept(line: str, directory: Path, into: Path, python: str, root: Path) -> str:
    found = _LOCAL.match(line)
    if found is None:
        return " ".join(line.split())
    place = found["place"]
    path = (
        Path(unquote(urlparse(place).path))
        if place.startswith("file:")
        else directory / expand_user(place)
    )
    if path.suffix == ".whl":
        wheel = into / path.name
        shutil.copyfile(path, wheel)
    else:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=root) as scratch:
            try:
                uv(
                    "build",
                    "--wheel",
                    "--quiet",
                    "--python",
                    python,
                    "--out-dir",
                    scratch,
                    path,
                    root=root,
                    cwd=root,
                )
            except UvFailed as error:
                raise ConfigError(
                    f"environment.requirements names {path}, which cannot be built: {error}"
                ) from error
            (built,) = Path(scratch).glob("*.whl")
            wheel = into / built.name
            shutil.copyfile(built, wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"./{wheel.name} --hash=sha256:{digest}"


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
