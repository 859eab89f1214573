"""Write a past experiment with its numbers and times. Either all of it is written or nothing."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from det_core.errors import StoreError
from det_driver.store._chunks import Report, pack
from det_driver.store._database import Database
from det_driver.store._databases import FILE
from det_driver.store._file import list_sidecars
from det_driver.store._history import CHUNK, FEW
from det_driver.store._metrics import VALIDATION, rank, searcher_metric_of
from det_driver.store._records import CheckpointState, ExperimentState, TrialState
from det_driver.store._schema import EXPERIMENT, NO_JOURNAL, dump, storable
from det_driver.store._store import Store

_SCRATCH = ".writing-"
_GUARD = ".writing.lock"
"""A process that makes or removes such a directory holds this lock."""
_LOCK, _NUMBER, _INSIDE = "lock", "number", "experiment"


class NumberConflict(StoreError):
    """The home has another experiment or trial with a requested number."""


class PastExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment that was trained elsewhere.

    Times are Unix seconds. `config` is JSON without secrets.
    """

    name: str
    config: str
    created: float
    state: ExperimentState
    description: str = ""
    labels: tuple[str, ...] = ()
    entrypoint: str = ""
    metric: str = ""
    smaller_is_better: bool = True
    engine: str = "local"
    archived: bool = False
    progress: float = 0.0
    started: float | None = None
    ended: float | None = None
    reason: str | None = None


class BulkWriter:
    """Writes one experiment: for each trial its runs, reports, checkpoints and logs.

    - `id` is the number of the experiment.
    - `trials` maps the requested number of each trial to the number that it gets.
    - Other files, such as the code, go into `directory`.

    Readers see nothing of the experiment until it is complete.
    """

    def __init__(
        self, database: Database, directory: Path, id: int, trials: Mapping[int, int]
    ) -> None:
        self._database = database
        self.directory = directory
        self.id = id
        self.trials = trials
        self._requests = 0
        self._rows = 0

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
        """Add the next trial, in the order of creation. `wanted` is its requested number."""
        progress = 1.0 if state is TrialState.COMPLETED else 0.0
        values = (
            self.trials[wanted],
            self._requests,
            storable(dump(hparams)),
            seed,
            state,
            restarts,
            progress,
        )
        self._database.run(
            "INSERT INTO trials (id, request, hparams, seed, state, restarts, progress, started,"
            " ended, exit_reason, source_checkpoint) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, started, ended, storable(exit_reason), source_checkpoint),
        )
        self._requests += 1

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
        """Add a run of a trial and return its id, to which reports and checkpoints refer.

        The `number` of a trial's first run is 1.
        """
        trial = self.trials[wanted]
        [(id,)] = self._database.rows(
            "INSERT INTO runs (trial_id, number, first_batch, log_dir, started, ended, outcome,"
            " reason, host) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (
                trial,
                number,
                first_batch,
                f"trials/{trial}/run-{number}",
                started,
                ended,
                outcome,
                storable(reason),
                host,
            ),
        )
        return int(id)

    def log_dir(self, wanted: int, number: int) -> Path:
        """Make and return the directory of a run's logs. The log of rank K is `rank-K.log`."""
        place = self.directory / "trials" / str(self.trials[wanted]) / f"run-{number}"
        place.mkdir(parents=True, exist_ok=True)
        return place

    def add_reports(
        self, wanted: int, group: str, reports: Iterable[Report], *, archived: bool = False
    ) -> int:
        """Add the reports of one group, and return their number. `reports` is consumed lazily.

        Reports that count are sorted by position, with at most one at each position. A later run
        has superseded the reports that are `archived`.
        """
        trial, count, left, after = self.trials[wanted], 0, iter(reports), -1
        while part := list(islice(left, CHUNK)):
            count += len(part)
            if archived:
                self._add_rows(trial, group, part, archived=True)
                continue
            for report in part:
                if not after < report.batches:
                    raise ValueError(
                        f"trial {wanted} reports {group!r} at {report.batches} after {after}"
                    )
                after = report.batches
            if group == VALIDATION or len(part) < FEW:
                self._add_rows(trial, group, part)
            else:
                self._database.run(
                    "INSERT INTO chunks (trial_id, kind, first, last, count, data) VALUES (?, ?, ?,"
                    " ?, ?, ?)",
                    (trial, group, part[0].batches, part[-1].batches, len(part), pack(part)),
                )
        if count and not archived:
            self._database.run(
                "UPDATE trials SET batches = max(batches, ?) WHERE id = ?", (after, trial)
            )
        return count

    def _add_rows(
        self, trial: int, group: str, reports: Iterable[Report], *, archived: bool = False
    ) -> None:
        for report in reports:
            self._rows += 1
            metric = (
                searcher_metric_of(self._database, report.values) if group == VALIDATION else None
            )
            row = (
                self._rows,
                trial,
                report.run_id,
                group,
                report.batches,
                report.time,
                dump(report.values),
                metric,
            )
            self._database.run(
                "INSERT INTO metrics (id, trial_id, run_id, kind, batches, time, data, metric,"
                " archived) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, self._rows if archived else 0),
            )

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
        """Add a checkpoint of a trial.

        Add the oldest first. `rm` and `gc` never delete its files.
        """
        values = (
            uuid,
            self.trials[wanted],
            run_id,
            batches,
            state,
            storage,
            size,
            storable(dump(metadata or {})),
        )
        self._database.run(
            "INSERT INTO checkpoints (uuid, trial_id, run_id, batches, state, storage, size,"
            " metadata, created, framework, imported) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
            (*values, created, framework),
        )

    def finish(self) -> None:
        """Set the columns of trials that follow from their runs, reports and checkpoints."""
        self._database.run(
            "UPDATE trials SET runs = (SELECT coalesce(max(number), 0) FROM runs WHERE trial_id ="
            " trials.id), latest_checkpoint = (SELECT uuid FROM checkpoints WHERE trial_id ="
            " trials.id AND state = 'COMPLETED' ORDER BY seq DESC LIMIT 1)"
        )
        for (trial,) in self._database.rows(
            "SELECT DISTINCT trial_id FROM metrics WHERE kind = ?", (VALIDATION,)
        ):
            rank(self._database, trial)


