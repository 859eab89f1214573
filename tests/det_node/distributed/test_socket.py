from __future__ import annotations

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from det_core import DetError, Ranks
from det_core.ranks.backend import RankLost
from det_node.backends import RankError, Socket
from det_node.wire import KeyRefused

pytestmark = pytest.mark.process

# What the verbs say


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_verb_says_the_same_on_every_rank(ranks, kit, size):
    def work(backend):
        rank = backend.ranks.rank
        backend.barrier()
        return [
            backend.allgather({"rank": rank}),
            backend.gather(rank * 10),
            backend.broadcast(f"from {rank}"),
            backend.agree(False),
            backend.agree(rank == size - 1),
            backend.agree(rank == 0),
        ]

    everyone = [{"rank": n} for n in range(size)]
    for rank, answer in enumerate(ranks(work, places=kit.on_hosts(size))):
        tens = [n * 10 for n in range(size)] if rank == 0 else None
        assert answer == [everyone, tens, "from 0", False, True, True]


def test_values_of_any_kind_and_size_arrive_as_they_were(ranks):
    values = [
        None,
        "",
        b"",
        float("nan"),
        {"a": [1, (2, {3})]},
        b"x" * 10_000_000,
        range(5),
        2**100,
    ]

    def work(backend):
        return [repr(backend.allgather(value)) for value in values], [
            repr(backend.broadcast(v)) for v in values
        ]

    expected = [repr([v, v]) for v in values], [repr(v) for v in values]
    assert ranks(work) == [expected, expected]


def test_arrays_arrive_whole_writable_and_of_every_layout(ranks):
    big = np.arange(1_000_000, dtype=np.float64)
    arrays = [
        big,
        np.array(3.5),
        np.zeros((0, 4)),
        big.reshape(1000, 1000).T,
        big[::7],
        np.asfortranarray(np.eye(3)),
    ]

    def work(backend):
        for array in arrays:
            for got in (*backend.allgather(array), backend.broadcast(array)):
                np.testing.assert_array_equal(got, array)
            received = backend.allgather([array, array])[1 - backend.ranks.rank][0]
            if received.size and received.ndim:
                received += 1
        return True

    assert ranks(work) == [True, True]


def test_ranks_on_several_hosts_have_local_verbs_of_their_own(ranks, kit):
    """Only the second host calls its local verbs.

    A star through the chief of the run could not bear that.
    """

    def work(backend):
        mine = backend.ranks
        said = []
        if mine.cross_rank == 1:
            said = [
                backend.allgather_local(mine.rank),
                backend.gather_local(mine.rank),
                backend.broadcast_local(mine.rank),
            ]
        return said, backend.allgather(mine.rank)

    first, second, third, fourth, fifth = ranks(work, places=kit.on_hosts(2, 2, 1))
    everyone = [0, 1, 2, 3, 4]
    assert first == second == fifth == ([], everyone)
    assert third == ([[2, 3], [2, 3], 2], everyone)
    assert fourth == ([[2, 3], None, 2], everyone)


def test_local_verbs_on_one_host_are_those_of_the_run(ranks):
    def work(backend):
        rank = backend.ranks.rank
        return (
            backend.allgather_local(rank),
            backend.gather_local(rank),
            backend.broadcast_local(rank),
        )

    assert ranks(work) == [([0, 1], [0, 1], 0), ([0, 1], None, 0)]


def test_one_rank_opens_no_port():
    before, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    backend = Socket(Ranks(), chief=("127.0.0.1", 1), key=bytes(32))
    backend.init()
    backend.init()
    assert backend.allgather("x") == ["x"]
    assert backend.broadcast_local("x") == "x"
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (before, files)
    backend.shutdown()


def test_ranks_that_have_not_met_say_so():
    backend = Socket(Ranks(), chief=("127.0.0.1", 1), key=bytes(32))
    for call in (backend.barrier, lambda: backend.gather_local(1)):
        with pytest.raises(RuntimeError, match=r"the ranks have not met; call init\(\) first"):
            call()


