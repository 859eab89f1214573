"""The environment of an experiment: what a configuration asks for is solved when it is made, and recorded beside it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from det_core.agent import RunSpec
from det_core.config import BindMount, ExperimentConfig, is_trial_entrypoint
from det_core.environments import Wanted, digest_of, interpreter, make, maker
from det_core.errors import ConfigError, DetError
from det_core.launch import hosts_of
from det_core.plugins import Plugins

from ..engines import Preparation
from ..store import Store
from ._warm import read_code

DIRECTORY = "environment"
CHECKED = "DET_CHECKED"
"""Set for what `det check` does in an interpreter of the experiment's own."""
_FACTS = "environment.json"
_LOOKS = "import sys, importlib.util as i; print(sys.version_info >= (3, 11), i.find_spec('det_core') is not None)"


@dataclass(frozen=True)
class SolvedEnvironment:
    """What lies with an experiment: files of which the maker of this name makes the environment of this digest."""

    directory: Path
    maker: str
    digest: str


def environments_dir(home: Path, environ: Mapping[str, str]) -> Path:
    """Return where environments lie on this machine, by default in the home."""
    return Path(environ.get("DET_ENVIRONMENTS") or home / "envs").expanduser().absolute()


def recorded(directory: Path) -> SolvedEnvironment | None:
    """Return what was solved for the experiment of a directory, None where it asked for nothing."""
    place = directory / DIRECTORY
    if not place.is_dir():
        return None
    try:
        facts = json.loads((place / _FACTS).read_text())
        return SolvedEnvironment(place, facts["maker"], digest_of(place))
    except (OSError, ValueError, KeyError) as error:
        raise DetError(f"{place / _FACTS} cannot be read ({error}); start the experiment anew") from error


def preparation(store: Store, experiment_id: int, root: Path) -> Preparation | None:
    """Return what makes the environment of an experiment on a machine."""
    solved = recorded(store.experiment_dir(experiment_id))
    if solved is None:
        return None
    words = f'exec python3 -P -m det_core.environments {solved.maker} {solved.digest} "$DET_ENVIRONMENTS"'
    spec = RunSpec(
        run_id=0,
        entrypoint=words,
        trial_class=False,
        code_dir=solved.directory,
        log_dir=solved.directory,
        variables={"DET_ENVIRONMENTS": str(root)},
    )
    return Preparation(spec, lambda: interpreter(root, solved.digest) is not None)


def is_path(python: str) -> bool:
    """Tell whether `environment.python` is the path of an interpreter, and not a version."""
    return os.sep in python or python.startswith("~")


def check_environment(config: ExperimentConfig, engine: str) -> None:
    """Raise ConfigError where runs cannot have another interpreter, and one is asked for."""
    environment = config.environment
    asked = [key for key in ("container", "requirements", "python") if getattr(environment, key) is not None]
    asks, key = bool(asked), (*asked, "")[0]
    if environment.container and (asked[1:] or not environment.image.cpu):
        raise ConfigError(
            f"environment.container runs an image as it is: leave environment.{asked[1]} out"
            if asked[1:]
            else "environment.container needs environment.image; name one that has det-core and the framework's plugin"
        )
    if asks and engine == "in-process":
        raise ConfigError(
            f"--in-process trains in this interpreter, and environment.{key} asks for another; leave one of them out"
        )
    if asks and hosts_of(config):
        raise ConfigError(
            f"environment.{key} is not made on distributed.hosts; reach them by engine: {{name: ssh, hosts: [...]}}"
        )


def placed(config: ExperimentConfig, code_dir: Path | None, engine: str) -> ExperimentConfig:
    """Return a configuration whose interpreter has an absolute path. Raises ConfigError for one that cannot be used here."""
    environment = config.environment
    if environment.python is None or not is_path(environment.python):
        return config
    python = Path(os.path.abspath((code_dir or Path.cwd()) / Path(environment.python).expanduser()))
    if engine == "local":
        _check_interpreter(python, config)
    return msgspec.structs.replace(config, environment=msgspec.structs.replace(environment, python=str(python)))


