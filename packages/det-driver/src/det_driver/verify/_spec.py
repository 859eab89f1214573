"""The specification and the record of a replay, in which a process trains one trial again."""

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

from det_core.errors import DetError
from det_core.ranks.backend import Ranks, rank_variables
from det_node.agent import hooked

SAW = "seen-{rank}.json"
# The exit status if no framework can read a checkpoint.
UNREAD = 3
_BY_TORCH = re.compile(r"^\[rank\d+\]: ")
# The time for the other ranks to notice that one is gone.
_GRACE_SECONDS = 10.0


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """One trial to train to the position `batches`. Its checkpoints go to `scratch`/checkpoints.

    - `checkpoint`, which is there already, is where it begins, at position `began`.
    - `warm` says that the checkpoint is another trial's.
    - `against` are directories of checkpoints by position. Their tensors are compared with those of
      the replay, within `tolerance`.
    - `key` authenticates several `ranks` to each other.
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
    """A tensor, or another value of a checkpoint, that differs.

    `by` is the largest difference of its numbers.
    """

    batches: int
    name: str
    by: float | None


class Seen(msgspec.Struct, kw_only=True):
    """The record of a replay.

    - `history` has reports as (group, batches, metrics).
    - `data` has for the number of each batch the digest of each rank.
    - `rows` has the training numbers of each batch or chunk, with the position after it.
    - `opened` and `modules` are files that were read.
    - `checkpoints` are uuids by position.
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


def train(
    replay: Replay,
    environ: Mapping[str, str],
    python: str = sys.executable,
    gpus: Sequence[str] = (),
) -> Seen:
    """Train in one process for each rank, which begins like a worker.

    If there are GPUs, each rank uses the one with its number. Raises DetError with the last line of
    output of a rank that failed.
    """
    if 0 < len(gpus) < replay.ranks:
        raise DetError(
            f"it was trained on {replay.ranks} GPUs, and here are {len(gpus)}: it cannot be trained"
            " again"
        )
    scratch = Path(replay.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    spec = scratch / "replay.json"
    spec.touch(mode=0o600)
    spec.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(replay, key=secrets.token_bytes(32)))
    )
    command = hooked([python, "-P", "-m", "det_driver.verify.replay", str(spec)], Path(replay.code))
    processes = []
    try:
        for rank in range(replay.ranks):
            stands = Ranks(rank=rank, size=replay.ranks, local_rank=rank, local_size=replay.ranks)
            own = rank_variables(stands) | ({"CUDA_VISIBLE_DEVICES": gpus[rank]} if gpus else {})
            with (scratch / f"output-{rank}").open("wb") as output:
                env = {**environ, **own}
                processes.append(
                    subprocess.Popen(
                        command, cwd=replay.code, env=env, stdout=output, stderr=output
                    )
                )
        _wait(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    statuses = [process.returncode for process in processes]
    if any(statuses) or not (scratch / SAW.format(rank=0)).is_file():
        raise DetError(f"training again failed: {_last_words(scratch, statuses)}")
    saw, *others = (
        read_seen((scratch / SAW.format(rank=rank)).read_bytes()) for rank in range(replay.ranks)
    )
    for other in others:
        for number, digests in other.data.items():
            saw.data[number] = [*saw.data.get(number, []), *digests]
        saw.opened, saw.modules = [*saw.opened, *other.opened], [*saw.modules, *other.modules]
    return saw


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended. If one fails, the others get a short time to notice."""
    until = None
    while any(process.poll() is None for process in processes):
        if until is None and any(process.returncode for process in processes):
            until = time.monotonic() + _GRACE_SECONDS
        if until is not None and time.monotonic() > until:
            return
        time.sleep(0.02)


def _last_words(scratch: Path, statuses: Sequence[int]) -> str:
    """Return the last line of output of the rank that failed.

    A line that only reports the loss of another rank is the last choice.
    """
    words = []
    for rank, status in enumerate(statuses):
        lines = (scratch / f"output-{rank}").read_text(errors="replace").strip().splitlines()
        if status or len(statuses) == 1:
            words.append(_BY_TORCH.sub("", lines[-1]) if lines else f"exit status {status}")
    return min(words, key=lambda line: "RankLost" in line, default="it ended without a result")
