"""Checkpoints that lack one item of the state of a run: what a stricter suite must notice."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from det_core.checkpoint import read_checkpoint, write_checkpoint
from det_core.storage import Storage
from det_testing import Run, Runs, resumed_differences
from det_testing._play import Cast, Request, play
from det_testing._whole_state import compared

Fault = Callable[[Path], None]
"""Changes the files of a checkpoint."""


def without(storage: Storage, uuid: str, fault: Fault) -> str:
    """Write a checkpoint that is another one but for a fault; return its uuid."""
    with tempfile.TemporaryDirectory() as folder:
        with read_checkpoint(storage, uuid) as (path, manifest):
            shutil.copytree(path, folder, dirs_exist_ok=True)
        fault(Path(folder))

        def fill(directory: Path) -> None:
            shutil.copytree(folder, directory, dirs_exist_ok=True)

        facts = {name: getattr(manifest, name) for name in ("framework", "batches", "trial_id")}
        return write_checkpoint(storage, fill, **facts).uuid


def noticed(run: Runs, whole: Run, at: int, length: int, contents: Any, fault: Fault) -> list[str]:
    """Return what differs where a run goes on from its checkpoint at a position with a fault.

    Or why it cannot go on.
    """
    faulty = without(run.storage, whole.checkpoints[at], fault)
    other = dataclasses.replace(whole, checkpoints={**whole.checkpoints, at: faulty})
    try:
        return resumed_differences(run, length, contents, positions=[at], whole=other).get(at, [])
    except Exception as refusal:
        # Of any kind: a framework refuses some states itself.
        return [f"{type(refusal).__name__}: {refusal}"]


def noticed_on_two_ranks(
    run: Runs,
    cast: Cast,
    at: int,
    length: int,
    contents: Any,
    faults: Mapping[str, Fault],
    folder: Path,
    **settings: Any,
) -> dict[str, list[str]]:
    """Return the same of two ranks, by the names of the faults.

    `run` has the same checkpoints, below `folder`. `settings` are those of every `Request`.
    """
    saves = [*range(1, length + 1)]
    first = Request(name="whole", length=length, save_at=saves, **settings)
    (whole,) = play(cast, [first], folder)[:1]
    _clear(folder)
    requests = [
        Request(
            name=name,
            length=length,
            save_at=saves,
            checkpoint=without(run.storage, whole["whole"].checkpoints[at], fault),
            may_be_refused=True,
            **settings,
        )
        for name, fault in faults.items()
    ]
    chief = play(cast, requests, folder)[0]
    return {
        name: (
            [ran.error]
            if ran.error
            else compared(run, contents, ran, whole["whole"], at, validations=False)
        )
        for name, ran in chief.items()
    }


def _clear(folder: Path) -> None:
    shutil.rmtree(folder / "scratch")
    for file in ("chief.json", "plan.json"):
        (folder / file).unlink()
