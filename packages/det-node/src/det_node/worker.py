"""A worker process: `python -m det_node.worker module:Class`, started by an engine.

It reads its run from the environment, connects to the driver, trains, and reports how it ended.
"""

from __future__ import annotations

import hashlib
import os
import random
import select
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from det_core.config import ExperimentConfig
from det_core.errors import DetError
from det_core.hooks import Plugins
from det_core.ranks.backend import RankLost
from det_core.ranks.choice import choose_backend, must_shard, wanted_backend
from det_core.ranks.distributed import DistributedContext
from det_core.train.adapter import RunInfo, Stop
from det_core.train.ending import EXIT, FAILURES, OUTCOMES
from det_core.train.entrypoint import load_trial
from det_core.train.environ import WorkerEnv
from det_core.train.failure import explained
from det_core.train.host import HostLost, Outcome
from det_core.train.interrupts import preempted_by
from det_core.train.run import run_trial
from det_core.train.run_setup import checked, make_checkpoint_sink, run_info, storage_of
from det_core.train.saving import check_storage

from . import wire
from .backends import Socket
from .first_check import Checked, Trained, check_apart, restore, train
from .remote import RemoteHost, connect

if TYPE_CHECKING:
    from det_core.hooks.records import Framework


def main(argv: list[str] | None = None) -> int:
    """Run the entrypoint that is the only argument, and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    env = WorkerEnv.read(os.environ)
    if env is None or len(arguments) != 1:
        sys.stderr.write("det_node.worker is started by det; run your trial with: det run CONFIG\n")
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
    """Train one run of the trial class `entrypoint`, and return the exit status of its process.

    `alone` means that standard error belongs to this run only, and that this process may fork.
    `plugins` are the installed ones, where they were found before. `joined` is a socket that is
    connected to the driver, where there is one.
    """
    try:
        host = connect(env, joined)
    except DetError as error:
        # The driver has the same message.
        if alone:
            sys.stderr.write(f"det: {error}\n")
        return EXIT[Outcome.MISTAKE]
    try:
        with preempted_by(host.preempted, signal.SIGTERM):
            try:
                outcome, message, trace = (
                    OUTCOMES[_train(env, entrypoint, code_dir, host, plugins, alone)],
                    "",
                    "",
                )
            except _Unfit as error:
                outcome, message, trace = error.outcome, error.message, error.trace
            except BaseException as error:
                outcome, message, trace = explained(error, env.config)
            if trace:
                sys.stderr.write(trace)
            elif message and alone:
                sys.stderr.write(f"det: {message}\n")
            sys.stderr.flush()
            if env.ranks.rank == 0 or outcome in FAILURES:
                # The checkpoint is noted in the spool, where the next driver finds it.
                with suppress(HostLost):
                    host.finished(outcome, message, trace, wait=not env.kept or env.ranks.size > 1)
        return EXIT.get(outcome, 0)
    finally:
        host.close()


class _Unfit(Exception):
    """The check before training has found that the trial cannot be trained."""

    def __init__(self, found: Checked) -> None:
        assert found.outcome is not None
        self.outcome, self.message, self.trace = found.outcome, found.message, found.traceback


def _train(
    env: WorkerEnv,
    entrypoint: str,
    code_dir: Path,
    host: RemoteHost,
    plugins: Plugins | None,
    alone: bool,
) -> Stop:
    """Train the run. With `alone`, this process may fork, and so checks the trial first."""
    plugins = plugins or Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1")
    env = checked(env, plugins)
    with ExitStack() as stack:
        distributed: DistributedContext | None = None
        if env.check_first and alone:
            if env.ranks.size > 1:
                distributed = stack.enter_context(connect_ranks(env, host))
            _check_first(env, entrypoint, code_dir, host, plugins, distributed)
        framework, trial = _load(env, entrypoint, code_dir, plugins)
        sink = make_checkpoint_sink(env, storage_of(env, plugins))
        if env.check_first and env.ranks.rank == 0:
            check_storage(sink.storage)
        if env.ranks.size == 1:
            info = run_info(env, plugins, framework.name, code_dir, DistributedContext())
            return run_trial(framework, trial, info, host, sink)
        distributed = distributed or stack.enter_context(connect_ranks(env, host))
        backend = choose_backend(wanted_backend(env.config), framework.name, plugins.backends())
        if env.ranks.rank == 0:
            sys.stderr.write(
                f"det: {env.ranks.size} ranks; gradients are reduced by {backend.name}\n"
            )
            host.chose(backend.name)
        info = replace(
            run_info(env, plugins, framework.name, code_dir, distributed), backend=backend
        )
        stop = run_trial(
            framework,
            trial,
            info,
            host,
            sink,
            failed=lambda error: _report_first(host, error, env.config),
        )
        # The ranks end together, so that a rank that does not come is known to hang.
        distributed.barrier()
        return stop


def _load(
    env: WorkerEnv, entrypoint: str, code_dir: Path, plugins: Plugins
) -> tuple[Framework, type]:
    # Before the user's module runs. The adapter seeds its framework.
    random.seed(env.seed)
    trial = load_trial(entrypoint, code_dir)
    framework = plugins.framework_of(trial)
    must_shard(env.config, framework)
    return framework, trial


def _check_first(
    env: WorkerEnv,
    entrypoint: str,
    code_dir: Path,
    host: RemoteHost,
    plugins: Plugins,
    ranks: DistributedContext | None,
) -> None:
    """Try the trial in forks of each rank, before this process imports any of the user's code.

    Raises _Unfit where the check failed.
    """
    # The chief's fork writes the address where the forks meet. The other forks read it.
    reader, writer = os.pipe() if ranks is not None else (-1, -1)

    def built() -> tuple[Framework, type, RunInfo]:
        framework, trial = _load(env, entrypoint, code_dir, plugins)
        info = run_info(env, plugins, framework.name, code_dir, DistributedContext())
        return framework, trial, info

    def tried(scratch: Path) -> Trained:
        framework, trial, info = built()
        if ranks is None:
            return train(framework, trial, info, scratch)
        with _connect_checking_forks(env, reader, writer) as distributed:
            backend = choose_backend(wanted_backend(env.config), framework.name, plugins.backends())
            info = run_info(env, plugins, framework.name, code_dir, distributed)
            info = replace(info, backend=backend)
            trained = train(framework, trial, info, scratch)
            distributed.barrier()
            return trained

    def forked() -> None:
        if ranks is None:
            return
        if ranks.rank == 0:
            os.close(writer)
            has_address = bool(select.select([reader], [], [], env.start_timeout)[0])
            address = ranks.broadcast(os.read(reader, 1 << 10).decode() if has_address else None)
        else:
            address = ranks.broadcast(None)
        if address is None:
            # Every rank raises this, as the driver shows the first failure it receives.
            raise RankLost(
                0, f"rank 0 did not come within {env.start_timeout:g} s; see why it did not start"
            )
        if ranks.rank != 0:
            os.write(writer, address.encode())
            os.close(writer)
        os.close(reader)

    # With several ranks, a rank does not end its fork on preemption, as the other forks wait for
    # it.
    found = check_apart(
        tried,
        lambda scratch, trained: restore(*built(), scratch, trained),
        forked,
        lambda: ranks is None and host.preempted.raised,
        env.scratch,
        env.config,
    )
    if found.outcome is Outcome.PEER_LOST and host.preempted.raised:
        return
    if env.ranks.rank == 0:
        for notice in found.notices:
            host.notice(notice)
    if found.outcome is not None:
        raise _Unfit(found)


def _connect_checking_forks(env: WorkerEnv, reader: int, writer: int) -> DistributedContext:
    """Connect the forks of all ranks, at an address that the chief's fork opens.

    The workers pass the address on.
    """
    if env.ranks.rank == 0:
        chief = env.chief, 0
    else:
        os.close(writer)
        host, _, port = os.read(reader, 1 << 10).decode().rpartition(":")
        if not port:
            raise RankLost(0, "rank 0 failed in the check before training")
        chief = host, int(port)

    def ready(address: wire.Address) -> None:
        os.write(writer, f"{address[0]}:{address[1]}".encode())

    key = hashlib.sha256(b"the check of the ranks of a run" + env.key).digest()
    ranks = Socket(env.ranks, chief=chief, key=key, start_timeout=env.start_timeout, ready=ready)
    return DistributedContext.from_backend(ranks)


def connect_ranks(env: WorkerEnv, host: RemoteHost) -> DistributedContext:
    """Meet the other ranks of the run at the chief's address, which the driver passes on."""
    key, patience = hashlib.sha256(b"the ranks of a run" + env.key).digest(), env.start_timeout
    timeout = env.config.distributed.timeout
    try:
        chief = (
            (env.chief, 0) if env.ranks.rank == 0 else host.exchange_chief_address(timeout=patience)
        )
    except TimeoutError:
        raise RankLost(
            0, f"rank 0 did not come within {patience:g} s; see why it did not start"
        ) from None
    ranks = Socket(
        env.ranks,
        chief=chief,
        key=key,
        start_timeout=patience,
        timeout=timeout,
        ready=host.exchange_chief_address,
    )
    return DistributedContext.from_backend(ranks)


def _report_first(host: RemoteHost, error: BaseException, config: ExperimentConfig) -> None:
    """Report an error before anything is closed.

    Afterwards the other ranks fail, too, and the first failure could not be determined.
    """
    with suppress(HostLost):
        host.finished(*explained(error, config))


if __name__ == "__main__":
    sys.exit(main())
