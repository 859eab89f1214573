"""The files of an agent that does not share its driver's directories.

The driver sends code to the agent, and the agent sends what runs write to their logs, and the
images, tables and texts that they log.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from det_core.errors import DetError
from det_core.support.archives import extract
from det_core.support.paths import NotRegularFile, read_regular
from det_core.train.media import FOLDER, find_media

from ..task import STATUS
from ..terminal import SOCKET
from ._frames import LogChunk, LoggedFile, RunSpec

_CHUNK = 1 << 20


def pack(code_dir: Path) -> tuple[str, bytes]:
    """Return the SHA-256 digest and the tar of a directory of code.

    Both are the same wherever and whenever the directory is packed.
    """
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
    """Directories of code, named by digest, and of runs, below a directory that the agent owns."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sent: dict[Path, int] = {}
        self._sent_media: dict[Path, tuple[int, float]] = {}
        self._packed: dict[str, bytes] = {}
        self._runs: dict[int, Path] = {}

    @property
    def codes(self) -> tuple[str, ...]:
        """The digests of the code that is unpacked here."""
        return tuple(
            path.name
            for path in (self._directory / "code").glob("*")
            if not path.name.startswith(".")
        )

    def add_code(self, digest: str, packed: bytes) -> None:
        """Keep packed code until a run needs it.

        An error while it is unpacked fails that run only. The next run tries again.
        """
        self._packed[digest] = packed

    def _unpack(self, digest: str) -> Path:
        """Return the directory of the unpacked code, which is complete or does not exist.

        Raises OSError, and DetError where the code was never sent or cannot be unpacked.
        """
        final = self._directory / "code" / digest
        if final.exists():
            return final
        if digest not in self._packed:
            raise DetError(
                f"the code of its experiment never came to {final}; resume the experiment, which"
                " sends it again"
            )
        partial = final.with_name(f".{digest}")
        try:
            with tarfile.open(fileobj=io.BytesIO(self._packed[digest]), mode="r:") as tar:
                extract(tar, partial)
            partial.rename(final)
        except OSError as error:
            # The error of a full disk names no file.
            shutil.rmtree(partial, ignore_errors=True)
            raise OSError(error.errno, error.strerror, str(final)) from error
        except tarfile.TarError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise DetError(f"its code cannot be unpacked to {final}: {error}") from error
        del self._packed[digest]
        return final

    def with_own_directories(self, spec: RunSpec) -> RunSpec:
        """Return a run with this node's directories in place of its driver's.

        Raises OSError and DetError.
        """
        own = self._directory / f"run-{spec.run_id}"
        self._runs[spec.run_id] = own
        own_variables = {
            "DET_AGENT_ID": os.uname().nodename,
            "DET_SPOOL_DIR": self._directory / "spool",
            "DET_SCRATCH_DIR": own / "scratch",
            "DET_TENSORBOARD_DIR": own / "tensorboard",
        }
        if "DET_ENVIRONMENTS" in spec.variables:
            own_variables["DET_ENVIRONMENTS"] = self._directory.parent / "envs"
        variables = {**spec.variables, **{name: str(path) for name, path in own_variables.items()}}
        code_dir = self._unpack(spec.code)
        return msgspec.structs.replace(spec, code_dir=code_dir, log_dir=own, variables=variables)

    def terminals(self, runs: Iterable[int]) -> list[tuple[int, Path]]:
        """Return where runs that have directories here serve terminals, if they do."""
        return [(run, self._runs[run] / "scratch" / SOCKET) for run in runs if run in self._runs]

    def close(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def set_sent(self, logs: Mapping[int, Mapping[str, int]]) -> None:
        """Note how many bytes of each log the driver has: `logs[run][file]`.

        All media are sent again, as those of the last moments may not have arrived.
        """
        self._sent_media.clear()
        self._sent = {
            own / file: logs.get(run, {}).get(file, 0)
            for run, own in self._runs.items()
            for file in (path.name for path in _logs(own))
        }

    def send_logs(self, runs: Iterable[int], send: Callable[[LogChunk], None]) -> None:
        """Pass on what runs have written to their logs since the last call."""
        for run in runs:
            for path in _logs(self._runs[run]) if run in self._runs else ():
                self._send_log(run, path, send)

    def send_media(self, runs: Iterable[int], send: Callable[[LoggedFile], None]) -> None:
        """Pass on the images, tables and texts that runs have logged since the last call."""
        for run in runs:
            if run not in self._runs:
                continue
            folder = self._runs[run] / "tensorboard" / FOLDER
            for each in find_media(folder):
                path, version = folder / each.path, (each.size, each.written)
                if self._sent_media.get(path) == version:
                    continue
                # An image of another type may replace this one at any moment.
                with suppress(FileNotFoundError, NotRegularFile):
                    send(LoggedFile(run, each.path, read_regular(path)))
                    self._sent_media[path] = version

    def _send_log(self, run: int, path: Path, send: Callable[[LogChunk], None]) -> None:
        with path.open("rb") as file:
            file.seek(self._sent.get(path, 0))
            while data := file.read(_CHUNK):
                send(LogChunk(run, path.name, self._sent.get(path, 0), data))
                self._sent[path] = self._sent.get(path, 0) + len(data)


def _logs(own: Path) -> list[Path]:
    """Return the files of a run that its driver gets as they grow."""
    status = own / STATUS
    return [*sorted(own.glob("*.log")), *([status] if status.exists() else [])]
