from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from det_core.config import Custom, Double
from det_core.errors import EntrypointError, PluginError
from det_driver.search import (
    Close,
    Create,
    Exit,
    Method,
    Operation,
    Search,
    Searcher,
    Shutdown,
    Train,
    TrialFactory,
    make,
)
from det_driver.search._custom import CustomSearch

FIRST = Create(trial=0, hparams={}, seed=0)
SOURCE = """
from det_driver.search import TrialFactory, Close, Searcher

class Mine(Searcher):
    def __init__(self, config, hyperparameters, seed):
        self.factory, self.config = TrialFactory(hyperparameters, seed), config

    def start(self):
        return self.factory.start(1, self.config.options["steps"])

    def validated(self, trial, length, metrics):
        return [Close(trial)]

    def exited(self, trial, reason):
        return []

    def progress(self, trial_progress):
        return 0.5

class Other:
    pass
"""


class Says(Searcher):
    """Answers with what it was given, one list for each event."""

    def __init__(self, *answers: list[Operation]) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[Any, ...]] = []

    def start(self) -> list[Operation]:
        return self.answers.pop(0)

    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        self.heard.append((trial, length))
        return self.answers.pop(0)

    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        self.heard.append((trial, reason))
        return self.answers.pop(0)

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        return 0.0


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_search.py").write_text(SOURCE)
    (tmp_path / "broken_search.py").write_text("import no_such_thing")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_search", None)


@pytest.mark.usefixtures("code")
def test_class_of_the_entrypoint_gets_settings_and_seed(train) -> None:
    config = Custom(metric="loss", entrypoint="my_search:Mine", options={"steps": 7})
    assert train(make(config, {"lr": Double(minval=0, maxval=1)}, 3)) == ({0: [7]}, Shutdown())


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("no_search:Mine", "searcher.entrypoint is 'no_search:Mine'; there is no module no_search"),
        (
            "my_search:Nobody",
            (
                "searcher.entrypoint is 'my_search:Nobody'; name a class derived from"
                " det_driver.search.Searcher"
            ),
        ),
        (
            "my_search:Other",
            (
                "searcher.entrypoint is 'my_search:Other'; name a class derived from"
                " det_driver.search.Searcher"
            ),
        ),
        (
            "my_search:Mine.start",
            (
                "searcher.entrypoint is 'my_search:Mine.start'; name a class derived from"
                " det_driver.search.Searcher"
            ),
        ),
    ],
)
def test_an_entrypoint_that_is_no_searcher_is_named(entrypoint: str, message: str) -> None:
    with pytest.raises(EntrypointError, match=message):
        make(Custom(metric="loss", entrypoint=entrypoint), {}, 0)


