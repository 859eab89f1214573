"""Container images as environments.

Their "interpreter" is a script that runs Python in a container.

A container has the host's network, process ids and shared memory, as ranks and agents connect by
them. It has the directories that a run needs and the configuration's `bind_mounts`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from det_core.errors import ConfigError, DetError
from det_core.train.environ import variable
from det_node.environments import EnvironmentMaker, Wanted
from det_node.machine import gpus

from . import apptainer

ENGINES = ("podman", "docker", apptainer.ENGINE)
IMAGE = "image.json"
# The image has its own values of these.
_OURS = ("HOME", "HOSTNAME", "PATH", "PWD", "OLDPWD", "SHLVL", "_")
_LOOKS = "import sys, det_core.core, det_node.worker; print(*sys.version_info[:2])"
_WATCHES = """
import os, shutil, subprocess, sys, time
if not os.read(0, 1):  # killed, as who ends says so
    for turn in range(50):  # it may be about to begin
        if os.path.exists(sys.argv[1]) and (name := open(sys.argv[1]).read()):
            command = [sys.argv[2], "kill", "--signal", "KILL", name]
            done = subprocess.run(command, capture_output=True)
            if not done.returncode:
                break
        time.sleep(0.1)
    shutil.rmtree(os.path.dirname(sys.argv[1]), ignore_errors=True)
"""


class ContainerMaker(EnvironmentMaker):
    """Runs `environment.image`, with the digest that it had when the experiment was created."""

    def solve(self, wanted: Wanted, into: Path) -> None:
        image = wanted.images[bool(gpus(os.environ))]
        engine = _engine(wanted.container, image)
        if engine == apptainer.ENGINE:
            looking = apptainer.found(image, wanted.directory, wanted.root, _call)
        else:
            looking = _found(engine, image, wanted.fetch)
        with looking as (known, words):
            try:
                version = _call(*words, "python3", "-P", "-c", _LOOKS).split()
            except DetError as error:
                raise ConfigError(
                    f"the image {image} cannot run det's workers: {error}; it needs Python 3.11 or"
                    " newer as python3, with det-training-core, det-node and the framework's"
                    " plugin"
                ) from error
        # Docker and Podman know an image by the same id, Apptainer by another one.
        container = engine if engine == apptainer.ENGINE else wanted.container
        asked = {"image": image, "container": container, "mounts": wanted.mounts}
        (into / IMAGE).write_text(json.dumps({**asked, **known, "python": ".".join(version[-2:])}))

    def install(self, solved: Path, into: Path) -> Path:
        about = json.loads((solved / IMAGE).read_text())
        engine = _engine(about["container"], about["image"])
        here: dict[str, Any] = {}
        is_here = "file" in about if engine == apptainer.ENGINE else _has(engine, about["id"])
        if not is_here and not about["digests"]:
            raise DetError(
                f"the image {about['image']} ({about['id'][:12]}) is not on {os.uname().nodename},"
                " and is of no registry: save and load it, or push it"
            )
        if not is_here:
            sys.stdout.write(f"fetching {about['digests'][0]}\n")
        if engine == apptainer.ENGINE:
            here = apptainer.install(about, into, _call)
        elif not is_here:
            sys.stdout.write(_call(engine, "pull", "--quiet", about["digests"][0]))
        place = into / "bin"
        place.mkdir(parents=True)
        kept = into / IMAGE
        kept.write_text(json.dumps({**about, **here, "container": engine}))
        python = place / "python3"
        words = shlex.join([sys.executable, "-P", "-m", "det_env.container", str(kept)])
        python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        python.chmod(0o755)
        (place / "python").symlink_to("python3")
        return python


def words_of(
    about: Mapping[str, Any], arguments: Sequence[str], environ: Mapping[str, str], note: Path
) -> list[str]:
    """Return the command that runs the image's Python with these arguments and variables.

    The engine writes the container's id to `note`.
    """
    places = [
        os.getcwd(),
        *_places(arguments),
        *_places(environ[name] for name in environ if name.startswith("DET_")),
    ]
    storage = (
        json.loads(variable(environ, "DET_EXPERIMENT_CONFIG") or "{}").get("checkpoint_storage")
        or {}
    )
    places += _places(str(value) for value in storage.values())
    mounts = [f"{place}:{place}" for place in _highest([*places, tempfile.gettempdir()])]
    mounts += map(_absolute, about["mounts"])
    on_gpus = bool(environ.get("CUDA_VISIBLE_DEVICES", "").strip("-1"))
    if about["container"] == apptainer.ENGINE:
        return apptainer.words_of(about, arguments, mounts, on_gpus)
    devices = ["--device", "nvidia.com/gpu=all"] if on_gpus else []
    user = (
        []
        if os.getuid() == 0
        else ["--userns", "keep-id"]
        if about["container"] == "podman"
        else []
    )
    if user == [] and os.getuid():
        user = ["--user", f"{os.getuid()}:{os.getgid()}"]
    return [
        *(about["container"], "run", "--rm", "--network", "host", "--pid", "host", "--ipc", "host"),
        *("--cidfile", str(note), "--workdir", os.getcwd(), *user, *devices),
        *(word for mount in mounts for word in ("--volume", mount)),
        *(word for name in sorted(environ.keys() - _OURS) for word in ("--env", name)),
        *("--entrypoint", "python3", about["id"], *arguments),
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the image's Python, pass signals on, and return its exit status.

    A container does not outlive this process, even if this process is killed.
    """
    about = json.loads(Path(arguments[0]).read_text())
    if about["container"] == apptainer.ENGINE:
        try:
            words = words_of(about, arguments[1:], os.environ, Path())
        except DetError as error:
            sys.stderr.write(f"det: {error}\n")
            return 2
        os.execvp(words[0], words)
    with tempfile.TemporaryDirectory(prefix="det-container-") as scratch:
        note = Path(scratch) / "id"
        watches, ends = os.pipe()
        watcher = [sys.executable, "-S", "-c", _WATCHES, str(note), about["container"]]
        with subprocess.Popen(watcher, stdin=watches, start_new_session=True):
            os.close(watches)
            # The engine's client is in the same process group. It gets these signals, too, and
            # passes them on.
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda *_: None)
            status = subprocess.Popen(words_of(about, arguments[1:], os.environ, note)).wait()
            os.write(ends, b".")
            os.close(ends)
    # A signal killed the image's Python.
    if status > 128:
        signal.signal(status - 128, signal.SIG_DFL)
        os.kill(os.getpid(), status - 128)
    return status


