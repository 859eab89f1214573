"""Writes the reports of one trial of a Determined master's database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from det_driver.store import BulkWriter, Report

from .scratch import Scratch
from .tally import Tally
from .values import LARGEST, read_batches, read_metrics, read_time

_BATCHES = "batch"
"""The group of the metrics of single batches."""


class TrialReports:
    """The reports of one trial, of training, of validations and of other groups.

    What is written and what is left out is counted in `tally`.
    """

    def __init__(self, scratch: Scratch, trial: int, batches_per_step: int, tally: Tally) -> None:
        self._scratch, self._trial = scratch, trial
        self._batches_per_step = batches_per_step
        self._tally = tally
        # Whether several reports have the same position.
        self._superseded = False

    def write(self, writer: BulkWriter, runs: Mapping[int, int], late: float) -> None:
        """Write the reports. `runs` has the ids of the runs by the attempts' numbers.

        A report without a time gets the time `late`.
        """
        sql = "SELECT DISTINCT kind, archived FROM metrics WHERE trial = ? ORDER BY kind, archived"
        for kind, is_archived in list(self._scratch.rows(sql, (self._trial,))):
            self._superseded = False
            for is_newest in (True, False):
                if not is_newest and not self._superseded:
                    continue
                rows = self._read(kind, is_archived, is_newest, runs, late)
                archived = bool(is_archived) or not is_newest
                self._tally.write(
                    "metrics", writer.add_reports(self._trial, kind, rows, archived=archived)
                )

    def write_batches(self, writer: BulkWriter, runs: Mapping[int, int], late: float) -> None:
        """Write the metrics of single batches."""
        count = writer.add_reports(self._trial, _BATCHES, self._read_batches(runs, late))
        self._tally.write("batch metrics", count)

    def find_position(self, step: int | None) -> int | None:
        """Return the number of batches at the end of a step.

        It is the sum of the lengths of the steps up to it. Steps without a length have the
        experiment's `batches_per_step`. So have all, where there are no rows of steps.
        """
        if step is None:
            return None
        if "num_batches" not in self._scratch.tables.get("steps", ()):
            return step * self._batches_per_step
        sql = "SELECT sum(coalesce(batches, ?)) FROM steps WHERE trial = ? AND step <= ?"
        [(found,)] = self._scratch.rows(sql, (self._batches_per_step, self._trial, step))
        return found if found is not None else step * self._batches_per_step

    def _read(
        self,
        kind: str,
        is_archived: int,
        is_newest: bool,
        runs: Mapping[int, int],
        late: float,
    ) -> Iterator[Report]:
        """Yield the reports of one kind: the newest of each position, or else the others."""
        sql = (
            "SELECT batches, step, attempt, state, time, data FROM metrics WHERE trial = ? AND"
            " archived = ? AND kind = ? ORDER BY batches, step, attempt, id"
        )

        last: Report | None = None
        for batches, step, attempt, state, time, data in self._scratch.rows(
            sql, (self._trial, is_archived, kind)
        ):
            at = batches if batches is not None else self.find_position(step)
            found = self._values(state, at, data, count=is_newest)
            if found is None or at is None:
                continue
            if last is not None and last.batches == at:
                self._superseded = True
                if not is_newest:
                    yield last
            elif last is not None and is_newest:
                yield last
            seconds = read_time(time)
            last = Report(
                runs[run_number(attempt)], at, late if seconds is None else seconds, found
            )
        if is_newest and last is not None:
            yield last

    def _values(
        self, state: str | None, at: int | None, data: str | None, *, count: bool
    ) -> dict[str, Any] | None:
        """Return the metrics of a row.

        None where it has none, with the reason counted if `count`.
        """
        why = ""
        found: dict[str, Any] | None = None
        if state not in (None, "COMPLETED"):
            why = f"never finished ({state})"
        elif at is None or not isinstance(at, int) or not 0 <= at < LARGEST:
            why = "at no position"
        else:
            try:
                found = read_metrics(data)
                why = "" if found else "without metrics"
            except (ValueError, RecursionError):
                why = "not JSON"
        if why and count:
            self._tally.leave_out("metrics", why)
        return found

    def _read_batches(self, runs: Mapping[int, int], late: float) -> Iterator[Report]:
        """Yield the metrics of single batches, which training reports hold, by position.

        Batches whose position an earlier report has reached are left out.
        """
        sql = (
            "SELECT batches, step, attempt, time, data FROM metrics WHERE trial = ? AND archived ="
            " 0 AND kind = 'training' AND coalesce(state, 'COMPLETED') = 'COMPLETED' ORDER BY"
            " batches, step, attempt, id"
        )

        def read() -> Iterator[tuple[int, Any, Any, Any]]:
            for batches, step, attempt, time, data in self._scratch.rows(sql, (self._trial,)):
                at = batches if batches is not None else self.find_position(step)
                if isinstance(at, int) and 0 <= at < LARGEST:
                    yield at, attempt, time, data

        after = 0
        for at, group in groupby(read(), key=lambda row: row[0]):
            # The latest attempt counts, as among the reports.
            *_, (_, attempt, time, data) = group
            rows, seconds = read_batches(data), read_time(time)
            for number, values in enumerate(rows, at - len(rows) + 1):
                if number <= after or not values:
                    self._tally.leave_out("batch metrics", "at a position that is taken, or empty")
                    continue
                after = number
                yield Report(
                    runs[run_number(attempt)], number, late if seconds is None else seconds, values
                )


def run_number(attempt: int | None) -> int:
    """Return the run's number for an attempt.

    What came before the first attempt belongs to run 1.
    """
    return attempt if isinstance(attempt, int) and attempt > 0 else 1
