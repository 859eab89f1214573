"""Searches over the kit's one-weight model, driven by real processes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from det_core import Plugins
from det_core.config import from_json
from det_driver.driver._search import JournaledSearch, SearchEvent, TrialExited, decode_event
from det_driver.store import Store, TrialRow

# What becomes of a trial is a hyperparameter, so that searchers meet every end.
MODEL = """
    import os
    import time
    from det_core import InvalidHP
    from det_testing.fakes import OwnedOneVar, Weight

    class Trial(OwnedOneVar):
        def build_model(self):
            fate = self.run.hparams.get("fate", "good")
            if fate == "invalid":
                raise InvalidHP("not these")
            if fate == "error":
                raise RuntimeError("an error of the trial's")
            return Weight(float("nan") if fate == "nan" else 0.0)

        def build_data(self):
            data = super().build_data()
            pause = float(os.environ.get("PAUSE", "0"))
            return Slow(data, pause) if pause else data

    class Slow:
        def __init__(self, data, pause):
            self.data, self.pause = data, pause
        def __getattr__(self, name):
            return getattr(self.data, name)
        def records(self, batch):
            with open(f"{os.environ['DET_HOME']}/batches-of-{os.getpid()}", "a") as file:
                file.write(".")
            time.sleep(self.pause)
            return self.data.records(batch)
"""
HEAD = """
name: search
entrypoint: model_def:Trial
reproducibility: {experiment_seed: 7}
max_restarts: 0
scheduling_unit: 1000
hyperparameters:
  lr: {type: log, minval: -4, maxval: -1, count: 2}
"""


@dataclass
class Outcome:
    """One experiment as the store has it."""

    trials: list[TrialRow]
    events: list[SearchEvent]
    search: JournaledSearch
    metrics: dict[int, list[tuple[str, int, float | None]]]

    @property
    def by_request(self) -> dict[int, TrialRow]:
        return {trial.request: trial for trial in self.trials}

    @property
    def table(self) -> list[tuple[Any, ...]]:
        """What a person sees of each trial, and what must not depend on what happened to its processes."""
        return [
            (t.request, t.hparams, t.seed, str(t.state), t.batches, t.best_metric, t.best_batches, self.metrics[t.id])
            for t in self.trials
        ]

    def check(self) -> None:
        """Every decision is the one that the journal's order implies, and no trial is lost or left unclosed."""
        assert self.search.over is not None
        assert [(t.request, t.hparams, t.seed) for t in self.trials] == [
            (p.request, p.hparams, p.seed) for p in self.search.plans.values()
        ]
        assert all(plan.exited is not None for plan in self.search.plans.values())
        assert all(trial.state.ended for trial in self.trials)
        exits = [event.trial for event in self.events if isinstance(event, TrialExited)]
        assert sorted(exits) == sorted(self.search.plans)
        for trial in self.trials:
            plan = self.search.plans[trial.request]
            assert plan.until is None or trial.batches <= plan.until


@dataclass
class Project:
    """A directory with a trial, and the command to search with it."""

    det: Any
    env: dict[str, str]

    def write(self, text: str, name: str = "search.yaml") -> Path:
        path: Path = self.det.cwd / name
        path.write_text(HEAD + textwrap.dedent(text))
        return path

    def run(self, text: str, *, slots: int = 2, status: int = 0, env: dict[str, str] | None = None) -> Outcome:
        """Run a search to its end, in one go."""
        self.det("run", self.write(text), "--quiet", status=status, env=self.environ(slots, env))
        return self.outcome()

    def environ(self, slots: int = 2, env: dict[str, str] | None = None) -> dict[str, str]:
        return {**self.env, "DET_SLOTS_TOTAL": str(slots), **(env or {})}

    def outcome(self, experiment: int = 1) -> Outcome:
        with Store.reader(self.det.home) as store:
            config = from_json(store.experiments.get(experiment).config)
            journal = [decode_event(event.data) for event in store.journal.read(experiment)]
            record = Plugins.installed().searchers()[config.searcher.name]
            trials = store.trials.list(experiment)
            metrics = {
                t.id: [(m.group, m.batches, m.values.get("val_loss")) for m in store.metrics.read(trial_id=t.id)]
                for t in trials
            }
            seed = config.reproducibility.experiment_seed
            search = JournaledSearch.replayed(record.make(config.searcher, config.hyperparameters, seed), journal)
        return Outcome(trials, journal, search, metrics)

    def runs(self, experiment: int = 1) -> dict[int, list[Any]]:
        """Return each trial's runs, by the searcher's number of the trial."""
        with Store.reader(self.det.home) as store:
            return {t.request: store.runs.list(t.id) for t in store.trials.list(experiment)}


@pytest.fixture
def plugin_path(tmp_path: Path) -> Path:
    """A directory for PYTHONPATH that has the fakes installed as a stranger's plugin would be."""
    info = tmp_path / "site" / "fakes-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text("[det]\nfakes = det_testing.fake_hooks\n")
    return info.parent


@pytest.fixture
def project(det: Any, plugin_path: Path) -> Project:
    det.cwd.joinpath("model_def.py").write_text(textwrap.dedent(MODEL))
    return Project(det, {"PYTHONPATH": str(plugin_path)})


@pytest.fixture
def running(project: Project) -> Callable[[], int]:
    """Count the trials that have a run now."""

    def count() -> int:
        if not project.det.home.joinpath("experiments/1/experiment.db").exists():
            return 0
        with Store.reader(project.det.home) as store:
            if not store.experiments.list():
                return 0
            return sum(str(t.state) == "RUNNING" for t in store.trials.list(1))

    return count
