"""The command `det env`, which lists, builds and removes environments."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from det_core.errors import ConfigError, DetError
from det_core.hooks import Plugins, extensions_of
from det_driver.config import load
from det_driver.driver import environments_dir, recorded_environment, solving
from det_driver.store import Store
from det_node.environments import READY, interpreter, make, place_of, remove

_DAY = 86_400.0


@click.group()
def env() -> None:
    """List, build and remove environments of experiments."""


@env.command("list")
@click.pass_obj
def list_(settings: Any) -> None:
    """List the environments of this machine. Those used last come first.

    It prints the size of each, its last use, and the numbers of the experiments that use it.
    Environments share equal files as hard links. The first size is without shared files.
    """
    root = environments_dir(settings.home, settings.environ)
    named = _named(settings.home, root)
    for place in sorted(_places(root), key=_used, reverse=True):
        own, whole = _size(place)
        numbers = ", ".join(str(number) for number in sorted(named.get(place, {})))
        sys.stdout.write(
            f"{place.name[:12]}  {own / 1e6:7.1f} MB of its own, {whole / 1e6:7.1f} MB in all, used"
            f" {_ago(_used(place))},"
            f" {f'of experiments {numbers}' if numbers else 'of no experiment'}\n"
        )


@env.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.pass_obj
def build(settings: Any, config: Path, directory: Path | None) -> None:
    """Build the environment that CONFIG requires, so that its experiment starts without waiting.

    DIRECTORY is the directory of the code. By default it is the directory of CONFIG.
    """
    plugins: Plugins = settings.plugins
    root = environments_dir(settings.home, settings.environ)
    loaded = load(config, extensions=extensions_of(plugins)).config
    began = time.monotonic()
    with solving(loaded, directory or config.absolute().parent, plugins, root) as solved:
        if solved is None:
            raise ConfigError(f"{config} asks for no environment; give it environment.requirements")
        found = recorded_environment(solved.parent)
        assert found is not None
        between = time.monotonic()
        there = interpreter(root, found.digest)
        python = there or make(found.maker, solved, found.digest, root, plugins)
    took = f"solved in {between - began:.2f} s, made in {time.monotonic() - between:.2f} s"
    sys.stdout.write(f"{python} is {'there already' if there else 'made'}: {took}\n")


@env.command()
@click.option(
    "--days",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Unused for so many days.",
)
@click.pass_obj
def prune(settings: Any, days: float) -> None:
    """Remove environments that were not used for some days and in which no process runs.

    An environment stays if an experiment uses it that has not ended, as it may be resumed.
    """
    root = environments_dir(settings.home, settings.environ)
    live = {
        place for place, numbers in _named(settings.home, root).items() if any(numbers.values())
    }
    freed = 0
    for place in _places(root):
        if place in live or time.time() - _used(place) < days * _DAY:
            continue
        own, _ = _size(place)
        if remove(place):
            freed += own
            sys.stdout.write(f"removed {place.name[:12]}\n")
    # These are made again in a second.
    for kept in (*root.glob("solved/*"), *root.glob("wheels/*")):
        if time.time() - kept.stat().st_mtime > max(days, 1.0) * _DAY:
            shutil.rmtree(kept, ignore_errors=True)
    sys.stdout.write(
        f"{freed / 1e6:.1f} MB are free; what packages are kept for the next one: {root / 'uv'}\n"
    )


@env.command()
@click.argument("name")
def image(name: str) -> None:
    """Print the key `environment` of a configuration that replaces Determined's image NAME.

    Differences from the image are printed to stderr.
    """
    found, other = requirements_of(name)
    sys.stdout.write(f"environment:\n  requirements: {json.dumps(found)}\n")
    sys.stderr.writelines(f"det: not as in the image: {each}\n" for each in other)


def _places(root: Path) -> Iterator[Path]:
    """Yield the directories of environments, incomplete ones too."""
    for lock in sorted(root.glob("*.lock")):
        place = lock.with_suffix("")
        if place.is_dir():
            yield place


def _named(home: Path, root: Path) -> dict[Path, dict[int, bool]]:
    """Return the experiments that use each environment, and whether each has not ended."""
    found = defaultdict[Path, dict[int, bool]](dict)
    if not Store.is_at(home):
        return found
    with Store.reader(home) as store:
        for summary in store.experiments.list(archived=None):
            number = summary.experiment.id
            try:
                solved = recorded_environment(store.experiment_dir(number))
            except DetError:
                continue
            if solved is not None:
                found[place_of(root, solved.digest)][number] = not summary.experiment.state.ended
    return found


def _used(place: Path) -> float:
    ready = place / READY
    return (ready if ready.exists() else place).stat().st_mtime


def _size(place: Path) -> tuple[int, int]:
    """Return the sizes of the files that no other environment shares, and of all, in bytes."""
    own = whole = 0
    for directory, _, files in os.walk(place):
        for name in files:
            stat = os.lstat(os.path.join(directory, name))
            whole += stat.st_size
            own += stat.st_size if stat.st_nlink == 1 else 0
    return own, whole


def _ago(then: float) -> str:
    days = (time.time() - then) / _DAY
    return "today" if days < 1 else f"{days:.0f} days ago"


_PART = re.compile(r"(?:^|[-:/])(py|pytorch|tf)-(\d+(?:\.\d+)+)")
_KERAS_2 = ("keras==2.15.0", "numpy==1.26.4", "det-keras")


def requirements_of(image: str) -> tuple[list[str], list[str]]:
    """Return the requirements for a Determined image, and sentences about what differs from it.

    Raises DetError for an image whose name does not tell its content.
    """
    tag = image.rpartition(":")[2]
    held = dict(_PART.findall(tag))
    gpu = re.search(r"(?:^|-)(cuda|gpu|rocm)", tag)
    found, other = list[str](), list[str]()
    if held.get("pytorch"):
        found += ["torch>=2.6", "det-torch"]
        if _numbers(held["pytorch"]) < (2, 6):
            other.append(f"PyTorch {held['pytorch']}: det needs 2.6 or newer")
    if held.get("tf"):
        build = "tensorflow[and-cuda]" if gpu else "tensorflow-cpu"
        found += [f"{build}==2.15.1", *_KERAS_2]
        if held["tf"] != "2.15.1":
            with_graphs = ", with its graphs as tf.compat.v1" if held["tf"].startswith("1.") else ""
            other.append(
                f"TensorFlow {held['tf']}: det needs 2.15, the last with Keras 2{with_graphs}"
            )
    if not found:
        raise DetError(
            f"the name of the image {image!r} does not say what it holds; give"
            " environment.requirements"
        )
    if held.get("py"):
        other.append(f"Python {held['py']}: det needs 3.11 or newer")
    if gpu and gpu[1] == "rocm":
        other.append(
            "ROCm: name the index of your version, such as --extra-index-url"
            " https://download.pytorch.org/whl/rocm6.4"
        )
    return found, other


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
