"""Runs of tiny trials, in this process, with real checkpoints in a real directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.lab import EACH_BATCH, Host, Ran

from det_core import CheckpointSink, DistributedContext, Plugins, RunInfo, Schedule, run_trial
from det_core.checkpoint import read_checkpoint
from det_core.config import parse
from det_core.storage import LocalStorage
from det_torch.adapter import TorchAdapter
from det_torch.context import PyTorchTrialContext


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds, as it compiles")


class Lab:
    """Runs trial classes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plugins = Plugins.installed(strict=True)
        self.storage = LocalStorage(root / "checkpoints")
        self.host: Host  # of the run that is going on, or was the last

    def __call__(
        self,
        trial: type,
        length: int,
        *,
        schedule: Schedule = EACH_BATCH,
        preempt_at: int | None = None,
        **info: Any,
    ) -> Ran:
        """Train to a length in batches."""
        host = self.host = Host(length, preempt_at)
        framework, keep = self.plugins.frameworks()["torch"], CheckpointSink(storage=self.storage)
        stop = run_trial(
            framework, trial, self.info(**info), host, keep, schedule=lambda adapter: schedule
        )
        return Ran(stop, host)

    def info(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        hparams: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> RunInfo:
        """Return a run with these hyperparameters and settings."""
        defaults = {"seed": 1, "trial_id": 1, "tensorboard_dir": self.root / "tensorboard"}
        return RunInfo(
            config=parse({"entrypoint": "model_def:Trial", **(config or {})}).config,
            hparams={"global_batch_size": 2} if hparams is None else hparams,
            build=self.plugins.build("torch"),
            distributed=DistributedContext(),
            **{**defaults, **more},
        )

    def context(self, **info: Any) -> PyTorchTrialContext:
        """Return a context on the CPU."""
        return PyTorchTrialContext(self.info(**info), torch.device("cpu"))

    @contextmanager
    def adapter(self, trial: type, **info: Any) -> Iterator[TorchAdapter]:
        """Give an adapter that has not trained, and close it."""
        with closing(TorchAdapter.create(trial, self.info(**info))) as adapter:
            yield adapter

    def contents(self, uuid: str) -> dict[str, Any]:
        """Return what a checkpoint holds, read with torch alone."""
        with read_checkpoint(self.storage, uuid) as (path, _):
            contents: dict[str, Any] = torch.load(path / "state_dict.pth", weights_only=True)
        return contents


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
