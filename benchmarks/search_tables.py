"""Learning curves of networks and of gradient boosting on the data sets that scikit-learn ships.

Every choice of a grid was trained once, with a fixed seed, and its loss on a third of the data was
measured after each of 27 steps: an epoch of a network, or three trees of LightGBM. So a search over
these tables costs nothing, and is the same everywhere.

    python benchmarks/search_tables.py [--only mlp-digits ...]

trains them again and writes the tables; it needs scikit-learn and lightgbm, and takes minutes.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from det_core.config import Categorical, Hyperparameter

DATA = Path(__file__).parent / "data" / "tables"
STEPS = 27
TREES = 3
"""LightGBM's trees of a step."""
WORST = 20.0
"""Losses above are this one: diverged."""
SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "mlp": {
        "activation": ("relu", "tanh"),
        "alpha": (0.0, 1e-3, 1e-2, 1e-1),
        "batch_size": (32, 64, 128),
        "hidden": (4, 8, 16, 32, 64),
        "learning_rate": tuple(10 ** (-4 + i / 2) for i in range(8)),
        "solver": ("adam", "sgd"),
    },
    "boosting": {
        "feature_fraction": (0.25, 0.5, 1.0),
        "lambda_l2": (0.0, 1.0, 10.0),
        "learning_rate": tuple(10 ** (-2 + i * 2 / 7) for i in range(8)),
        "min_data_in_leaf": (1, 4, 16, 40),
        "num_leaves": (2, 4, 8, 16, 31),
    },
}
UNORDERED = ("activation", "solver")
TASKS = (
    *(("mlp", name) for name in ("digits", "breast_cancer", "wine")),
    *(("boosting", name) for name in ("breast_cancer", "diabetes", "wine")),
)


def choices(model: str) -> list[dict[str, Any]]:
    """Return every choice of a model's grid, in the order of the rows of its tables."""
    names = SPACES[model]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*names.values())]


def space(model: str) -> dict[str, Hyperparameter]:
    """Return a model's grid as hyperparameters of an experiment."""
    return {
        name: Categorical(vals=vals, ordered=name not in UNORDERED)
        for name, vals in SPACES[model].items()
    }


@cache
def load(task: str) -> np.ndarray:
    """Return the losses of a task: a row for each choice, a column for each step."""
    with np.load(DATA / f"{task}.npz") as found:
        return np.asarray(found["loss"], float)


def row_of(model: str, params: Mapping[str, Any]) -> int:
    """Return the row of a choice."""
    row = 0
    for name, vals in SPACES[model].items():
        row = row * len(vals) + vals.index(params[name])
    return row


class Tables:
    """The tables as a family of trials for `search_regret.py`. Their value is the negative loss."""

    epochs = STEPS
    data_sets = tuple(f"{model}-{data_set}" for model, data_set in TASKS)

    @cached_property
    def scale(self) -> dict[str, tuple[float, float]]:
        """The median at the last step and the best of all, of each task."""
        return {
            task: (-float(np.median(load(task)[:, -1])), -float(load(task).min()))
            for task in self.data_sets
        }

    def space(self, data_set: str) -> dict[str, Hyperparameter]:
        return space(data_set.split("-", maxsplit=1)[0])

    def rows(self, data_set: str) -> int:
        return len(load(data_set))

    def curve(
        self, data_set: str, params: Mapping[str, Any], after: int, until: int
    ) -> list[float]:
        row = load(data_set)[row_of(data_set.split("-", maxsplit=1)[0], params)]
        return [-float(loss) for loss in row[after:until]]


