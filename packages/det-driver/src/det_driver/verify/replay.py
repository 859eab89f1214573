"""Train one trial again and record what it reads and computes.

Run `python -m det_driver.verify.replay SPEC`. With names of frameworks as further arguments, this
compares the checkpoints of a script that was run again. The first framework that can read them is
used.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from det_core.config import from_json
from det_core.hooks import Plugins, extensions_of
from det_core.hooks.records import Framework
from det_core.ranks.backend import START_SECONDS, RankLost, ranks_in
from det_core.ranks.choice import choose_backend, wanted_backend
from det_core.ranks.distributed import LOOPBACK, DistributedContext
from det_core.storage import LocalStorage
from det_core.train.adapter import Adapter, RunInfo
from det_core.train.entrypoint import load_trial
from det_core.train.host import Target
from det_core.train.local import LocalHost
from det_core.train.run import length_of, run_trial
from det_core.train.saving import CheckpointSink
from det_core.train.schedule import Every, Schedule
from det_node.backends import Socket
from det_node.wire import Address

from ._spec import SAW, UNREAD, Replay, Seen, Tensor, read_replay, read_seen


def main(spec: Path) -> None:
    """Train as the file specifies, and write the record into its scratch directory."""
    replay = read_replay(spec.read_bytes())
    seen = Seen()
    opened: dict[str, None] = {}
    sys.addaudithook(lambda event, args: _note(opened, args) if event == "open" else None)
    plugins = Plugins.installed()
    config = from_json(replay.config, extensions=extensions_of(plugins))
    # A worker does the same.
    random.seed(replay.seed)
    trial = load_trial(replay.entrypoint, Path(replay.code))
    framework = plugins.framework_of(trial)
    scratch = Path(replay.scratch)
    distributed = _met(replay, scratch)
    info = RunInfo(
        config=config,
        hparams=replay.hparams,
        seed=replay.seed,
        build=plugins.build(framework.name),
        distributed=distributed,
        trial_id=replay.trial_id,
        experiment_id=replay.experiment_id,
        length=length_of(config),
        code_dir=Path(replay.code),
        tensorboard_dir=scratch / "tensorboard",
        checkpoint=replay.checkpoint,
        warm=replay.warm,
        observe=lambda number, batch: seen.data.update({number: [digest(batch)]}),
    )
    metric = config.searcher.metric if config.searcher else None
    smaller = config.searcher.smaller_is_better if config.searcher else True
    host = LocalHost(Target(n=replay.batches), metric=metric, smaller_is_better=smaller)
    watched = _watched(framework, seen)
    storage = LocalStorage(scratch / "checkpoints")
    every = Schedule(report=Every(1), checkpoint=Every(replay.every), policy="none", metric=metric)
    schedule = (lambda adapter: every) if replay.every else None
    if replay.ranks > 1:
        info = replace(
            info, backend=choose_backend(wanted_backend(config), framework.name, plugins.backends())
        )
    with distributed:
        run_trial(watched, trial, info, host, CheckpointSink(storage=storage), schedule=schedule)
        distributed.barrier()
    seen.history = [(group, batches, _plain(values)) for group, batches, values in host.history]
    seen.checkpoints = {manifest.batches: manifest.uuid for manifest, _ in host.checkpoints}
    if distributed.rank == 0:
        _compare(framework, replay, seen)
    seen.opened = list(opened)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    seen.modules = sorted({file for file in files if isinstance(file, str)})
    (scratch / SAW.format(rank=distributed.rank)).write_bytes(msgspec.json.encode(seen))


def compare(spec: Path, *frameworks: str) -> None:
    """Find the first tensor that differs in the checkpoints of a script.

    The record in the scratch directory names them.
    """
    replay = read_replay(spec.read_bytes())
    file = Path(replay.scratch) / SAW.format(rank=0)
    known = Plugins.installed().frameworks()
    for name in frameworks:
        seen = read_seen(file.read_bytes())
        # The checkpoints may be of another framework, or in the script's own format.
        with suppress(Exception):
            _compare(known[name], replay, seen)
            file.write_bytes(msgspec.json.encode(seen))
            return
    sys.exit(UNREAD)


def _met(replay: Replay, scratch: Path) -> DistributedContext:
    """Connect to the other ranks, at an address that rank 0 writes to a file."""
    if replay.ranks == 1:
        return DistributedContext()
    ranks, file = ranks_in(os.environ), scratch / "chief.json"

    def leave(address: Address) -> None:
        file.with_suffix(".part").write_bytes(msgspec.json.encode(address))
        file.with_suffix(".part").rename(file)

    chief: Address = (LOOPBACK, 0)
    if ranks.rank:
        until = time.monotonic() + START_SECONDS
        while not file.exists():
            if time.monotonic() > until:
                raise RankLost(0, f"rank 0 did not come within {START_SECONDS:g} s")
            time.sleep(0.02)
        host, port = msgspec.json.decode(file.read_bytes())
        chief = host, port
    return DistributedContext.from_backend(Socket(ranks, chief=chief, key=replay.key, ready=leave))


def _note(opened: dict[str, None], args: tuple[Any, ...]) -> None:
    path, mode = args[0], args[1]
    if isinstance(path, str) and (mode is None or not set(str(mode)) & set("wax+")):
        opened[path] = None


def _watched(framework: Framework, seen: Seen) -> Framework:
    """Return the framework with an adapter that records the numbers of every batch."""
    adapter = framework.load()

    class Watched(adapter):  # type: ignore[valid-type,misc]
        def numbers(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
            found: list[dict[str, float]] = super().numbers(rows)
            seen.rows.extend((len(seen.rows) + n, _plain(row)) for n, row in enumerate(found))
            return found

    Watched.__name__, Watched.__qualname__ = adapter.__name__, adapter.__qualname__
    loaded: type[Adapter[Any]] = Watched
    return Framework(
        name=framework.name, trial=framework.trial, load=lambda: loaded, tensors=framework.tensors
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that JSON keeps exactly: numbers that are not finite become text."""
    return {
        k: repr(v) if isinstance(v, float) and not math.isfinite(v) else v
        for k, v in values.items()
    }


