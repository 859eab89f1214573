"""Streaming libraries, where installed, stopped at any batch: exact, or it is said why not.

`nox -s streams` has all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import IterableDataset

from det_testing import StreamCase, StreamContract
from det_torch import cached
from det_torch.data import DataLoader, TrainingStream, clean_shared_memory
from det_torch.data._libraries import _SEGMENT

RECORDS, BATCH = 50, 8
SOME = (1, 6, 7, 9)  # within an epoch, at its end, behind it
FEW = (6, 9)
ALONE = ((1, 1),)
READ_AGAIN = (
    "has no state_dict and load_state_dict: after a restart the batches of its epoch are read again"
    " and dropped"
)
OTHER_RANKS = "ranks, whose batches were of another size"

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]


class Lines(IterableDataset):
    def __iter__(self):
        return iter(range(RECORDS))


def contract(make_loader):
    return StreamContract(make_loader, TrainingStream, batches=18)


def told(cases: list[StreamCase], name: str, capsys) -> None:
    with capsys.disabled():
        print()
        for case in cases:
            print(f"{name:<20}{case}")


@pytest.mark.process
def test_dets_own_loader_of_a_cache(tmp_path, capsys):
    def make(workers, rank, size):
        dataset = cached("n", "1", lambda: range(RECORDS), directory=tmp_path)
        return DataLoader(dataset, BATCH // size, shuffle=True, num_workers=workers)

    told(
        cases := contract(make).check(workers=(0,))
        + contract(make).check(workers=(2,), stops=SOME),
        "det",
        capsys,
    )
    assert not any(case.differing or case.warnings for case in cases)


def test_an_iterable_dataset_is_read_again_with_a_word(capsys):
    told(
        cases := contract(lambda _, __, size: DataLoader(Lines(), BATCH // size)).check(
            workers=(0,)
        ),
        "iterable",
        capsys,
    )
    assert all(READ_AGAIN in case.warnings[0] or OTHER_RANKS in case.warnings[0] for case in cases)
    assert not any(case.differing for case in cases)


def test_one_that_differs_and_does_not_say_so_is_found():
    class Loses:
        """Keeps its place, but not how far the record is that it goes on from."""

        at = 0

        def __iter__(self):
            while self.at < 5:
                self.at += 1
                yield self.at
            self.at = 0

        def state_dict(self):
            return {"at": self.at + 1, "more": bytes(self.at)}

        def load_state_dict(self, state):
            self.at = state["at"]

    with pytest.raises(AssertionError, match=r"batches differ after stops at \[\(1, 0\)"):
        contract(lambda *_: Loses()).check(workers=(0,), ranks=ALONE)
    Loses.state_dict = lambda self: {"at": self.at, "more": bytes(100_001)}
    with pytest.raises(AssertionError, match=r"a place takes 100\d\d\d bytes, more than 100000"):
        contract(lambda *_: Loses()).check(workers=(0,), ranks=ALONE)


@pytest.mark.process
@pytest.mark.parametrize("own", [False, True])
def test_torchdata(own, capsys):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make(workers, rank, size):
        torch.manual_seed(7)  # as det does before a trial is made
        generator = torch.Generator().manual_seed(3) if own else None
        return stateful.StatefulDataLoader(
            range(RECORDS), BATCH // size, shuffle=True, num_workers=workers, generator=generator
        )

    check = contract(make).check
    told(
        cases := check(workers=(0,)) + check(workers=(2,), stops=SOME, ranks=ALONE),
        f"torchdata {own}",
        capsys,
    )
    assert not any(case.differing for case in cases)
    assert all(case.ranks != case.onto or not case.warnings for case in cases)
    assert all(case.ranks == case.onto or OTHER_RANKS in case.warnings[0] for case in cases)


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_grain(kind, capsys):
    grain = pytest.importorskip("grain.python")

    def make(workers, rank, size):
        if kind == "dataset":
            data = grain.MapDataset.range(RECORDS).seed(1).shuffle().batch(BATCH // size)
            options = grain.MultiprocessingOptions(num_workers=workers)
            return data.to_iter_dataset().mp_prefetch(options) if workers else data
        sampler = grain.IndexSampler(
            RECORDS, shuffle=True, seed=1, num_epochs=1, shard_options=grain.NoSharding()
        )
        batch = [grain.Batch(BATCH // size)]
        return grain.DataLoader(
            data_source=range(RECORDS), sampler=sampler, operations=batch, worker_count=workers
        )

    check = contract(make).check
    told(
        cases := check(workers=(0,), stops=SOME) + check(workers=(2,), stops=FEW, ranks=ALONE),
        f"grain {kind}",
        capsys,
    )
    assert not any(case.differing for case in cases)
    assert all(case.ranks != case.onto or not case.warnings for case in cases)


@pytest.mark.parametrize("buffered", [False, True])
def test_hugging_faces_datasets(buffered, capsys):
    datasets = pytest.importorskip("datasets")

    def make(workers, rank, size):
        data = datasets.Dataset.from_dict({"x": list(range(RECORDS))}).to_iterable_dataset(
            num_shards=4
        )
        data = (data.shuffle(seed=2, buffer_size=20) if buffered else data).batch(BATCH // size)
        if not workers:
            return data
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        return stateful.StatefulDataLoader(data, batch_size=None, num_workers=workers)

    check = contract(make).check
    more = [] if buffered else check(workers=(2,), stops=FEW, ranks=ALONE)
    told(cases := check(workers=(0,), stops=SOME) + more, f"datasets {buffered}", capsys)
    if buffered:
        assert all(
            "the buffer of Hugging Face's datasets" in case.warnings[0]
            or OTHER_RANKS in case.warnings[0]
            for case in cases
        )
    else:
        assert not any(case.differing for case in cases)
        assert all(case.ranks != case.onto or not case.warnings for case in cases)


def test_hugging_face_shards_by_node_are_not_dealt_again():
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")
    data = datasets.Dataset.from_dict({"x": list(range(RECORDS))}).to_iterable_dataset(num_shards=4)
    seen = []
    for rank in range(2):
        share = distributed.split_dataset_by_node(data, rank, 2)
        stream = TrainingStream(share.batch(5), seed=0, rank=rank, size=2)
        seen += [x for batch in islice(stream.batches(0), 5) for x in batch["x"]]
        assert stream.state(5)["shards"] == 2
        stream.close()
    assert sorted(seen) == list(range(RECORDS))


def test_data_that_knows_of_its_ranks_is_not_dealt_again():
    class World:
        world_size = 2

    class Share(Lines):
        distributed_env = World()

    stream = TrainingStream(DataLoader(Share(), 1), seed=0, rank=1, size=2)
    assert [int(batch) for batch in islice(stream.batches(0), 3)] == [0, 1, 2]
    assert stream.advice is None
    stream.close()


@pytest.mark.process
def test_webdataset_is_read_again_with_a_word(tmp_path, capsys):
    webdataset = pytest.importorskip("webdataset")
    for number in range(2):  # one for each worker
        with webdataset.TarWriter(str(tmp_path / f"{number}.tar")) as tar:
            for n in range(number, RECORDS, 2):
                tar.write({"__key__": f"{n:05}", "x.cls": n})

    def make(workers, rank, size):
        data = webdataset.WebDataset(
            str(tmp_path / "{0..1}.tar"), shardshuffle=False, nodesplitter=None
        ).decode()
        return webdataset.WebLoader(
            data.to_tuple("x.cls").batched(BATCH // size), batch_size=None, num_workers=workers
        )

    check = contract(make).check
    told(
        cases := check(workers=(0,), stops=SOME) + check(workers=(2,), stops=FEW, ranks=ALONE),
        "webdataset",
        capsys,
    )
    assert all(case.warnings for case in cases)
    assert not any(case.differing for case in cases)


def one(n):
    return n


def test_litdata(tmp_path, capsys):
    litdata = pytest.importorskip("litdata")
    litdata.optimize(
        fn=one,
        inputs=list(range(RECORDS)),
        output_dir=str(tmp_path / "lit"),
        chunk_size=16,
        num_workers=1,
    )

    def make(workers, rank, size):
        data = litdata.StreamingDataset(str(tmp_path / "lit"), shuffle=True, seed=4)
        return litdata.StreamingDataLoader(data, batch_size=BATCH // size, num_workers=workers)

    check = contract(make).check
    told(
        cases := check(workers=(0,), stops=SOME) + check(workers=(2,), stops=FEW, ranks=ALONE),
        "litdata",
        capsys,
    )
    assert all(case.warnings or not case.differing for case in cases)
    assert not any(case.differing for case in cases if case.ranks == case.onto)


MOSAIC = """
import json, os, sys, time
from itertools import islice
import streaming
from det_torch.data import TrainingStream, clean_shared_memory

