"""A thousand runs at once, whose words cost their driver the same as those of ten."""

from __future__ import annotations

import gc
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

import pytest

from det_core import EngineRecord, Plugins, hookimpl
from det_core.config import parse
from det_core.train.host import Outcome
from det_driver import _hooks
from det_driver.driver import Driver, DriverSettings, create
from det_driver.engines import Ended, Engine, WorkerMessage
from det_driver.store import ExperimentState, Store, TrialState
from det_driver.store._database import Database
from det_node.agent import RunSpec
from det_node.protocol import (
    AskTarget,
    Completed,
    Envelope,
    Finished,
    Message,
    Reply,
    Reported,
    Validated,
)

pytestmark = pytest.mark.process

VALIDATIONS = 4


class Simulated(Engine):
    """Speaks for the workers of all runs, each of which goes on when it is answered."""

    words = most = 0

    def __init__(self, on_event: Any) -> None:
        super().__init__(on_event)
        self._at: dict[int, int] = {}
        self._newest: Counter[int] = Counter()

    def start(self, spec: RunSpec) -> None:
        self._at[spec.run_id] = 0
        Simulated.most = max(Simulated.most, len(self._at))
        self._say(spec.run_id, AskTarget())

    def reply(self, run: int, link: int, reply: Reply) -> None:
        assert reply.number == self._newest[run]
        assert not reply.error
        if self._at[run] < 0:
            self.on_event(Ended(run, 0))
        elif reply.target is None or reply.target.n is None:
            self._at[run] = -1
            self._say(run, Finished(Outcome.COMPLETED))
        else:
            self._at[run] = at = self._at[run] + reply.target.n // VALIDATIONS
            metrics = {"loss": run % 97 + 1 / at}
            self._say(run, Reported("training", at, metrics))
            done = at == reply.target.n
            self._say(run, Completed(at, metrics, at) if done else Validated(at, metrics, None))

    def acknowledge_end(self, run: int) -> None:
        del self._at[run]

    def signal(self, run: int, number: Signals) -> None:
        if number == SIGKILL:
            self.on_event(Ended(run, -SIGKILL))

    def preempt(self, run: int, reason: str) -> None:
        pass

    def acknowledge(self, run: int, link: int, number: int) -> None:
        assert number <= self._newest[run]

    def _say(self, run: int, word: Message) -> None:
        Simulated.words += 1
        self._newest[run] += 1
        self.on_event(WorkerMessage(run, 0, run, Envelope(self._newest[run], word)))


@hookimpl
def det_engines() -> Iterator[EngineRecord]:
    yield EngineRecord(name="simulated", load=lambda: Simulated)


class Plugin:
    det_engines = staticmethod(det_engines)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was executed, in all databases."""
    counted: Counter[str] = Counter()
    connect = Database._connect

    def traced(self: Database) -> sqlite3.Connection:
        connection = connect(self)
        connection.set_trace_callback(lambda sql: counted.update([" ".join(sql.split()[:3])]))
        return connection

    monkeypatch.setattr(Database, "_connect", traced)
    return counted


def search(home: Path, trials: int, at_once: int) -> None:
    """Drive a search through, and check what is stored of it."""
    searcher = {"name": "random", "metric": "loss", "max_trials": trials, "max_length": 100}
    config = {
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {**searcher, "max_concurrent_trials": at_once},
        "checkpoint_policy": "none",
    }
    plugins = Plugins()  # no observers, which make statements of their own
    plugins.register(_hooks, "det-driver")
    plugins.register(Plugin, "simulated")
    with Store(home) as store:
        id = create(store, parse(config).config, None, engine="simulated")
    Simulated.words = Simulated.most = 0
    driver = Driver(DriverSettings(home=home, slots=at_once, engine="simulated"), id, plugins)
    before = sum(each["collections"] for each in gc.get_stats()), gc.get_threshold()
    assert driver.run() is ExperimentState.COMPLETED
    assert (
        sum(each["collections"] for each in gc.get_stats()) - before[0] <= 20
    )  # of more than a hundred
    assert gc.get_threshold() == before[1]
    assert Simulated.most == at_once
    with Store.reader(home) as store:
        assert store.experiments.summary(id).trials == {TrialState.COMPLETED: trials}
        for trial in store.trials.list(id)[:: trials // 5]:
            reports = [(each.group, each.batches) for each in store.metrics.read(trial_id=trial.id)]
            assert reports == [
                (group, at) for at in (25, 50, 75, 100) for group in ("training", "validation")
            ]
            (run,) = store.runs.list(trial.id)
            assert (run.outcome, trial.best_batches, trial.best_metric) == (
                "completed",
                100,
                run.id % 97 + 0.01,
            )
        best = min(trial.best_metric or 1e9 for trial in store.trials.list(id))
        assert store.trials.best(id) == store.experiments.summary(id).best_metric == best


def test_statements_per_message_do_not_grow_with_runs(
    tmp_path: Path, statements: Counter[str]
) -> None:
    """A message of one run among 1,000 takes as few statements as of one among 10."""
    each = {}
    for at_once, trials in ((10, 100), (1000, 1000)):
        statements.clear()
        search(tmp_path / str(at_once), trials, at_once)
        each[at_once] = statements.total() / Simulated.words
        print(at_once, each[at_once], statements.most_common(20))
    assert each[1000] <= each[10]
    assert each[1000] < 4
