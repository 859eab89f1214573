"""Writes the histories of trackers other than Determined, a project as one experiment."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from det_core.config import MASK, ExperimentConfig, from_json, masked
from det_core.errors import StoreError
from det_driver.provenance import ELSEWHERES
from det_driver.store import (
    ExperimentState,
    PastExperiment,
    Report,
    Store,
    TrialState,
    bulk_writer,
    clear_unfinished,
)

from .configuration import find_plain_secrets, mask_plain, mask_text
from .migration import Progress
from .tally import LOGS, REPORTS, Tally, describe_room
from .values import LARGEST

_FILE = ELSEWHERES[1]
_OUTCOMES = {
    TrialState.COMPLETED: "completed",
    TrialState.ERROR: "errored",
    TrialState.CANCELED: "canceled",
}
_VALIDATION = re.compile(r"(?i)(?:val|valid|validation|eval|test)(?:[^a-z]|$)")
_PART = 10_000
_SHOWN = 8


class Point(NamedTuple):
    """A value of a metric at a step. `time` is in Unix seconds.

    `value` is None where the tracker has no number, such as for an image.
    """

    run: str
    name: str
    step: float
    time: float | None
    value: float | None


class Restart(NamedTuple):
    """The run began again at a step: its earlier values from there on do not count."""

    run: str
    step: float


class Remark(NamedTuple):
    """A sentence for the report, such as about a damaged file."""

    text: str


@dataclass(frozen=True)
class OtherRun:
    """A run of a tracker, which becomes a trial. `facts` has what det has no column for.

    Its times are those of its values where they are None.
    """

    key: str
    name: str
    state: TrialState
    started: float | None = None
    ended: float | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    log: Path | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


Record = OtherRun | Point | Restart | Remark


@dataclass(frozen=True)
class OtherProject:
    """A project of a tracker, which becomes an experiment.

    `versions` maps the keys of its runs to texts that change when a run does. A key is unique among
    all runs of the tracker. `records` reads the runs and their values, in any order.
    """

    tracker: str
    name: str
    versions: Mapping[str, str]
    records: Callable[[], Iterable[Record]]
    notes: str = ""


@dataclass(frozen=True)
class OtherOptions:
    """How projects are imported. The values of `metric` compare the trials."""

    metric: str | None = None
    smaller_is_better: bool = True
    dry_run: bool = False


def migrate_projects(
    projects: Sequence[OtherProject],
    home: Path,
    options: OtherOptions,
    progress: Progress = lambda each, label, length: each,
) -> Tally:
    """Import each project as an experiment, completely or not at all, and count the rows.

    Steps become numbers of batches. What an earlier call has imported is skipped. With `dry_run`
    nothing is written. Raises StoreError where the file system fails.
    """
    tally = Tally()
    if options.dry_run and not Store.is_at(home):
        for project in projects:
            tally.add(_Importer(project, options, progress).write(None))
        if tally.sizes:
            tally.notes.append(describe_room(tally.sizes, home))
        return tally
    with Store.reader(home) if options.dry_run else Store(home) as store:
        if not options.dry_run:
            clear_unfinished(store)
        known = _known(store)
        for project in projects:
            found = [
                known[project.tracker, key]
                for key in project.versions
                if (project.tracker, key) in known
            ]
            if found:
                number, versions = found[0]
                is_same = versions == project.versions
                tally.leave_out(
                    "experiments",
                    "there already" if is_same else "there already, as it was earlier",
                )
                if not is_same:
                    tally.notes.append(
                        f"{project.name} is there as experiment {number}, and has changed since; to"
                        f" take it again: det rm {number}"
                    )
            else:
                tally.add(
                    _Importer(project, options, progress).write(None if options.dry_run else store)
                )
        if tally.sizes:
            tally.notes.append(describe_room(tally.sizes, home))
    return tally


def _known(store: Store) -> dict[tuple[str, str], tuple[int, Any]]:
    """Return the imported projects of a home by the tracker and each run: number and versions."""
    found = {}
    for path in (store.home / "experiments").glob(f"[0-9]*/{_FILE}"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            for key in kept["versions"]:
                found[kept["tracker"], key] = int(path.parent.name), kept["versions"]
    return found


class _Importer:
    """Writes one project. Its values are sorted in a temporary database, so memory stays flat."""

    def __init__(self, project: OtherProject, options: OtherOptions, progress: Progress) -> None:
        self._project = project
        self._options = options
        self._progress = progress
        self._tally = Tally()
        self._runs: dict[str, OtherRun] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[str, tuple[int, bool]] = {}
        """The number of each metric, and whether its values are validations."""

    def write(self, store: Store | None) -> Tally:
        """Write the project, or only count what would be written without a store."""
        tally = self._tally
        try:
            # A database without a name is a temporary file, which SQLite removes by itself.
            with closing(sqlite3.connect("")) as self._points:
                self._read()
                if not self._runs:
                    tally.leave_out("experiments", "without runs")
                    return tally
                tally.write("experiments")
                tally.write("trials", len(self._runs))
                tally.write("metrics", self._count())
                self._note_metric()
                if store is not None:
                    self._write(store)
                else:
                    self._measure()
        except sqlite3.OperationalError as error:
            raise StoreError(
                f"cannot sort the values of {self._project.name}: {error}; see the room in TMPDIR"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot write {self._project.name}: {error}; what was written before is whole"
            ) from error
        return tally

    def _read(self) -> None:
        """Read the records into the temporary database."""
        self._points.execute(
            "CREATE TABLE points (run INTEGER, validates INTEGER, step INTEGER, name INTEGER, time"
            " REAL, value REAL)"
        )
        part: list[tuple[Any, ...]] = []
        records = iter(self._project.records())
        parts = iter(lambda: list(islice(records, _PART)), [])
        for record in chain.from_iterable(
            self._progress(parts, f"reading {self._project.name}", None)
        ):
            if isinstance(record, OtherRun):
                self._runs[record.key] = record
            elif isinstance(record, Restart):
                self._insert(part)
                sql = "DELETE FROM points WHERE run = ? AND step >= ?"
                count = self._points.execute(sql, (self._number(record.run), record.step)).rowcount
                self._tally.leave_out("metrics", "taken back by a restart", count)
            elif isinstance(record, Remark):
                self._tally.notes.append(record.text)
            elif record.value is None:
                self._tally.leave_out("metrics", "not a number")
            elif not 0 <= record.step < LARGEST or record.step != int(record.step):
                self._tally.leave_out("metrics", "at a step that is no whole number from 0 on")
            else:
                name, validates = self._names.get(record.name) or self._add_name(record.name)
                number = self._number(record.run)
                part.append((number, validates, int(record.step), name, record.time, record.value))
                if len(part) >= _PART:
                    self._insert(part)
        self._insert(part)
        self._points.execute("CREATE INDEX by_step ON points (run, validates, step)")

    def _insert(self, part: list[tuple[Any, ...]]) -> None:
        self._points.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)", part)
        part.clear()

    def _number(self, run: str) -> int:
        return self._numbers.setdefault(run, len(self._numbers) + 1)

    def _add_name(self, name: str) -> tuple[int, bool]:
        validates = name == self._options.metric or _VALIDATION.match(name) is not None
        self._names[name] = len(self._names), validates
        return self._names[name]

    def _count(self) -> int:
        """Return how many values count, and count the others as left out."""
        sql = (
            "SELECT count(*), (SELECT count(*) FROM (SELECT DISTINCT run, step, name FROM points))"
            " FROM points"
        )
        [(every, counting)] = self._points.execute(sql)
        self._tally.leave_out(
            "metrics", "at a step where the metric has a later value", every - counting
        )
        return int(counting)

    def _measure(self) -> None:
        """Count the bytes that would be written: a name and nine bytes for each value, and logs."""
        names = [*self._names]
        rows = self._points.execute(
            "SELECT name, count(*) FROM (SELECT DISTINCT run, step, name FROM points) GROUP BY name"
        )
        size = sum(count * (len(names[name].encode()) + 9) for name, count in rows)
        logs = (run.log.stat().st_size for run in self._runs.values() if run.log is not None)
        self._tally.sizes.update({REPORTS: size, LOGS: sum(logs)})

    def _note_metric(self) -> None:
        if self._options.metric not in (None, *self._names):
            names = sorted(self._names)
            shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            self._tally.notes.append(
                f"no run of {self._project.name} has {self._options.metric}; there are {shown}"
            )

    def _write(self, store: Store) -> None:
        project, metric = self._project, self._options.metric
        times = self._times()
        runs = sorted(self._runs.values(), key=lambda run: (times[run.key][0] or 0.0, run.key))
        secrets = find_plain_secrets([[run.hparams, run.facts] for run in runs])
        begun = [first for first, _ in times.values() if first is not None]
        over = [last for _, last in times.values() if last is not None]
        started = min(begun, default=None)
        ended = max(over, default=started)
        config = self._config()
        past = PastExperiment(
            name=mask_text(project.name, secrets),
            config=json.dumps(mask_plain(masked(config), secrets), allow_nan=False),
            description=mask_text(project.notes, secrets),
            metric=metric or "",
            smaller_is_better=self._options.smaller_is_better,
            state=ExperimentState.COMPLETED,
            progress=1.0,
            created=started or ended or 0.0,
            started=started,
            ended=ended,
        )
        numbers = range(1, len(runs) + 1)
        with bulk_writer(store, past, numbers, id=None) as writer:
            trials = {}
            for number, run in self._progress(
                [*zip(numbers, runs, strict=True)], "writing", len(runs)
            ):
                first, last = times[run.key]
                reason = mask_text(run.reason, secrets) if run.reason else None
                hparams = mask_plain(dict(run.hparams), secrets)
                writer.add_trial(
                    number,
                    hparams=hparams,
                    state=run.state,
                    started=first,
                    ended=last,
                    exit_reason=reason,
                )
                first = first or 0.0
                last = max(first, last or first)
                outcome = _OUTCOMES[run.state]
                id = writer.add_run(
                    number, 1, started=first, ended=last, outcome=outcome, reason=reason
                )
                for validates, group in enumerate(("training", "validation")):
                    writer.add_reports(number, group, self._reports(run.key, validates, id, last))
                if run.log is not None:
                    _copy_log(run.log, writer.log_dir(number, 1) / "rank-0.log", secrets)
                trials[str(writer.trials[number])] = {"key": run.key, "name": run.name, **run.facts}
            self._write_facts(writer.directory / _FILE, trials, secrets)
        self._tally.numbers.append(writer.id)

    def _times(self) -> dict[str, tuple[float | None, float | None]]:
        """Return when each run began and ended, by its key."""
        found = {}
        for key, run in self._runs.items():
            sql = "SELECT min(time), max(time) FROM points WHERE run = ?"
            [(first, last)] = self._points.execute(sql, (self._number(key),))
            started = run.started if run.started is not None else first
            ended = run.ended if run.ended is not None else last
            found[key] = started, ended if ended is None or started is None else max(started, ended)
        return found

    def _reports(self, run: str, validates: int, id: int, late: float) -> Iterator[Report]:
        """Yield the reports of a run. Of several values of a metric at a step the last counts."""
        names = list(self._names)
        sql = (
            "SELECT step, name, time, value FROM points WHERE run = ? AND validates = ? ORDER BY"
            " step, rowid"
        )
        rows = self._points.execute(sql, (self._number(run), validates))
        for step, group in groupby(rows, key=lambda row: row[0]):
            at, values = None, {}
            for _, name, time, value in group:
                # SQLite stores a NaN as NULL.
                values[names[name]] = math.nan if value is None else value
                at = time if time is not None else at
            yield Report(id, step, late if at is None else at, values)

    def _config(self) -> ExperimentConfig:
        searcher = {
            "metric": self._options.metric or "unknown",
            "smaller_is_better": self._options.smaller_is_better,
        }
        return from_json(
            json.dumps({"name": self._project.name, "searcher": {"name": "single", **searcher}})
        )

    def _write_facts(self, place: Path, trials: Mapping[str, Any], secrets: set[str]) -> None:
        kept = {"format": 1, "tracker": self._project.tracker, "name": self._project.name}
        kept |= {"versions": dict(self._project.versions), "trials": trials}
        place.touch(mode=0o600)
        text = json.dumps(_finite(mask_plain(kept, secrets)), indent=1, allow_nan=False)
        place.write_text(text, encoding="utf-8", errors="backslashreplace")


def _finite(value: Any) -> Any:
    """Return a value with numbers that JSON cannot hold as text."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _copy_log(source: Path, target: Path, secrets: set[str]) -> None:
    """Copy a log line by line, as it may be of any size, with secrets masked."""
    target.touch(mode=0o600)
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            masked_line = line
            for secret in sorted(secrets, key=len, reverse=True):
                masked_line = masked_line.replace(secret.encode(), MASK.encode())
            out.write(masked_line)


def typed(text: str) -> Any:
    """Return the value of a parameter that a tracker has stored as text."""
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    for kind in (int, float):
        with suppress(ValueError):
            value = kind(text)
            return value if math.isfinite(value) else text
    return text
