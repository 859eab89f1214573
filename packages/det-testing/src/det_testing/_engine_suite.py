"""What any engine that places agents must do."""

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

from det_core.agent import Ended, RunSpec

from ._suite import Suite

if TYPE_CHECKING:
    from det_driver.engines import AgentEngine, Node, Site

PATIENCE_SECONDS = 60.0
LEASE_SECONDS = 20.0


class Driven:
    """An engine with what it says, as a driver hears it."""

    def __init__(self, make: Callable[[Any], AgentEngine], site: Site) -> None:
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.engine = make(self.heard.put)
        self.found = self.engine.open(site)

    def hear(self, kind: type, patience: float = PATIENCE_SECONDS) -> Any:
        """Return the next that is said of this kind."""
        deadline = time.monotonic() + patience
        while True:
            try:
                said = self.heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind.__name__} within {patience:g} s") from None
            if isinstance(said, kind):
                return said

    def node(self) -> str:
        """Return a machine that is there, as soon as one is."""
        return self.nodes(1)[0].name

    def nodes(self, count: int) -> list[Node]:
        """Return machines that are there, as soon as so many are."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(nodes := self.engine.nodes()) < count:
            assert time.monotonic() < deadline, f"{len(nodes)} of {count} machines came within {PATIENCE_SECONDS:g} s"
            self.engine.want(count, 1)
            time.sleep(0.1)
        return nodes


class EngineSuite(Suite):
    """Inherit it, and give your engine's class, or a function that makes one of it.

    `site` may be overridden where the engine needs settings, and `machines` where it has several.
    """

    machines: ClassVar[int] = 1
    """How many machines there are at that site; what several have to do is not tried where there is one."""

    @pytest.fixture
    def make_engine(self) -> Callable[[Any], AgentEngine]:
        """Return a function that makes an engine of what hears it."""
        raise NotImplementedError("override `make_engine`: return your engine's class")

    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        """Return where it works: a directory that is empty at first. It can be pickled, as your engine's class can."""
        from det_driver.engines import Site

        return Site(name=f"det-suite-{tmp_path.name}", directory=tmp_path, host="127.0.0.1", lease=LEASE_SECONDS)

    @pytest.fixture
    def drive(self, make_engine: Callable[[Any], AgentEngine], site: Site) -> Iterator[Callable[[], Driven]]:
        """Return what makes an engine and opens it; what is left of them ends with the test."""
        made: list[Driven] = []

        def drive() -> Driven:
            made.append(Driven(make_engine, site))
            return made[-1]

        yield drive
        for driven in made:
            driven.engine.close()
        make_engine(lambda said: None).dismiss(site, at_once=True)

    @pytest.fixture
    def spec(self, tmp_path: Path) -> Callable[..., RunSpec]:
        """Return what makes a run of a shell line."""
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

    def test_a_run_executes_where_there_is_room_with_its_code_and_variables(self, drive: Any, spec: Any) -> None:
        """Its output is here before it is said to have ended."""
        driven = drive()
        run = spec(1, "cat words.txt; echo $OF_THE_RUN; exit 3", driven.node())
        driven.engine.start(run)
        ended = driven.hear(Ended)
        assert (ended.run, ended.status) == (1, 3)
        assert (run.log_dir / "rank-0.log").read_text() == "shipped with the code\nrun 1\n"

    def test_asking_again_for_a_claim_changes_nothing(self, drive: Any) -> None:
        """By the same name there is one agent."""
        driven = drive()
        driven.node()
        for _ in range(3):
            driven.engine.want(1, 1)
        time.sleep(1.0)
        assert len({node.name for node in driven.engine.nodes()}) == len(driven.engine.nodes())
        assert len(driven.engine.asked) == len(driven.engine.look())

    def test_a_run_is_killed_with_all_that_it_started(self, drive: Any, spec: Any, tmp_path: Path) -> None:
        """Also what is in a session of its own; a second time is harmless."""
        driven = drive()
        note = tmp_path / "pid"
        script = f"setsid sleep 300 & echo $! > {shlex.quote(str(note))}; wait"
        driven.engine.start(spec(1, script, driven.node()))
        while not note.exists() or not note.read_text().strip():
            time.sleep(0.05)
        driven.engine.signal(1, signal.SIGKILL)
        assert driven.hear(Ended).status != 0
        driven.engine.signal(1, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _runs(int(note.read_text())):
            assert time.monotonic() < deadline, "a process of a killed run goes on"
            time.sleep(0.1)

    def test_an_end_is_told_to_the_next_driver_too_until_it_is_settled(self, drive: Any, spec: Any) -> None:
        """The driver that was told of it may have been killed before it wrote that down."""
        first = drive()
        first.engine.start(spec(1, "exit 4", first.node()))
        first.hear(Ended)
        first.engine.abandon()
        second = drive()
        assert [found.run_id for found in second.found] == [1]
        assert second.hear(Ended).status == 4
        second.engine.settled(1)

    def test_a_driver_that_is_killed_costs_a_run_nothing(
        self, make_engine: Callable[[Any], AgentEngine], site: Site, drive: Any, tmp_path: Path
    ) -> None:
        """The next one finds it by the claim, and hears of its end."""
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "engine").write_bytes(pickle.dumps((make_engine, site, tmp_path)))
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
        assert driven.hear(Ended).status == 5

    def test_the_parts_of_a_run_on_two_machines_end_as_one(self, drive: Any, gang: Any) -> None:
        """Where one fails the other is ended, and the end is that of the one which failed."""
        driven = drive()
        run = gang(driven, "echo rank $RANK; [ $RANK = 1 ] && exit 4; sleep 300")
        driven.engine.start(run)
        ended = driven.hear(Ended)
        assert (ended.run, ended.status, ended.rank) == (1, 4, 1)
        assert [(run.log_dir / f"rank-{k}.log").read_text() for k in (0, 1)] == ["rank 0\n", "rank 1\n"]

    def test_the_next_driver_finds_all_parts_of_a_run(self, drive: Any, gang: Any) -> None:
        """As one run, whose end is heard once."""
        first = drive()
        run = gang(first, "sleep 3; exit 6")
        first.engine.start(run)
        time.sleep(1.0)
        first.engine.abandon()
        second = drive()
        (found,) = second.found
        assert (found.run_id, found.of, found.devices) == (1, 2, run.devices)
        assert second.hear(Ended).status == 6
        second.engine.settled(1)

    @pytest.fixture
    def gang(self, spec: Callable[..., RunSpec]) -> Callable[[Driven, str], RunSpec]:
        """Return what makes a run of two ranks of a shell line, on two machines."""
        if self.machines < 2:
            pytest.skip("there is one machine")

        def gang(driven: Driven, script: str) -> RunSpec:
            devices = tuple(node.devices[0] for node in driven.nodes(2)[:2] if node.devices)
            ranks = ({"RANK": "0"}, {"RANK": "1"})
            return spec(1, script, "", ranks=ranks, devices=devices, slots=(0, 1), of=2)

        return gang

    def test_what_is_dismissed_is_gone(self, drive: Any, make_engine: Any, site: Site, spec: Any) -> None:
        """With nobody to hear it."""
        driven = drive()
        driven.engine.start(spec(1, "sleep 300", driven.node()))
        time.sleep(1.0)
        driven.engine.abandon()
        make_engine(lambda said: None).dismiss(site, at_once=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(claim.standing.value != "ended" for claim in driven.engine.look().values()):
            assert time.monotonic() < deadline, "a dismissed agent goes on"
            time.sleep(0.1)


_DRIVER = """
    import pickle, queue, sys, time
    from det_core.agent import RunSpec

    with open(sys.argv[1], "rb") as file:
        make_engine, site, directory = pickle.load(file)
    engine = make_engine(queue.SimpleQueue().put)
    engine.open(site)
    while not engine.nodes():
        engine.want(1, 1)
        time.sleep(0.1)
    script = f"while [ ! -e {directory}/go ]; do sleep 0.1; done; exit 5"
    engine.start(RunSpec(run_id=7, entrypoint=("/bin/sh", "-c", script), trial_class=False, code_dir=directory / "code",
                         log_dir=directory / "logs", variables={}, node=engine.nodes()[0].name))
    time.sleep(2.0)
    print("started", flush=True)
    time.sleep(300)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
