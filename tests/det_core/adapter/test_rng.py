"""The generators of the host: seeded, put aside, and as plain data."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from typing import Any

import pytest

from det_core.train.rng import host_rng, plain_host_rng, seed_host, set_host_rng, untouched_host_rng

np: Any = pytest.importorskip("numpy")


def drawn() -> list[float]:
    """Draw an odd number of normal deviates, so that a second of a pair waits in each generator."""
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())]


@pytest.fixture(autouse=True)
def seeded() -> Any:
    before = host_rng()
    seed_host(7)
    yield
    set_host_rng(before)


def test_a_seed_decides_what_both_draw_beyond_32_bits_too() -> None:
    seed_host(2**40 + 3)
    first = drawn()
    seed_host(2**40 + 3)
    assert drawn() == first
    np.random.seed(3)
    seed_host(2**40 + 3)
    assert drawn() == first


def test_plain_states_are_json_and_come_back_exactly() -> None:
    drawn()
    saved = json.loads(json.dumps(plain_host_rng()))
    expected = drawn()
    drawn()
    set_host_rng(saved)
    assert drawn() == expected


def test_states_are_taken_as_arrays_of_any_kind() -> None:
    """As checkpoints hold them that were written before."""
    drawn()
    (version, numbers, gauss), numpy = plain_host_rng()["python"], plain_host_rng()["numpy"]
    expected = drawn()
    set_host_rng(
        {
            "python": [version, np.array(numbers, dtype=np.uint64), gauss],
            "numpy": [numpy[0], np.array(numpy[1], dtype=np.int64), *map(float, numpy[2:])],
        }
    )
    assert drawn() == expected


def test_what_a_state_does_not_name_stays_as_it_is() -> None:
    before = host_rng()["numpy"][1]
    set_host_rng({"python": random.Random(1).getstate()})
    assert random.random() == random.Random(1).random()
    assert (host_rng()["numpy"][1] == before).all()
    set_host_rng({})


def test_untouched_host_rng_restores_generators_after_an_error() -> None:
    expected = drawn()
    seed_host(7)
    body = ExitStack()
    body.enter_context(untouched_host_rng())
    drawn()
    body.__exit__(KeyError, KeyError(), None)
    assert drawn() == expected


def test_numpy_has_no_part_where_nothing_has_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "numpy")
    seed_host(1)
    assert host_rng().keys() == plain_host_rng().keys() == {"python"}
