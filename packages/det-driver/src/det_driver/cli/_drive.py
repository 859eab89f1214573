"""Driving an experiment from a terminal: the view, the signals, the last words."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from det_core.config import from_json, is_trial_entrypoint

from ..driver import Driver, ExperimentFailures, start_driver
from ..store import CheckpointState, ExperimentState, Store, network_file_system
from ._output import print_json
from ._settings import Settings
from ._view import view

STATUS = {
    ExperimentState.COMPLETED: 0,
    ExperimentState.ERROR: 1,
    ExperimentState.CANCELED: 1,
    ExperimentState.PAUSED: 130,
}

MOST_FAILURES = 10


def drive(
    settings: Settings, experiment: int, *, engine: str = "local", quiet: bool = False, as_json: bool = False
) -> int:
    """Drive an experiment until it ends or is paused; return the exit status."""
    plugins = settings.plugins
    if kind := network_file_system(settings.home):
        sys.stderr.write(
            f"det: {settings.home} is on {kind}, where the locks of SQLite may not hold; set DET_HOME to a local disk\n"
        )
    driver = Driver(settings.driver(engine), experiment, plugins)
    screen = view(quiet or as_json)
    plugins.register(screen, "det-view")
    out, err = _Unbreakable(sys.stdout), _Unbreakable(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        with screen, _Signals(driver, experiment):
            state = _run(driver)
        settings.observers.settle(plugins)
        return _told(driver, settings, experiment, state, as_json)


def _told(driver: Driver, settings: Settings, experiment: int, state: ExperimentState, as_json: bool) -> int:
    with settings.reader() as store:
        result = _result(store, settings, experiment, state)
    _complain(driver, experiment)
    if as_json:
        print_json(result)
    else:
        _say(result, driver.failures)
    return 2 if driver.failures.mistake and state is ExperimentState.ERROR else STATUS[state]


def detach(settings: Settings, experiment: int, *, as_json: bool) -> None:
    """Start a driver of its own in the background."""
    with settings.reader() as store:
        pid, log = start_driver(store, settings.home, experiment, settings.environ)
    if as_json:
        print_json({"experiment": experiment, "pid": pid, "log": str(log)})
    else:
        sys.stdout.write(f"experiment {experiment} runs in the background; follow it: det logs -f {experiment}\n")


def _run(driver: Driver) -> ExperimentState:
    from ..engines.in_process import InProcessEngine

    if not isinstance(driver.engine, InProcessEngine):
        return driver.run()
    # The trial gets the main thread, where debuggers and signal handlers work; the driver gets another.
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(_caught(driver)), name="det-driver")
    thread.start()
    driver.engine.serve()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    state: ExperimentState = found[0]
    return state


def _caught(driver: Driver) -> ExperimentState | BaseException:
    try:
        return driver.run()
    except BaseException as error:
        return error
    finally:
        driver.engine.close()


class _Unbreakable:
    """A stream whose reader may leave, as `tee` does at Ctrl-C: what is written then is lost, and nothing else is."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._leaving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._leaving():
            self._stream.flush()

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class _Signals:
    """Ctrl-C and SIGTERM pause; once more ends at once."""

    def __init__(self, driver: Driver, experiment: int) -> None:
        self._driver, self._experiment, self._count = driver, experiment, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *ignored: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        self._count += 1
        if self._count == 1:
            self._driver.pause()
            sys.stderr.write("\ndet: saving checkpoints and pausing; once more ends at once\n")
        else:
            self._driver.kill()


def _result(store: Store, settings: Settings, id: int, state: ExperimentState) -> dict[str, Any]:
    experiment = store.experiments.get(id)
    summary = store.experiments.summary(id)
    checkpoints = [c for c in store.checkpoints.list(experiment_id=id) if c.state is CheckpointState.COMPLETED]
    sign = 1 if experiment.smaller_is_better else -1
    ranked = sorted((c for c in checkpoints if c.metric is not None), key=lambda c: sign * (c.metric or 0.0))
    chosen = ranked[0] if ranked else (max(checkpoints, key=lambda c: c.created) if checkpoints else None)
    result: dict[str, Any] = {
        "experiment": id,
        "name": experiment.name,
        "state": str(state),  # which could not be written, where the store is what failed
        "trials": {str(state): count for state, count in summary.trials.items()},
        "metric": experiment.metric,
        "best_metric": summary.best_metric,
        "best_trial": summary.best_trial,
        "trial_class": is_trial_entrypoint(from_json(experiment.config).entrypoint or ""),
    }
    if chosen is not None:
        framework = settings.plugins.frameworks().get(chosen.framework)
        result["checkpoint"] = {
            "uuid": chosen.uuid,
            "path": _path(store, settings, id, chosen.uuid, chosen.storage),
            "batches": chosen.batches,
            "metric": chosen.metric,
            "loader": framework.loader if framework else "",
        }
    return result


def _path(store: Store, settings: Settings, id: int, uuid: str, recorded: str) -> str:
    local = recorded or str(settings.home / "checkpoints" / uuid)
    return local.removeprefix("file://")


def _complain(driver: Driver, experiment: int) -> None:
    """Print what went wrong: the last traceback, then a line for each failure."""
    from ..engines.in_process import InProcessEngine

    failures = driver.failures
    if failures.traceback and not isinstance(driver.engine, InProcessEngine):  # there it was printed when it happened
        sys.stderr.write(failures.traceback.rstrip() + "\n")
    lines = list(dict.fromkeys(failures.messages))
    if len(lines) > MOST_FAILURES:
        more = len(lines) - MOST_FAILURES
        lines[MOST_FAILURES:] = [f"{more} more trials failed; they are listed by: det show {experiment}"]
    for line in lines:
        sys.stderr.write(f"det: {line}\n")


def _say(result: dict[str, Any], failures: ExperimentFailures) -> None:
    id, state = result["experiment"], result["state"]
    out = [f"experiment {id} is {state.lower()}"]
    if result["best_metric"] is not None:
        out[0] += f": best {result['metric']} {result['best_metric']:.6g} (trial {result['best_trial']})"
    checkpoint = result.get("checkpoint")
    if checkpoint and state != "PAUSED":
        which = "best" if checkpoint["metric"] is not None else "latest"
        out.append(f"{which} checkpoint: {checkpoint['path']} (batch {checkpoint['batches']})")
        if checkpoint["loader"] and Path(checkpoint["path"]).is_dir():
            module, _, function = checkpoint["loader"].rpartition(".")
            code = f"from {module} import {function}; print({function}({checkpoint['path']!r}))"
            out.append(f'load it: {shlex.quote(sys.executable)} -c "{code}"')
    if state == "PAUSED" or (state == "ERROR" and failures.resumable):
        out.append(f"go on with: det resume {id}")
    elif state == "ERROR":
        out.append(f"its logs: det logs {id}")
    sys.stdout.write("\n".join(out) + "\n")
