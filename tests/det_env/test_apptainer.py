"""What is Apptainer's own.

Images that are files, known by their content, and images of a registry, known by their digest.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_env.boxes import Box, boxed, why_not

Written = Callable[..., Path]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """Apptainer with an image's file."""
    if wrong := why_not("apptainer"):
        pytest.skip(wrong)
    with boxed("apptainer", tmp_path_factory.mktemp("apptainer")) as (made, wrong):
        if wrong:
            pytest.skip(f"it runs no container here: {wrong}")
        yield made


SCRIPT = """
import os, det_core.core
print("it is", open("/etc/its-name").read().strip(), "of", os.environ["APPTAINER_CONTAINER"])
with det_core.core.init() as context:
    for op in context.searcher.operations():
        context.train.report_validation_metrics(steps_completed=op.length, metrics={"loss": 1.0})
        op.report_completed(1.0)
"""


@pytest.mark.timeout(180)
def test_image_file_is_identified_by_its_content(
    det: Any, experiment: Written, box: Box, tmp_path: Path
) -> None:
    """`det verify` refuses another file in its place."""
    image = tmp_path / "own.sif"
    os.link(box.image, image)
    config = experiment(f"{{container: auto, image: {image}}}", SCRIPT)
    det("run", config, env=box.env)
    assert f"it is a container of {image}" in det("logs", "1").stdout
    image.unlink()
    shutil.copyfile(box.image, image)  # the same again, at another time
    det("run", config, env=box.env)
    with image.open("r+b") as file:
        file.seek(1000)
        file.write(b"another")
    known = json.loads((det.home / "experiments/1/environment/image.json").read_text())
    assert (known["container"], known["file"]) == ("apptainer", str(image))
    done = det("verify", "1", env=box.env, status=2)
    assert f"the image {image} is not the one that the experiment was made with" in done.stderr


def test_image_that_is_no_fixed_file_is_refused_with_a_remedy(
    det: Any, experiment: Written, box: Box, tmp_path: Path
) -> None:
    for image, said in (
        ("docker://python:3.12", "apptainer pull NAME.sif docker://python:3.12"),
        (f"{tmp_path}/none.sif", f"{tmp_path}/none.sif is no file"),
        (str(tmp_path), f"apptainer build NAME.sif {tmp_path}"),
    ):
        done = det(
            "run", experiment(f"{{container: apptainer, image: '{image}'}}"), env=box.env, status=2
        )
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (det.home / "experiments/1").exists()


@pytest.fixture
def registry(tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[str]:
    """The address of a registry of images on loopback."""
    program = shutil.which("docker-registry")
    if program is None or why_not("podman"):
        pytest.skip("there is no docker-registry here, or no podman that pushes to it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "registry.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\nlog: {{accesslog: {{disabled: true}}}}\n"
    )
    with (tmp_path / "registry.log").open("w") as log:
        process = subprocess.Popen(
            [program, "serve", tmp_path / "registry.yml"], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, seconds=20)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.timeout(240)
def test_registry_image_is_pulled_by_digest_once_per_machine(
    det: Any, experiment: Written, box: Box, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "podman").mkdir()
    with boxed("podman", tmp_path / "podman") as (podman, wrong):
        if wrong:
            pytest.skip(f"podman runs no container here: {wrong}")
        digest = tmp_path / "digest"
        pushed = podman(
            "push",
            "--tls-verify=false",
            "--digestfile",
            digest,
            podman.image,
            f"{registry}/det-test:1",
        )
        assert pushed.returncode == 0, pushed.stderr
    env = {**box.env, "APPTAINER_NOHTTPS": "1"}
    config = experiment(
        f"{{container: apptainer, image: '{registry}/det-test@{digest.read_text()}'}}", SCRIPT
    )
    det("run", config, env=env)
    det("run", config, env=env)
    known = json.loads((det.home / "experiments/1/environment/image.json").read_text())
    assert known["id"] == digest.read_text().removeprefix("sha256:")
    ran = {
        det("logs", number).stdout.partition("it is a container of ")[2].splitlines()[0]
        for number in ("1", "2")
    }
    assert len(ran) == 1
    assert Path(ran.pop()).name == "image.sif"
