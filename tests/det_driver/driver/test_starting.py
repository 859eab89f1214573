"""What a driver knows of its machine, which experiments it starts, what an engine gets of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_transactions import RANDOM, state_of

from det_core.config import parse
from det_core.errors import DetError
from det_core.ranks.backend import START_SECONDS
from det_core.support.origin import THREADS
from det_core.train.environ import WorkerEnv
from det_driver.driver import DriverSettings, check_startable
from det_driver.driver._starting import (
    Starter,
    clear_scratch,
    record_threads,
    recorded_threads,
    scratch_of,
    threads_of,
)
from det_driver.driver._state import State
from det_driver.engines import Node, RunSpec
from det_driver.provenance import write
from det_driver.store import Lease, Store
from det_node.environments import digest_of

SINGLE = {"name": "single", "metric": "loss", "max_length": 1}
CORES = len(os.sched_getaffinity(0))
OMP = "OMP_NUM_THREADS"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def config_of(**settings: Any) -> Any:
    return parse(
        {"entrypoint": "model_def:Trial", "hyperparameters": {}, "searcher": SINGLE, **settings}
    ).config


# The machine


def test_variables_say_what_a_driver_would_find_out_or_assume(tmp_path: Path) -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "",
        "DET_SLOTS_TOTAL": "3",
        "DET_START_TIMEOUT": "7.5",
        "DET_AGENT": "rsh {host}",
    }
    environ |= {
        "DET_LEASE": "4",
        "DET_ENVIRONMENTS": str(tmp_path / "e"),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "",
    }
    found = DriverSettings.detect(environ, home=tmp_path, engine="ssh")
    expected = DriverSettings(
        home=tmp_path, slots=3, engine="ssh", threads={OMP: "1"}, start_timeout=7.5, lease=4.0
    )
    assert found == replace(expected, agent="rsh {host}", environments=tmp_path / "e")
    assert found.root == tmp_path / "e"


def test_without_them_a_machine_has_its_cores_and_a_minute(tmp_path: Path) -> None:
    found = DriverSettings.detect(
        {"CUDA_VISIBLE_DEVICES": "", "DET_AGENT": "", "DET_LEASE": ""}, home=tmp_path
    )
    assert (found.slots, found.gpus, found.engine, found.lease) == (CORES, (), "local", 60.0)
    assert (found.threads, found.start_timeout) == ({}, START_SECONDS)
    assert found.agent.startswith("ssh ")
    assert found.root == DriverSettings(home=tmp_path, slots=1).root == tmp_path / "envs"


def test_gpus_are_slots_whatever_cpus_there_are(tmp_path: Path) -> None:
    found = DriverSettings.detect(
        {"CUDA_VISIBLE_DEVICES": "5,7", "DET_SLOTS_TOTAL": "9"}, home=tmp_path
    )
    assert (found.slots, found.gpus) == (2, ("5", "7"))


def test_gpus_keep_their_numbers_if_nvidia_smi_fails_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: X (UUID: GPU-aaaa)'\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert DriverSettings(home=tmp_path, slots=2, gpus=("0", "1")).devices() == (
        "cuda:GPU-aaaa",
        "cuda:1",
    )
    tool.write_text("no program")
    assert DriverSettings(home=tmp_path, slots=1, gpus=("GPU-a",)).devices() == ("cuda:GPU-a",)


# What can start


@pytest.mark.parametrize(
    ("settings", "gpus", "message"),
    [
        (
            {"resources": {"slots_per_trial": 3}},
            (),
            (
                "resources.slots_per_trial is 3, but this machine has 2 CPU slots and no GPU; ask"
                " for 2 at most"
            ),
        ),
        (
            {"resources": {"slots_per_trial": 3}},
            ("0", "1"),
            "resources.slots_per_trial is 3, but this machine has 2 GPUs; ask for 2 at most",
        ),
        (
            {"resources": {"slots_per_trial": 2, "max_slots": 1}},
            (),
            "resources.slots_per_trial is 2, and resources.max_slots is 1; no trial could ever run",
        ),
    ],
)
def test_what_could_never_run_is_refused(
    tmp_path: Path, settings: dict[str, Any], gpus: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DetError) as refused:
        check_startable(config_of(**settings), DriverSettings(home=tmp_path, slots=2, gpus=gpus))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"resources": {"slots_per_trial": 2, "max_slots": 2}}, 2),
        ({"resources": {"slots_per_trial": 1}}, 0),
        ({"resources": {"slots_per_trial": 4}, "distributed": {"hosts": ["one:2", "two:2"]}}, 1),
        ({"resources": {"slots_per_trial": 4}, "engine": {"name": "ssh", "hosts": ["one"]}}, 1),
    ],
)
def test_what_can_run_here_or_elsewhere_is_not(
    tmp_path: Path, settings: dict[str, Any], slots: int
) -> None:
    check_startable(config_of(**settings), DriverSettings(home=tmp_path, slots=slots))


def test_an_environment_that_the_engine_cannot_have_is_refused(tmp_path: Path) -> None:
    elsewhere = config_of(environment={"python": sys.executable})
    with pytest.raises(DetError, match="asks for another; leave one of them out"):
        check_startable(elsewhere, DriverSettings(home=tmp_path, slots=1, engine="in-process"))


@pytest.mark.parametrize("name", ["local", "in-process"])
def test_an_engine_of_this_machine_has_no_more_than_it(tmp_path: Path, name: str) -> None:
    wide = config_of(resources={"slots_per_trial": 2}, engine={"name": name})
    with pytest.raises(DetError, match="this machine has 1 CPU slots"):
        check_startable(wide, DriverSettings(home=tmp_path, slots=1))


BY_TIME = {
    "name": "adaptive_asha",
    "metric": "loss",
    "time_metric": "seconds",
    "max_time": 8,
    "max_trials": 2,
}


def test_time_metric_of_a_trial_class_needs_a_validation_period(tmp_path: Path) -> None:
    """This concerns a time metric that validations report."""
    settings = DriverSettings(home=tmp_path, slots=1)
    with pytest.raises(
        DetError, match=r"^searcher.time_metric is 'seconds', which validations report"
    ):
        check_startable(config_of(searcher=BY_TIME), settings)
    check_startable(config_of(searcher=BY_TIME, min_validation_period={"batches": 9}), settings)
    check_startable(config_of(searcher=BY_TIME, entrypoint="python3 train.py"), settings)
    check_startable(config_of(searcher=BY_TIME | {"time_metric": "batches"}), settings)


# A run


def spec_of(
    state: State, settings: DriverSettings, node: Node | None = None, slots: int = 1, **more: Any
) -> RunSpec:
    """Begin a run of the first trial and return what an engine is told of it."""
    node = node or Node("")
    devices = node.devices or tuple(f"cpu:{k}" for k in range(8))
    live = state.queue.first
    assert live is not None
    with state.transaction():
        state.begin(
            live, Lease(state.id, tuple(range(slots)), devices[:slots]), more.pop("batches", 0)
        )
    return Starter(state, settings, more.pop("warm", ("torch",))).spec(
        live, more.pop("latest", None), node
    )


def read(spec: RunSpec) -> WorkerEnv:
    """Return what the run's processes will find."""
    found = WorkerEnv.read(dict(spec.variables))
    assert found is not None
    return found


