"""The check before training, in a process whose state is discarded.

It trains a few batches, validates, saves, and restores. The process is a fork of the worker, made
before any of the user's code is imported. So changes to weights, random generators, devices and
modules do not reach the training that follows.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from det_core.checkpoint import read_checkpoint
from det_core.config import ExperimentConfig
from det_core.errors import MetricError
from det_core.storage import LocalStorage
from det_core.train.adapter import Adapter, Loop, Metrics, RunInfo, Stop
from det_core.train.failure import explained
from det_core.train.host import Outcome, Target
from det_core.train.local import LocalHost
from det_core.train.loop import Progress, RunLoop
from det_core.train.metrics import number
from det_core.train.saving import CheckpointSink, Saving
from det_core.train.schedule import Every, Schedule, to_batches

from .process import exit_status

if TYPE_CHECKING:
    from det_core.hooks.records import Framework

CHECKING = "DET_CHECKING"
"""The variable that marks a check for the user's code."""

_LOOK_MILLISECONDS = 100
_MOST_NAMED = 4


class Checked(NamedTuple):
    """The result of a check.

    `notices` are for the terminal. An `outcome`, as that of a run, means that the trial cannot be
    trained.
    """

    notices: tuple[str, ...] = ()
    outcome: Outcome | None = None
    message: str = ""
    traceback: str = ""


class _Watched(RunLoop):
    """A loop that records fingerprints of the weights, and metrics that are not numbers.

    `trained` is the state after the batches.
    """

    adapter: Adapter[Any]
    dropped: dict[str, str]
    before = after = ""
    trained: Mapping[str, str] = {}

    def watch(self, adapter: Adapter[Any]) -> None:
        self.adapter, self.dropped = adapter, {}
        self.before = adapter.fingerprint()

    def step(self, metrics: Metrics, batches: int = 1) -> Stop:
        for name, value in metrics.items():
            try:
                number(name, value)
            except MetricError as error:
                self.dropped[name] = str(error)
        return super().step(metrics, batches)

    def _validate(self) -> None:
        self.after = self.adapter.fingerprint()
        self.trained = self.adapter.live_state()
        super()._validate()


def check(framework: Framework, trial: type, info: RunInfo, scratch: Path) -> list[str]:
    """Train two steps of `trial`, validate a batch, save, and restore. Return notices for the user.

    Exceptions of the trial pass through. Every rank calls it. With several ranks nothing is
    restored, as not every framework can meet its other ranks twice in a process.
    """
    info = replace(
        info,
        checkpoint=None,
        first_batch=0,
        warm=None,
        quick=True,
        tensorboard_dir=scratch / "tensorboard",
        scratch_dir=scratch / "scratch",
    )
    # The ranks of a host write the shards of one checkpoint.
    shared = Path(info.distributed.broadcast_local(str(scratch)))
    keep = CheckpointSink(storage=LocalStorage(shared / "checkpoints"))
    metric = info.config.searcher.metric if info.config.searcher else None
    schedule = Schedule(report=Every(1), policy="none", metric=metric)
    host = LocalHost(Target(n=2 * info.config.optimizations.aggregation_frequency), metric=metric)
    loops: list[_Watched] = []

    def begin(adapter: Adapter[Any], host: LocalHost, progress: Progress | None = None) -> Loop:
        save = Saving(adapter, framework, info, host, keep)
        loop = _Watched(adapter, schedule, host, info.distributed, save, progress, info.length)
        loop.watch(adapter)
        loops.append(loop)
        loop.begin()
        return loop

    fresh: dict[str, str] = {}

    def start(adapter: Adapter[Any]) -> Loop:
        # Schedules may be made for no more batches than these.
        if info.length is not None:
            most = to_batches(info.length.n, info.length.unit, adapter)
            host.limit(most)
        fresh.update(adapter.live_state())
        return begin(adapter, host)

    _train(framework, trial, info, start)
    loop = loops[0]
    notices = [
        f"{error}; it is left out of the training reports" for error in loop.dropped.values()
    ]
    batches = loop.progress.batches
    if loop.before and loop.before == loop.after and batches:
        notices.append(
            f"training {batches} batches changed no weight: does the trial step its optimizer"
            " (context.step_optimizer)? A learning rate that begins at 0 looks the same"
        )
    if info.distributed.size == 1:
        found: dict[str, str] = {}

        def again(adapter: Adapter[Any]) -> Loop:
            found.update(adapter.live_state())
            return begin(
                adapter, LocalHost(Target(n=None)), Progress(batches=batches, validated_at=batches)
            )

        manifest, _ = host.checkpoints[-1]
        with read_checkpoint(keep.storage, manifest.uuid) as (path, _):
            restored = replace(info, checkpoint=manifest.uuid, first_batch=batches, warm=False)
            _train(framework, trial, restored, again, path)
        lost = [
            name
            for name, state in loop.trained.items()
            if fresh.get(name, state) != state != found.get(name)
        ]
        if lost:
            more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
            notices.append(
                f"training changes {', '.join(lost[:_MOST_NAMED])}{more}, which no checkpoint"
                " holds: a run that is resumed begins with it as it is built; keep it in a wrapped"
                " model's buffers, or in a callback's state_dict"
            )
    return notices