def _check_interpreter(python: Path, config: ExperimentConfig) -> None:
    try:
        done = subprocess.run([python, "-P", "-c", _LOOKS], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    words = done.stdout.split() if done is not None else []
    if len(words) != 2:
        # An interpreter before 3.11 has no -P.
        raise ConfigError(f"environment.python is {python}, which is no Python from 3.11 on; name one, or a version")
    if words[1] != "True" and config.environment.requirements is None and is_trial_entrypoint(config.entrypoint):
        raise ConfigError(
            f"environment.python is {python}, which has no det-core for its workers: {python} -m pip install det-core, or "
            "give environment.requirements, and it is brought there"
        )


@contextmanager
def solving(config: ExperimentConfig, code_dir: Path, plugins: Plugins | None, root: Path) -> Iterator[Path | None]:
    """Give a directory with what was solved for a configuration, None where it asks for nothing.

    Raises DetError with the resolver's own sentence where that cannot be.
    """
    environment = config.environment
    python = environment.python or ""
    if not environment.container and environment.requirements is None and (not python or is_path(python)):
        yield None
        return
    name, made_by = maker(plugins or Plugins.installed(), images=bool(environment.container))
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DetError(f"{root} cannot be made: {error.strerror}; set DET_ENVIRONMENTS") from error
    with tempfile.TemporaryDirectory(prefix=".solving-", dir=root) as scratch:
        solved = Path(scratch) / DIRECTORY
        solved.mkdir()
        wanted = Wanted(
            python=python,
            requirements=environment.requirements or (),
            directory=code_dir.absolute(),
            brings=brought(config, code_dir),
            root=root,
            images=(environment.image.cpu or "", environment.image.cuda or ""),
            container=environment.container or "",
            fetch=environment.force_pull_image,
            mounts=tuple(_mount(each) for each in config.bind_mounts),
        )
        made_by.solve(wanted, solved)
        (solved / _FACTS).write_text(json.dumps({"maker": name}))
        yield solved


def _mount(mount: BindMount) -> str:
    options = ",".join(each for each in ("ro" * mount.read_only, mount.propagation) if each)
    return f"{mount.host_path}:{mount.container_path}:{options}"


def interpreter_for(
    config: ExperimentConfig, code_dir: Path, plugins: Plugins, root: Path, environ: Mapping[str, str]
) -> str | None:
    """Return another interpreter in which a trial class is to be tried, made here if need be; None where it is this one."""
    if CHECKED in environ or not is_trial_entrypoint(config.entrypoint):
        return None
    config = placed(config, code_dir, "local")
    with solving(config, code_dir, plugins, root) as into:
        if into is None:
            return config.environment.python
        solved = recorded(into.parent)
        assert solved is not None
        return make(solved.maker, solved.directory, solved.digest, root, plugins)


def interpreter_of(directory: Path, config: ExperimentConfig, plugins: Plugins, root: Path) -> str | None:
    """Return the other interpreter in which an experiment trains, made here if need be; None where it is this one."""
    if (solved := recorded(directory)) is None:
        return config.environment.python
    return make(solved.maker, solved.directory, solved.digest, root, plugins)


def imports_of(config: ExperimentConfig, code_dir: Path) -> set[str]:
    """Return the top-level modules that an experiment's entrypoint imports, as its code says."""
    entrypoint = config.entrypoint or ""
    if is_trial_entrypoint(entrypoint):
        modules = [str(entrypoint).partition(":")[0]]
    else:
        words = entrypoint.split() if isinstance(entrypoint, str) else entrypoint
        modules = [word.removesuffix(".py").replace("/", ".") for word in words if word.endswith(".py")]
    return {name for module in modules for name in read_code(module, code_dir).imports}


def brought(config: ExperimentConfig, code_dir: Path) -> tuple[str, ...]:
    """Return the distributions of this interpreter that an experiment's workers need: det-core, and what its code imports."""
    imports = imports_of(config, code_dir)
    entries = entry_points(group="det")
    found = {e.dist.name for e in entries if e.dist is not None and e.module.partition(".")[0] in imports}
    return tuple(sorted({"det-core", *found}))


def environment_variables(solved: SolvedEnvironment | None, root: Path) -> dict[str, str]:
    """Return the variables by which an agent and its workers know the environment."""
    return {"DET_ENVIRONMENT": solved.digest, "DET_ENVIRONMENTS": str(root)} if solved else {}


def environment_of(
    environ: Mapping[str, str], config: ExperimentConfig, *, gpus: bool, threads: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables of a process that runs a trial's code: this one's, its share of the cores, the configuration's."""
    listed = config.environment.environment_variables
    chosen = listed.cuda if gpus else listed.cpu
    return {**environ, **(threads or {}), **dict(variable.partition("=")[::2] for variable in chosen)}
