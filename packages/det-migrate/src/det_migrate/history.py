"""Reads the experiments and trials of a Determined master's database, with their owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from det_core.errors import DetError

from .scratch import Scratch, attempt_of
from .values import is_true, read_json, read_time

Record = Mapping[str, str | None]
BATCHES_PER_STEP = 100
"""The number of batches in a step, where the configuration does not set it."""


@dataclass(frozen=True)
class Attempt:
    """A run of a trial, as Determined recorded it."""

    number: int
    started: float | None
    ended: float | None
    reason: str | None
    facts: dict[str, Any]


@dataclass(frozen=True)
class TrialRecord:
    """A trial, with its attempts by number."""

    id: int
    state: str
    started: float | None
    ended: float | None
    hparams: dict[str, Any]
    warm_start: int | None
    restarts: int
    facts: dict[str, Any]
    attempts: dict[int, Attempt] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment. `config` is the stored one, `facts` has what det has no column for."""

    id: int
    state: str
    config: dict[str, Any]
    started: float | None
    ended: float | None
    archived: bool
    owner: str
    project: str
    workspace: str
    notes: str
    facts: dict[str, Any]
    trials: list[TrialRecord] = field(default_factory=list)

    @property
    def batches_per_step(self) -> int:
        """The number of batches in a step, in 0.12 and 0.13."""
        found = self.config.get("batches_per_step", self.config.get("scheduling_unit"))
        return (
            found
            if isinstance(found, int) and not isinstance(found, bool) and found > 0
            else BATCHES_PER_STEP
        )


