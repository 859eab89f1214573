"""Runs images with Apptainer: a SIF file, known by its content, or a registry image by its digest.

Apptainer's containers are processes of the user. They have the host's network, process ids and
shared memory. They get the signals of their process group. They end with the process that was
started as the interpreter.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from det_core.errors import ConfigError, DetError

ENGINE = "apptainer"
Call = Callable[..., str]
_RUN = (ENGINE, "--silent", "--nocolor", "exec", "--no-mount", "home,tmp,cwd")


def is_for(image: str) -> bool:
    """Return whether only Apptainer can run the image: it is a SIF file, or has a scheme."""
    return image.endswith(".sif") or "://" in image


@contextmanager
def found(
    image: str, directory: Path, root: Path, call: Call
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield what identifies an image, and the command prefix that runs a program in it.

    The home, /tmp and the working directory are not mounted. A file is looked up in `directory`,
    and a registry image is pulled below `root`. Raises ConfigError where there is no such file or
    the image has no digest.
    """
    run = [*_RUN, "--cleanenv"]
    if image.endswith(".sif") or image.startswith((".", "/")):
        file = (directory / image).resolve()
        if not file.is_file():
            more = f": apptainer build NAME.sif {file}" if file.is_dir() else ""
            raise ConfigError(f"environment.image is {image}, and {file} is no file{more}")
        yield {"id": _content(file), "file": str(file)}, [*run, str(file)]
        return
    reference = image if "://" in image else f"docker://{image}"
    digest = re.search(r"@sha256:([0-9a-f]{64})$", reference)
    if digest is None:
        name = reference.rpartition(":")[0]
        raise ConfigError(
            f"environment.image is {image}, which may be another one tomorrow: name it by its"
            f" digest ({name}@sha256:…), or make a file of it: apptainer pull NAME.sif {reference}"
        )
    with TemporaryDirectory(prefix=".image-", dir=root) as scratch:
        file = Path(scratch) / "image.sif"
        _fetch(reference, file, call)
        yield {"id": digest[1], "digests": [reference.removeprefix("docker://")]}, [*run, str(file)]


def install(about: Mapping[str, Any], into: Path, call: Call) -> dict[str, Any]:
    """Return the facts that `words_of` needs about the image on this machine.

    A registry image is pulled into `into`. Raises DetError where the file is missing or has
    changed.
    """
    # Another engine may have looked up the image.
    if "file" not in about:
        _fetch(f"docker://{about['digests'][0]}", into / "image.sif", call)
        return {"file": str(into / "image.sif"), "content": None}
    file = Path(about["file"])
    if not file.is_file():
        raise DetError(
            f"the image {file} is not on {os.uname().nodename}; put it there, or on a disk that all"
            " have"
        )
    must_be(file, about["id"])
    return {"content": about["id"], "stamp": _stamp(file)}


def words_of(
    about: Mapping[str, Any], arguments: Sequence[str], mounts: Sequence[str], gpus: bool
) -> list[str]:
    """Return the command that runs the image's Python, with this process's variables.

    Raises DetError where the file has changed.
    """
    file = Path(about["file"])
    if about["content"] and (not file.is_file() or _stamp(file) != about["stamp"]):
        must_be(file, about["content"])
    binds = (word for mount in mounts for word in ("--bind", _bind(mount)))
    return [
        *_RUN,
        "--pwd",
        os.getcwd(),
        *(["--nv"] if gpus else []),
        *binds,
        str(file),
        "python3",
        *arguments,
    ]


def _bind(mount: str) -> str:
    """Return a mount in Apptainer's format: commas separate mounts, and only `ro` is an option."""
    there, here, *options = mount.split(":")
    return ":".join([there, here, *(["ro"] if "ro" in ",".join(options).split(",") else [])])


def must_be(file: Path, content: str) -> None:
    """Raise DetError unless the file exists with this SHA-256."""
    if not file.is_file() or _content(file) != content:
        raise DetError(
            f"the image {file} is not the one that the experiment was made with (its SHA-256 was"
            f" {content[:12]}…)"
        )


def _fetch(reference: str, file: Path, call: Call) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    call(ENGINE, "--silent", "--nocolor", "pull", str(file), reference)


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _stamp(file: Path) -> list[int]:
    found = file.stat()
    return [found.st_size, found.st_mtime_ns]
