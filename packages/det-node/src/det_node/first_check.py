"""The check before training, in processes whose state is discarded.

It trains a few batches, validates and saves, and restores. The processes are forks of the worker,
made before any of the user's code is imported. So changes to weights, random generators, devices
and modules do not reach the training that follows.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from det_core.checkpoint import read_checkpoint
from det_core.config import Const, ExperimentConfig
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
_IN_THE_CHECK = " (in the check before training; `check_first: false` skips it)"
# They fail without the check, too, or are another rank's failure, or no failure.
_NOT_OF_THE_CHECK = (
    Outcome.INVALID_HP,
    Outcome.MISTAKE,
    Outcome.PEER_LOST,
    Outcome.PREEMPTED,
)
_NOT_FOUND = (FileNotFoundError, ImportError)
"""They fail without the check, too: skipping it would be no remedy."""


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

    `early` is the state after half of the batches, `trained` that after all.
    """

    adapter: Adapter[Any]
    dropped: dict[str, str]
    half: int
    before = after = ""
    early: Mapping[str, str] = {}
    trained: Mapping[str, str] = {}

    def watch(self, adapter: Adapter[Any], half: int) -> None:
        self.adapter, self.dropped, self.half = adapter, {}, half
        self.before = adapter.fingerprint()

    def step(self, metrics: Metrics, batches: int = 1) -> Stop:
        for name, value in metrics.items():
            try:
                number(name, value)
            except MetricError as error:
                self.dropped[name] = str(error)
        stop = super().step(metrics, batches)
        if not self.early and self.batches_trained >= self.half:
            self.early = self.adapter.live_state()
        return stop

    def _validate(self) -> None:
        self.after = self.adapter.fingerprint()
        trained = self.adapter.live_state()
        super()._validate()
        validated = self.adapter.live_state().items()
        self.trained = {**trained, **{name: now for name, now in validated if name in trained}}


class _NotedHparams(dict[str, Any]):
    """Hyperparameters that note which of them are read. Reading all at once counts for each."""

    def __init__(self, hparams: Mapping[str, Any]) -> None:
        super().__init__(hparams)
        self._names = set(hparams)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        # Copies of a dict whose class defines this method are made by calling it, too.
        self.read |= self._names
        return super().__iter__()

    def keys(self) -> Any:
        self.read |= self._names
        return super().keys()

    def values(self) -> Any:
        self.read |= self._names
        return super().values()

    def items(self) -> Any:
        self.read |= self._names
        return super().items()

    def ignored(self, config: ExperimentConfig) -> list[str]:
        """Return the hyperparameters that have a range and were not read."""
        return [
            name
            for name, value in config.hyperparameters.items()
            if name in self._names and name not in self.read and _has_range(value)
        ]


def _has_range(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_range, value.values()))
    return not isinstance(value, Const)


class Trained(msgspec.Struct, frozen=True):
    """What the first half of a check has found, and what the second half restores.

    - `checkpoint`: what was saved after `batches`; empty if nothing is to be restored.
    - `fresh`, `early`, `states`: the trial's state before the batches, after half of them, and
      after all.
    """

    notices: list[str]
    checkpoint: str = ""
    batches: int = 0
    fresh: dict[str, str] = {}
    states: dict[str, str] = {}
    early: dict[str, str] = {}

    def lost(self, restored: Mapping[str, str]) -> list[str]:
        """Return the names of what the batches have changed, and what a restored trial lacks.

        What the first batch makes, and the next ones leave as it is, a restored trial makes alike.
        """
        return [
            name
            for name, state in self.states.items()
            if state not in (before := self.fresh.get(name, state), restored.get(name))
            and (before or state != self.early.get(name))
        ]


def check(framework: Framework, trial: type, info: RunInfo, scratch: Path) -> list[str]:
    """Check `trial` in this process, and return notices for the user.

    Exceptions of the trial pass through.
    """
    trained = train(framework, trial, info, scratch)
    # The second trial needs the memory of the first, and what it holds exclusively.
    gc.collect()
    return trained.notices + restore(framework, trial, info, scratch, trained)


