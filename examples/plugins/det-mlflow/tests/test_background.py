"""Work that nobody waits for is done in order, and what goes wrong is told once."""

from __future__ import annotations

import threading

import pytest
from det_mlflow.background import Background


def test_jobs_are_done_in_order_before_the_end() -> None:
    done: list[int] = []
    background = Background()
    for number in range(5):
        background.do(lambda number=number: done.append(number))
    background.close(10)
    assert done == [0, 1, 2, 3, 4]


def test_what_goes_wrong_is_raised_once_and_later_jobs_are_done() -> None:
    def fail() -> None:
        raise ValueError("no such server")

    done: list[int] = []
    background = Background()
    failed = threading.Event()
    background.do(fail)
    background.do(failed.set)
    assert failed.wait(10)
    with pytest.raises(ValueError, match="no such server"):
        background.do(fail)
    background.do(fail)
    background.do(lambda: done.append(1))
    background.close(10)
    assert done == [1]


def test_an_end_that_does_not_come_is_waited_for_no_longer_than_that() -> None:
    release = threading.Event()
    background = Background()
    background.do(lambda: release.wait(10))
    background.do(lambda: None)
    with pytest.raises(
        TimeoutError, match=r"has not taken everything within 0\.1 s; 2 messages are lost"
    ):
        background.close(0.1)
    release.set()
