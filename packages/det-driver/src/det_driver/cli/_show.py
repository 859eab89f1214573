"""`det show` and `det compare`: one experiment, or several side by side."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from det_core.config import from_json, masked

from ..client import FEWEST_TRIALS, Mattered, Space
from ..client._fanova import FEWEST_FOR_FOREST
from ..config import to_yaml
from ..driver import waits_for
from ..provenance import differences, elsewhere, read
from ..store import (
    ExperimentRow,
    ExperimentState,
    ExperimentSummary,
    Store,
    TrialRow,
    is_trusted,
)
from ._console import (
    EXPERIMENTS,
    Settings,
    as_json,
    auto_choice,
    clock,
    print_json,
    share_done,
    shown,
    shown_time,
    what_mattered,
)
from ._progress import OUTCOMES
from ._select import filtered, ordered, select
from ._table import print_lines, print_table

_MOST_CAUSES = 10
_MOST_CHANGES = 5


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option(
    "--config",
    "with_config",
    is_flag=True,
    help="Print the complete configuration, secrets masked.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), help="Show this many trials at most; all by default."
)
@filtered
@ordered
@click.option(
    "--runs",
    is_flag=True,
    help="Print the runs of these trials: how long each took, how it ended, and why.",
)
@click.option(
    "--slice",
    "along",
    metavar="NAME",
    help="Print how good the trials are along this hyperparameter.",
)
@click.option(
    "--fanova",
    is_flag=True,
    help="Find what mattered by fANOVA, which needs scikit-learn and 20 trials.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Print what another system knew of it, too, as det migrate keeps it.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Draw the trials into this file, such as search.png.",
)
@as_json
@click.pass_obj
def show(
    settings: Settings,
    experiment: int,
    with_config: bool,
    limit: int | None,
    conditions: tuple[str, ...],
    sort: str | None,
    runs: bool,
    along: str | None,
    fanova: bool,
    everything: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show EXPERIMENT and its trials, the best first, with their hyperparameters.

    Columns for --filter and --sort are trial, state, best (or the metric by its name), at, batches,
    runs, restarts, took (in seconds), the hyperparameters by name, and other metrics by theirs, as
    they were validated last. --plot draws the searcher's metric against batches, a line for each
    trial, the trials as lines across their hyperparameters, and the metric along each of these.
    """
    with settings.reader() as store:
        found = store.experiments.get(experiment)
        if with_config and not as_json:
            sys.stdout.write(to_yaml(from_json(found.config), masked=True))
            return
        space = Space(from_json(found.config).hyperparameters)
        early = None if conditions or sort else limit
        listed = store.trials.list(experiment, best_first=True, limit=early)
        last = _last_metrics(store, experiment) if conditions or sort else {}
        named = [{found.metric: trial.best_metric} | _row(trial) for trial in listed]
        rows = select([last.get(row["trial"], {}) | row for row in named], conditions, sort, limit)
        by_id = {trial.id: trial for trial in listed}
        trials = [by_id[row["trial"]] for row in rows]
        if plot is not None:
            from ._plots import draw_trials

            draw_trials(found, trials, space, store, plot)
        client = settings.client().get_experiment(experiment)
        if along is not None:
            _print_slices(client.slices(along), along, found.metric, as_json)
        elif as_json:
            described = msgspec.to_builtins(found) | {
                "config": masked(from_json(found.config)),
                "orphaned": store.experiments.orphaned(found),
                "importances": client.what_mattered(forest=fanova).shares,
                "provenance": read(store.experiment_dir(experiment)),
            }
            if runs:
                described["origins"] = store.runs.origins(experiment)
            if everything:
                described["elsewhere"] = elsewhere(store.experiment_dir(experiment))
            print_json(
                {"experiment": described, "trials": [_described(store, t, runs) for t in trials]}
            )
        elif runs:
            _print_runs(store, trials)
        else:
            _print(store, found, trials, space, client.what_mattered(forest=fanova), fanova)
            if everything and (known := elsewhere(store.experiment_dir(experiment))):
                print_lines(["", *json.dumps(known, indent=2, ensure_ascii=False).splitlines()])
    if plot is not None and not as_json:
        sys.stdout.write(f"drawn in {plot}\n")


def _last_metrics(store: Store, experiment: int) -> dict[int, dict[str, Any]]:
    """Return each trial's last value of each validation metric."""
    last: dict[int, dict[str, Any]] = {}
    for report in store.metrics.read(experiment_id=experiment, group="validation"):
        last.setdefault(report.trial_id, {}).update(report.values)
    return last


def _row(trial: TrialRow) -> dict[str, Any]:
    own = {
        "trial": trial.id,
        "state": str(trial.state),
        "best": trial.best_metric,
        "at": trial.best_batches,
    }
    own |= {
        "batches": trial.batches,
        "runs": trial.runs,
        "restarts": trial.restarts,
        "took": _seconds(trial),
    }
    return Space({}).chosen(trial.hparams) | own


