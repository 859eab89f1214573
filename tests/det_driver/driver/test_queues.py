"""What engines share whose claims wait in a queue.

What is asked for, what is believed of an end, and who is waited for.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from det_driver.engines import (
    AgentCommand,
    Allocation,
    AllocationRequest,
    AllocationState,
    EngineContext,
    OnEvent,
    QueueEngine,
)

pytestmark = pytest.mark.process

Wait = Callable[..., None]


class Settings:
    slots_per_node = 1


class Queue(QueueEngine):
    """A queue in this process, which places the agents of a claim on this machine.

    It does so one by one, as it is told.
    """

    pauses = (0.05, 0.1)

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self.held: dict[str, Allocation] = {}
        self.commands: dict[str, AgentCommand] = {}
        self.agents: list[subprocess.Popen[bytes]] = []
        self.refuses, self.silent = "", False

    def find(self) -> dict[str, Allocation]:
        if self.silent:
            raise ConnectionError("the queue does not answer")
        return dict(self.held)

    def submit(self, request: AllocationRequest, command: AgentCommand) -> str:
        if not self.refuses:
            self.held[request.name] = Allocation(
                name=request.name,
                state=AllocationState.WAITING,
                nodes=request.nodes,
                reason="Resources",
            )
            self.commands[request.name] = command
        return self.refuses

    def cancel(self, name: str, *, at_once: bool) -> None:
        self.find()
        self.held.pop(name, None)

    def directory(self, request: AllocationRequest) -> Path:
        return self.context.directory / "machine"

    def place(self, name: str, node: int) -> None:
        """Start the agent of one machine of a claim."""
        self.held[name] = replace(self.held[name], state=AllocationState.RUNNING, reason="")
        command = self.commands[name]
        environ = {**os.environ, "DET_SLOTS_TOTAL": "1", "CUDA_VISIBLE_DEVICES": ""}
        agent = subprocess.Popen(
            [*command.argv, str(node)], env=environ, stdin=subprocess.PIPE, start_new_session=True
        )
        self.agents.append(agent)
        assert agent.stdin
        with agent.stdin:
            agent.stdin.write(command.start)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Queue]:
    context = EngineContext(
        name="det-queue",
        directory=tmp_path / "agents",
        host="127.0.0.1",
        lease=5.0,
        settings=Settings(),
    )  # type: ignore[arg-type]
    engine = Queue(lambda said: None)
    engine.open(context)
    yield engine
    engine.silent = False
    engine.close()
    for agent in engine.agents:
        agent.terminate()
        agent.wait(30)


def asked(engine: Queue, slots: int, wait_until: Wait) -> str:
    """Ask for the machines of one run, and return the claim that the queue holds."""
    engine.want(1, slots)
    wait_until(lambda: len(engine.held) == 1, "the claim")
    return next(iter(engine.held))


def test_partly_placed_allocation_is_not_requested_again(opened: Queue, wait_until: Wait) -> None:
    name = asked(opened, 2, wait_until)
    opened.place(name, 0)
    wait_until(lambda: len(opened.nodes()) == 1, "the first agent")
    opened.want(1, 2)
    assert list(opened.asked) == [name]
    opened.place(name, 1)
    wait_until(lambda: len(opened.nodes()) == 2, "the second agent")
    opened.want(1, 2)
    assert len(opened.asked) == 2  # nothing of the first is to come any more: it is for another run


def test_what_a_claim_still_waits_for_is_given_back_at_the_end(
    opened: Queue, wait_until: Wait
) -> None:
    name = asked(opened, 2, wait_until)
    opened.place(name, 0)
    wait_until(lambda: len(opened.nodes()) == 1, "the first agent")
    opened.close()
    assert opened.held == {}


def test_for_what_claims_wait_is_said_in_the_words_of_the_queue(
    opened: Queue, wait_until: Wait
) -> None:
    asked(opened, 1, wait_until)
    wait_until(lambda: opened.explain_wait() == "Resources", "the reason")


def test_refused_allocation_has_ended_and_its_reason_is_logged(
    opened: Queue, wait_until: Wait
) -> None:
    opened.refuses = "no such partition"
    opened.want(1, 1)
    (name,) = opened.asked
    wait_until(lambda: opened.dead(name, 0), "the end of the claim")
    assert Path(opened.log(name)).read_text() == "no such partition\n"


def test_unresponsive_queue_is_awaited_with_its_last_known_state(
    opened: Queue, wait_until: Wait, capfd: pytest.CaptureFixture[str]
) -> None:
    name = asked(opened, 1, wait_until)
    opened.place(name, 0)
    wait_until(lambda: len(opened.nodes()) == 1, "the agent")
    opened.silent = True
    said: list[str] = []
    wait_until(
        lambda: said.append(capfd.readouterr().err) or "it is waited for" in "".join(said),
        "the sentence",
    )
    assert "the queue does not answer; it is waited for" in "".join(said)
    assert not opened.dead(name, 0)
    opened.silent = False
    assert opened.look()[name].state is AllocationState.RUNNING


def test_a_claim_that_cannot_be_given_up_is_said(
    opened: Queue, wait_until: Wait, capfd: pytest.CaptureFixture[str]
) -> None:
    name = asked(opened, 1, wait_until)
    opened.silent = True
    opened.drop(name)
    assert f"{name} could not be given up (the queue does not answer)" in capfd.readouterr().err


def test_allocation_the_queue_forgot_lives_while_its_agent_does(
    opened: Queue, wait_until: Wait
) -> None:
    name = asked(opened, 1, wait_until)
    opened.place(name, 0)
    wait_until(lambda: len(opened.nodes()) == 1, "the agent")
    del opened.held[name]
    assert opened.look()[name].state is AllocationState.RUNNING
    assert not opened.dead(name, 0)


def test_allocation_forgotten_before_its_agent_came_has_ended(
    opened: Queue, wait_until: Wait
) -> None:
    name = asked(opened, 1, wait_until)
    wait_until(lambda: opened.explain_wait() == "Resources", "a look at the queue")
    del opened.held[name]
    assert opened.look()[name].state is AllocationState.ENDED


@pytest.mark.thorough
def test_uncertain_end_is_believed_when_a_lease_has_expired(
    opened: Queue, wait_until: Wait
) -> None:
    opened.held["det-queue-other"] = Allocation(
        name="det-queue-other", state=AllocationState.ENDED, nodes=2, gone={0: False, 1: True}
    )
    assert opened.look()["det-queue-other"].state is AllocationState.RUNNING
    assert [opened.dead("det-queue-other", node) for node in (0, 1)] == [False, True]
    wait_until(
        lambda: opened.look()["det-queue-other"].state is AllocationState.ENDED,
        "the end of the lease",
        20,
    )