def _absolute(mount: str) -> str:
    """Return a mount with an absolute path in the container.

    Others are relative to the working directory.
    """
    there, here, *options = mount.split(":")
    return ":".join([there, os.path.join(os.getcwd(), here), *(each for each in options if each)])


def _engine(name: str, image: str) -> str:
    """Return the engine of that name.

    For `auto`, the first that is installed and can run the image.

    Raises ConfigError where there is none.
    """
    could = ENGINES if not apptainer.is_for(image) else (apptainer.ENGINE,)
    engines = could if name == "auto" else (name,)
    engine = next((each for each in engines if shutil.which(each)), None)
    if engine is None:
        asked = " and no ".join(engines)
        raise ConfigError(
            f"environment.container is {name}, and {os.uname().nodename} has no {asked} on its path"
        )
    return engine


@contextmanager
def _found(engine: str, image: str, fetch: bool) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield what identifies an image, and the command prefix that runs a program in it."""
    if fetch or not _has(engine, image):
        sys.stderr.write(f"det: fetching the image {image}\n")
        _call(engine, "pull", "--quiet", image)
    (seen,) = json.loads(_call(engine, "image", "inspect", image))
    digests = [
        each for each in sorted(seen.get("RepoDigests") or ()) if not each.startswith("localhost/")
    ]
    known = {"id": seen["Id"].removeprefix("sha256:"), "digests": digests}
    yield known, [engine, "run", "--rm", "--network", "none", seen["Id"]]


def _has(engine: str, image: str) -> bool:
    return (
        subprocess.run(
            [engine, "image", "inspect", image], capture_output=True, check=False
        ).returncode
        == 0
    )


def _call(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip()]
        last = (
            re.sub(r"^(Error|FATAL): +", "", errors[-1]) if errors else f"status {done.returncode}"
        )
        raise DetError(f"{words[0]} says: {last}")
    return done.stdout


def _places(texts: Iterable[str]) -> Iterator[str]:
    """Yield the directories of the existing absolute paths among the texts."""
    for text in texts:
        if os.path.isabs(text) and os.path.exists(text):
            yield text if os.path.isdir(text) else os.path.dirname(text)


def _highest(places: Iterable[str]) -> list[str]:
    """Return the directories that are not inside another one of them."""
    found: list[str] = []
    for place in sorted({os.path.realpath(each) for each in places} | set(places)):
        if not any(place == each or place.startswith(f"{each}/") for each in found):
            found.append(place)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
