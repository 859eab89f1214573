"""Scripts that call `Trainer.fit` themselves, alone and under `det run`."""

from __future__ import annotations

import runpy
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from tests.det_lightning.conftest import Line
from tests.det_lightning.users import (
    Alone,
    Data,
    Seen,
    by_script,
    cosine,
    keeping,
    quiet,
    scheduled,
)
from tests.support.compared import compare

from det_core import TrialError, core
from det_lightning import DetCallback, snapshot, trainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "script_lightning"
NAME = "script: ModelCheckpoint, EarlyStopping, a logger, a data module"

SCRIPT = """
import os
import signal
import time
from pathlib import Path

import lightning.pytorch as pl
from tests.det_lightning.users import by_script

from det_core import core

FOLDER = Path(os.environ["FOLDER"])


def first(what):
    there = (FOLDER / what).exists()
    (FOLDER / what).touch()
    return not there


class Disturbed(pl.Callback):
    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == 13 and first("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if trainer.global_step == 18 and first("paused"):
            while not context.preempt.should_preempt():
                time.sleep(0.05)


with core.init() as context:
    by_script(context, FOLDER, Disturbed())
"""


def test_the_example_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    runpy.run_path(str(EXAMPLE / "train.py"), run_name="__main__")
    assert "val_loss" in capsys.readouterr().out


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(
        scheduled(cosine)(Seen()), Data, enable_checkpointing=True, **keeping(tmp_path / "alone")
    )


def kept(folder: Path) -> dict[str, Any]:
    """Return the weights in each file of a ModelCheckpoint.

    Of files that it wrote twice, those of the second time.
    """
    files = sorted(folder.glob("best/*"), reverse=True)
    return {plain(file): torch.load(file, weights_only=True)["state_dict"] for file in files}


def plain(file: Any) -> str:
    """Return the name of a file as it would be if there had not been one already."""
    return Path(file).name.replace("-v1", "")


def best_of(callbacks: dict[str, Any]) -> Any:
    (state,) = (state for name, state in callbacks.items() if name.startswith("ModelCheckpoint"))
    return plain(state["best_model_path"]), {
        plain(file): float(v) for file, v in state["best_k_models"].items()
    }


def test_a_script_trains_as_by_lightning(
    tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its callbacks keep the same files."""
    monkeypatch.chdir(tmp_path)
    with core.init() as context:
        by_det = by_script(context, tmp_path / "det")
    weights = [
        (each.module.state_dict(), kept(tmp_path / who))
        for each, who in ((by_det, "det"), (alone, "alone"))
    ]
    compare(NAME, "undisturbed", (weights[0], weights[1]), (by_det.metrics(), alone.metrics()))
    assert sorted(weights[1][1]) == ["epoch=0-step=8.ckpt", "epoch=1-step=16.ckpt"]
    logs = [next((tmp_path / who).rglob("metrics.csv")).read_text() for who in ("det", "alone")]
    assert logs[0] == logs[1]


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_script_that_was_killed_and_paused_is_as_by_lightning(
    det: Any, wait_until: Any, alone: Alone
) -> None:
    """It goes on from the validation before, and where it was paused.

    Its reports, and the files that it keeps, are the same.

    Lightning writes no file anew: what the killed run wrote behind det's checkpoint has a second
    one, `-v1`, beside it.
    """
    config = (EXAMPLE / "const.yaml").read_text()
    (det.cwd / "const.yaml").write_text(config.replace("epochs: 5", "epochs: 4"))
    (det.cwd / "train.py").write_text(SCRIPT)
    folder = det.home.parent / "det"
    folder.mkdir()
    env = {"FOLDER": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    driver = det.start("run", "const.yaml", "-q", env=env)
    wait_until((folder / "paused").exists, "the batch where it waits to be paused", 120)
    driver.terminate()
    assert driver.wait(timeout=90) == 130
    det("resume", "1", "-q", env=env)
    (trial,) = det.json("show", "1")["trials"]
    assert (trial["restarts"], trial["runs"]) == (1, 3)
    rows = det.metrics(1)
    metrics = {
        name: {row["batches"]: row[name] for row in rows if name in row}
        for name in ("loss_step", "loss_epoch", "val_loss")
    }
    newest = max(det.json("checkpoint", "list", "1"), key=lambda checkpoint: checkpoint["batches"])
    state = torch.load(next(det.home.rglob(newest["uuid"])) / "lightning.ckpt", weights_only=True)
    assert {row["batches"] for row in rows if "at_end" in row} == {9, 17, 24}
    weights = (
        (state["state_dict"], kept(folder)),
        (alone.module.state_dict(), kept(folder.with_name("alone"))),
    )
    compare(NAME, "killed and paused", weights, (metrics, alone.metrics()))
    other = torch.load(
        folder.with_name("alone") / "best" / "epoch=1-step=16.ckpt", weights_only=True
    )
    assert best_of(state["callbacks"]) == best_of(other["callbacks"])


class Watching(Line):
    """Steps a scheduler that watches a metric, behind each batch."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, threshold=10.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "loss", "interval": "step"},
        }


