from __future__ import annotations

from typing import Any

import pytest

from det_core.config import (
    AdaptiveAsha,
    AsyncHalving,
    Grid,
    Hyperband,
    Length,
    Pbt,
    Random,
    SearcherConfig,
    Single,
)
from det_core.errors import ConfigError, PluginError
from det_driver.search import make

NOTHING = Length("epochs", 0)


@pytest.mark.parametrize(
    "config",
    [
        Single(metric="loss", max_length=NOTHING),
        Random(metric="loss", max_trials=1, max_length=NOTHING),
        Grid(metric="loss", max_length=NOTHING),
        AdaptiveAsha(metric="loss", max_trials=1, max_length=NOTHING),
        Hyperband(metric="loss", max_length=NOTHING),
        Pbt(metric="loss", population_size=1, num_rounds=1, length_per_round=NOTHING),
    ],
)
def test_nothing_to_train_is_refused(config: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"searcher\.(max_length|length_per_round) is 0 epochs; give 1 or more"
    ):
        make(config, {}, 0)


@pytest.mark.parametrize("kind", [AdaptiveAsha, AsyncHalving])
def test_asha_needs_a_length(kind: Any) -> None:
    rungs = {"num_rungs": 2} if kind is AsyncHalving else {}
    message = r"searcher \w+_\w+ has no length; give max_length, or max_time and time_metric"
    with pytest.raises(ConfigError, match=message):
        make(kind(metric="loss", max_trials=1, **rungs), {}, 0)
    with pytest.raises(
        ConfigError,
        match=r"searcher\.max_time is 9, but there is no time_metric; name the validation",
    ):
        make(kind(metric="loss", max_trials=1, max_time=9, **rungs), {}, 0)


def test_strangers_are_made_by_their_records() -> None:
    class Theirs(SearcherConfig):
        pass

    with pytest.raises(
        PluginError, match="Theirs is no built-in searcher's settings; make it by its record"
    ):
        make(Theirs(metric="loss"), {}, 0)
