"""/api/v1/experiments: lists, describes, changes, controls and creates experiments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import msgspec

from det_core.config import Auto, from_json, masked
from det_core.errors import StoreError
from det_core.hooks import Plugins
from det_driver.client import Space
from det_driver.config import Preferences
from det_driver.driver import waits_for
from det_driver.provenance import elsewhere, set_written, written_in
from det_driver.search import choose
from det_driver.store import ExperimentState, ExperimentSummary, QueueView, Store, TrialState

from .configuration import Below, source, space, with_secrets
from .endpoints import ApiRequest, Endpoint
from .lists import Rows
from .picture import kind_of
from .shapes import (
    Address,
    Chosen,
    Deleted,
    DeleteQuery,
    Described,
    ExperimentColumns,
    Experiments,
    Made,
    OneExperiment,
    Since,
    State,
    Yaml,
)

_LONG = ("trials", "versions", "checkpoints_left_out")
"""What the page leaves out of the data of another system. `det show --all` prints it."""
UNREADABLE = "UNREADABLE"
_MOST_READ = 20
"""The most databases that are read for one list. For others, the index is new enough."""
_QUIET_NS = 2_000_000_000
"""A file that was written longer ago than this has no later write with the same time."""


def list_(asked: ApiRequest) -> Experiments:
    """List the experiments, archived ones too, in columns."""
    rows = asked.lists.experiments
    with rows.lock:
        if Store.is_at(asked.home):
            # The rows are for all users.
            with Store.reader(asked.home) as store:
                _look(store, rows)
        shown = frozenset(id for id in rows.rows if asked.visible is None or id in asked.visible)
        # Who sees others than before gets all.
        since, _, seen = (asked.query.since or "").partition("-")
        mark = "" if asked.visible is None else f"{hash(shown):x}"
        newer = rows.newer(since if seen == mark else None)
    columns = ExperimentColumns()
    for row in newer.rows:
        if row["id"] not in shown:
            continue
        for name in ExperimentColumns.__struct_fields__:
            getattr(columns, name).append(row[name])
    version = f"{newer.version}-{mark}" if mark else newer.version
    return Experiments(version, newer.whole, newer.gone, columns)


def _look(store: Store, rows: Rows) -> None:
    """Update the rows. Those of experiments that have not changed are kept."""
    unread: dict[int, str] = {}
    memory: tuple[dict[int, tuple[Any, ...]], dict[int, int]] = rows.memory or ({}, {})
    known, written = memory
    now: dict[int, tuple[Any, ...]] = {}
    last: dict[int, int] = {}
    changed = {}
    left_to_read = _MOST_READ
    queue = cache(store.slots.queue)
    for listed in store.experiments.list(archived=None, unread=unread):
        summary, id = listed, listed.experiment.id
        left, driven, waits = False, False, ""
        if summary.experiment.state is ExperimentState.ACTIVE:
            at = store.experiments.last_write(id)
            # One that only waits is not read again.
            if id in known and written.get(id) == at < time.time_ns() - _QUIET_NS:
                last[id], summary = at, known[id][0]
            elif left_to_read:
                last[id], left_to_read = at, left_to_read - 1
                with suppress(StoreError):
                    # The index may be a second old.
                    summary = store.experiments.summary(id)
            driven, left, waits = standing(store, summary, queue)
        now[id] = summary, driven, left, waits
        if known.get(id) != now[id]:
            changed[id] = _row(store, summary, driven, left, waits, rows.rows.get(id))
    for id, problem in unread.items():
        now[id] = (problem,)
        if known.get(id) != now[id]:
            changed[id] = _unread(id, problem)
    rows.memory = now, last
    rows.update(changed, rows.rows.keys() - now.keys())


def standing(
    store: Store, summary: ExperimentSummary, queue: Callable[[], QueueView]
) -> tuple[bool, bool, str]:
    """Return whether an experiment has a driver, whether its driver is gone, and why it waits.

    `queue` is `store.slots.queue`, or what keeps its result for many experiments.
    """
    experiment = summary.experiment
    driven = store.experiments.driven(experiment.id)
    waits = ""
    if (
        driven
        and not summary.trials.get(TrialState.RUNNING)
        and any(each.experiment == experiment.id for each in queue().waiting)
    ):
        waits = waits_for(store, experiment.id, _slots_per_trial(experiment.config), queue())
    return driven, not driven and store.experiments.orphaned(experiment), waits


@lru_cache(maxsize=1024)
def _slots_per_trial(config: str) -> int:
    return from_json(config).resources.slots_per_trial


class _Searcher(msgspec.Struct):
    name: str = ""


class _Config(msgspec.Struct):
    searcher: _Searcher | None = None
    hyperparameters: dict[str, Any] = {}


_read = msgspec.json.Decoder(_Config).decode


@lru_cache(maxsize=4096)
def _searched(config: str) -> tuple[str, list[str]]:
    """Return the searcher's name, and the names of the hyperparameters that are searched."""
    read = _read(config)
    return read.searcher.name if read.searcher else "", [
        r.name for r in space(read.hyperparameters) if r.type != "const"
    ]


