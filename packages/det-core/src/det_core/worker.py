"""A worker process: `python -m det_core.worker module:Class`, started by an engine.

It finds its run in the environment, connects to the driver, trains, and says how it ended.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from . import wire
from .adapter import RunInfo
from .checkpoint import Manifest
from .distributed import DistributedContext
from .entrypoint import load_trial
from .environ import WorkerEnv
from .errors import DetError, InvalidHP, StorageError
from .failure import summary, user_traceback
from .host import HostLost, Outcome
from .loop import Stop
from .plugins import Plugins
from .protocol import Hello, encode
from .remote import RemoteHost
from .run import Keep, run_trial

if TYPE_CHECKING:
    from .storage import Storage

GRACE_SECONDS = 30.0
_EXIT = {Outcome.MISTAKE: 2, Outcome.BLOCKED: 2, Outcome.ERROR: 1}
_OUTCOMES = {
    Stop.COMPLETED: Outcome.COMPLETED,
    Stop.PREEMPTED: Outcome.PREEMPTED,
    Stop.USER_STOPPED: Outcome.USER_STOPPED,
}


def main(argv: list[str] | None = None) -> int:
    """Run the entrypoint that is the only argument; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    env = WorkerEnv.read(os.environ)
    if env is None or len(arguments) != 1:
        sys.stderr.write("det_core.worker is started by det; run your trial with: det run CONFIG\n")
        return 2
    return work(env, arguments[0], Path.cwd())


def work(env: WorkerEnv, entrypoint: str, code_dir: Path) -> int:
    """Train one run of the trial class `entrypoint`; return the exit status of its process."""
    host = connect(env)
    previous = _preempt_on_sigterm(host)
    try:
        outcome, message, trace = _attempt(env, entrypoint, code_dir, host)
        if trace:
            sys.stderr.write(trace)
        elif message:
            sys.stderr.write(f"det: {message}\n")
        sys.stderr.flush()
        try:
            host.finished(outcome, message, trace)
        except HostLost:
            pass  # the checkpoint is noted in the spool; the next driver finds it
        return _EXIT.get(outcome, 0)
    finally:
        host.close()
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def connect(env: WorkerEnv, on_lost_seconds: float = GRACE_SECONDS) -> RemoteHost:
    """Connect to the driver; when it is lost, the process ends after a grace, come what may."""
    connection = wire.connect(env.driver, env.key, timeout=60)
    connection.send(encode(Hello(run_id=env.run_id, rank=env.rank, pid=os.getpid())))
    return RemoteHost(connection, on_lost=lambda: _end_after(on_lost_seconds))


def storage_of(env: WorkerEnv, plugins: Plugins) -> Storage:
    """Open the checkpoint storage of a run."""
    config = env.config.checkpoint_storage
    if config is None:
        from .storage import LocalStorage

        return LocalStorage(env.checkpoint_root)
    kind = type(config).__struct_config__.tag
    storage: Storage = plugins.storages()[str(kind)].open(config, env.checkpoint_root)
    return storage


def _attempt(env: WorkerEnv, entrypoint: str, code_dir: Path, host: RemoteHost) -> tuple[Outcome, str, str]:
    try:
        return _OUTCOMES[_train(env, entrypoint, code_dir, host)], "", ""
    except InvalidHP as error:
        return Outcome.INVALID_HP, str(error) or "these hyperparameters cannot work", ""
    except StorageError as error:
        return Outcome.BLOCKED, str(error), ""
    except DetError as error:
        return Outcome.MISTAKE, str(error), ""
    except HostLost as error:
        return Outcome.PREEMPTED, str(error), ""
    except KeyboardInterrupt:
        return Outcome.PREEMPTED, "interrupted", ""
    except SystemExit as error:
        message = f"the trial called sys.exit({error.code!r}); return, or raise det_core.InvalidHP"
        return Outcome.MISTAKE, message, ""
    except BaseException as error:
        return Outcome.ERROR, summary(error), user_traceback(error)


def _train(env: WorkerEnv, entrypoint: str, code_dir: Path, host: RemoteHost) -> Stop:
    plugins = Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1")
    random.seed(env.seed)  # before the user's module runs; the adapter seeds its framework
    trial = load_trial(entrypoint, code_dir)
    framework = plugins.framework_of(trial)
    info = RunInfo(
        config=env.config,
        hparams=env.hparams,
        seed=env.seed,
        build=plugins.build(framework.name),
        distributed=DistributedContext(),
        trial_id=env.trial_id,
        experiment_id=env.experiment_id,
        run_number=env.run_number,
        slots=env.slots,
        code_dir=code_dir,
        tensorboard_dir=env.tensorboard_dir,
        checkpoint=env.latest_checkpoint,
    )
    keep = Keep(storage=storage_of(env, plugins), unrecorded=lambda manifest: spool(env, manifest))
    return run_trial(framework, trial, info, host, keep)


def spool(env: WorkerEnv, manifest: Manifest) -> None:
    """Note a checkpoint for the next driver, as this one is gone."""
    import msgspec

    env.spool.mkdir(parents=True, exist_ok=True)
    temporary = env.spool / f".{manifest.uuid}"
    temporary.write_bytes(msgspec.json.encode(manifest))
    temporary.rename(env.spool / f"{manifest.uuid}.json")


def _preempt_on_sigterm(host: RemoteHost) -> signal._HANDLER:
    if threading.current_thread() is not threading.main_thread():
        return None

    def preempt(number: int, frame: object) -> None:
        host.preempted.reason = "SIGTERM"
        host.preempted.raised = True

    return signal.signal(signal.SIGTERM, preempt)


def _end_after(seconds: float) -> None:
    timer = threading.Timer(seconds, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    sys.stderr.write(f"det: the driver has been gone for {GRACE_SECONDS:.0f} s and the trial did not stop; ending it\n")
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
