"""Tests of any engine that starts agents."""

from __future__ import annotations

import pickle
import queue
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from det_node.agent import Ended, RunSpec

from ._suite import Suite

if TYPE_CHECKING:
    from det_driver.engines import AgentEngine, EngineContext, Node

PATIENCE_SECONDS = 60.0
LEASE_SECONDS = 20.0


class Driven:
    """An engine with the queue of its events, as a driver has it."""

    def __init__(self, make: Callable[[Any], AgentEngine], context: EngineContext) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.engine = make(self.events.put)
        self.found = self.engine.open(context)

    def wait_for(self, kind: type, patience: float = PATIENCE_SECONDS) -> Any:
        """Return the next event of this type."""
        deadline = time.monotonic() + patience
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind.__name__} within {patience:g} s") from None
            if isinstance(event, kind):
                return event

    def node(self) -> str:
        """Return the name of a node as soon as one has joined."""
        return self.nodes(1)[0].name

    def nodes(self, count: int) -> list[Node]:
        """Return the nodes as soon as `count` have joined."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(nodes := self.engine.nodes()) < count:
            assert time.monotonic() < deadline, (
                f"{len(nodes)} of {count} machines came within {PATIENCE_SECONDS:g} s"
            )
            self.engine.want(count, 1)
            time.sleep(0.1)
        return nodes


class EngineSuite(Suite):
    """Tests of an engine.

    Inherit it, and give your engine's class or a function that makes an engine. Override `context`
    if the engine needs settings, and `machines` if it has several nodes.
    """

    machines: ClassVar[int] = 1
    """The number of nodes. Tests that need several are skipped if there is only one."""

    @pytest.fixture
    def make_engine(self) -> Callable[[Any], AgentEngine]:
        """Return a function that makes an engine from a callback for its events."""
        raise NotImplementedError("override `make_engine`: return your engine's class")

    @pytest.fixture
    def context(self, tmp_path: Path) -> EngineContext:
        """Return the engine context, with a directory that is empty at first.

        It can be pickled, and so must your engine's class.
        """
        from det_driver.engines import EngineContext

        return EngineContext(
            name=f"det-suite-{tmp_path.name}",
            directory=tmp_path,
            host="127.0.0.1",
            lease=LEASE_SECONDS,
        )

    @pytest.fixture
    def drive(
        self, make_engine: Callable[[Any], AgentEngine], context: EngineContext
    ) -> Iterator[Callable[[], Driven]]:
        """Return a function that makes and opens an engine.

        The engines are closed after the test.
        """
        made: list[Driven] = []

        def drive() -> Driven:
            made.append(Driven(make_engine, context))
            return made[-1]

        yield drive
        for driven in made:
            driven.engine.close()
        make_engine(lambda event: None).stop_detached(context, at_once=True)

    @pytest.fixture
    def spec(self, tmp_path: Path) -> Callable[..., RunSpec]:
        """Return a function that makes a run of a shell command."""
        code = tmp_path / "code"
        code.mkdir()
        (code / "words.txt").write_text("shipped with the code\n")

        def spec(run: int, script: str, node: str, **parts: Any) -> RunSpec:
            logs = tmp_path / "logs" / str(run)
            variables = {"OF_THE_RUN": f"run {run}"}
            entrypoint = ("/bin/sh", "-c", script)
            return RunSpec(
                run_id=run,
                entrypoint=entrypoint,
                trial_class=False,
                code_dir=code,
                log_dir=logs,
                variables=variables,
                node=node,
                **parts,
            )

        return spec

    def test_run_executes_with_its_code_and_environment_variables(
        self, drive: Any, spec: Any
    ) -> None:
        """Its output has arrived before its end is reported."""
        driven = drive()
        run = spec(1, "cat words.txt; echo $OF_THE_RUN; exit 3", driven.node())
        driven.engine.start(run)
        ended = driven.wait_for(Ended)
        assert (ended.run, ended.status) == (1, 3)
        assert (run.log_dir / "rank-0.log").read_text() == "shipped with the code\nrun 1\n"

    def test_asking_again_for_a_claim_changes_nothing(self, drive: Any) -> None:
        """There is one agent for each name."""
        driven = drive()
        driven.node()
        for _ in range(3):
            driven.engine.want(1, 1)
        time.sleep(1.0)
        assert len({node.name for node in driven.engine.nodes()}) == len(driven.engine.nodes())
        assert len(driven.engine.asked) == len(driven.engine.look())

    def test_a_run_is_killed_with_all_that_it_started(
        self, drive: Any, spec: Any, tmp_path: Path
    ) -> None:
        """Processes in other sessions are killed too. A second kill has no effect."""
        driven = drive()
        note = tmp_path / "pid"
        script = f"setsid sleep 300 & echo $! > {shlex.quote(str(note))}; wait"
        driven.engine.start(spec(1, script, driven.node()))
        while not note.exists() or not note.read_text().strip():
            time.sleep(0.05)
        driven.engine.signal(1, signal.SIGKILL)
        assert driven.wait_for(Ended).status != 0
        driven.engine.signal(1, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _runs(int(note.read_text())):
            assert time.monotonic() < deadline, "a process of a killed run goes on"
            time.sleep(0.1)

    def test_run_end_is_sent_to_the_next_driver_until_acknowledged(
        self, drive: Any, spec: Any
    ) -> None:
        """The driver that received the event may have been killed before it stored it."""
        first = drive()
        first.engine.start(spec(1, "exit 4", first.node()))
        first.wait_for(Ended)
        first.engine.detach()
        second = drive()
        assert [found.run_id for found in second.found] == [1]
        assert second.wait_for(Ended).status == 4
        second.engine.acknowledge_end(1)

    def test_a_driver_that_is_killed_costs_a_run_nothing(
        self,
        make_engine: Callable[[Any], AgentEngine],
        context: EngineContext,
        drive: Any,
        tmp_path: Path,
    ) -> None:
        """The next driver finds the run by its allocation request, and receives its end."""
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "engine").write_bytes(pickle.dumps((make_engine, context, tmp_path)))
        killed = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_DRIVER), str(tmp_path / "engine")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert killed.stdout
        assert killed.stdout.readline() == "started\n"
        killed.kill()
        killed.wait()
        time.sleep(1.0)
        driven = drive()
        assert [found.run_id for found in driven.found] == [7]
        (tmp_path / "go").touch()
        assert driven.wait_for(Ended).status == 5

    def test_the_parts_of_a_run_on_two_machines_end_as_one(self, drive: Any, gang: Any) -> None:
        """If one part fails, the other is ended. The run's end is that of the part that failed."""
        driven = drive()
        run = gang(driven, "echo rank $RANK; [ $RANK = 1 ] && exit 4; sleep 300")
        driven.engine.start(run)
        ended = driven.wait_for(Ended)
        assert (ended.run, ended.status, ended.rank) == (1, 4, 1)
        assert [(run.log_dir / f"rank-{k}.log").read_text() for k in (0, 1)] == [
            "rank 0\n",
            "rank 1\n",
        ]

    def test_the_next_driver_finds_all_parts_of_a_run(self, drive: Any, gang: Any) -> None:
        """It finds them as one run, whose end it receives once."""
        first = drive()
        run = gang(first, "sleep 3; exit 6")
        first.engine.start(run)
        time.sleep(1.0)
        first.engine.detach()
        second = drive()
        (found,) = second.found
        assert (found.run_id, found.world_size, found.devices) == (1, 2, run.devices)
        assert second.wait_for(Ended).status == 6
        second.engine.acknowledge_end(1)

    @pytest.fixture
    def gang(self, spec: Callable[..., RunSpec]) -> Callable[[Driven, str], RunSpec]:
        """Return a function that makes a run of a shell command with two ranks on two nodes."""
        if self.machines < 2:
            pytest.skip("there is one machine")

        def gang(driven: Driven, script: str) -> RunSpec:
            devices = tuple(node.devices[0] for node in driven.nodes(2)[:2] if node.devices)
            ranks = ({"RANK": "0"}, {"RANK": "1"})
            return spec(1, script, "", ranks=ranks, devices=devices, slots=(0, 1), world_size=2)

        return gang

    def test_what_is_dismissed_is_gone(
        self, drive: Any, make_engine: Any, context: EngineContext, spec: Any
    ) -> None:
        """Agents end even if no driver receives their events."""
        driven = drive()
        driven.engine.start(spec(1, "sleep 300", driven.node()))
        time.sleep(1.0)
        driven.engine.detach()
        make_engine(lambda event: None).stop_detached(context, at_once=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(request.state.value != "ended" for request in driven.engine.look().values()):
            assert time.monotonic() < deadline, "a dismissed agent goes on"
            time.sleep(0.1)


_DRIVER = """
    import pickle, queue, sys, time
    from det_node.agent import RunSpec

    with open(sys.argv[1], "rb") as file:
        make_engine, site, directory = pickle.load(file)
    engine = make_engine(queue.SimpleQueue().put)
    engine.open(site)
    while not engine.nodes():
        engine.want(1, 1)
        time.sleep(0.1)
    script = f"while [ ! -e {directory}/go ]; do sleep 0.1; done; exit 5"
    engine.start(RunSpec(run_id=7, entrypoint=("/bin/sh", "-c", script), trial_class=False,
                         code_dir=directory / "code", log_dir=directory / "logs", variables={},
                         node=engine.nodes()[0].name))
    time.sleep(2.0)
    print("started", flush=True)
    time.sleep(300)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
