"""Container engines of a test's own, each with an image made here of this machine's Python."""

from __future__ import annotations

import importlib
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

IMAGE = "localhost/det-test:1"


@dataclass(frozen=True)
class Box:
    """An engine whose files, and whose daemon where it has one, are a test's own.

    `env` is what its client is told by.
    """

    program: str
    env: dict[str, str]
    image: str = IMAGE

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env}
        return subprocess.run(
            [self.program, *words], env=env, capture_output=True, text=True, check=False
        )

    def containers(self) -> list[str]:
        """Return the first processes of the containers that are there.

        Where all is killed at once, the list outlives them.
        """
        names = self("ps", "--quiet").stdout.split()
        found = [
            self("inspect", "--format", "{{.State.Pid}}", name).stdout.strip() for name in names
        ]
        return [pid for pid in found if pid and Path(f"/proc/{pid}").exists()]


class Apptainer(Box):
    """It knows of no containers: they are the processes that have an image's file as their root."""

    def containers(self) -> list[str]:
        said = f"APPTAINER_CONTAINER={self.image}\0".encode()
        found = []
        for each in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if said in each.read_bytes():
                    found.append(each.parent.name)
        return found


def why_not(name: str) -> str:
    """Return why this machine cannot run containers by that engine; nothing where it may."""
    here = (
        shutil.which(name) is not None
        and not os.geteuid()
        and (name != "docker" or shutil.which("dockerd") is not None)
    )
    return "" if here else f"there is no {name} here, or this is not its user"


@contextmanager
def boxed(name: str, place: Path) -> Iterator[tuple[Box, str]]:
    """Give an engine with an image whose python3 is this one.

    Also give what is wrong where it runs none.
    """
    if name == "apptainer":
        # Of the capabilities of root it wants all, and this machine may not have them all.
        sif = Apptainer(
            name,
            {"APPTAINER_NO_PRIVS": "1", "APPTAINER_CACHEDIR": f"{place}/cache"},
            f"{place}/image.sif",
        )
        yield sif, _with_file(sif, place)
        return
    with (_podman if name == "podman" else _docker)(place) as env:
        made = Box(name, env)
        yield made, _with_image(made, place)


@contextmanager
def _docker(place: Path) -> Iterator[dict[str, str]]:
    """A daemon of its own, which touches no network of this machine."""
    address = f"unix://{place}/socket"
    places = [
        f"--data-root={place}/data",
        f"--exec-root={place}/exec",
        f"--pidfile={place}/pid",
        f"--host={address}",
    ]
    none = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
    with (place / "log").open("w") as log:
        daemon = subprocess.Popen(
            ["dockerd", *places, *none], stdout=log, stderr=log, start_new_session=True
        )
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
        # What podman wants by itself may be more than is allowed.
        f'"{name}={min(resource.getrlimit(kind)[1], most)}"'
        for name, kind, most in (
            ("nofile", resource.RLIMIT_NOFILE, 1024),
            ("nproc", resource.RLIMIT_NPROC, 4096),
        )
    ]
    (place / "storage.conf").write_text(
        f'[storage]\ndriver="overlay"\ngraphroot="{place}/graph"\nrunroot="{place}/run"\n'
    )
    runtime = next((each for each in ("runc", "crun") if shutil.which(each)), "crun")
    (place / "containers.conf").write_text(
        f"[containers]\ndefault_ulimits=[{', '.join(limits)}]\n"
        f'[engine]\nruntime="{runtime}"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
    )
    env = {
        "CONTAINERS_STORAGE_CONF": f"{place}/storage.conf",
        "CONTAINERS_CONF": f"{place}/containers.conf",
    }
    made = Box("podman", env)
    yield env
    made("rm", "--all", "--force")
    made("rmi", "--all", "--force")
    forget(place)


def _with_file(box: Box, place: Path) -> str:
    """Make the image's file; return what is wrong where its Python does not run."""
    root, tar = place / "root", _tarred(place)
    root.mkdir()
    subprocess.run(["tar", "-xf", tar, "-C", root], check=True, timeout=120)
    tar.unlink()
    (root / ".singularity.d/env").mkdir(parents=True)
    (root / ".singularity.d/env/90-environment.sh").write_text(
        f"export PATH={Path(sys.executable).parent}:/usr/bin:/bin\n"
    )
    made = box("build", box.image, root)
    shutil.rmtree(root)
    tried = box("exec", "--no-mount", "home,tmp,cwd", box.image, "python3", "-c", "import det_core")
    return f"{made.stderr}{tried.stderr}" if made.returncode or tried.returncode else ""


def _with_image(box: Box, place: Path) -> str:
    """Make the image; return what is wrong where its Python does not run."""
    image = _tarred(place)
    path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"
    made = box("import", "--change", f"ENV {path}", image, IMAGE)
    image.unlink()
    tried = box(
        "run",
        "--rm",
        "--network",
        "host",
        "--pid",
        "host",
        IMAGE,
        "python3",
        "-c",
        "import det_core",
    )
    return f"{made.stderr}{tried.stderr}" if made.returncode or tried.returncode else ""


def _tarred(place: Path) -> Path:
    """Return an archive of all that an image has."""
    (place / "etc").mkdir()
    (place / "etc/its-name").write_text("a container\n")
    image = place / "image.tar"
    big = (
        "*/test/*",
        "*.a",
        "__pycache__",
        f"{sys.base_prefix}/lib/python3.*/site-packages/*".lstrip("/"),
    )
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
    return image


def forget(place: Path) -> None:
    """Remove podman's files, which are mounted on themselves."""
    subprocess.run(["umount", "--lazy", place / "graph/overlay"], capture_output=True, check=False)
    shutil.rmtree(place)


def _parts() -> list[str]:
    """What an image needs to run this Python and det-core.

    This environment, what it stands on, and the libraries of both.
    """
    base = Path(sys.base_prefix)
    needed = [importlib.import_module(name) for name in ("det_core", "msgspec", "pluggy", "yaml")]
    packages = [Path(str(each.__file__)).parent for each in needed]
    paths = [*packages[0].parents[1].parent.glob("*.pth"), *Path(packages[1].parent).glob("*.pth")]
    venv = Path(sys.prefix)
    places = [base, venv / "bin", *packages, *Path(packages[1].parent).glob("*det_core*")]
    binaries = [
        Path(sys.executable).resolve(),
        Path("/bin/sh"),
        *base.glob("lib/python3*/lib-dynload/*.so"),
    ]
    binaries += [each for package in packages for each in package.rglob("*.so")]
    linked = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=True).stdout
    libraries = {Path(found) for found in re.findall(r"(/\S+) \(0x", linked)}
    links = {Path(each) for each in ("/lib", "/lib64", "/bin") if os.path.islink(each)}
    files = {
        Path("/bin/sh"),
        Path("/bin/sh").resolve(),
        *libraries,
        *(each.resolve() for each in libraries),
    }
    real = {Path(os.path.realpath(each.parent)) / each.name for each in files}
    alone = {
        each
        for each in {*real, *places, *paths, venv / "pyvenv.cfg"}
        if not any(place in each.parents for place in places)
    }
    return sorted(str(each).lstrip("/") for each in {*alone, *links})
