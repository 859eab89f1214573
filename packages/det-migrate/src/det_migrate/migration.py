"""Writes the experiments of a Determined master's database into a home, one after the other."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from det_core.config import MASK, ExperimentConfig, masked
from det_core.errors import DetError, StoreError
from det_core.support.archives import extract
from det_driver.provenance import write as write_provenance
from det_driver.store import (
    NO_JOURNAL,
    BulkWriter,
    CheckpointState,
    ExperimentState,
    NumberConflict,
    PastExperiment,
    Store,
    TrialState,
    bulk_writer,
    clear_unfinished,
)

from .configuration import (
    Modernised,
    find_plain_secrets,
    mask_files,
    mask_plain,
    mask_text,
    modernise,
    opened_as_today,
    place_url,
    storage_url,
)
from .history import Attempt, ExperimentRecord, History, TrialRecord
from .registry import keep_models, read_models, register, rehearsed_registry
from .reports import TrialReports, run_number
from .scratch import LARGE, SMALL, Scratch, attempt_of
from .sources import Source
from .tally import LOGS, REPORTS, Tally, describe_room
from .values import (
    LARGEST,
    framework_of,
    read_checkpoint_state,
    read_json,
    read_size,
    read_state,
    read_time,
    read_trial_state,
)
from .verification import Comparison, Rehearsal

FILE = "determined.json"
_LOGS = ("trial_logs", "task_logs")
_PARTS = {
    "trials": {"trials", "runs"},
    "metrics": {"steps", "validations", "raw_steps", "raw_validations", "generic_metrics"},
    "checkpoints": {"checkpoints", "raw_checkpoints", "checkpoints_v2"},
    "logs": set(_LOGS),
}
"""The tables that hold each part of a history. A source without all of them is not whole."""
_MOST_OPEN = 64
_MOST_TIMES = 10_000
_IN_USE = "a number of it is taken (--renumber gives others)"
_NOT_WRITABLE = "it cannot be written"
_ODD = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, sqlite3.IntegrityError)
"""The errors that invalid rows of one experiment may raise. No version of Determined wrote such
rows."""
Progress = Callable[[Iterable[Any], str, int | None], Iterable[Any]]


@dataclass(frozen=True)
class Options:
    """Which experiments to import, and how."""

    experiments: Collection[int] | None = None
    since: float | None = None
    project: str | None = None
    user: str | None = None
    archived: bool = True
    logs: bool = True
    renumber: bool = False
    dry_run: bool = False
    verify: bool = False
    batch_metrics: bool = False
    storage: Mapping[str, str] = field(default_factory=dict)


def migrate(
    source: Source,
    home: Path,
    options: Options,
    progress: Progress = lambda each, label, length: each,
) -> Tally:
    """Import the chosen experiments of a master's database into a home, and count the rows.

    Each experiment is written completely or not at all. What an earlier call has imported is
    skipped. With `dry_run` nothing is written. Raises DetError where the source cannot be read.
    """
    with ExitStack() as held:
        store = (
            held.enter_context(_open(home, options))
            if not options.dry_run or Store.is_at(home)
            else None
        )
        if store is not None and not options.dry_run:
            clear_unfinished(store)
        place = Path(tempfile.gettempdir()) if options.dry_run else home
        scratch = held.enter_context(Scratch(place))
        for block in progress(source.blocks(SMALL), "reading what there is", None):
            scratch.load_small(block)
        history, tally = History(scratch), Tally()
        chosen, present = _choose(history, options, tally, store)
        history.choose(chosen)
        wanted = {
            table: columns for table, columns in LARGE.items() if options.logs or table not in _LOGS
        }
        trials = {trial.id for record in chosen.values() for trial in record.trials}
        only = trials if len(chosen) < len(history.experiments) else None
        for block in progress(
            source.blocks(wanted, only) if chosen else (), "reading what came of it", None
        ):
            scratch.load_large(block, history.trial_of, chosen)
        scratch.index()
        lacking = _find_lacking(scratch) if chosen else []
        tally.notes += [
            f"{source.name} has no table with {part}: they do not come along"
            for part in lacking
            if part != "logs" or options.logs
        ]
        tally.leave_out("trials", "of no experiment that there is", history.orphans)
        states: dict[str, CheckpointState] = {}
        for record in progress(chosen.values(), "writing", len(chosen)):
            importer = _Importer(scratch, history, record, options)
            if store is None or options.dry_run:
                tally.add(importer.count(store, states))
                continue
            number = present.get(record.id)
            if number is None:
                tally.add(importer.write(store))
                number = importer.number
            if options.verify and number is not None:
                tally.add(_Importer(scratch, history, record, options).verify(store, number))
        models = read_models(history, scratch)
        if options.dry_run:
            with rehearsed_registry(store, states) as registry:
                register(registry, models, tally)
            tally.notes.append(_room(scratch, home))
        elif store is not None and models:
            register(store.models, models, tally)
            keep_models(store.home, history.cluster, models)
        tally.notes += history.notes
    return tally


def _find_lacking(scratch: Scratch) -> list[str]:
    """Return the parts of a history, such as its logs, for which the source has no table."""
    return [part for part, names in _PARTS.items() if not names & scratch.tables.keys()]


def _room(scratch: Scratch, home: Path) -> str:
    parts = (
        (REPORTS, "metrics", "data"),
        (LOGS, "logs", "line"),
        ("code", "code", "archive"),
    )
    sizes = {}
    for name, table, column in parts:
        [(size,)] = scratch.rows(
            # Names of tables and columns are constants of ours; values are parameters.
            f"SELECT coalesce(sum(length(CAST({column} AS BLOB))), 0) FROM {table}"  # nosec B608
        )
        sizes[name] = size
    return describe_room(sizes, home)


def _open(home: Path, options: Options) -> Store:
    return Store.reader(home) if options.dry_run else Store(home)


def _choose(
    history: History, options: Options, tally: Tally, store: Store | None
) -> tuple[dict[int, ExperimentRecord], dict[int, int]]:
    """Return the experiments to import, and count the others as left out.

    With `verify`, those that are there already are returned as well, and their numbers here.
    """
    missing = sorted(set(options.experiments or ()) - history.experiments.keys())
    if missing:
        raise DetError(
            f"there is no experiment {missing[0]}; of {len(history.experiments)} the newest is "
            f"{max(history.experiments, default='none')}"
        )
    known = _imported(store) if store else {}
    chosen, present = {}, {}
    for id, record in sorted(history.experiments.items()):
        own = f"{record.workspace}/{record.project}"
        why = ""
        if options.experiments is not None and id not in options.experiments:
            why = "not asked for (--experiments)"
        elif options.since is not None and (
            record.started is None or record.started < options.since
        ):
            why = "began earlier (--since)"
        elif options.project not in (None, own, record.project):
            why = "of another project (--project)"
        elif options.user not in (None, record.owner):
            why = "of another user (--user)"
        elif record.archived and not options.archived:
            why = "archived (--no-archived)"
        elif (there := known.get((history.cluster, id))) is not None:
            same = there[1] == _fingerprint(record)
            without = [part for part in there[2] if part != "logs" or options.logs]
            why = "there already" if same else "there already, as it was earlier"
            if same and options.verify and not options.dry_run:
                chosen[id], present[id] = record, there[0]
            if note := _describe_present(id, there[0], without if same else None):
                tally.notes.append(note)
        if why:
            tally.leave_out("experiments", why)
        else:
            chosen[id] = record
    return chosen, present


def _describe_present(id: int, number: int, without: list[str] | None) -> str:
    """Return a note on an experiment that is there already. Empty where it is whole.

    `without` names the parts that it lacks, and is None where it has changed since.
    """
    if without:
        why = f", without its {', '.join(without)}, as an earlier call did not read them"
    elif without is None:
        why = ", and has gone on in Determined since"
    else:
        return ""
    return (
        f"experiment {id} is there as {number}{why}; to take it again: det rm --keep-checkpoints"
        f" {number}"
    )


def _fingerprint(record: ExperimentRecord) -> dict[str, Any]:
    """Return what changes when an experiment continues to run in Determined."""
    return {
        "state": record.state,
        "end_time": record.facts.get("end_time"),
        "trials": len(record.trials),
    }


def _imported(store: Store) -> dict[tuple[str, int], tuple[int, dict[str, Any], list[str]]]:
    """Return the imported experiments of a home, by their cluster and their number in it.

    Each has its number here, its fingerprint, and the parts of its history that were not read.
    """
    found = {}
    for path in (store.home / "experiments").glob(f"[0-9]*/{FILE}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            found[kept["cluster_id"], kept["experiment"]["id"]] = (
                int(path.parent.name),
                kept["fingerprint"],
                kept.get("without", []),
            )
    return found


class _Importer:
    """Writes one experiment."""

    def __init__(
        self, scratch: Scratch, history: History, record: ExperimentRecord, options: Options
    ) -> None:
        self._scratch = scratch
        self._history = history
        self._record = record
        self._options = options
        self._tally = Tally()
        self._left_out: list[dict[str, Any]] = []
        self._uuids: set[str] = set()
        self.number: int | None = None
        """The number of the experiment here, once it is written."""
        self._secrets = find_plain_secrets(record.config)

    def count(self, store: Store | None, states: dict[str, CheckpointState]) -> Tally:
        """Return the counts of what would be written. All rows but the logs are converted.

        The states of its checkpoints are added to `states`.
        """
        record, tally = self._record, self._tally
        if store is not None and not self._options.renumber:
            if store.experiment_dir(record.id).exists():
                why = f"there is another experiment {record.id} in {store.home}"
                return self._refused(_IN_USE, why)
            if any(store.index.experiment_of(trial.id) is not None for trial in record.trials):
                return self._refused(_IN_USE, f"trials in {store.home} have numbers of its trials")
        configuration = self._modernise()
        try:
            with tempfile.TemporaryDirectory(prefix="det-migrate-") as place:
                rehearsal = Rehearsal(record.id, [each.id for each in record.trials], Path(place))
                self._note_configuration(configuration)
                self._write_trials(rehearsal, configuration, logs=False)
                self._write_code(rehearsal.directory)
        except _ODD as error:
            tally.failed = True
            return self._refused(_NOT_WRITABLE, f"{type(error).__name__}: {error}")
        if self._options.logs:
            for trial in record.trials:
                tally.write("log lines", self._count("logs", trial))
        tally.write("experiments")
        states |= rehearsal.states
        return tally

    def write(self, store: Store) -> Tally:
        """Write the experiment completely, and return the counts of what was written.

        Where it cannot be written, all of it is counted as left out. Raises StoreError where the
        file system fails.
        """
        record = self._record
        configuration = self._modernise()
        past = self._past(configuration)
        try:
            wanted = [trial.id for trial in record.trials]
            with bulk_writer(
                store, past, wanted, id=record.id, renumber=self._options.renumber
            ) as writer:
                self._note_configuration(configuration)
                self._write_trials(writer, configuration, logs=self._options.logs)
                self._write_code(writer.directory)
                self._write_facts(writer, configuration)
                self._tally.write("experiments")
                self.number = writer.id
                if writer.id != record.id:
                    self._tally.notes.append(f"experiment {record.id} is {writer.id} here")
        except NumberConflict as error:
            self.number = None
            return self._refused(_IN_USE, str(error))
        except _ODD as error:
            # An experiment that cannot be written does not stop the others.
            self._tally.failed, self.number = True, None
            return self._refused(_NOT_WRITABLE, f"{type(error).__name__}: {error}")
        except OSError as error:
            raise StoreError(
                f"cannot write experiment {record.id}: {error.strerror or error}; the others before"
                " it are whole"
            ) from error
        self._tally.numbers.append(self.number or record.id)
        return self._tally

    def verify(self, store: Store, number: int) -> Tally:
        """Compare a written experiment with its rows, and return what differs as notes."""
        kept = json.loads((store.experiment_dir(number) / FILE).read_text(encoding="utf-8"))
        tally = Tally()
        if store.experiments.get(number).journal != NO_JOURNAL:
            tally.notes.append(f"experiment {number} has gone on here and is not compared")
            return tally
        trials = {each["id"]: int(id) for id, each in kept["trials"].items()}
        configuration = self._modernise()
        with tempfile.TemporaryDirectory(prefix=".migrating-", dir=store.home) as folder:
            comparison = Comparison(store, number, trials, Path(folder))
            self._write_trials(comparison, configuration, logs=self._options.logs)
            comparison.finish()
        tally.failed = bool(comparison.differences)
        tally.write("verified", self._tally.written["trials"])
        tally.notes += [f"experiment {number}, {each}" for each in comparison.differences]
        return tally

    def _refused(self, reason: str, because: str = "") -> Tally:
        """Count the experiment, and everything in it, as left out."""
        tally, record = Tally(), self._record
        tally.failed = self._tally.failed
        if because:
            tally.notes.append(f"experiment {record.id} is left out: {because}")
        tally.leave_out("experiments", reason)
        tally.leave_out("trials", reason, len(record.trials))
        for trial in record.trials:
            tally.leave_out("attempts", reason, len(trial.attempts))
            for kind, count in self._counts(trial):
                tally.leave_out(kind, reason, count)
        return tally

    def _counts(self, trial: TrialRecord) -> Iterator[tuple[str, int]]:
        for kind, table in (
            ("metrics", "metrics"),
            ("checkpoints", "checkpoints"),
            ("log lines", "logs"),
        ):
            yield kind, self._count(table, trial)

    def _count(self, table: str, trial: TrialRecord) -> int:
        # Names of tables and columns are constants of ours; values are parameters.
        sql = f"SELECT count(*) FROM {table} WHERE trial = ?"  # nosec B608
        [(count,)] = self._scratch.rows(sql, (trial.id,))
        return int(count)

    def _modernise(self) -> Modernised:
        record = self._record
        return modernise(
            record.config,
            name=self._name(),
            project=record.project,
            workspace=record.workspace,
            storage=self._options.storage,
        )

    def _note_configuration(self, configuration: Modernised) -> None:
        if configuration.left_out:
            self._tally.notes.append(
                f"experiment {self._record.id}: its configuration is read without"
                f" {', '.join(configuration.left_out)}; all of it is in {FILE}"
            )

    def _name(self) -> str:
        for found in (self._record.config.get("name"), self._record.config.get("description")):
            if isinstance(found, str) and found.strip():
                return found
        return f"Experiment {self._record.id}"

    def _past(self, configuration: Modernised) -> PastExperiment:
        record, config = self._record, configuration.config
        state, reason = read_state(record.state)
        description = config.description or ""
        notes = [text for text in (description, record.notes) if text.strip()]
        started = record.started
        return PastExperiment(
            name=self._hide(self._name()),
            config=json.dumps(mask_plain(masked(config), self._secrets), allow_nan=False),
            description=self._hide("\n\n".join(dict.fromkeys(notes))),
            labels=tuple(config.labels),
            entrypoint=(
                " ".join(config.entrypoint)
                if isinstance(config.entrypoint, tuple)
                else config.entrypoint or ""
            ),
            metric=(config.searcher.metric or "") if config.searcher else "",
            smaller_is_better=config.searcher.smaller_is_better if config.searcher else True,
            state=state,
            archived=record.archived,
            progress=(
                1.0 if state is ExperimentState.COMPLETED else _share(record.facts.get("progress"))
            ),
            created=started or record.ended or 0.0,
            started=started,
            ended=_not_before(record.ended, started),
            reason=reason,
        )

    def _hide(self, text: str) -> str:
        return mask_text(text, self._secrets)

    def _write_trials(self, writer: BulkWriter, configuration: Modernised, *, logs: bool) -> None:
        state, _ = read_state(self._record.state)
        for trial in self._record.trials:
            self._write_trial(writer, trial, configuration.config, state, logs=logs)

    def _write_trial(
        self,
        writer: BulkWriter,
        trial: TrialRecord,
        config: ExperimentConfig,
        of: ExperimentState,
        *,
        logs: bool,
    ) -> None:
        state = read_trial_state(trial.state, of)
        started = trial.started or self._record.started
        ended = (
            trial.ended
            if state.ended and trial.ended is not None
            else self._record.ended
            if state.ended
            else None
        )
        writer.add_trial(
            trial.id,
            hparams=mask_plain(trial.hparams, self._secrets),
            state=state,
            seed=_seed(trial.facts.get("seed")),
            restarts=trial.restarts,
            started=started,
            ended=_not_before(ended, started),
            source_checkpoint=self._source(trial, config),
        )
        self._tally.write("trials")
        runs = self._write_runs(writer, trial, state, started or 0.0, _not_before(ended, started))
        late = ended or started or 0.0
        reports = TrialReports(self._scratch, trial.id, self._record.batches_per_step, self._tally)
        reports.write(writer, runs, late)
        if self._options.batch_metrics:
            reports.write_batches(writer, runs, late)
        self._write_checkpoints(writer, trial, runs, config, late, reports.find_position)
        if logs:
            self._write_logs(writer, trial, runs)

    def _source(self, trial: TrialRecord, config: ExperimentConfig) -> str | None:
        """Return the uuid of the checkpoint that a trial began from. None where it is unknown."""
        if trial.warm_start is not None:
            sql = "SELECT uuid FROM checkpoints WHERE id = ? AND origin <> 'checkpoints_v2'"
            found: str | None
            for (found,) in self._scratch.rows(sql, (trial.warm_start,)):
                return found
        return config.searcher.source_checkpoint_uuid if config.searcher else None

    def _write_runs(
        self,
        writer: BulkWriter,
        trial: TrialRecord,
        state: TrialState,
        started: float,
        ended: float | None,
    ) -> dict[int, int]:
        """Write the runs of a trial, and return their ids by the attempts' numbers.

        Attempts that only reports or checkpoints name are written, too.
        """
        sql = (
            "SELECT attempt FROM metrics WHERE trial = ? UNION SELECT attempt FROM checkpoints"
            " WHERE trial = ?"
        )
        named = {
            run_number(attempt) for (attempt,) in self._scratch.rows(sql, (trial.id, trial.id))
        }
        known = dict.fromkeys(sorted({*trial.attempts, *named} or {1}))
        newest, runs = max(known), {}
        for number in known:
            attempt = trial.attempts.get(number) or Attempt(number, None, None, None, {})
            begun = attempt.started if attempt.started is not None else started
            over = _not_before(attempt.ended if attempt.ended is not None else ended, begun)
            outcome = (
                _OUTCOMES.get(state, "paused")
                if number == newest
                else "errored"
                if attempt.reason
                else "lost"
            )
            runs[number] = writer.add_run(
                trial.id,
                number,
                started=begun,
                ended=over if over is not None else begun,
                outcome=outcome,
                reason=self._hide(attempt.reason) if attempt.reason else None,
            )
        self._tally.write("attempts", len(trial.attempts))
        return runs

    def _write_checkpoints(
        self,
        writer: BulkWriter,
        trial: TrialRecord,
        runs: Mapping[int, int],
        config: ExperimentConfig,
        late: float,
        find_position: Callable[[int | None], int | None],
    ) -> None:
        sql = (
            "SELECT origin, id, uuid, step, batches, attempt, archived, state, time, size,"
            " resources, metadata, place FROM checkpoints WHERE trial = ?"
            " ORDER BY batches, step, time, id"
        )
        rows = list(self._scratch.rows(sql, (trial.id,)))
        # A checkpoint may be in both tables. The row of checkpoints_v2 is written, but only the
        # older table has `archived`, the mark that it was taken back.
        newer = {row[2] for row in rows if row[0] == "checkpoints_v2"}
        superseded = {row[2] for row in rows if row[6]}
        for (
            origin,
            id,
            uuid,
            step,
            batches,
            attempt,
            _,
            state,
            time,
            size,
            resources,
            metadata,
            place,
        ) in rows:
            if origin != "checkpoints_v2" and uuid in newer:
                self._tally.leave_out("checkpoints", "in two tables, counted once")
                continue
            kept = read_checkpoint_state(state or "")
            at = batches if batches is not None else find_position(step)
            why = (
                "without a uuid" if not uuid
                else f"never finished ({state})" if kept is None
                else "taken back by a later attempt" if uuid in superseded
                else "of a uuid that is there already" if uuid in self._uuids
                else ""
            )  # fmt: skip
            if why or kept is None:
                self._tally.leave_out("checkpoints", why)
                self._left_out.append(
                    {
                        "trial": trial.id,
                        "id": id,
                        "uuid": uuid,
                        "why": why,
                        "resources": read_json(resources),
                    }
                )
                continue
            self._uuids.add(uuid)
            if at is None or not 0 <= at < LARGEST:
                at = 0
                self._tally.notes.append(
                    f"checkpoint {uuid} of trial {trial.id} says no position; it stands at batch 0"
                )
            facts = read_json(metadata) or {}
            created = read_time(time)
            writer.add_checkpoint(
                trial.id,
                uuid,
                run_id=runs[run_number(attempt)],
                batches=at,
                state=kept,
                storage=self._url(place, config, uuid),
                size=read_size(size, resources),
                created=late if created is None else created,
                metadata=mask_plain(facts, self._secrets),
                framework=framework_of(facts),
            )
            self._tally.write("checkpoints")

    def _url(self, place: str | None, config: ExperimentConfig, uuid: str) -> str:
        """Return where a checkpoint's files lie: by its row, else by the configuration."""
        known = self._history.places.get(place)
        if known is None:
            return storage_url(config, uuid)
        return place_url(opened_as_today(known, self._options.storage), uuid)

    def _write_logs(self, writer: BulkWriter, trial: TrialRecord, runs: Mapping[int, int]) -> None:
        sql = "SELECT allocation, rank, time, line FROM logs WHERE trial = ? ORDER BY origin, id"
        begun = sorted(
            (each.started, each.number)
            for each in trial.attempts.values()
            if each.started is not None
        )
        newest = max(runs)
        secrets = [each.encode() for each in sorted(self._secrets, key=len, reverse=True)]
        mask, lines = MASK.encode(), 0
        numbers: dict[str | None, int] = {}
        with _Logs(writer, trial.id) as logs:
            for allocation, rank, time, line in self._scratch.rows(sql, (trial.id,)):
                lines += 1
                seconds = read_time(time)
                number = numbers.get(allocation)
                if number is None:
                    number = numbers[allocation] = attempt_of(allocation) or 0
                if number not in runs:
                    before = [each for at, each in begun if seconds is not None and at <= seconds]
                    number = before[-1] if before else newest
                shown = line
                for secret in secrets:
                    shown = shown.replace(secret, mask)
                log = logs.find(number, rank if isinstance(rank, int) and rank >= 0 else 0)
                log.write(shown, seconds)
        self._tally.write("log lines", lines)

    def _write_code(self, directory: Path) -> None:
        code = directory / "code"
        try:
            with self._scratch.code(self._record.id) as archive:
                if archive is not None:
                    with tarfile.open(fileobj=archive, mode="r:*") as tar:
                        extract(tar, code)
            mask_files(code, self._secrets)
        except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            shutil.rmtree(code)
            code.mkdir()
            self._tally.notes.append(
                f"experiment {self._record.id}: its code cannot be unpacked ({error})"
            )
        if commit := self._record.facts.get("git_commit"):
            write_provenance(directory, {"git": {"commit": commit, "dirty": False}})

    def _write_facts(self, writer: BulkWriter, configuration: Modernised) -> None:
        record = self._record
        facts = {
            name: self._hide(text) if isinstance(text, str) else text
            for name, text in record.facts.items()
        }
        trials = {}
        for trial in record.trials:
            attempts = {
                str(number): each.facts
                for number, each in sorted(trial.attempts.items())
                if each.facts
            }
            trials[str(writer.trials[trial.id])] = {
                "id": trial.id,
                **trial.facts,
                "attempts": attempts,
            }
        kept = {
            "format": 1,
            "cluster_id": self._history.cluster,
            "schema": self._history.version,
            "fingerprint": _fingerprint(record),
            "without": _find_lacking(self._scratch),
            "experiment": {"id": record.id, **mask_plain(facts, self._secrets)},
            "config": mask_plain(record.config, self._secrets),
            "config_left_out": list(configuration.left_out),
            "trials": mask_plain(trials, self._secrets),
            "checkpoints_left_out": self._left_out,
        }
        place = writer.directory / FILE
        place.touch(mode=0o600)
        place.write_text(json.dumps(kept, indent=1), encoding="utf-8", errors="backslashreplace")


