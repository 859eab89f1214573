"""Reading in worker processes: what is drawn there at random, and what is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

from det_torch.data import DataLoader, TrainingStream, validation_batches

pytestmark = pytest.mark.process


class Augmented(Dataset):
    """Records with a random number of each kind in them."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


class AugmentedTogether(Augmented):
    def __getitems__(self, indices):
        noise = np.random.rand()
        return [self[index] + noise for index in indices]


def noisy(records):
    batch = torch.stack(records)
    return batch + torch.rand(batch.shape, dtype=batch.dtype)


def take(loader, done, count, **where):
    stream = TrainingStream(loader, **{"seed": 5, "rank": 0, "size": 1, **where})
    batches = list(islice(stream.batches(done), count))
    stream.close()
    return batches


def equal(left, right):
    return len(left) == len(right) and all(
        torch.equal(a, b) for a, b in zip(left, right, strict=True)
    )


def loader(workers, dataset=None, **options):
    dataset = dataset or Augmented()
    return DataLoader(dataset, 4, shuffle=True, num_workers=workers, collate_fn=noisy, **options)


@pytest.mark.parametrize(
    "dataset", [Augmented(), AugmentedTogether()], ids=["one by one", "together"]
)
def test_augmentation_is_equal_after_a_resume_with_any_workers(dataset):
    whole = take(loader(2, dataset), 0, 20)
    for done in (1, 5, 6, 13):
        assert equal(take(loader(2, dataset), done, 20 - done), whole[done:])
    assert equal(take(loader(1, dataset), 3, 17), whole[3:])
    assert equal(take(loader(2, dataset, prefetch_factor=1), 3, 4), whole[3:7])


def test_no_two_ranks_and_no_two_epochs_draw_the_same():
    ranks = [take(loader(1), 0, 6, rank=rank, size=2) for rank in (0, 1)]
    numbers = torch.cat([batch[:, 1:] for batches in ranks for batch in batches])
    assert len(numbers.flatten().unique()) == numbers.numel()
    assert equal(take(loader(1), 2, 4, rank=1, size=2), ranks[1][2:])


def test_another_seed_draws_otherwise():
    assert not equal(take(loader(1), 0, 3), take(loader(1), 0, 3, seed=6))


def test_without_workers_the_training_process_state_decides():
    stream = TrainingStream(loader(0), seed=5, rank=0, size=1)
    batches = stream.batches(0)
    for batch in islice(batches, 7):
        assert batch.shape[1] == 4
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    rest = list(islice(batches, 5))
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])
    assert equal(take(loader(0), 7, 5), rest)


def draws():
    return random.random(), np.random.rand(), torch.rand(()).item()


def seeded():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


class Ten(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("kind", [DataLoader, TorchDataLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_reading_leaves_the_training_generators_unchanged(kind, workers):
    seeded()
    expected = draws()
    seeded()
    data = kind(Ten(), 2, shuffle=True, num_workers=workers)
    list(islice(TrainingStream(data, seed=0, rank=0, size=1).batches(3), 12))
    list(validation_batches(data, rank=0, size=1))
    assert draws() == expected


def see_dataset(worker):
    get_worker_info().dataset.touched = worker + 10


class Touched(Ten):
    touched = 0

    def __getitem__(self, index):
        assert type(get_worker_info().dataset) is Touched
        return self.touched


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_init_fn_sees_the_users_own_dataset(context):
    data = TorchDataLoader(
        Touched(), 2, num_workers=1, worker_init_fn=see_dataset, multiprocessing_context=context
    )
    (batch,) = take(data, 0, 1)
    assert batch.tolist() == [10, 10]


def test_single_records_are_seeded_too():
    data = TorchDataLoader(Augmented(), batch_size=None, num_workers=2)
    whole = take(data, 0, 8)
    assert equal(take(data, 5, 3), whole[5:])


def children():
    """Return the ids of this process's children, whichever of its threads started them."""
    pids = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids.update((task / "children").read_text().split())
    return pids


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def more_than(before):
    """Return what there is now beyond `before`; what other tests started may have ended since."""
    now = children() - before[0], descriptors() - before[1], threading.active_count() - before[2]
    return [each for each in (now[0], max(0, now[1]), max(0, now[2])) if each]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at Linux's /proc")
def test_nothing_is_left_behind_after_close():
    take(loader(2), 0, 1)  # what torch keeps open for good is open now
    before = children(), descriptors(), threading.active_count()
    for _ in range(2):
        stream = TrainingStream(loader(2), seed=0, rank=0, size=1)
        batches = stream.batches(0)
        next(batches)
        assert len(children() - before[0]) == 2
        stream.close()
        del batches
        deadline = time.monotonic() + 5  # the threads that feed torch's queues end by themselves
        while (left := more_than(before)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left
    stream.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at Linux's /proc")
def test_workers_outlive_epochs_and_a_second_start_replaces_them():
    before = children()
    stream = TrainingStream(loader(1), seed=0, rank=0, size=1)
    batches = stream.batches(0)
    first = children() - before
    list(islice(batches, 20))
    assert children() - before == first
    stream.batches(2)
    assert len(children() - before) == 1
    assert children() - before != first
    stream.close()
    assert children() <= before


class Failing(Ten):
    def __getitem__(self, index):
        raise KeyError(f"record {index}")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_dataset_reaches_the_training(workers):
    stream = TrainingStream(DataLoader(Failing(), num_workers=workers), seed=0, rank=0, size=1)
    with pytest.raises(KeyError, match="record 0"):
        next(stream.batches(0))
    stream.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_validation_draws_the_same_every_time_and_leaves_nothing(persistent):
    before = children()
    batches = validation_batches(loader(2, persistent_workers=persistent), rank=0, size=1, seed=3)
    first = list(batches)
    kept = children() - before
    assert len(kept) == (2 if persistent else 0)
    assert equal(list(batches), first)
    assert children() - before == kept
    next(iter(batches))
    batches.close()
    assert children() <= before
    assert equal(list(validation_batches(loader(1), rank=1, size=2, seed=3)), first[1::2])