def _seconds(of: TrialRow | ExperimentRow) -> float | None:
    """Return the seconds from the start to the end, or until now."""
    return None if of.started is None else (of.ended or time.time()) - of.started


def _described(store: Store, trial: TrialRow, runs: bool) -> dict[str, Any]:
    described: dict[str, Any] = msgspec.to_builtins(trial)
    if runs:
        described["attempts"] = [
            msgspec.to_builtins(run, enc_hook=str) for run in store.runs.list(trial.id)
        ]
    return described


def _origin(kept: Mapping[str, Any]) -> list[str]:
    """Return a line about the host and commit of an experiment's creation, if they are known."""
    parts = []
    # An imported experiment may have a commit alone.
    if {"host", "python", "packages"} <= kept.keys():
        parts.append(
            f"made on {kept['host']} with Python {kept['python']}, {len(kept['packages'])} packages"
        )
    if git := kept.get("git"):
        parts.append(f"commit {git['commit'][:12]}" + (" with changes" if git["dirty"] else ""))
    return [", ".join(parts)] if parts else []


def _print(
    store: Store,
    found: ExperimentRow,
    trials: Sequence[TrialRow],
    space: Space,
    mattered: Mattered,
    fanova: bool,
) -> None:
    names = space.names(trial.hparams for trial in trials)
    state = store.experiments.summary(found.id).shown.lower()
    done = share_done(found.progress, state)
    lines = [", ".join(filter(None, [f"experiment {found.id} ({found.name}) is {state}", done]))]
    if state == "preparing":
        logs = sorted(
            store.agents_dir(found.id).glob("environment-*/rank-0.log"),
            key=lambda path: path.stat().st_mtime,
        )
        lines += [f"its environment is made; the log: {logs[-1]}"] if logs else []
    if found.started is not None:
        began = shown_time(found.started)
        lines.append(f"began {began}, took {clock(_seconds(found))}")
    if store.experiments.orphaned(found):
        lines.append(found.abandoned)
    elif found.state is ExperimentState.ACTIVE and found.id in store.slots.waiting():
        why = waits_for(store, found.id, from_json(found.config).resources.slots_per_trial)
        lines += (
            [f"waiting {why}"]
            if why and not any(trial.state == "RUNNING" for trial in trials)
            else []
        )
    if not is_trusted(store, found.id):
        lines.append(
            f"it came with det import, and nothing of it runs before det resume {found.id} or det"
            f" trust {found.id}"
        )
    lines += [f"because: {found.reason}"] if found.reason else []
    lines += [f"labels: {', '.join(found.labels)}"] if found.labels else []
    lines += [f"note: {found.description}"] if found.description else []
    lines.append(f"entrypoint: {found.entrypoint}   metric: {found.metric}")
    lines += [chosen] if (chosen := auto_choice(from_json(found.config))) else []
    lines += _origin(read(store.experiment_dir(found.id)))
    if trials and (same := space.constants(trials[0].hparams)):
        lines.append("hyperparameters: " + shown(same))
    if mattered.shares:
        where = f" (at length {mattered.length})" if mattered.length is not None else ""
        how = " by fANOVA" if fanova else ""
        lines.append(f"what mattered{how}{where}: " + what_mattered(mattered.shares))
    elif names and fanova:
        needed = (
            f"{mattered.trials} trials can be compared, and {FEWEST_FOR_FOREST} with all"
            " hyperparameters are needed"
        )
        lines.append(f"what mattered by fANOVA: no more than chance; {needed}")
    elif names and 1 < mattered.trials < FEWEST_TRIALS:
        needed = f"{FEWEST_TRIALS} are needed, and {mattered.trials} can be compared"
        lines.append(f"what mattered: too few trials to tell; {needed}")
    print_lines([*lines, ""])
    best = f"best {found.metric}".strip()
    print_table(
        ("trial", "state", best, "at", *names, "batches", "runs", "restarts", "took"),
        [
            (
                *(
                    t.id,
                    str(t.state),
                    t.best_metric,
                    t.best_batches,
                    *(chosen.get(name) for name in names),
                ),
                *(t.batches, t.runs, t.restarts, clock(_seconds(t))),
            )
            for t in trials
            for chosen in (space.chosen(t.hparams),)
        ],
        {
            "trial": 0,
            best: 1,
            "state": 2,
            "at": 4,
            "batches": 5,
            "took": 6,
            "runs": 7,
            "restarts": 8,
        }
        | dict.fromkeys(names, 3),
    )
    print_lines(why_ended(store, found.id, trials))


def why_ended(store: Store, experiment_id: int, trials: Sequence[TrialRow]) -> list[str]:
    """Return a line for each run and trial that failed.

    Of more than `_MOST_CAUSES`, the rest is counted.
    """
    causes = [line for trial in trials for line in _causes(store, trial)]
    left = len(causes) - _MOST_CAUSES
    return causes[:_MOST_CAUSES] + [f"{left} more; see: det show {experiment_id} --runs"] * (
        left > 0
    )


