"""Training data that is no map-style dataset.

Stateful loaders, iterable datasets, lists, generators.
"""

from __future__ import annotations

import itertools
import json
import random
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, get_worker_info

from det_core.errors import TrialError
from det_torch.data import DataLoader, TrainingStream


def open_stream(loader, rank=0, size=1, seed=0):
    return TrainingStream(loader, seed=seed, rank=rank, size=size)


def plain(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def take(loader, done, count, state=None, **where):
    stream = open_stream(loader, **where)
    stream.restore(state)
    batches = [plain(batch) for batch in islice(stream.batches(done), count)]
    stream.close()
    return batches


def state_after(loader, done, **where):
    stream = open_stream(loader, **where)
    list(islice(stream.batches(0), done))
    state = stream.state(done)
    stream.close()
    return state


class Loader:
    """A loader of seven batches that knows its position and counts what it reads."""

    def __init__(self):
        self.at = self.epoch = 0
        self.read = 0

    def __iter__(self):
        while self.at < 7:
            self.at += 1
            self.read += 1
            yield (self.epoch, self.at - 1)
        self.at, self.epoch = 0, self.epoch + 1

    def __len__(self):
        return 7

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


@pytest.mark.parametrize("done", [1, 6, 7, 8, 14, 20])
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_stateful_loader_resumes_without_reading_earlier_batches(done, rank, size):
    whole = take(Loader(), 0, 30, rank=rank, size=size)
    chiefs = json.loads(json.dumps(state_after(Loader(), done, rank=0, size=size)))
    loader = Loader()
    assert take(loader, done, 5, chiefs, rank=rank, size=size) == whole[done : done + 5]
    assert loader.read <= 5 * size + 2 * size
    assert open_stream(loader).exact
    assert open_stream(loader, size=2).batches_per_epoch == 4


def test_a_state_that_was_just_restored_is_the_state():
    state = state_after(Loader(), 3)
    stream = open_stream(Loader())
    assert stream.state(0) is None
    stream.restore(state)
    assert stream.state(3) == state
    stream.batches(3)
    assert stream.state(3) == state


def test_stateful_loader_without_its_state_reads_to_the_position():
    assert take(Loader(), 9, 3) == take(Loader(), 0, 12)[9:]


def test_a_stateful_loader_that_yields_nothing_is_refused():
    loader = Loader()
    loader.__class__ = type("Nothing", (Loader,), {"__iter__": lambda self: iter(())})
    with pytest.raises(TrialError) as error:
        take(loader, 0, 1)
    assert (
        str(error.value)
        == "the training data loader is empty: this Nothing yields nothing in epoch 0; give it at"
        " least one batch"
    )


def saved_and_loaded(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index * index


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [2, 4, 7])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_stateful_loader_is_resumed_by_its_state(workers, done, tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        return stateful.StatefulDataLoader(Squares(), 3, shuffle=True, num_workers=workers)

    torch.manual_seed(1)
    whole = take(loader(), 0, 12)
    torch.manual_seed(1)
    state = saved_and_loaded(state_after(loader(), done), tmp_path / "state.pt")
    torch.manual_seed(2)  # its generator is seeded when it is made, and its state says otherwise
    data = loader()
    before = torch.get_rng_state()
    assert take(data, done, 12 - done, state) == whole[done:]
    assert torch.equal(torch.get_rng_state(), before)


class Shuffled(Loader):
    """Shuffles each epoch by a generator of its own.

    It leaves its state out, as torchdata's does.
    """

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.order, self.restored = [], False

    def __iter__(self):
        if not self.restored:
            self.order = torch.randperm(7, generator=self.generator).tolist()
        self.restored = False
        for batch in super().__iter__():
            yield self.order[batch[1]]

    def state_dict(self):
        return {**super().state_dict(), "order": self.order}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.order, self.restored = state["order"], True


@pytest.mark.parametrize("done", [1, 6, 9, 15])
def test_stateful_loaders_generator_decides_later_epochs_too(done, tmp_path):
    whole = take(Shuffled(), 0, 30)
    state = saved_and_loaded(state_after(Shuffled(), done), tmp_path / "state.pt")
    assert take(Shuffled(), done, 30 - done, state) == whole[done:]


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [2, 4, 7])
@pytest.mark.parametrize("own", ["generator", "sampler"])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdata_loader_keeps_the_users_generator(workers, done, own, tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        generator = torch.Generator().manual_seed(3)
        if own == "generator":
            return stateful.StatefulDataLoader(
                Squares(), 3, shuffle=True, num_workers=workers, generator=generator
            )
        sampler = torch.utils.data.RandomSampler(Squares(), generator=generator)
        return stateful.StatefulDataLoader(Squares(), 3, sampler=sampler, num_workers=workers)

    whole = take(loader(), 0, 14)
    state = saved_and_loaded(state_after(loader(), done), tmp_path / "state.pt")
    assert take(loader(), done, 14 - done, state) == whole[done:]


class Stream(IterableDataset):
    """Records 0 to n - 1, split over workers, in an order that the global generators decide."""

    def __init__(self, n):
        self.n = n
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        records = list(range(first, self.n, step))
        random.shuffle(records)
        yield from records


@pytest.mark.process
@pytest.mark.parametrize("kind", [DataLoader, TorchDataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_is_read_again_up_to_the_position(kind, workers):
    def loader():
        return kind(Stream(11), 2, num_workers=workers)

    whole = take(loader(), 0, 20)
    assert sorted(itertools.chain(*whole[:6])) == list(range(11))
    assert whole[:6] != whole[6:12]
    for done in (4, 6, 13):
        assert take(loader(), done, 3, state_after(loader(), done)) == whole[done : done + 3]
    assert take(loader(), 13, 3) == whole[13:16]
    assert take(loader(), 2, 3, rank=1, size=2) == whole[5:11:2]


def test_the_epochs_before_the_position_are_not_read_again():
    data = Stream(6)
    state = state_after(TorchDataLoader(Stream(6), 2), 7)
    take(TorchDataLoader(data, 2), 7, 1, state)
    assert data.epochs == [2]


def test_iterable_dataset_without_state_is_reported_inexact():
    stream = open_stream(TorchDataLoader(Stream(6), 2))
    assert not stream.exact
    assert (
        stream.warning
        == "the training data (Stream) has no state_dict and load_state_dict: after a restart the"
        " batches of its epoch are read again and dropped, and what it draws at random may"
        " differ"
    )
    assert stream.batches_per_epoch is None


class Positioned(IterableDataset):
    def __init__(self, n=7):
        self.n, self.at, self.read = n, 0, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            self.read += 1
            yield self.at - 1
        self.at = 0

    def __len__(self):
        return self.n

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("n", [6, 7])
@pytest.mark.parametrize("done", [1, 2, 3, 4, 5, 8])
def test_iterable_dataset_state_in_this_process_is_used(n, done):
    whole = take(TorchDataLoader(Positioned(n), 2), 0, 12)
    state = state_after(TorchDataLoader(Positioned(n), 2), done)
    data = Positioned(n)
    stream = open_stream(TorchDataLoader(data, 2))
    assert stream.exact
    assert stream.batches_per_epoch == -(-n // 2)
    stream.restore(state)
    assert [b.tolist() for b in islice(stream.batches(done), 2)] == whole[done : done + 2]
    assert data.read <= 4


def test_a_list_of_batches_is_exact_at_any_position():
    stream = open_stream(["a", "b", "c"], rank=1, size=2)
    assert list(islice(stream.batches(10**9), 3)) == ["a", "c", "b"]
    assert stream.exact
    assert stream.state(3) is None
    assert stream.batches_per_epoch == 2


def test_an_empty_list_is_refused():
    with pytest.raises(TrialError) as error:
        open_stream([])
    assert (
        str(error.value)
        == "the training data loader is empty: it is a list of length 0; give it at least one batch"
    )


class Again:
    def __iter__(self):
        return (i for i in range(5))


def test_any_iterable_is_read_again_for_every_epoch():
    assert take(Again(), 0, 12) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert take(Again(), 8, 3) == [3, 4, 0]
    assert take(Again(), 8, 3, state_after(Again(), 8)) == [3, 4, 0]
    assert take(Again(), 1, 3, rank=2, size=3) == [0, 3, 1]


def test_an_endless_generator_is_skipped_by_reading():
    assert take(itertools.count(), 5, 2) == [5, 6]


def test_a_generator_that_ends_cannot_be_read_again():
    with pytest.raises(TrialError) as error:
        take((i for i in range(3)), 0, 4)
    assert (
        str(error.value)
        == "the training data loader is a generator that ended after 3 batches and cannot be read"
        " again; give a list, a DataLoader, or an object whose __iter__ starts again"
    )


def test_a_generator_that_yields_nothing_is_empty():
    with pytest.raises(TrialError, match="is empty: this generator yields nothing in epoch 0"):
        take((i for i in ()), 0, 1)


def test_what_is_no_iterable_is_refused():
    with pytest.raises(TrialError) as error:
        open_stream(3)
    assert (
        str(error.value)
        == "the training data loader is 3; give a DataLoader or an iterable of batches"
    )


def test_a_subclass_that_iterates_in_its_own_way_keeps_it():
    class Doubled(TorchDataLoader):
        def __iter__(self):
            return (batch * 2 for batch in super().__iter__())

    data = Doubled(range(6), batch_size=2, shuffle=True)
    torch.manual_seed(1)
    whole = take(data, 0, 9)
    torch.manual_seed(2)
    assert sorted(itertools.chain(*whole[:3])) == [0, 2, 4, 6, 8, 10]
    assert take(data, 4, 5, state_after(data, 4)) == whole[4:]
    assert open_stream(data).batches_per_epoch == 3


def test_closing_ends_a_generator():
    ended = []

    def batches():
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    class Source:
        def __iter__(self):
            return batches()

    stream = open_stream(Source())
    next(stream.batches(0))
    stream.close()
    assert ended == [True]


def test_state_of_another_loader_kind_is_ignored_with_a_warning():
    for loader, state in ((Again(), state_after(Loader(), 2)), (Loader(), state_after(Again(), 2))):
        stream = open_stream(loader)
        stream.restore(state)
        assert (
            stream.warning
            == "the checkpoint was written with another kind of training data loader, so that some"
            " records may be repeated and some missed; resume with the loader that it was"
            " written with"
        )
        assert not stream.exact


def test_a_stateful_loader_without_its_state_is_not_exact():
    stream = open_stream(Loader(), rank=1, size=2)
    stream.batches(4)
    assert (
        stream.warning
        == "the checkpoint holds no state of the training data loader, so that the first 9 batches"
        " are read again and dropped"
    )


def test_a_stateful_loader_goes_on_when_it_is_started_again():
    whole = take(Loader(), 0, 12)
    stream = open_stream(Loader())
    assert list(islice(stream.batches(0), 5)) == whole[:5]
    assert list(islice(stream.batches(5), 7)) == whole[5:]
    assert stream.exact


def test_a_stateful_loader_cannot_go_back_without_a_state():
    stream = open_stream(Loader())
    list(islice(stream.batches(0), 5))
    with pytest.raises(TrialError) as error:
        stream.batches(2)
    assert (
        str(error.value)
        == "the training data loader has given 5 batches and cannot go back to batch 2; "
        "resume from a checkpoint that holds its state"
    )


def test_other_data_can_be_started_again_anywhere():
    for data in (
        Again(),
        TorchDataLoader(Stream(11), 2),
        DataLoader(range(7), 2, shuffle=True),
        [1, 2, 3],
    ):
        stream = open_stream(data)
        whole = [plain(b) for b in islice(stream.batches(0), 15)]
        for done in (13, 2, 6):
            assert [plain(b) for b in islice(stream.batches(done), 2)] == whole[done : done + 2]


class Announced(Positioned):
    """Records that tell the epoch, as data sets do that shuffle by it."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (100 * self.epoch + record for record in super().__iter__())


@pytest.mark.parametrize("done", [3, 4, 5])
def test_dataset_with_a_short_last_batch_begins_the_next_epoch(done):
    whole = take(TorchDataLoader(Announced(7), 2), 0, 9)
    assert whole[3:5] == [[6], [100, 101]]
    state = state_after(TorchDataLoader(Announced(7), 2), done)
    assert take(TorchDataLoader(Announced(7), 2), done, 9 - done, state) == whole[done:]
