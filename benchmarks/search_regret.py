"""How far from the best known accuracy searches end that train as much as one another.

There are two families of trials: `lcbench`, networks on tables, by a surrogate that predicts each
learning curve in a millisecond (`data/lcbench/README.md`), and `tables`, small networks and
gradient boosting that were trained for real (`search_tables.py`). det's searchers are the real ones, driven
by events as a driver does. Those of other libraries are asked and told, as their own runners do
(`search_peers.py`). Simulated workers differ in speed; a trial validates after each epoch. A budget
of 10 is the work of 10 trainings of full length, over all workers. A trial that a search trains
further goes on from where it stands, for every search.

Regret is 0 at the best known value of a data set and 1 at the median of random configurations, for
the best value that any epoch had before the budget was used up. Means are over data sets and seeds,
with 95 % confidence intervals by a bootstrap over data sets. The last columns compare with the
first searcher, paired by data set and seed: the mean difference with its interval, and the p value of a
test over data sets that flips the signs of the differences at random.

    python benchmarks/search_regret.py [--family tables] [--searchers auto random] [--seeds 3]
        [--budgets 3 10 20] [--workers 1 8 64] [--first 1] [--every 2] [--results FILE]

With `--results`, what FILE has already is not run again, and a run can be broken off. `--known`
prints the tables of FILE, also where some searchers have had more seeds than others.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import math
import random
import sys
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
from search_peers import PEERS, Contestant, Params
from search_tables import Tables

from det_core.config import Double, Hyperparameter, Int, Log, parse
from det_core.hooks import Plugins, extensions_of
from det_driver.search import Close, Create, Exit, Operation, Searcher, Train, made

DATA = Path(__file__).parent / "data" / "lcbench"
EPOCHS = 52
LEFT_OUT = ("167083",)
"""The data set of LCBench that YAHPO Gym does not offer."""
SPACE: dict[str, Hyperparameter] = {
    "batch_size": Log(minval=4, maxval=9, base=2),
    "learning_rate": Log(minval=-4, maxval=-1),
    "max_dropout": Double(minval=0, maxval=1),
    "max_units": Log(minval=6, maxval=10, base=2),
    "momentum": Double(minval=0.1, maxval=0.99),
    "num_layers": Int(minval=1, maxval=5),
    "weight_decay": Double(minval=1e-5, maxval=0.1),
}
INPUTS = (
    "batch_size",
    "learning_rate",
    "momentum",
    "weight_decay",
    "num_layers",
    "max_units",
    "max_dropout",
)
ROUNDED = ("batch_size", "num_layers", "max_units")
UNLIMITED = 10**6


class Family(Protocol):
    """A kind of trials; larger values are better."""

    epochs: int
    data_sets: Sequence[str]

    @property
    def scale(self) -> Mapping[str, tuple[float, float]]:
        """The median of random configurations and the best known value of each data set."""

    def space(self, data_set: str) -> Mapping[str, Hyperparameter]:
        """Return the hyperparameters."""

    def curve(self, data_set: str, params: Params, after: int, until: int) -> Sequence[float]:
        """Return the values of the epochs after `after` up to `until`."""


class Surrogate:
    """Predicts accuracy on LCBench."""

    epochs = EPOCHS

    def __init__(self, directory: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(directory / "model.onnx"), options)
        self._numbers = json.loads((directory / "encoding.json").read_text())["OpenML_task_id"]
        self.data_sets = [name for name in self._numbers if name not in ("#na#", *LEFT_OUT)]
        self._scale = directory / "reference.json"

    @cached_property
    def scale(self) -> dict[str, tuple[float, float]]:
        return {
            name: (low, high) for name, (low, high) in json.loads(self._scale.read_text()).items()
        }

    def space(self, data_set: str) -> Mapping[str, Hyperparameter]:
        return SPACE

    def curve(self, data_set: str, params: Params, after: int, until: int) -> list[float]:
        return [*map(float, self.accuracies(data_set, curve_rows(params, after, until)))]

    def accuracies(self, data_set: str, rows: Sequence[Sequence[float]]) -> np.ndarray:
        """Return the accuracy for each row: an epoch and hyperparameters in the order of INPUTS."""
        which = np.full((len(rows), 1), self._numbers[data_set], np.int32)
        inputs = {"x_cat": which, "x_cont": np.asarray(rows, np.float32)}
        found: np.ndarray = self._session.run(None, inputs)[0][:, 1]
        return found

    def write_scale(self) -> None:
        """Search each data set: 20,000 random points, and the neighbourhoods of the best."""
        self._scale.write_text(
            json.dumps({name: self._range(name) for name in self.data_sets}, indent=0) + "\n"
        )

    def _range(self, data_set: str) -> tuple[float, float]:
        rng = np.random.default_rng(0)

        def best_of(points: np.ndarray) -> np.ndarray:
            rows = [[EPOCHS, *row_of(decoded(point))] for point in points]
            return self.accuracies(data_set, rows)

        points = rng.random((20_000, len(INPUTS)))
        found = best_of(points)
        median = float(np.median(found))
        for spread in (0.1, 0.05, 0.02, 0.01):
            top = points[np.argsort(-found)[:20]]
            near = np.clip(top.repeat(200, 0) + rng.normal(0, spread, (4000, len(INPUTS))), 0, 1)
            points = np.concatenate([top, near])
            found = best_of(points)
        curves = [
            self.accuracies(data_set, curve_rows(decoded(p), 0, EPOCHS))
            for p in points[np.argsort(-found)[:20]]
        ]
        return median, float(np.max(curves))


def decoded(point: Sequence[float]) -> dict[str, float]:
    """Return the hyperparameters at a point of the unit cube."""
    values = {}
    for name, at in zip(sorted(SPACE), point, strict=True):
        match SPACE[name]:
            case Log(minval=low, maxval=high, base=base):
                values[name] = base ** (low + at * (high - low))
            case Int(minval=low, maxval=high):
                values[name] = min(low + int(at * (high - low + 1)), high)
            case Double(minval=low, maxval=high):
                values[name] = low + at * (high - low)
    return values


def row_of(params: Params) -> list[float]:
    return [round(params[name]) if name in ROUNDED else params[name] for name in INPUTS]


def curve_rows(params: Params, after: int, until: int) -> list[list[float]]:
    row = row_of(params)
    return [[epoch, *row] for epoch in range(after + 1, until + 1)]


class Det(Contestant):
    """A searcher of det's."""

    def __init__(self, searcher: Searcher, epochs: int) -> None:
        self._searcher = searcher
        self._epochs = epochs
        self._params: dict[int, Params] = {}
        self._until: dict[int, int] = {}
        self._queue: deque[int] = deque()
        self._follow(searcher.start(), None)

    def take(self) -> tuple[int, Params] | None:
        while self._queue:
            trial = self._queue.popleft()
            if trial in self._until:
                return trial, self._params[trial]
        return None

    def report(self, trial: int, epoch: int, value: float) -> bool:
        self._follow(self._searcher.validated(trial, epoch, {"value": value}), trial)
        return self._until.get(trial, 0) > epoch

    def _follow(self, operations: list[Operation], running: int | None) -> None:
        for operation in operations:  # grows while it is read
            if isinstance(operation, Create):
                self._params[operation.trial] = operation.hparams
            elif isinstance(operation, Train):
                self._until[operation.trial] = operation.until or self._epochs
                if operation.trial != running:
                    self._queue.append(operation.trial)
            elif isinstance(operation, Close):
                self._until.pop(operation.trial, None)
                operations += self._searcher.exited(operation.trial, Exit.COMPLETED)


