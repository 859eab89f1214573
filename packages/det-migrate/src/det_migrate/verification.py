"""Takes what would be written: to compare it with the store, or to count it."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any

from det_driver.store import BulkWriter, CheckpointState, Report, Store, TrialState, dump


class Comparison(BulkWriter):
    """Takes what a bulk writer takes, and compares it with what is stored instead of writing it.

    Logs are written into `directory`, and compared as files. `differences` says what differs.
    """

    def __init__(self, store: Store, id: int, trials: Mapping[int, int], directory: Path) -> None:
        self._store = store
        self.id = id
        self.trials = trials
        self.directory = directory
        self.differences: list[str] = []
        self._checkpoints = {row.uuid: row for row in store.checkpoints.list(experiment_id=id)}
        self._adopted = store.checkpoints.adopted(id)
        self._archived: dict[tuple[int, str], int] = {}
        self._left = {trial.id for trial in store.trials.list(id)} - set(trials.values())

    def _compare(self, what: str, expected: Any, found: Any) -> None:
        if dump([expected]) != dump([found]):
            self.differences.append(
                f"{what}: {dump([found])[1:-1]:.80} is stored, not {dump([expected])[1:-1]:.80}"
            )

    def add_trial(
        self,
        wanted: int,
        *,
        hparams: Mapping[str, Any],
        state: TrialState,
        seed: int = 0,
        restarts: int = 0,
        started: float | None = None,
        ended: float | None = None,
        exit_reason: str | None = None,
        source_checkpoint: str | None = None,
    ) -> None:
        """Compare the facts of a trial."""
        row = self._store.trials.get(self.trials[wanted])
        expected = [hparams, state, seed, restarts, started, ended, source_checkpoint]
        found = [
            row.hparams,
            row.state,
            row.seed,
            row.restarts,
            row.started,
            row.ended,
            row.source_checkpoint,
        ]
        self._compare(f"trial {row.id}", expected, found)

    def add_run(
        self,
        wanted: int,
        number: int,
        *,
        started: float,
        first_batch: int = 0,
        ended: float | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        host: str | None = None,
    ) -> int:
        """Compare a run, and return its id in the store."""
        trial = self.trials[wanted]
        for run in self._store.runs.list(trial):
            if run.number == number:
                found = [run.started, run.ended, run.outcome, run.reason]
                self._compare(
                    f"trial {trial} run {number}", [started, ended, outcome, reason], found
                )
                return run.id
        self.differences.append(f"trial {trial}: run {number} is missing")
        return 0

    def add_reports(
        self, wanted: int, group: str, reports: Iterable[Report], *, archived: bool = False
    ) -> int:
        """Compare the reports of one group, one by one. Archived ones have no order."""
        trial, count = self.trials[wanted], 0
        if archived:
            for report in reports:
                count += 1
                key = trial, group
                self._archived[key] = self._archived.get(key, 0) + _digest(report)
            return count
        different = 0
        for expected, found in zip_longest(reports, self._stored(trial, group, archived=False)):
            count += expected is not None
            if expected is None or found is None or _digest(expected) != _digest(found):
                different += 1
        if different:
            self.differences.append(f"trial {trial}: {different} reports of {group!r} differ")
        return count

    def _stored(self, trial: int, group: str, *, archived: bool) -> Iterator[Report]:
        for each in self._store.metrics.read(trial_id=trial, group=group, archived=archived):
            yield Report(each.run_id, each.batches, each.time, dict(each.values))

    def add_checkpoint(
        self,
        wanted: int,
        uuid: str,
        *,
        run_id: int,
        batches: int,
        state: CheckpointState,
        storage: str,
        size: int,
        created: float,
        metadata: Mapping[str, Any] | None = None,
        framework: str = "",
    ) -> None:
        """Compare a checkpoint. One that was copied since then lies elsewhere."""
        row = self._checkpoints.pop(uuid, None)
        if row is None:
            self.differences.append(f"trial {self.trials[wanted]}: checkpoint {uuid} is missing")
            return
        expected: list[Any] = [self.trials[wanted], run_id, batches, created, metadata]
        found: list[Any] = [row.trial_id, row.run_id, row.batches, row.created, row.metadata]
        if uuid not in self._adopted:
            expected += [state, storage, size, framework]
            found += [row.state, row.storage, row.size, row.framework]
        self._compare(f"checkpoint {uuid}", expected, found)

    def finish(self) -> None:
        """Compare the logs and what was archived, and name what is stored in addition."""
        for (trial, group), expected in self._archived.items():
            if expected != sum(map(_digest, self._stored(trial, group, archived=True))):
                self.differences.append(f"trial {trial}: archived reports of {group!r} differ")
        stored = self._store.experiment_dir(self.id)
        for file in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            name = file.relative_to(self.directory)
            if not (stored / name).is_file() or not filecmp.cmp(file, stored / name, shallow=False):
                self.differences.append(f"{name} differs")
        self.differences += [f"trial {trial} is none of the source" for trial in sorted(self._left)]
        self.differences += [
            f"checkpoint {uuid} is none of the source" for uuid in self._checkpoints
        ]


class Rehearsal(BulkWriter):
    """Takes what a bulk writer takes, and keeps none of it but the other files."""

    def __init__(self, id: int, trials: Iterable[int], directory: Path) -> None:
        self.id = id
        self.trials = {trial: trial for trial in trials}
        self.directory = directory
        (directory / "code").mkdir()
        self.states: dict[str, CheckpointState] = {}
        self._runs = 0

    def add_trial(self, wanted: int, **facts: Any) -> None:
        """Take a trial."""

    def add_run(self, wanted: int, number: int, **facts: Any) -> int:
        """Take a run, and return an id."""
        self._runs += 1
        return self._runs

    def add_reports(
        self, wanted: int, group: str, reports: Iterable[Report], *, archived: bool = False
    ) -> int:
        """Return the number of reports."""
        return sum(1 for _ in reports)

    def add_checkpoint(
        self, wanted: int, uuid: str, *, state: CheckpointState, **facts: Any
    ) -> None:
        """Take a checkpoint, and keep its state."""
        self.states[uuid] = state


def _digest(report: Report) -> int:
    """Return a number of 64 bits for a report, whose sums do not depend on the order."""
    text = dump([report.run_id, report.batches, report.time, report.values])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
