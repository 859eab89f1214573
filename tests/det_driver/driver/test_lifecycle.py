"""What is done with an experiment between its drivers.

Made, asked of, taken up again, and said why it waits.
"""

from __future__ import annotations

import hashlib
import os
import shutil
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
from det_core.errors import ConfigError, DetError, StoreError
from det_driver.driver import (
    DriverSettings,
    _lifecycle,
    cancel_trial,
    create,
    describe,
    reopen,
    send_command,
    waits_for,
)
from det_driver.driver._lifecycle import CANCEL_TRIAL, engine_context
from det_driver.driver._search import TrialReopened, decode_event
from det_driver.engines import Engine, EngineContext
from det_driver.provenance import read
from det_driver.store import DESCRIBE_COMMAND, ExperimentState, Snapshot, Store, TrialState
from det_node.environments import EnvironmentMaker, Wanted

RANDOM = {
    "name": "random",
    "metric": "error",
    "smaller_is_better": False,
    "max_trials": 2,
    "max_length": 4,
}
SINGLE = {"name": "single", "metric": "loss", "max_length": 10}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as store:
        yield store


def config_of(**settings: Any) -> ExperimentConfig:
    space = (
        {"lr": {"type": "double", "minval": 0, "maxval": 1}}
        if settings.get("searcher") == RANDOM
        else {}
    )
    return parse(
        {"entrypoint": "model_def:Trial", "hyperparameters": space, "searcher": SINGLE, **settings}
    ).config


def experiment(
    store: Store, *states: TrialState, state: ExperimentState | None = None, **settings: Any
) -> int:
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
def driven(store: Store, id: int, on_event: Callable[[Store], None]) -> Iterator[None]:
    """Hold an experiment as its driver, in a thread that hears commands at once."""
    there, over = threading.Event(), threading.Event()

    def drive() -> None:
        with Store(store.home) as own, own.lock(id):
            there.set()
            while not over.is_set():
                if own.commands.names(id):
                    on_event(own)
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

    def stop_detached(self, context: EngineContext, *, at_once: bool) -> bool:
        self.dismissed.append((context.name, at_once))
        return True


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


