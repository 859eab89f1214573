"""Determined's client, for the local store or a server.

All names and parameters of Determined 0.17 to 0.38 are accepted. Those without a counterpart in det
raise a DetError with what to use instead. `determined._gone` has the table.
"""

from __future__ import annotations

import fnmatch
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from det_core import DetError
from det_core.checkpoint.code import copy_code
from det_core.errors import CheckpointError, StoreError
from det_driver import client as det
from det_driver.store import CheckpointState, ExperimentState, Metric, TrialState

from .._gone import refuse_method, with_refusals
from .._masters import use_master
from .._names import borrow

_get, _ = borrow(__name__, {})
_POLL_SECONDS = 0.2
_AT_ONCE = 1 << 16
_SORTED = "lists have one order only; leave it out, and sort the result with sorted()"

__all__ = [
    "Checkpoint",
    "CheckpointState",
    "CheckpointTrainingMetadata",
    "Determined",
    "Experiment",
    "ExperimentReference",
    "ExperimentState",
    "Model",
    "ModelVersion",
    "Trial",
    "TrialMetrics",
    "TrialReference",
    "TrialState",
    "create_experiment",
    "create_model",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_trial",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "login",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
]


def __getattr__(name: str) -> Any:
    return _get(name)


@dataclass(frozen=True)
class TrialMetrics:
    """One report of a trial, with Determined's names and det's."""

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: float
    metrics: dict[str, Any]
    group: str
    batch_metrics: list[dict[str, Any]] | None = None

    @property
    def total_batches(self) -> int:
        """The number of batches that were trained."""
        return self.steps_completed

    batches = total_batches

    @property
    def values(self) -> dict[str, Any]:
        """The metrics by name."""
        return self.metrics


@dataclass(frozen=True)
class CheckpointTrainingMetadata:
    """The training that saved a checkpoint."""

    experiment_config: dict[str, Any]
    experiment_id: int
    trial_id: int
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]


@with_refusals
class Checkpoint(det.Checkpoint):
    """A checkpoint of a trial at one position, with the method names of all Determined versions.

    `batches` is the position: the number of batches that were trained before it was saved.
    """

    @property
    def training(self) -> CheckpointTrainingMetadata:
        """The experiment, the trial, and the validation at its position."""
        trial = self._trial()
        metrics = {"avgMetrics": self.validation_metrics} if self.validation_metrics else {}
        return CheckpointTrainingMetadata(
            trial.get_experiment().config, trial.experiment_id, trial.id, trial.hparams, metrics
        )

    @property
    def validation(self) -> dict[str, Any]:
        """The validation at its position, in the format of versions until 0.17."""
        metrics = (
            {"validationMetrics": self.validation_metrics} if self.validation_metrics else None
        )
        return {"metrics": metrics, "state": "COMPLETED" if metrics else None}

    @property
    def experiment_config(self) -> dict[str, Any]:
        """The configuration of its experiment."""
        return self._trial().get_experiment().config

    @property
    def experiment_id(self) -> int:
        """The number of its experiment."""
        return self._trial().experiment_id

    @property
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters of its trial."""
        return self._trial().hparams

    @property
    def batch_number(self) -> int:
        """The number of batches that were trained."""
        return self.batches

    @property
    def report_time(self) -> float:
        """When it was saved, in unix seconds. `end_time` is the same."""
        return self.created

    end_time = report_time

    def reload(self) -> None:
        """Do nothing: attributes are always read from the store."""

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to its metadata, and replace values of the same names.

        Raises ExperimentBusy while the experiment runs.
        """
        self.set_metadata({**self.metadata, **metadata})

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove names from its metadata. Raises ExperimentBusy while the experiment runs."""
        gone = set(keys)
        self.set_metadata(
            {name: value for name, value in self.metadata.items() if name not in gone}
        )

    def write_metadata_file(self, path: str | Path) -> None:
        """Write its metadata to a JSON file."""
        Path(path).write_text(json.dumps(self.metadata, indent=2), encoding="utf-8")

    def get_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Yield the reports of its trial at its position, of one group or of all."""
        return (
            each
            for each in self._trial().iter_metrics(group)
            if each.steps_completed == self.batches
        )

    def download(self, path: str | Path | None = None, mode: Any = None) -> str:
        """Copy its files to a directory, as det's client does. `mode` is ignored."""
        return super().download(path)

    def load(self, path: str | Path | None = None, tags: Any = None, **kwargs: Any) -> Any:
        """Download it and return what its framework loads from it.

        `tags` choose one of an Estimator's saved models.
        """
        return super().load(path, **kwargs, **({"tags": tags} if tags is not None else {}))

    def _trial(self) -> Trial:
        return Trial(self._home, self._trial_row())


