"""Whose turn it is for a slot is woken, and nobody else."""

from __future__ import annotations

import errno
import queue
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from det_driver.store import Store, Wakeups
from det_driver.store._wakeups import COMMAND, SLOTS, wake

SECONDS = 30.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listening(store: Store, id: int, stack: ExitStack) -> queue.SimpleQueue[bytes]:
    woken: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    wakeups = stack.enter_context(closing(Wakeups(store.home, id, woken.put)))
    assert wakeups.work
    return woken


def test_only_the_driver_is_woken_that_gets_the_slot(store: Store, stack: ExitStack) -> None:
    ids = [store.experiments.create(name="x", config="{}").id for _ in range(3)]
    held = store.slots.lease(ids[0], 1, ["cpu:0"])
    assert held is not None
    waiting = {id: stack.enter_context(Store(store.home)) for id in ids[1:]}
    woken = {id: listening(store, id, stack) for id in ids[1:]}
    for id, each in waiting.items():
        assert each.slots.lease(id, 1, ["cpu:0"]) is None
    store.slots.release(held)
    assert woken[ids[1]].get(timeout=SECONDS) == SLOTS
    first = waiting[ids[1]].slots.lease(ids[1], 1, ["cpu:0"])
    assert first is not None
    waiting[ids[1]].slots.release(first)
    assert woken[ids[2]].get(timeout=SECONDS) == SLOTS
    assert woken[ids[1]].empty()


def test_a_driver_is_woken_for_a_command(store: Store, stack: ExitStack) -> None:
    id = store.experiments.create(name="x", config="{}").id
    woken = listening(store, id, stack)
    store.commands.send(id, "pause")
    assert woken.get(timeout=SECONDS) == COMMAND


def test_an_empty_message_does_not_end_the_wake_ups(store: Store, stack: ExitStack) -> None:
    woken = listening(store, 7, stack)
    wake(store.home, [7], b"")
    assert woken.get(timeout=SECONDS) == b""
    wake(store.home, [7])
    assert woken.get(timeout=SECONDS) == SLOTS


def test_nothing_is_woken_where_no_file_can_be_opened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is committed, and the driver looks by itself."""

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "socket", fails)
    wake(store.home, [7])
    with closing(Wakeups(store.home, 7, print)) as wakeups:
        assert not wakeups.work


def test_a_driver_of_the_same_home_by_another_path_is_woken(store: Store, stack: ExitStack) -> None:
    woken = listening(store, 7, stack)
    other = store.home.with_name("link")
    other.symlink_to(store.home)
    wake(other, [7, 8])
    assert woken.get(timeout=SECONDS) == SLOTS


def test_an_address_in_use_is_left_to_its_owner(store: Store, stack: ExitStack) -> None:
    """Then the driver looks by itself, as where the system has no such addresses."""
    woken = listening(store, 7, stack)
    with closing(Wakeups(store.home, 7, lambda what: None)) as second:
        assert not second.work
    wake(store.home, [7])
    assert woken.get(timeout=SECONDS) == SLOTS


def test_the_address_is_free_again_once_it_is_closed(store: Store, stack: ExitStack) -> None:
    for _ in range(2):
        with closing(Wakeups(store.home, 7, lambda what: None)) as wakeups:
            assert wakeups.work
            listens = wakeups._thread
        assert not wakeups.work
        assert not listens.is_alive()
    # Nobody listens.
    wake(store.home, [7])
