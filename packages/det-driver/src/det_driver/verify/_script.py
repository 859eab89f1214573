"""Run a trial's script again.

This process is its driver. It replies as the trial's own driver did, and records the messages.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from det_core.checkpoint.manifest import METADATA
from det_core.config import ExperimentConfig
from det_core.errors import DetError
from det_core.ranks.backend import START_SECONDS
from det_core.storage import MANIFEST
from det_core.train.ending import FAILURES
from det_core.train.environ import WorkerEnv, shortened
from det_core.train.host import Target
from det_core.train.local import LocalHost
from det_core.train.schedule import NEVER
from det_node import protocol, wire
from det_node.agent import hooked
from det_node.process import end_group

from ..driver import UNITS, AskedLength, unit_of
from ._spec import SAW, UNREAD, Replay, Seen, Tensor, read_seen


class ScriptRun(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters to run an experiment's script as its driver did.

    - `cut` says that the script has to end before its searcher would end it.
    - `frameworks` are the frameworks that its code imports.
    """

    config: ExperimentConfig
    lengths: Sequence[AskedLength]
    environ: Mapping[str, str]
    python: str
    gpus: Sequence[str] = ()
    frameworks: Sequence[str] = ()
    cut: bool = False

    def train(self, replay: Replay) -> Seen:
        """Run the script until it has trained as far as it did before.

        Raises DetError with its last line of output if it fails.
        """
        scratch, slots = Path(replay.scratch), range(replay.ranks)
        scratch.mkdir(parents=True, exist_ok=True)
        key, run = wire.new_key(), 1
        driver = _ReplayDriver(self, replay)
        with wire.Server(key, driver.serve) as server:
            env = WorkerEnv(
                experiment_id=replay.experiment_id or 0,
                trial_id=replay.trial_id,
                run_id=run,
                run_number=1,
                seed=replay.seed,
                hparams=replay.hparams,
                config=msgspec.structs.replace(self.config, checkpoint_storage=None),
                slot_ids=tuple(slots),
                driver=server.address,
                key=wire.run_key(key, run),
                checkpoint_root=scratch / "checkpoints",
                tensorboard_dir=scratch / "tensorboard",
                spool=scratch / "spool",
                latest_checkpoint=replay.checkpoint,
                steps_completed=driver.began if replay.warm is False else 0,
                slots=replay.ranks,
                scratch=scratch / "kept",
                warm=bool(replay.warm),
            )
            devices = (
                {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[: replay.ranks])} if self.gpus else {}
            )
            path = os.pathsep.join(
                [str(Path(self.python).parent), self.environ.get("PATH", os.defpath)]
            )
            variables = {**self.environ, "PATH": path, **devices}
            entrypoint = self.config.entrypoint
            script = entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint or ())
            with (scratch / "output").open("wb") as output:
                process = subprocess.Popen(
                    hooked(["/bin/sh", "-c", script], Path(replay.code)),
                    cwd=replay.code,
                    env=shortened(variables | env.variables(), scratch / "variables"),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                try:
                    status = process.wait()
                finally:
                    end_group(process.pid)
                    process.wait()
        words = (scratch / "output").read_text(errors="replace").strip().splitlines()
        if driver.failure or status:
            raise DetError(
                "training again failed:"
                f" {driver.failure or (words[-1] if words else f'exit status {status}')}"
            )
        seen = driver.seen(replay)
        read = _by_tensors(self.frameworks, seen, replay, variables) if self.frameworks else None
        return read or _by_files(seen, replay)


class _ReplayDriver:
    """The driver of one run: receives messages of its ranks, and replies as the searcher did."""

    def __init__(self, run: ScriptRun, replay: Replay) -> None:
        searcher = run.config.searcher
        smaller = searcher.smaller_is_better if searcher else True
        self.failure = ""
        self.began = replay.began
        self._last = replay.batches
        self._cut = run.cut
        self._unit = unit_of(run.config)
        self._lengths = [
            each
            for each in run.lengths
            if each.at is None or replay.began < each.at or not replay.began
        ]
        self._host = LocalHost(
            Target(n=None), metric=searcher.metric if searcher else None, smaller_is_better=smaller
        )
        self._validated: int | None = None
        self._links: list[wire.Connection] = []
        self._chief: tuple[str, int] | None = None
        self._lock = threading.Condition()

    def serve(self, connection: wire.Connection) -> None:
        """Serve one rank until it disconnects."""
        with suppress(wire.ConnectionLost, OSError):
            if protocol.greeted(connection, START_SECONDS) is None:
                return
            connection.send(protocol.encode(protocol.welcome()))
            self._links.append(connection)
            while True:
                envelope = protocol.decode_envelope(connection.recv())
                if not isinstance(envelope, protocol.Envelope):
                    return
                with self._lock:
                    reply = self._handle(envelope.message)
                if reply is not None:
                    connection.send(
                        protocol.encode(msgspec.structs.replace(reply, number=envelope.number))
                    )

    def seen(self, replay: Replay) -> Seen:
        """Return the record of the reports and checkpoints."""
        saved = {manifest.batches: manifest.uuid for manifest, _ in self._host.checkpoints}
        return Seen(
            history=[(group, at, dict(values)) for group, at, values in self._host.history],
            checkpoints=saved,
        )

    def _handle(self, message: protocol.Message) -> protocol.Reply | None:
        host = self._host
        match message:
            case protocol.AskTarget():
                return protocol.Reply(target=self._target())
            case protocol.Validated() | protocol.Completed():
                fresh = (
                    isinstance(message, protocol.Validated) or self._validated != message.batches
                )
                self._validated = message.batches
                best = (
                    host.validated(message.batches, message.metrics, message.length).best
                    if fresh
                    else False
                )
                if (
                    self._lengths
                    and message.length is not None
                    and message.length >= (self._lengths[0].until or NEVER)
                ):
                    self._lengths.pop(0)
                self._must_end(message.batches)
                return protocol.Reply(target=msgspec.structs.replace(self._target(), best=best))
            case protocol.Reported():
                host.report(message.group, message.batches, message.metrics)
                self._must_end(message.batches)
            case protocol.Checkpointed():
                host.checkpointed(message.manifest, message.storage)
                return protocol.Reply()
            case protocol.AskBest():
                return protocol.Reply(value=host.best)
            case protocol.Finished():
                if message.outcome in FAILURES:
                    self.failure = self.failure or message.message or str(message.outcome.value)
                return protocol.Reply()
            case protocol.Deleted():
                return protocol.Reply()
            case protocol.Meet():
                self._chief = message.address or self._chief
                self._lock.notify_all()
                self._lock.wait_for(lambda: self._chief is not None, START_SECONDS)
                return protocol.Reply(address=self._chief)
        return None

    def _target(self) -> Target:
        if not self._lengths:
            return Target(n=None)
        until = self._lengths[0].until
        numbered = until is not None and self._unit in UNITS
        return Target(n=until, unit=self._unit) if numbered else Target(n=NEVER)

    def _must_end(self, batches: int) -> None:
        """Preempt the run after its last position, or at it if the run is `cut`.

        It saves a checkpoint and ends, like a paused one.
        """
        if batches > self._last or (batches == self._last and self._cut):
            self._lengths.clear()
            for link in self._links:
                with suppress(wire.ConnectionLost, OSError):
                    link.send(
                        protocol.encode(protocol.Preempt("it is trained as far as is compared"))
                    )


def _by_tensors(
    frameworks: Sequence[str], seen: Seen, replay: Replay, environ: Mapping[str, str]
) -> Seen | None:
    """Compare checkpoints in a process that has the frameworks.

    Returns None if none of them can read the checkpoints.
    """
    spec, saw = Path(replay.scratch) / "replay.json", Path(replay.scratch) / SAW.format(rank=0)
    spec.write_bytes(msgspec.json.encode(replay))
    saw.write_bytes(msgspec.json.encode(msgspec.structs.replace(seen, history=[])))
    command = ["python3", "-P", "-m", "det_driver.verify.replay", str(spec), *frameworks]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode == UNREAD:
        return None
    if done.returncode:
        raise DetError(
            f"the checkpoints cannot be compared: {done.stderr.strip().splitlines()[-1]}"
        )
    return msgspec.structs.replace(read_seen(saw.read_bytes()), history=seen.history)


def _by_files(seen: Seen, replay: Replay) -> Seen:
    """Compare the files of checkpoints byte by byte, as their format is unknown.

    The checkpoints of a script that continued from a checkpoint may have the same content in other
    bytes. For them, only the reports are compared.
    """
    for batches, uuid in sorted(seen.checkpoints.items()):
        if (before := replay.against.get(str(batches))) is None or replay.warm is False:
            continue
        mine, theirs = _files(Path(replay.scratch, "checkpoints", uuid)), _files(Path(before))
        seen.compared.append(batches)
        differ = [
            name
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]
        if differ:
            seen.tensor = Tensor(batches, differ[0], None)
            break
    return seen


def _files(directory: Path) -> dict[str, bytes]:
    """Return the digest of each of a script's files in a checkpoint, by name."""
    files = (path for path in directory.rglob("*") if path.is_file())
    named = {path.relative_to(directory).as_posix(): path for path in files}
    return {name: _digest(path) for name, path in named.items() if name not in (MANIFEST, METADATA)}


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
