"""A driver in memory, which can be lost, and a trial that can be interrupted anywhere."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.det_testing import style_hooks, styles

from det_core import (
    DistributedContext,
    Flag,
    HostLost,
    Loop,
    Outcome,
    Plugins,
    Progress,
    RunInfo,
    RunLoop,
    Schedule,
    Stop,
    Target,
    TrialHost,
)
from det_core.config import Length
from det_core.train.async_writer import AsyncCheckpointWriter
from det_core.train.schedule import to_batches
from det_testing import fake_hooks, fakes

STYLES = {
    "owned": (fakes.OwnedAdapter, fakes.OwnedOneVar),
    "callback": (styles.CallbackAdapter, styles.CallbackOneVar),
    "chunked": (styles.ChunkedAdapter, styles.ChunkedOneVar),
}


class Killed(BaseException):
    """The process is gone at once."""


@dataclass(frozen=True)
class Interruption:
    """`preempt` and `kill` strike at the n-th batch of a run.

    `lose` and `kill_call` strike at its n-th word to the driver.

    `heard`: the driver hears that word. `noticed`: the loss raises the flag at once.
    """

    kind: str
    at: int
    heard: bool = True
    noticed: bool = True


NONE = Interruption("none", 0)


@dataclass
class Driver:
    """What outlives the runs: the history, the checkpoints, and the searcher's wishes.

    `rungs` are the targets, each given when the one before is complete. `stop_at` ends the trial at
    a validation.
    """

    rungs: Sequence[int]
    unit: str = "batches"
    stop_at: int | None = None
    rows: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    checkpoints: list[tuple[dict[str, Any], tempfile.TemporaryDirectory[str]]] = field(
        default_factory=list
    )
    rung: int = 0
    stopped: bool = False
    order: list[tuple[str, int]] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def target(self) -> Target:
        return Target(
            n=None if self.stopped else self.rungs[min(self.rung, len(self.rungs) - 1)],
            unit=self.unit,
        )

    def told(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        known = self.rows.get((group, batches))
        assert known is None or known == dict(metrics), "a report told again says something else"
        self.rows[group, batches] = dict(metrics)
        self.order.append((group, batches))

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        value = metrics.get("val_loss")
        losses = [
            m.get("val_loss")
            for (g, b), m in self.rows.items()
            if g == "validation" and b != batches
        ]
        best = value is not None and all(loss is None or value < loss for loss in losses)
        self.told("validation", batches, metrics)
        if length is not None and length == self.target().n:
            self.rung += 1
        if self.stop_at is not None and batches >= self.stop_at:
            self.stopped = True
        target = self.target()
        return Target(n=target.n, unit=target.unit, best=best)

    def restart(self) -> tuple[Progress | None, Path | None]:
        """Forget what was reported behind the latest checkpoint, and return that."""
        if not self.checkpoints:
            self.rows.clear()
            return None, None
        state, directory = self.checkpoints[-1]
        self.rows = {
            key: metrics for key, metrics in self.rows.items() if key[1] <= state["batches"]
        }
        return Progress(**json.loads(json.dumps(state))), Path(directory.name)

    def history(self) -> list[tuple[tuple[str, int], dict[str, Any]]]:
        return sorted(self.rows.items(), key=lambda row: (row[0][1], row[0][0]))


class Host(TrialHost):
    """The driver as one run sees it: a word may be the last."""

    def __init__(self, driver: Driver, interruption: Interruption) -> None:
        self.preempted = Flag()
        self.driver, self._interruption = driver, interruption
        self._words, self._gone = 0, False

    def _word(self, hear: Callable[[], Any]) -> Any:
        if self._gone:
            raise HostLost("gone")
        self._words += 1
        if self._words == self._interruption.at and self._interruption.kind in {
            "lose",
            "kill_call",
        }:
            self._strike(hear)
        return hear()

    def _strike(self, hear: Callable[[], Any]) -> None:
        if self._interruption.heard:
            hear()
        if self._interruption.kind == "kill_call":
            raise Killed
        self._gone = True
        self.preempted.raised = self._interruption.noticed
        raise HostLost("gone")

    def target(self) -> Target:
        answer: Target = self._word(self.driver.target)
        return answer

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._word(lambda: self.driver.told(group, batches, metrics))

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        answer: Target = self._word(lambda: self.driver.validated(batches, metrics, length))
        return answer

    def checkpointed(self, manifest: Any, storage: str) -> None:
        self._word(lambda: None)

    def progress(self, fraction: float) -> None:
        self._word(lambda: self.driver.fractions.append(fraction))

    def status(self, text: str) -> None:
        pass

    def notice(self, text: str) -> None:
        self._word(lambda: self.driver.notices.append(text))

    def finished(self, outcome: Outcome, message: str = "") -> None:
        pass


class Trial:
    """One trial, run again and again until it ends."""

    def __init__(
        self, driver: Driver, schedule: Schedule, style: str = "owned", **hparams: Any
    ) -> None:
        self.driver, self.schedule, self.style = driver, schedule, style
        self.hparams = {"noise": 0.5, "batches_per_epoch": 4} | hparams
        self.events: list[tuple[str, int]] = []
        self.followed: list[
            tuple[int, bool]
        ] = []  # of each save, whether the host knew that a question follows
        self.length: Length | None = None
        self.writer: AsyncCheckpointWriter | None = None
        self.weight = 0.0
        plugins = Plugins()
        plugins.register(fake_hooks, "fakes")
        plugins.register(style_hooks, "styles")
        self._build = plugins.build(f"fake-{style}")

    def run(
        self,
        interruption: Interruption = NONE,
        *,
        validate: Callable[[Any], Mapping[str, Any]] | None = None,
        each_batch: Callable[[Loop, int], None] = lambda loop, number: None,
    ) -> Stop | None:
        """Run once from the latest checkpoint.

        Return why it stopped, or None when it was killed.
        """
        self.events = []
        host = Host(self.driver, interruption)
        progress, directory = self.driver.restart()
        adapter = self._adapter()
        if directory is not None:
            adapter.load(directory)
        save = self._saver(adapter, host)
        loop = RunLoop(
            adapter,
            self.schedule,
            host,
            DistributedContext(),
            save,
            progress,
            self.length,
            self.writer,
        )
        self._watch(adapter, host, loop, interruption, validate, each_batch)
        try:
            if not loop.begin():
                adapter.train(loop)
        except Killed:
            return None
        finally:
            self.weight = adapter.training.model.value
        self.loop = loop
        return loop.stop

    def _adapter(self) -> fakes.FakeAdapter[Any]:
        adapter, trial = STYLES[self.style]
        info = RunInfo(
            config=None,  # type: ignore[arg-type]  # the fakes can do without
            hparams=self.hparams,
            seed=7,
            build=self._build,
            distributed=DistributedContext(),
        )
        return adapter.create(trial, info)  # type: ignore[arg-type]

    def _saver(self, adapter: Any, host: Host) -> Callable[[Progress], bool]:
        def save(progress: Progress) -> bool:
            self.events.append(("save", progress.batches))
            self.followed.append((progress.batches, host.asks_next))
            directory = tempfile.TemporaryDirectory(prefix="det-loop-")
            adapter.save(Path(directory.name))
            checkpoint = (asdict(progress), directory)
            try:
                host._word(lambda: self.driver.checkpoints.append(checkpoint))
            except HostLost:  # the driver may find it on its own, as in the spool
                if not any(known is checkpoint for known in self.driver.checkpoints):
                    self.driver.checkpoints.append(checkpoint)
                return False
            return (
                not host.asks_next
            )  # else it is recorded by the time that the question is answered

        return save

    def _watch(
        self,
        adapter: Any,
        host: Host,
        loop: Loop,
        interruption: Interruption,
        validate: Callable[[Any], Mapping[str, Any]] | None,
        each_batch: Callable[[Loop, int], None],
    ) -> None:
        """Interrupt at a batch.

        Note validations. See that no batch lies past the target or comes twice.
        """
        train, measure = adapter.training.batch, adapter.validate
        trained = [0]

        def batch(number: int) -> Any:
            assert number == loop.done + trained[0], "a batch was passed over, or trained twice"
            target = self.driver.target()
            assert target.n is not None
            assert number < to_batches(target.n, target.unit, adapter), "trained past the target"
            trained[0] += 1
            if trained[0] == interruption.at and interruption.kind == "kill":
                raise Killed
            if trained[0] == interruption.at and interruption.kind == "preempt":
                host.preempted.raised = True
            each_batch(loop, number)
            return train(number)

        def noted() -> Any:
            self.events.append(("validate", loop.done + trained[0]))
            return validate(adapter) if validate else measure()

        adapter.training.batch, adapter.validate = batch, noted


@pytest.fixture
def kit() -> Any:
    """The names of this file, as test modules cannot import from it."""

    class Kit:
        pass

    for thing in (Driver, Host, Interruption, Killed, Trial):
        setattr(Kit, thing.__name__, thing)
    return Kit