def train(framework: Framework, trial: type, info: RunInfo, scratch: Path) -> Trained:
    """Train two steps of `trial`, validate a batch, and save.

    Exceptions of the trial pass through. Every rank calls it. With several ranks nothing is to be
    restored, as they would have to meet once more.
    """
    info = _briefly(info, scratch)
    keep = _sink(info, scratch)
    metric = info.config.searcher.metric if info.config.searcher else None
    host = LocalHost(Target(n=2 * info.config.optimizations.aggregation_frequency), metric=metric)
    fresh: dict[str, str] = {}
    loops: list[_Watched] = []

    def start(adapter: Adapter[Any]) -> Loop:
        # Schedules may be made for no more batches than these.
        if info.length is not None:
            most = to_batches(info.length.n, info.length.unit, adapter)
            host.limit(most)
        fresh.update(adapter.live_state())
        loops.append(_begin(adapter, framework, info, host, keep))
        return loops[0]

    hparams = _NotedHparams(info.hparams)
    _run(framework, trial, replace(info, hparams=hparams), start)
    loop = loops[0]
    notices = [
        f"{error}; it is left out of the training reports" for error in loop.dropped.values()
    ]
    if ignored := hparams.ignored(info.config):
        names = ", ".join(f"hyperparameters.{name}" for name in ignored)
        notices.append(
            f"the trial does not read {names}, although values are drawn: read each with"
            f" context.get_hparam({ignored[0]!r}), or take it out; if only some choices need"
            " it, say so with `when`"
        )
    batches = loop.progress.batches
    if loop.before and loop.before == loop.after and batches:
        notices.append(
            f"training {batches} batches changed no weight: does the trial step its optimizer"
            " (context.step_optimizer)? A learning rate that begins at 0 looks the same"
        )
    if info.distributed.size > 1:
        return Trained(notices)
    manifest, _ = host.checkpoints[-1]
    states = dict(loop.trained)
    return Trained(notices, manifest.uuid, batches, fresh, states, dict(loop.early))


def restore(
    framework: Framework, trial: type, info: RunInfo, scratch: Path, trained: Trained
) -> list[str]:
    """Build `trial` again, restore what `train` saved, and return notices for the user."""
    if not trained.checkpoint:
        return []
    info = replace(
        _briefly(info, scratch),
        checkpoint=trained.checkpoint,
        first_batch=trained.batches,
        warm=False,
    )
    keep = _sink(info, scratch)
    found: dict[str, str] = {}

    def start(adapter: Adapter[Any]) -> Loop:
        found.update(adapter.live_state())
        progress = Progress(batches=trained.batches, validated_at=trained.batches)
        return _begin(adapter, framework, info, LocalHost(Target(n=None)), keep, progress)

    with read_checkpoint(keep.storage, trained.checkpoint) as (path, _):
        _run(framework, trial, info, start, path)
    lost = trained.lost(found)
    if not lost:
        return []
    more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
    return [
        f"training changes {', '.join(lost[:_MOST_NAMED])}{more}, which no checkpoint"
        " holds: a run that is resumed begins with it as it is built; keep it in a wrapped"
        " model's buffers, or in a callback's state_dict"
    ]


def _briefly(info: RunInfo, scratch: Path) -> RunInfo:
    return replace(
        info,
        checkpoint=None,
        first_batch=0,
        warm=None,
        quick=True,
        tensorboard_dir=scratch / "tensorboard",
        scratch_dir=scratch / "scratch",
    )


def _sink(info: RunInfo, scratch: Path) -> CheckpointSink:
    # The ranks of a host write the shards of one checkpoint.
    shared = Path(info.distributed.broadcast_local(str(scratch)))
    return CheckpointSink(storage=LocalStorage(shared / "checkpoints"))