def test_create_records_the_config_and_copies_the_code(home: Store, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text("class Trial: pass\n")
    config = config_of(
        searcher=RANDOM,
        description="why",
        labels=["a", "b"],
        reproducibility={"experiment_seed": 0},
    )
    id = create(home, config, code, default_name="by its file", engine="in-process")
    made = home.experiments.get(id)
    assert (made.name, made.description, made.labels, made.engine) == (
        "by its file",
        "why",
        ("a", "b"),
        "in-process",
    )
    assert (made.entrypoint, made.metric, made.smaller_is_better) == (
        "model_def:Trial",
        "error",
        False,
    )
    assert (home.code_dir(id) / "model_def.py").read_text() == "class Trial: pass\n"
    assert from_json(made.config).reproducibility.experiment_seed == 0
    assert from_json(made.config).name == "by its file"
    assert "python" in read(home.experiment_dir(id))


def test_a_seed_is_the_time_and_a_name_the_users_own(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 2.0**32 + 2.0**31 + 41.7)
    config = config_of(name="mine", searcher=None, entrypoint=["python3", "train it.py"])
    made = home.experiments.get(create(home, config, None, default_name="by its file"))
    assert from_json(made.config).reproducibility.experiment_seed == 2**31 + 41
    assert (made.name, made.entrypoint, made.engine) == ("mine", "python3 train it.py", "local")
    assert (made.metric, made.smaller_is_better, made.description, made.labels) == (
        "",
        True,
        "",
        (),
    )
    assert home.code_dir(made.id).is_dir()
    assert home.experiments.get(create(home, config_of(), None)).name == "experiment"


@pytest.mark.process
def test_failed_copy_of_the_code_leaves_no_experiment(home: Store, tmp_path: Path) -> None:
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
        (into / "lock").write_text(
            f"{wanted.requirements} for {wanted.directory} below {wanted.root}"
        )

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
        assert (
            lock.read_text()
            == f"('six',) for {directory or tmp_path} below {environments or home.home / 'envs'}"
        )
        assert not [
            *(environments or home.home / "envs").iterdir()
        ]  # what was solved lies with the experiment alone


# Taking it up again


def test_active_or_paused_experiment_needs_only_its_code(home: Store) -> None:
    id = experiment(home, TrialState.PAUSED, state=ExperimentState.PAUSED)
    reopen(home, id)
    assert (states(home, id), [*home.journal.read(id)]) == (["PAUSED"], [])
    home.code_dir(id).rmdir()
    with pytest.raises(
        StoreError, match=rf"^the code of experiment {id} is gone: restore {home.code_dir(id)}"
    ):
        reopen(home, id)


def test_ended_experiment_is_not_reopened_even_without_its_code(home: Store) -> None:
    for state in (ExperimentState.COMPLETED, ExperimentState.CANCELED):
        id = experiment(home, state=state)
        home.code_dir(id).rmdir()
        with pytest.raises(StoreError) as refused:
            reopen(home, id)
        assert (
            str(refused.value)
            == f"experiment {id} is {state.lower()}; start another from its checkpoints with"
            " searcher.source_trial_id"
        )


def test_reopening_a_single_search_resets_its_failed_trial(home: Store) -> None:
    id = experiment(home, TrialState.ERROR, state=ExperimentState.ERROR)
    with home.lock(id):
        home.trials.update(1, restarts=5, ended=9.0, exit_reason="ERRORED")
        home.snapshots.keep(id, Snapshot(1, "1.0", 1, 1, b"that has seen its exit"))
    reopen(home, id)
    assert home.snapshots.read(id) == []
    (trial,) = home.trials.list(id)
    assert (str(trial.state), trial.restarts, trial.ended, trial.exit_reason) == (
        "PAUSED",
        0,
        None,
        None,
    )
    assert [decode_event(event.data) for event in home.journal.read(id)] == [TrialReopened(0)]


def test_reopening_a_single_search_keeps_an_unfailed_trial(home: Store) -> None:
    id = experiment(home, TrialState.COMPLETED, state=ExperimentState.ERROR)
    reopen(home, id)
    assert (states(home, id), [*home.journal.read(id)]) == (["COMPLETED"], [])
    none = experiment(home, state=ExperimentState.ERROR)
    reopen(home, none)
    assert states(home, none) == []


def test_reopened_search_drops_failed_trials_if_others_are_open(home: Store) -> None:
    id = experiment(
        home, TrialState.ERROR, TrialState.PAUSED, state=ExperimentState.ERROR, searcher=RANDOM
    )
    reopen(home, id)
    assert (states(home, id), [*home.journal.read(id)]) == (["ERROR", "PAUSED"], [])
    with home.lock(id):
        home.trials.update(home.trials.list(id)[1].id, state=TrialState.COMPLETED)
    with pytest.raises(
        StoreError, match=f"^experiment {id} is a search whose trials have all ended; mend them"
    ):
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
def test_command_takes_effect_at_once_without_a_driver(
    home: Store, word: str, becomes: str, trials: list[str]
) -> None:
    id = experiment(home, TrialState.COMPLETED, TrialState.PAUSED, searcher=RANDOM)
    before = time.time()
    with home.lock(id):
        home.experiments.update(id, pid=99)
    send_command(home, id, word)
    now = home.experiments.get(id)
    assert (str(now.state), states(home, id), now.pid) == (becomes, trials, None)
    assert (now.ended is not None and now.ended >= before) == (becomes == "CANCELED")
    assert (home.home / "garbage" / str(id)).exists() == (becomes == "CANCELED")


@pytest.mark.parametrize("word", ["pause", "cancel", "kill"])
def test_no_driver_can_start_while_a_command_takes_effect(
    home: Store, word: str, wait_until: Any
) -> None:
    id, path = experiment(home), home.home

    def asks() -> None:
        with Store(path) as other:
            send_command(other, id, word)

    thread = threading.Thread(target=asks)
    with closing(
        sqlite3.connect(home.experiment_dir(id) / "experiment.db", isolation_level=None)
    ) as held_up:
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
def test_runs_without_a_driver_end_with_their_experiment(
    home: Store, dismissed: list[tuple[str, bool]], word: str
) -> None:
    id = on_deaf_engine(home)
    send_command(home, id, word)
    ((name, at_once),) = dismissed
    assert name.endswith(f"-{id}")
    assert at_once == (word == "kill")


def test_experiment_of_a_missing_engine_can_be_canceled(home: Store) -> None:
    id = on_deaf_engine(home)
    send_command(home, id, "cancel")
    assert home.experiments.get(id).state is ExperimentState.CANCELED


def test_an_experiment_that_has_ended_is_asked_nothing(home: Store) -> None:
    id = experiment(home, state=ExperimentState.COMPLETED)
    with pytest.raises(
        StoreError, match=f"^experiment {id} is completed already; nothing is left to pause$"
    ):
        send_command(home, id, "pause")
    heard: list[str] = []
    with (
        driven(home, id, lambda own: heard.append("a word")),
        pytest.raises(StoreError, match="is completed already; nothing is left to kill"),
    ):
        send_command(home, id, "kill")
    assert heard == []


def test_a_driver_hears_what_is_asked_and_who_asks_returns_then(home: Store) -> None:
    id, heard = experiment(home, TrialState.RUNNING), list[Any]()

    def on_event(own: Store) -> None:
        time.sleep(0.8)  # longer than it takes to see that somebody has the lock
        heard.extend(own.commands.take(id))

    with driven(home, id, on_event):
        began = time.monotonic()
        send_command(home, id, "pause")
        assert time.monotonic() - began < 5
        assert [command.kind for command in heard] == ["pause"]
    assert (
        home.experiments.get(id).state is ExperimentState.ACTIVE
    )  # that is the driver's to decide
    assert states(home, id) == ["RUNNING"]


def test_command_to_an_unresponsive_driver_returns_after_a_delay(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lifecycle, "_READ_SECONDS", 0.3)
    id = experiment(home)
    with driven(home, id, lambda own: None):
        began = time.monotonic()
        send_command(home, id, "pause")
        assert time.monotonic() - began >= 0.3
    assert taken(home, id) == ["pause"]


def test_command_to_a_driver_that_ends_first_takes_effect(home: Store) -> None:
    id = experiment(home, TrialState.RUNNING)
    path = home.home
    with home.lock(id):

        def cancel() -> None:
            with Store(path) as other:
                send_command(other, id, "cancel")

        thread = threading.Thread(target=cancel)
        thread.start()
        while not home.commands.names(id):
            time.sleep(0.01)
    thread.join(timeout=20)
    assert home.experiments.get(id).state is ExperimentState.CANCELED
    assert states(home, id) == ["CANCELED"]
    assert not home.commands.names(id)
    with pytest.raises(StoreError, match="is canceled already"):
        send_command(home, id, "pause")


@pytest.mark.parametrize("state", [ExperimentState.COMPLETED, ExperimentState.ACTIVE])
def test_a_driver_that_heard_and_ended_has_decided(home: Store, state: ExperimentState) -> None:
    """Between two looks of who asks, it took the word or came to its end.

    Nothing is changed behind it.
    """
    id, path = experiment(home, TrialState.RUNNING), home.home
    asked = threading.Event()
    with home.lock(id):

        def cancel() -> None:
            with Store(path) as other:
                send_command(other, id, "cancel")
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

    def on_event(own: Store) -> None:
        heard.extend(own.commands.take(id))
        own.trials.update(1, state=TrialState.CANCELED)

    with driven(home, id, on_event):
        cancel_trial(home, 1, now=True)
    assert [(command.kind, command.args) for command in heard] == [
        (CANCEL_TRIAL, {"trial": 1, "now": True})
    ]


def test_ended_trial_or_one_without_a_driver_cannot_be_canceled(home: Store) -> None:
    id = experiment(home, TrialState.ERROR, TrialState.PAUSED, searcher=RANDOM)
    with pytest.raises(StoreError, match=r"^trial 1 is error already; nothing is left to cancel$"):
        cancel_trial(home, 1, now=False)
    with pytest.raises(
        StoreError,
        match=rf"nobody drives experiment {id}, .* trial 2; go on with it \(det resume {id}\)",
    ):
        cancel_trial(home, 2, now=False)
    assert not home.commands.names(id)


def test_a_driver_that_does_not_answer_is_named(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lifecycle, "_READ_SECONDS", 0.2)
    id = experiment(home, TrialState.RUNNING)
    message = f"^the driver of experiment {id} does not answer; try again$"
    with driven(home, id, lambda own: None):
        with pytest.raises(StoreError, match=message):
            cancel_trial(home, 1, now=False)
        with pytest.raises(StoreError, match=message):
            describe(home, id, name="other")
    assert taken(home, id) == [CANCEL_TRIAL, DESCRIBE_COMMAND]


# Describing


def test_driver_applies_description_changes_of_its_experiment(home: Store) -> None:
    id, heard = experiment(home), []
    describe(home, id, name="free", labels=["a"])
    assert (home.experiments.get(id).name, home.experiments.get(id).labels) == ("free", ("a",))
    with driven(home, id, lambda own: heard.extend(own.commands.take(id))):
        describe(home, id, description="driven")
    assert [(command.kind, command.args) for command in heard] == [
        (DESCRIBE_COMMAND, {"description": "driven"})
    ]


# Waiting


def test_it_is_said_who_holds_slots_and_who_asked_before(home: Store) -> None:
    first, second, third, gone = experiment(home), experiment(home), experiment(home), 77
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    assert waits_for(home, third, 1) == ""
    home.slots.leases(gone, 1, devices, count=2)
    home.slots.leases(third, 1, devices)
    assert home.slots.leases(second, 2, devices) == []
    assert home.slots.leases(first, 1, devices) == []
    assert (
        waits_for(home, third, 1)
        == "for 1 slot: experiment 77 holds 2, experiment 2 asked before, "
        + "experiment 1 asked before"
    )
    assert (
        waits_for(home, first, 2)
        == "for 2 slots: experiment 3 holds 1, experiment 77 holds 2, experiment 2 asked"
        " before"
    )
    assert waits_for(home, second, 2) == "for 2 slots: experiment 3 holds 1, experiment 77 holds 2"


def test_three_experiments_are_named_of_those_before_one(home: Store) -> None:
    """A driver prints the sentence with each change, and hundreds may wait."""
    ids = [experiment(home) for _ in range(6)]
    for id in ids:
        home.slots.leases(id, 1, ["cpu:0"])
    assert waits_for(home, ids[-1], 1) == (
        "for 1 slot: experiment 1 holds 1, experiment 2 asked before, experiment 3 asked"
        " before, and 2 more experiments"
    )


# Where an engine works


def name_of(store: Store, id: int, machine: str) -> str:
    return (
        f"det-{hashlib.sha256(f'{machine}:{store.home.resolve()}'.encode()).hexdigest()[:8]}-{id}"
    )


def test_engine_context_of_a_shared_home_has_one_name_everywhere(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lifecycle, "is_shared", lambda directory: directory == home.home)
    id = experiment(home)
    context = engine_context(home, id, Plugins.installed())
    assert (context.name, context.seen) == (name_of(home, id, ""), True)


def test_driver_on_another_machine_finds_earlier_allocations(
    home: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Claims are found by the site's name.

    det does not see of every home that several machines have it.
    """
    id = experiment(home)
    settings, first = DriverSettings(home=home.home, slots=1), os.uname()
    assert engine_context(home, id, Plugins.installed()).name == name_of(home, id, first.nodename)
    assert not (home.agents_dir(id) / "site").exists(), "who only looks leaves nothing"
    context = engine_context(home, id, Plugins.installed(), settings)
    second = os.uname_result(("Linux", "another", *first[2:]))
    monkeypatch.setattr(os, "uname", lambda: second)
    assert engine_context(home, id, Plugins.installed(), settings).name == context.name
    assert engine_context(home, id, Plugins.installed()).name == context.name

    shutil.copytree(home.home, tmp_path / "copy")
    with Store(tmp_path / "copy") as copy:
        assert engine_context(copy, id, Plugins.installed(), settings).name == name_of(
            copy, id, "another"
        )
    for damage in (
        b"",
        b"\xff",
        b"1 det-00000000-1",
        b"x y z",
        f"{home.agents_dir(id).stat().st_ino} ../x".encode(),
    ):
        (home.agents_dir(id) / "site").write_bytes(damage)
        assert engine_context(home, id, Plugins.installed()).name == name_of(home, id, "another")


def test_config_of_a_missing_plugin_does_not_prevent_cancel(
    home: Store, dismissed: list[tuple[str, bool]]
) -> None:
    id = on_deaf_engine(home)
    with home.lock(id):
        text = home.experiments.get(id).config.replace(
            '"engine": null', '"engine": {"name": "gone", "queue": "long"}'
        )
        assert "long" in text
        home.experiments.update(id, config=text)
    send_command(home, id, "cancel")
    assert len(dismissed) == 1


def test_an_engine_is_told_where_it_works(home: Store, tmp_path: Path) -> None:
    listed = {"environment_variables": ["A=b=c", "EMPTY="]}
    id = experiment(home, environment=listed)
    context = engine_context(
        home, id, Plugins.installed(), DriverSettings(home=home.home, slots=1, lease=7.0)
    )
    assert context.name == name_of(home, id, os.uname().nodename)
    assert (context.directory, context.host, context.lease, context.seen) == (
        home.agents_dir(id),
        "127.0.0.1",
        7.0,
        False,
    )
    assert (context.settings, context.preparation) == (None, None)
    assert context.probe is not None
    spec = context.probe.spec
    assert (spec.run_id, spec.entrypoint, spec.trial_class) == (0, "", False)
    assert (spec.code_dir, spec.log_dir) == (home.code_dir(id), home.agents_dir(id))
    variables = dict(spec.variables)
    assert (variables["A"], variables["EMPTY"]) == ("b=c", "")
    assert from_json(variables["DET_EXPERIMENT_CONFIG"]).searcher is not None
    assert variables["DET_CHECKPOINT_ROOT"] == str(home.home / "checkpoints")
    assert context.probe.storage().url("a") == str(home.home / "checkpoints" / "a")
    assert engine_context(home, id, Plugins.installed()).lease == 0.0
    with Store(tmp_path / "another") as other:
        assert engine_context(other, experiment(other), Plugins.installed()).name != context.name


def test_engine_on_other_hosts_gets_an_address_and_its_settings(home: Store) -> None:
    id = experiment(
        home, engine={"name": "ssh", "hosts": ["localhost"]}, distributed={"hosts": ["localhost"]}
    )
    context = engine_context(home, id, Plugins.installed())
    assert context.settings is not None
    assert context.settings.hosts == ("localhost",)  # type: ignore[attr-defined]
    assert context.host
