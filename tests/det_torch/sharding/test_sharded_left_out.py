"""Two ranks notice each item that a checkpoint of a divided model leaves out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.det_torch.test_strict_suite_finds import in_file, moments, schedule, tensor, without
from tests.support.left_out import noticed_on_two_ranks

from det_core import Plugins
from det_testing import Runs
from det_testing._play import Cast
from det_torch.testing import contents

pytestmark = [pytest.mark.process, pytest.mark.thorough]

HERE = Path(__file__).parent
LENGTH, AT = 6, 4
"""Gradients of one batch wait, of the three that make a step."""


def steps(saved: dict[str, Any]) -> None:
    for each in saved["optimizers_state_dict"][0]["state"].values():
        each["step"] = torch.zeros_like(each["step"])


def generators(saved: dict[str, Any]) -> None:
    """Leave out those of each rank, and those that a rank without its own takes."""
    del saved["rank_rng_states"], saved["rng_state"]


FAULTS = {
    "nothing": lambda saved: None,
    "weights": tensor("head.weight", 0.0),
    "statistics of the normalization": tensor("norm.running_mean", 0.0),
    "moments of the optimizer": moments(0),
    "steps of the optimizer": steps,
    "the schedule": schedule(0),
    "the scaler": without("scaler_state_dict"),
    "gradients that wait": without("gradients"),
    "the generators": generators,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    sys.path.append(str(HERE))
    from sharded_trials import SingleTrial

    folder = tmp_path_factory.mktemp("ranks")
    cast = Cast(trial=SingleTrial, framework="torch", hooks="det_torch._hooks", backend="torch")
    run = Runs(Plugins.installed(strict=True), SingleTrial, folder)
    faults = {name: in_file(fault) for name, fault in FAULTS.items()}
    settings = {
        "hparams": {"global_batch_size": 64, "dropout": 0.2},
        "optimizations": {"sharding": "fsdp", "precision": "fp16", "aggregation_frequency": 3},
    }
    yield noticed_on_two_ranks(run, cast, AT, LENGTH, contents, faults, folder, **settings)
    sys.path.remove(str(HERE))


@pytest.mark.parametrize("fault", FAULTS)
def test_an_item_that_is_left_out_of_a_divided_model_is_found(
    found: dict[str, list[str]], fault: str
) -> None:
    assert bool(found[fault]) == (fault != "nothing"), found[fault]
