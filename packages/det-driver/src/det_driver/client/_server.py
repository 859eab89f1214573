"""Experiments on a server."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Concatenate, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from det_core.checkpoint import read_checkpoint
from det_core.checkpoint.manifest import decode
from det_core.config import from_json
from det_core.errors import CheckpointError, DetError, ExperimentBusy, StorageError, StoreError
from det_core.hooks import extensions_of
from det_core.storage import MANIFEST, LocalStorage, checked_uuid

from ..config import load
from ..driver import environment_of
from ..remote import Lost, Refusal, RemoteServer, submit_experiment
from ..store import CheckpointRow, ExperimentRow
from . import _calls
from ._home import AnyHome, Home, check_name

P = ParamSpec("P")
R = TypeVar("R")
_LONGEST_MANIFEST = 256 << 20
_BLOCK = 1 << 20
_KINDS = {
    each.__name__: each for each in (StoreError, CheckpointError, StorageError, ExperimentBusy)
}


class ServerHome(AnyHome):
    """The home of a server, to which `server` is signed in."""

    def __init__(self, server: RemoteServer, environ: Mapping[str, str]) -> None:
        self._server, self._environ = server, environ

    def call(self, function: Callable[Concatenate[Home, P], R], *args: P.args, **kw: P.kwargs) -> R:
        """Have the server call the function."""
        name = function.__name__
        given = _calls.encode_arguments(function, args, kw)
        with _errors():
            if name in _calls.QUERIES:
                data = self._server.send("GET", f"/queries/{name}?{urlencode({'args': given})}")
            else:
                data = self._server.send("POST", _address(name, args), given.encode())
        try:
            result: R = _calls.decode_result(function, data)
        except msgspec.DecodeError as error:
            raise DetError(
                f"{self._server.address} gives another answer than this version of det expects:"
                f" {error}"
            ) from error
        return result

    def local(self, what: str) -> NoReturn:
        """Raise DetError."""
        raise DetError(f"{what} acts on a home only, and not on {self._server.address}")

    def make(
        self, config: str | Path | Mapping[str, Any], code: Path | None, name: str, *, start: bool
    ) -> int:
        """Submit an experiment."""
        loaded = load(config, extensions=extensions_of(self.plugins)).config
        # JSON is YAML.
        text = (
            json.dumps(config)
            if isinstance(config, Mapping)
            else Path(config).read_text(encoding="utf-8")
        )
        with TemporaryDirectory(prefix="det-code-") as empty:
            return submit_experiment(
                self._server, text, loaded, code or Path(empty), name=name, paused=not start
            )

    def fork(
        self, row: ExperimentRow, config: str | Path | Mapping[str, Any] | None, *, start: bool
    ) -> int:
        """Make another experiment with the code of one. The server has its secrets."""
        if not start:
            self.local("Experiment.fork(start=False)")
        with _errors():
            if config is None:
                # What its owner has by default is not in it.
                text = self._server.get(f"/experiments/{row.id}")["source"]
            elif isinstance(config, Mapping):
                text = json.dumps(config)
            else:
                text = Path(config).read_text(encoding="utf-8")
            return int(self._server.post(f"/experiments/{row.id}/fork", {"config": text})["id"])

    def download(self, row: CheckpointRow, target: Path) -> None:
        """Copy the files of a checkpoint. They appear in the directory when all are verified."""
        _check_uuid(row.uuid)
        id = self.call(_calls.trial, row.trial_id).experiment_id
        place = target.absolute()
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".det-download-", dir=place.parent) as scratch:
            with (
                _errors(),
                self._server.stream(f"/experiments/{id}/checkpoints/{quote(row.uuid)}") as response,
            ):
                _unpack(response, row.uuid, Path(scratch))
            with read_checkpoint(LocalStorage(scratch), row.uuid):
                pass
            if place.exists():
                place.rmdir()
            Path(scratch, row.uuid).rename(place)

    def known_config(self, row: CheckpointRow) -> None:
        """Return None, as a server keeps secrets to itself."""
        return

    def exporter(self, row: CheckpointRow) -> tuple[str, dict[str, str]]:
        """Return this interpreter."""
        id = self.call(_calls.trial, row.trial_id).experiment_id
        config = from_json(self.call(_calls.experiment, id).config)
        return sys.executable, environment_of(self._environ, config, gpus=False)


def _address(name: str, args: tuple[Any, ...]) -> str:
    if name in _calls.OF_EXPERIMENTS:
        return f"/experiments/{args[0]}/changes/{name}"
    if name in _calls.OF_TRIALS:
        return f"/trials/{args[0]}/changes/{name}"
    return f"/changes/{name}"


@contextmanager
def _errors() -> Iterator[None]:
    """Raise the error that the home of the server has raised."""
    try:
        yield
    except Refusal as error:
        if error.kind not in _KINDS:
            raise
        raise _KINDS[error.kind](str(error)) from None


def _check_uuid(uuid: str) -> None:
    """Raise CheckpointError for a uuid that would lead out of the directory of a checkpoint."""
    try:
        checked_uuid(uuid)
    except StorageError:
        raise CheckpointError(
            f"the server names {uuid!r:.80}, which is no uuid of a checkpoint"
        ) from None


def _unpack(response: IO[bytes], uuid: str, scratch: Path) -> None:
    """Write the files of a checkpoint's archive, which must be those of its manifest."""
    expected: dict[str, int] | None = None
    try:
        with tarfile.open(fileobj=response, mode="r|") as tar:
            for entry in tar:
                # What is left may be absolute.
                name = check_name(check_name(entry.name).removeprefix(f"{uuid}/"))
                most = _LONGEST_MANIFEST if expected is None else expected.get(name, -1)
                content = tar.extractfile(entry) if entry.type == tarfile.REGTYPE else None
                if content is None or entry.size > most or (expected is None) != (name == MANIFEST):
                    raise CheckpointError(
                        f"the server sends {entry.name!r}, which is no file of checkpoint {uuid}"
                    )
                file = scratch / uuid / name
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("xb") as made:
                    while block := content.read(_BLOCK):
                        made.write(block)
                if expected is None:
                    manifest = decode(file.read_bytes(), uuid)
                    expected = {each: of.size for each, of in manifest.files.items()}
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise Lost(f"checkpoint {uuid} has come in part only ({error}); try again") from error