def _causes(store: Store, trial: TrialRow) -> Iterator[str]:
    """Yield a line for each failed run, and one for the trial's end."""
    bad = trial.state in ("ERROR", "INVALID_HP", "PAUSED")
    failed = (
        [run for run in store.runs.list(trial.id) if run.reason] if bad or trial.restarts else []
    )
    for run in failed:
        if not bad or run.reason != trial.exit_reason or len(failed) > 1:
            yield f"trial {trial.id} run {run.number}, from batch {run.first_batch}: {run.reason}"
    if bad and trial.exit_reason:
        yield f"trial {trial.id}: {trial.exit_reason}"


def _print_runs(store: Store, trials: Sequence[TrialRow]) -> None:
    rows = []
    for trial in trials:
        for run in store.runs.list(trial.id):
            began = shown_time(run.started, "%m-%d %H:%M:%S")
            took = clock((run.ended or time.time()) - run.started)
            ended = (
                OUTCOMES.get(run.outcome or "", run.outcome or "running"),
                run.reason if run.reason != run.outcome else None,
            )
            rows.append((trial.id, run.number, run.host, run.first_batch, began, took, *ended))
    names = ("trial", "run", "host", "from batch", "began", "took", "ended", "because")
    print_table(names, rows, dict(zip(names, (0, 1, 7, 4, 5, 6, 2, 3), strict=True)))
    print_lines(line for trial in trials for line in _moved(store, trial))


def _moved(store: Store, trial: TrialRow) -> Iterator[str]:
    """Yield what has changed in the interpreter and host of a run since the run before it."""
    runs = [run for run in store.runs.list(trial.id) if run.origin]
    if len({run.origin for run in runs}) < 2:
        return
    origins = store.runs.origins(trial.experiment_id)
    for before, run in itertools.pairwise(runs):
        if changes := differences(origins[str(before.origin)], origins[str(run.origin)]):
            more = (
                f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
            )
            yield (
                f"trial {trial.id} run {run.number}, since run {before.number}:"
                f" {'; '.join(changes[:_MOST_CHANGES])}{more}"
            )


def _print_slices(found: Sequence[Any], name: str, metric: str, as_json: bool) -> None:
    if as_json:
        print_json([vars(each) for each in found])
        return
    ends = [
        shown(s.least) + ("" if s.least == s.greatest else f" to {shown(s.greatest)}")
        for s in found
    ]
    rows = [(end, s.trials, s.best, s.middle) for end, s in zip(ends, found, strict=True)]
    print_table((name, "trials", f"best {metric}", "median"), rows)


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS, nargs=-1, required=True)
@as_json
@click.pass_obj
def compare(settings: Settings, experiment: tuple[int, ...], as_json: bool) -> None:
    """Compare EXPERIMENTs: the result of each, and where their configurations differ."""
    if len(set(experiment)) < 2:
        raise click.UsageError("one experiment cannot be compared; give two or more numbers")
    with settings.reader() as store:
        found = [
            _comparison(store, store.experiments.summary(id)) for id in dict.fromkeys(experiment)
        ]
    if as_json:
        print_json(found)
        return
    configs = [_settings(each["config"]) for each in found]
    keys = dict.fromkeys(key for config in configs for key in config)
    differ = [
        key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)
    ]
    rows = [
        [key, *(_joined(each[key]) for each in found)]
        for key in found[0]
        if key not in ("id", "config")
    ]
    rows += [
        [key, *(shown(config.get(key)) for config in configs)]
        for key in differ
        if key not in found[0]
    ]
    print_table(("", *(str(each["id"]) for each in found)), rows)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration by dotted names.

    A constant hyperparameter has its name in the file.
    """
    found = Space({}).chosen(config)
    types = {
        key for key, kind in found.items() if key.startswith("hyperparameters.") and kind == "const"
    }
    constants = {
        key.removesuffix(".type"): found.pop(key) for key in types if key.endswith(".type")
    }
    short = {f"{name}.val": name for name in constants}
    return {short.get(key, key): value for key, value in found.items()}


def _joined(value: Any) -> str:
    return ", ".join(map(shown, value)) if isinstance(value, list) else shown(value)


def _comparison(store: Store, summary: ExperimentSummary) -> dict[str, Any]:
    experiment = summary.experiment
    best = store.trials.get(summary.best_trial) if summary.best_trial is not None else None
    config = from_json(experiment.config)
    return {
        "id": experiment.id,
        "name": experiment.name,
        "state": str(experiment.state),
        "trials": sum(summary.trials.values()),
        "metric": experiment.metric,
        "best": summary.best_metric,
        "best trial": summary.best_trial,
        "at batch": best.best_batches if best else None,
        "with": Space(config.hyperparameters).chosen(best.hparams) if best else {},
        "took": clock(_seconds(experiment)),
        "labels": list(experiment.labels),
        "config": masked(config),
    }
