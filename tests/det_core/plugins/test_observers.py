"""What observers and other plugins of strangers do wrong is theirs.

It is named, and det goes on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from det_core import CommandRecord, EngineRecord, PluginError, hookimpl
from det_core.hooks import Found, Plugins
from det_core.hooks._observers import ObserverHangs, ObserverThread

REPORT: dict[str, Any] = {"experiment": 1, "trial": None, "group": "validation", "batches": 1}


def found(load: Callable[[], Any], name: str = "broken") -> Found:
    entry = SimpleNamespace(name=name, load=load)
    return Found(entry=entry, distribution=f"det-{name}", version="0.1")  # type: ignore[arg-type]


def of_stranger(
    plugin: object, *, strict: bool = False, seconds: float = 30.0
) -> tuple[Plugins, list[str]]:
    """Return what has a plugin of another distribution, and the warnings of it."""
    warnings: list[str] = []
    made = Plugins(
        warn=warnings.append, strict=strict, observer_seconds=seconds, own_commands=("run",)
    )
    made.load([found(lambda: plugin)])
    return made, warnings


class Odd(BaseException):
    """Nobody's Exception."""


def leave(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


ENDS = [SystemExit(3), Odd("x"), GeneratorExit()]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_what_would_end_det_at_a_plugins_import_skips_the_plugin(error: BaseException) -> None:
    warnings: list[str] = []
    Plugins(warn=warnings.append).load([found(leave(error))])
    (warning,) = warnings
    assert warning.startswith("skipped plugin 'broken' of det-broken 0.1: plugin 'broken' raised ")
    assert type(error).__name__ in warning
    with pytest.raises(PluginError, match=type(error).__name__):
        Plugins(strict=True).load([found(leave(error))])


def test_the_users_own_interrupt_is_no_plugins_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        Plugins(warn=lambda message: None).load([found(leave(KeyboardInterrupt()))])


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_observer_that_exits_is_named_and_others_are_called(error: BaseException) -> None:
    class NodeLeaving:
        @hookimpl
        def det_run_finished(self) -> None:
            raise error

    made, warnings = of_stranger(NodeLeaving())
    made.observe("det_run_finished", experiment=1, trial=None, run=None, outcome="completed")
    (warning,) = warnings
    assert warning.startswith(
        f"observer 'broken' failed in det_run_finished: {type(error).__name__}"
    )
    strict, _ = of_stranger(NodeLeaving(), strict=True)
    with pytest.raises(PluginError, match="observer 'broken' failed in det_run_finished"):
        strict.observe("det_run_finished", experiment=1, trial=None, run=None, outcome="completed")


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_what_would_end_det_as_a_record_is_used_names_the_plugin(error: BaseException) -> None:
    class Engines:
        @hookimpl
        def det_engines(self) -> Iterator[EngineRecord]:
            yield EngineRecord(name="odd", load=leave(error))

    made, warnings = of_stranger(Engines())
    assert not warnings
    with pytest.raises(
        PluginError, match=rf"plugin 'broken' raised {type(error).__name__}.* in load of 'odd'"
    ):
        made.engines()["odd"].load()


def test_sys_exit_in_a_build_hook_is_blamed_on_the_plugin() -> None:
    """A `sys.exit` of the trial itself passes through."""

    class Wraps:
        @hookimpl(wrapper=True)
        def det_build_model(self) -> Any:
            yield
            sys.exit(4)

    build = of_stranger(Wraps())[0].build("none")
    with pytest.raises(
        PluginError, match=r"a plugin called sys.exit\(4\) in det_build_model \(.*test_observers.py"
    ):
        build.model(None, lambda: "model")
    with pytest.raises(SystemExit, match="5"):
        build.model(None, leave(SystemExit(5)))


@pytest.mark.parametrize(
    "hang",
    [lambda: [time.sleep(0.01) for _ in range(500)], threading.Event().wait],
    ids=["in Python", "in the system"],
)
def test_an_observer_that_hangs_is_switched_off_by_name(hang: Callable[[], object]) -> None:
    calls: list[int] = []

    class Hangs:
        @hookimpl
        def det_metrics_reported(self) -> None:
            calls.append(1)
            hang()

    made, warnings = of_stranger(Hangs(), seconds=0.2)
    for _ in range(3):
        made.observe("det_metrics_reported", metrics={}, **REPORT)
    (warning,) = warnings
    assert warning.startswith(
        "observer 'broken' failed in det_metrics_reported: it does not return within 0.2 s ("
    )
    assert warning.endswith("; it is switched off; the experiment goes on")
    assert calls == [1]
    assert not made.observed("det_metrics_reported")


def test_the_thread_of_a_given_up_observer_ends_once_it_returns() -> None:
    observer, returns = ObserverThread("slow"), threading.Event()
    with pytest.raises(ObserverHangs, match=r"threading.py:\d+"):
        observer.call(returns.wait, 0.2)
    returns.set()
    observer._thread.join(20)
    assert not observer._thread.is_alive()


TRACED = """
import sys, threading
from det_core.hooks._observers import ObserverHangs, ObserverThread

observer = ObserverThread("hangs")
try:
    observer.call(threading.Event().wait, 0.2)
except ObserverHangs:
    pass
calls = []
sys.setprofile(lambda *_: calls.append(1))
(lambda: None)()
sys.setprofile(None)
print(len(calls) > 0)
"""


@pytest.mark.process
def test_a_process_with_a_hung_observer_can_be_profiled() -> None:
    """A pending exception in a waiting thread makes CPython 3.11 loop for ever under a profiler."""
    ended = subprocess.run(
        [sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "True\n"


def test_an_observer_is_given_up_when_the_run_is_to_end() -> None:
    """As the second signal asks; nobody waits for the deadline then."""
    entered = threading.Event()

    class Hangs:
        @hookimpl
        def det_experiment_started(self) -> None:
            entered.set()
            threading.Event().wait()

    made, warnings = of_stranger(Hangs(), seconds=3600.0)

    def give_up() -> None:
        assert entered.wait(20)
        made.give_up_observers()

    threading.Thread(target=give_up, daemon=True).start()
    made.observe("det_experiment_started", experiment=1)
    assert "did not return when the run was to end" in warnings[0]
    made.give_up_observers()  # and harmless where nobody waits
    made.observe("det_experiment_started", experiment=1)


def test_signal_that_does_not_wake_the_thread_is_handled() -> None:
    """One that arrives in another thread does not, nor one that arrives just before the wait."""
    observer, returns = ObserverThread("slow"), threading.Event()

    def receive_and_hang() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        returns.wait()

    before = signal.signal(signal.SIGUSR1, lambda *_: observer.give_up())
    try:
        with pytest.raises(ObserverHangs, match="did not return when the run was to end"):
            observer.call(receive_and_hang, 20.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
        returns.set()


def test_an_observer_has_one_thread_for_all_of_its_calls() -> None:
    """What it keeps for the thread, as clients of trackers do, is there the next time."""
    seen: list[int] = []

    class Notes:
        @hookimpl
        def det_experiment_started(self) -> None:
            seen.append(threading.get_ident())

    made, _ = of_stranger(Notes())
    for _ in range(3):
        made.observe("det_experiment_started", experiment=1)
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


def test_what_an_observer_changes_is_its_own_copy(capsys: pytest.CaptureFixture[str]) -> None:
    class Clears:
        @hookimpl
        def det_metrics_reported(self, trial: Any, metrics: dict[str, Any]) -> None:
            metrics["nested"].clear()
            metrics.clear()
            trial.hparams.clear()
            print("what it prints")

    class Sees:
        metrics: Any = None

        @hookimpl
        def det_metrics_reported(self, metrics: dict[str, Any]) -> None:
            self.metrics = metrics

    made, warnings = of_stranger(Clears())
    view, trial = Sees(), SimpleNamespace(hparams={"lr": 1.0})
    made.register(view, "view")
    metrics = {"loss": 1.0, "nested": {"a": 1}}
    made.observe("det_metrics_reported", **{**REPORT, "trial": trial, "metrics": metrics})
    assert not warnings
    assert view.metrics == metrics == {"loss": 1.0, "nested": {"a": 1}}
    assert trial.hparams == {"lr": 1.0}
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "what it prints\n")


class AsyncHook:
    @hookimpl
    async def det_run_started(self, experiment: Any) -> None:
        pass


class AsyncRecords:
    @hookimpl
    async def det_engines(self) -> Any:
        yield EngineRecord(name="x", load=print)


class CommandRun:
    @hookimpl
    def det_commands(self) -> Any:
        yield CommandRecord(name="run", load=print)


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        (
            AsyncHook(),
            "has an async det_run_started, which nobody would await; write def, not async def",
        ),
        (
            AsyncRecords(),
            "has an async det_engines, which nobody would await; write def, not async def",
        ),
        (CommandRun(), "registers the command 'run', which det has itself; give it another name"),
    ],
    ids=["observer", "records", "command"],
)
def test_what_could_never_work_is_refused(plugin: object, problem: str) -> None:
    made, warnings = of_stranger(plugin)
    assert made.infos[0].problem == f"plugin 'broken' {problem}"
    assert len(warnings) == 1
    assert made.commands() == {}


def test_plugin_prints_at_import_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> object:
        print("loaded")
        return object()

    Plugins().load([found(load)])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "loaded\n")