@pytest.mark.parametrize(
    ("at", "every"), [(8, 1.0), (4, 4)], ids=["at an epoch's end", "within an epoch"]
)
def test_a_script_counts_and_schedules_no_batch_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, every: float
) -> None:
    """Where it goes on behind a batch that a validation followed.

    The steps of its logger, too, are those of one run.
    """
    monkeypatch.chdir(tmp_path)

    def logged(*names: str) -> list[str]:
        return [
            line
            for name in names
            for line in (tmp_path / name / "metrics.csv").read_text().splitlines()[1:]
        ]

    with core.init() as context:

        def scripted(name: str, until: int | None, uuid: str | None = None) -> str:
            callback = DetCallback(context)
            callback.max_batches = until
            if uuid is not None:
                callback._fetch(uuid, from_start=False)
            logger = pl.loggers.CSVLogger(tmp_path, name, version="")
            more = {"val_check_interval": every, "log_every_n_steps": 1, "logger": logger}
            trainer = quiet(max_epochs=2, callbacks=[callback], **more)
            trainer.fit(Watching(), ckpt_path=callback.ckpt_path, weights_only=True)
            host: Any = context.checkpoint._host
            found: str = host.checkpoints[-1][0].uuid
            return found

        def contents(uuid: str) -> str:
            with context.checkpoint.restore_path(uuid) as path:
                return str(snapshot.read(path))

        torch.manual_seed(5)
        whole = contents(scripted("whole", None))
        torch.manual_seed(5)
        assert contents(scripted("second", None, scripted("first", at))) == whole
    assert logged("first", "second") == logged("whole")


@pytest.mark.parametrize("reads", [False, True], ids=["forgotten", "given"])
def test_script_that_could_not_go_on_is_told_at_its_first_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """A restart would fail, after hours of training."""
    monkeypatch.chdir(tmp_path)
    with core.init(defaults=core.DefaultConfig(name="x"), record=False) as context:
        callback = DetCallback(context)
        trainer = quiet(max_steps=1, callbacks=[callback])
        given = {"ckpt_path": callback.ckpt_path} if reads else {}
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            trainer.fit(Line(), **given)
    said = [str(each.message) for each in found if "cannot go on" in str(each.message)]
    assert len(said) == (not reads)
    assert all("ckpt_path=callback.ckpt_path" in each for each in said)


class Vectors(torchmetrics.Metric):
    """Has a value for each class."""

    def update(self, value: Any) -> None:
        self.value = torch.stack([value, value])

    def compute(self) -> Any:
        return self.value


def test_metric_of_a_script_that_is_no_number_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of training and of validation. Others are reported."""

    class Named(Line):
        def __init__(self) -> None:
            super().__init__()
            self.vectors = torch.nn.ModuleList([Vectors(), Vectors()])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log_one("each", 0)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log_one("each_of_validation", 1)
            return super().validation_step(batch, batch_idx)

        def log_one(self, name: str, index: int) -> None:
            metric = self.vectors[index]
            metric(torch.tensor(1.0))
            step = index == 0
            self.log(name, metric, on_step=step, on_epoch=not step, logger=False)

    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as found, core.init() as context:
        warnings.simplefilter("always")
        reported: dict[str, set[str]] = {"training": set(), "validation": set()}
        for group, names in reported.items():
            monkeypatch.setattr(
                context.train,
                f"report_{group}_metrics",
                lambda at, metrics, names=names: names.update(metrics),
            )
        quiet(partial(trainer, context), max_epochs=2, report_every=1).fit(Named())
    said = [str(each.message) for each in found if "left out of the reports" in str(each.message)]
    assert [each.split(" is ")[0] for each in said] == [
        "metric 'each'",
        "metric 'each_of_validation'",
    ]
    assert reported == {"training": {"loss"}, "validation": {"val_loss"}}


PHASES = """
import os
import signal
from pathlib import Path

import lightning.pytorch as pl
from tests.det_lightning.conftest import Line
from torch.utils.data import DataLoader
import torch

import det_lightning
from det_core import core

data = DataLoader(torch.utils.data.TensorDataset(torch.eye(4).repeat(4, 1)), 2)


class Killed(pl.Callback):
    def on_train_batch_start(self, trainer, *args):
        if os.environ.get("KILL") and trainer.global_step == 6 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


with core.init() as context:
    model = Line()
    for more in ([], [Killed()]):
        trainer = det_lightning.trainer(
            context, max_epochs=2, val_check_interval=4, report_every=2, logger=False, callbacks=more,
            enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(model, data, data)
"""


def test_positions_of_a_second_fit_count_on(det: Any) -> None:
    """Its best checkpoint has its own metric. Killed in it, the run cannot go on, and says so."""
    (det.cwd / "train.py").write_text(PHASES)
    (det.cwd / "const.yaml").write_text(
        "entrypoint: python3 train.py\nmax_restarts: 1\n"
        "searcher: {name: single, metric: val_loss, max_length: {batches: 32}}\n"
    )
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    det("run", "const.yaml", "-q", env=root)
    rows = det.metrics(1, "validation")
    assert [row["batches"] for row in rows] == [4, 8, 12, 16, 20, 24, 28, 32]
    best = min(rows, key=lambda row: row["val_loss"])
    saved = {each["batches"]: each["metric"] for each in det.json("checkpoint", "list", "1")}
    assert saved[best["batches"]] == best["val_loss"]
    killed = det("run", "const.yaml", env={**root, "KILL": "1"}, status=2)
    assert "the checkpoint is of fit() number 2 of this script" in killed.stdout + killed.stderr
    notice = "a second fit() begins in this run. If it is interrupted, the run cannot go on"
    assert notice in killed.stdout


def test_what_is_no_core_context_is_refused() -> None:
    with pytest.raises(TrialError, match="DetCallback got int; give what"):
        DetCallback(3)  # type: ignore[arg-type]
