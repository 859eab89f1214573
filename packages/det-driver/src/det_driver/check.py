"""Try out a trial in this process: train one batch, validate one, save and restore."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_core.config import ExperimentConfig, is_trial_entrypoint
from det_core.hooks import Plugins
from det_core.ranks.distributed import DistributedContext
from det_core.storage import LocalStorage, readable
from det_core.train.adapter import RunInfo
from det_core.train.entrypoint import load_trial
from det_core.train.host import Target
from det_core.train.local import LocalHost
from det_core.train.metrics import brief
from det_core.train.run import length_of, run_trial
from det_core.train.saving import CheckpointSink
from det_core.train.schedule import Every, Schedule
from det_node.first_check import check

from .driver import searcher_of
from .search import Create


def check_trial(
    config: ExperimentConfig, code_dir: Path, plugins: Plugins, scratch: Path
) -> Iterator[str]:
    """Yield a line for each successful step. Errors of the trial propagate."""
    hparams, seed = first_choice(config, plugins, code_dir)
    if not is_trial_entrypoint(config.entrypoint or ""):
        yield f"the entrypoint is a script, {config.entrypoint!r}: nothing more to check"
        return
    trial = load_trial(str(config.entrypoint), code_dir)
    framework = plugins.framework_of(trial)
    yield f"{config.entrypoint} is a trial of the framework {framework.name}"
    info = RunInfo(
        config=config,
        hparams=hparams,
        seed=seed,
        build=plugins.build(framework.name),
        distributed=DistributedContext(),
        length=length_of(config),
        tensorboard_dir=scratch / "tensorboard",
        quick=True,
    )
    keep = CheckpointSink(storage=LocalStorage(scratch / "checkpoints"))
    metric = config.searcher.metric if config.searcher else None
    schedule = Schedule(report=Every(1), policy="none", metric=metric)
    host = LocalHost(Target(n=1), metric=metric)
    run_trial(framework, trial, info, host, keep, schedule=lambda adapter: schedule)
    for group, batches, metrics in host.history:
        shown = "  ".join(
            f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={brief(v)}"
            for k, v in metrics.items()
        )
        yield f"{group} at batch {batches}: {shown}"
    manifest, _ = host.checkpoints[-1]
    yield f"saved a checkpoint of {readable(sum(f.size for f in manifest.files.values()))}"
    again = LocalHost(Target(n=2), metric=metric)
    run_trial(
        framework,
        trial,
        replace(info, checkpoint=manifest.uuid),
        again,
        keep,
        schedule=lambda adapter: schedule,
    )
    yield "restored it and trained on"
    for notice in check(framework, trial, info, scratch / "first"):
        yield f"notice: {notice}"


def first_choice(
    config: ExperimentConfig, plugins: Plugins, code_dir: Path
) -> tuple[dict[str, Any], int]:
    """Return the hyperparameters and the seed of the search's first trial.

    Raises the DetError with which a driver would refuse the searcher.
    """
    operations = searcher_of(config, plugins, code_dir).start()
    first = next(operation for operation in operations if isinstance(operation, Create))
    return first.hparams, first.seed
