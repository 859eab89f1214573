"""What is done with an experiment between its drivers: made, asked of, taken up again, and said why it waits."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from det_core import EngineRecord, EnvironmentRecord, Plugins, hookimpl
from det_core.config import ExperimentConfig, from_json, parse, to_json
from det_core.environments import EnvironmentMaker, Wanted
from det_core.errors import ConfigError, DetError, StoreError
from det_driver.driver import DriverSettings, _lifecycle, ask, create, describe, give_up, reopen, waits_for
from det_driver.driver._lifecycle import DESCRIBE, GIVE_UP, site_of
from det_driver.driver._search import TrialReopened, decode_event
from det_driver.engines import Engine, Site
from det_driver.provenance import read
from det_driver.store import ExperimentState, Snapshot, Store, TrialState

RANDOM = {"name": "random", "metric": "error", "smaller_is_better": False, "max_trials": 2, "max_length": 4}
SINGLE = {"name": "single", "metric": "loss", "max_length": 10}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as store:
        yield store


def config_of(**settings: Any) -> ExperimentConfig:
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}} if settings.get("searcher") == RANDOM else {}
    return parse({"entrypoint": "model_def:Trial", "hyperparameters": space, "searcher": SINGLE, **settings}).config


def experiment(store: Store, *states: TrialState, state: ExperimentState | None = None, **settings: Any) -> int:
    """Make an experiment with trials in these states."""
    id = store.experiments.create(name="x", config=to_json(config_of(**settings)), metric="loss").id
    store.code_dir(id).mkdir()
    with store.lock(id):
        for request, each in enumerate(states):
            store.trials.update(store.trials.create(id, request, {}, 1).id, state=each)
        if state:
            store.experiments.update(id, state=state)
    return id


def states(store: Store, id: int) -> list[str]:
    return [str(trial.state) for trial in store.trials.list(id)]


@contextmanager
def driven(store: Store, id: int, hears: Callable[[Store], None]) -> Iterator[None]:
    """Hold an experiment as its driver, in a thread that hears commands as soon as there are any."""
    there, over = threading.Event(), threading.Event()

    def drive() -> None:
        with Store(store.home) as own, own.lock(id):
            there.set()
            while not over.is_set():
                if own.commands.names(id):
                    hears(own)
                time.sleep(0.005)

    thread = threading.Thread(target=drive)
    thread.start()
    there.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def taken(store: Store, id: int) -> list[str]:
    with store.lock(id):
        return [command.kind for command in store.commands.take(id)]


class Deaf(Engine):
    """Notes what it is to dismiss."""

    dismissed: list[tuple[str, bool]]

    def start(self, spec: Any) -> None: ...

    def signal(self, run: int, number: Any) -> None: ...

    def dismiss(self, site: Site, *, at_once: bool) -> None:
        self.dismissed.append((site.name, at_once))


@pytest.fixture
def dismissed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What an engine is told to end, where it is that of experiments."""
    Deaf.dismissed = []
    plugins = Plugins.installed()

    class Plugin:
        @hookimpl
        def det_engines(self) -> Iterator[EngineRecord]:
            yield EngineRecord(name="deaf", load=lambda: Deaf)

    plugins.register(Plugin(), "deaf")
    monkeypatch.setattr(_lifecycle, "Plugins", SimpleNamespace(installed=lambda: plugins))
    return Deaf.dismissed


def on_deaf_engine(store: Store) -> int:
    id = store.experiments.create(name="x", config=to_json(config_of()), engine="deaf").id
    store.code_dir(id).mkdir()
    return id


# Making one


