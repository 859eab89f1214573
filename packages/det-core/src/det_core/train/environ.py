"""The environment variables by which a run's processes get its facts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from ..config import ExperimentConfig, Extensions, from_json, to_json
from ..ranks.backend import START_SECONDS, Ranks, rank_variables, ranks_in
from .host import Target

# Linux allows 128 KiB for one variable.
_LONGEST = 100_000


@dataclass(frozen=True, kw_only=True)
class WorkerEnv:
    """One run, as its processes read it from `DET_*`.

    - `driver`, `key`: the address to connect to, and the key of this run.
    - `spool`: the directory for notes on checkpoints that could not be reported.
    - `steps_completed`: 0 on a warm start.
    - `ranks`: the ranks of this process. They meet at the address `chief` within `start_timeout`
      seconds.
    - `scratch`: a directory that is deleted when the run has ended, in whatever way.
    - `alone`: within how many seconds the run must end once it has lost its driver, where another
      node may then continue it.
    - `kept`: whether the process talks to an agent, which keeps messages when the process has
      ended.
    - `target`: the first target of a trial class. Other runs ask for it.
    - `checked`: whether the configuration of plugins is in their own structs.
    - `described`: the configuration as checkpoints store it, where known.
    - `environment`: the digest of the environment that was made for the experiment, if any.
    - `check_first`: whether the trial is checked before it trains.
    - `commit`: the commit of the code's repository, with a + where the code differs from it.
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
    check_first: bool = False
    cluster_id: str = "local"

    @property
    def patience(self) -> float:
        """How many seconds the processes have to save and end when they have lost their driver."""
        return self.config.patience if self.alone is None else min(self.alone, self.config.patience)

    def variables(self) -> dict[str, str]:
        """Return the variables to add to a process's environment."""
        facts = {field: getattr(self, field) for field in _FACTS}
        return {
            **variables_of_all(**facts),
            **variables_of_one(**facts),
            **rank_variables(self.ranks),
        }

    def typed(self, extensions: Extensions) -> WorkerEnv:
        """Return the run with the configuration of plugins in their own structs.

        Sections of plugins that only the driver has are left as written. The driver has checked
        them.
        """
        known = replace(extensions, open=True)
        return replace(self, config=from_json(to_json(self.config), extensions=known), checked=True)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> WorkerEnv | None:
        """Return the run that `environ` describes, or None outside of one."""
        if "DET_DRIVER" not in environ:
            return None
        texts = (
            (field, read, variable(environ, name)) for field, (name, _, read) in _FACTS.items()
        )
        found = {field: read(text) for field, read, text in texts if text is not None}
        return cls(**found, ranks=ranks_in(environ))


def variables_of_all(*, config: ExperimentConfig, **facts: Any) -> dict[str, str]:
    """Return the variables that all runs of an experiment share.

    The facts have the names and types of WorkerEnv's fields.
    """
    timeout, others = (
        config.distributed.timeout,
        {name: getattr(WorkerEnv, name, None) for name in _FACTS},
    )
    return {
        **({} if timeout is None else {"DET_RANKS_TIMEOUT": f"{timeout:g}"}),
        "DET_AGENT_ID": os.uname().nodename,
        "DET_TASK_TYPE": "TRIAL",
        **rank_variables(Ranks()),
        **_written(others | facts | {"config": config}),
    }


def variables_of_one(**facts: Any) -> dict[str, str]:
    """Return the variables that may differ between runs."""
    task = f"trial-{facts['trial_id']}"
    return {
        "DET_TASK_ID": task,
        "DET_ALLOCATION_ID": f"{task}.{facts['run_number']}",
        **_written(facts),
    }


def _written(facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        _FACTS[field][0]: _FACTS[field][1](value)
        for field, value in facts.items()
        if value is not None
    }


@lru_cache(maxsize=1)
def _read_config(text: str) -> ExperimentConfig:
    """Parse a configuration. Forks of a process that has parsed it find it in the cache."""
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
    "check_first": ("DET_CHECK_FIRST", lambda first: str(int(first)), lambda text: text == "1"),
    "driver": ("DET_DRIVER", lambda address: f"{address[0]}:{address[1]}", _address),
    "key": ("DET_DRIVER_KEY", bytes.hex, bytes.fromhex),
    "chief": ("DET_CHIEF_IP", str, str),
    "start_timeout": ("DET_START_TIMEOUT", "{:g}".format, float),
    "environment": ("DET_ENVIRONMENT", str, str),
    "commit": ("DET_CODE_COMMIT", str, str),
    "target": (
        "DET_TARGET",
        lambda t: msgspec.json.encode(t).decode(),
        msgspec.json.Decoder(Target).decode,
    ),
    "kept": ("DET_WORDS_KEPT", lambda kept: str(int(kept)), lambda text: text == "1"),
    "alone": ("DET_ALONE_SECONDS", "{:g}".format, float),
    "checkpoint_root": ("DET_CHECKPOINT_ROOT", str, Path),
    "tensorboard_dir": ("DET_TENSORBOARD_DIR", str, Path),
    "spool": ("DET_SPOOL_DIR", str, Path),
    "scratch": ("DET_SCRATCH_DIR", str, Path),
}
"""The variable of each fact of a run, and how it is written and read."""


def shortened(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return variables that are short enough to start a process with.

    The value of a longer variable is written to a file, which `NAME_FILE` names.
    """
    short = {
        name: value for name, value in variables.items() if len(os.fsencode(value)) <= _LONGEST
    }
    for name in variables.keys() - short.keys():
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{name}.json"
        file.touch(mode=0o600)
        file.write_text(variables[name])
        short[f"{name}_FILE"] = str(file)
    return short


def variable(environ: Mapping[str, str], name: str) -> str | None:
    """Return a variable's value, from its file where `shortened` has written one, or None."""
    if name in environ:
        return environ[name]
    file = environ.get(f"{name}_FILE")
    return Path(file).read_text() if file else None