def _train(
    framework: Framework,
    trial: type,
    info: RunInfo,
    start: Callable[[Adapter[Any]], Loop],
    path: Path | None = None,
) -> None:
    adapter = framework.load().create(trial, info)
    try:
        if path is not None:
            adapter.load(path)
        adapter.run(lambda: start(adapter))
    finally:
        adapter.close()


def check_apart(
    check: Callable[[Path], list[str]],
    forked: Callable[[], None],
    preempted: Callable[[], bool],
    scratch: Path | None,
    config: ExperimentConfig | None = None,
) -> Checked:
    """Call `check` in a fork of this process, with its own directory, and return what it found.

    `forked` is called in this process once the fork exists. The fork's output is passed on only
    where the check fails. When `preempted` returns true, the fork is killed, and the result is
    empty.
    """
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(
            prefix="det-check-", dir=scratch, ignore_cleanup_errors=True
        ) as folder,
        tempfile.TemporaryFile() as printed,
    ):
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns about the other thread, which only waits for a socket.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(reader)
            _be_checked(check, Path(folder), printed.fileno(), writer, config)
        os.close(writer)
        try:
            forked()
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        answer, given_up = _answer(reader, pid, preempted)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if given_up or preempted() or status == -signal.SIGTERM:
            return Checked()
        if answer:
            notices, outcome, message, traceback = msgspec.json.decode(answer)
            found = Checked(
                tuple(notices), Outcome(outcome) if outcome else None, message, traceback
            )
        else:
            message = f"in the check before training {exit_status(status)}"
            found = Checked(outcome=Outcome.ERROR, message=message)
        if found.outcome is not None:
            printed.seek(0)
            sys.stderr.write(printed.read().decode(errors="replace"))
        return found


def _answer(reader: int, pid: int, preempted: Callable[[], bool]) -> tuple[bytes, bool]:
    """Return the result of the fork, and whether the fork was killed because of a preemption."""
    answer, given_up = b"", False
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    with open(reader, "rb", buffering=0) as pipe:
        while True:
            if not poll.poll(_LOOK_MILLISECONDS):
                if preempted() and not given_up:
                    given_up = True
                    os.kill(pid, signal.SIGKILL)
                continue
            data = pipe.read(1 << 16)
            if not data:
                return answer, given_up
            answer += data


def _be_checked(
    check: Callable[[Path], list[str]],
    scratch: Path,
    printed: int,
    writer: int,
    config: ExperimentConfig | None,
) -> None:
    """Check in the fork, write the result, and exit without touching what belongs to the worker."""
    with suppress(BaseException):
        os.environ[CHECKING] = "1"
        # Writers of the user's code take their directories from the environment.
        os.environ |= {
            "DET_TENSORBOARD_DIR": str(scratch / "tensorboard"),
            "DET_SCRATCH_DIR": str(scratch / "scratch"),
        }
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        try:
            found = Checked(tuple(check(scratch)))
        except BaseException as error:
            outcome, message, traceback = explained(error, config)
            found = Checked((), outcome, message, traceback)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        word = (
            found.notices,
            found.outcome.value if found.outcome else None,
            found.message,
            found.traceback,
        )
        with open(writer, "wb") as pipe:
            pipe.write(json.dumps(word).encode())
    os._exit(0)
