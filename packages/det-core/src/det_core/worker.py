"""A worker process: `python -m det_core.worker module:Class`, started by an engine.

It finds its run in the environment, connects to the driver, trains, and says how it ended.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import wire
from .adapter import RunInfo, Stop
from .backend import Communicator, RankLost
from .backends import Socket, choose_backend, must_shard, wanted_backend
from .distributed import DistributedContext
from .entrypoint import load_trial
from .environ import WorkerEnv
from .errors import DetError
from .failure import explained
from .host import HostLost, Outcome
from .interrupts import preempted_by
from .manifest import Manifest
from .origin import origin
from .plugins import Plugins, extensions_of
from .protocol import Spooled, decode_welcome, encode, encode_note, hello, refusal
from .remote import RemoteHost
from .run import length_of, run_trial
from .saving import Keep
from .storage import Storage, sync

_CONNECT_SECONDS = 60.0
EXIT = {Outcome.MISTAKE: 2, Outcome.BLOCKED: 2, Outcome.ERROR: 1, Outcome.PEER_LOST: 1}
FAILURES = {*EXIT, Outcome.INVALID_HP}
OUTCOMES = {
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


def work(
    env: WorkerEnv,
    entrypoint: str,
    code_dir: Path,
    *,
    alone: bool = True,
    plugins: Plugins | None = None,
    joined: socket.socket | None = None,
) -> int:
    """Train one run of the trial class `entrypoint`; return the exit status of its process.

    `alone` says that standard error is the run's own and not the driver's, which has last words of its own. `plugins` are
    those that are installed, where they have been found already; `joined` is connected to the driver, where something is.
    """
    try:
        host = connect(env, joined)
    except DetError as error:  # the driver knows it as well
        if alone:
            sys.stderr.write(f"det: {error}\n")
        return EXIT[Outcome.MISTAKE]
    try:
        with preempted_by(host.preempted, signal.SIGTERM):
            try:
                outcome, message, trace = OUTCOMES[_train(env, entrypoint, code_dir, host, plugins)], "", ""
            except BaseException as error:
                outcome, message, trace = explained(error)
            if trace:
                sys.stderr.write(trace)
            elif message and alone:
                sys.stderr.write(f"det: {message}\n")
            sys.stderr.flush()
            if env.ranks.rank == 0 or outcome in FAILURES:
                with suppress(HostLost):  # the checkpoint is noted in the spool; the next driver finds it
                    host.finished(outcome, message, trace, wait=not env.kept or env.ranks.size > 1)
        return EXIT.get(outcome, 0)
    finally:
        host.close()


def connect(env: WorkerEnv, joined: socket.socket | None = None) -> RemoteHost:
    """Connect to the driver, unless `joined` is; when it is lost, the process has the run's patience to save, come what may.

    Raises DetError, which names the versions of both, where the driver speaks another protocol.
    """
    if joined is not None:
        connection = wire.Connection(joined)
    else:
        connection = wire.connect(env.driver, env.key, timeout=_CONNECT_SECONDS, run=env.run_id)
    greeting = hello(env.run_id, env.ranks.rank)
    connection.send(encode(greeting))
    if refused := refusal(greeting, decode_welcome(connection.recv(timeout=_CONNECT_SECONDS))):
        connection.close()
        raise DetError(refused)
    host = RemoteHost(
        connection,
        on_lost=lambda: _end_after(env.patience),
        target=env.target,
        unrecorded=partial(spool, env) if env.kept else None,
    )
    if env.ranks.rank == 0:
        host.came_from(origin())
    return host


def storage_of(env: WorkerEnv, plugins: Plugins) -> Storage:
    """Open the checkpoint storage of a run."""
    return plugins.storage_of(checked(env, plugins).config, env.checkpoint_root)


def checked(env: WorkerEnv, plugins: Plugins) -> WorkerEnv:
    """Return the run with what plugins configure in their own structs."""
    return env if env.checked else env.typed(extensions_of(plugins))


def _train(env: WorkerEnv, entrypoint: str, code_dir: Path, host: RemoteHost, plugins: Plugins | None) -> Stop:
    plugins = plugins or Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1")
    env = checked(env, plugins)
    random.seed(env.seed)  # before the user's module runs; the adapter seeds its framework
    trial = load_trial(entrypoint, code_dir)
    framework = plugins.framework_of(trial)
    must_shard(env.config, framework)
    keep = keep_of(env, storage_of(env, plugins))
    if env.ranks.size == 1:
        info = run_info(env, plugins, framework.name, code_dir, DistributedContext())
        return run_trial(framework, trial, info, host, keep)
    with meet(env, host) as distributed:
        backend = choose_backend(wanted_backend(env.config), framework.name, plugins.backends())
        if env.ranks.rank == 0:
            sys.stderr.write(f"det: {env.ranks.size} ranks; gradients are reduced by {backend.name}\n")
            host.chose(backend.name)
        info = replace(run_info(env, plugins, framework.name, code_dir, distributed), backend=backend)
        stop = run_trial(framework, trial, info, host, keep, failed=lambda error: _tell_first(host, error))
        distributed.barrier()  # the ranks end together, so that one that does not is known to hang
        return stop


def meet(env: WorkerEnv, host: RemoteHost) -> DistributedContext:
    """Meet the other ranks of the run, at an address that the chief opens and the driver passes on."""
    key, patience = hashlib.sha256(b"the ranks of a run" + env.key).digest(), env.start_timeout
    timeout = env.config.distributed.timeout
    try:
        chief = (env.chief, 0) if env.ranks.rank == 0 else host.meet(timeout=patience)
    except TimeoutError:
        raise RankLost(0, f"rank 0 did not come within {patience:g} s; see why it did not start") from None
    ranks = Socket(env.ranks, chief=chief, key=key, start_timeout=patience, timeout=timeout, ready=host.meet)
    return DistributedContext.from_backend(ranks)


def _tell_first(host: RemoteHost, error: BaseException) -> None:
    """Say what went wrong before anything is closed: then the other ranks fail too, and nobody could tell who was first."""
    with suppress(HostLost):
        host.finished(*explained(error))


def run_info(env: WorkerEnv, plugins: Plugins, framework: str, code_dir: Path, distributed: Communicator) -> RunInfo:
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


def keep_of(env: WorkerEnv, storage: Storage) -> Keep:
    """Return where the checkpoints of a run go, to be noted for the next driver where this one is gone."""
    return Keep(storage=storage, described=env.described, unrecorded=partial(spool, env))


def spool(env: WorkerEnv, manifest: Manifest, storage: str) -> None:
    """Note a checkpoint for the next driver, as this one is gone; the note is there after a crash of the machine, too."""
    env.spool.mkdir(parents=True, exist_ok=True)
    temporary = env.spool / f".{manifest.uuid}-{threading.get_ident()}"
    temporary.write_bytes(encode_note(Spooled(env.run_id, manifest, storage)))
    sync(temporary)
    temporary.rename(env.spool / f"{manifest.uuid}.json")
    sync(env.spool)


def _end_after(seconds: float) -> None:
    timer = threading.Timer(seconds, _end, (seconds,))
    timer.daemon = True
    timer.start()


def _end(seconds: float) -> None:
    sys.stderr.write(f"det: the driver has been gone for {seconds:.0f} s and the trial did not stop; ending it\n")
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
