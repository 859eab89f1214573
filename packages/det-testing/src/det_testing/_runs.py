"""Runs the one-weight trial by det-core's public functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from det_core.config import Length, parse
from det_core.hooks import Plugins
from det_core.hooks.records import Framework
from det_core.ranks.backend import BackendRecord
from det_core.ranks.distributed import DistributedContext
from det_core.storage import LocalStorage
from det_core.train.adapter import Adapter, RunInfo, Stop
from det_core.train.host import Flag, Target
from det_core.train.local import LocalHost
from det_core.train.run import run_trial
from det_core.train.saving import CheckpointSink
from det_core.train.schedule import NEVER, Every, Schedule

EACH_BATCH = Schedule(report=Every(1), policy="none")


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a run: why it stopped, reports by position, checkpoints, or an error."""

    stop: Stop
    reports: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    validations: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    checkpoints: Mapping[int, str] = field(default_factory=dict)
    events: Sequence[tuple[str, int]] = ()
    error: str = ""

    @property
    def losses(self) -> dict[int, float]:
        return {batches: metrics["loss"] for batches, metrics in self.reports.items()}

    @property
    def weight(self) -> float:
        """The weight at the last validation."""
        weight: float = self.validations[max(self.validations)]["weight"]
        return weight


@dataclass(frozen=True)
class _Interrupting(Every):
    """A period at one of whose batches a run is preempted, although nothing may be due there."""

    at: int
    flag: Flag

    def after(self, done: int) -> int:
        return min(super().after(done), self.at if done < self.at else NEVER)

    def due(self, done: int) -> bool:
        if done == self.at:
            self.flag.raised = True
        return super().due(done)


class KitHost(LocalHost):
    """A driver in memory. It preempts at a report, and raises its target when one is reached."""

    def __init__(self, lengths: Sequence[int | None], preempt_at: int | None = None) -> None:
        super().__init__(Target(n=lengths[0]), metric="val_loss")
        self.events: list[tuple[str, int]] = []
        self._lengths, self._preempt_at = list(lengths), preempt_at

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self.events.append((group, batches))
        super().report(group, batches, metrics)
        if batches == self._preempt_at:
            self.preempted.raised = True

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        target = super().validated(batches, metrics, length)
        if length is not None and len(self._lengths) > 1:
            self._lengths.pop(0)
        return Target(n=self._lengths[0], best=target.best)

    def checkpointed(self, manifest: Any, storage: str) -> None:
        self.events.append(("checkpoint", manifest.batches))
        super().checkpointed(manifest, storage)


class Runs:
    """Runs one trial class in this process, with checkpoints below `root`.

    On several ranks, `distributed` connects the ranks, and `backend` reduces their gradients.
    """

    def __init__(
        self,
        plugins: Plugins,
        trial: type,
        root: Path,
        *,
        distributed: DistributedContext | None = None,
        backend: BackendRecord | None = None,
    ) -> None:
        self._distributed, self._backend = distributed or DistributedContext(), backend
        self.framework = plugins.framework_of(trial)
        self.storage = LocalStorage(root / "checkpoints")
        self._plugins, self._trial, self._root = plugins, trial, root

    def __call__(
        self,
        *lengths: int | None,
        schedule: Schedule = EACH_BATCH,
        checkpoint: str | None = None,
        preempt_at: int | None = None,
        seed: int = 1,
        aggregation: int = 1,
        optimizations: Mapping[str, Any] | None = None,
        framework: Framework | None = None,
        **hparams: Any,
    ) -> Run:
        """Train until each of `lengths` in turn. The trial knows the last one as its length.

        `preempt_at` need not be a position of a report.
        """
        host = KitHost(lengths, preempt_at)
        if preempt_at is not None and isinstance(schedule.report, Every):
            period = _Interrupting(schedule.report.batches, preempt_at, host.preempted)
            schedule = replace(schedule, report=period)
        info = self.info(
            seed=seed,
            aggregation=aggregation,
            optimizations=optimizations,
            length=lengths[-1] or 10,
            **hparams,
        )
        stop = run_trial(
            framework or self.framework,
            self._trial,
            replace(info, checkpoint=checkpoint),
            host,
            CheckpointSink(storage=self.storage),
            schedule=lambda adapter: schedule,
        )
        return Run(
            stop=stop,
            reports={
                batches: metrics for group, batches, metrics in host.history if group == "training"
            },
            validations={
                batches: metrics
                for group, batches, metrics in host.history
                if group == "validation"
            },
            checkpoints={manifest.batches: manifest.uuid for manifest, _ in host.checkpoints},
            events=host.events,
        )

    def of(self, trial: type) -> Runs:
        """Return an object that runs another trial class in the same way.

        It shares the checkpoints.
        """
        return Runs(
            self._plugins, trial, self._root, distributed=self._distributed, backend=self._backend
        )

    def info(
        self,
        *,
        seed: int = 1,
        aggregation: int = 1,
        optimizations: Mapping[str, Any] | None = None,
        length: int = 10,
        **hparams: Any,
    ) -> RunInfo:
        """Return the information that an adapter gets about a run with these hyperparameters."""
        hparams = {
            "lr": 0.03,
            "batches_per_epoch": 5,
            "global_batch_size": 2,
            "noise": 0.0,
            "shuffle": False,
        } | hparams
        config = {
            "name": "one weight",
            "entrypoint": f"{self._trial.__module__}:{self._trial.__qualname__}",
            "hyperparameters": hparams,
            "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": length}},
            "optimizations": {"aggregation_frequency": aggregation, **(optimizations or {})},
        }
        return RunInfo(
            config=parse(config).config,
            hparams=hparams,
            seed=seed,
            build=self._plugins.build(self.framework.name),
            distributed=self._distributed,
            slots=self._distributed.size,
            backend=self._backend,
            trial_id=1,
            length=Length("batches", length),
            tensorboard_dir=self._root / "tensorboard",
        )

    @contextmanager
    def adapter(self, **hparams: Any) -> Iterator[Adapter[Any]]:
        """Yield an adapter that has not trained, and close it."""
        with closing(self.framework.load().create(self._trial, self.info(**hparams))) as adapter:
            yield adapter