# Meeting


def test_a_rank_that_does_not_come_is_named(ranks, kit):
    places = kit.on_hosts(4)
    before = time.monotonic()
    first, second = ranks(lambda backend: None, places=[places[0], places[2]], start_timeout=0.4)
    assert time.monotonic() - before < 5
    for error in (first, second):
        assert isinstance(error, RankLost)
        assert error.rank == 1
        assert "ranks 1 and 3 of 4 did not come to 127.0.0.1:" in str(error)
        assert "within 0.4 s; see why it did not start" in str(error)


def test_a_chief_that_does_not_come_is_named(ranks, kit):
    (error,) = ranks(lambda backend: None, places=kit.on_hosts(2)[1:], start_timeout=0.3)
    assert isinstance(error, RankLost)
    assert error.rank == 0
    assert "rank 0 was not reached within 0.3 s: cannot connect to 127.0.0.1:" in str(error)


def test_a_chief_may_come_late(kit):
    port, places = kit.free_port(), kit.on_hosts(2)

    def one(place, delay):
        time.sleep(delay)
        backend = Socket(place, chief=("127.0.0.1", port), key=kit.KEY)
        backend.init()
        try:
            return backend.allgather(place.rank)
        finally:
            backend.shutdown()

    assert kit.as_threads(lambda: one(places[0], 0.4), lambda: one(places[1], 0)) == [
        [0, 1],
        [0, 1],
    ]


def test_rank_with_another_key_is_refused_and_reported_lost(ranks):
    first, second = ranks(lambda backend: None, keys={1: bytes(32)}, start_timeout=0.5)
    assert isinstance(second, KeyRefused)
    assert isinstance(first, RankLost)
    assert first.rank == 1


def test_garbage_at_the_chief_delays_nobody(kit):
    port, places = kit.free_port(), kit.on_hosts(2)

    def noise():
        for _ in range(50):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                    sock.sendall(b"\x80\x04garbage" * 50)
            except OSError:
                time.sleep(0.01)

    def one(place):
        backend = Socket(place, chief=("127.0.0.1", port), key=kit.KEY, start_timeout=20)
        backend.init()
        try:
            return backend.allgather(place.rank)
        finally:
            backend.shutdown()

    done = kit.as_threads(
        noise, lambda: one(places[0]), lambda: (time.sleep(0.2), one(places[1]))[1]
    )
    assert done[1:] == [[0, 1], [0, 1]]


def test_a_rank_that_is_started_twice_is_told(ranks, kit):
    places = kit.on_hosts(3)
    results = ranks(lambda backend: None, places=[places[0], places[1], places[1]], start_timeout=1)
    assert isinstance(results[0], RankLost)
    assert [str(r) for r in results[1:] if isinstance(r, RankError)] == ["rank 1 was started twice"]


def test_a_rank_of_a_run_of_another_size_is_told(ranks, kit):
    odd = kit.on_hosts(5)[1]
    first, second = ranks(lambda backend: None, places=[kit.on_hosts(2)[0], odd], start_timeout=1)
    assert isinstance(first, RankLost)
    assert str(second) == "rank 1 was started as one of 5, but the chief as one of 2"


def test_a_port_that_is_taken_is_a_sentence(ranks, kit):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (error,) = ranks(lambda backend: None, places=kit.on_hosts(2)[:1], port=port)
    assert isinstance(error, DetError)
    assert (
        str(error)
        == f"cannot listen on 127.0.0.1:{port} (Address already in use); give an address of this"
        " host and a free port, or set DET_BIND_ADDRESS to such an address"
    )


def test_no_port_is_open_once_the_ranks_have_met(ranks, kit):
    port = kit.free_port()

    def work(backend):
        backend.barrier()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        backend.barrier()
        return True

    assert ranks(work, port=port) == [True, True]


