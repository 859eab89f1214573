"""Runs in the driver's own process, one at a time: for a debugger, a profiler or a notebook."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading

from det_core.errors import DetError
from det_core.support.origin import THREADS
from det_core.train.environ import WorkerEnv
from det_node.agent import Ended, RunSpec
from det_node.worker import work

from .base import Engine, OnEvent


class InProcessEngine(Engine):
    """Passes each run to the thread that calls `serve`, which should be the main thread.

    Output is not captured.
    """

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self._runs: queue.SimpleQueue[RunSpec | None] = queue.SimpleQueue()
        self._started: set[int] = set()

    def start(self, spec: RunSpec) -> None:
        if not spec.trial_class:
            raise DetError(
                f"--in-process trains trial classes, and the entrypoint is {spec.entrypoint!r};"
                " leave it out"
            )
        if spec.environment or spec.python:
            raise DetError(
                "--in-process trains in this interpreter, and the experiment has one of its own;"
                " leave it out"
            )
        if len(spec.ranks) > 1:
            raise DetError(
                "--in-process trains in one process, and resources.slots_per_trial is"
                f" {len(spec.ranks)}; leave it out, or set slots_per_trial to 1"
            )
        self._started.add(spec.run_id)
        self._runs.put(spec)

    def signal(self, run: int, number: signal.Signals) -> None:
        """Ask the run to end, because a thread cannot be killed."""
        if run in self._started and threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        super().close()
        self._runs.put(None)

    def serve(self) -> None:
        """Train the runs that are started until the engine is closed."""
        while (spec := self._runs.get()) is not None:
            spec.log_dir.mkdir(parents=True, exist_ok=True)
            env = WorkerEnv.read(self.relay.with_address(spec).variables)
            assert env is not None
            here, before = os.getcwd(), {variable: os.environ.get(variable) for variable in THREADS}
            os.environ.update({variable: spec.variables[variable] for variable in THREADS})
            os.chdir(spec.code_dir)
            try:
                status = work(env, str(spec.entrypoint), spec.code_dir, alone=False)
            except BaseException as error:
                # The driver must learn that the run has ended, whatever the error is.
                sys.stderr.write(f"det: {type(error).__name__}: {error}\n")
                status = 1
            finally:
                os.chdir(here)
                for variable, threads in before.items():
                    if threads is None:
                        del os.environ[variable]
                    else:
                        os.environ[variable] = threads
                self._started.discard(spec.run_id)
            self.on_event(Ended(spec.run_id, status))