place, state, first, count, workers = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if rank == 0:
    clean_shared_memory()
    print("there", json.dumps([[e.name, e.inode()] for e in os.scandir("/dev/shm")]), flush=True)
    open(f"{place}.clean-{first}", "w").close()
while not os.path.exists(f"{place}.clean-{first}"):
    time.sleep(0.05)
data = streaming.StreamingDataset(local=place, shuffle=True, shuffle_seed=3, batch_size=8 // size)
loader = streaming.StreamingDataLoader(data, batch_size=8 // size, num_workers=workers)
stream = TrainingStream(loader, seed=0, rank=rank, size=size)
if first:
    stream.restore(json.load(open(f"{state}-{rank}")))
for n, batch in enumerate(islice(stream.batches(first), count), first + 1):
    print(batch["x"].tolist(), flush=True)
json.dump(stream.state(n), open(f"{state}-{rank}", "w"))
print("warned", stream.warning or stream.advice, flush=True)
if count < 20:
    time.sleep(100)
"""


def mosaic(place: Path, first: int, count: int, workers: int, ranks: int) -> list[list[str]]:
    """Return what each rank prints.

    It is killed when it has read so many batches, or ends if they are 20.
    """
    said = [str(place), str(place.with_suffix(".json")), *map(str, (first, count, workers))]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    meet = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    with contextlib.ExitStack() as stack:
        started = []
        for rank in range(ranks):
            own = {**meet, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            process = subprocess.Popen(
                [sys.executable, "-c", MOSAIC, *said],
                env={**os.environ, **own},
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            started.append(stack.enter_context(process))
            stack.callback(end, process)
        lines: list[list[str]] = []
        for process in started:
            assert process.stdout is not None
            lines.append([])
            for line in process.stdout:
                lines[-1].append(line.strip())
                if line.startswith("warned") and count < 20:
                    break
        for process in started:
            if count < 20:
                end(process)
            else:
                process.wait(60)
    return lines


def end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def segments() -> set[tuple[str, int]]:
    """Return what MosaicML's streaming has in shared memory."""
    return {
        (entry.name, entry.inode())
        for entry in os.scandir("/dev/shm")
        if _SEGMENT.fullmatch(entry.name)
    }


@pytest.mark.parametrize(("workers", "ranks"), [(0, 1), (2, 1), (0, 2)])
def test_mosaics_streaming_goes_on_where_it_was_killed(tmp_path, workers, ranks):
    streaming = pytest.importorskip("streaming", exc_type=Exception)
    place = tmp_path / "mds"
    with streaming.MDSWriter(out=str(place), columns={"x": "int"}) as writer:
        for n in range(RECORDS):
            writer.write({"x": n})

    def batches(lines: list[list[str]]) -> list[list[str]]:
        return [[line for line in each if line.startswith("[")] for each in lines]

    whole = batches(mosaic(place, 0, 20, workers, ranks))
    seen = [n for each in whole for batch in each[:6] for n in json.loads(batch)]
    assert len(seen) == len(set(seen)) == 48  # each rank has a share of its own
    assert [len(each) for each in whole] == [20] * ranks
    (place.parent / "mds.clean-0").unlink()
    before = segments()
    assert batches(mosaic(place, 0, 5, workers, ranks)) == [each[:5] for each in whole]
    left = segments() - before  # unless another run on this machine was first
    second = mosaic(place, 5, 4, workers, ranks)
    there = {tuple(each) for each in json.loads(second[0][0].removeprefix("there "))}
    assert not left & there
    assert batches(second) == [each[5:9] for each in whole]
    third = mosaic(place, 9, 20, workers, ranks)
    assert [each[:11] for each in batches(third)] == [each[9:20] for each in whole]
    assert [each[-1] for each in third] == ["warned None"] * ranks


def test_a_loader_that_gets_and_sets_its_place_goes_on_from_it():
    class Placed:
        """Its own iterator, over and over."""

        at = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            return self.at

        def get_state(self):
            return {"at": self.at}

        def set_state(self, state):
            self.at = state["at"]

    (case,) = contract(lambda *_: Placed()).check(workers=(0,), ranks=ALONE)
    assert (case.differing, case.warnings) == ([], [])
    assert str(case).startswith("0 workers,      1 ranks: exact, state at most")


def test_what_nobody_has_open_is_removed_from_shared_memory(tmp_path):
    for name in ("000000_locals", "000001_barrier", "000002_resume", "mine"):
        (tmp_path / name).write_bytes(b"x")
    with (tmp_path / "000001_barrier").open():
        assert clean_shared_memory(tmp_path) == ["000000_locals", "000002_resume"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001_barrier", "mine"]
    assert clean_shared_memory(tmp_path / "none") == []


@pytest.mark.slow
@pytest.mark.parametrize("library", ["det", "torchdata"])
def test_resume_skips_nine_tenths_of_a_million_records_in_2_s(library, capsys):
    def make():
        if library == "det":
            return DataLoader(range(10**6), 100, shuffle=True)
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        return stateful.StatefulDataLoader(range(10**6), 100, shuffle=True)

    stream = TrainingStream(make(), seed=1, rank=0, size=1)
    *_, _ = islice(stream.batches(0), 9000)
    state = stream.state(9000)
    again = TrainingStream(make(), seed=1, rank=0, size=1)
    began = time.process_time()  # other tests may be running
    again.restore(state)
    next(again.batches(9000))
    took = time.process_time() - began
    with capsys.disabled():
        print(f"\n{library}: batch 9000 of 10000 after {took:.2f} s")
    assert took < 2
    stream.close()
    again.close()
