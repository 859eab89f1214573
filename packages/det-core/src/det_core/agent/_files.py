"""The files of an agent that does not see its driver's: code comes to it, and what runs write to their logs goes back."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from ._frames import RunSpec, Wrote

_CHUNK = 1 << 20


def pack(code_dir: Path) -> tuple[str, bytes]:
    """Return a directory of code as a tar, and its digest, which is the same wherever and whenever it is packed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(code_dir.rglob("*")):
            tar.add(path, str(path.relative_to(code_dir)), recursive=False, filter=_plain)
    return hashlib.sha256(packed.getvalue()).hexdigest(), packed.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


class OwnFiles:
    """Directories for code by its digest, and for each run, below one that is the agent's own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sent: dict[Path, int] = {}
        self._runs: dict[int, Path] = {}

    @property
    def codes(self) -> tuple[str, ...]:
        """The digests of the code that is here, whole."""
        return tuple(path.name for path in (self._directory / "code").glob("*") if not path.name.startswith("."))

    def keep(self, digest: str, packed: bytes) -> None:
        """Unpack code, once; it is there whole or not at all."""
        final = self._directory / "code" / digest
        if not final.exists():
            partial = final.with_name(f".{digest}")
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                tar.extractall(partial, filter="data")
            partial.mkdir(parents=True, exist_ok=True)  # for no files at all
            partial.rename(final)

    def moved(self, spec: RunSpec) -> RunSpec:
        """Return a run with this machine's directories in place of its driver's."""
        own = self._directory / f"run-{spec.run_id}"
        self._runs[spec.run_id] = own
        here = {
            "DET_AGENT_ID": os.uname().nodename,
            "DET_SPOOL_DIR": self._directory / "spool",
            "DET_SCRATCH_DIR": own / "scratch",
            "DET_TENSORBOARD_DIR": own / "tensorboard",
        }
        if "DET_ENVIRONMENTS" in spec.variables:
            here["DET_ENVIRONMENTS"] = self._directory.parent / "envs"
        variables = {**spec.variables, **{name: str(path) for name, path in here.items()}}
        code_dir = self._directory / "code" / spec.code
        return msgspec.structs.replace(spec, code_dir=code_dir, log_dir=own, variables=variables)

    def close(self) -> None:
        """Delete what is here."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def has_told(self, logs: Mapping[int, Mapping[str, int]]) -> None:
        """The driver has so much of each file."""
        self._sent = {
            own / file: logs.get(run, {}).get(file, 0)
            for run, own in self._runs.items()
            for file in (path.name for path in own.glob("*.log"))
        }

    def tell(self, runs: Iterable[int], told: Callable[[Wrote], None]) -> None:
        """Pass on what runs have written since."""
        for run in runs:
            for path in sorted(self._runs[run].glob("*.log")) if run in self._runs else ():
                self._tell(run, path, told)

    def _tell(self, run: int, path: Path, told: Callable[[Wrote], None]) -> None:
        with path.open("rb") as file:
            file.seek(self._sent.get(path, 0))
            while data := file.read(_CHUNK):
                told(Wrote(run, path.name, self._sent.get(path, 0), data))
                self._sent[path] = self._sent.get(path, 0) + len(data)
