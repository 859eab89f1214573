"""A script's part in a run that `det run` started, for the trainers of plugins (`entrypoint: python3 train.py`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .adapter import Adapter, RunInfo, Stop
from .environ import WorkerEnv
from .errors import DetError, InvalidHP
from .failure import explained
from .host import HostLost, Target, TrialHost
from .plugins import Plugins
from .schedule import to_batches
from .worker import EXIT, OUTCOMES, connect, keep_of, run_info, storage_of

if TYPE_CHECKING:
    from .backend import Communicator
    from .config import ExperimentConfig
    from .host import Outcome
    from .manifest import Manifest
    from .saving import Keep


class Session:
    """A connection to the driver and the facts of the run; make it with `join`, use it as a context manager.

    Leaving it with InvalidHP or a DetError tells the driver, says the message in one line, and ends the process with the
    status that a trial class would end with. Any other exception passes through.
    """

    def __init__(self, env: WorkerEnv, host: TrialHost, plugins: Plugins) -> None:
        self._env = env
        self.host = host
        self.plugins = plugins

    @classmethod
    def join(cls, plugins: Plugins) -> Session | None:
        """Connect to the driver of this process's run; None outside of `det run`."""
        env = WorkerEnv.read(os.environ)
        return None if env is None else cls(env, connect(env), plugins)

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
        """The slots that the run has."""
        return self._env.slots

    @property
    def keep(self) -> Keep:
        """Where the run's checkpoints go."""
        return keep_of(self._env, storage_of(self._env, self.plugins))

    def info(self, framework: str, distributed: Communicator) -> RunInfo:
        """Return the run, as a framework's plugin sees it; the code is that of the working directory."""
        return run_info(self._env, self.plugins, framework, Path.cwd(), distributed)

    def ended(self, stop: Stop) -> None:
        """Tell the driver why training stopped; that it is complete, the exit status of the script will say."""
        if stop is not Stop.COMPLETED:
            with suppress(HostLost):  # the checkpoint is noted in the spool; the next driver finds it
                self.host.finished(OUTCOMES[stop])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if isinstance(error, (InvalidHP, DetError)):
                outcome, message, _ = explained(error)
                with suppress(HostLost):
                    self.host.finished(outcome, message)
                sys.stderr.write(f"det: {message}\n")
                sys.exit(EXIT.get(outcome, 0))
        finally:
            self.host.close()


class Limited(TrialHost):
    """Another host, whose target is at most `batches`: where a script says itself how long it trains."""

    def __init__(self, host: TrialHost, batches: int, adapter: Adapter[Any]) -> None:
        self.preempted, self.stores = host.preempted, host.stores
        self._host, self._limit, self._adapter = host, batches, adapter
        self._asked: Target | None = None

    def target(self) -> Target:
        return self._limited(self._host.target())

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        asked = self._asked
        if length is not None and asked is not None and to_batches(asked.n or 0, asked.unit, self._adapter) > batches:
            length = None  # it completes the limit, and not what the driver asked for
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

    def finished(self, outcome: Outcome, message: str = "") -> None:
        self._host.finished(outcome, message)

    def best_validation(self) -> float | None:
        return self._host.best_validation()

    def _limited(self, target: Target) -> Target:
        self._asked = target
        if target.n is None or to_batches(target.n, target.unit, self._adapter) <= self._limit:
            return target
        return Target(n=self._limit, best=target.best)
