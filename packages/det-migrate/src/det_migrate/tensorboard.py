"""Reads event files of TensorBoard: a folder with such files is a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from det_core.errors import DetError
from det_core.support.installation import how_to_install
from det_driver.store import TrialState

from .others import OtherProject, OtherRun, Point, Record, Remark, Restart

try:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.util.tensor_util import make_ndarray
except ImportError as error:
    raise DetError(
        "event files are read by TensorBoard, which is not installed; run:"
        f" {how_to_install('det-migrate', 'tensorboard')}"
    ) from error

_HPARAMS = "_hparams_/session_start_info"


def find_tensorboard(root: Path) -> list[OtherProject]:
    """Return a directory of event files as one project."""
    if not root.is_dir():
        raise DetError(f"there is no directory {root}; name one that tensorboard --logdir shows")
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in sorted(root.resolve().rglob("*tfevents*")):
        if file.is_file():
            folders[file.parent].append(file)
    if not folders:
        raise DetError(
            f"there is no event file below {root}; name a directory that tensorboard --logdir shows"
        )
    runs = _join_sessions(folders)
    versions = {
        str(folder): str(sum(file.stat().st_size for file in files))
        for folder, files in runs.items()
    }
    name = root.resolve().name
    return [OtherProject("TensorBoard", name, versions, partial(_records, root.resolve(), runs))]


def _join_sessions(folders: dict[Path, list[Path]]) -> dict[Path, list[Path]]:
    """Return the files of each run.

    PyTorch's `add_hparams` writes into a folder of its own below that of the run.
    """
    sessions: dict[Path, list[Path]] = defaultdict(list)
    for folder, files in folders.items():
        if folder.parent in folders and any(_read_hparams(files[0])):
            sessions[folder.parent].append(folder)
    # A run with several sessions was trained with each of them.
    joined = {found[0]: run for run, found in sessions.items() if len(found) == 1}
    runs: dict[Path, list[Path]] = defaultdict(list)
    for folder, files in folders.items():
        runs[joined.get(folder, folder)] += files
    return runs


def _read_hparams(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the hyperparameters at the beginning of an event file."""
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            if value.tag == _HPARAMS:
                yield _hparams(value)
            elif not value.tag.startswith("_hparams_"):
                return


def _hparams(value: Any) -> dict[str, Any]:
    started = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info
    kinds = {name: each.WhichOneof("kind") for name, each in started.hparams.items()}
    return {
        name: getattr(started.hparams[name], kind) for name, kind in sorted(kinds.items()) if kind
    }


def _records(root: Path, runs: dict[Path, list[Path]]) -> Iterator[Record]:
    for folder, files in runs.items():
        key, name = str(folder), folder.relative_to(root).as_posix()
        hparams: dict[str, Any] = {}
        yield from _read(key, files, hparams)
        # Event files do not say how a run ended.
        yield OtherRun(
            key, root.name if name == "." else name, TrialState.COMPLETED, hparams=hparams
        )


def _read(run: str, files: Sequence[Path], hparams: dict[str, Any]) -> Iterator[Record]:
    for file in files:
        count = 0
        for event in EventFileLoader(str(file)).Load():
            count += 1
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                yield Restart(run, event.step)
            for value in event.summary.value:
                if value.tag == _HPARAMS:
                    hparams |= _hparams(value)
                elif not value.tag.startswith("_hparams_"):
                    yield Point(run, value.tag, event.step, event.wall_time, _number(value))
        if not count and file.stat().st_size:
            yield Remark(f"{file} holds no event that can be read")


def _number(value: Any) -> float | None:
    """Return the value of a scalar. None for an image, a histogram or a text."""
    if not value.HasField("tensor"):
        return None
    try:
        found = make_ndarray(value.tensor)
    except (TypeError, ValueError):
        return None
    return float(found.reshape(())) if found.size == 1 and found.dtype.kind in "fiu" else None
