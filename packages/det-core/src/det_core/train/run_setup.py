"""Reads what a process of a run finds in its environment.

That is the storage, the run as plugins see it, and where checkpoints go.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import msgspec

from ..checkpoint.manifest import Manifest
from ..hooks import Plugins, extensions_of
from ..ranks.backend import Communicator
from ..storage import Storage, sync
from .adapter import RunInfo
from .environ import WorkerEnv
from .run import length_of
from .saving import CheckpointSink


class Spooled(msgspec.Struct, frozen=True):
    """A checkpoint that a run published when its driver was gone, in a file for the next driver."""

    run_id: int
    manifest: Manifest
    storage: str


encode_note = msgspec.json.encode
decode_note = msgspec.json.Decoder(Spooled).decode


def storage_of(env: WorkerEnv, plugins: Plugins) -> Storage:
    """Open the checkpoint storage of a run."""
    return plugins.storage_of(checked(env, plugins).config, env.checkpoint_root)


def checked(env: WorkerEnv, plugins: Plugins) -> WorkerEnv:
    """Return the run with the configuration of plugins in the plugins' own structs."""
    return env if env.checked else env.typed(extensions_of(plugins))


def run_info(
    env: WorkerEnv, plugins: Plugins, framework: str, code_dir: Path, distributed: Communicator
) -> RunInfo:
    """Return the run of this environment, as a framework's plugin sees it."""
    return RunInfo(
        config=env.config,
        hparams=env.hparams,
        seed=env.seed,
        build=plugins.build(framework),
        distributed=distributed,
        trial_id=env.trial_id,
        experiment_id=env.experiment_id,
        environment=env.environment,
        commit=env.commit,
        run_number=env.run_number,
        slots=env.slots,
        length=length_of(env.config),
        code_dir=code_dir,
        tensorboard_dir=env.tensorboard_dir,
        scratch_dir=env.scratch,
        checkpoint=env.latest_checkpoint,
        first_batch=env.steps_completed if env.latest_checkpoint else 0,
        warm=env.warm if env.latest_checkpoint else None,
    )


def make_checkpoint_sink(env: WorkerEnv, storage: Storage) -> CheckpointSink:
    """Return the sink for a run's checkpoints.

    It notes them for the next driver where this one is gone.
    """
    return CheckpointSink(storage=storage, described=env.described, unrecorded=partial(spool, env))


def spool(env: WorkerEnv, manifest: Manifest, storage: str) -> None:
    """Note a checkpoint for the next driver, as this one is gone.

    The note survives a crash of the machine.
    """
    env.spool.mkdir(parents=True, exist_ok=True)
    temporary = env.spool / f".{manifest.uuid}-{threading.get_ident()}"
    temporary.write_bytes(encode_note(Spooled(env.run_id, manifest, storage)))
    sync(temporary)
    temporary.rename(env.spool / f"{manifest.uuid}.json")
    sync(env.spool)