def _row(
    store: Store,
    summary: ExperimentSummary,
    driven: bool,
    left: bool,
    waits: str,
    last: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the row of an experiment. `last` is the row that it had before."""
    e = summary.experiment
    searcher, names = _searched(e.config)
    best: dict[str, Any] = {}
    if last and last["best_trial"] == summary.best_trial:
        # The database of each experiment would be opened for this.
        best = last["best_hparams"]
    elif summary.best_trial is not None:
        with suppress(StoreError):
            best = dict(Space({}).chosen(store.trials.get(summary.best_trial).hparams))
    return {
        **{
            name: getattr(e, name)
            for name in ("id", "name", "metric", "smaller_is_better", "archived", "progress")
        },
        **{name: getattr(e, name) for name in ("created", "started", "ended")},
        "state": str(e.state),
        "driven": driven,
        "orphaned": left,
        "labels": list(e.labels),
        "note": e.description,
        "searcher": searcher,
        "best": summary.best_metric,
        "best_trial": summary.best_trial,
        "best_hparams": {name: best[name] for name in names if name in best},
        "space": names,
        "trials": sum(summary.trials.values()),
        "running": summary.trials.get(TrialState.RUNNING, 0),
        "seconds": e.ended - e.started if e.ended is not None and e.started is not None else None,
        "waiting": waits,
        "why": e.reason or "",
        "problem": None,
    }


def _unread(id: int, problem: str) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(ExperimentColumns.__struct_fields__)
    empty |= dict.fromkeys(("name", "note", "searcher", "metric", "waiting", "why"), "")
    empty |= dict.fromkeys(("driven", "orphaned", "archived"), False) | dict.fromkeys(
        ("trials", "running"), 0
    )
    empty |= {
        "labels": [],
        "space": [],
        "best_hparams": {},
        "progress": 0.0,
        "smaller_is_better": True,
    }
    return empty | {"id": id, "state": UNREADABLE, "problem": problem}


def one(asked: ApiRequest) -> OneExperiment:
    """Describe an experiment, with its configuration."""
    assert asked.experiment.id == asked.id
    with asked.store() as store:
        summary = store.experiments.summary(asked.id)
        active = summary.experiment.state is ExperimentState.ACTIVE
        queue = store.slots.queue
        how = standing(store, summary, queue) if active else (False, False, "")
        row = _row(store, summary, *how)
        names = _metric_names(store, asked.id)
        known = elsewhere(store.experiment_dir(asked.id))
        written = written_in(store.experiment_dir(asked.id))
        # Of thousands of trials, nobody reads the rest on a page.
        known = {name: value for name, value in known.items() if name not in _LONG}
    config = from_json(summary.experiment.config)
    if isinstance(config.searcher, Auto):
        row["searcher"] = f"auto: {choose(config.searcher, config.hyperparameters)}"
    yaml, defaulted = source(config, written)
    whole = masked(config)
    return OneExperiment(
        **{name: value for name, value in row.items() if name not in ("space", "why")},
        config=whole,
        source=yaml,
        defaulted=defaulted,
        space=[*space(whole.get("hyperparameters", {}))],
        why=summary.experiment.reason or "",
        metrics=names,
        kind=kind_of(config),
        elsewhere=known,
    )


def _metric_names(store: Store, id: int) -> dict[str, list[str]]:
    trials = store.trials.list(id, best_first=True, limit=3) + store.trials.list(id, limit=3)
    found: dict[str, dict[str, None]] = {"training": {}, "validation": {}}
    groups = store.metrics.groups(id)
    for trial in trials:
        for group, names in metrics_of(store, trial.id, trial.batches, groups).items():
            found.setdefault(group, {}).update(dict.fromkeys(names))
    return {group: [*names] for group, names in found.items()}


def metrics_of(
    store: Store, trial_id: int, batches: int, groups: Iterable[str]
) -> dict[str, list[str]]:
    """Return the names of the metrics that a trial has reported lately, by group."""
    found: dict[str, list[str]] = {}
    for group in groups:
        reports = (
            _first(store, trial_id, group, first) for first in (batches, batches * 9 // 10, 0)
        )
        values = next(filter(None, reports), {})
        if values:
            found[group] = [name for name in values if name not in ("batches", "epochs")]
    return found


def _first(store: Store, trial_id: int, group: str, first: int) -> dict[str, Any]:
    reports: Iterator[Any] = store.metrics.read(trial_id=trial_id, group=group, first=first)
    return next((report.values for report in reports), {})


def describe(asked: ApiRequest) -> State:
    """Change an experiment's name, labels, note, or whether it is archived. It may be running."""
    given: Described = asked.body
    if given.name is not None:
        asked.experiment.set_name(given.name)
    if given.labels is not None:
        asked.experiment.set_labels(given.labels)
    if given.note is not None:
        asked.experiment.set_description(given.note)
    if given.archived is not None:
        (asked.experiment.archive if given.archived else asked.experiment.unarchive)()
    return State(asked.experiment.state)


def delete(asked: ApiRequest) -> Deleted:
    """Delete an experiment with its results, and its checkpoints unless they are to be kept."""
    return Deleted(asked.experiment.delete(keep_checkpoints=asked.query.keep_checkpoints))


def pause(asked: ApiRequest) -> State:
    """Pause an experiment. Its trials save checkpoints and stop."""
    asked.experiment.pause()
    return State(asked.experiment.state)


def activate(asked: ApiRequest) -> State:
    """Resume an experiment, with a driver in the background."""
    asked.experiment.activate()
    return State(asked.experiment.state)


def cancel(asked: ApiRequest) -> State:
    """Cancel an experiment. Its trials save checkpoints, and it cannot be resumed."""
    asked.experiment.cancel()
    return State(asked.experiment.state)


def kill(asked: ApiRequest) -> State:
    """Kill an experiment, without checkpoints."""
    asked.experiment.kill()
    return State(asked.experiment.state)


def below(asked: ApiRequest, id: int | None = None) -> Below:
    """Return what is below the configuration of an experiment that is like another one."""
    preferences = shared = None
    if asked.user is not None:
        preferences = Preferences(asked.user.name, asked.preferences())
    if id is not None:
        with asked.store() as store:
            if written_in(store.experiment_dir(id)) is not None:
                shared = asked.home / "config.yaml"
    return Below(preferences, shared)


def make_like(asked: ApiRequest, id: int, config: str | Mapping[str, Any]) -> Made:
    """Create and start an experiment with the code of another one, for the user of the request.

    What the configuration does not say of the engine and the queue comes from the defaults of this
    user, and not from those of the other experiment's owner.
    """
    with asked.store() as store:
        like = store.experiments.config(id)
    loaded = below(asked, id).load(config, Plugins.installed())
    complete = with_secrets(loaded.config, like)
    made = asked.client.get_experiment(id).fork(complete).id
    if asked.user is not None:
        with asked.store() as store:
            set_written(store.experiment_dir(made), loaded.written)
    return Made(made)


def fork(asked: ApiRequest) -> Made:
    """Create and start an experiment with the same code and another configuration."""
    assert asked.experiment.id == asked.id
    return make_like(asked, asked.id, asked.body.config)


def tensorboard(asked: ApiRequest) -> Address:
    """Start TensorBoard for experiments, or find the one that runs for them.

    It listens on this machine only, without authentication.
    """
    chosen = asked.body.experiments
    with asked.store() as store:
        places = {
            store.experiments.get(id).id: store.experiment_dir(id) / "tensorboard" for id in chosen
        }
    return Address(asked.boards.open(places))


_ONE = "/experiments/{id}"
ENDPOINTS = (
    Endpoint(method="POST", path="/tensorboard", does=tensorboard, response=Address, body=Chosen),
    Endpoint(method="GET", path="/experiments", does=list_, response=Experiments, query=Since),
    Endpoint(method="GET", path=_ONE, does=one, response=OneExperiment),
    Endpoint(method="PATCH", path=_ONE, does=describe, response=State, body=Described),
    Endpoint(method="DELETE", path=_ONE, does=delete, response=Deleted, query=DeleteQuery),
    *(
        Endpoint(
            method="POST",
            path=f"{_ONE}/{act.__name__}",
            does=act,
            response=State,
            starts=act is activate,
        )
        for act in (pause, activate, cancel, kill)
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/fork",
        does=fork,
        response=Made,
        body=Yaml,
        status=201,
        starts=True,
    ),
)
"""The endpoints about whole experiments."""
