"""What a decision of a search costs: the processor's time, and the ratio to the sampler `random`.

A search of 10 hyperparameters under asynchronous halving is taken to 10, 100 and 1,000 trials, and
then its next decisions are timed: the report of a trial, and what the search does with it, mostly
one proposal. The figure is the median. All samplers are timed in one process, so that the ratio
holds on a busy machine. gp is not taken to 1,000 trials, because its model has 60 at most.

    python benchmarks/search_cost.py [--samplers random tpe] [--decisions 25]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque

from det_core.config import Combined, Double, Hyperparameter, Length
from det_core.hooks import Plugins
from det_driver.search import Close, Create, Exit, Operation, Train, combined

SPACE: dict[str, Hyperparameter] = {f"x{i}": Double(minval=0, maxval=1) for i in range(10)}
SAMPLERS = ("random", "sobol", "evolution", "tpe", "gp")
TRIALS = (10, 100, 1000)


def seconds(sampler: str, trials: int, decisions: int) -> float:
    """Return the median time of a decision that creates a trial, after so many trials."""
    options = {"startup_trials": trials} if sampler in ("tpe", "gp") else {}
    config = Combined(
        metric="loss",
        sampler=sampler,
        sampler_options=options,
        schedule="async_halving",
        max_length=Length("epochs", 27),
        max_trials=10**6,
        max_concurrent_trials=4,
    )
    search = combined(config, SPACE, 0, Plugins.installed().samplers())
    due: deque[tuple[int, int]] = deque()
    losses: dict[int, float] = {}
    found: list[float] = []

    def follow(operations: list[Operation]) -> bool:
        created = False
        for operation in operations:
            match operation:
                case Create():
                    created = True
                    losses[operation.trial] = sum(
                        (value - 0.3) ** 2 for value in operation.hparams.values()
                    )
                case Train(until=int(until)):
                    due.append((operation.trial, until))
                case Close():
                    follow(search.exited(operation.trial, Exit.COMPLETED))
        return created

    follow(search.start())
    while len(found) < decisions:
        trial, until = due.popleft()
        counts = len(losses) > trials
        began = time.process_time()
        operations = search.validated(trial, until, {"loss": losses[trial] + 1 / until})
        took = time.process_time() - began
        if follow(operations) and counts:
            found.append(took)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=[*SAMPLERS])
    parser.add_argument("--decisions", type=int, default=25)
    options = parser.parse_args()
    print(
        "| trials | "
        + " | ".join(options.samplers)
        + " |\n|"
        + "---|" * (len(options.samplers) + 1)
    )
    for trials in TRIALS:
        random = seconds("random", trials, 20 * options.decisions)
        cells = []
        for sampler in options.samplers:
            if sampler == "gp" and trials > TRIALS[1]:
                cells.append("")
                continue
            took = random if sampler == "random" else seconds(sampler, trials, options.decisions)
            cells.append(f"{1000 * took:.3f} ms, {took / random:,.0f}")
        print(f"| {trials} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
