"""Two ranks, of which one has nothing to validate, as its share of the data is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.det_keras import lazy, models

from det_keras.adapter import KerasAdapter
from det_keras.optim import variables_of
from det_testing._play import Cast, Request, play


class Built(lazy.OneRecord):
    """With a model that has its weights, while its optimizer has none yet."""

    compiled = staticmethod(models.Line.compiled)


KINDS = pytest.mark.parametrize("trial", [lazy.OneRecord, Built], ids=["unbuilt", "built"])


def shapes(trial: type[Any], info: Any, *, validates: bool) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of what a rank exchanges when training starts.

    Another rank has no records to validate.
    """
    adapter = KerasAdapter.create(trial, info(hparams={"global_batch_size": models.BATCH}))
    if validates:
        # This process is the only rank. Both say whether they have no records.
        both = vars(adapter.context.distributed)
        both["allgather"] = lambda mine: [mine, True] if mine is False else [mine]
    else:
        adapter._evaluation.data = None
    adapter.synchronize()
    parts = {
        "weights": adapter.model.weights,
        "optimizer": [each for one in adapter.context.optimizers for each in variables_of(one)],
        "metrics": [each for metric in adapter.model.metrics for each in metric.variables],
    }
    adapter.close()
    return {name: [tuple(each.shape) for each in found] for name, found in parts.items()}


@KINDS
def test_rank_without_validation_records_has_all_variables(trial: type[Any], info: Any) -> None:
    """Otherwise the ranks exchange lists of different lengths when they start."""
    with_records = shapes(trial, info, validates=True)
    assert len(with_records["weights"]) > 1
    assert len(with_records["metrics"]) > 2
    assert shapes(trial, info, validates=False) == with_records


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.process
@KINDS
def test_ranks_train_where_one_has_no_validation_records(trial: type[Any], tmp_path: Path) -> None:
    """They are resumed, too; both report the one record, as the trained weights have it."""
    cast = Cast(trial=trial, framework="keras", hooks="det_keras._hooks", backend="collectives")
    hparams = {"global_batch_size": models.BATCH}
    requests = [
        Request(name="whole", length=4, save_at=[2], hparams=hparams),
        Request(name="resumed", length=4, behind=("whole", 2), hparams=hparams),
    ]
    chief, other = play(cast, requests, tmp_path)
    assert not any(run.error for runs in (chief, other) for run in runs.values())
    assert np.isfinite(chief["whole"].validations[4]["val_loss"])
    assert chief["resumed"].validations[4] == chief["whole"].validations[4]