DET: dict[str, dict[str, Any]] = {
    "auto": {"name": "auto", "max_hours": 1000},
    "auto 1": {"name": "auto", "max_hours": 1000, "choice": 1},
    "random": {"name": "random", "max_trials": UNLIMITED},
    "async_halving 3": {
        "name": "async_halving",
        "num_rungs": 3,
        "divisor": 3,
        "max_trials": UNLIMITED,
    },
    "async_halving 4": {"name": "async_halving", "num_rungs": 4, "max_trials": UNLIMITED},
    "adaptive_asha": {"name": "adaptive_asha", "max_trials": UNLIMITED},
    "adaptive_asha 64": {"name": "adaptive_asha", "max_trials": 64},
}
"""Sections of a configuration; metric, length and concurrency are added."""
for sampler in ("random", "sobol", "evolution", "tpe", "gp"):
    for schedule in ("full", "async_halving", "adaptive_asha", "hyperband"):
        DET[f"{sampler} {schedule}"] = {"sampler": sampler, "schedule": schedule}
        if schedule != "hyperband":
            DET[f"{sampler} {schedule}"]["max_trials"] = UNLIMITED


def contestant(name: str, seed: int, workers: int, family: Family, data_set: str) -> Contestant:
    """Return a search of that name that has not begun."""
    space = family.space(data_set)
    if name in PEERS:
        return PEERS[name](space, family.epochs, seed, workers)
    section: dict[str, Any] = {
        "metric": "value",
        "smaller_is_better": False,
        "max_length": {"epochs": family.epochs},
    }
    section |= DET[name] | {"max_concurrent_trials": workers}
    plugins = Plugins.installed()
    config = parse(
        {"entrypoint": "true", "searcher": section}, extensions=extensions_of(plugins)
    ).config.searcher
    assert config is not None
    searcher = made(config, space, seed, plugins.searchers()[config.name].make, plugins.samplers())
    return Det(searcher, family.epochs)


