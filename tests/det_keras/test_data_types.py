"""The five types of data, and the ways to read them.

The same losses, and an exact resume, for each.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras.again import again

from det_core import At, Every, Schedule, TrialError
from det_keras import SequenceAdapter
from det_keras.data import _sequence
from det_keras.testing import OneVarTrial
from det_keras.versions import KERAS_3, keras
from det_testing import OneVar

pytestmark = pytest.mark.process


class Items(keras.utils.Sequence):
    """Batches of x, with x for labels; it counts what it is asked for."""

    def __init__(self, x: Any, size: int) -> None:
        super().__init__()
        self.x, self.size, self.asked = x, size, []

    def __len__(self) -> int:
        return math.ceil(len(self.x) / self.size)

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        part = self.x[index * self.size : (index + 1) * self.size]
        return part, part


class Weighted(OneVarTrial):
    def data(self, x: Any) -> Any:
        return x, x, np.ones(len(x))


class Pipeline(OneVarTrial):
    def data(self, x: Any) -> Any:
        size = self.context.get_per_slot_batch_size()
        dataset = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, x))).batch(size)
        return dataset.shuffle(100) if self.settings.shuffle else dataset


class OfSequence(OneVarTrial):
    def data(self, x: Any) -> Any:
        self.items = Items(x, self.context.get_per_slot_batch_size())
        return self.items


class OfAdaptedSequence(OneVarTrial):
    def data(self, x: Any) -> Any:
        return SequenceAdapter(
            Items(x, self.context.get_per_slot_batch_size()), workers=2, max_queue_size=3
        )


class OfProcesses(OneVarTrial):
    def data(self, x: Any) -> Any:
        items = Items(x, self.context.get_per_slot_batch_size())
        return SequenceAdapter(items, use_multiprocessing=True, workers=2)


class Cached(OneVarTrial):
    def data(self, x: Any) -> Any:
        @self.context.experimental.cache_train_dataset(
            "onevar", "1", shuffle=self.settings.shuffle, directory=self.context.run.tensorboard_dir
        )
        def make() -> Any:
            return tf.data.Dataset.from_tensor_slices((x, x))

        return make().batch(self.context.get_per_slot_batch_size())


class Executions(OneVarTrial):
    """Up to 4 batches in one go."""

    steps_per_execution = 4


class EagerExecutions(OneVarTrial):
    steps_per_execution = 4

    def build_model(self) -> Any:
        model = super().build_model()
        model.run_eagerly = True
        return model


class Compiled(OneVarTrial):
    """Through XLA, several batches in one go."""

    def build_model(self) -> Any:
        model = super().build_model()
        model.compile(
            keras.optimizers.SGD(self.settings.lr), "mse", steps_per_execution=3, jit_compile=True
        )
        return model


KINDS = [
    Weighted,
    Pipeline,
    OfSequence,
    OfAdaptedSequence,
    OfProcesses,
    Cached,
    Executions,
    EagerExecutions,
    Compiled,
]
kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.process] if kind is OfProcesses else [])
        for kind in KINDS
    ],
    ids=lambda kind: kind.__name__,
)


@kinds
def test_a_report_is_the_mean_over_its_batches(runs: Any, kind: type) -> None:
    result, model = (
        runs(kind)(12, schedule=Schedule(report=Every(5), validate=Every(7), policy="none")),
        OneVar(),
    )
    ends = [(0, 5), (5, 7), (7, 10), (10, 12)]
    means = {
        end: sum(model.loss(n) for n in range(begin, end)) / (end - begin) for begin, end in ends
    }
    assert result.losses == pytest.approx(means, rel=1e-4)
    assert result.weight == pytest.approx(model.weight(12), rel=1e-4)


@pytest.mark.slow
@kinds
def test_a_run_resumes_exactly(runs: Any, kind: type) -> None:
    """From the end of an epoch and from within one."""
    run = runs(kind)
    schedule = Schedule(report=Every(3), checkpoint=At({5, 7}), policy="none")
    whole = run(12, schedule=schedule, noise=0.5, shuffle=True)
    for at in (5, 7):
        second = run(
            12, schedule=schedule, noise=0.5, shuffle=True, checkpoint=whole.checkpoints[at]
        )
        assert second.losses == {
            batches: loss for batches, loss in whole.losses.items() if batches > at
        }
        assert second.weight == whole.weight


class Random(OfSequence):
    """Items that are random, of a sequence that changes at the end of each epoch."""

    def data(self, x: Any) -> Any:
        class Items2(Items):
            def __getitem__(self, index: int) -> Any:
                x, y = super().__getitem__(index)
                return x * np.random.uniform(0.9, 1.1), y

            def on_epoch_end(self) -> None:
                self.x = np.random.permutation(self.x)

        return SequenceAdapter(
            Items2(x, 2), use_multiprocessing=self.processes, workers=1 + self.processes
        )

    processes = False


class RandomInProcesses(Random):
    processes = True


@pytest.mark.parametrize(
    "kind", [Random, pytest.param(RandomInProcesses, marks=pytest.mark.process)]
)
def test_what_a_sequence_draws_is_the_same_when_it_is_read_again(runs: Any, kind: type) -> None:
    run = runs(kind)
    schedule = Schedule(report=Every(1), checkpoint=At({7}), policy="none")
    whole = run(12, schedule=schedule)
    second = run(12, schedule=schedule, checkpoint=whole.checkpoints[7])
    assert second.losses == {batches: loss for batches, loss in whole.losses.items() if batches > 7}


@pytest.mark.process
def test_processes_and_the_training_process_draw_the_same(runs: Any) -> None:
    assert runs(Random)(7).losses == runs(RandomInProcesses)(7).losses


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 2], ids=["processes", "threads"])
def test_who_waits_for_an_item_ends_with_the_run(workers: int, runs: Any, wait_until: Any) -> None:
    """TensorFlow reads ahead. Its thread would never end, and with it the process."""

    class Slow(Items):
        def __getitem__(self, index: int) -> Any:
            # The first two tell what items look like.
            while index >= 3 and not (self.processes is False and over.is_set()):
                time.sleep(0.05)
            return super().__getitem__(index)

    class Waiting(OneVarTrial):
        def data(self, x: Any) -> Any:
            items = Slow(x, self.context.get_per_slot_batch_size())
            items.processes = workers == 1
            # An item that a thread reads is read to its end.
            threading.Timer(3.0, over.set).start()
            return SequenceAdapter(items, use_multiprocessing=items.processes, workers=workers)

    def is_read() -> bool:
        # A thread of TensorFlow that has ended may still be listed.
        stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
        return any(each.filename == _sequence.__file__ for stack in stacks for each in stack)

    over = threading.Event()
    assert runs(Waiting)(3, batches_per_epoch=20).losses
    wait_until(lambda: not is_read(), "that nobody reads", 20)


@pytest.mark.process
def test_a_killed_process_of_a_sequence_is_named(runs: Any) -> None:
    class Killed(Items):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    class OfKilled(OneVarTrial):
        def data(self, x: Any) -> Any:
            items = Killed(x, self.context.get_per_slot_batch_size())
            return SequenceAdapter(items, use_multiprocessing=True, workers=2)

    with pytest.raises(TrialError, match=r"a process that read item .* was killed: most often"):
        runs(OfKilled)(18, batches_per_epoch=20)


def test_what_a_run_has_trained_is_not_read_again(runs: Any) -> None:
    class Watched(OfSequence):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            trials.append(self)

    trials: list[Any] = []
    run = runs(Watched)
    whole = run(18, batches_per_epoch=20)
    run(19, batches_per_epoch=20, checkpoint=whole.checkpoints[18])
    assert set(trials[1].items.asked) - {0, 1} <= {18, 19}  # 0 and 1 tell what items look like


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 calls no on_epoch_begin")
def test_pydataset_may_prepare_its_first_epoch_when_it_begins(runs: Any) -> None:
    class Prepared(Items):
        def __init__(self, x: Any, size: int) -> None:
            super().__init__(x, size)
            self.all, self.x, self.begun = x, None, 0

        def __len__(self) -> int:
            return math.ceil(len(self.all) / self.size)

        def on_epoch_begin(self) -> None:
            self.x = self.all
            self.begun += 1

    class OfPrepared(OneVarTrial):
        def data(self, x: Any) -> Any:
            made.append(Prepared(x, self.context.get_per_slot_batch_size()))
            return made[-1]

    made: list[Prepared] = []
    assert runs(OfPrepared)(3).losses == runs(OneVarTrial)(3).losses
    assert made[0].begun == 1


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 calls no on_epoch_begin")
def test_pydataset_begins_each_epoch_as_in_keras(runs: Any) -> None:
    """A resumed run begins the epochs before its own, too."""

    class Grows(Items):
        """Scales its targets by the number of epochs that have begun."""

        def __init__(self, x: Any, size: int) -> None:
            super().__init__(x, size)
            self.begun = 0

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x, y * (1 + 0.1 * self.begun)

        def on_epoch_begin(self) -> None:
            self.begun += 1

    class Growing(OneVarTrial):
        def data(self, x: Any) -> Any:
            return Grows(x, self.context.get_per_slot_batch_size())

        def build_model(self) -> Any:
            models.append(super().build_model())
            return models[-1]

    models: list[Any] = []
    run, schedule = runs(Growing), Schedule(report=Every(1), checkpoint=At({7}), policy="none")
    whole = run(15, schedule=schedule)
    resumed = run(15, schedule=schedule, checkpoint=whole.checkpoints[7])
    assert resumed.losses == {n: loss for n, loss in whole.losses.items() if n > 7}
    assert resumed.weight == whole.weight

    model, settings = models[0], OneVar()
    model.set_weights([np.zeros((1, 1))])
    xs = [x for batch in range(settings.batches_per_epoch) for x in settings.records(batch)]
    model.fit(Grows(np.array(xs, "float32").reshape(-1, 1), 2), epochs=3, shuffle=False, verbose=0)
    assert float(model.get_weights()[0].item()) == whole.weight


@pytest.mark.skipif(not KERAS_3, reason="Keras 2's sequences have no settings of their own")
def test_a_pydatasets_own_settings_are_kept(runs: Any) -> None:
    class Own(OneVarTrial):
        def data(self, x: Any) -> Any:
            items = Items(x, 2)
            items.workers = 2
            return items

    assert runs(Own)(6).losses == runs(OneVarTrial)(6).losses


WRITER = """
import sys
import tensorflow as tf
from det_core.data import DatasetCache
from det_keras.data import CachedDataset


def make():
    print("making", flush=True)
    return tf.data.Dataset.range(2000).map(lambda n: (n, tf.strings.as_string(n)))


cached = CachedDataset.open(DatasetCache(sys.argv[1]), "numbers", "1", make)
some = [text.decode() for _, text in cached.whole(1, 2).take(2).as_numpy_iterator()]
print(len(cached), sum(int(n) for n, _ in cached.whole(0, 1)), some)
"""


@pytest.mark.thorough
@pytest.mark.process
@again
def test_two_writers_of_a_cache_leave_one_that_is_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for writer in writers:
        out, err = writer.communicate(timeout=120)
        assert out.splitlines()[-1] == "2000 1999000 ['1', '3']", err
    assert [
        path.name for path in (tmp_path / "numbers").iterdir() if not path.name.startswith(".")
    ] == ["1"]
    assert list((tmp_path / "numbers").glob(".1.*-*")) == []
