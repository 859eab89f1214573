"""Reads the Parquet files that Neptune's exporter wrote before its service ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from det_core.errors import DetError
from det_core.support.installation import how_to_install
from det_driver.store import TrialState

from .others import OtherProject, OtherRun, Point, Record, Remark

try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    raise DetError(
        "Parquet files are read by pyarrow, which is not installed; run:"
        f" {how_to_install('det-migrate', 'parquet')}"
    ) from error

_RUN = ["project_id", "run_id"]
_VALUES = {
    **{
        name: f"{name}_value"
        for name in ("int", "float", "string", "bool", "datetime", "string_set")
    },
    "float_series": "float_value",
}
_COLUMNS = [
    *_RUN,
    "attribute_path",
    "attribute_type",
    "step",
    "timestamp",
    *dict.fromkeys(_VALUES.values()),
]
_PARAMETERS = ("parameters/", "params/", "hyperparameters/", "config/")
_MONITORING = "monitoring/"
_ROWS = 10_000


def find_neptune(place: Path) -> list[OtherProject]:
    """Return the projects of an export: a directory with Parquet files at any depth."""
    files = (
        [place] if place.is_file() else sorted(place.rglob("*.parquet")) if place.is_dir() else []
    )
    if not files:
        raise DetError(
            f"there is no Parquet file below {place}; name the --data-path of Neptune's exporter"
        )
    projects: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        for project, run in {
            pair for rows in _read(file, _RUN) for pair in zip(*rows, strict=True)
        }:
            projects[project][run].append(file)
    found = []
    for project, runs in sorted(projects.items()):
        versions = {
            f"{project}/{run}": str(sum(file.stat().st_size for file in own))
            for run, own in runs.items()
        }
        own = sorted({file for files in runs.values() for file in files})
        found.append(OtherProject("Neptune", project, versions, partial(_records, project, own)))
    return found


def _read(file: Path, columns: Sequence[str]) -> Iterator[list[list[Any]]]:
    """Yield the columns of a file, some thousand rows at a time."""
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            missing = sorted(set(columns) - set(table.schema_arrow.names))
            if missing:
                raise DetError(
                    f"{file} is no file of Neptune's exporter: it has no column {missing[0]}"
                )
            for batch in table.iter_batches(_ROWS, columns=columns):
                yield [batch.column(name).to_pylist() for name in columns]
    except (OSError, pyarrow.ArrowException) as error:
        raise DetError(f"cannot read {file}: {str(error).splitlines()[0]}") from error


def _records(project: str, files: Sequence[Path]) -> Iterator[Record]:
    attributes: dict[str, dict[str, Any]] = defaultdict(dict)
    monitored = 0
    for file in files:
        for rows in _read(file, _COLUMNS):
            for of, run, path, kind, step, time, *values in zip(*rows, strict=True):
                if of != project:
                    continue
                key = f"{project}/{run}"
                own = attributes[key]
                column = _VALUES.get(kind)
                value = values[_COLUMNS.index(column) - 6] if column else None
                if not kind.endswith("_series"):
                    own[path] = value
                elif path.startswith(_MONITORING):
                    monitored += 1
                else:
                    seconds = time.timestamp() if time is not None else None
                    yield Point(key, path, float(step if step is not None else -1), seconds, value)
    if monitored:
        yield Remark(f"{project}: {monitored} values of its machines ({_MONITORING}) are left out")
    for key, own in attributes.items():
        yield _run(key, own)


def _run(key: str, attributes: Mapping[str, Any]) -> OtherRun:
    started, ended = attributes.get("sys/creation_time"), attributes.get("sys/modification_time")
    hparams, facts = {}, {}
    for path, value in attributes.items():
        prefix = next((each for each in _PARAMETERS if path.startswith(each)), None)
        if value is not None and prefix:
            hparams[path.removeprefix(prefix)] = (
                value if isinstance(value, int | float | str | list) else str(value)
            )
        elif value is not None:
            facts[path] = value.isoformat() if isinstance(value, datetime) else value
    has_failed = attributes.get("sys/failed") is True
    return OtherRun(
        key=key,
        name=str(attributes.get("sys/name") or key.rpartition("/")[2]),
        state=TrialState.ERROR if has_failed else TrialState.COMPLETED,
        started=started.timestamp() if isinstance(started, datetime) else None,
        ended=ended.timestamp() if isinstance(ended, datetime) else None,
        hparams=hparams,
        reason="it failed in Neptune" if has_failed else None,
        facts=facts,
    )
