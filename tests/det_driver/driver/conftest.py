"""Searches over the kit's one-weight model, driven by real processes."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.clusters.hosts import Network
from tests.support.faults import build_faults

from det_core import Plugins
from det_core.config import from_json
from det_driver.driver._search import JournaledSearch, SearchEvent, TrialExited, decode_event
from det_driver.search import made
from det_driver.store import Store, TrialRow
from det_node.process import is_running

# What becomes of a trial is a hyperparameter, so that searchers meet every end.
MODEL = """
    import os
    import time
    from det_core import InvalidHP
    from det_testing.fakes import OwnedOneVar, Weight

    time.sleep(float(os.environ.get("IMPORT", "0")))  # as long as a framework's import takes

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
SEARCH = (
    "searcher: {{name: random, metric: val_loss, max_trials: {trials}, max_length: {length},"
    " max_concurrent_trials: 2}}\nmin_validation_period: 13\nmin_checkpoint_period: 10\n"
)
ENGINE = "engine: {{name: ssh, hosts: [{hosts}], agent: 'ip netns exec {{host}}'}}\n"
LEASE = 8.0
HEAD = """
name: search
entrypoint: model_def:Trial
reproducibility: {experiment_seed: 7}
max_restarts: 0
scheduling_unit: 1000
check_first: false
hyperparameters:
  lr: {type: log, minval: -4, maxval: -1, count: 2}
"""


installed = cache(Plugins.installed)


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
        """What a person sees of each trial.

        It must not depend on what happened to its processes.
        """
        return [
            (
                t.request,
                t.hparams,
                t.seed,
                str(t.state),
                t.batches,
                t.best_metric,
                t.best_batches,
                self.metrics[t.id],
            )
            for t in self.trials
        ]

    def check(self) -> None:
        """Every decision follows from the journal's order, and no trial is lost or left open."""
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

    def run(
        self, text: str, *, slots: int = 2, status: int = 0, env: dict[str, str] | None = None
    ) -> Outcome:
        """Run a search to its end, in one go."""
        self.det("run", self.write(text), "--quiet", status=status, env=self.environ(slots, env))
        return self.outcome()

    def environ(self, slots: int = 2, env: dict[str, str] | None = None) -> dict[str, str]:
        return {**self.env, "DET_SLOTS_TOTAL": str(slots), **(env or {})}

    def outcome(self, experiment: int = 1) -> Outcome:
        with Store.reader(self.det.home) as store:
            config = from_json(store.experiments.get(experiment).config)
            journal = [decode_event(event.data) for event in store.journal.read(experiment)]
            record = installed().searchers()[config.searcher.name]
            trials = store.trials.list(experiment)
            metrics = {
                t.id: [
                    (m.group, m.batches, m.values.get("val_loss"))
                    for m in store.metrics.read(trial_id=t.id)
                ]
                for t in trials
            }
            seed = config.reproducibility.experiment_seed
            searcher = made(
                config.searcher, config.hyperparameters, seed, record.make, installed().samplers()
            )
            search = JournaledSearch.replayed(searcher, journal)
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


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that strikes writes, built here."""
    return build_faults(tmp_path_factory.mktemp("faults"))


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


class Hosts:
    """A driver on the first host of a network, whose trials train on the others.

    Agents are there by ssh's engine.
    """

    lease = LEASE

    def __init__(self, project: Project, network: Network, tmp_path: Path, wait_until: Any) -> None:
        self.project, self.network, self.wait_until = project, network, wait_until
        self.home = project.det.home
        self.variables = {"HOME": str(tmp_path / "user"), "DET_LEASE": str(LEASE), "PAUSE": "0.1"}
        self.near = project.det.argv

    def far(self, host: str, words: Sequence[str]) -> list[str]:
        """Return a command as it is executed on a host. The first one has this machine's name."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]
        own_name = named if host != self.network.names[0] else []
        return ["ip", "netns", "exec", host, *own_name, *self.near(words)]

    def start(self, *words: str | Path, host: str = "", **env: str) -> Any:
        """Start a command on a host, by default the first one."""
        self.project.det.argv = partial(self.far, host or self.network.names[0])
        quiet = ["--quiet"] if words[0] in ("run", "resume") else []
        try:
            return self.project.det.start(
                *words, *quiet, env=self.project.environ(1, {**self.variables, **env})
            )
        finally:
            self.project.det.argv = self.near

    def search(self, trials: int = 2, length: int = 40, **env: str) -> Any:
        return self.run(self.text(trials, length), self.network.names[1:], **env)

    @staticmethod
    def text(trials: int = 2, length: int = 40) -> str:
        return SEARCH.format(trials=trials, length=length)

    def run(self, text: str, names: list[str], **env: str) -> Any:
        """Start a driver, whose engine has these hosts."""
        return self.start("run", self.write(text, names), **env)

    def write(self, text: str, names: list[str]) -> Path:
        return self.project.write(text + ENGINE.format(hosts=", ".join(names)))

    def batches(self) -> dict[int, int]:
        """Return how many batches each worker has begun, by its process."""
        return {
            int(path.name.rpartition("-")[2]): len(path.read_text())
            for path in self.home.glob("batches-of-*")
        }

    def agents(self) -> dict[str, int]:
        """Return the process of each agent, by its host."""
        found = {}
        for note in Path(self.variables["HOME"]).glob(".cache/det/agents/*.json"):
            agent = json.loads(note.read_text())
            if is_running(agent["pid"], agent["born"]):
                found[agent["name"].partition("@")[2]] = agent["pid"]
        return found

    def ranks(self) -> dict[int, tuple[str, int]]:
        """Return the host and the process of each rank that runs, where there is one trial."""
        found = {}
        for note in Path(self.variables["HOME"]).glob(".cache/det/agents/*/**/process*.json"):
            process, agent = (
                json.loads(note.read_text()),
                note.relative_to(self.variables["HOME"]).parts[3],
            )
            if is_running(process["pid"], process["born"]):
                rank = int(note.stem.partition("-")[2] or 0)
                found[rank] = (agent.partition("@")[2].rpartition("-")[0], process["pid"])
        return found

    def under_way(self, batches: int = 5) -> dict[int, int]:
        self.wait_until(
            lambda: sum(n > batches for n in self.batches().values()) >= 2,
            "batches of both trials",
            60,
        )
        return self.batches()

    def undisturbed(self) -> list[tuple[Any, ...]]:
        """Return what the search finds on this machine."""
        text = self.text()
        self.project.det(
            "run", self.project.write(text, "local.yaml"), "--quiet", env=self.project.environ()
        )
        return self.project.outcome(2).table

    @staticmethod
    def ended(driver: Any, seconds: float = 100.0) -> str:
        """Wait for a driver, and return what it said."""
        said, _ = driver.communicate(timeout=seconds)
        assert driver.returncode == 0, said
        return str(said)


@pytest.fixture
def hosts(project: Project, network: Network, tmp_path: Path, wait_until: Any) -> Hosts:
    return Hosts(project, network, tmp_path, wait_until)