def train(model: str, data_set: str) -> np.ndarray:
    """Train every choice; return the losses."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    x, y = getattr(datasets, f"load_{data_set}")(return_X_y=True)
    classes = len(set(y)) if data_set != "diabetes" else 0
    parts = train_test_split(
        x, y if classes else (y - y.mean()) / y.std(), test_size=1 / 3, random_state=0
    )
    scaler = StandardScaler().fit(parts[0])
    parts[0], parts[1] = scaler.transform(parts[0]), scaler.transform(parts[1])
    if model == "boosting":
        losses = np.array([train_boosting(choice, parts, classes) for choice in choices(model)])
    else:
        losses = train_networks(choices(model), parts, classes)
    return np.where(losses < WORST, losses, WORST)


def train_networks(
    every: Sequence[Mapping[str, Any]], parts: Sequence[Any], classes: int
) -> np.ndarray:
    """Train networks with one hidden layer, those of the same size side by side."""
    losses = np.empty((len(every), STEPS))
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, choice in enumerate(every):
        alike.setdefault(
            (choice["activation"], choice["batch_size"], choice["hidden"], choice["solver"]), []
        ).append(number)
    for (activation, batch_size, hidden, solver), rows in alike.items():
        rates = np.array([every[row]["learning_rate"] for row in rows], np.float32)[:, None, None]
        decays = np.array([every[row]["alpha"] for row in rows], np.float32)[:, None, None]
        losses[rows] = (
            Networks(activation, hidden, solver, rates, decays, parts, classes).train(batch_size).T
        )
    return losses


class Networks:
    """Networks that differ in learning rate and weight decay only."""

    def __init__(
        self,
        activation: str,
        hidden: int,
        solver: str,
        rates: np.ndarray,
        decays: np.ndarray,
        parts: Sequence[Any],
        classes: int,
    ) -> None:
        self._tanh, self._adam = activation == "tanh", solver == "adam"
        self._rates, self._decays, self._classes = rates, decays, classes
        self._x, self._held_x = (np.asarray(part, np.float32) for part in parts[:2])
        self._y, self._held_y = parts[2:]
        self._random = np.random.default_rng(0)
        sizes = [(self._x.shape[1], hidden), (1, hidden), (hidden, classes), (1, classes)]
        count = (len(rates), 1, 1)
        spreads = [(2 / size[0]) ** 0.5 if size[0] > 1 else 0.0 for size in sizes]
        drawn = [
            spread * self._random.standard_normal(size)
            for spread, size in zip(spreads, sizes, strict=True)
        ]
        self._weights = [np.tile(each.astype(np.float32), count) for each in drawn]
        self._means = [np.zeros_like(each) for each in self._weights]
        self._squares = [np.zeros_like(each) for each in self._weights]
        self._steps = 0

    def train(self, batch_size: int) -> np.ndarray:
        """Return the loss on the held-out data after each epoch: a row for each epoch."""
        found = []
        for _ in range(STEPS):
            order = self._random.permutation(len(self._x))
            for start in range(0, len(order) - batch_size + 1, batch_size):
                self._step(order[start : start + batch_size])
            chances = self._forward(self._held_x)[1]
            sure = np.clip(chances[:, np.arange(len(self._held_y)), self._held_y], 1e-9, 1)
            found.append(-np.log(sure.astype(float)).mean(axis=1))
        return np.array(found)

    def _forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, bias, last, last_bias = self._weights
        hidden = x @ first + bias
        hidden = np.tanh(hidden) if self._tanh else np.maximum(hidden, 0)
        logits = hidden @ last + last_bias
        powers = np.exp(logits - logits.max(axis=2, keepdims=True))
        return hidden, powers / powers.sum(axis=2, keepdims=True)

    def _step(self, batch: np.ndarray) -> None:
        x = self._x[batch]
        hidden, error = self._forward(x)
        error[:, np.arange(len(batch)), self._y[batch]] -= 1
        error /= len(batch)
        back = (error @ self._weights[2].transpose(0, 2, 1)) * (
            1 - hidden**2 if self._tanh else hidden > 0
        )
        slopes = [
            x.T @ back,
            back.sum(1, keepdims=True),
            hidden.transpose(0, 2, 1) @ error,
            error.sum(1, keepdims=True),
        ]
        self._steps += 1
        for number, slope in enumerate(slopes):
            if number % 2 == 0:
                slope += self._decays * self._weights[number]  # noqa: PLW2901
            mean, square = self._means[number], self._squares[number]
            if self._adam:
                mean += 0.1 * (slope - mean)
                square += 0.001 * (slope**2 - square)
                moved = (
                    mean
                    / (1 - 0.9**self._steps)
                    / (np.sqrt(square / (1 - 0.999**self._steps)) + 1e-8)
                )
            else:
                mean *= 0.9
                mean += slope
                moved = mean
            self._weights[number] -= self._rates * moved


def train_boosting(choice: Mapping[str, Any], parts: Sequence[Any], classes: int) -> list[float]:
    import lightgbm

    x, held_x, y, held_y = parts
    objective = {0: "regression", 2: "binary"}.get(classes, "multiclass")
    settings = {
        **choice,
        "objective": objective,
        "verbosity": -1,
        "num_threads": 1,
        "seed": 0,
        "deterministic": True,
    }
    if objective == "multiclass":
        settings["num_class"] = classes
    train_set = lightgbm.Dataset(
        x, y, params={"verbosity": -1, "min_data_in_leaf": choice["min_data_in_leaf"]}
    )
    found: dict[str, dict[str, list[float]]] = {}
    lightgbm.train(
        settings,
        train_set,
        STEPS * TREES,
        valid_sets=[lightgbm.Dataset(held_x, held_y, reference=train_set)],
        callbacks=[lightgbm.record_evaluation(found)],
    )
    (values,) = found["valid_0"].values()
    return [float(value) for value in values[TREES - 1 :: TREES]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [f"{model}-{data_set}" for model, data_set in TASKS]
    parser.add_argument("--only", nargs="+", metavar="TASK", choices=names, default=names)
    DATA.mkdir(parents=True, exist_ok=True)
    for task in parser.parse_args().only:
        np.savez_compressed(DATA / f"{task}.npz", loss=train(*task.split("-")).astype(np.float16))


if __name__ == "__main__":
    main()
