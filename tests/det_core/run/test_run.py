"""One run of one trial, with real checkpoints in a real directory."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from det_core import (
    At,
    CheckpointError,
    CheckpointSink,
    Every,
    Framework,
    HostLost,
    InvalidHP,
    LocalHost,
    Loop,
    Plugins,
    Schedule,
    Stop,
    Target,
    hookimpl,
    restore,
    run_trial,
    train_from,
)
from det_core.checkpoint import read_checkpoint
from det_core.checkpoint.code import copy_code
from det_core.config import parse
from det_core.train import saving
from det_core.train.load_data import loading_run, read_load_data
from det_core.train.run import schedule_of
from det_core.train.saving import LOAD_FILE, PROGRESS_FILE
from det_testing import Runs, fake_hooks, fakes


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    plugins = Plugins(strict=True)
    plugins.register(fake_hooks, "fakes")
    return Runs(plugins, fakes.OwnedOneVar, tmp_path)


def test_checkpoint_holds_framework_loop_and_loading_data(runs: Runs) -> None:
    uuid = runs(3).checkpoints[3]
    with read_checkpoint(runs.storage, uuid) as (path, manifest):
        assert (manifest.framework, manifest.versions["fake-owned"], manifest.batches) == (
            "fake-owned",
            "1.0",
            3,
        )
        state = json.loads((path / PROGRESS_FILE).read_text())
        load = json.loads((path / LOAD_FILE).read_text())
    assert (state["batches"], state["finished"], state["trial_id"]) == (3, True, 1)
    assert load["trial_cls_spec"] == "det_testing.fakes:OwnedOneVar"
    assert load["hparams"]["lr"] == 0.03
    assert load["experiment_config"]["searcher"]["metric"] == "val_loss"


SECRET = """
checkpoint_storage: {type: s3, bucket: b, access_key: open-sesame, secret_key: wJalrXUtnFEMI}
environment: {environment_variables: [HF_TOKEN=hf_1234567, A=1]}
hyperparameters: {dsn: "pg://me:rosebud-1@h"}
"""


def test_no_checkpoint_file_holds_a_secret_of_the_configuration(runs: Runs, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for name in ("const.yaml", "const.YAML", "run.sh"):
        (code / name).write_text(SECRET)
    config = parse(yaml.safe_load(SECRET)).config
    hparams = {**runs.info().hparams, "dsn": "pg://me:rosebud-1@h"}
    info, host = (
        dataclasses.replace(runs.info(), code_dir=code, config=config, hparams=hparams),
        LocalHost(Target(n=1)),
    )
    run_trial(runs.framework, fakes.OwnedOneVar, info, host, CheckpointSink(storage=runs.storage))
    uuid = host.checkpoints[-1][0].uuid
    with read_checkpoint(runs.storage, uuid) as (path, _):
        everything = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
        facts = read_load_data(path)
    for secret in (b"open-sesame", b"wJalrXUtnFEMI", b"hf_1234567", b"rosebud-1"):
        assert secret not in everything
    assert b"bucket: b" in everything
    assert b"A=1" in everything
    assert (
        loading_run("fake-owned", facts["hparams"], facts["experiment_config"]).config.environment
        is not None
    )


def test_a_read_only_file_that_holds_a_secret_is_replaced(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy is never written, which root alone could, and it keeps its mode."""
    code, linked = tmp_path / "code", tmp_path / "linked"
    code.mkdir()
    (code / ".env").write_text("HF_TOKEN=hf_1234567\n")
    (code / ".env").chmod(0o400)

    def copy(source: Path, target: Path) -> None:
        copy_code(source, target)
        os.link(target / ".env", linked)

    monkeypatch.setattr(saving, "copy_code", copy)
    config = parse(yaml.safe_load(SECRET)).config
    info = dataclasses.replace(runs.info(), code_dir=code, config=config)
    host = LocalHost(Target(n=1))
    run_trial(runs.framework, fakes.OwnedOneVar, info, host, CheckpointSink(storage=runs.storage))
    with runs.storage.restore(host.checkpoints[-1][0].uuid) as path:
        assert (path / "code" / ".env").read_text() == "HF_TOKEN=********\n"
        assert (path / "code" / ".env").stat().st_mode & 0o777 == 0o400
        assert [file.name for file in (path / "code").iterdir()] == [".env"]
    assert linked.read_text() == "HF_TOKEN=hf_1234567\n"


