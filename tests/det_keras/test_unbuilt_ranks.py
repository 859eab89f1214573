"""A model that gets its shape from the first batch, on two ranks.

One of them has nothing to validate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.det_keras import lazy, models

from det_testing._play import Cast, Request, play


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.process
def test_rank_without_validation_records_builds_the_same_model(tmp_path: Path) -> None:
    """It is resumed, too; both ranks report the one record, as the trained weights have it."""
    cast = Cast(
        trial=lazy.OneRecord, framework="keras", hooks="det_keras._hooks", backend="collectives"
    )
    hparams = {"global_batch_size": models.BATCH}
    requests = [
        Request(name="whole", length=4, save_at=[2], hparams=hparams),
        Request(name="resumed", length=4, behind=("whole", 2), hparams=hparams),
    ]
    chief, other = play(cast, requests, tmp_path)
    assert not any(run.error for runs in (chief, other) for run in runs.values())
    assert np.isfinite(chief["whole"].validations[4]["val_loss"])
    assert chief["resumed"].validations[4] == chief["whole"].validations[4]
