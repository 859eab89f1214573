"""Images that Apptainer runs: a SIF file, known by its content, or an image of a registry, known by its digest.

Apptainer's containers are processes of who starts them: they have the machine's network, process ids and shared memory, get the
signals of their group, and end with the process that stands for them.
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
    """Tell whether an image is named as only Apptainer names them: by a file, or with a scheme."""
    return image.endswith(".sif") or "://" in image


@contextmanager
def found(image: str, directory: Path, root: Path, call: Call) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Give what tells this image from all others, and the words that run something of it, without the machine's files.

    A file is given from `directory`; an image of a registry is fetched below `root`, to be looked at.
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
            f"environment.image is {image}, which may be another one tomorrow: name it by its digest ({name}@sha256:…), or "
            f"make a file of it: apptainer pull NAME.sif {reference}"
        )
    with TemporaryDirectory(prefix=".image-", dir=root) as scratch:
        file = Path(scratch) / "image.sif"
        _fetch(reference, file, call)
        yield {"id": digest[1], "digests": [reference.removeprefix("docker://")]}, [*run, str(file)]


def install(about: Mapping[str, Any], into: Path, call: Call) -> dict[str, Any]:
    """Return where the image is on this machine: its file, which has to be the same, or one that is made below `into`."""
    if "file" not in about:  # another engine may have looked it up
        _fetch(f"docker://{about['digests'][0]}", into / "image.sif", call)
        return {"file": str(into / "image.sif"), "content": None}
    file = Path(about["file"])
    if not file.is_file():
        raise DetError(f"the image {file} is not on {os.uname().nodename}; put it there, or on a disk that all have")
    must_be(file, about["id"])
    return {"content": about["id"], "stamp": _stamp(file)}


def words_of(about: Mapping[str, Any], arguments: Sequence[str], mounts: Sequence[str], gpus: bool) -> list[str]:
    """Return the command that runs the image's Python here, with this process's variables. Raises DetError for another file."""
    file = Path(about["file"])
    if about["content"] and (not file.is_file() or _stamp(file) != about["stamp"]):
        must_be(file, about["content"])
    binds = (word for mount in mounts for word in ("--bind", _bind(mount)))
    return [*_RUN, "--pwd", os.getcwd(), *(["--nv"] if gpus else []), *binds, str(file), "python3", *arguments]


def _bind(mount: str) -> str:
    """Return a mount as Apptainer takes it, to which a comma begins another one; how mounts propagate it does not know."""
    there, here, *options = mount.split(":")
    return ":".join([there, here, *(["ro"] if "ro" in ",".join(options).split(",") else [])])


def must_be(file: Path, content: str) -> None:
    """Raise DetError unless the file is there with this content."""
    if not file.is_file() or _content(file) != content:
        raise DetError(
            f"the image {file} is not the one that the experiment was made with (its SHA-256 was {content[:12]}…)"
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