def test_the_users_code_is_part_of_a_checkpoint(runs: Runs, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text("x = 1\n")
    info = dataclasses.replace(runs.info(), code_dir=code)
    host = LocalHost(Target(n=1))
    run_trial(runs.framework, fakes.OwnedOneVar, info, host, CheckpointSink(storage=runs.storage))
    with runs.storage.restore(host.checkpoints[-1][0].uuid) as path:
        assert (path / "code" / "model_def.py").read_text() == "x = 1\n"


def test_invalid_hp_raised_in_training_leaves_a_checkpoint(runs: Runs) -> None:
    class Declining(fakes.OwnedAdapter):
        def train(self, loop: Loop) -> None:
            for number in loop.batches(range(loop.done, 100)):
                if number == 3:
                    raise InvalidHP("too hot")
                loop.step(self.training.batch(number))

    host = LocalHost(Target(n=10))
    framework = dataclasses.replace(runs.framework, load=lambda: Declining)
    with pytest.raises(InvalidHP, match="too hot"):
        run_trial(
            framework, fakes.OwnedOneVar, runs.info(), host, CheckpointSink(storage=runs.storage)
        )
    assert [manifest.batches for manifest, _ in host.checkpoints] == [3]


def test_hook_that_raises_at_a_checkpoint_loses_no_training(runs: Runs) -> None:
    """The checkpoint holds what the hook wrote, and its error ends the run."""

    class Noting(fakes.OwnedAdapter):
        def written(self, path: Path) -> None:
            (path / "note").write_text("of the hook")
            raise ValueError("a mistake of the hook")

    host = LocalHost(Target(n=3))
    framework = dataclasses.replace(runs.framework, load=lambda: Noting)
    with pytest.raises(ValueError, match="a mistake of the hook"):
        run_trial(
            framework, fakes.OwnedOneVar, runs.info(), host, CheckpointSink(storage=runs.storage)
        )
    ((manifest, _),) = host.checkpoints
    assert manifest.batches == 3
    with read_checkpoint(runs.storage, manifest.uuid) as (path, _):
        assert (path / "note").read_text() == "of the hook"
    assert runs(5, checkpoint=manifest.uuid).weight == runs(5).weight


def test_what_waits_for_a_report_survives(runs: Runs) -> None:
    """Numbers that were trained before a preemption are part of the next report, bit for bit."""
    schedule = Schedule(report=Every(4), validate=At({2}), policy="none")
    whole = runs(4, schedule=schedule)
    quiet = Schedule(report=Every(4), policy="none")
    host = LocalHost(Target(n=4))

    class Preempting(fakes.OwnedAdapter):
        def train(self, loop: Loop) -> None:
            for number in loop.batches(range(loop.done, 100)):
                host.preempted.raised = number == 1
                loop.step(self.training.batch(number))

    framework = dataclasses.replace(runs.framework, load=lambda: Preempting)
    keep = CheckpointSink(storage=runs.storage)
    stop = run_trial(
        framework, fakes.OwnedOneVar, runs.info(), host, keep, schedule=lambda adapter: quiet
    )
    assert (stop, host.history) == (Stop.PREEMPTED, [])
    second = runs(4, schedule=quiet, checkpoint=host.checkpoints[-1][0].uuid)
    assert list(second.losses) == [4]
    assert second.weight == whole.weight
    assert second.losses[4] == runs(4, schedule=quiet).losses[4]


def test_another_trials_checkpoint_is_a_warm_start(runs: Runs) -> None:
    """Its weights are taken; the batches are counted from 0."""
    first = runs(4)
    info = dataclasses.replace(runs.info(), trial_id=2, checkpoint=first.checkpoints[4])
    host = LocalHost(Target(n=3))
    run_trial(runs.framework, fakes.OwnedOneVar, info, host, CheckpointSink(storage=runs.storage))
    last = host.history[-1]
    assert last[1] == 3
    assert last[2]["weight"] > first.weight


def test_a_checkpoint_without_a_loop_is_a_warm_start(runs: Runs) -> None:
    """One that det did not write has weights and nothing else."""
    from det_core.checkpoint import write_checkpoint

    with runs.adapter() as adapter:
        write_checkpoint(
            runs.storage, adapter.save, framework="fake-owned", batches=9, uuid="theirs"
        )
        info = dataclasses.replace(runs.info(), checkpoint="theirs")
        assert restore(adapter, runs.framework, info, runs.storage) is None


def test_a_foreign_checkpoint_is_refused_with_both_names(runs: Runs) -> None:
    foreign = runs(1, framework=dataclasses.replace(runs.framework, name="jax"))
    with pytest.raises(
        CheckpointError,
        match=r"was written by the framework 'jax', but the trial is of 'fake-owned'",
    ):
        runs(2, checkpoint=foreign.checkpoints[1])


def test_an_altered_checkpoint_is_refused(runs: Runs) -> None:
    uuid = runs(1).checkpoints[1]
    (runs.storage.root / uuid / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json"):
        runs(2, checkpoint=uuid)


class Deaf(LocalHost):
    """A host that is lost when it is told of a checkpoint."""

    def checkpointed(self, manifest: Any, storage: str) -> None:
        raise HostLost


def test_a_checkpoint_that_the_driver_cannot_be_told_of_is_kept(runs: Runs) -> None:
    lost: list[Any] = []
    keep = CheckpointSink(
        storage=runs.storage, unrecorded=lambda manifest, _: lost.append(manifest)
    )
    run_trial(runs.framework, fakes.OwnedOneVar, runs.info(), Deaf(Target(n=2)), keep)
    assert [manifest.batches for manifest in lost] == [2]
    assert runs.storage.exists(lost[0].uuid)


class Closing:
    """Registers an adapter that notes its end."""

    def __init__(self, adapter: type[fakes.OwnedAdapter]) -> None:
        self._adapter = adapter

    @hookimpl
    def det_frameworks(self) -> Iterator[Framework]:
        yield Framework(name="closing", trial="det_testing:OwnedTrial", load=lambda: self._adapter)


def adapter_that(fails_in: str, closed: list[str]) -> type[fakes.OwnedAdapter]:
    def fail(*arguments: Any) -> Any:
        raise ValueError(fails_in)

    def close(self: Any) -> None:
        closed.append(fails_in)

    return type(
        "Failing",
        (fakes.OwnedAdapter,),
        {fails_in: fail, "close": close} if fails_in else {"close": close},
    )


@pytest.mark.parametrize("method", ["train", "validate", "save", "numbers"])
def test_trial_error_passes_through_and_the_adapter_is_closed(tmp_path: Path, method: str) -> None:
    closed: list[str] = []
    plugins = Plugins(strict=True)
    plugins.register(Closing(adapter_that(method, closed)), "closing")
    runs = Runs(plugins, fakes.OwnedOneVar, tmp_path)
    with pytest.raises(ValueError, match=method):
        runs(2)
    assert closed == [method]
    # A validation that fails loses nothing that was trained before it.
    assert len(list(runs.storage.list())) == (method == "validate")


def test_an_adapter_that_stops_early_broke_the_rules(runs: Runs) -> None:
    class Lazy(fakes.OwnedAdapter):
        def train(self, loop: Loop) -> None:
            loop.step(self.training.batch(0))

    with pytest.raises(
        RuntimeError,
        match=r"Lazy\.train returned before the loop stopped; train until step\(\) is true",
    ):
        runs(5, framework=dataclasses.replace(runs.framework, load=lambda: Lazy))


def test_an_adapter_that_exists_is_trained_and_left_open(runs: Runs) -> None:
    with runs.adapter() as adapter:
        host = LocalHost(Target(n=2))
        stop = train_from(
            None, adapter, runs.framework, runs.info(), host, CheckpointSink(storage=runs.storage)
        )
        assert stop is Stop.COMPLETED
        assert adapter.validate()["weight"].item() == host.history[-1][2]["weight"]


def test_every_rank_hears_of_a_checkpoint_that_is_published(runs: Runs) -> None:
    heard: list[str] = []

    class Listening(fakes.OwnedAdapter):
        def saved(self, uuid: str) -> None:
            assert runs.storage.exists(uuid)
            heard.append(uuid)

    result = runs(2, framework=dataclasses.replace(runs.framework, load=lambda: Listening))
    assert heard == list(result.checkpoints.values())


def test_the_schedule_is_the_configurations(runs: Runs) -> None:
    """Epochs have 5 batches here, and batches 2 records."""
    config = parse(
        {
            "entrypoint": "model_def:Trial",
            "searcher": {"name": "single", "metric": "accuracy", "max_length": {"batches": 10}},
            "scheduling_unit": 30,
            "min_validation_period": {"epochs": 2},
            "min_checkpoint_period": {"records": 14},
            "checkpoint_policy": "all",
            "perform_initial_validation": True,
        }
    ).config
    with runs.adapter() as adapter:
        assert schedule_of(config, adapter) == Schedule(
            report=Every(30),
            validate=Every(10),
            checkpoint=Every(7),
            policy="all",
            metric="accuracy",
            validate_first=True,
        )


def test_the_schedule_of_a_configuration_that_asks_for_nothing(runs: Runs) -> None:
    config = parse({"entrypoint": "model_def:Trial"}).config
    with runs.adapter() as adapter:
        assert schedule_of(config, adapter) == Schedule(report=Every(100), policy="best")
