"""An experiment in a container: of an image that is made here of this machine's Python, run by podman and docker where they are."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from det_core.environments import digest_of

Written = Callable[..., Path]
IMAGE = "localhost/det-test:1"
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


@dataclass(frozen=True)
class Box:
    """An engine whose files, and whose daemon where it has one, are a test's own; `env` is what its client is told by."""

    program: str
    env: dict[str, str]

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env}
        return subprocess.run([self.program, *words], env=env, capture_output=True, text=True, check=False)

    def containers(self) -> list[str]:
        """Return the first processes of the containers that are there; where all is killed at once, the list outlives them."""
        names = self("ps", "--quiet").stdout.split()
        found = [self("inspect", "--format", "{{.State.Pid}}", name).stdout.strip() for name in names]
        return [pid for pid in found if pid and Path(f"/proc/{pid}").exists()]


@pytest.fixture(scope="module", params=["podman", "docker"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """An engine with an image whose python3 is this one; where it runs none here, tests are skipped."""
    name = request.param
    if shutil.which(name) is None or os.geteuid() or (name == "docker" and shutil.which("dockerd") is None):
        pytest.skip(f"there is no {name} here, or this is not its user")
    place = tmp_path_factory.mktemp(name)
    with (_podman if name == "podman" else _docker)(place) as env:
        made = Box(name, env)
        if wrong := _with_image(made, place):
            pytest.skip(f"{name} runs no container here: {wrong}")
        yield made


@contextmanager
def _docker(place: Path) -> Iterator[dict[str, str]]:
    """A daemon of its own, which touches no network of this machine."""
    address = f"unix://{place}/socket"
    places = [f"--data-root={place}/data", f"--exec-root={place}/exec", f"--pidfile={place}/pid", f"--host={address}"]
    none = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
    with (place / "log").open("w") as log:
        daemon = subprocess.Popen(["dockerd", *places, *none], stdout=log, stderr=log, start_new_session=True)
    made = Box("docker", {"DOCKER_HOST": address})
    try:
        for _ in range(100):
            if made("info").returncode == 0 or daemon.poll() is not None:
                break
            time.sleep(0.2)
        yield made.env
        made("rm", "--force", *made("ps", "--all", "--quiet").stdout.split())
    finally:
        daemon.terminate()
        daemon.wait(30)
        for each in (place / "exec/netns").glob("*"):  # docker leaves the host's there, mounted
            subprocess.run(["umount", each], check=True)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _podman(place: Path) -> Iterator[dict[str, str]]:
    limits = [
        f'"{name}={min(resource.getrlimit(kind)[1], most)}"'  # what podman wants by itself may be more than is allowed
        for name, kind, most in (("nofile", resource.RLIMIT_NOFILE, 1024), ("nproc", resource.RLIMIT_NPROC, 4096))
    ]
    (place / "storage.conf").write_text(
        f'[storage]\ndriver="overlay"\ngraphroot="{place}/graph"\nrunroot="{place}/run"\n'
    )
    runtime = next((each for each in ("runc", "crun") if shutil.which(each)), "crun")
    (place / "containers.conf").write_text(
        f"[containers]\ndefault_ulimits=[{', '.join(limits)}]\n"
        f'[engine]\nruntime="{runtime}"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
    )
    env = {"CONTAINERS_STORAGE_CONF": f"{place}/storage.conf", "CONTAINERS_CONF": f"{place}/containers.conf"}
    made = Box("podman", env)
    yield env
    made("rm", "--all", "--force")
    made("rmi", "--all", "--force")
    forget(place)


def _with_image(box: Box, place: Path) -> str:
    """Make the image; return what is wrong where its Python does not run."""
    (place / "etc").mkdir()
    (place / "etc/its-name").write_text("a container\n")
    image = place / "image.tar"
    big = ("*/test/*", "*.a", "__pycache__", f"{sys.base_prefix}/lib/python3.*/site-packages/*".lstrip("/"))
    words = [
        "tar",
        "-cf",
        image,
        *(f"--exclude={each}" for each in big),
        "-C",
        place,
        "etc/its-name",
        "-C",
        "/",
        *_parts(),
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=120)

    path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"
    made = box("import", "--change", f"ENV {path}", image, IMAGE)
    image.unlink()
    tried = box("run", "--rm", "--network", "host", "--pid", "host", IMAGE, "python3", "-c", "import det_core")
    return f"{made.stderr}{tried.stderr}" if made.returncode or tried.returncode else ""


def forget(place: Path) -> None:
    """Remove podman's files, which are mounted on themselves."""
    subprocess.run(["umount", "--lazy", place / "graph/overlay"], capture_output=True, check=False)
    shutil.rmtree(place)


def _parts() -> list[str]:
    """What an image needs to run this Python and det-core: this environment, what it stands on, and the libraries of both."""
    base = Path(sys.base_prefix)
    needed = [importlib.import_module(name) for name in ("det_core", "msgspec", "pluggy", "yaml")]
    packages = [Path(str(each.__file__)).parent for each in needed]
    paths = [*packages[0].parents[1].parent.glob("*.pth"), *Path(packages[1].parent).glob("*.pth")]
    venv = Path(sys.prefix)
    places = [base, venv / "bin", *packages, *Path(packages[1].parent).glob("*det_core*")]
    binaries = [Path(sys.executable).resolve(), Path("/bin/sh"), *base.glob("lib/python3*/lib-dynload/*.so")]
    binaries += [each for package in packages for each in package.rglob("*.so")]
    linked = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=True).stdout
    libraries = {Path(found) for found in re.findall(r"(/\S+) \(0x", linked)}
    links = {Path(each) for each in ("/lib", "/lib64", "/bin") if os.path.islink(each)}
    files = {Path("/bin/sh"), Path("/bin/sh").resolve(), *libraries, *(each.resolve() for each in libraries)}
    real = {Path(os.path.realpath(each.parent)) / each.name for each in files}
    alone = {
        each
        for each in {*real, *places, *paths, venv / "pyvenv.cfg"}
        if not any(place in each.parents for place in places)
    }
    return sorted(str(each).lstrip("/") for each in {*alone, *links})


def written(experiment: Written, box: Box, more: str = "", pause: float = 0.0) -> Path:
    environment = f"{{container: {box.program}, image: {IMAGE}, environment_variables: [GREETING=hello]}}"
    config = experiment(environment, SCRIPT.replace("PAUSE", str(pause)))
    config.write_text(config.read_text() + more)
    return config


@pytest.mark.timeout(180)
def test_a_script_trains_in_its_image_with_the_mounts_that_it_asked_for(
    det: Any, experiment: Written, box: Box, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "word").write_text("found")
    config = written(experiment, box, f"bind_mounts: [{{host_path: {data}, container_path: /data, read_only: true}}]\n")
    done = det("run", config, env=box.env)
    assert "experiment 1 is completed" in done.stdout
    assert "without effect" not in done.stderr
    log = det("logs", "1").stdout
    assert f"it is {'podman' if box.program == 'podman' else None} a container hello" in log
    assert "data: found" in log
    solved = det.home / "experiments/1/environment"
    assert json.loads((solved / "image.json").read_text())["image"] == IMAGE
    (manifest,) = (det.home / "checkpoints").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["environment"] == digest_of(solved)
    assert box.containers() == []


@pytest.mark.timeout(180)
def test_a_pause_reaches_the_container_which_saves_and_goes_on_in_another(
    det: Any, experiment: Written, box: Box, wait_until: Callable[..., None]
) -> None:
    config = written(experiment, box, pause=0.2)
    config.write_text(config.read_text().replace("batches: 3", "batches: 40"))
    driver = det.start("run", config, env=box.env)
    wait_until(lambda: det.home.exists() and "loss" in det("metrics", "1", status=None).stdout, seconds=60)
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
    wait_until(lambda: det.home.exists() and "loss" in det("metrics", "1", status=None).stdout, seconds=60)
    assert len(box.containers()) == 1
    if at_once:  # what stands for its interpreter is killed, as by a lack of memory
        noted = next(det.home.glob("experiments/1/trials/**/process.json"))
        os.killpg(json.loads(noted.read_text())["pid"], signal.SIGKILL)
        time.sleep(1)
    det("cancel", "1")
    driver.wait(60)
    wait_until(lambda: box.containers() == [], seconds=20)


def test_what_cannot_be_run_is_refused_by_name(det: Any, experiment: Written, box: Box) -> None:
    config = experiment(f"{{container: {box.program}, image: localhost/nobody/made-this:1}}")
    done = det("run", config, env=box.env, status=None)
    assert done.returncode == 2
    assert f"{box.program} says:" in done.stderr
    assert "made-this" in done.stderr
    config = experiment(f"{{container: {box.program}}}")
    done = det("run", config, env=box.env, status=None)
    assert (done.returncode, "environment.container needs environment.image" in done.stderr) == (2, True)
    config = experiment(f"{{container: {box.program}, image: {IMAGE}, requirements: [six]}}")
    done = det("run", config, env=box.env, status=None)
    assert "leave environment.requirements out" in done.stderr
    assert not (det.home / "experiments/1").exists()


def test_an_engine_that_is_not_there_is_named(det: Any, experiment: Written, tmp_path: Path) -> None:
    config = experiment("{container: auto, image: python:3.12}")
    done = det("run", config, env={"PATH": str(tmp_path)}, status=2)
    assert "environment.container is auto" in done.stderr
    assert "has no podman and no docker on its path" in done.stderr
    assert not (det.home / "experiments/1").exists()