def _begin(
    adapter: Adapter[Any],
    framework: Framework,
    info: RunInfo,
    host: LocalHost,
    keep: CheckpointSink,
    progress: Progress | None = None,
) -> _Watched:
    metric = info.config.searcher.metric if info.config.searcher else None
    schedule = Schedule(report=Every(1), policy="none", metric=metric)
    save = Saving(adapter, framework, info, host, keep)
    loop = _Watched(adapter, schedule, host, info.distributed, save, progress, info.length)
    loop.watch(adapter, info.config.optimizations.aggregation_frequency)
    loop.begin()
    return loop


def _run(
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


class _ForkResult(msgspec.Struct):
    """What a fork returned, or how it failed."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    outcome: Outcome | None = None
    message: str = ""
    traceback: str = ""


_decode_result = msgspec.json.Decoder(_ForkResult).decode
_decode_trained = msgspec.json.Decoder(Trained).decode
_decode_notices = msgspec.json.Decoder(list[str]).decode


def check_apart(
    train: Callable[[Path], Trained],
    restore: Callable[[Path, Trained], list[str]],
    forked: Callable[[], None],
    preempted: Callable[[], bool],
    scratch: Path | None,
    config: ExperimentConfig | None = None,
) -> Checked:
    """Call `train` and `restore` in forks of this process, and return what they found.

    Each has a fork of its own, as a restart has a process of its own: the second trial finds the
    memory, the ports and the devices that the first one held. They share a directory, which is
    deleted.

    `forked` is called in this process once the first fork exists. A fork's output is passed on only
    where it fails. When `preempted` returns true, the fork is killed, and the result is empty.
    """
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(
            prefix="det-check-", dir=scratch, ignore_cleanup_errors=True
        ) as folder,
        tempfile.TemporaryFile() as printed,
    ):

        def apart(
            act: Callable[[Path], Any], forked: Callable[[], None] = lambda: None
        ) -> _ForkResult | None:
            return _apart(act, Path(folder), forked, preempted, printed.fileno(), config)

        result = apart(train, forked)
        notices: list[str] = []
        if result is not None and result.outcome is None:
            trained = _decode_trained(result.value)
            notices = trained.notices
            if trained.checkpoint:
                result = apart(lambda path: restore(path, trained))
                if result is not None and result.outcome is None:
                    notices = notices + _decode_notices(result.value)
        if result is None:
            return Checked()
        if result.outcome is not None:
            printed.seek(0)
            sys.stderr.write(printed.read().decode(errors="replace"))
        return Checked(tuple(notices), result.outcome, result.message, result.traceback)


def _apart(
    act: Callable[[Path], Any],
    scratch: Path,
    forked: Callable[[], None],
    preempted: Callable[[], bool],
    printed: int,
    config: ExperimentConfig | None,
) -> _ForkResult | None:
    """Call `act` in a fork of this process. Return None if the run is preempted."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns about the other thread, which only waits for a socket.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_checked(act, scratch, printed, writer, config)
    os.close(writer)
    try:
        forked()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    data, given_up = _read_result(reader, pid, preempted)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if given_up or preempted() or status == -signal.SIGTERM:
        return None
    if data:
        return _decode_result(data)
    return _ForkResult(outcome=Outcome.ERROR, message=exit_status(status) + _IN_THE_CHECK)


def _read_result(reader: int, pid: int, preempted: Callable[[], bool]) -> tuple[bytes, bool]:
    """Return the result of the fork, and whether the fork was killed because of a preemption."""
    result, given_up = b"", False
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
                return result, given_up
            result += data


def _be_checked(
    act: Callable[[Path], Any],
    scratch: Path,
    printed: int,
    writer: int,
    config: ExperimentConfig | None,
) -> NoReturn:
    """Act in the fork, write the result, and exit without touching what belongs to the worker."""
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
            result = _ForkResult(msgspec.Raw(msgspec.json.encode(act(scratch))))
        except BaseException as error:
            outcome, message, traceback = explained(error, config)
            if outcome not in _NOT_OF_THE_CHECK and not isinstance(error, _NOT_FOUND):
                message += _IN_THE_CHECK
            result = _ForkResult(outcome=outcome, message=message, traceback=traceback)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        with open(writer, "wb") as pipe:
            pipe.write(msgspec.json.encode(result))
    os._exit(0)
