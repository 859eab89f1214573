"""Driving an experiment from a terminal: the view, the signals, the last words."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from det_core.config import from_json, is_trial_entrypoint
from det_core.errors import StoreUnwritable
from det_core.guard import beside

from ..client import Client, Experiment, Space
from ..driver import Driver, ExperimentFailures, start_driver, submit_driver
from ..engines.in_process import InProcessEngine
from ..store import ExperimentState, network_file_system
from ._console import Settings, print_json, shown, what_mattered
from ._events import BestCheckpoint, ExperimentFinished, print_event
from ._progress import SearchProgress
from ._view import view

STATUS = {
    ExperimentState.COMPLETED: 0,
    ExperimentState.ERROR: 1,
    ExperimentState.CANCELED: 1,
    ExperimentState.PAUSED: 130,
}

MOST_FAILURES = 10
"""Of how many trials the last words say what mattered; `det show` does it for more."""


def drive(
    settings: Settings,
    experiment: int,
    engine: str,
    in_background: bool,
    *,
    quiet: bool,
    as_json: bool,
    page: bool,
    in_job: bool = False,
) -> int:
    """Drive an experiment until it ends or is paused, or start a driver apart from this process; return the exit status.

    What ends the driver of a job leaves its experiment to the next one.
    """
    if in_background:
        return _detach(settings, experiment, as_json)
    plugins = settings.plugins
    if not in_job and (kind := network_file_system(settings.home)):
        sys.stderr.write(
            f"det: {settings.home} is on {kind}: it is slower than a local disk, and its locks have to hold between machines\n"
        )
    driver = Driver(settings.driver(engine), experiment, plugins)
    with settings.reader() as store:
        earlier = store.trials.list(experiment, best_first=True, limit=SearchProgress.LEADERS)
    screen = view(settings.environ, earlier, quiet=quiet, as_json=as_json)
    plugins.register(screen, "det-view")
    out, err = _Unbreakable(sys.stdout), _Unbreakable(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        with _page(settings) if page else nullcontext(), screen, nullcontext() if in_job else _signals_pause(driver):
            state = _run(driver)
        settings.observers.settle(plugins)
        _complain(driver, experiment)
        try:
            result = _result(settings, experiment, state)
        except StoreUnwritable:  # SQLite needs some room to read, too
            way = "go on with: det resume" if state is ExperimentState.PAUSED else "see it with: det show"
            sys.stdout.write(f"experiment {experiment} is {state.lower()}; {way} {experiment}\n")
            return STATUS[state]
        if as_json:
            print_event(result)
        else:
            _say(result, driver.failures)
    return 2 if driver.failures.mistake and state is ExperimentState.ERROR else STATUS[state]


def _detach(settings: Settings, experiment: int, as_json: bool) -> int:
    with settings.store() as store:
        submitted = submit_driver(store, settings.home, experiment, settings.environ)
        log = store.experiment_dir(experiment) / "driver.log"
    job, waits = submitted or (None, "")
    pid, where = None, f"in the job {job}" + (f", which waits: {waits}" if waits else "")
    if job is None:
        with settings.reader() as store:
            pid, log = start_driver(store, settings.home, experiment, settings.environ)
        where = "in the background"
    if as_json:
        print_json({"experiment": experiment, "pid": pid, "log": str(log), "job": job})
    else:
        sys.stdout.write(f"experiment {experiment} runs {where}; follow it: det logs -f {experiment}\n")
    return 0


@contextmanager
def _page(settings: Settings) -> Iterator[None]:
    """Have `det ui` beside this process; it ends with it, however that ends. The address that it prints is passed on."""
    page, held = beside(
        [sys.executable, "-P", "-m", "det_driver.cli", "ui"],
        stdout=subprocess.PIPE,
        env={**settings.environ, "DET_HOME": str(settings.home)},
        text=True,
    )
    with page:
        try:
            sys.stderr.write(page.stdout.readline() if page.stdout else "")
            yield
        finally:
            os.close(held)


def _run(driver: Driver) -> ExperimentState:
    if not isinstance(driver.engine, InProcessEngine):
        return driver.run()
    # The trial gets the main thread, where debuggers and signal handlers work; the driver gets another.
    engine = driver.engine
    with ThreadPoolExecutor(1, "det-driver") as threads:
        driving = threads.submit(driver.run)
        driving.add_done_callback(lambda _: engine.close())
        engine.serve()
        return driving.result()


class _Unbreakable:
    """A stream whose reader may leave, as `tee` does at Ctrl-C: what is written then is lost, and nothing else is."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._do(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._do(self._stream.flush)

    def _do(self, act: Callable[..., Any], *arguments: str) -> None:
        try:
            act(*arguments)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def _signals_pause(driver: Driver) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM pause; once more ends at once."""
    heard: list[int] = []

    def handle(number: int, frame: object) -> None:
        heard.append(number)
        if len(heard) > 1:
            driver.kill()
            return
        driver.pause()
        sys.stderr.write("\ndet: saving checkpoints and pausing; once more ends at once\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _result(settings: Settings, id: int, state: ExperimentState) -> ExperimentFinished:
    with settings.reader() as store:
        summary = store.experiments.summary(id)
        best = store.trials.get(summary.best_trial).hparams if summary.best_trial is not None else {}
    experiment, found = summary.experiment, Client(settings.home).get_experiment(id)
    config = from_json(experiment.config)
    return ExperimentFinished(
        time=time.time(),
        experiment=id,
        name=experiment.name,
        state=str(state),  # which could not be written, where the store is what failed
        reason=experiment.reason,
        seconds=time.time() - experiment.started if experiment.started else None,
        trials={str(state): count for state, count in summary.trials.items()},
        metric=experiment.metric,
        best_metric=summary.best_metric,
        best_trial=summary.best_trial,
        best_hparams=Space(config.hyperparameters).chosen(best),
        importances=found.importances(),
        trial_class=is_trial_entrypoint(config.entrypoint or ""),
        checkpoint=_best_checkpoint(settings, found),
    )


def _best_checkpoint(settings: Settings, experiment: Experiment) -> BestCheckpoint | None:
    for best in experiment.list_checkpoints(1):
        framework = settings.plugins.frameworks().get(best.framework)
        return BestCheckpoint(
            uuid=best.uuid,
            path=(best.storage or str(settings.home / "checkpoints" / best.uuid)).removeprefix("file://"),
            batches=best.batches,
            metric=best.metric,
            loader=framework.loader if framework else "",
        )
    return None


def _complain(driver: Driver, experiment: int) -> None:
    """Print what went wrong: the last traceback, then a line for each failure."""
    failures = driver.failures
    if failures.traceback and not isinstance(driver.engine, InProcessEngine):  # there it was printed when it happened
        sys.stderr.write(failures.traceback.rstrip() + "\n")
    lines = list(dict.fromkeys(failures.messages))
    if len(lines) > MOST_FAILURES:
        more = len(lines) - MOST_FAILURES
        lines[MOST_FAILURES:] = [f"{more} more trials failed; they are listed by: det show {experiment}"]
    for line in lines:
        sys.stderr.write(f"det: {line}\n")


def _say(result: ExperimentFinished, failures: ExperimentFailures) -> None:
    """Say what became of it, what was learnt, where that is, and what to do next."""
    id, state, checkpoint = result.experiment, result.state, result.checkpoint
    out = [f"experiment {id} is {state.lower()}"]
    if result.best_metric is not None:
        out[0] += f": best {result.metric} {result.best_metric:.6g} (trial {result.best_trial})"
    out += [f"notice: {notice}" for notice in failures.notices]
    several = sum(result.trials.values()) > 1
    if several and result.best_hparams:
        out.append("with: " + shown(result.best_hparams))
    if result.importances:
        out.append("what mattered: " + what_mattered(result.importances))
    if checkpoint and state != "PAUSED":
        out.append(
            f"{'best' if checkpoint.metric is not None else 'latest'} checkpoint: {checkpoint.path} (batch {checkpoint.batches})"
        )
        if checkpoint.loader and Path(checkpoint.path).is_dir():
            module, _, function = checkpoint.loader.rpartition(".")
            code = f"from {module} import {function}; print({function}({checkpoint.path!r}))"
            out.append(f'load it: {shlex.quote(sys.executable)} -c "{code}"')
    if state == "PAUSED" or (state == "ERROR" and failures.resumable):
        out.append(f"go on with: det resume {id}")
    elif state == "ERROR":
        out.append(f"its logs: det logs {id}")
    elif several:
        out.append(f"look at the trials: det show {id}")
    sys.stdout.write("\n".join(out) + "\n")
