"""Checkpoints that cannot be read, do not fit, or cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

STOPS = """
import os


class Trial(Sound):
    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 2 and os.environ.get("FAILS"):
            raise ValueError("not yet")
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
HOOK = """

class Hook(PyTorchCallback):
    def state_dict(self):
        return {{"kept": 1}}

    def {hook}(self, *arguments):
        raise ValueError("boom")


Trial.build_callbacks = lambda self: {{"hook": Hook()}}
"""
WAY_OUT = "no older one is sound: restore its files and go on with det resume 1 --checkpoint "


def failed_once(project: Any, monkeypatch: pytest.MonkeyPatch, model: str = STOPS) -> Path:
    """Train half of a trial, which then fails; return its checkpoint."""
    project.model(model)
    monkeypatch.setenv("FAILS", "1")
    project.quick(
        "run",
        "const.yaml",
        "--in-process",
        "--quiet",
        "--config",
        "min_checkpoint_period.batches=2",
        status=1,
    )
    monkeypatch.delenv("FAILS")
    (checkpoint,) = project.home.glob("checkpoints/*")
    return checkpoint


def cut_short(checkpoint: Path) -> str:
    size = (checkpoint / "state_dict.pth").stat().st_size
    os.truncate(checkpoint / "state_dict.pth", 100)
    return (
        f"checkpoint {checkpoint.name}: state_dict.pth has 100 bytes, {size} expected: it was cut"
        f" short; {WAY_OUT}"
    )


def altered(checkpoint: Path) -> str:
    data = bytearray((checkpoint / "loop.json").read_bytes())
    data[-2] ^= 1
    (checkpoint / "loop.json").write_bytes(data)
    return f"checkpoint {checkpoint.name}: loop.json has the SHA-256 "


def a_file_deleted(checkpoint: Path) -> str:
    size = (checkpoint / "state_dict.pth").stat().st_size
    (checkpoint / "state_dict.pth").unlink()
    return (
        f"checkpoint {checkpoint.name}: state_dict.pth is missing, {size} bytes expected; {WAY_OUT}"
    )


def a_file_added(checkpoint: Path) -> str:
    (checkpoint / "notes.txt").write_text("?")
    return f"checkpoint {checkpoint.name}: notes.txt is there, but not in manifest.json; {WAY_OUT}"


def no_manifest(checkpoint: Path) -> str:
    (checkpoint / "manifest.json").unlink()
    return (
        f"checkpoint {checkpoint.name} has no manifest.json: it was cut short, or det did not write"
        f" it; {WAY_OUT}"
    )


def another_manifest(checkpoint: Path) -> str:
    document = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(document | {"batches": 3}))
    return (
        f"checkpoint {checkpoint.name}: manifest.json was altered: its seal does not match;"
        f" {WAY_OUT}"
    )


def deleted(checkpoint: Path) -> str:
    shutil.rmtree(checkpoint)
    where = f"{checkpoint.parent}, which holds no checkpoint at all: is it mounted?"
    return f"no checkpoint {checkpoint.name} in {where}"


@pytest.mark.parametrize(
    "damage",
    [cut_short, altered, a_file_deleted, a_file_added, no_manifest, another_manifest, deleted],
)
def test_a_damaged_checkpoint_is_one_line_and_nothing_is_trained(
    project: Any, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], str]
) -> None:
    line = damage(failed_once(project, monkeypatch))
    before = project.quick("metrics", "1", "--json", status=0).stdout
    done = project.quick("resume", "1", "--in-process", "--quiet", status=2)
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"det: trial 1: {line}")
    assert project.quick("metrics", "1", "--json", status=0).stdout == before