class History:
    """The content of the small tables: all experiments and their trials."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self.notes: list[str] = []
        """Sentences about values that cannot be read."""
        if (
            not {"experiments", "trials", "runs"} & scratch.tables.keys()
            or "experiments" not in scratch.tables
        ):
            raise DetError(
                "there are no tables of Determined: experiments is missing; give the database of a"
                " master"
            )
        self.cluster = (
            next((row["cluster_id"] for row in scratch.records("cluster_id")), None) or ""
        )
        self.users = {row["id"]: row["username"] or "" for row in scratch.records("users")}
        self._workspaces = {row["id"]: row["name"] or "" for row in scratch.records("workspaces")}
        self._projects = {row["id"]: row for row in scratch.records("projects")}
        self.experiments = {
            record.id: record for record in map(self._experiment, scratch.records("experiments"))
        }
        self.places = dict(_places(scratch))
        """The storages of checkpoints by the ids in their rows, as `checkpoint_storage`."""
        self._tasks: dict[str, int] = {}
        self._uuids = {
            row["checkpoint_id"]: int(row["run_id"] or 0)
            for row in scratch.records("run_checkpoints")
        }
        self._chosen: set[int] = set()
        self.orphans = 0
        """The number of trials whose experiment does not exist."""
        for trial, experiment in self._trials():
            if experiment in self.experiments:
                self.experiments[experiment].trials.append(trial)
            else:
                self.orphans += 1
        for record in self.experiments.values():
            record.trials.sort(key=lambda trial: trial.id)
        self._add_tasks()
        self._add_attempts()

    @property
    def version(self) -> str:
        """The version of the database's schema, 14 digits that begin with the date. For people."""
        rows = (
            (int(row["id"] or 0), row["version"] or "")
            for row in self._scratch.records("gopg_migrations")
        )
        newest = max(rows, default=(0, ""))
        old = next((row["version"] for row in self._scratch.records("schema_migrations")), None)
        return newest[1] or old or ""

    def read_json(self, text: str | None, what: str) -> Any:
        """Return the value of a jsonb column. None, with a note, where it cannot be read."""
        try:
            return read_json(text)
        except (ValueError, RecursionError):
            self.notes.append(f"{what} cannot be read as JSON and is left out")
            return None

    def _read_object(self, text: str | None, what: str) -> dict[str, Any]:
        value = self.read_json(text, what)
        return value if isinstance(value, dict) else {}

    def choose(self, experiments: Mapping[int, ExperimentRecord]) -> None:
        """Choose the experiments whose trials' rows are read. Rows of other trials are skipped."""
        self._chosen = {trial.id for record in experiments.values() for trial in record.trials}

    def trial_of(self, by: str, value: str) -> int | None:
        """Return the chosen trial that a row belongs to. None where its trial is not chosen.

        `by` is "trial", "task" or "uuid" (of a checkpoint), and `value` is the row's value for it.
        """
        trial = (
            int(value)
            if by == "trial"
            else self._tasks.get(value)
            if by == "task"
            else self._uuids.get(value)
        )
        return trial if trial in self._chosen else None

    def _experiment(self, row: Record) -> ExperimentRecord:
        project: Record = self._projects.get(row["project_id"]) or {}
        names = (
            "parent_id",
            "job_id",
            "unmanaged",
            "external_experiment_id",
            "best_trial_id",
            "progress",
        )
        git = ("git_remote", "git_commit", "git_committer", "git_commit_date")
        facts: dict[str, Any] = {
            name: row[name]
            for name in (*names, *git, "start_time", "end_time")
            if row[name] is not None
        }
        owner = self.users.get(row["owner_id"], "")
        workspace = self._workspaces.get(project.get("workspace_id"), "")
        facts |= {
            "state": row["state"],
            "owner": owner,
            "project": project.get("name"),
            "workspace": workspace,
        }
        if notes := self.read_json(
            project.get("notes"), f"experiment {row['id']}: the notes of its project"
        ):
            facts["project_notes"] = notes
        facts |= {name: row[name] for name in ("notes", "original_config") if row[name]}
        return ExperimentRecord(
            id=int(row["id"] or 0),
            state=row["state"] or "",
            config=self._read_object(row["config"], f"experiment {row['id']}: its configuration"),
            started=read_time(row["start_time"]),
            ended=read_time(row["end_time"]),
            archived=is_true(row["archived"]),
            owner=owner,
            project=project.get("name") or "",
            workspace=workspace,
            notes=row["notes"] or "",
            facts=facts,
        )

    def _trials(self) -> Iterator[tuple[TrialRecord, int]]:
        v2 = {row["run_id"]: row for row in self._scratch.records("trials_v2")}
        metadata = {
            row["run_id"]: row["metadata"] for row in self._scratch.records("runs_metadata")
        }
        sources: dict[str | None, list[dict[str, str | None]]] = defaultdict(list)
        for row in self._scratch.records("trial_source_infos"):
            sources[row["trial_id"]].append(
                {name: text for name, text in row.items() if text is not None}
            )
        # Since 0.26.7 the trials are in `runs`. In some earlier versions, a table of that name had
        # the attempts.
        are_runs = "hparams" in self._scratch.tables.get("runs", ())
        for row in self._scratch.records("runs" if are_runs else "trials"):
            own = row | {
                name: text for name, text in v2.get(row["id"], {}).items() if text is not None
            }
            facts: dict[str, Any] = {
                name: own[name]
                for name in ("request_id", "seed", "start_time", "end_time")
                if own[name] is not None
            }
            names = (
                "external_trial_id",
                "external_run_id",
                "local_id",
                "log_policy_matched",
                "state",
            )
            facts |= {name: own[name] for name in names if own.get(name) is not None}
            facts |= {"archived": True} if is_true(own.get("archived")) else {}
            for name, text in (("tags", own["tags"]), ("metadata", metadata.get(own["id"]))):
                if text:
                    facts[name] = self.read_json(text, f"trial {own['id']}: its {name}")
            facts |= {"source": sources[own["id"]]} if own["id"] in sources else {}
            trial = TrialRecord(
                id=int(own["id"] or 0),
                state=own["state"] or "",
                started=read_time(own["start_time"]),
                ended=read_time(own["end_time"]),
                hparams=self._read_object(
                    own["hparams"], f"trial {own['id']}: its hyperparameters"
                ),
                warm_start=(
                    int(own["warm_start_checkpoint_id"])
                    if own["warm_start_checkpoint_id"]
                    else None
                ),
                restarts=int(own["restarts"] or 0),
                facts=facts,
            )
            if own["task_id"]:
                self._tasks[own["task_id"]] = trial.id
            yield trial, int(own["experiment_id"] or 0)

    def _add_tasks(self) -> None:
        """Find the trial of each task, in the tables for it or by the names of trials' tasks."""
        for table, name in (("trial_id_task_id", "trial_id"), ("run_id_task_id", "run_id")):
            for row in self._scratch.records(table):
                self._tasks[row["task_id"] or ""] = int(row[name] or 0)
        for record in self.experiments.values():
            for trial in record.trials:
                self._tasks.setdefault(f"backfilled-{trial.id}", trial.id)
                if request := trial.facts.get("request_id"):
                    self._tasks.setdefault(f"{record.id}.{request}", trial.id)

    def _add_attempts(self) -> None:
        trials = {
            trial.id: trial for record in self.experiments.values() for trial in record.trials
        }
        found: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        row: Record
        if "run_type" in self._scratch.tables.get("runs", ()):
            for row in self._scratch.records("runs"):
                if row["run_type"] == "TRIAL":
                    found[int(row["run_type_fk"] or 0)].append((int(row["id"] or 0), row))
        for row in self._scratch.records("allocations"):
            if (of := self._tasks.get(row["task_id"] or "")) is not None:
                found[of].append((attempt_of(row["allocation_id"]) or 0, row))
        for of, rows in found.items():
            if of not in trials:
                continue
            attempts = trials[of].attempts
            for number, row in sorted(
                rows, key=lambda each: (each[1]["start_time"] or "", each[0])
            ):
                # The attempts of a task that continues a trial are numbered from 1 again.
                own = (
                    number
                    if number > 0 and number not in attempts
                    else max(attempts, default=0) + 1
                )
                names = (
                    "allocation_id",
                    "exit_reason",
                    "exit_error",
                    "status_code",
                    "slots",
                    "resource_pool",
                )
                facts = {name: text for name in names if (text := row.get(name)) is not None}
                reason = row.get("exit_error") or row.get("exit_reason")
                attempts[own] = Attempt(
                    own, read_time(row["start_time"]), read_time(row["end_time"]), reason, facts
                )


_KINDS_OF_STORAGE = ("shared_fs", "s3", "gcs", "azure", "directory")


def _places(scratch: Scratch) -> Iterator[tuple[str | None, dict[str, str]]]:
    """Yield the storages that rows of checkpoints refer to since 0.28.1, without credentials."""
    found = {
        (kind, row["id"]): row
        for kind in _KINDS_OF_STORAGE
        for row in scratch.records(f"storage_backend_{kind}")
    }
    for backend in scratch.records("storage_backend"):
        for kind in _KINDS_OF_STORAGE:
            if (row := found.get((kind, backend[f"{kind}_id"]))) is not None:
                values = {key: value for key, value in row.items() if value and key != "id"}
                yield backend["id"], {"type": kind, **values}
