"""Runs of small Keras trials, in this process, with real checkpoints in a real directory."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support.tf_data import disable_autotune

from det_core import DistributedContext, Plugins, RunInfo
from det_core.config import parse
from det_testing import Runs

collect_ignore_glob = [] if find_spec("tensorflow") else ["*"]


@pytest.fixture(scope="session", autouse=True)
def _iterators_tune_nothing() -> None:
    disable_autotune()


@pytest.fixture
def plugins() -> Plugins:
    return Plugins.installed(strict=True)


@pytest.fixture
def runs(plugins: Plugins, tmp_path: Path) -> Callable[[type], Runs]:
    """Give what runs a trial class."""
    return lambda trial: Runs(plugins, trial, tmp_path)


@pytest.fixture
def info(plugins: Plugins, tmp_path: Path) -> Callable[..., RunInfo]:
    """Make what an adapter is told of a run."""

    def make(
        *, config: dict[str, Any] | None = None, hparams: dict[str, Any] | None = None, **more: Any
    ) -> RunInfo:
        facts = {"seed": 1, "trial_id": 1, "tensorboard_dir": tmp_path / "tensorboard"}
        return RunInfo(
            config=parse({"entrypoint": "model_def:Trial", **(config or {})}).config,
            hparams={"global_batch_size": 2} if hparams is None else hparams,
            build=plugins.build("keras"),
            distributed=DistributedContext(),
            **{**facts, **more},
        )

    return make