def test_a_checkpoint_that_was_put_back_is_resumed_from(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = failed_once(project, monkeypatch)
    checkpoint.rename(project.home / "elsewhere")
    project.quick("resume", "1", "--in-process", "--quiet", status=2)
    (project.home / "elsewhere").rename(checkpoint)
    project.quick("resume", "1", "--in-process", "--quiet", status=0)
    assert [row["batches"] for row in project.json("metrics", "1", "--group", "validation")] == [
        2,
        4,
    ]


@pytest.mark.parametrize("hook", ["on_checkpoint_load_start", "load_state_dict"])
def test_hook_error_while_loading_shows_the_users_frame(
    project: Any, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    failed_once(project, monkeypatch, STOPS + HOOK.format(hook=hook))
    done = project.quick("resume", "1", "--in-process", "--quiet", status=1)
    told = done.stderr.splitlines()
    assert told[1].endswith(f", in {hook}")
    assert told[-2:] == ["ValueError: boom", "det: trial 1: ValueError: boom"]
    assert "det_torch/" not in done.stderr


def started_from(project: Any, checkpoint: Path) -> subprocess.CompletedProcess[str]:
    arguments = ("run", "const.yaml", "--in-process", "--quiet", "--config")
    done: subprocess.CompletedProcess[str] = project.quick(
        *arguments, f"searcher.source_checkpoint_uuid={checkpoint.name}"
    )
    return done


def test_a_checkpoint_of_another_models_shape_is_one_line(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = failed_once(project, monkeypatch)
    project.model("""
        class Trial(Sound):
            def __init__(self, context):
                self.context = context
                self.model = context.wrap_model(nn.Linear(1, 2))
                self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    """)
    done = started_from(project, checkpoint)
    (told,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert told.startswith("det: trial 2: the checkpoint does not fit the trial's model: ")
    assert "size mismatch for weight" in told


def test_a_checkpoint_of_more_optimizers_is_one_line(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = failed_once(project, monkeypatch)
    project.model("""
        class Trial(Sound):
            def __init__(self, context):
                super().__init__(context)
                context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    """)
    done = started_from(project, checkpoint)
    line = "the trial has 2 optimizers, but the checkpoint holds 1; it is of another trial"
    assert (done.returncode, done.stderr) == (2, f"det: trial 2: {line}\n")


def test_a_checkpoint_of_another_framework_is_one_line(project: Any) -> None:
    project.write(
        "train.py",
        """
        from det_core import core

        with core.init() as context:
            with context.checkpoint.store_path({"steps_completed": 3}) as (path, uuid):
                (path / "weights").write_text("w")
        """,
    )
    project.write(
        "script.yaml", "entrypoint: python3 train.py\nsearcher: {name: single, metric: error}\n"
    )
    project.quick("run", "script.yaml", "--quiet", status=0)
    (checkpoint,) = project.home.glob("checkpoints/*")
    project.model("Trial = Sound")
    done = started_from(project, checkpoint)
    (told,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert told.startswith("det: trial 2: ")
    assert checkpoint.name in told or "PyTorchTrial" in told


def test_a_checkpoint_that_holds_more_than_data_is_not_unpickled(
    project: Any, tmp_path: Path
) -> None:
    """Also one that det itself published, were it told to by a callback."""
    project.model("""
        class Evil:
            def __reduce__(self):
                return print, ("unpickled",)


        class Hook(PyTorchCallback):
            def on_checkpoint_write_end(self, checkpoint_dir):
                torch.save({"models_state_dict": Evil()}, checkpoint_dir / "state_dict.pth")


        class Trial(Sound):
            def build_callbacks(self):
                return {"hook": Hook()}
    """)
    project.quick("run", "const.yaml", "--in-process", "--quiet", status=0)
    checkpoint = next(project.home.glob("checkpoints/*"))
    done = started_from(project, checkpoint)
    (told,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "cannot be read safely" in told
    assert "unpickled" not in done.stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("needs root, to mount a small disk")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_full_disk_is_one_line_and_the_run_resumes_exactly(project: Any, small_disk: Path) -> None:
    project.model("Trial = Sound")
    storage = (
        f"checkpoint_storage={{type: shared_fs, host_path: {small_disk}, save_trial_latest: 2}}"
    )
    project.quick(
        "run", "const.yaml", "--in-process", "--quiet", "--config", "name=undisturbed", status=0
    )
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(
        b"\0" * (free - 6 * 4096)
    )  # the event files have room, and no checkpoint
    done = project.quick(
        "run", "const.yaml", "--in-process", "--quiet", "--config", storage, status=2
    )
    (told,) = done.stderr.splitlines()
    assert told.startswith("det: trial 2: cannot write checkpoint ")
    assert f" to {small_disk}" in told
    assert "No space left on device" in told
    assert told.endswith("; make room there, or name another place in checkpoint_storage")
    assert "go on with: det resume 2" in done.stdout
    left = [path.name for path in small_disk.iterdir()]
    assert [name for name in left if not name.startswith("tensorboard-")] == ["ballast"]
    (small_disk / "ballast").unlink()
    project.quick("resume", "2", "--in-process", "--quiet", status=0)
    numbers = [
        [
            {k: v for k, v in row.items() if k != "trial"}
            for row in project.json("metrics", experiment)
        ]
        for experiment in ("1", "2")
    ]
    assert numbers[0] == numbers[1]
    weights = [
        torch.load(state, weights_only=True)["models_state_dict"][0]["weight"]
        for state in (newest(project.home / "checkpoints"), newest(small_disk))
    ]
    assert torch.equal(*weights)


def newest(storage: Path) -> Path:
    return max(storage.glob("*/state_dict.pth"), key=lambda path: path.stat().st_mtime_ns)


def test_a_checkpoint_that_nobody_knows_is_one_line(project: Any) -> None:
    project.model("Trial = Sound")
    project.quick("run", "const.yaml", "--in-process", "--quiet", status=0)
    for command in (("delete", "nope", "--yes"), ("show", "nope"), ("export", "nope", "out")):
        done = project.quick("checkpoint", *command)
        line = "no checkpoint 'nope'; det checkpoint list EXPERIMENT shows an experiment's"
        assert (done.returncode, done.stderr) == (2, f"det: {line}\n")
    done = started_from(project, Path("nope"))
    line = (
        f"no checkpoint nope in {project.home}/checkpoints; `det checkpoint list` shows those"
        " there are"
    )
    assert (done.returncode, done.stderr) == (2, f"det: trial 2: {line}\n")


def test_a_storage_whose_package_is_missing_names_it(project: Any) -> None:
    project.model("Trial = Sound")
    storage = "checkpoint_storage={type: gcs, bucket: x}"
    done = project.quick(
        "run", "const.yaml", "--in-process", "--quiet", "--config", storage, status=2
    )
    (told,) = done.stderr.splitlines()
    assert told.startswith("det: trial 1: ")
