"""What a run hands its processes through the environment, under the names that scripts know."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from .backend import Ranks, rank_variables, ranks_in
from .backends.socket import START_SECONDS
from .config import ExperimentConfig, Extensions, from_json, to_json
from .host import Target

_LONGEST = 100_000  # Linux takes 128 KiB for one variable


@dataclass(frozen=True, kw_only=True)
class WorkerEnv:
    """One run, as its processes find it in `DET_*`.

    `driver` is the address of the driver's connection, `key` its secret, for this run alone. `spool` is where a checkpoint is
    noted that the driver could not be told of. `steps_completed` is 0 on a warm start. `ranks` is where the process stands
    among those of the run, which meet at the address `chief` within `start_timeout` seconds. What the run leaves in `scratch`
    is deleted when it has ended, however it did. `alone` is how many seconds it has to end once it has lost its driver, where
    another machine may go on with it then. `kept` says that it talks to an agent, which keeps what was said when the process
    has ended. `target` is the first one of a trial class; others ask. `checked` says that what plugins configure is in their
    own structs, `described` is the configuration as checkpoints hold it, where that is known. `environment` is the digest of
    what the interpreter was made of, where it was made for the experiment, `commit` that of the code's repository, with a +
    where the code is not as committed.
    """

    experiment_id: int
    trial_id: int
    run_id: int
    run_number: int
    seed: int
    hparams: Mapping[str, Any]
    config: ExperimentConfig
    slot_ids: tuple[int, ...]
    driver: tuple[str, int]
    key: bytes
    checkpoint_root: Path
    tensorboard_dir: Path
    spool: Path
    latest_checkpoint: str | None = None
    steps_completed: int = 0
    ranks: Ranks = field(default_factory=Ranks)
    chief: str = "127.0.0.1"
    start_timeout: float = START_SECONDS
    scratch: Path | None = None
    slots: int = 1
    alone: float | None = None
    environment: str | None = None
    commit: str | None = None
    checked: bool = False
    described: Mapping[str, Any] | None = None
    warm: bool = False
    kept: bool = False
    target: Target | None = None
    cluster_id: str = "local"

    @property
    def patience(self) -> float:
        """How many seconds the processes have to save and end when they have lost their driver."""
        return self.config.patience if self.alone is None else min(self.alone, self.config.patience)

    def variables(self) -> dict[str, str]:
        """Return the variables to add to a process's environment."""
        facts = {field: getattr(self, field) for field in _FACTS}
        return {**variables_of_all(**facts), **variables_of_one(**facts), **rank_variables(self.ranks)}

    def typed(self, extensions: Extensions) -> WorkerEnv:
        """Return the run with what plugins configure in their own structs, where it was kept as written.

        What only the driver's plugins know stays so: it has been checked there.
        """
        known = replace(extensions, open=True)
        return replace(self, config=from_json(to_json(self.config), extensions=known), checked=True)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> WorkerEnv | None:
        """Return the run that `environ` describes, or None outside of one."""
        if "DET_DRIVER" not in environ:
            return None
        texts = ((field, read, variable(environ, name)) for field, (name, _, read) in _FACTS.items())
        found = {field: read(text) for field, read, text in texts if text is not None}
        return cls(**found, ranks=ranks_in(environ))


def variables_of_all(*, config: ExperimentConfig, **facts: Any) -> dict[str, str]:
    """Return the variables that the runs of an experiment have in common; facts are named, and set, as WorkerEnv has them."""
    timeout, others = config.distributed.timeout, {name: getattr(WorkerEnv, name, None) for name in _FACTS}
    return {
        **({} if timeout is None else {"DET_RANKS_TIMEOUT": f"{timeout:g}"}),
        "DET_AGENT_ID": os.uname().nodename,
        "DET_TASK_TYPE": "TRIAL",
        **rank_variables(Ranks()),
        **_written(others | facts | {"config": config}),
    }


def variables_of_one(**facts: Any) -> dict[str, str]:
    """Return those that a run, and maybe no other one, has beside them."""
    task = f"trial-{facts['trial_id']}"
    return {"DET_TASK_ID": task, "DET_ALLOCATION_ID": f"{task}.{facts['run_number']}", **_written(facts)}


def _written(facts: Mapping[str, Any]) -> dict[str, str]:
    return {_FACTS[field][0]: _FACTS[field][1](value) for field, value in facts.items() if value is not None}


@lru_cache(maxsize=1)
def _read_config(text: str) -> ExperimentConfig:
    """Read a configuration; forks of a process that has read it find it read."""
    return from_json(text)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


_FACTS: dict[str, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    "cluster_id": ("DET_CLUSTER_ID", str, str),
    "experiment_id": ("DET_EXPERIMENT_ID", str, int),
    "trial_id": ("DET_TRIAL_ID", str, int),
    "run_id": ("DET_RUN_ID", str, int),
    "run_number": ("DET_TRIAL_RUN_ID", str, int),
    "seed": ("DET_TRIAL_SEED", str, int),
    "hparams": ("DET_HPARAMS", lambda hparams: json.dumps(dict(hparams)), json.loads),
    "config": ("DET_EXPERIMENT_CONFIG", to_json, _read_config),
    "slot_ids": ("DET_SLOT_IDS", json.dumps, lambda text: tuple(json.loads(text))),
    "slots": ("DET_SLOTS", str, int),
    "latest_checkpoint": ("DET_LATEST_CHECKPOINT", str, str),
    "steps_completed": ("DET_STEPS_COMPLETED", str, int),
    "warm": ("DET_WARM_START", lambda warm: str(int(warm)), lambda text: text == "1"),
    "driver": ("DET_DRIVER", lambda address: f"{address[0]}:{address[1]}", _address),
    "key": ("DET_DRIVER_KEY", bytes.hex, bytes.fromhex),
    "chief": ("DET_CHIEF_IP", str, str),
    "start_timeout": ("DET_START_TIMEOUT", "{:g}".format, float),
    "environment": ("DET_ENVIRONMENT", str, str),
    "commit": ("DET_CODE_COMMIT", str, str),
    "target": ("DET_TARGET", lambda t: msgspec.json.encode(t).decode(), msgspec.json.Decoder(Target).decode),
    "kept": ("DET_WORDS_KEPT", lambda kept: str(int(kept)), lambda text: text == "1"),
    "alone": ("DET_ALONE_SECONDS", "{:g}".format, float),
    "checkpoint_root": ("DET_CHECKPOINT_ROOT", str, Path),
    "tensorboard_dir": ("DET_TENSORBOARD_DIR", str, Path),
    "spool": ("DET_SPOOL_DIR", str, Path),
    "scratch": ("DET_SCRATCH_DIR", str, Path),
}
"""The variable of each fact of a run, and how it is written and read."""


def shortened(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return variables that a process can be started with: what is too long for one is in a file, named by `NAME_FILE`."""
    short = {name: value for name, value in variables.items() if len(os.fsencode(value)) <= _LONGEST}
    for name in variables.keys() - short.keys():
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{name}.json"
        file.touch(mode=0o600)
        file.write_text(variables[name])
        short[f"{name}_FILE"] = str(file)
    return short


def variable(environ: Mapping[str, str], name: str) -> str | None:
    """Return a variable, wherever `shortened` has put it; None where there is none."""
    if name in environ:
        return environ[name]
    file = environ.get(f"{name}_FILE")
    return Path(file).read_text() if file else None