class _Logs:
    """The logs of one trial: a file for each run and rank, with the times of the lines."""

    def __init__(self, writer: BulkWriter, trial: int) -> None:
        self._writer = writer
        self._trial = trial
        self._files: dict[tuple[int, int], _Log] = {}

    def __enter__(self) -> _Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def find(self, number: int, rank: int) -> _Log:
        """Return the open log of a rank."""
        log = self._files.get((number, rank))
        if log is None:
            if len(self._files) >= _MOST_OPEN:
                self._close()
            log = self._files[number, rank] = _Log(
                self._writer.log_dir(self._trial, number) / f"rank-{rank}.log"
            )
        return log

    def _close(self) -> None:
        for log in self._files.values():
            log.close()
        self._files.clear()


class _Log:
    """A log file, with a second file that records its size once a second (see `LogTimes`)."""

    def __init__(self, place: Path) -> None:
        self._file = _append_to(place)
        self._place = place
        self._size = self._file.tell()
        self._second: int | None = None
        self._times: list[str] = []

    def write(self, line: bytes, seconds: float | None) -> None:
        second = None if seconds is None else int(seconds)
        if second != self._second:
            if self._second is not None:
                self._note()
            self._second = second
        self._size += self._file.write(line if line.endswith(b"\n") else line + b"\n")

    def _note(self) -> None:
        self._times.append(f"{self._size} {self._second}\n")
        if len(self._times) >= _MOST_TIMES:
            self._write_times()

    def _write_times(self) -> None:
        with _append_to(self._place.with_suffix(".times")) as file:
            file.write("".join(self._times).encode())
        self._times.clear()

    def close(self) -> None:
        self._file.close()
        if self._second is not None:
            self._note()
        if self._times:
            self._write_times()


def _append_to(place: Path) -> BinaryIO:
    file = os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb")
    file.seek(0, os.SEEK_END)
    return file


_OUTCOMES = {
    TrialState.COMPLETED: "completed",
    TrialState.ERROR: "errored",
    TrialState.CANCELED: "canceled",
}


def _not_before(ended: float | None, started: float | None) -> float | None:
    return ended if ended is None or started is None else max(ended, started)


def _seed(text: str | None) -> int:
    seed = int(text) if text else 0
    return seed if -LARGEST < seed < LARGEST else 0


def _share(text: str | None) -> float:
    try:
        return min(1.0, max(0.0, float(text or 0.0)))
    except ValueError:
        return 0.0
