"""Connects a script to its run, for the trainers of plugins (`entrypoint: python3 train.py`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import DetError, InvalidHP
from ..hooks import Plugins
from ..hooks.runtime import runtime
from .adapter import Adapter, RunInfo, Stop
from .ending import EXIT, OUTCOMES, ScriptEnding
from .environ import WorkerEnv
from .host import HostLost, Target, TrialHost
from .run_setup import make_checkpoint_sink, run_info, storage_of
from .schedule import to_batches

if TYPE_CHECKING:
    from ..checkpoint.manifest import Manifest
    from ..config import ExperimentConfig
    from ..ranks.backend import Communicator
    from .host import DriverHost, Outcome
    from .saving import CheckpointSink


class Session:
    """A connection to the driver and the facts of the run.

    Make it with `join` and use it as a context manager. Leaving it with an exception reports that
    to the driver. InvalidHP and DetError print their message in one line, and end the process with
    the status that a trial class would end with. Any other exception passes through.
    """

    def __init__(self, env: WorkerEnv, host: DriverHost, plugins: Plugins) -> None:
        self._env = env
        self.host: TrialHost = host
        self.plugins = plugins
        self._ending = ScriptEnding.of_run(host, env)

    @classmethod
    def join(cls, plugins: Plugins) -> Session | None:
        """Connect to the driver of this process's run. None outside of `det run`."""
        env = WorkerEnv.read(os.environ)
        return None if env is None else cls(env, runtime().connect(env), plugins)

    @property
    def config(self) -> ExperimentConfig:
        """The experiment's configuration."""
        return self._env.config

    @property
    def hparams(self) -> Mapping[str, Any]:
        """The trial's hyperparameters."""
        return self._env.hparams

    @property
    def slots(self) -> int:
        """The number of slots of the run."""
        return self._env.slots

    @property
    def keep(self) -> CheckpointSink:
        """Where the run's checkpoints go."""
        return make_checkpoint_sink(self._env, storage_of(self._env, self.plugins))

    @property
    def check_first(self) -> bool:
        """Whether saving is tried before the script trains."""
        return self._env.check_first

    def info(self, framework: str, distributed: Communicator) -> RunInfo:
        """Return the run, as a framework's plugin sees it.

        Its code is that of the working directory.
        """
        return run_info(self._env, self.plugins, framework, Path.cwd(), distributed)

    def ended(self, stop: Stop) -> None:
        """Report to the driver why training stopped.

        Completion is reported when the script leaves the session.
        """
        if stop is not Stop.COMPLETED:
            # The checkpoint is noted in the spool, where the next driver finds it.
            with suppress(HostLost):
                self.host.finished(OUTCOMES[stop])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._ending.complete()
                return
            ends = isinstance(error, (InvalidHP, DetError))
            outcome, message = self._ending.fail(error, uncaught=ends)
            if isinstance(error, SystemExit) and error.code:
                # It reports the status, which a shell may hide.
                self._ending.complete()
            if ends:
                sys.stderr.write(f"det: {message}\n")
                sys.exit(EXIT.get(outcome, 0))
        finally:
            self.host.close()


class Limited(TrialHost):
    """A host with a target of at most `batches`, for a script that decides how long it trains."""

    def __init__(self, host: TrialHost, batches: int, adapter: Adapter[Any]) -> None:
        self.preempted, self.stores = host.preempted, host.stores
        self._host, self._limit, self._adapter = host, batches, adapter
        self._asked: Target | None = None

    def target(self) -> Target:
        return self._limited(self._host.target())

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        asked = self._asked
        if (
            length is not None
            and asked is not None
            and to_batches(asked.n or 0, asked.unit, self._adapter) > batches
        ):
            # This completes the limit, but not the driver's target.
            length = None
        elif length is not None and asked is not None:
            length = asked.n
        return self._limited(self._host.validated(batches, metrics, length))

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._host.report(group, batches, metrics)

    def checkpointed(self, manifest: Manifest, storage: str) -> bool | None:
        return self._host.checkpointed(manifest, storage)

    def progress(self, fraction: float) -> None:
        self._host.progress(fraction)

    def status(self, text: str) -> None:
        self._host.status(text)

    def notice(self, text: str) -> None:
        self._host.notice(text)

    def finished(self, outcome: Outcome, message: str = "") -> None:
        self._host.finished(outcome, message)

    def best_validation(self) -> float | None:
        return self._host.best_validation()

    def _limited(self, target: Target) -> Target:
        self._asked = target
        if target.n is None or to_batches(target.n, target.unit, self._adapter) <= self._limit:
            return target
        return Target(n=self._limit, best=target.best)