@with_refusals
class Trial(det.Trial):
    """One choice of hyperparameters of an experiment, with the method names of all versions."""

    def reload(self) -> None:
        """Do nothing: attributes are always read from the store."""

    def get_experiment(self) -> Experiment:
        """Return its experiment."""
        return _as(Experiment, super().get_experiment())

    def list_checkpoints(  # type: ignore[override]
        self, sort_by: str | None = None, order_by: Any = None, max_results: int | None = None
    ) -> list[Checkpoint]:
        """Return its existing checkpoints, the latest first."""
        _unsorted("list_checkpoints", sort_by, order_by)
        return [_as(Checkpoint, each) for each in super().list_checkpoints()[:max_results]]

    def get_checkpoints(self, sort_by: str | None = None, order_by: Any = None) -> list[Checkpoint]:
        """Return its existing checkpoints, the latest first."""
        return self.list_checkpoints(sort_by, order_by)

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """Return the latest or the best checkpoint, or the one with a uuid.

        The best one is by the metric `sort_by`, or else the searcher's.
        """
        if best and not latest and uuid is None and sort_by is not None:
            return _sorted(
                self.list_checkpoints(), sort_by, _smaller(self.get_experiment(), smaller_is_better)
            )[0]
        if best and smaller_is_better is not None:
            experiment = self.get_experiment()
            return self.select_checkpoint(latest, best, uuid, experiment.metric, smaller_is_better)
        return _as(Checkpoint, super().select_checkpoint(latest, best, uuid))

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the best checkpoint by the metric `sort_by`, or else the searcher's."""
        return self.select_checkpoint(
            best=True, sort_by=sort_by, smaller_is_better=smaller_is_better
        )

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:  # type: ignore[override]
        """Yield its reports in order, of one group (`training`, `validation`, …) or of all."""
        return map(_reported, super().iter_metrics(group))

    def stream_metrics(self, group: str) -> Iterator[TrialMetrics]:
        """Yield its reports of one group."""
        return self.iter_metrics(group)

    def stream_training_metrics(self) -> Iterator[TrialMetrics]:
        """Yield its reports of training."""
        return self.iter_metrics("training")

    def stream_validation_metrics(self) -> Iterator[TrialMetrics]:
        """Yield its reports of validation."""
        return self.iter_metrics("validation")

    def logs(self, follow: bool = False, **chosen: Any) -> Iterator[str]:
        """Yield the lines of its logs, as `iter_logs` does."""
        return self.iter_logs(follow, **chosen)

    def iter_logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: Any = None,
        rank_ids: Collection[int] | None = None,
        stdtypes: Any = None,
        min_level: Any = None,
        timestamp_before: Any = None,
        timestamp_after: Any = None,
        sources: Any = None,
        search_text: str | None = None,
    ) -> Iterator[str]:
        """Yield the lines of its logs by run and rank.

        With `follow`, it continues until the trial ends.

        The lines can be limited to the first `head` or last `tail`, to some ranks, or to those that
        contain a text. Lines of a log have neither a level nor a time here. Filters by these raise
        DetError.
        """
        asked = {
            "container_ids": container_ids,
            "stdtypes": stdtypes,
            "min_level": min_level,
            "sources": sources,
        }
        asked |= {"timestamp_before": timestamp_before, "timestamp_after": timestamp_after}
        for name, value in asked.items():
            if value is not None:
                raise DetError(
                    f"iter_logs({name}={value!r:.80}): logs are files here; use rank_ids or"
                    " search_text"
                )
        lines = self._lines(follow, rank_ids)
        if search_text is not None:
            lines = (line for line in lines if search_text in line)
        if head is not None:
            lines = (line for _, line in zip(range(head), lines, strict=False))
        return lines if tail is None else iter([*lines][-tail:] if tail else [])

    def _lines(self, follow: bool, ranks: Collection[int] | None) -> Iterator[str]:
        read: dict[tuple[int, int], int] = {}
        while True:
            ended = not follow or TrialState(self.state).ended
            for run, of_run in self.log_files().items():
                for rank in of_run:
                    if ranks is not None and rank not in ranks:
                        continue
                    key = run, rank
                    part = self.log(rank, read.get(key, 0), run=run, limit=_AT_ONCE)
                    # An incomplete line is read the next time.
                    while part.text and (ended or part.text.endswith("\n")):
                        yield from part.text.splitlines(keepends=True)
                        read[key] = part.end
                        part = self.log(rank, part.end, run=run, limit=_AT_ONCE)
            if ended:
                return
            time.sleep(_POLL_SECONDS)


