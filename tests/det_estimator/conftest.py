"""Runs of tiny trials, in this process, with real checkpoints in a real directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab import EACH_BATCH, Host, Ran

from det_core import CheckpointSink, DistributedContext, Plugins, RunInfo, Schedule, run_trial
from det_core.checkpoint import read_checkpoint
from det_core.config import parse
from det_core.storage import LocalStorage
from det_estimator._imports import installed, problem_with

ANYWHERE = {"test_versions.py"}

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
logging.getLogger("tensorflow").setLevel(logging.ERROR)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Only what tells of the wrong TensorFlow can be tested with the wrong TensorFlow."""
    import sys

    if collection_path.suffix == ".py" and collection_path.name not in ANYWHERE:
        return True if problem_with(installed(), sys.version_info[:2]) else None
    return None


class Lab:
    """Runs trial classes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plugins = Plugins.installed(strict=True)
        self.storage = LocalStorage(root / "checkpoints")
        self.framework = self.plugins.frameworks()["estimator"]

    def __call__(
        self,
        trial: type,
        length: int,
        /,
        *,
        schedule: Schedule = EACH_BATCH,
        preempt_at: int | None = None,
        **info: Any,
    ) -> Ran:
        """Train to a length in batches."""
        host, keep = Host(length, preempt_at), CheckpointSink(storage=self.storage)
        run = self.info(**info)
        stop = run_trial(self.framework, trial, run, host, keep, schedule=lambda adapter: schedule)
        return Ran(stop, host)

    def info(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        hparams: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> RunInfo:
        """Return a run with these hyperparameters and settings."""
        facts = {"seed": 1, "trial_id": 1, "tensorboard_dir": self.root / "tensorboard"}
        defaults = {**facts, "distributed": DistributedContext()}
        return RunInfo(
            config=parse({"entrypoint": "model_def:Trial", **(config or {})}).config,
            hparams={"global_batch_size": 2} if hparams is None else hparams,
            build=self.plugins.build("estimator"),
            **{**defaults, **more},
        )

    @contextmanager
    def adapter(self, trial: type, **info: Any) -> Iterator[Any]:
        """Give an adapter that has not trained, and close it."""
        with closing(self.framework.load().create(trial, self.info(**info))) as adapter:
            yield adapter

    @contextmanager
    def opened(self, uuid: str) -> Iterator[Path]:
        """Give the directory of a checkpoint."""
        with read_checkpoint(self.storage, uuid) as (path, _):
            yield path

    def variables(self, uuid: str) -> dict[str, Any]:
        """Return the variables of a checkpoint, read by TensorFlow alone."""
        import tensorflow as tf

        with self.opened(uuid) as path:
            reader = tf.train.load_checkpoint(str(path))
            return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
