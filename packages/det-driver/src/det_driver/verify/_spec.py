"""What a replay is told, and what it has seen: one process trains one trial again, and writes down what it met."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from det_core.agent import hooked
from det_core.backend import Ranks, rank_variables
from det_core.errors import DetError

SAW = "seen-{rank}.json"
UNREAD = 3  # the exit status where no framework can read a checkpoint
_BY_TORCH = re.compile(r"^\[rank\d+\]: ")
_GRACE_SECONDS = 10.0  # for the other ranks to see that one is gone


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """One trial to be trained to the position `batches`; what it saves lies in `scratch`/checkpoints.

    `checkpoint`, which lies there already, is where it begins, at position `began`; `warm` says that it is another trial's.
    `against` are directories of checkpoints, by position, whose tensors those of the replay are compared with, within
    `tolerance`. Several `ranks` prove to one another that they hold `key`.
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
    began: int = 0
    against: dict[str, str] = {}
    tolerance: float = 0.0
    every: int = 0
    ranks: int = 1
    key: bytes = b""


class Tensor(msgspec.Struct, frozen=True):
    """A tensor, or another value of a checkpoint, that differs; `by` is the largest difference of its numbers."""

    batches: int
    name: str
    by: float | None


class Seen(msgspec.Struct, kw_only=True):
    """What a replay met: reports as (group, batches, metrics), what each batch of data and each row of numbers was.

    `data` has for the number of each batch a digest of each rank's, `rows` the numbers of training of each batch or chunk, with
    the position behind it. `opened` and `modules` are files that were read, `checkpoints` uuids by position.
    """

    history: list[tuple[str, int, dict[str, Any]]] = []
    data: dict[int, list[str]] = {}
    rows: list[tuple[int, dict[str, Any]]] = []
    opened: list[str] = []
    modules: list[str] = []
    checkpoints: dict[int, str] = {}
    tensor: Tensor | None = None
    compared: list[int] = []
    failure: str = ""


read_replay = msgspec.json.Decoder(Replay).decode
read_seen = msgspec.json.Decoder(Seen).decode


def train(replay: Replay, environ: Mapping[str, str], python: str = sys.executable, gpus: Sequence[str] = ()) -> Seen:
    """Train in a process of its own for each rank, which begins as a worker does, with the GPU of its number where there are any.

    Raises DetError, with the last words of the rank that failed, where one fails.
    """
    if 0 < len(gpus) < replay.ranks:
        raise DetError(f"it was trained on {replay.ranks} GPUs, and here are {len(gpus)}: it cannot be trained again")
    scratch = Path(replay.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    spec = scratch / "replay.json"
    spec.touch(mode=0o600)
    spec.write_bytes(msgspec.json.encode(msgspec.structs.replace(replay, key=secrets.token_bytes(32))))
    command = hooked([python, "-P", "-m", "det_driver.verify.replay", str(spec)], Path(replay.code))
    processes = []
    try:
        for rank in range(replay.ranks):
            stands = Ranks(rank=rank, size=replay.ranks, local_rank=rank, local_size=replay.ranks)
            own = rank_variables(stands) | ({"CUDA_VISIBLE_DEVICES": gpus[rank]} if gpus else {})
            with (scratch / f"output-{rank}").open("wb") as output:
                env = {**environ, **own}
                processes.append(subprocess.Popen(command, cwd=replay.code, env=env, stdout=output, stderr=output))
        _wait(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    statuses = [process.returncode for process in processes]
    if any(statuses) or not (scratch / SAW.format(rank=0)).is_file():
        raise DetError(f"training again failed: {_last_words(scratch, statuses)}")
    saw, *others = (read_seen((scratch / SAW.format(rank=rank)).read_bytes()) for rank in range(replay.ranks))
    for other in others:
        for number, digests in other.data.items():
            saw.data[number] = [*saw.data.get(number, []), *digests]
        saw.opened, saw.modules = [*saw.opened, *other.opened], [*saw.modules, *other.modules]
    return saw


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all have ended; where one has failed, the others have a short time to see it."""
    until = None
    while any(process.poll() is None for process in processes):
        if until is None and any(process.returncode for process in processes):
            until = time.monotonic() + _GRACE_SECONDS
        if until is not None and time.monotonic() > until:
            return
        time.sleep(0.02)


def _last_words(scratch: Path, statuses: Sequence[int]) -> str:
    """Return the last line of the rank that failed; those that only say that another is gone come last."""
    words = []
    for rank, status in enumerate(statuses):
        said = (scratch / f"output-{rank}").read_text(errors="replace").strip().splitlines()
        if status or len(statuses) == 1:
            words.append(_BY_TORCH.sub("", said[-1]) if said else f"exit status {status}")
    return min(words, key=lambda said: "RankLost" in said, default="it ended without a result")