@with_refusals
class Experiment(det.Experiment):
    """A configuration with the user's code, with the method names of all versions."""

    def reload(self) -> None:
        """Do nothing: attributes are always read from the store."""

    def fetch_config(self) -> dict[str, Any]:
        """Return its complete configuration."""
        return self.config

    @property
    def notes(self) -> str:
        """Raise DetError, as `set_notes` does."""
        refuse_method(f"{__name__}.Experiment.set_notes", f"{__name__}.Experiment.notes")

    def add_label(self, label: str) -> None:
        """Add a label."""
        self.set_labels([*self.labels, label])

    def remove_label(self, label: str) -> None:
        """Remove a label. Do nothing where it does not have it."""
        self.set_labels([each for each in self.labels if each != label])

    def list_trials(self, sort_by: Any = None, order_by: Any = None) -> list[Trial]:  # type: ignore[override]
        """Return its trials, in the order of their creation."""
        _unsorted("list_trials", sort_by, order_by)
        return [_as(Trial, each) for each in super().list_trials()]

    get_trials = list_trials  # type: ignore[assignment]

    def iter_trials(
        self, sort_by: Any = None, order_by: Any = None, limit: int | None = None
    ) -> Iterator[Trial]:
        """Yield its trials, in the order of their creation.

        `limit`, the size of a page, is ignored.
        """
        return iter(self.list_trials(sort_by, order_by))

    def list_checkpoints(  # type: ignore[override]
        self, sort_by: str | int | None = None, order_by: Any = None, max_results: int | None = None
    ) -> list[Checkpoint]:
        """Return the existing checkpoints, the best by the searcher's metric first.

        Those without the metric come last.
        """
        if isinstance(sort_by, int):
            sort_by, max_results = None, sort_by
        _unsorted("list_checkpoints", sort_by, order_by)
        return [_as(Checkpoint, each) for each in super().list_checkpoints(max_results)]

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the best checkpoint by the metric `sort_by`, or else the searcher's.

        Raises CheckpointError where there is none.
        """
        if sort_by is None and smaller_is_better is None:
            return _as(Checkpoint, super().top_checkpoint())
        return _sorted(
            self.list_checkpoints(), sort_by or self.metric, _smaller(self, smaller_is_better)
        )[0]

    def top_n_checkpoints(  # type: ignore[override]
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return the best checkpoints of the best trials, one for each trial, `limit` at most.

        They are ordered by the metric `sort_by`, or else the searcher's.
        """
        if sort_by is None and smaller_is_better is None:
            return [_as(Checkpoint, each) for each in super().top_n_checkpoints(limit)]
        best: dict[int, Checkpoint] = {}
        for each in _sorted(
            self.list_checkpoints(), sort_by or self.metric, _smaller(self, smaller_is_better)
        ):
            best.setdefault(each.trial_id, each)
        return [*best.values()][:limit]

    def await_first_trial(self, interval: float = _POLL_SECONDS) -> Trial:
        """Wait for its first trial. Raises StoreError where it ends without one."""
        return _as(Trial, super().await_first_trial(interval))

    def wait(self, interval: float = _POLL_SECONDS, **options: Any) -> ExperimentState:  # type: ignore[override]
        """Wait until it has ended or is paused, and return its state."""
        return super().wait(options.pop("polling_interval", interval), **options)

    def fork(self, *args: Any, **options: Any) -> Experiment:
        """Create another experiment with its code, as det's client does."""
        return _as(Experiment, super().fork(*args, **options))