def digest(batch: Any) -> str:
    """Return a short digest of a batch of any structure and any framework's arrays."""
    sha = hashlib.sha256()
    for name, leaf in leaves(batch):
        sha.update(name.encode())
        sha.update(content(leaf))
    return sha.hexdigest()[:16]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values that are no dict, list or tuple, each with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{index}]")
    else:
        yield name, value


def content(leaf: Any) -> bytes:
    """Return the bytes of an array or tensor, and the `repr` of anything else."""
    try:
        leaf = leaf.detach().cpu() if hasattr(leaf, "detach") else leaf
        array = leaf.numpy() if hasattr(leaf, "numpy") else leaf
        return f"{array.dtype}{array.shape}".encode() + bytes(array.tobytes())
    except (AttributeError, TypeError, RuntimeError):
        return repr(leaf.tolist() if hasattr(leaf, "tolist") else leaf).encode()


def _compare(framework: Framework, replay: Replay, seen: Seen) -> None:
    """Find the first tensor that differs, checkpoint by checkpoint."""
    module, _, function = framework.tensors.rpartition(".")
    if not module:
        return
    read = getattr(importlib.import_module(module), function)
    for batches, uuid in sorted(seen.checkpoints.items()):
        other = replay.against.get(str(batches))
        if other is None:
            continue
        seen.compared.append(batches)
        mine = dict(leaves(read(Path(replay.scratch, "checkpoints", uuid))))
        theirs = dict(leaves(read(Path(other))))
        for name in [*theirs, *(mine.keys() - theirs.keys())]:
            if name in mine and name in theirs and content(mine[name]) == content(theirs[name]):
                continue
            by = _distance(mine.get(name), theirs.get(name))
            if by is None or by > replay.tolerance:
                seen.tensor = Tensor(batches, name, by)
                return


def _distance(mine: Any, theirs: Any) -> float | None:
    try:
        by = (
            float(abs(mine - theirs).max()) if hasattr(mine, "shape") else float(abs(mine - theirs))
        )
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
    return by if math.isfinite(by) else None


if __name__ == "__main__":
    (compare if len(sys.argv) > 2 else main)(Path(sys.argv[1]), *sys.argv[2:])