# Failing


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_rank_that_leaves_is_named_by_all_the_others(ranks, kit, left):
    def work(backend):
        backend.barrier()
        if backend.ranks.rank == left:
            return None
        backend.allgather("still here")
        return None

    results = ranks(work, places=kit.on_hosts(3))
    assert results[left] is None
    for rank in {0, 1, 2} - {left}:
        assert isinstance(results[rank], RankLost), results[rank]
        assert results[rank].rank == left
        assert f"rank {left} is gone, as rank " in str(results[rank])


def test_a_rank_that_is_late_is_named_by_all_the_others(ranks, kit):
    def work(backend):
        backend.barrier()
        if backend.ranks.rank == 2:
            time.sleep(1.0)
        return backend.allgather(0)

    results = ranks(work, places=kit.on_hosts(3), timeout=0.3)
    assert all(isinstance(error, RankLost) and error.rank == 2 for error in results), results
    assert (
        str(results[1])
        == "rank 2 did not call allgather within 0.3 s of rank 0; see what it is doing, or give a"
        " longer timeout"
    )


def test_ranks_out_of_step_are_told_at_once(ranks):
    def work(backend):
        return backend.barrier() if backend.ranks.rank else backend.allgather(1)

    results = ranks(work)
    message = (
        "rank 1 called barrier where rank 0 called allgather; call the same collectives in the same"
        " order on every rank"
    )
    assert [(type(error), str(error)) for error in results] == [(RankError, message)] * 2


def test_a_failure_is_final(ranks):
    def work(backend):
        if backend.ranks.rank == 1:
            return None
        with pytest.raises(RankLost):
            backend.barrier()
        with pytest.raises(RankLost, match="rank 1 is gone"):
            backend.broadcast(1)
        backend.shutdown()
        with pytest.raises(RankLost, match="rank 1 is gone"):
            backend.barrier()
        return True

    assert ranks(work) == [True, None]


def test_a_backend_that_is_shut_down_says_so(ranks):
    def work(backend):
        backend.barrier()
        backend.shutdown()
        backend.shutdown()
        with pytest.raises(RankError, match="this rank has left the others"):
            backend.agree(True)
        return True

    assert ranks(work) == [True, True]


def test_unpicklable_object_raises_and_breaks_nothing(ranks):
    def work(backend):
        if backend.ranks.rank == 1:
            with pytest.raises(Exception, match="pickle"):
                backend.allgather(threading.Lock())
        return backend.allgather(backend.ranks.rank)

    assert ranks(work) == [[0, 1], [0, 1]]


def test_nothing_is_left_after_shutdown(ranks, kit):
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    ranks(lambda backend: backend.allgather(1), places=kit.on_hosts(2, 2))
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "verb", ["barrier()", "allgather(0)", "gather(0)", "broadcast(0)", "agree(True)"]
)
def test_a_rank_that_is_killed_is_named_within_seconds(processes, victim, verb):
    survivor = 1 - victim
    processes.start(f"""
        c = context()
        c.barrier()
        say("met")
        if rank == {victim}:
            time.sleep(60)
        try:
            while True:
                c.{verb}
                time.sleep(0.001)
        except RankLost as error:
            say([error.rank, str(error)])
        """)
    assert processes.hear(0) == processes.hear(1) == "met"
    time.sleep(0.05)
    processes.started[victim].send_signal(signal.SIGKILL)
    before = time.monotonic()
    rank, message = processes.hear(survivor)
    assert time.monotonic() - before < 3
    assert rank == victim
    assert message.startswith(f"rank {victim} is gone, as rank {survivor} found in ")
    assert processes.started[survivor].wait(timeout=10) == 0


def test_agreeing_is_quick(processes):
    """Measured at 50 to 70 µs; the limit leaves room for a busy machine."""
    processes.start("""
        c = context()
        for _ in range(200):
            c.agree(False)
        times = []
        for _ in range(2000):
            start = time.perf_counter()
            c.agree(False)
            times.append(time.perf_counter() - start)
        say(sorted(times)[len(times) // 2])
        """)
    medians = [said[-1] for said in processes.finish()]
    assert max(medians) < 1e-3, medians
