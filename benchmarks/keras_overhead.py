"""det's Keras adapter against a bare `model.fit`.

Both have the same model, data, number of callbacks and batches.

    python benchmarks/keras_overhead.py [--steps 1 10 50] [--instructions [--record]]

Prints, for several values of `steps_per_execution`, the median over rounds of the ratio of the two
times, with its quartiles. The two run in turn in one process; each is compiled, and has trained
some batches, before it is timed. `--instructions` counts instead what the processor is told to do,
under valgrind.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from instructions import collect_no_whole_heap, count, start, stop
from results import record
from tensorflow import keras

from det_core import (
    CheckpointSink,
    DistributedContext,
    Every,
    LocalHost,
    Plugins,
    RunInfo,
    Schedule,
    Target,
    run_trial,
)
from det_core.config import parse
from det_core.storage import LocalStorage
from det_keras import TFKerasTrial

RECORDS, WIDTH, BATCH, REPORT = 4096, 256, 64, 100


def make_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(RECORDS, WIDTH)).astype("float32"), rng.integers(
        0, 10, size=RECORDS
    ).astype("int32")


def make_model(steps: int) -> Any:
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.01),
        loss,
        metrics=["accuracy"],
        steps_per_execution=steps,
        jit_compile=False,
    )
    return model


def make_dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices(make_data()).batch(BATCH, drop_remainder=True).cache()


class Clock(keras.callbacks.Callback):
    """Notes when batch `first` and batch `last` are over."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last, self.done, self.times = first, last, 0, []

    def over(self, batches: int) -> None:
        self.done += batches
        self.at(self.done)

    def at(self, batches: int) -> None:
        """Note the time and begin or end the count, if this batch is the first or the last."""
        if batches == self.last:
            stop()
        if batches in (self.first, self.last):
            self.times.append(time.perf_counter())
        if batches == self.first:
            start()

    @property
    def seconds(self) -> float:
        return self.times[1] - self.times[0]


class Bare(Clock):
    """The one callback of the bare loop."""

    def __init__(self, first: int, last: int, steps: int) -> None:
        super().__init__(first, last)
        self.steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.over(self.steps)
        if self.done == self.last:
            self.model.stop_training = True


def bare(steps: int, first: int, last: int) -> float:
    clock = Bare(first, last, steps)
    make_model(steps).fit(
        make_dataset().repeat(), epochs=1, steps_per_epoch=2**31 - 1, verbose=0, callbacks=[clock]
    )
    return clock.seconds


def with_det(steps: int, first: int, last: int) -> float:
    clock = Clock(first, last)

    class Trial(TFKerasTrial):
        def build_model(self) -> Any:
            return self.context.wrap_model(make_model(steps))

        def build_training_data_loader(self) -> Any:
            return self.context.wrap_dataset(make_dataset())

        def build_validation_data_loader(self) -> Any:
            return self.context.wrap_dataset(make_dataset()).take(1)

    class Timed(LocalHost):
        def report(self, group: str, batches: int, metrics: Any) -> None:
            super().report(group, batches, metrics)
            if group == "training":
                clock.at(batches)

    plugins = Plugins.installed()
    info = RunInfo(
        config=parse({"entrypoint": "benchmark:Trial"}).config,
        hparams={"global_batch_size": BATCH},
        seed=1,
        build=plugins.build("keras"),
        distributed=DistributedContext(),
    )
    with tempfile.TemporaryDirectory() as folder:
        keep = CheckpointSink(storage=LocalStorage(Path(folder)))
        plan = Schedule(report=Every(REPORT), policy="none")
        run_trial(
            plugins.frameworks()["keras"],
            Trial,
            info,
            Timed(Target(n=last)),
            keep,
            schedule=lambda adapter: plan,
        )
    return clock.seconds


def words(steps: int, which: str, batches: int) -> list[str]:
    """Return what makes Python run one of the two for so many batches."""
    return [__file__, "--child", which, "--batches", str(batches), "--steps", str(steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions instead; takes minutes"
    )
    parser.add_argument(
        "--record", action="store_true", help="keep the counts of instructions in results.json"
    )
    parser.add_argument("--child", choices=["bare", "det"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        collect_no_whole_heap()
        {"bare": bare, "det": with_det}[options.child](options.steps[0], 200, 200 + options.batches)
        return
    for steps in options.steps:
        if options.instructions:
            print(f"steps_per_execution {steps:3d}: ", end="")
            # One period of reports, with the end of an epoch. TensorFlow is slow under valgrind.
            ratio = count("det", partial(words, steps), REPORT)
            if options.record:
                record("keras_overhead", {f"det, steps_per_execution={steps}": ratio})
            continue
        pairs = []
        for number in range(options.rounds):
            first, last = 200, 200 + options.batches
            order = (bare, with_det) if number % 2 == 0 else (with_det, bare)
            times = {run.__name__: run(steps, first, last) for run in order}
            pairs.append((times["with_det"], times["bare"]))
        low, ratio, high = statistics.quantiles([det / alone for det, alone in pairs], n=4)
        each = statistics.median(alone for _, alone in pairs) / options.batches * 1e6
        print(
            f"steps_per_execution {steps:3d}: det / model.fit {ratio:.3f} [{low:.3f}, {high:.3f}]"
            f" ({each:.0f} us a batch)",
            flush=True,
        )


if __name__ == "__main__":
    main()
