"""Reads MLflow's stores: a directory of files, or an SQLite database."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from det_core.errors import DetError
from det_core.support.paths import expand_user
from det_driver.store import TrialState

from .others import OtherProject, OtherRun, Point, typed

_LARGEST = 1.7976931348623157e308
_STATES = {
    **dict.fromkeys(("3", "FINISHED"), TrialState.COMPLETED),
    **dict.fromkeys(("4", "FAILED"), TrialState.ERROR),
    **dict.fromkeys(("5", "KILLED"), TrialState.CANCELED),
}
_PARENT, _NOTE = "mlflow.parentRunId", "mlflow.note.content"
_RUN_COLUMNS = "run_uuid, name, status, start_time, end_time, user_id, artifact_uri"
_ALIVE = "lifecycle_stage <> 'deleted'"
_Values = Callable[[str], Iterator[Point]]
"""Reads the values of the run with a key."""


def find_mlflow(store: str) -> list[OtherProject]:
    """Return the experiments of a store at a path or an address, without deleted ones.

    A parent run and its child runs, such as those of a search, become a separate experiment.
    """
    path = expand_user(_path_of(store))
    if path.is_dir():
        return _find_in_files(path)
    if not path.is_file():
        raise DetError(
            f"there is no {path}; name MLflow's directory mlruns, or its database mlflow.db"
        )
    with _open(path) as database:
        return _find_in_database(database, path)


def _path_of(store: str) -> str:
    for scheme in ("sqlite:///", "file://"):
        if store.startswith(scheme):
            return store.removeprefix(scheme)
    if "://" in store:
        raise DetError(
            f"{store.partition('://')[0]}:// is no store that det reads; name a directory mlruns or"
            " an SQLite database, which a server has as its --backend-store-uri"
        )
    return store


def _find_in_files(root: Path) -> list[OtherProject]:
    # A project's own directory is a store with one experiment.
    folders = [root] if _is_experiment(root) else sorted(filter(_is_experiment, root.iterdir()))
    projects: list[OtherProject] = []
    for folder in folders:
        about = _read_yaml(folder / "meta.yaml")
        if about.get("lifecycle_stage") == "deleted":
            continue
        runs, parents = {}, {}
        for place in sorted(each for each in folder.iterdir() if (each / "meta.yaml").is_file()):
            meta, tags = _read_yaml(place / "meta.yaml"), _read_texts(place / "tags")
            if meta.get("lifecycle_stage") == "deleted":
                continue
            parents[place.name] = tags.get(_PARENT)
            facts = {name: meta.get(name) for name in ("user_id", "artifact_uri")}
            times = meta.get("start_time"), meta.get("end_time")
            params = _read_texts(place / "params")
            runs[place.name] = _run(
                place.name, meta.get("run_name"), meta.get("status"), times, params, tags, facts
            )
        notes = _read_texts(folder / "tags").get(_NOTE, "")
        name = str(about.get("name") or folder.name)
        projects += _group(name, notes, runs, parents, partial(_read_files, folder))
    if not folders:
        raise DetError(
            f"{root} is no store of MLflow: none of its directories holds a meta.yaml with an"
            " experiment_id"
        )
    return projects


def _is_experiment(folder: Path) -> bool:
    return (
        (folder / "meta.yaml").is_file()
        and "experiment_id" in (about := _read_yaml(folder / "meta.yaml"))
        and ("run_id" not in about)
    )


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DetError(f"cannot read {file}: {error}") from error
    return found if isinstance(found, dict) else {}


def _read_texts(folder: Path) -> dict[str, str]:
    """Return the texts of the files in a folder. A name with a slash is a file in a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8", errors="replace")
        for file in files
    }


def _read_files(experiment: Path, run: str) -> Iterator[Point]:
    folder = experiment / run / "metrics"
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = file.relative_to(folder).as_posix()

        def read(file: Path = file) -> Iterator[tuple[float, float, float]]:
            with file.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    try:
                        time, value, *step = map(float, line.split()[:3])
                    except ValueError:
                        raise DetError(
                            f"{file}, line {number}: {line.strip()[:80]!r} is no time, value and"
                            " step"
                        ) from None
                    yield step[0] if step else 0.0, time, value

        is_unnumbered = all(step == 0 for step, *_ in read())
        for count, (step, time, value) in enumerate(read()):
            yield Point(run, name, count if is_unnumbered else step, time / 1000, value)


def _open(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True))