def test_an_engine_is_told_all_of_a_run(store: Store) -> None:
    state = state_of(store, RANDOM | {"source_checkpoint_uuid": "abc"})
    settings = DriverSettings(home=store.home, slots=2, start_timeout=33.0)
    spec = spec_of(state, settings)
    live = state.trials[0]
    assert live.active is not None
    run = live.active.run
    assert (spec.run_id, spec.entrypoint, spec.trial_class) == (run.id, "model_def:Trial", True)
    assert (spec.slots, spec.devices, spec.node, spec.world_size) == ((0,), ("cpu:0",), "", 0)
    assert (spec.ranks, spec.launcher, spec.preload) == (({},), (), ("torch",))
    assert (spec.environment, spec.python) == ("", "")
    assert (spec.code_dir, spec.log_dir) == (store.code_dir(1), run.log_dir)
    assert not spec.log_dir.exists(), "who starts it makes it, where it is"
    told = read(spec)
    assert (told.experiment_id, told.trial_id, told.run_id, told.run_number) == (1, 1, run.id, 1)
    assert (told.seed, told.hparams, told.slots, told.slot_ids) == (
        live.plan.seed,
        live.plan.hparams,
        1,
        (0,),
    )
    assert (told.latest_checkpoint, told.steps_completed, told.warm) == ("abc", 0, True)
    assert told.target == state.target(live)
    assert (told.chief, told.start_timeout, told.scratch) == (
        "127.0.0.1",
        33.0,
        run.log_dir / "scratch",
    )
    assert told.checkpoint_root == store.home / "checkpoints"
    assert told.tensorboard_dir == state.view.tensorboard_dir / "trial-1"
    assert told.spool == store.experiment_dir(1) / "spool"
    assert told.config == state.config
    assert (told.environment, told.commit, told.alone) == (None, None, None)
    assert spec.variables == told.variables() | threads(max(1, CORES // 2)), (
        "all of it, each run anew"
    )


def test_what_goes_on_from_its_own_checkpoint_is_no_warm_start(store: Store) -> None:
    state = state_of(store, RANDOM | {"source_checkpoint_uuid": "abc"})
    told = read(spec_of(state, DriverSettings(home=store.home, slots=1), latest="own", batches=7))
    assert (told.latest_checkpoint, told.steps_completed, told.warm) == ("own", 7, False)


def test_a_first_run_from_nothing_is_no_warm_start_either(store: Store) -> None:
    told = read(spec_of(state_of(store), DriverSettings(home=store.home, slots=1)))
    assert (told.latest_checkpoint, told.warm) == (None, False)


def test_ranks_are_told_where_they_stand_and_their_device(store: Store) -> None:
    state = state_of(store, SINGLE, resources={"slots_per_trial": 2})
    node = Node("n", ("n/0", "n/1"), ("4", "6"))
    spec = spec_of(state, DriverSettings(home=store.home, slots=1), node, 2)
    assert (read(spec).slots, read(spec).slot_ids) == (2, (0, 1))
    assert [(r["DET_RANK"], r["DET_SIZE"], r["CUDA_VISIBLE_DEVICES"]) for r in spec.ranks] == [
        ("0", "2", "4"),
        ("1", "2", "6"),
    ]
    assert dict(spec.variables)["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert (spec.preload, spec.node, spec.world_size) == (None, "n", 0)
    assert "OMP_NUM_THREADS" in spec.variables  # the driver's own machine has no GPU


def test_the_gpus_of_this_machine_are_the_drivers_to_tell(store: Store) -> None:
    state = state_of(store, SINGLE, resources={"slots_per_trial": 2})
    spec = spec_of(state, DriverSettings(home=store.home, slots=2, gpus=("1", "3")), slots=2)
    assert [r["CUDA_VISIBLE_DEVICES"] for r in spec.ranks] == ["1", "3"]
    assert dict(spec.variables)["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert spec.variables["OMP_NUM_THREADS"] == str(max(1, CORES // 2))


def test_run_on_several_machines_knows_its_local_ranks(store: Store) -> None:
    state = state_of(store, SINGLE, resources={"slots_per_trial": 3})
    node = Node.of([Node("a", ("a/0", "a/1")), Node("b", ("b/0",))])
    spec = spec_of(state, DriverSettings(home=store.home, slots=1), node, 3)
    assert spec.world_size == 3
    assert [
        (r["DET_RANK"], r["DET_LOCAL_RANK"], r["DET_LOCAL_SIZE"], r["DET_CROSS_RANK"])
        for r in spec.ranks
    ] == [("0", "0", "2", "0"), ("1", "1", "2", "0"), ("2", "0", "1", "1")]
    active = state.trials[0].active
    assert active is not None
    assert active.nodes == ("a", "b")


def test_a_script_starts_its_ranks_itself(store: Store) -> None:
    state = state_of(
        store, SINGLE, entrypoint=["python3", "train.py"], resources={"slots_per_trial": 2}
    )
    spec = spec_of(state, DriverSettings(home=store.home, slots=2, gpus=("1", "3")), slots=2)
    assert (spec.entrypoint, spec.trial_class, spec.ranks) == (
        ("python3", "train.py"),
        False,
        ({},),
    )
    assert (spec.launcher, spec.world_size, read(spec).target) == ((), 0, None)
    assert dict(spec.variables)["CUDA_VISIBLE_DEVICES"] == "1,3"


HOSTS = {"hosts": ["one:2", "two"]}


def test_ranks_on_configured_hosts_are_started_by_a_launcher(store: Store) -> None:
    listed = {"cpu": ["A=cpu"], "cuda": ["A=cuda"]}
    state = state_of(
        store,
        SINGLE,
        distributed=HOSTS,
        resources={"slots_per_trial": 3},
        environment={"environment_variables": listed},
    )
    spec = spec_of(state, DriverSettings(home=store.home, slots=2, agent="rsh {host}"), slots=3)
    assert spec.launcher == (
        *(sys.executable, "-P", "-m", "det_driver.cli", "launch", "socket"),
        *("--hosts", "one:2,two:1", "--agent", "rsh {host}"),
    )
    assert (spec.ranks, read(spec).slots) == (({},), 3)
    assert dict(spec.variables)["A"] == "cpu"
    assert "OMP_NUM_THREADS" not in spec.variables  # each host knows its own cores


def test_user_variables_fit_the_device_and_yield_to_those_of_det(store: Store) -> None:
    listed = {
        "cpu": ["A=cpu=1", "DET_TRIAL_ID=9", "OMP_NUM_THREADS=7"],
        "cuda": ["A=cuda", "CUDA_VISIBLE_DEVICES=9"],
    }
    state = state_of(store, environment={"environment_variables": listed})
    variables = dict(spec_of(state, DriverSettings(home=store.home, slots=2)).variables)
    assert (variables["A"], variables["DET_TRIAL_ID"], variables["OMP_NUM_THREADS"]) == (
        "cpu=1",
        "1",
        "7",
    )
    variables = dict(
        spec_of(state, DriverSettings(home=store.home, slots=1, gpus=("3",))).variables
    )
    assert (variables["A"], variables["CUDA_VISIBLE_DEVICES"]) == ("cuda", "3")


def test_another_interpreter_is_told_to_the_engine(store: Store) -> None:
    state = state_of(store, environment={"python": sys.executable})
    assert spec_of(state, DriverSettings(home=store.home, slots=1)).python == sys.executable


def test_an_environment_of_its_own_is_told_by_its_digest(store: Store, tmp_path: Path) -> None:
    state = state_of(store, environment={"python": "3.12"})
    solved = store.experiment_dir(state.id) / "environment"
    solved.mkdir()
    (solved / "environment.json").write_text('{"maker": "uv"}')
    spec = spec_of(state, DriverSettings(home=store.home, slots=1, environments=tmp_path / "envs"))
    assert (spec.environment, spec.python) == (digest_of(solved), "")
    variables = dict(spec.variables)
    assert (variables["DET_ENVIRONMENT"], variables["DET_ENVIRONMENTS"]) == (
        digest_of(solved),
        str(tmp_path / "envs"),
    )


def test_a_run_knows_the_commit_of_its_code(store: Store) -> None:
    state = state_of(store)
    write(store.experiment_dir(state.id), {"git": {"commit": "abc", "dirty": True}})
    assert read(spec_of(state, DriverSettings(home=store.home, slots=1))).commit == "abc+"


def test_a_run_without_a_slot_is_one_process_all_the_same(store: Store) -> None:
    state = state_of(store, resources={"slots_per_trial": 0})
    spec = spec_of(state, DriverSettings(home=store.home, slots=1), slots=0)
    assert (spec.slots, spec.ranks, read(spec).slots, read(spec).slot_ids) == ((), ({},), 1, ())


def test_scratch_of_a_run_is_cleared_and_its_logs_are_kept(store: Store) -> None:
    state = state_of(store)
    spec = spec_of(state, DriverSettings(home=store.home, slots=1))
    active = state.trials[0].active
    assert active is not None
    scratch = Path(scratch_of(active.run))
    (scratch / "shared").mkdir(parents=True)
    clear_scratch(active.run)
    clear_scratch(active.run)
    assert not scratch.exists()
    assert spec.log_dir.is_dir()
    scratch.write_text("no directory")
    clear_scratch(active.run)
    assert scratch.is_file(), "what cannot be cleared stops nobody"


# Threads


@pytest.mark.parametrize(
    ("searcher", "slots_per_trial", "slots", "share"),
    [
        (SINGLE, 1, 4, 1),  # alone on its machine
        (SINGLE, 2, 4, 2),
        (RANDOM, 1, 2, 2),
        (RANDOM, 1, 1, 1),  # two at once, but there is a slot for one
        (RANDOM, 2, 4, 4),
        (RANDOM, 2, 2, 2),
        (RANDOM | {"max_concurrent_trials": 0}, 1, 0, 1),
        (RANDOM | {"max_concurrent_trials": 0}, 1, 3, 3),  # as many as there are slots
        (RANDOM | {"max_concurrent_trials": 64}, 1, 64, 64),
        (RANDOM, 0, 2, 2),
    ],
)
def test_ranks_that_may_run_at_once_share_the_cores(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    searcher: dict[str, Any],
    slots_per_trial: int,
    slots: int,
    share: int,
) -> None:
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    config = config_of(
        searcher=searcher, hyperparameters=space, resources={"slots_per_trial": slots_per_trial}
    )
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: range(16) if pid == 0 else ()
    )  # of this process
    assert threads_of(DriverSettings(home=tmp_path, slots=slots), config, True) == threads(
        max(1, 16 // share)
    )


def threads(number: int) -> dict[str, str]:
    return dict.fromkeys(THREADS, str(number))


def test_threads_that_are_chosen_are_those_of_every_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The configuration comes first, as it goes with the experiment.

    A script's process has all of its trial's share.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16) if pid == 0 else ())
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    config = config_of(searcher=RANDOM, hyperparameters=space)
    for gpus in ((), ("0", "1")):
        chosen = DriverSettings(home=tmp_path, slots=2, gpus=gpus, threads={OMP: "5"})
        assert threads_of(chosen, config, True) == threads(8) | {OMP: "5"}
        mine = config_of(searcher=RANDOM, hyperparameters=space, resources={"threads": 3})
        assert threads_of(chosen, mine, True) == threads(3)
        assert threads_of(replace(chosen, threads={}), config, True) == threads(8)
    script = config_of(resources={"slots_per_trial": 4})
    assert threads_of(DriverSettings(home=tmp_path, slots=4), script, False) == threads(16)


def test_experiment_keeps_its_thread_count_on_another_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config, settings = config_of(), DriverSettings(home=tmp_path, slots=4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16))
    record_threads(tmp_path, settings, config)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2))
    record_threads(tmp_path, settings, config)
    for later in (settings, replace(settings, threads=threads(7))):
        assert recorded_threads(tmp_path, later, config) == threads(16)
    chosen = config_of(resources={"threads": 3})
    assert recorded_threads(tmp_path, settings, chosen) == threads(3)


def test_configured_hosts_use_the_configured_thread_count(store: Store) -> None:
    state = state_of(
        store, SINGLE, distributed=HOSTS, resources={"slots_per_trial": 3, "threads": 2}
    )
    spec = spec_of(state, DriverSettings(home=store.home, slots=2, agent="rsh {host}"), slots=3)
    assert threads(2).items() <= spec.variables.items()
