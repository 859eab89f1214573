"""Implements one call of `Trainer.fit`."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_core import DetError, Limited, Loop, RunInfo, Stop, TrialHost, preempted_by, train_from
from det_core.checkpoint.code import copy_code
from det_core.config import Length
from det_core.train.schedule import NEVER, to_batches
from det_core.train.tensorboard import EventFile

from . import state
from .adapter import TorchAdapter
from .context import PyTorchTrialContext
from .history import FILE as HISTORY
from .history import History
from .plan import Plan
from .recorder import Alone, Recorder, short
from .result import FitResult
from .resume import Start
from .rng import untouched_rng
from .script_context import ArgumentError, ScriptContext, get_script_context
from .trial import PyTorchTrial

_CODE_BYTES = 16 * 2**20


class Fit:
    """Trains a trial by a plan from a start. `run` does all of the work."""

    def __init__(
        self, trial: PyTorchTrial, context: PyTorchTrialContext, plan: Plan, start: Start
    ) -> None:
        self._trial, self._context, self._plan, self._start = trial, context, plan, start
        self._script: ScriptContext = get_script_context(context)
        run = context.run
        self._info = replace(
            run,
            seed=run.seed if start.seed is None else start.seed,
            checkpoint=start.name,
            first_batch=start.batches,
            trial_id=start.trial_id,
            quick=plan.quick,
            length=run.length or plan.whole,
        )
        searcher = plan.config.searcher
        self.history = (
            History(searcher.metric, searcher.smaller_is_better) if searcher else History()
        )
        start.remember(self.history)

    def run(self) -> FitResult:
        """Train and return the result. Exceptions of the trial pass through."""
        self._context.begin(self._info)
        adapter = _Recorded(self._trial, self._context, self._info)
        adapter.history = self.history
        adapter.check_first = self._script.session is not None and self._script.session.check_first
        try:
            result, signalled = self._train(adapter)
        finally:
            adapter.close()
        if signalled == signal.SIGTERM.name and self._script.session is None:
            # Everything is saved. Raise the signal again for its default action.
            signal.raise_signal(signal.SIGTERM)
        return result

    def _train(self, adapter: _Recorded) -> tuple[FitResult, str]:
        limit = self._plan.limit(adapter)
        # The smaller of the script's length and the searcher's.
        if limit is not None and self._info.length is not None:
            limited = min(limit, to_batches(self._info.length.n, self._info.length.unit, adapter))
            self._info = replace(self._info, length=Length("batches", limited))
            self._context.begin(self._info)
        events = EventFile(self._info.tensorboard_dir if self._script.events else None)
        recorder = Recorder(
            self._host(adapter, limit), self.history, events, limit, self._start.batches
        )
        if self._info.distributed.rank == 0:
            recorder.say(self._greeting(limit))
        began = time.monotonic()
        with ExitStack() as stack:
            stack.callback(events.close)
            stack.enter_context(
                preempted_by(
                    recorder.preempted, signal.SIGINT, signal.SIGTERM, on_signal=_announce_stop
                )
            )
            info = replace(self._info, code_dir=stack.enter_context(self._code()))
            if self._plan.profiling:
                stack.enter_context(_profiled(recorder, info))
            progress = self._start.restore(adapter, self._script.framework, info)
            if progress is not None and limit is not None and progress.batches < limit:
                # The checkpoint ended a shorter training.
                progress.finished = False
            stop = train_from(
                progress,
                adapter,
                self._script.framework,
                info,
                recorder,
                self._script.sink,
                schedule=self._plan.schedule,
            )
        # Only the chief receives reports.
        self.history = info.distributed.broadcast(self.history)
        result = self._result(stop, adapter)
        if info.distributed.rank == 0:
            self._conclude(recorder, result, time.monotonic() - began)
            if self._script.session is not None:
                self._script.session.ended(stop)
        return result, recorder.preempted.reason if stop is Stop.PREEMPTED else ""

    def _host(self, adapter: TorchAdapter, limit: int | None) -> TrialHost:
        session = self._script.session
        if session is None:
            assert limit is not None
            return Alone(limit)
        chief = self._info.distributed.rank == 0
        if limit is not None:
            return Limited(session.host, limit, adapter)
        if chief and (session.host.target().n or 0) >= NEVER:
            raise ArgumentError(
                "max_length is missing, and the searcher has none either; give"
                " fit(max_length=Batch(n)), or searcher.max_length"
            )
        return session.host

    def _greeting(self, limit: int | None) -> str:
        info, name = self._info, type(self._trial).__name__
        until = f" until batch {limit}" if limit else ""
        start = (
            f"going on with {name} from batch {info.first_batch}"
            if info.checkpoint
            else f"training {name}"
        )
        where = "" if self._script.session else f"; checkpoints go to {short(self._script.place)}"
        return f"{start}{until} on {self._context.device}; seed {info.seed}{where}"

    @contextmanager
    def _code(self) -> Iterator[Path | None]:
        """Yield the directory of the user's code.

        The chief of a script that runs on its own gets a copy of it as it is now, without the
        output of runs.
        """
        source = self._info.code_dir
        if source is None or self._script.session is not None or self._info.distributed.rank != 0:
            yield source
            return
        outputs = [
            Path(self._script.place),
            *([self._info.tensorboard_dir] if self._info.tensorboard_dir else []),
        ]
        with tempfile.TemporaryDirectory(prefix="det-code-") as scratch:
            try:
                copy_code(source, Path(scratch), _CODE_BYTES, outputs)
            except DetError as error:
                warnings.warn(f"the checkpoints of this run hold no code: {error}", stacklevel=1)
                yield None
                return
            yield Path(scratch)

    def _result(self, stop: Stop, adapter: _Recorded) -> FitResult:
        history, best = self.history, self.history.best
        return FitResult(
            stop=stop,
            batches=adapter.batches,
            reports=list(history.reports),
            checkpoints=list(history.checkpoints),
            best=best,
            best_metric=history.metric,
            best_value=history.value_at(best.batches) if best else None,
        )

    def _conclude(self, recorder: Recorder, result: FitResult, seconds: float) -> None:
        """Print how training ended and how to continue."""
        words = {Stop.COMPLETED: "complete", Stop.PREEMPTED: "interrupted"}
        recorder.say(
            f"{words.get(result.stop, result.stop.value)} at batch {result.batches} after"
            f" {seconds:.1f} s"
        )
        if result.best is not None:
            value = (
                f" ({result.best_metric} {result.best_value:.5g})"
                if result.best_value is not None
                else ""
            )
            recorder.say(f"best checkpoint{value}: {short(result.best.path)}")
        if (
            result.stop is Stop.PREEMPTED
            and result.latest is not None
            and self._script.session is None
        ):
            recorder.say(
                f"go on with: trainer.fit(..., latest_checkpoint={short(result.latest.path)!r})"
            )


class _Recorded(TorchAdapter):
    """Writes the history of the run into each of its checkpoints."""

    history: History
    check_first: bool

    def train(self, loop: Loop) -> None:
        """Train. Before the first batch, with `check_first`, save to a directory that is deleted.

        So state that cannot be saved is found before hours of training. No checkpoint is stored,
        and the callbacks' hooks of checkpoints are not called.
        """
        if self.check_first and not loop.done:
            # In on_training_start, callbacks may set what they save.
            self._start()
            with tempfile.TemporaryDirectory(prefix="det-check-") as scratch, untouched_rng():
                contents = self._contents(Path(scratch))
                if self.context.distributed.rank == 0:
                    state.save(contents, Path(scratch))
        super().train(loop)

    def save(self, path: Path) -> None:
        super().save(path)
        # Only the chief receives reports.
        if self.context.distributed.rank == 0:
            self.history.write(path)

    def snapshot(self) -> Callable[[Path], None] | None:
        write, history = super().snapshot(), self.history.text()
        if write is None:
            return None

        def both(path: Path) -> None:
            write(path)
            (path / HISTORY).write_text(history)

        return both

    @property
    def batches(self) -> int:
        """Batches trained since the trial's first batch."""
        return self._position


class _Steps:
    """The number of batches done, in the form that the profiler needs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def completed(self) -> int:
        return self._recorder.batches


def _announce_stop(number: signal.Signals) -> None:
    if number == signal.SIGINT:
        sys.stderr.write(
            "\ndet: stopping after this batch, to save; press Ctrl-C again to end at once\n"
        )


@contextmanager
def _profiled(recorder: Recorder, info: RunInfo) -> Iterator[None]:
    """Report the load of the machine in the group `system`."""
    from det_core.core import ProfilerContext

    steps: Any = _Steps(recorder)
    profiler = ProfilerContext(recorder, steps, info.distributed.local_rank)
    profiler.on()
    try:
        yield
    finally:
        profiler.off()
