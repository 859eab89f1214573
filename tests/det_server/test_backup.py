"""Backups of a home that is in use: taken, restored to another place, and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.det_server.conftest import PASSWORD, fill
from tests.det_server.test_command import refused, said

from det_core.checkpoint import write_checkpoint
from det_core.storage import LocalStorage
from det_driver.store import ExperimentState, Store
from det_server import Users
from det_server.backup import MANIFEST, Manifest, _Copier, back_up, restore

TRAIN = """\
import json
import time
from pathlib import Path
from det_core import core

with core.init() as context:
    first = 0
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            first = json.loads((path / "state.json").read_text())
    print("began at", first, flush=True)
    for n in range(first + 1, 7):
        context.train.report_validation_metrics(n, {"loss": 1.0 / n})
        with context.checkpoint.store_path({"steps_completed": n}) as (path, uuid):
            (path / "state.json").write_text(json.dumps(n))
        while n == 4 and not Path(GATE).exists():
            time.sleep(0.1)
"""
CONFIG = """\
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 6}}
resources: {slots_per_trial: 0}
"""


def det(home: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "det_driver.cli", *words]
    return subprocess.Popen(command, env={**os.environ, "DET_HOME": str(home), "DET_MASTER": ""})


def validations(home: Path) -> list[tuple[int, float]]:
    with Store.reader(home) as store:
        (trial,) = store.trials.list(1)
        reports = store.metrics.read(trial_id=trial.id, group="validation")
        return [(report.batches, report.values["loss"]) for report in reports]


@pytest.mark.process
@pytest.mark.timeout(240)
def test_a_backup_of_a_running_experiment_is_resumed(tmp_path: Path) -> None:
    home, other, gate = tmp_path / "home", tmp_path / "other", tmp_path / "gate"
    (tmp_path / "train.py").write_text(TRAIN.replace("GATE", repr(str(gate))))
    (tmp_path / "const.yaml").write_text(CONFIG)
    driver = det(home, "run", str(tmp_path / "const.yaml"), str(tmp_path), "--quiet")
    while not (home / "experiments/1/experiment.db").exists() or len(validations_so_far(home)) < 4:
        assert driver.poll() is None
        time.sleep(0.1)
    backup = tmp_path / "backup"
    assert said(home, "server", "backup", str(backup), "--checkpoints").startswith(
        f"{backup} is a backup of {home}: "
    )
    restored = said(other, "server", "restore", str(backup)).splitlines()
    assert restored[1:] == ["paused, as they were running: 1; go on with: det resume"]
    with Store.reader(other) as store:
        assert store.experiments.get(1).state is ExperimentState.PAUSED
    gate.touch()
    # Both go on, and neither knows of the other.
    assert det(other, "resume", "1", "--quiet").wait() == 0
    assert driver.wait() == 0
    assert validations(other) == validations(home) == [(n, 1.0 / n) for n in range(1, 7)]
    with Store.reader(other) as store:
        assert [run.number for run in store.runs.list(store.trials.list(1)[0].id)] == [1, 2]


def validations_so_far(home: Path) -> list[tuple[int, float]]:
    with Store.reader(home) as store:
        return validations(home) if store.trials.list(1) else []


def test_users_and_experiments_are_restored(home: Path, tmp_path: Path) -> None:
    fill(home)
    (home / "config.yaml").write_text("max_restarts: 1\n")
    with Store(home) as store:
        store.experiments.update(2, state=ExperimentState.ACTIVE, ended=None)
        (store.code_dir(1) / ".hidden.lock").write_text("code")
        (store.code_dir(1) / "link").symlink_to("/etc/passwd")
    backup, other = tmp_path / "backup", tmp_path / "other"
    assert "without checkpoints" in said(home, "server", "backup", str(backup))
    assert "paused, as they were running: 2" in said(other, "server", "restore", str(backup))
    assert (other / "experiments/1/code/.hidden.lock").read_text() == "code"
    assert not (other / "experiments/1/code/link").is_symlink()
    assert (other / "config.yaml").read_text() == "max_restarts: 1\n"
    assert Users(other).sign_in("ann", PASSWORD)
    with Store.reader(home) as mine, Store.reader(other) as theirs:
        for id in (1, 3):
            assert mine.experiments.get(id) == theirs.experiments.get(id)
            assert mine.trials.list(id) == theirs.trials.list(id)
        assert (theirs.experiments.get(2).reason or "").startswith("it is restored from a backup")
        created = theirs.experiments.get(1).created
    assert Users(other).owner(1, created) == "ann"
    assert [path.stat().st_mode & 0o777 for path in (backup, other)] == [0o700] * 2


def while_copying(
    monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[Any], object]
) -> None:
    """Call `act` with the first argument of a method of the copier, before that is called."""
    called = getattr(_Copier, method)

    def acting(self: _Copier, given: Any, **options: Any) -> Any:
        act(given)
        return called(self, given, **options)

    monkeypatch.setattr(_Copier, method, acting)


def test_what_begins_during_a_backup_is_paused_under_its_numbers(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home)

    def begin(name: str) -> None:
        if name == "2":
            with Store(home) as store, store.lock(2):
                store.experiments.update(2, state=ExperimentState.ACTIVE, ended=None)
                store.trials.create(2, 1, {}, 0)

    while_copying(monkeypatch, "copy_experiment", begin)
    other = tmp_path / "other"
    back_up(home, tmp_path / "backup", checkpoints=False)
    assert restore(tmp_path / "backup", other) == [2]
    with Store(other) as store:
        assert store.experiments.get(2).state is ExperimentState.PAUSED
        with store.lock(1):
            new = store.trials.create(1, 1, {}, 0)
        assert new.id not in {trial.id for trial in store.trials.list(2)}


def test_an_experiment_deleted_during_a_backup_is_left_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home)

    def delete(id: int) -> None:
        if id == 2:
            with Store(home) as store:
                store.experiments.delete(2)

    while_copying(monkeypatch, "_copy_checkpoints", delete)
    back_up(home, tmp_path / "backup", checkpoints=True)
    assert sorted(each.name for each in (tmp_path / "backup/experiments").iterdir()) == ["1", "3"]


def test_the_source_of_a_trial_outlives_its_experiment_in_backup(
    home: Path, tmp_path: Path
) -> None:
    fill(home)
    write = partial(write_checkpoint, LocalStorage(home / "checkpoints"), framework="", batches=1)
    uuid = write(lambda path: (path / "w").write_bytes(b"w")).uuid
    with Store(home) as store, store.lock(2):
        store.trials.create(2, 1, {}, 0, source_checkpoint=uuid)
    back_up(home, tmp_path / "backup", checkpoints=True)
    assert (tmp_path / "backup/checkpoints" / uuid / "w").read_bytes() == b"w"


def test_what_is_there_is_never_overwritten(home: Path, tmp_path: Path) -> None:
    fill(home)
    backup = tmp_path / "backup"
    assert "has no experiments to back up" in refused(tmp_path, "server", "backup", str(backup))
    said(home, "server", "backup", str(backup))
    assert "is not empty" in refused(home, "server", "backup", str(backup))
    assert "is not empty" in refused(home, "server", "restore", str(backup))
    assert Users(home).sign_in("ann", PASSWORD)


def test_a_damaged_backup_is_refused_and_nothing_written(home: Path, tmp_path: Path) -> None:
    fill(home)
    backup, other = tmp_path / "backup", tmp_path / "other"
    said(home, "server", "backup", str(backup))
    database, manifest = backup / "experiments/1/experiment.db", backup / MANIFEST
    whole, listed = database.read_bytes(), manifest.read_bytes()

    def says() -> str:
        sentence = refused(other, "server", "restore", str(backup))
        assert not other.exists()
        return sentence

    database.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "experiments/1/experiment.db has changed" in says()
    database.unlink()
    assert "experiments/1/experiment.db is missing" in says()
    database.symlink_to("/etc/passwd")
    assert "experiments/1/experiment.db has changed" in says()
    database.unlink()
    database.write_bytes(whole)
    (backup / "more").touch()
    assert "more does not belong to it" in says()
    (backup / "more").unlink()
    found = msgspec.json.decode(listed, type=Manifest)
    outside = {**json.loads(listed), "files": {**found.files, "../../escaped": [0, ""]}}
    manifest.write_text(json.dumps(outside))
    assert "../../escaped is missing" in says()
    manifest.write_text(json.dumps({**json.loads(listed), "format": 2}))
    assert "is a backup of a newer det" in says()
    manifest.write_text("[]")
    assert "is no whole backup" in says()
    manifest.write_bytes(listed)
    said(other, "server", "restore", str(backup))
