"""What a run hands its processes through the environment, under the names that scripts know."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .backend import Ranks, rank_variables, ranks_in
from .backends.socket import START_SECONDS
from .config import ExperimentConfig, Extensions, from_json, to_json

_LONGEST = 100_000  # Linux takes 128 KiB for one variable


@dataclass(frozen=True, kw_only=True)
class WorkerEnv:
    """One run, as its processes find it in `DET_*`.

    `driver` and `key` are the address and the secret of the driver's connection. `spool` is where a checkpoint is noted
    that the driver could not be told of. `steps_completed` is 0 on a warm start. `ranks` is where the process stands among
    those of the run, which meet at the address `chief` within `start_timeout` seconds. What the run leaves in `scratch` is
    deleted when it has ended, however it did.
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
    warm: bool = False
    cluster_id: str = "local"

    def variables(self) -> dict[str, str]:
        """Return the variables to add to a process's environment."""
        values = {
            "DET_CLUSTER_ID": self.cluster_id,
            "DET_AGENT_ID": os.uname().nodename,
            "DET_TASK_TYPE": "TRIAL",
            "DET_TASK_ID": f"trial-{self.trial_id}",
            "DET_ALLOCATION_ID": f"trial-{self.trial_id}.{self.run_number}",
            "DET_EXPERIMENT_ID": str(self.experiment_id),
            "DET_TRIAL_ID": str(self.trial_id),
            "DET_TRIAL_RUN_ID": str(self.run_number),
            "DET_RUN_ID": str(self.run_id),
            "DET_TRIAL_SEED": str(self.seed),
            "DET_HPARAMS": json.dumps(dict(self.hparams)),
            "DET_EXPERIMENT_CONFIG": to_json(self.config),
            "DET_SLOT_IDS": json.dumps(list(self.slot_ids)),
            "DET_SLOTS": str(self.slots),
            "DET_STEPS_COMPLETED": str(self.steps_completed),
            "DET_WARM_START": str(int(self.warm)),
            "DET_DRIVER": f"{self.driver[0]}:{self.driver[1]}",
            "DET_DRIVER_KEY": self.key.hex(),
            "DET_CHIEF_IP": self.chief,
            "DET_START_TIMEOUT": f"{self.start_timeout:g}",
            "DET_CHECKPOINT_ROOT": str(self.checkpoint_root),
            "DET_TENSORBOARD_DIR": str(self.tensorboard_dir),
            "DET_SPOOL_DIR": str(self.spool),
        }
        values |= rank_variables(self.ranks)
        if self.scratch:
            values["DET_SCRATCH_DIR"] = str(self.scratch)
        if self.latest_checkpoint:
            values["DET_LATEST_CHECKPOINT"] = self.latest_checkpoint
        return values

    def typed(self, extensions: Extensions) -> WorkerEnv:
        """Return the run with what plugins configure in their own structs, where it was kept as written."""
        return replace(self, config=from_json(to_json(self.config), extensions=extensions))

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> WorkerEnv | None:
        """Return the run that `environ` describes, or None outside of one."""
        if "DET_DRIVER" not in environ:
            return None
        host, _, port = environ["DET_DRIVER"].rpartition(":")
        return cls(
            experiment_id=int(environ["DET_EXPERIMENT_ID"]),
            trial_id=int(environ["DET_TRIAL_ID"]),
            run_id=int(environ["DET_RUN_ID"]),
            run_number=int(environ["DET_TRIAL_RUN_ID"]),
            seed=int(environ["DET_TRIAL_SEED"]),
            hparams=json.loads(_value(environ, "DET_HPARAMS")),
            config=from_json(_value(environ, "DET_EXPERIMENT_CONFIG")),
            slot_ids=tuple(json.loads(environ["DET_SLOT_IDS"])),
            driver=(host, int(port)),
            key=bytes.fromhex(environ["DET_DRIVER_KEY"]),
            checkpoint_root=Path(environ["DET_CHECKPOINT_ROOT"]),
            tensorboard_dir=Path(environ["DET_TENSORBOARD_DIR"]),
            spool=Path(environ["DET_SPOOL_DIR"]),
            latest_checkpoint=environ.get("DET_LATEST_CHECKPOINT"),
            steps_completed=int(environ["DET_STEPS_COMPLETED"]),
            ranks=ranks_in(environ),
            chief=environ.get("DET_CHIEF_IP", "127.0.0.1"),
            start_timeout=float(environ.get("DET_START_TIMEOUT", START_SECONDS)),
            scratch=Path(environ["DET_SCRATCH_DIR"]) if "DET_SCRATCH_DIR" in environ else None,
            slots=int(environ.get("DET_SLOTS", "1")),
            warm=environ.get("DET_WARM_START") == "1",
            cluster_id=environ.get("DET_CLUSTER_ID", "local"),
        )


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


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ[name] if name in environ else Path(environ[f"{name}_FILE"]).read_text()
