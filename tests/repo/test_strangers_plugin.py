"""A plugin of somebody else's, installed like any.

Each hook that it implements is called, with what the page says.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from det_core import EngineRecord, LauncherRecord, PluginError, Plugins, hookimpl

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch"

PLUGIN = """
import json
import os
from pathlib import Path

import msgspec

from det_core import PluginConfig, StorageRecord, hookimpl


def note(hook, **facts):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(json.dumps({"hook": hook, **facts}) + "\\n")


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    place: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    loud: bool = False


@hookimpl
def det_storages():
    yield StorageRecord(name="elsewhere", open=open_elsewhere, config=lambda: Elsewhere)


def open_elsewhere(config, default_root):
    from det_core.storage import LocalStorage

    return LocalStorage(config.place)


@hookimpl
def det_plugin_configs():
    yield PluginConfig(name="stranger", config=lambda: Settings)


def wrapper(name):
    @hookimpl(wrapper=True, specname=name)
    def wrap(context):
        built = yield
        note(name, type=type(built).__name__)
        return built

    return wrap


wrap_model = wrapper("det_build_model")
wrap_optimizer = wrapper("det_build_optimizer")
wrap_lr_scheduler = wrapper("det_build_lr_scheduler")


@hookimpl(wrapper=True)
def det_build_data_loader(context, split):
    built = yield
    note("det_build_data_loader", split=split)
    return built


@hookimpl
def det_experiment_started(experiment):
    note("det_experiment_started", name=experiment.name, loud=experiment.config.plugins["stranger"].loud)


@hookimpl
def det_run_started(experiment, trial, run):
    note("det_run_started", trial=trial.id, number=run.number, first=run.first_batch)


@hookimpl
def det_metrics_reported(experiment, trial, group, batches, metrics):
    note("det_metrics_reported", group=group, batches=batches, names=sorted(metrics))


@hookimpl
def det_checkpoint_saved(experiment, trial, checkpoint):
    note("det_checkpoint_saved", batches=checkpoint.batches, uuid=checkpoint.uuid)


@hookimpl
def det_run_finished(experiment, trial, run, outcome):
    note("det_run_finished", outcome=outcome, trials=experiment.search().trials)


@hookimpl
def det_experiment_finished(experiment, state):
    note("det_experiment_finished", state=state)
    raise RuntimeError("too late to matter")
"""
METADATA = "Metadata-Version: 2.1\nName: det-stranger\nVersion: 1.0\n"
CONFIG = """
name: strange
entrypoint: model_def:DigitsTrial
hyperparameters: {global_batch_size: 32, hidden: 8, lr: 0.1, momentum: 0.9, dropout: 0.0, workers: 0}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: 10}
checkpoint_storage: {type: elsewhere, place: PLACE}
plugins: {stranger: {loud: true}}
check_first: false
"""


@pytest.fixture
def stranger(det, tmp_path: Path) -> dict[str, str]:
    """Install a plugin that notes what it is told.

    Return the environment in which it is installed.
    """
    site = tmp_path / "site"
    about = site / "det_stranger-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text("[det]\nstranger = det_stranger\n")
    (site / "det_stranger.py").write_text(PLUGIN)
    shutil.copy(EXAMPLE / "model_def.py", det.cwd)
    (det.cwd / "const.yaml").write_text(CONFIG.replace("PLACE", str(tmp_path / "place")))
    return {"PYTHONPATH": str(site), "NOTES": str(tmp_path / "notes"), "DET_STRICT_PLUGINS": "0"}


def test_a_strangers_plugin_takes_part_in_a_run(det, stranger, tmp_path: Path) -> None:
    done = det("run", "const.yaml", env=stranger)
    notes = [json.loads(line) for line in Path(stranger["NOTES"]).read_text().splitlines()]
    (saved,) = (note for note in notes if note["hook"] == "det_checkpoint_saved")
    assert [{k: v for k, v in note.items() if k != "uuid"} for note in notes] == [
        {"hook": "det_experiment_started", "name": "strange", "loud": True},
        {"hook": "det_run_started", "trial": 1, "number": 1, "first": 0},
        {"hook": "det_build_model", "type": "Sequential"},
        {"hook": "det_build_optimizer", "type": "SGD"},
        {"hook": "det_build_lr_scheduler", "type": "StepLR"},
        {"hook": "det_build_data_loader", "split": "training"},
        {"hook": "det_build_data_loader", "split": "validation"},
        {
            "hook": "det_metrics_reported",
            "group": "training",
            "batches": 10,
            "names": ["batches", "epochs", "loss"],
        },
        {"hook": "det_checkpoint_saved", "batches": 10},
        {
            "hook": "det_metrics_reported",
            "group": "validation",
            "batches": 10,
            "names": ["accuracy", "batches", "epochs", "validation_loss"],
        },
        {"hook": "det_run_finished", "outcome": "completed", "trials": 1},
        {"hook": "det_experiment_finished", "state": "COMPLETED"},
    ]
    assert (tmp_path / "place" / saved["uuid"] / "manifest.json").is_file()
    assert (
        "observer 'stranger' failed in det_experiment_finished: RuntimeError: too late to matter"
        in done.stderr
    )


def test_a_strangers_plugin_is_listed_with_what_it_registers(det, stranger) -> None:
    rows = json.loads(det("plugins", "--json", env=stranger).stdout)
    (row,) = (row for row in rows if row["name"] == "stranger")
    assert row["distribution"] == "det-stranger 1.0"
    assert {"storages", "plugin_configs", "experiment_finished", "build_model"} <= set(row["hooks"])
    assert row["problem"] == ""


def test_engines_and_launchers_are_looked_up_by_name() -> None:
    class Places:
        @hookimpl
        def det_engines(self):
            yield EngineRecord(name="moon", load=lambda: "an engine")

        @hookimpl
        def det_launchers(self):
            yield LauncherRecord(name="rocket", load=lambda: "a launcher")

    plugins = Plugins()
    plugins.register(Places(), "places")
    assert plugins.engines()["moon"].load() == "an engine"
    assert plugins.launchers()["rocket"].load() == "a launcher"
    with pytest.raises(
        PluginError, match="no plugin registers the launcher 'sledge'; installed: rocket"
    ):
        plugins.launchers()["sledge"]
