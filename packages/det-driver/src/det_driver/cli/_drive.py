"""Drives an experiment from a terminal: shows progress, handles signals, prints the result."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from det_core.config import from_json, is_trial_entrypoint
from det_core.errors import StoreUnwritable
from det_core.support.threads import start_thread
from det_node.guard import start_guarded
from det_node.output import Unbreakable

from ..client import Experiment, Space
from ..driver import Driver, ExperimentFailures, start_driver, submit_driver
from ..engines.in_process import InProcessEngine
from ..store import ExperimentState, network_file_system
from ._console import Settings, auto_choice, print_json, shown, what_mattered
from ._events import BestCheckpoint, ExperimentFinished, print_event
from ._output import Output, raw, unescaped
from ._progress import SearchProgress
from ._view import view

STATUS = {
    ExperimentState.COMPLETED: 0,
    ExperimentState.ERROR: 1,
    ExperimentState.CANCELED: 1,
    ExperimentState.PAUSED: 130,
}

_UI = (sys.executable, "-P", "-m", "det_driver.cli", "ui")
_ENDS_SECONDS, _SAYS_SECONDS = 10.0, 0.5
"""How long a killed driver may take to end, and how long its last messages may take to reach the
agents."""
MOST_FAILURES = 10
"""The most failures that are printed at the end. `det show` lists all."""


def drive(
    settings: Settings,
    experiment: int,
    engine: str,
    in_background: bool,
    *,
    quiet: bool,
    as_json: bool,
    page: bool,
    keep: bool,
    in_job: bool = False,
) -> int:
    """Drive an experiment until it ends or is paused, and return the exit status.

    With `in_background`, a separate process or job drives it, and this returns at once. With
    `in_job`, signals do not pause the experiment: the next job continues it.
    """
    if page and keep:
        _keep_page(settings)
    if in_background:
        return _detach(settings, experiment, as_json)
    plugins = settings.plugins
    driver = Driver(settings.driver(engine), experiment, plugins)
    with settings.reader() as store:
        earlier = store.trials.list(experiment, best_first=True, limit=SearchProgress.LEADERS)
    out, err = Unbreakable(raw(sys.stdout)), Unbreakable(raw(sys.stderr))
    with redirect_stdout(Output(out)), redirect_stderr(Output(err)):
        if not in_job and (kind := network_file_system(settings.home)):
            sys.stderr.write(
                f"det: {settings.home} is on {kind}: it is slower than a local disk, and its locks"
                " have to hold between machines\n"
            )
        if not quiet and not as_json and (chosen := _chosen(settings, experiment)):
            sys.stderr.write(f"det: {chosen}\n")
        screen = view(settings.environ, earlier, quiet=quiet, as_json=as_json)
        plugins.register(screen, "det-view")
        signals = nullcontext() if in_job else _signals_pause(driver, plugins.give_up_observers)
        with _page(settings) if page and not keep else nullcontext(), screen, signals:
            state = _run(driver)
        settings.observers.settle(plugins)
        _complain(driver, experiment)
        try:
            result = _result(settings, experiment, state)
        # SQLite needs some space to read, too.
        except StoreUnwritable:
            way = (
                "go on with: det resume"
                if state is ExperimentState.PAUSED
                else "see it with: det show"
            )
            sys.stdout.write(f"experiment {experiment} is {state.lower()}; {way} {experiment}\n")
            return STATUS[state]
        if as_json:
            print_event(result)
        else:
            _say(result, driver.failures)
        _flush(out, experiment)
    return 2 if driver.failures.mistake and state is ExperimentState.ERROR else STATUS[state]


def _flush(out: Unbreakable, experiment: int) -> None:
    out.flush()
    if out.failure:
        sys.stderr.write(
            f"det: what was printed is lost ({out.failure}); see it with: det show {experiment}\n"
        )


def _chosen(settings: Settings, experiment: int) -> str:
    with settings.reader() as store:
        return auto_choice(from_json(store.experiments.get(experiment).config))


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
    # The experiment runs, whether or not its number can be printed.
    out = Unbreakable(raw(sys.stdout))
    with redirect_stdout(Output(out)):
        if as_json:
            print_json({"experiment": experiment, "pid": pid, "log": str(log), "job": job})
        else:
            sys.stdout.write(
                f"experiment {experiment} runs {where}; follow it: det logs -f {experiment}\n"
            )
    _flush(out, experiment)
    return 0


@contextmanager
def _page(settings: Settings) -> Iterator[None]:
    """Run `det ui` as a child, which ends with this process. Its address is printed."""
    page, held = start_guarded(
        _UI,
        stdout=subprocess.PIPE,
        env={**settings.environ, "DET_HOME": str(settings.home), "DET_MASTER": ""},
        text=True,
    )
    with page:
        try:
            sys.stderr.write(page.stdout.readline() if page.stdout else "")
            yield
            sys.stderr.write(
                "det: the page ends with this command; one that stays: det ui --keep\n"
            )
        finally:
            os.close(held)


def _keep_page(settings: Settings) -> None:
    """Leave the page in the background, or find the one that is there. Its address is printed.

    A page that cannot start says why, and the training goes on.
    """
    environ = {**settings.environ, "DET_HOME": str(settings.home), "DET_MASTER": ""}
    kept = subprocess.run(
        [*_UI, "--keep"],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
    )
    sys.stderr.write(kept.stdout)


def _run(driver: Driver) -> ExperimentState:
    if not isinstance(driver.engine, InProcessEngine):
        return driver.run()
    # The trial runs in the main thread, where debuggers and signal handlers work, and the driver in
    # another.
    engine = driver.engine
    with ThreadPoolExecutor(1, "det-driver") as threads:
        driving = threads.submit(driver.run)
        driving.add_done_callback(lambda _: engine.close())
        with unescaped():
            engine.serve()
        return driving.result()


@contextmanager
def _signals_pause(driver: Driver, give_up_observers: Callable[[], None]) -> Iterator[None]:
    """Pause at Ctrl-C or SIGTERM.

    Kill the runs and end at the second one, whatever the driver does.
    """
    received: list[int] = []
    ends: queue.SimpleQueue[bool] = queue.SimpleQueue()
    main = threading.get_ident()

    def end() -> None:
        """End this process where its driver does not, as a plugin may block it.

        The runs are killed first.
        """
        if not ends.get():
            return
        with suppress(queue.Empty):
            ends.get(timeout=_ENDS_SECONDS)
            return
        frame = sys._current_frames().get(main)
        where = "".join(traceback.format_stack(frame)) if frame is not None else ""
        sys.stderr.write(f"det: the driver does not answer, and is ended; it is here:\n{where}")
        with suppress(Exception):
            driver.kill_runs()
            time.sleep(_SAYS_SECONDS)
        sys.stderr.flush()
        os._exit(STATUS[ExperimentState.PAUSED])

    def handle(number: int, frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            driver.kill()
            give_up_observers()
            ends.put(True)
            return
        driver.pause()
        sys.stderr.write("\ndet: saving checkpoints and pausing; once more ends at once\n")

    ending = None
    # The driver needs threads, too. Where no more can be started, it ends the experiment with an
    # error.
    with suppress(OSError):
        ending = start_thread(end, name="det-end")
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        ends.put(False)
        if ending is not None:
            ending.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _result(settings: Settings, id: int, state: ExperimentState) -> ExperimentFinished:
    with settings.reader() as store:
        summary = store.experiments.summary(id)
        best = (
            store.trials.get(summary.best_trial).hparams if summary.best_trial is not None else {}
        )
    experiment, found = summary.experiment, settings.client().get_experiment(id)
    config = from_json(experiment.config)
    return ExperimentFinished(
        time=time.time(),
        experiment=id,
        name=experiment.name,
        # It may not be in the store, where the store has failed.
        state=str(state),
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
            path=(best.storage or str(settings.home / "checkpoints" / best.uuid)).removeprefix(
                "file://"
            ),
            batches=best.batches,
            trial=best.trial_id,
            metric=best.metric,
            loader=framework.loader if framework else "",
        )
    return None


def _complain(driver: Driver, experiment: int) -> None:
    """Print the last traceback, and a line for each failure."""
    failures = driver.failures
    # The in-process engine prints a traceback when it happens.
    if failures.traceback and not isinstance(driver.engine, InProcessEngine):
        sys.stderr.write(failures.traceback.rstrip() + "\n")
    lines = list(dict.fromkeys(failures.messages))
    if len(lines) > MOST_FAILURES:
        more = len(lines) - MOST_FAILURES
        lines[MOST_FAILURES:] = [
            f"{more} more trials failed; they are listed by: det show {experiment}"
        ]
    for line in lines:
        sys.stderr.write(f"det: {line}\n")


def _say(result: ExperimentFinished, failures: ExperimentFailures) -> None:
    """Print the result, what mattered, where the checkpoint is, and what to do next."""
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
        word = "best" if checkpoint.metric is not None else "latest"
        another = (
            f"trial {checkpoint.trial}, "
            if checkpoint.trial != result.best_trial is not None
            else ""
        )
        out.append(f"{word} checkpoint: {checkpoint.path} ({another}batch {checkpoint.batches})")
        if checkpoint.loader and Path(checkpoint.path).is_dir():
            module, _, function = checkpoint.loader.rpartition(".")
            code = f"from {module} import {function}; print({function}({checkpoint.path!r}))"
            out.append(f'load it: {shlex.quote(sys.executable)} -c "{code}"')
    if state == "PAUSED":
        out.append(f"go on with: det resume {id}")
    elif state == "ERROR" and failures.resumable:
        # The experiment has a copy of the code, so an edit of the original changes nothing.
        out.append(f"go on with: det resume {id} (after a change of the code: --code DIRECTORY)")
    elif state == "ERROR":
        out.append(f"its logs: det logs {id}")
    elif several:
        out.append(f"look at the trials: det show {id}")
    sys.stdout.write("\n".join(out) + "\n")
