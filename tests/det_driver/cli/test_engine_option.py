"""Runs are executed where the command line says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.distributions import lay_out, on_path

from det_driver.store import Store

HOOKS = """
import msgspec
from det_core import EngineRecord, hookimpl
from det_driver.engines.local import LocalEngine


class Volume(msgspec.Struct, frozen=True):
    volume: int = 1


class Loud(LocalEngine):
    def start(self, spec):
        print("started by a stranger", self.context.settings, flush=True)
        super().start(spec)


@hookimpl
def det_engines():
    yield EngineRecord(name="loud", load=lambda: Loud, config=lambda: Volume)
"""
CONFIG = """
name: script
entrypoint: python3 train.py
searcher: {name: single, metric: error}
"""
SCRIPT = """
from det_core import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"error": 0.5})
"""


@pytest.fixture
def stranger(det, tmp_path: Path) -> dict[str, str]:
    (det.cwd / "const.yaml").write_text(CONFIG)
    (det.cwd / "train.py").write_text(SCRIPT)
    return on_path(
        lay_out(
            tmp_path / "site",
            "det-loud",
            entry_points={"loud": "det_loud"},
            modules={"det_loud": HOOKS},
        )
    )


def test_a_strangers_engine_executes_the_runs(det, stranger) -> None:
    said = det("run", "const.yaml", "--engine", "loud", env=stranger).stdout
    assert "started by a stranger" in said
    assert "experiment 1 is completed" in said


def test_in_the_background_too(det, stranger, wait_until) -> None:
    det("run", "const.yaml", "--engine", "loud", "--detach", env=stranger)
    log = next(det.home.rglob("driver.log"))
    wait_until(
        lambda: "experiment 1 is completed" in log.read_text(), "the end of the experiment", 60
    )
    assert "started by a stranger" in log.read_text()


def test_unknown_engine_error_lists_the_installed_engines(det, stranger) -> None:
    said = det("run", "const.yaml", "--engine", "moon", env=stranger, status=2).stderr
    what, _, names = said.strip().partition("; installed: ")
    assert what == "det: no plugin registers the engine 'moon'"
    assert {"in-process", "local", "loud"} <= set(names.split(", "))
    assert det.json("list") == []


def test_two_engines_at_once_are_refused(det, stranger) -> None:
    said = det("resume", "1", "--engine", "loud", "--in-process", env=stranger, status=2).stderr
    assert "--engine and --in-process contradict each other; choose one" in said


@pytest.mark.thorough
def test_what_executed_an_experiment_executes_it_again(det, stranger) -> None:
    """Only `--engine` changes what is recorded."""
    det("run", "const.yaml", "--engine", "loud", env=stranger)
    assert det.json("show", "1")["experiment"]["engine"] == "loud"
    for engine, options, loud in (
        ("loud", (), True),
        ("local", (), False),
        ("local", ("--engine", "loud"), True),
    ):
        with Store(det.home) as store:
            config = store.experiments.get(1).config
            id = store.experiments.create(name="x", config=config, metric="error", engine=engine).id
            store.code_dir(id).mkdir()
            (store.code_dir(id) / "train.py").write_text(SCRIPT)
        said = det("resume", str(id), *options, env=stranger).stdout
        assert ("started by a stranger" in said) == loud
        assert det.json("show", str(id))["experiment"]["engine"] == ("loud" if loud else "local")


def test_the_home_says_which_engine_is_the_default(det, stranger) -> None:
    det.home.mkdir()
    (det.home / "config.yaml").write_text("engine: {name: loud, volume: 3}\n")
    assert "started by a stranger Volume(volume=3)" in det("run", "const.yaml", env=stranger).stdout
    assert (
        "started by a stranger"
        not in det("run", "const.yaml", "--engine", "local", env=stranger).stdout
    )


def test_a_mistake_in_the_homes_defaults_is_placed_there(det, stranger) -> None:
    det.home.mkdir()
    (det.home / "config.yaml").write_text("engine: {name: ssh}\n")
    said = det("run", "const.yaml", env=stranger, status=2).stderr
    assert said.startswith(f"det: {det.home / 'config.yaml'}:1:")
    assert "engine.hosts is missing; name the machines" in said


def test_the_settings_of_another_engine_are_left_out(det, stranger) -> None:
    (det.cwd / "const.yaml").write_text(CONFIG + "engine: {name: ssh, hosts: [far]}\n")
    assert (
        "started by a stranger" in det("run", "const.yaml", "--engine", "loud", env=stranger).stdout
    )
