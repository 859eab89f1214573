"""The environment of an experiment, solved when the experiment is created and recorded with it."""

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

from det_core.config import MASK, BindMount, ExperimentConfig, is_trial_entrypoint
from det_core.errors import ConfigError, DetError
from det_core.hooks import Plugins
from det_core.support.installation import CORE, how_to_install
from det_core.support.paths import expand_user, read_regular
from det_node.agent import RunSpec
from det_node.environments import Wanted, digest_of, interpreter, make, maker
from det_node.launch import hosts_of

from ..engines import Preparation
from ..store import Store
from ._preload import read_code

DIRECTORY = "environment"
CHECKED = "DET_CHECKED"
"""Set where `det check` runs in the experiment's own interpreter."""
_FACTS = "environment.json"
_LOOKS = (
    "import sys, importlib.util as i; print(sys.version_info >= (3, 11), i.find_spec('det_core') is"
    " not None)"
)


@dataclass(frozen=True)
class SolvedEnvironment:
    """The recorded environment of an experiment.

    The named maker makes the environment with this digest from the files in `directory`.
    """

    directory: Path
    maker: str
    digest: str


def environments_dir(home: Path, environ: Mapping[str, str]) -> Path:
    """Return the directory of environments on this host, by default in the home."""
    return expand_user(environ.get("DET_ENVIRONMENTS") or home / "envs").absolute()


def recorded(directory: Path) -> SolvedEnvironment | None:
    """Return the solved environment in an experiment's directory, or None where it has none."""
    place = directory / DIRECTORY
    if not place.is_dir():
        return None
    try:
        facts = json.loads(read_regular(place / _FACTS))
        return SolvedEnvironment(place, facts["maker"], digest_of(place))
    except (OSError, ValueError, KeyError) as error:
        raise DetError(
            f"{place / _FACTS} cannot be read ({error}); start the experiment again"
        ) from error


def preparation(store: Store, experiment_id: int, root: Path) -> Preparation | None:
    """Return how the environment of an experiment is made on a node, or None where it has none."""
    solved = recorded(store.experiment_dir(experiment_id))
    if solved is None:
        return None
    words = (
        f"exec python3 -P -m det_node.environments {solved.maker} {solved.digest}"
        ' "$DET_ENVIRONMENTS"'
    )
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
    """Return whether `environment.python` is the path of an interpreter, and not a version."""
    return os.sep in python or python.startswith("~")


def check_environment(config: ExperimentConfig, engine: str) -> None:
    """Raise ConfigError where the configuration asks for an interpreter that runs cannot have."""
    environment = config.environment
    asked = [
        key
        for key in ("container", "requirements", "python")
        if getattr(environment, key) is not None
    ]
    asks, key = bool(asked), (*asked, "")[0]
    if environment.container and (asked[1:] or not environment.image.cpu):
        raise ConfigError(
            f"environment.container runs an image as it is: leave environment.{asked[1]} out"
            if asked[1:]
            else (
                "environment.container needs environment.image; name one that has"
                " det-training-core, det-node and the framework's plugin"
            )
        )
    if asks and engine == "in-process":
        raise ConfigError(
            f"--in-process trains in this interpreter, and environment.{key} asks for another;"
            " leave one of them out"
        )
    if asks and hosts_of(config):
        raise ConfigError(
            f"environment.{key} is not made on distributed.hosts; reach them by engine: {{name:"
            " ssh, hosts: [...]}"
        )


def placed(config: ExperimentConfig, code_dir: Path | None, engine: str) -> ExperimentConfig:
    """Return the configuration with an absolute path of the interpreter.

    ConfigError: the interpreter cannot be used on this host.
    """
    environment = config.environment
    if environment.python is None or not is_path(environment.python):
        return config
    python = Path(os.path.abspath((code_dir or Path.cwd()) / expand_user(environment.python)))
    if engine == "local":
        _check_interpreter(python, config)
    return msgspec.structs.replace(
        config, environment=msgspec.structs.replace(environment, python=str(python))
    )


