"""What adaptive_asha finds, and what random search finds with as many batches.

The trials are those of examples/digits_torch/search.yaml, whose space is fixed, to be searched and
not tuned: a network with one hidden layer on the digits, 64 trials of at most 32 epochs, error on
every third digit. Both searchers are det's own and are driven in process, one trial at a time:
training is real, and a trial that is promoted goes on from where it paused. Random search trains
each trial to the end, until it has used as many batches as adaptive_asha did (its last trial may
use more). The figure is the lowest error that a searcher was told of; the medians are over the
seeds, with the quartiles and the extremes.

    python benchmarks/search_quality.py [--seeds 10] [--trials 64] [--epochs 32]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from det_core.config import AdaptiveAsha, Length, Random
from det_driver.config import load
from det_driver.search import Close, Create, Exit, Operation, Searcher, Train, make

SPACE = load(Path(__file__).parents[1] / "examples/digits_torch/search.yaml").config.hyperparameters


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=64, help="of adaptive_asha")
    parser.add_argument("--epochs", type=int, default=32, help="the most that a trial trains")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, length = digits(), Length("epochs", arguments.epochs)
    asha = AdaptiveAsha(metric="error", max_trials=arguments.trials, max_length=length)
    random = Random(metric="error", max_trials=10**6, max_concurrent_trials=1, max_length=length)
    began = time.perf_counter()
    halved, full = [], []
    for seed in range(arguments.seeds):
        halved.append(search(make(asha, SPACE, seed), data))
        full.append(search(make(random, SPACE, seed), data, halved[-1].batches))
        print(f"seed {seed}: adaptive_asha {halved[-1]}; random {full[-1]}", flush=True)
    print(f"adaptive_asha error {spread(halved)}")
    print(f"random        error {spread(full)}")
    better = sum(a.error < b.error for a, b in zip(halved, full, strict=True))
    equal = sum(a.error == b.error for a, b in zip(halved, full, strict=True))
    seconds = time.perf_counter() - began
    print(
        f"adaptive_asha is better for {better} of {arguments.seeds} seeds, equal for {equal};"
        f" {seconds:.0f} s"
    )


@dataclass
class Outcome:
    """What a search found, and what it used."""

    error: float = 1.0
    batches: int = 0
    trials: int = 0

    def __str__(self) -> str:
        return f"{self.error:.4f} ({self.trials} trials, {self.batches} batches)"


@dataclass(frozen=True)
class Digits:
    """The digits: every third to validate on, the others to train on."""

    images: torch.Tensor
    labels: torch.Tensor
    validation_images: torch.Tensor
    validation_labels: torch.Tensor


def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    third = torch.arange(len(targets)) % 3 == 0
    return Digits(inputs[~third], targets[~third], inputs[third], targets[third])


def search(searcher: Searcher, data: Digits, budget: int | None = None) -> Outcome:
    """Run a search, one trial at a time in the order of asking, until `budget` batches are used."""
    outcome, trials = Outcome(), dict[int, Trial]()
    waiting: deque[tuple[int, int]] = deque()
    operations = searcher.start()
    while True:
        for operation in followed(searcher, operations):
            if isinstance(operation, Create):
                outcome.trials += 1
                trials[operation.trial] = Trial(operation, data)
            elif isinstance(operation, Train) and operation.until is not None:
                waiting.append((operation.trial, operation.until))
        if not waiting or (budget is not None and outcome.batches >= budget):
            return outcome
        number, until = waiting.popleft()
        outcome.batches += trials[number].train(until)
        error = trials[number].error()
        outcome.error = min(outcome.error, error)
        operations = searcher.validated(number, until, {"error": error})


def followed(searcher: Searcher, operations: list[Operation]) -> Iterator[Operation]:
    """Yield operations, and those that follow when a trial that is closed ends."""
    waiting = deque(operations)
    while waiting:
        operation = waiting.popleft()
        yield operation
        if isinstance(operation, Close):
            waiting += searcher.exited(operation.trial, Exit.COMPLETED)


class Trial:
    """A trial that stays in memory while it waits, with the state of its own random numbers."""

    def __init__(self, create: Create, data: Digits) -> None:
        hparams = create.hparams
        torch.manual_seed(create.seed)
        self.data, self.batch_size, self.epochs = data, hparams["global_batch_size"], 0
        self.model = nn.Sequential(
            nn.Linear(64, hparams["hidden"]),
            nn.ReLU(),
            nn.Dropout(hparams["dropout"]),
            nn.Linear(hparams["hidden"], 10),
        )
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=hparams["lr"],
            momentum=hparams["momentum"],
            weight_decay=hparams["weight_decay"],
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.95)
        self.random = torch.get_rng_state()

    def train(self, until: int) -> int:
        """Train until `until` epochs; return the number of batches."""
        torch.set_rng_state(self.random)
        self.model.train()
        batches = 0
        for _ in range(self.epochs, until):
            for chosen in torch.randperm(len(self.data.labels)).split(self.batch_size):
                self.optimizer.zero_grad()
                scores = self.model(self.data.images[chosen])
                nn.functional.cross_entropy(scores, self.data.labels[chosen]).backward()
                self.optimizer.step()
                batches += 1
            self.scheduler.step()
        self.epochs, self.random = until, torch.get_rng_state()
        return batches

    @torch.no_grad()
    def error(self) -> float:
        """Return the share of the validation digits that it takes for others."""
        self.model.eval()
        guesses = self.model(self.data.validation_images).argmax(dim=1)
        return (guesses != self.data.validation_labels).double().mean().item()


def spread(outcomes: list[Outcome]) -> str:
    errors = sorted(outcome.error for outcome in outcomes)
    low, middle, high = (
        statistics.quantiles(errors, n=4, method="inclusive") if len(errors) > 1 else errors * 3
    )
    return (
        f"median {middle:.4f}, quartiles [{low:.4f}, {high:.4f}], from {errors[0]:.4f} to"
        f" {errors[-1]:.4f}"
    )


if __name__ == "__main__":
    main()