@pytest.mark.usefixtures("code")
def test_a_module_that_does_not_import_says_why() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        make(Custom(metric="loss", entrypoint="broken_search:Mine"), {}, 0)


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([], "searcher Says starts without a trial; give Create in start"),
        (
            [Create(trial=1, hparams={}, seed=0)],
            "creates trial 1; number it 0, in order of creation",
        ),
        (
            [Create(trial=0, hparams={}, seed=2**31)],
            "gives trial 0 the seed 2147483648; draw it from 0 to 2..31 - 1",
        ),
        (
            [Create(trial=0, hparams={}, seed=-1)],
            "gives trial 0 the seed -1; draw it from 0 to 2..31 - 1",
        ),
        (
            [Create(trial=0, hparams={}, seed=0, source=-1)],
            "starts trial 0 from trial -1; name one that was created before",
        ),
        (
            [Create(trial=0, hparams={}, seed=0, source=0)],
            "starts trial 0 from trial 0; name one that was created before",
        ),
        ([Train(0, 5)], "trains trial 0, which it never created; give Create first"),
        ([FIRST, Train(-1, 5)], "trains trial -1, which it never created; give Create first"),
        (
            [FIRST, Train(0, 0)],
            "trains trial 0 until 0 after until 0; lengths are absolute and grow",
        ),
        (
            [FIRST, Train(0, 5), Train(0, 5)],
            "trains trial 0 until 5 after until 5; lengths are absolute and grow",
        ),
        (
            [FIRST, Train(0, None), Train(0, 5)],
            "trains trial 0 until 5 after until None; lengths are absolute and",
        ),
        (
            [FIRST, Close(0), Close(0)],
            "closes trial 0, which is closed or has ended; leave it alone",
        ),
        (
            [FIRST, Close(0), Train(0, 5)],
            "trains trial 0, which is closed or has ended; leave it alone",
        ),
        (
            [FIRST, Shutdown(), Close(0)],
            r"gives Close\(trial=0\) after Shutdown; make Shutdown the last operation",
        ),
        ([FIRST, "stop"], "gives 'stop'; give Create, Train, Close or Shutdown"),
    ],
)
def test_a_broken_contract_is_named(operations: list[Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        CustomSearch(Says(operations)).start()


def test_it_hears_of_open_trials_and_of_each_exit_once() -> None:
    mine = Says([FIRST, Train(0, 5)], [Close(0)], [Create(trial=1, hparams={}, seed=0)])
    searcher = CustomSearch(mine)
    searcher.start()
    searcher.validated(0, 5, {})
    assert searcher.validated(0, 6, {}) == []
    searcher.exited(0, Exit.COMPLETED)
    assert searcher.exited(0, Exit.ERRORED) == []
    assert mine.heard == [(0, 5), (0, Exit.COMPLETED)]


@pytest.mark.parametrize(
    ("reason", "over"),
    [
        (Exit.COMPLETED, Shutdown()),
        (Exit.ERRORED, Shutdown(failed=True)),
        (Exit.CANCELED, Shutdown(cancelled=True)),
    ],
)
def test_it_is_shut_down_when_nothing_is_left(reason: Exit, over: Shutdown) -> None:
    searcher = CustomSearch(Says([FIRST, Train(0, 5)], []))
    searcher.start()
    assert searcher.exited(0, reason) == [over]


def test_it_may_shut_down_by_itself() -> None:
    searcher = CustomSearch(Says([FIRST, Train(0, 5)], [Shutdown()]))
    searcher.start()
    assert searcher.validated(0, 5, {}) == [Shutdown()]
    assert searcher.exited(0, Exit.CANCELED) == []


def test_searcher_has_the_properties_and_state_of_its_class() -> None:
    class Keeps(Says):
        metric, time_metric, version = "loss", "seconds", 7
        memory: Any = None

        def state(self) -> dict[str, Any]:
            return {"x": 1}

        def restore(self, state: Mapping[str, Any]) -> None:
            self.memory = state

    search = CustomSearch(Keeps([FIRST, Train(0, 5)]))
    assert (search.metric, search.time_metric, search.version) == ("loss", "seconds", 7)
    search.start()
    again = Keeps([])
    CustomSearch(again).restore(search.state())
    assert again.memory == {"x": 1}


def test_a_searcher_need_not_keep_its_state() -> None:
    search = CustomSearch(Says([FIRST]))
    search.start()
    assert search.state() is None
    with pytest.raises(
        PluginError, match=r"^searcher Says keeps no state; give it its past events again$"
    ):
        Says().restore({})


def test_a_method_need_not_keep_its_state() -> None:
    class Once(Method):
        def begin(self, factory: TrialFactory) -> list[Operation]:
            return factory.start(1, 10)

        def validated(
            self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
        ) -> list[Operation]:
            return [Close(trial)]

        def exited(
            self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
        ) -> list[Operation]:
            return []

        def progress(self, going: Mapping[int, float]) -> float:
            return 0.0

    search = Search(Once(), {}, 0)
    search.start()
    assert search.state() is None
    with pytest.raises(
        PluginError, match=r"^search method Once keeps no state; give it its past events again$"
    ):
        Once().restore({})