ExperimentReference, TrialReference = Experiment, Trial


@with_refusals
class ModelVersion(det.ModelVersion):
    """A version of a model of the registry, with the method names of all versions."""

    @property
    def model_version(self) -> int:
        """Its number, which counts from 1."""
        return self.version

    @property
    def model_version_id(self) -> int:
        """Its number among the versions of all models."""
        return self.id

    @property
    def comment(self) -> str:
        """Its notes, in one of Determined's two words for them."""
        return self.notes

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint to which it points."""
        return _as(Checkpoint, super().checkpoint)

    def set_name(self, name: str) -> None:
        """Change its name."""
        self.edit(name=name)

    def set_notes(self, notes: str) -> None:
        """Change its notes."""
        self.edit(notes=notes)

    def reload(self) -> None:
        """Do nothing: attributes are always read from the store."""


@with_refusals
class Model(det.Model):
    """A model of the registry, with the method names of all versions."""

    @property
    def model_id(self) -> int:
        """Its number."""
        return self.id

    @property
    def creation_time(self) -> float:
        """When it was made, in unix seconds."""
        return self.created

    @property
    def last_updated_time(self) -> float:
        """When it was changed or got a version, in unix seconds."""
        return self.updated

    def register_version(
        self,
        checkpoint_uuid: str,
        name: str = "",
        notes: str = "",
        labels: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> ModelVersion:
        """Add a version that points to a checkpoint, which is kept for it."""
        made = self.add_version(
            checkpoint_uuid, name=name, notes=notes, labels=[*labels], metadata=metadata or {}
        )
        return _as(ModelVersion, made)

    def get_version(self, version: int | str | None = -1) -> ModelVersion | None:  # type: ignore[override]
        """Return a version by its number or an alias, by default the newest.

        Returns None where there is no newest. Raises StoreError for a version that does not exist.
        """
        if version in (-1, None):
            return next(iter(self.list_versions()), None)
        return _as(ModelVersion, super().get_version(version))

    def list_versions(self, sort_by: Any = None, order_by: Any = None) -> list[ModelVersion]:  # type: ignore[override]
        """Return its versions, the newest first."""
        _unsorted("list_versions", sort_by, order_by)
        return [_as(ModelVersion, each) for each in super().list_versions()]

    def get_versions(self, order_by: Any = None) -> list[ModelVersion]:
        """Return its versions, the newest first."""
        return self.list_versions(order_by=order_by)

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to its metadata, and replace values of the same names."""
        self.edit(metadata={**self.metadata, **metadata})

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove names from its metadata."""
        gone = set(keys)
        self.edit(metadata={k: value for k, value in self.metadata.items() if k not in gone})

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels."""
        self.edit(labels=[*labels])

    def set_description(self, description: str) -> None:
        """Change its description."""
        self.edit(description=description)

    def archive(self) -> None:
        """Hide it in listings."""
        self.edit(archived=True)

    def unarchive(self) -> None:
        """Show it in listings again."""
        self.edit(archived=False)

    def reload(self) -> None:
        """Do nothing: attributes are always read from the store."""