def run(
    search: Contestant,
    family: Family,
    data_set: str,
    workers: int,
    seed: int,
    budgets: Sequence[int],
) -> list[float]:
    """Return the regret of a search at each of the budgets."""
    draw = random.Random(seed)
    pace = [math.exp(draw.uniform(-0.7, 0.7)) if workers > 1 else 1.0 for _ in range(workers)]
    together = sum(1 / seconds for seconds in pace)
    median, highest = family.scale[data_set]
    curves: dict[int, list[float]] = {}
    done: dict[int, int] = {}
    running: list[tuple[float, int, int, int, Params]] = []
    idle = deque(range(workers))
    best, now, order = -math.inf, 0.0, 0
    regrets: list[float] = []

    def begin(worker: int, trial: int, params: Params) -> None:
        nonlocal order
        order += 1
        heapq.heappush(running, (now + pace[worker], order, worker, trial, params))

    while True:
        while idle and (taken := search.take()) is not None:
            begin(idle.popleft(), *taken)
        ended = not running
        if not ended:
            now, _, worker, trial, params = heapq.heappop(running)
        while ended or now * together > budgets[len(regrets)] * family.epochs + 1e-9:
            regrets.append((highest - best) / (highest - median))
            if len(regrets) == len(budgets):
                return regrets
        epoch = done[trial] = done.get(trial, 0) + 1
        curve = curves.setdefault(trial, [])
        if epoch > len(curve):
            curve += family.curve(
                data_set, params, len(curve), min(4 * max(len(curve), 1), family.epochs)
            )
        best = max(best, curve[epoch - 1])
        if search.report(trial, epoch, curve[epoch - 1]):
            begin(worker, trial, params)
        else:
            idle.append(worker)


Results = dict[str, dict[str, list[float]]]
"""For each searcher and number of workers, such as `random 8`, the regret per data set and seed."""