def _check_interpreter(python: Path, config: ExperimentConfig) -> None:
    try:
        done = subprocess.run(
            [python, "-P", "-c", _LOOKS], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        done = None
    words = done.stdout.split() if done is not None else []
    if len(words) != 2:
        # An interpreter before 3.11 has no -P.
        raise ConfigError(
            f"environment.python is {python}, which is no Python from 3.11 on; name one, or a"
            " version"
        )
    if (
        words[1] != "True"
        and config.environment.requirements is None
        and is_trial_entrypoint(config.entrypoint)
    ):
        raise ConfigError(
            f"environment.python is {python}, which has no {CORE} for its workers; run:"
            f" {how_to_install(CORE, python=str(python))}, or give environment.requirements, and it"
            " is brought there"
        )


@contextmanager
def solving(
    config: ExperimentConfig, code_dir: Path, plugins: Plugins | None, root: Path
) -> Iterator[Path | None]:
    """Yield a directory with the solved environment of a configuration, or None if it needs none.

    DetError: it cannot be solved. The message is the resolver's.
    """
    environment = config.environment
    python = environment.python or ""
    if (
        not environment.container
        and environment.requirements is None
        and (not python or is_path(python))
    ):
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
    config: ExperimentConfig,
    code_dir: Path,
    plugins: Plugins,
    root: Path,
    environ: Mapping[str, str],
) -> str | None:
    """Return another interpreter for checking a trial class, or None for this one.

    Its environment is made on this host where needed.
    """
    if CHECKED in environ or not is_trial_entrypoint(config.entrypoint):
        return None
    config = placed(config, code_dir, "local")
    with solving(config, code_dir, plugins, root) as into:
        if into is None:
            return config.environment.python
        solved = recorded(into.parent)
        assert solved is not None
        return make(solved.maker, solved.directory, solved.digest, root, plugins)


def interpreter_of(
    directory: Path, config: ExperimentConfig, plugins: Plugins, root: Path
) -> str | None:
    """Return the other interpreter in which an experiment trains, or None for this one.

    Its environment is made on this host where needed.
    """
    if (solved := recorded(directory)) is None:
        return config.environment.python
    return make(solved.maker, solved.directory, solved.digest, root, plugins)


def imports_of(config: ExperimentConfig, code_dir: Path) -> set[str]:
    """Return the top-level modules that the code of an experiment's entrypoint imports."""
    entrypoint = config.entrypoint or ""
    if is_trial_entrypoint(entrypoint):
        modules = [str(entrypoint).partition(":")[0]]
    else:
        words = entrypoint.split() if isinstance(entrypoint, str) else entrypoint
        modules = [
            word.removesuffix(".py").replace("/", ".") for word in words if word.endswith(".py")
        ]
    return {name for module in modules for name in read_code(module, code_dir).imports}


def brought(config: ExperimentConfig, code_dir: Path) -> tuple[str, ...]:
    """Return the distributions of this interpreter that an experiment's workers need.

    They are det's own, and what its code imports.
    """
    imports = imports_of(config, code_dir) | {"det_core", "det_node"}
    entries = entry_points(group="det")
    found = {
        e.dist.name for e in entries if e.dist is not None and e.module.partition(".")[0] in imports
    }
    return tuple(sorted(found))


def environment_variables(solved: SolvedEnvironment | None, root: Path) -> dict[str, str]:
    """Return the variables that identify the environment to an agent and its workers."""
    return {"DET_ENVIRONMENT": solved.digest, "DET_ENVIRONMENTS": str(root)} if solved else {}


def environment_of(
    environ: Mapping[str, str],
    config: ExperimentConfig,
    *,
    gpus: bool,
    threads: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment variables of a process that runs a trial's code.

    They are those of this process, its share of the cores, and those of the configuration.
    """
    listed = config.environment.environment_variables
    chosen = listed.cuda if gpus else listed.cpu
    given = dict(variable.partition("=")[::2] for variable in chosen)
    # Exports mask secrets. Their values come from the environment.

    return {
        **environ,
        **(threads or {}),
        **{name: value for name, value in given.items() if value != MASK},
    }
