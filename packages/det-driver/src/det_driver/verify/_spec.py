"""What a replay is told, and what it has seen: one process trains one trial again, and writes down what it met."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from det_core.agent import hooked
from det_core.errors import DetError

SAW = "seen.json"


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """One trial to be trained to the position `batches`; what it saves lies in `scratch`/checkpoints.

    `checkpoint`, which lies there already, is where it begins, `warm` says that it is another trial's. `against` are
    directories of checkpoints, by position, whose tensors those of the replay are compared with, within `tolerance`.
    """

    entrypoint: str
    config: str
    hparams: dict[str, Any]
    seed: int
    code: str
    scratch: str
    batches: int
    trial_id: int = 0
    experiment_id: int | None = None
    checkpoint: str | None = None
    warm: bool | None = None
    against: dict[str, str] = {}
    tolerance: float = 0.0
    every: int = 0


class Tensor(msgspec.Struct, frozen=True):
    """A tensor, or another value of a checkpoint, that differs; `by` is the largest difference of its numbers."""

    batches: int
    name: str
    by: float | None


class Seen(msgspec.Struct, kw_only=True):
    """What a replay met: reports as (group, batches, metrics), what each batch of data and each row of numbers was.

    `data` has a digest for the number of each batch, `rows` the numbers of training of each batch or chunk, with the position
    behind it. `opened` and `modules` are files that were read, `checkpoints` uuids by position.
    """

    history: list[tuple[str, int, dict[str, Any]]] = []
    data: dict[int, str] = {}
    rows: list[tuple[int, dict[str, Any]]] = []
    opened: list[str] = []
    modules: list[str] = []
    checkpoints: dict[int, str] = {}
    tensor: Tensor | None = None
    compared: list[int] = []
    failure: str = ""


def train(replay: Replay, environ: Mapping[str, str], python: str = sys.executable) -> Seen:
    """Train in a process of its own, which begins as a worker does. Raises DetError, with its last words, where it fails."""
    scratch = Path(replay.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    spec = scratch / "replay.json"
    spec.touch(mode=0o600)
    spec.write_bytes(msgspec.json.encode(replay))
    command = hooked([python, "-P", "-m", "det_driver.verify.replay", str(spec)], Path(replay.code))
    with (scratch / "output").open("wb") as output:
        done = subprocess.run(command, cwd=replay.code, env=dict(environ), stdout=output, stderr=output, check=False)
    saw = scratch / SAW
    if done.returncode or not saw.is_file():
        said = (scratch / "output").read_text(errors="replace").strip().splitlines()
        raise DetError(f"training again failed: {said[-1] if said else f'exit status {done.returncode}'}")
    return msgspec.json.decode(saw.read_bytes(), type=Seen)
