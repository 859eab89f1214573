"""The picture of a search has a row for each of its brackets."""

from __future__ import annotations

from typing import Any

import pytest

from det_core.config import AdaptiveAsha, AsyncHalving, Double, Length
from det_driver.search import made, make
from det_web.picture import _lengths

COMMON: dict[str, Any] = {"metric": "loss", "max_trials": 64, "max_length": Length("epochs", 64)}


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("kind", [AdaptiveAsha, AsyncHalving])
def test_it_has_as_many_brackets_as_the_search(kind: Any, idle: bool) -> None:
    rungs = {"num_rungs": 3} if kind is AsyncHalving else {}
    config = kind(use_idle_slots=idle, **rungs, **COMMON)
    searcher = made(config, {"x": Double(minval=0, maxval=1)}, 0, make)
    searcher.start()
    state: Any = searcher.state()
    method = state["searcher"]["method"]
    brackets = method.get("brackets", [method])
    assert [len(each["rungs"]) for each in brackets] == [len(each) for each in _lengths(config)]