class Measurement:
    """Runs searches, and keeps their regrets in a file."""

    def __init__(self, family: Family, budgets: Sequence[int], file: Path | None) -> None:
        self.family = family
        self.budgets = list(budgets)
        self._file = file
        self.known: Results = {}
        if file is not None and file.exists():
            saved = json.loads(file.read_text())
            if saved["budgets"] != self.budgets:
                raise SystemExit(f"{file} has the budgets {saved['budgets']}; name another file")
            self.known = saved["regrets"]

    def fill(self, name: str, workers: int, runs: Sequence[tuple[str, int]]) -> None:
        """Run what is not known yet."""
        found = self.known.setdefault(f"{name} {workers}", {})
        began, count = time.process_time(), 0
        for data_set, seed in runs:
            if f"{data_set} {seed}" not in found:
                number = 1000 * seed + self.family.data_sets.index(data_set)
                search = contestant(name, number, workers, self.family, data_set)
                found[f"{data_set} {seed}"] = run(
                    search, self.family, data_set, workers, seed, self.budgets
                )
                count += 1
                if count % 10 == 0:
                    self._save()
        self._save()
        seconds = time.process_time() - began
        print(
            f"{name}, {workers} workers: {count} searches, {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    def _save(self) -> None:
        if self._file is not None:
            self._file.write_text(json.dumps({"budgets": self.budgets, "regrets": self.known}))


def by_data_set(results: Mapping[str, list[float]], runs: Sequence[tuple[str, int]]) -> np.ndarray:
    """Return the mean over seeds for each data set and budget."""
    names = dict.fromkeys(data_set for data_set, _ in runs)
    return np.array(
        [np.mean([results[f"{n} {s}"] for m, s in runs if m == n], axis=0) for n in names]
    )


def interval(values: np.ndarray) -> float:
    """Return half the width of the 95 % confidence interval of a mean, by a bootstrap."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (2000, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(high - low) / 2


def p_value(differences: np.ndarray) -> float:
    """Return how often a mean as far from 0 comes about where the signs are arbitrary."""
    rng = np.random.default_rng(0)
    flipped = (rng.choice([-1, 1], (20_000, len(differences))) * differences).mean(axis=1)
    return float((1 + np.sum(np.abs(flipped) >= abs(differences.mean()) - 1e-12)) / 20_001)


def table(
    names: Sequence[str], workers: int, runs: Sequence[tuple[str, int]], found: Measurement
) -> str:
    """Return a table of mean regret, and of the comparison with the first searcher.

    It has those of the runs that are known. Those that a searcher and the first one both have are
    compared.
    """
    heads = [
        f"{workers} worker" + "s" * (workers > 1),
        *map(str, found.budgets),
        "mean",
        "to the first",
        "p",
        "searches",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    first = found.known[f"{names[0]} {workers}"]
    for name in names:
        known = found.known.get(f"{name} {workers}", {})
        done = [(data_set, seed) for data_set, seed in runs if f"{data_set} {seed}" in known]
        if not done:
            continue
        regrets = by_data_set(known, done)
        cells = [
            f"{column.mean():.3f} ± {interval(column):.3f}"
            for column in [*regrets.T, regrets.mean(axis=1)]
        ]
        both = [(data_set, seed) for data_set, seed in done if f"{data_set} {seed}" in first]
        difference = (by_data_set(known, both) - by_data_set(first, both)).mean(axis=1)
        compared = [
            f"{difference.mean():+.3f} ± {interval(difference):.3f}",
            f"{p_value(difference):.4f}",
        ]
        cells += ["", ""] if name == names[0] else compared
        lines.append(f"| {name} | {' | '.join(cells)} | {len(done)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=["lcbench", "tables"], default="lcbench")
    every = [*DET, *PEERS]
    parser.add_argument(
        "--searchers", nargs="+", metavar="NAME", default=["auto", "random"], choices=every
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budgets", type=int, nargs="+", default=[3, 10, 20])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--every", type=int, default=1, help="take each so many-th data set")
    parser.add_argument(
        "--first", type=int, default=0, help="the number of the first data set to take"
    )
    parser.add_argument(
        "--results", type=Path, help="keep all regrets in this file, and run what it does not have"
    )
    parser.add_argument(
        "--known",
        action="store_true",
        help="run nothing; print the tables of the results that there are",
    )
    parser.add_argument(
        "--reference", action="store_true", help="compute lcbench's reference.json instead; minutes"
    )
    options = parser.parse_args()
    if options.reference:
        Surrogate(DATA).write_scale()
        return
    family: Family = Tables() if options.family == "tables" else Surrogate(DATA)
    data_sets = family.data_sets[options.first :: options.every]
    runs = [(name, seed) for seed in range(options.seeds) for name in data_sets]
    measurement = Measurement(family, options.budgets, options.results)
    for workers in options.workers:
        for name in [] if options.known else options.searchers:
            measurement.fill(name, workers, runs)
        print(table(options.searchers, workers, runs, measurement) + "\n", flush=True)


if __name__ == "__main__":
    # Other libraries warn of much.
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    main()
