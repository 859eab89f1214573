from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.errors import ConfigError
from det_driver.search import RandomState

SEEDS = st.integers(0, 2**32 - 1)
BOUNDS = st.integers(1, 2**62) | st.integers(1, 300) | st.sampled_from([2**31, 2**32, 2**32 + 1])


@given(SEEDS, st.lists(BOUNDS, max_size=8))
def test_ints_are_numpys(seed: int, bounds: list[int]) -> None:
    ours, numpys = RandomState(seed), np.random.RandomState(seed)
    assert [ours.below(n) for n in bounds] == [numpys.randint(0, n) for n in bounds]


@given(SEEDS, st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_doubles_are_numpys(seed: int, low: float, high: float) -> None:
    ours, numpys = RandomState(seed), np.random.RandomState(seed)
    for _ in range(3):
        assert ours.uniform(low, high) == numpys.uniform(low, high)
        assert ours.random() == numpys.random_sample()


@given(SEEDS)
def test_many_mixed_draws_are_numpys(seed: int) -> None:
    """Past the 624 words after which the generator turns."""
    ours, numpys = RandomState(seed), np.random.RandomState(seed)
    for n in range(2, 400):
        assert ours.below(n) == numpys.randint(0, n)
        assert ours.random() == numpys.random_sample()


def test_one_choice_draws_nothing() -> None:
    """As numpy, and so the draws that follow stay the same."""
    ours = RandomState(5)
    assert [ours.below(1) for _ in range(9)] == [0] * 9
    assert ours.random() == np.random.RandomState(5).random_sample()


@pytest.mark.parametrize("words", [4, 100])
def test_skipped_words_are_gone(words: int) -> None:
    ours, numpys = RandomState(5), np.random.RandomState(5)
    ours.skip_words(words)
    numpys.bytes(4 * words)
    assert ours.below(1000) == numpys.randint(0, 1000)


def test_a_restored_state_goes_on() -> None:
    first, second = RandomState(5), RandomState(6)
    first.below(100)
    second.restore(json.loads(json.dumps(first.state())))
    assert [second.random() for _ in range(700)] == [first.random() for _ in range(700)]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_numpy_refuses_is_refused(seed: int) -> None:
    with pytest.raises(
        ConfigError, match=f"experiment_seed is {seed}; give a whole number from 0 to 4294967295"
    ):
        RandomState(seed)
