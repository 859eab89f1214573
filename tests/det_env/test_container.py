"""An experiment in a container.

Of an image made of this machine's Python, run by what is here of podman, docker and Apptainer.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_env.boxes import Box, boxed, why_not

from det_node.environments import digest_of

Written = Callable[..., Path]
SCRIPT = """
import os, sys, time
import det_core.core
print("it is", os.environ.get("container"), open("/etc/its-name").read().strip(), os.environ["GREETING"])
print("data:", os.path.exists("/data/word") and open("/data/word").read())
with det_core.core.init() as context:
    for op in context.searcher.operations():
        step = 0
        latest = context.info.latest_checkpoint
        if latest:
            with context.checkpoint.restore_path(latest) as path:
                step = int((path / "state").read_text())
                print("goes on at", step)
        while step < op.length:
            step += 1
            time.sleep(PAUSE)
            context.train.report_training_metrics(steps_completed=step, metrics={"loss": 1.0 / step})
            if step == op.length or context.preempt.should_preempt():
                with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                    (path / "state").write_text(str(step))
            if context.preempt.should_preempt():
                sys.exit(0)
        context.train.report_validation_metrics(steps_completed=op.length, metrics={"loss": 1.0})
        op.report_completed(1.0)
"""


@pytest.fixture(scope="module", params=["podman", "docker", "apptainer"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """An engine with an image whose python3 is this one.

    Where it runs none here, tests are skipped.
    """
    name = request.param
    if wrong := why_not(name):
        pytest.skip(wrong)
    with boxed(name, tmp_path_factory.mktemp(name)) as (made, wrong):
        if wrong:
            pytest.skip(f"{name} runs no container here: {wrong}")
        yield made


def written(experiment: Written, box: Box, more: str = "", pause: float = 0.0) -> Path:
    environment = (
        f"{{container: {box.program}, image: {box.image}, environment_variables: [GREETING=hello]}}"
    )
    config = experiment(environment, SCRIPT.replace("PAUSE", str(pause)))
    config.write_text(config.read_text() + more)
    return config


@pytest.mark.timeout(180)
def test_script_trains_in_its_image_with_its_mounts(
    det: Any, experiment: Written, box: Box, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "word").write_text("found")
    config = written(
        experiment,
        box,
        f"bind_mounts: [{{host_path: {data}, container_path: /data, read_only: true}}]\n",
    )
    done = det("run", config, env=box.env)
    assert "experiment 1 is completed" in done.stdout
    assert "without effect" not in done.stderr
    log = det("logs", "1").stdout
    assert f"it is {'podman' if box.program == 'podman' else None} a container hello" in log
    assert "data: found" in log
    solved = det.home / "experiments/1/environment"
    assert json.loads((solved / "image.json").read_text())["image"] == box.image
    (manifest,) = (det.home / "checkpoints").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["environment"] == digest_of(solved)
    assert box.containers() == []


@pytest.mark.timeout(180)
def test_paused_container_saves_and_resumes_in_another(
    det: Any, experiment: Written, box: Box, wait_until: Callable[..., None]
) -> None:
    config = written(experiment, box, pause=0.2)
    config.write_text(config.read_text().replace("batches: 3", "batches: 40"))
    driver = det.start("run", config, env=box.env)
    wait_until(
        lambda: det.home.exists() and "loss" in det("metrics", "1", status=None).stdout, seconds=60
    )
    det("pause", "1")
    assert driver.wait(60) == 130
    assert box.containers() == []
    det("resume", "1", env=box.env)
    assert "goes on at" in det("logs", "1").stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("at_once", [False, True])
def test_no_container_is_left_when_its_experiment_is_killed(
    det: Any, experiment: Written, box: Box, wait_until: Callable[..., None], at_once: bool
) -> None:
    config = written(experiment, box, pause=0.2)
    config.write_text(config.read_text().replace("batches: 3", "batches: 4000"))
    driver = det.start("run", config, env=box.env)
    wait_until(
        lambda: det.home.exists() and "loss" in det("metrics", "1", status=None).stdout, seconds=60
    )
    assert len(box.containers()) == 1
    if at_once:  # what stands for its interpreter is killed, as by a lack of memory
        noted = next(det.home.glob("experiments/1/trials/**/process.json"))
        os.killpg(json.loads(noted.read_text())["pid"], signal.SIGKILL)
        time.sleep(1)
    det("cancel", "1")
    driver.wait(60)
    wait_until(lambda: box.containers() == [], seconds=20)


def test_what_cannot_be_run_is_refused_by_name(det: Any, experiment: Written, box: Box) -> None:
    name = (
        f"localhost/nobody/made-this{'@sha256:' + '0' * 64 if box.program == 'apptainer' else ':1'}"
    )
    config = experiment(f"{{container: {box.program}, image: '{name}'}}")
    done = det("run", config, env=box.env, status=None)
    assert done.returncode == 2
    assert f"{box.program} says:" in done.stderr
    assert "made-this" in done.stderr
    config = experiment(f"{{container: {box.program}}}")
    done = det("run", config, env=box.env, status=None)
    assert (done.returncode, "environment.container needs environment.image" in done.stderr) == (
        2,
        True,
    )
    config = experiment(f"{{container: {box.program}, image: {box.image}, requirements: [six]}}")
    done = det("run", config, env=box.env, status=None)
    assert "leave environment.requirements out" in done.stderr
    assert not (det.home / "experiments/1").exists()


def test_an_engine_that_is_not_there_is_named(
    det: Any, experiment: Written, tmp_path: Path
) -> None:
    config = experiment("{container: auto, image: python:3.12}")
    done = det("run", config, env={"PATH": str(tmp_path)}, status=2)
    assert "environment.container is auto" in done.stderr
    assert "has no podman and no docker and no apptainer on its path" in done.stderr
    assert not (det.home / "experiments/1").exists()