def test_an_experiment_is_recorded_as_it_is_configured_with_its_code(home: Store, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text("class Trial: pass\n")
    config = config_of(searcher=RANDOM, description="why", labels=["a", "b"], reproducibility={"experiment_seed": 0})
    id = create(home, config, code, default_name="by its file", engine="in-process")
    made = home.experiments.get(id)
    assert (made.name, made.description, made.labels, made.engine) == ("by its file", "why", ("a", "b"), "in-process")
    assert (made.entrypoint, made.metric, made.smaller_is_better) == ("model_def:Trial", "error", False)
    assert (home.code_dir(id) / "model_def.py").read_text() == "class Trial: pass\n"
    assert from_json(made.config).reproducibility.experiment_seed == 0
    assert from_json(made.config).name == "by its file"
    assert "python" in read(home.experiment_dir(id))


def test_a_seed_is_the_time_and_a_name_the_users_own(home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 2.0**32 + 2.0**31 + 41.7)
    config = config_of(name="mine", searcher=None, entrypoint=["python3", "train it.py"])
    made = home.experiments.get(create(home, config, None, default_name="by its file"))
    assert from_json(made.config).reproducibility.experiment_seed == 2**31 + 41
    assert (made.name, made.entrypoint, made.engine) == ("mine", "python3 train it.py", "local")
    assert (made.metric, made.smaller_is_better, made.description, made.labels) == ("", True, "", ())
    assert home.code_dir(made.id).is_dir()
    assert home.experiments.get(create(home, config_of(), None)).name == "experiment"


def test_of_an_experiment_whose_code_cannot_be_copied_nothing_is_left(home: Store, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text("class Trial: pass\n")
    with pytest.raises(DetError, match="did you mean"):
        create(home, config_of(entrypoint="model_def.Trial"), code)
    with pytest.raises(DetError):
        create(home, config_of(entrypoint="python3 train.py"), tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no Python"):
        create(home, config_of(environment={"python": "./none"}, entrypoint="true"), code)
    assert home.experiments.list() == []
    assert [*home.experiments.directory(1).parent.glob("*")] == []


class Solver(EnvironmentMaker):
    """Notes what is wanted."""

    def solve(self, wanted: Wanted, into: Path) -> None:
        (into / "lock").write_text(f"{wanted.requirements} for {wanted.directory} below {wanted.root}")

    def install(self, solved: Path, into: Path) -> Path:
        return into


class Solves:
    @hookimpl
    def det_environments(self) -> Iterator[EnvironmentRecord]:
        yield EnvironmentRecord(name="solver", load=lambda: Solver)


def test_an_experiment_keeps_what_was_solved_for_its_environment(
    home: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plugins = Plugins()
    plugins.register(Solves(), "solves")
    config = config_of(entrypoint="python3 train.py", environment={"requirements": ["six"]})
    (code := tmp_path / "code").mkdir()
    for directory, environments in ((code, tmp_path / "elsewhere"), (None, None)):
        id = create(home, config, directory, plugins=plugins, environments=environments)
        lock = home.experiment_dir(id) / "environment" / "lock"
        assert lock.read_text() == f"('six',) for {directory or tmp_path} below {environments or home.home / 'envs'}"
        assert not [*(environments or home.home / "envs").iterdir()]  # what was solved lies with the experiment alone


# Taking it up again


def test_an_experiment_that_goes_on_or_is_paused_needs_nothing_but_its_code(home: Store) -> None:
    id = experiment(home, TrialState.PAUSED, state=ExperimentState.PAUSED)
    reopen(home, id)
    assert (states(home, id), [*home.journal.read(id)]) == (["PAUSED"], [])
    home.code_dir(id).rmdir()
    with pytest.raises(StoreError, match=rf"^the code of experiment {id} is gone: restore {home.code_dir(id)}"):
        reopen(home, id)


def test_an_experiment_that_is_over_is_not_taken_up_even_where_its_code_is_gone(home: Store) -> None:
    for state in (ExperimentState.COMPLETED, ExperimentState.CANCELED):
        id = experiment(home, state=state)
        home.code_dir(id).rmdir()
        with pytest.raises(StoreError) as refused:
            reopen(home, id)
        assert str(refused.value) == (
            f"experiment {id} is {state.lower()}; start another from its checkpoints with searcher.source_trial_id"
        )


def test_the_failed_trial_of_a_single_search_is_taken_up_as_if_it_had_never_failed(home: Store) -> None:
    id = experiment(home, TrialState.ERROR, state=ExperimentState.ERROR)
    with home.lock(id):
        home.trials.update(1, restarts=5, ended=9.0, exit_reason="ERRORED")
        home.snapshots.keep(id, Snapshot(1, "1.0", 1, 1, b"that has seen its exit"))
    reopen(home, id)
    assert home.snapshots.read(id) == []
    (trial,) = home.trials.list(id)
    assert (str(trial.state), trial.restarts, trial.ended, trial.exit_reason) == ("PAUSED", 0, None, None)
    assert [decode_event(event.data) for event in home.journal.read(id)] == [TrialReopened(0)]


def test_a_single_search_whose_trial_did_not_fail_is_taken_up_as_it_is(home: Store) -> None:
    id = experiment(home, TrialState.COMPLETED, state=ExperimentState.ERROR)
    reopen(home, id)
    assert (states(home, id), [*home.journal.read(id)]) == (["COMPLETED"], [])
    none = experiment(home, state=ExperimentState.ERROR)
    reopen(home, none)
    assert states(home, none) == []


def test_a_search_goes_on_without_what_failed_while_it_has_trials_that_have_not_ended(home: Store) -> None:
    id = experiment(home, TrialState.ERROR, TrialState.PAUSED, state=ExperimentState.ERROR, searcher=RANDOM)
    reopen(home, id)
    assert (states(home, id), [*home.journal.read(id)]) == (["ERROR", "PAUSED"], [])
    with home.lock(id):
        home.trials.update(home.trials.list(id)[1].id, state=TrialState.COMPLETED)
    with pytest.raises(StoreError, match=f"^experiment {id} is a search whose trials have all ended; mend them"):
        reopen(home, id)
    empty = experiment(home, state=ExperimentState.ERROR, searcher=RANDOM)
    reopen(home, empty)  # it failed before its first trial


# Asking


@pytest.mark.parametrize(
    ("word", "becomes", "trials"),
    [
        ("pause", "PAUSED", ["COMPLETED", "PAUSED"]),
        ("cancel", "CANCELED", ["COMPLETED", "CANCELED"]),
        ("kill", "CANCELED", ["COMPLETED", "CANCELED"]),
    ],
)
def test_an_experiment_that_nobody_drives_becomes_at_once_what_is_asked_of_it(
    home: Store, word: str, becomes: str, trials: list[str]
) -> None:
    id = experiment(home, TrialState.COMPLETED, TrialState.PAUSED, searcher=RANDOM)
    before = time.time()
    with home.lock(id):
        home.experiments.update(id, pid=99)
    ask(home, id, word)
    now = home.experiments.get(id)
    assert (str(now.state), states(home, id), now.pid) == (becomes, trials, None)
    assert (now.ended is not None and now.ended >= before) == (becomes == "CANCELED")
    assert (home.home / "garbage" / str(id)).exists() == (becomes == "CANCELED")


@pytest.mark.parametrize("word", ["pause", "cancel", "kill"])
def test_nobody_can_drive_an_experiment_while_it_becomes_what_is_asked(home: Store, word: str, wait_until: Any) -> None:
    id, path = experiment(home), home.home

    def asks() -> None:
        with Store(path) as other:
            ask(other, id, word)

    thread = threading.Thread(target=asks)
    with closing(sqlite3.connect(home.experiment_dir(id) / "experiment.db", isolation_level=None)) as held_up:
        held_up.execute("BEGIN IMMEDIATE")
        thread.start()
        wait_until(lambda: home.experiments.driven(id), "that nobody else can have it")
        time.sleep(0.3)  # it has nothing to do but to write what was decided
        assert home.experiments.driven(id)
        assert home.experiments.get(id).state is ExperimentState.ACTIVE
        held_up.execute("ROLLBACK")
    thread.join(timeout=20)
    assert home.experiments.get(id).state is not ExperimentState.ACTIVE
    assert not home.experiments.driven(id)


@pytest.mark.parametrize("word", ["pause", "cancel", "kill"])
def test_what_trains_without_a_driver_is_ended_with_its_experiment(
    home: Store, dismissed: list[tuple[str, bool]], word: str
) -> None:
    id = on_deaf_engine(home)
    ask(home, id, word)
    ((name, at_once),) = dismissed
    assert name.endswith(f"-{id}")
    assert at_once == (word == "kill")


def test_an_experiment_of_an_engine_that_is_not_installed_is_asked_all_the_same(home: Store) -> None:
    id = on_deaf_engine(home)
    ask(home, id, "cancel")
    assert home.experiments.get(id).state is ExperimentState.CANCELED


def test_an_experiment_that_has_ended_is_asked_nothing(home: Store) -> None:
    id = experiment(home, state=ExperimentState.COMPLETED)
    with pytest.raises(StoreError, match=f"^experiment {id} is completed already; nothing is left to pause$"):
        ask(home, id, "pause")
    heard: list[str] = []
    with (
        driven(home, id, lambda own: heard.append("a word")),
        pytest.raises(StoreError, match="is completed already; nothing is left to kill"),
    ):
        ask(home, id, "kill")
    assert heard == []


def test_a_driver_hears_what_is_asked_and_who_asks_returns_then(home: Store) -> None:
    id, heard = experiment(home, TrialState.RUNNING), list[Any]()

    def hears(own: Store) -> None:
        time.sleep(0.8)  # longer than it takes to see that somebody has the lock
        heard.extend(own.commands.take(id))

    with driven(home, id, hears):
        began = time.monotonic()
        ask(home, id, "pause")
        assert time.monotonic() - began < 5
        assert [command.kind for command in heard] == ["pause"]
    assert home.experiments.get(id).state is ExperimentState.ACTIVE  # that is the driver's to decide
    assert states(home, id) == ["RUNNING"]


def test_a_driver_that_does_not_hear_is_left_with_the_word_after_some_seconds(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lifecycle, "_HEARS_SECONDS", 0.3)
    id = experiment(home)
    with driven(home, id, lambda own: None):
        began = time.monotonic()
        ask(home, id, "pause")
        assert time.monotonic() - began >= 0.3
    assert taken(home, id) == ["pause"]


def test_a_word_to_a_driver_that_ends_before_it_hears_takes_effect_all_the_same(home: Store) -> None:
    id = experiment(home, TrialState.RUNNING)
    path = home.home
    with home.lock(id):

        def cancel() -> None:
            with Store(path) as other:
                ask(other, id, "cancel")

        thread = threading.Thread(target=cancel)
        thread.start()
        while not home.commands.names(id):
            time.sleep(0.01)
    thread.join(timeout=20)
    assert home.experiments.get(id).state is ExperimentState.CANCELED
    assert states(home, id) == ["CANCELED"]
    assert not home.commands.names(id)
    with pytest.raises(StoreError, match="is canceled already"):
        ask(home, id, "pause")


@pytest.mark.parametrize("state", [ExperimentState.COMPLETED, ExperimentState.ACTIVE])
def test_a_driver_that_heard_and_ended_has_decided(home: Store, state: ExperimentState) -> None:
    """Between two looks of who asks, it took the word or came to its end: nothing is changed behind it."""
    id, path = experiment(home, TrialState.RUNNING), home.home
    asked = threading.Event()
    with home.lock(id):

        def cancel() -> None:
            with Store(path) as other:
                ask(other, id, "cancel")
                asked.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        while not home.commands.names(id):
            time.sleep(0.001)
        with home.transaction():
            if state is ExperimentState.ACTIVE:
                assert home.commands.take(id)
            home.experiments.update(id, state=state)
    thread.join(timeout=20)
    assert asked.is_set()
    assert home.experiments.get(id).state is state
    assert states(home, id) == ["RUNNING"]


# Giving up one trial


def test_one_trial_is_given_up_by_its_driver(home: Store) -> None:
    id = experiment(home, TrialState.RUNNING, searcher=RANDOM)
    heard: list[Any] = []

    def hears(own: Store) -> None:
        heard.extend(own.commands.take(id))
        own.trials.update(1, state=TrialState.CANCELED)

    with driven(home, id, hears):
        give_up(home, 1, now=True)
    assert [(command.kind, command.args) for command in heard] == [(GIVE_UP, {"trial": 1, "now": True})]


def test_a_trial_that_has_ended_or_that_nobody_drives_is_not_given_up(home: Store) -> None:
    id = experiment(home, TrialState.ERROR, TrialState.PAUSED, searcher=RANDOM)
    with pytest.raises(StoreError, match=r"^trial 1 is error already; nothing is left to cancel$"):
        give_up(home, 1, now=False)
    with pytest.raises(
        StoreError, match=rf"nobody drives experiment {id}, .* trial 2; go on with it \(det resume {id}\)"
    ):
        give_up(home, 2, now=False)
    assert not home.commands.names(id)


def test_a_driver_that_does_not_answer_is_named(home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lifecycle, "_HEARS_SECONDS", 0.2)
    id = experiment(home, TrialState.RUNNING)
    message = f"^the driver of experiment {id} does not answer; try again$"
    with driven(home, id, lambda own: None):
        with pytest.raises(StoreError, match=message):
            give_up(home, 1, now=False)
        with pytest.raises(StoreError, match=message):
            describe(home, id, name="other")
    assert taken(home, id) == [GIVE_UP, DESCRIBE]


# Describing


def test_what_is_said_of_an_experiment_is_changed_by_its_driver_where_it_has_one(home: Store) -> None:
    id, heard = experiment(home), []
    describe(home, id, name="free", labels=["a"])
    assert (home.experiments.get(id).name, home.experiments.get(id).labels) == ("free", ("a",))
    with driven(home, id, lambda own: heard.extend(own.commands.take(id))):
        describe(home, id, description="driven")
    assert [(command.kind, command.args) for command in heard] == [(DESCRIBE, {"description": "driven"})]


# Waiting


def test_it_is_said_who_holds_slots_and_who_asked_before(home: Store) -> None:
    first, second, third, gone = experiment(home), experiment(home), experiment(home), 77
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    assert waits_for(home, third, 1) == ""
    home.slots.leases(gone, 1, devices, count=2)
    home.slots.leases(third, 1, devices)
    assert home.slots.leases(second, 2, devices) == []
    assert home.slots.leases(first, 1, devices) == []
    assert waits_for(home, third, 1) == "for 1 slot: experiment 77 holds 2, experiment 2 (x) asked before, " + (
        "experiment 1 (x) asked before"
    )
    assert waits_for(home, first, 2) == (
        "for 2 slots: experiment 3 (x) holds 1, experiment 77 holds 2, experiment 2 (x) asked before"
    )
    assert waits_for(home, second, 2) == "for 2 slots: experiment 3 (x) holds 1, experiment 77 holds 2"


# Where an engine works


def name_of(store: Store, id: int, machine: str) -> str:
    return f"det-{hashlib.sha256(f'{machine}:{store.home.resolve()}'.encode()).hexdigest()[:8]}-{id}"


def test_a_home_that_several_machines_have_is_the_same_one_on_each(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lifecycle, "is_shared", lambda directory: directory == home.home)
    id = experiment(home)
    site = site_of(home, id, Plugins.installed())
    assert (site.name, site.seen) == (name_of(home, id, ""), True)


def test_what_only_a_plugin_knows_that_is_not_here_is_no_hindrance(
    home: Store, dismissed: list[tuple[str, bool]]
) -> None:
    id = on_deaf_engine(home)
    with home.lock(id):
        text = home.experiments.get(id).config.replace('"engine": null', '"engine": {"name": "gone", "queue": "long"}')
        assert "long" in text
        home.experiments.update(id, config=text)
    ask(home, id, "cancel")
    assert len(dismissed) == 1


def test_an_engine_is_told_where_it_works(home: Store, tmp_path: Path) -> None:
    listed = {"environment_variables": ["A=b=c", "EMPTY="]}
    id = experiment(home, environment=listed)
    site = site_of(home, id, Plugins.installed(), DriverSettings(home=home.home, slots=1, lease=7.0))
    assert site.name == name_of(home, id, os.uname().nodename)
    assert (site.directory, site.host, site.lease, site.seen) == (home.agents_dir(id), "127.0.0.1", 7.0, False)
    assert (site.settings, site.preparation) == (None, None)
    assert site.probe is not None
    spec = site.probe.spec
    assert (spec.run_id, spec.entrypoint, spec.trial_class) == (0, "", False)
    assert (spec.code_dir, spec.log_dir) == (home.code_dir(id), home.agents_dir(id))
    variables = dict(spec.variables)
    assert (variables["A"], variables["EMPTY"]) == ("b=c", "")
    assert from_json(variables["DET_EXPERIMENT_CONFIG"]).searcher is not None
    assert variables["DET_CHECKPOINT_ROOT"] == str(home.home / "checkpoints")
    assert site.probe.storage().url("a") == str(home.home / "checkpoints" / "a")
    assert site_of(home, id, Plugins.installed()).lease == 0.0
    with Store(tmp_path / "another") as other:
        assert site_of(other, experiment(other), Plugins.installed()).name != site.name


def test_an_engine_on_other_hosts_is_told_an_address_and_its_settings(home: Store) -> None:
    id = experiment(home, engine={"name": "ssh", "hosts": ["localhost"]}, distributed={"hosts": ["localhost"]})
    site = site_of(home, id, Plugins.installed())
    assert site.settings is not None
    assert site.settings.hosts == ("localhost",)  # type: ignore[attr-defined]
    assert site.host