@contextmanager
def bulk_writer(
    store: Store,
    past: PastExperiment,
    trials: Sequence[int],
    *,
    id: int | None,
    renumber: bool = False,
) -> Iterator[BulkWriter]:
    """Write an experiment that was trained elsewhere.

    It appears as a whole when the context ends. If the block fails, nothing appears. The experiment
    gets the number `id`, and its trials get their numbers. If the home has one of these numbers
    already, this raises NumberConflict, or chooses other numbers with `renumber`. Where `id` is
    None, all of them get new numbers. The next call, and `clear_unfinished`, remove what a killed
    process has left.
    """
    # Make the index before the first experiment: a home with experiments and no index has lost it.
    store.index.attempt(lambda database: None)
    with _scratch(store) as scratch:
        number: int | None = None
        try:
            number = _take_number(store, scratch, id, renumber)
            numbers = _take_trials(
                store, number, sorted(trials), renumber=renumber, is_new=id is None
            )
            inside = scratch / _INSIDE
            inside.mkdir(mode=0o700)
            (inside / "code").mkdir()
            with closing(Database(inside / FILE, EXPERIMENT)) as database, database.transaction():
                _insert(database, past, numbers.values())
                writer = BulkWriter(database, inside, number, numbers)
                yield writer
                writer.finish()
            for each in list_sidecars(inside / FILE):
                each.unlink(missing_ok=True)
            os.rename(inside, store.experiment_dir(number))
        except BaseException:
            if number is not None:
                _give_back(store, number)
            raise
    store.experiments.publish(number)
    store.experiments.release(number)


@contextmanager
def _scratch(store: Store) -> Iterator[Path]:
    """Make a directory to write in, and remove it at the end.

    Its lock shows that its process lives.
    """
    scratch = store.home / "experiments" / f"{_SCRATCH}{secrets.token_hex(4)}"
    with ExitStack() as held:
        with _guarded(store):
            _clear(store)
            scratch.mkdir(mode=0o700)
            lock = held.enter_context((scratch / _LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        held.callback(shutil.rmtree, scratch, ignore_errors=True)
        yield scratch


def clear_unfinished(store: Store) -> None:
    """Remove the directories of killed bulk writers, and free the numbers that they had."""
    with _guarded(store):
        _clear(store)


@contextmanager
def _guarded(store: Store) -> Iterator[None]:
    """Hold the lock of those who make or remove directories of bulk writers."""
    experiments = store.home / "experiments"
    try:
        with (experiments / _GUARD).open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise StoreError(
            f"cannot write in {experiments}: {error.strerror}; check the home's rights"
        ) from error


def _clear(store: Store) -> None:
    for scratch in (store.home / "experiments").glob(f"{_SCRATCH}*"):
        with suppress(OSError), (scratch / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(ValueError, FileNotFoundError):
                _give_back(store, int((scratch / _NUMBER).read_text()))
            shutil.rmtree(scratch)


def _take_number(store: Store, scratch: Path, wanted: int | None, renumber: bool) -> int:
    """Reserve the number of an experiment by making its empty directory.

    A note in the scratch directory says first which number this process reserves.
    """
    note = scratch / _NUMBER
    if wanted is not None:
        note.write_text(str(wanted))
        try:
            store.experiment_dir(wanted).mkdir()
            return wanted
        except FileExistsError:
            note.unlink()
        except OSError as error:
            raise StoreError(
                f"cannot make {store.experiment_dir(wanted)}: {error.strerror}"
            ) from error
        if not renumber:
            raise NumberConflict(f"there is another experiment {wanted} in {store.home}")
    number = store.experiments.new_directory()
    note.write_text(str(number))
    return number


def _take_trials(
    store: Store, experiment: int, wanted: Sequence[int], *, renumber: bool, is_new: bool
) -> dict[int, int]:
    """Return the number that each trial gets in this home, by its requested number."""
    free = False if is_new else store.index.reserve(experiment, ranges(wanted))
    if free:
        return {each: each for each in wanted}
    if free is False and not renumber and not is_new:
        raise NumberConflict(
            f"other trials in {store.home} have numbers of its {len(wanted)} trials, which begin at"
            f" {wanted[0]}"
        )
    first = store.index.block(experiment, len(wanted)) if free is False else None
    if first is None:
        raise StoreError(
            f"{store.index.path} gives no numbers for trials; see that it can be written"
        )
    return dict(zip(wanted, range(first, first + len(wanted)), strict=True))


def _give_back(store: Store, number: int) -> None:
    """Free the numbers of an experiment that was not finished. A finished one stays."""
    # The directory of a finished experiment is not empty.
    with suppress(OSError):
        store.experiment_dir(number).rmdir()
        store.index.forget(number)


def _insert(database: Database, past: PastExperiment, trials: Iterable[int]) -> None:
    values = msgspec.structs.asdict(past) | {
        "labels": dump(list(past.labels)),
        "journal": NO_JOURNAL,
    }
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    texts = {name: storable(value) for name, value in values.items()}
    # The names are those of a record's fields; values are parameters.
    database.run(f"INSERT INTO experiment ({names}) VALUES ({places})", texts)  # nosec B608
    for span in ranges(sorted(trials)):
        database.run("INSERT INTO blocks (first, last) VALUES (?, ?)", span)


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges without a gap, the first and the last of each."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