@with_refusals
class Determined(det.Client):
    """The local store, or the server of the master that is named.

    With a password it signs in. Without one, and without an earlier `det login`, the master is not
    asked, with a warning.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
        *,
        home: str | Path | None = None,
    ) -> None:
        use_master(master, user, password)
        super().__init__(home)

    def create_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        model_dir: str | Path | None = None,
        includes: Iterable[str | Path] | None = None,
        parent_id: int | None = None,
        project_id: int | None = None,
        template: str | None = None,
        *,
        start: bool = True,
    ) -> Experiment:
        """Start an experiment in the background, with the code in `model_dir` and `includes`.

        There are no projects: `parent_id` and `project_id` are ignored. Raises DetError for a
        template of a master.
        """
        if template is not None:
            raise DetError(
                f"create_experiment(template={template!r}): there is no master; write it into the"
                " configuration"
            )
        others = [Path(each).absolute() for each in includes or ()]
        source = Path(model_dir) if model_dir is not None else None
        others = [
            each for each in others if source is None or not each.is_relative_to(source.absolute())
        ]
        if not others:
            return _as(Experiment, super().create_experiment(config, source, start=start))
        with TemporaryDirectory(prefix="det-code-") as directory:
            code = Path(directory) / "code"
            if source is not None:
                copy_code(source, code)
            code.mkdir(exist_ok=True)
            for each in others:
                if not each.exists():
                    raise DetError(
                        f"create_experiment: {each} of includes does not exist; name a file or a"
                        " directory"
                    )
                (shutil.copytree if each.is_dir() else shutil.copy2)(each, code / each.name)
            return _as(Experiment, super().create_experiment(config, code, start=start))

    def list_experiments(  # type: ignore[override]
        self,
        sort_by: Any = None,
        order_by: Any = None,
        experiment_ids: Collection[int] | None = None,
        labels: Iterable[str] | None = None,
        users: Any = None,
        states: Collection[Any] | None = None,
        name: str | None = None,
        project_id: int | None = None,
        *,
        archived: bool | None = False,
        limit: int | None = None,
    ) -> list[Experiment]:
        """Return the experiments that match all filters, the newest first.

        `labels` must all be present. `name` matches a part of the name, may have `*` and `?`, and
        ignores upper and lower case. Raises DetError if `sort_by`, `order_by`, `users` or
        `project_id` is given.
        """
        _unsorted("list_experiments", sort_by, order_by)
        if users is not None or project_id is not None:
            refuse_method(f"{__name__}.Determined.whoami", "list_experiments(users=, project_id=)")
        wanted, some = (
            set(labels or ()),
            None if states is None else {str(getattr(s, "value", s)) for s in states},
        )
        # `limit` counts experiments that match, so it cannot be passed on with filters.
        is_filtered = bool(wanted) or any(each is not None for each in (experiment_ids, some, name))
        found = super().list_experiments(archived=archived, limit=None if is_filtered else limit)
        return [
            _as(Experiment, each)
            for each in found
            if (experiment_ids is None or each.id in experiment_ids)
            and wanted <= set(each.labels)
            and (some is None or each.state in some)
            and (name is None or fnmatch.fnmatch(each.name.lower(), f"*{name.lower()}*"))
        ][:limit]

    def get_experiment(self, experiment_id: int) -> Experiment:
        """Return an experiment. Raises StoreError where it does not exist."""
        return _as(Experiment, super().get_experiment(experiment_id))

    def get_trial(self, trial_id: int) -> Trial:
        """Return a trial. Raises StoreError where it does not exist."""
        return _as(Trial, super().get_trial(trial_id))

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint by its uuid or a prefix.

        Raises StoreError where it does not exist.
        """
        return _as(Checkpoint, super().get_checkpoint(uuid))

    def create_model(  # type: ignore[override]
        self,
        name: str,
        description: str | None = "",
        metadata: Mapping[str, Any] | None = None,
        labels: Iterable[str] | None = None,
        workspace_name: str | None = None,
    ) -> Model:
        """Make a model in the registry. Raises StoreError for a name that is taken."""
        _no_workspace("create_model(workspace_name=)", workspace_name)
        made = super().create_model(
            name,
            description=description or "",
            metadata=metadata or {},
            labels=[*(labels or ())],
        )
        return _as(Model, made)

    def get_model(  # type: ignore[override]
        self,
        identifier: str | int | None = None,
        *,
        name: str | None = None,
        model_id: int | None = None,
    ) -> Model:
        """Return a model by its name or its number. Raises StoreError where it does not exist."""
        chosen = next((each for each in (identifier, name, model_id) if each is not None), "")
        if isinstance(chosen, str) and not chosen.isdecimal():
            return _as(Model, super().get_model(chosen))
        for each in super().list_models(archived=None):
            if each.id == int(chosen):
                return _as(Model, each)
        raise StoreError(f"no model with the number {chosen}; list_models() returns all")

    def get_model_by_id(self, model_id: int) -> Model:
        """Return a model by its number."""
        return self.get_model(model_id)

    def get_model_labels(self) -> list[str]:
        """Return the labels of all models, the most frequent first."""
        found = Counter(
            label for each in super().list_models(archived=None) for label in each.labels
        )
        return [label for label, _ in found.most_common()]

    def list_models(  # type: ignore[override]
        self,
        sort_by: Any = None,
        order_by: Any = None,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: Any = None,
        workspace_ids: Any = None,
    ) -> list[Model]:
        """Return the models that match all filters, sorted by name. Archived ones are included.

        `name` and `description` match a part of the text, and ignore upper and lower case. Raises
        DetError if `sort_by`, `order_by` or a workspace is given.
        """
        _unsorted("list_models", sort_by, order_by)
        _no_workspace(
            "list_models(workspace_names=, workspace_ids=)", workspace_names or workspace_ids
        )
        return [
            _as(Model, each)
            for each in super().list_models(archived=None)
            if (name is None or name.lower() in each.name.lower())
            and (description is None or description.lower() in each.description.lower())
            and model_id in (None, each.id)
        ]

    def get_models(
        self,
        sort_by: Any = None,
        order_by: Any = None,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_name: Any = None,
        workspaceId: Any = None,
        workspace_names: Any = None,
        workspace_ids: Any = None,
    ) -> list[Model]:
        """Return the models by name, as `list_models` does."""
        _no_workspace("get_models(workspace_name=, workspaceId=)", workspace_name or workspaceId)
        return self.list_models(
            sort_by, order_by, name, description, model_id, workspace_names, workspace_ids
        )

    def import_experiment(self, file: str | Path) -> Experiment:
        """Import an exported experiment."""
        return _as(Experiment, super().import_experiment(file))

    def iter_trials_metrics(self, trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
        """Yield the reports of one group of several trials, one trial after the other."""
        return (metric for id in trial_ids for metric in self.get_trial(id).iter_metrics(group))

    stream_trials_metrics = iter_trials_metrics

    def stream_trials_training_metrics(self, trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
        """Yield the reports of training of several trials."""
        return self.iter_trials_metrics(trial_ids, "training")

    def stream_trials_validation_metrics(self, trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
        """Yield the reports of validation of several trials."""
        return self.iter_trials_metrics(trial_ids, "validation")


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Sign in to a server, for all functions of this module. Without a master, do nothing.

    Without a password, somebody must have signed in before by `det login`. Otherwise the master is
    not asked, with a warning. Files of certificates are ignored: set SSL_CERT_FILE.
    """
    use_master(master, user, password)


def create_experiment(
    config: str | Path | Mapping[str, Any],
    model_dir: str | Path | None = None,
    includes: Iterable[str | Path] | None = None,
    parent_id: int | None = None,
    project_id: int | None = None,
    template: str | None = None,
) -> Experiment:
    """Start an experiment in the background."""
    return Determined().create_experiment(
        config, model_dir, includes, parent_id, project_id, template
    )


def get_experiment(experiment_id: int) -> Experiment:
    """Return an experiment of the local store."""
    return Determined().get_experiment(experiment_id)


def get_trial(trial_id: int) -> Trial:
    """Return a trial of the local store."""
    return Determined().get_trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    """Return a checkpoint of the local store."""
    return Determined().get_checkpoint(uuid)


def list_experiments(
    sort_by: Any = None,
    order_by: Any = None,
    experiment_ids: Collection[int] | None = None,
    labels: Iterable[str] | None = None,
    users: Any = None,
    states: Collection[Any] | None = None,
    name: str | None = None,
    project_id: int | None = None,
) -> list[Experiment]:
    """Return the experiments of the local store, the newest first.

    See `Determined.list_experiments`.
    """
    return Determined().list_experiments(
        sort_by, order_by, experiment_ids, labels, users, states, name, project_id
    )


def create_model(
    name: str,
    description: str | None = "",
    metadata: Mapping[str, Any] | None = None,
    labels: Iterable[str] | None = None,
) -> Model:
    """Make a model in the registry of the local store."""
    return Determined().create_model(name, description, metadata, labels)


def get_model(
    identifier: str | int | None = None,
    *,
    name: str | None = None,
    model_id: int | None = None,
) -> Model:
    """Return a model of the registry, by its name or its number."""
    return Determined().get_model(identifier, name=name, model_id=model_id)


def get_model_by_id(model_id: int) -> Model:
    """Return a model of the registry by its number."""
    return Determined().get_model(model_id)


def get_model_labels() -> list[str]:
    """Return the labels of all models, the most frequent first."""
    return Determined().get_model_labels()


def get_models(
    sort_by: Any = None,
    order_by: Any = None,
    name: str | None = None,
    description: str | None = None,
) -> list[Model]:
    """Return the models of the registry by name. See `Determined.list_models`."""
    return Determined().list_models(sort_by, order_by, name, description)


def list_models(
    sort_by: Any = None,
    order_by: Any = None,
    name: str | None = None,
    description: str | None = None,
    model_id: int | None = None,
    workspace_names: Any = None,
    workspace_ids: Any = None,
) -> list[Model]:
    """Return the models of the registry by name. See `Determined.list_models`."""
    return Determined().list_models(
        sort_by, order_by, name, description, model_id, workspace_names, workspace_ids
    )


def iter_trials_metrics(trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
    """Yield the reports of one group of several trials, one trial after the other."""
    return Determined().iter_trials_metrics(trial_ids, group)


stream_trials_metrics = iter_trials_metrics


def stream_trials_training_metrics(trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
    """Yield the reports of training of several trials."""
    return Determined().iter_trials_metrics(trial_ids, "training")


def stream_trials_validation_metrics(trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
    """Yield the reports of validation of several trials."""
    return Determined().iter_trials_metrics(trial_ids, "validation")


_C = TypeVar("_C", bound=object)


def _as(kind: type[_C], found: Any) -> _C:
    """Return an object of det's client as the class here, which has Determined's names, too."""
    mine = object.__new__(kind)
    vars(mine).update(vars(found))
    return mine


def _reported(metric: Metric) -> TrialMetrics:
    return TrialMetrics(
        metric.trial_id,
        metric.run_id,
        metric.batches,
        metric.time,
        dict(metric.values),
        metric.group,
    )


def _unsorted(call: str, sort_by: Any, order_by: Any) -> None:
    for name, value in (("sort_by", sort_by), ("order_by", order_by)):
        if value is not None:
            raise DetError(f"{call}({name}={value!r:.80}): {_SORTED}")


def _no_workspace(call: str, given: Any) -> None:
    if given is not None:
        refuse_method(f"{__name__}.Determined.whoami", call)


def _smaller(experiment: Experiment, given: bool | None) -> bool:
    return experiment.smaller_is_better if given is None else given


def _sorted(found: list[Checkpoint], metric: str, smaller: bool) -> list[Checkpoint]:
    """Return the checkpoints that have a numeric value of a metric, the best first.

    Raises CheckpointError where none has one.
    """
    values = {each.uuid: each.validation_metrics.get(metric) for each in found}
    numbers = {
        uuid: v for uuid, v in values.items() if isinstance(v, int | float) and not math.isnan(v)
    }
    if not numbers:
        known = (
            ", ".join(sorted({name for each in found for name in each.validation_metrics}))
            or "none"
        )
        raise CheckpointError(
            f"no checkpoint has a validation metric {metric!r}; give one of those there are:"
            f" {known}"
        )
    return sorted(
        (c for c in found if c.uuid in numbers), key=lambda c: numbers[c.uuid], reverse=not smaller
    )