def _find_in_database(database: sqlite3.Connection, path: Path) -> list[OtherProject]:
    projects: list[OtherProject] = []
    try:
        rows = database.execute(
            # Columns and conditions are constants of ours; values are parameters.
            f"SELECT experiment_id, name FROM experiments WHERE {_ALIVE} ORDER BY 1"  # nosec B608
        )
        for id, name in rows.fetchall():
            sql = (
                # As above.
                f"SELECT {_RUN_COLUMNS} FROM runs WHERE experiment_id = ? AND {_ALIVE} ORDER BY"  # nosec B608
                " run_uuid"
            )
            runs, parents = {}, {}
            for uuid, title, status, start, end, user, uri in database.execute(sql, (id,)):
                params, tags = (
                    {key: text or "" for key, text in database.execute(query, (uuid,))}
                    for query in (
                        "SELECT key, value FROM params WHERE run_uuid = ? ORDER BY key",
                        "SELECT key, value FROM tags WHERE run_uuid = ? ORDER BY key",
                    )
                )
                parents[uuid] = tags.get(_PARENT)
                facts = {"user_id": user, "artifact_uri": uri}
                runs[uuid] = _run(uuid, title, status, (start, end), params, tags, facts)
            sql = "SELECT value FROM experiment_tags WHERE experiment_id = ? AND key = ?"
            notes = next((text or "" for (text,) in database.execute(sql, (id, _NOTE))), "")
            projects += _group(str(name), notes, runs, parents, partial(_read_rows, path))
    except sqlite3.DatabaseError as error:
        raise DetError(f"{path} is no SQLite database of MLflow: {error}") from error
    return projects


def _read_rows(path: Path, run: str) -> Iterator[Point]:
    # A metric without steps has all of its values at step 0. They are numbered by their times.
    sql = (
        "SELECT key, step, timestamp, value, is_nan, "
        "max(step) OVER (PARTITION BY key) = 0 AND min(step) OVER (PARTITION BY key) = 0, "
        "row_number() OVER (PARTITION BY key ORDER BY step, timestamp, rowid) - 1 "
        "FROM metrics WHERE run_uuid = ? ORDER BY key, step, timestamp, rowid"
    )
    with _open(path) as database:
        for key, step, time, value, is_nan, is_unnumbered, count in database.execute(sql, (run,)):
            # MLflow stores infinities as the largest number, and NaN as 0.
            number = (
                math.nan
                if is_nan
                else math.copysign(math.inf, value)
                if abs(value) >= _LARGEST
                else value
            )
            yield Point(run, key, count if is_unnumbered else step, _seconds(time), number)


def _run(
    key: str,
    name: Any,
    status: Any,
    times: tuple[Any, Any],
    params: Mapping[str, str],
    tags: Mapping[str, str],
    facts: Mapping[str, Any],
) -> OtherRun:
    state = _STATES.get(str(status))
    return OtherRun(
        key=key,
        name=str(name or tags.get("mlflow.runName") or key),
        # A run that was killed without a word is running for ever.
        state=state or TrialState.ERROR,
        started=_seconds(times[0]),
        ended=_seconds(times[1]),
        hparams={name: typed(text) for name, text in params.items()},
        reason=None if state else f"it never ended in MLflow ({status})",
        facts={
            **{name: value for name, value in facts.items() if value is not None},
            "tags": dict(tags),
        },
    )


def _seconds(milliseconds: Any) -> float | None:
    return None if milliseconds in (None, "") else float(milliseconds) / 1000


def _group(
    name: str,
    notes: str,
    runs: Mapping[str, OtherRun],
    parents: Mapping[str, str | None],
    values: _Values,
) -> Iterator[OtherProject]:
    """Yield the runs as projects: those of no search, then each search with its parent."""
    groups: dict[str | None, list[OtherRun]] = {None: []}
    searches = {parent for parent in parents.values() if parent in runs}
    for key, run in runs.items():
        parent = parents[key] if parents[key] in searches else key if key in searches else None
        groups.setdefault(parent, []).append(run)
    for parent, group in groups.items():
        if not group and len(groups) > 1:
            continue
        title = name if parent is None else f"{name}: {runs[parent].name}"
        versions = {run.key: f"{run.state} {run.ended}" for run in group}
        yield OtherProject("MLflow", title, versions, partial(_records, group, values), notes)


def _records(runs: list[OtherRun], values: _Values) -> Iterator[OtherRun | Point]:
    for run in runs:
        yield run
        yield from values(run.key)
