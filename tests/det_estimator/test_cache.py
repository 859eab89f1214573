"""Datasets that are kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.det_estimator.trials import Line

from det_core import At, Every, Schedule, TrialError


@pytest.fixture
def cached(lab: Any, tmp_path: Path) -> Any:
    """A trial whose datasets are cached, and how often its records were made."""
    made: list[str] = []

    class Cached(Line):
        version = "1"

        def training_data(self) -> Any:
            cache = self.context.experimental.cache_train_dataset(
                "line", self.version, shuffle=True, directory=tmp_path / "cache"
            )

            @cache
            def records() -> Any:
                made.append("training")
                return tf.data.Dataset.from_tensor_slices(list(self.xs)).map(lambda x: x + 0)

            return records().batch(self.context.get_per_slot_batch_size())

        def validation_data(self) -> Any:
            cache = self.context.experimental.cache_validation_dataset(
                "validation", "1", directory=tmp_path / "cache"
            )
            return cache(lambda: tf.data.Dataset.from_tensor_slices(list(self.xs)))().batch(4)

    return Cached, made


def test_a_cached_run_trains_validates_and_resumes_exactly(
    lab: Any, cached: Any, tmp_path: Path
) -> None:
    trial, _ = cached
    schedule = Schedule(report=Every(1), checkpoint=At({5}), policy="none")
    whole = lab(trial, 11, schedule=schedule)
    again = lab(trial, 11, schedule=schedule, checkpoint=whole.checkpoints[5])
    assert again.losses == {n: loss for n, loss in whole.losses.items() if n > 5}
    assert again.validation[11] == whole.validation[11]
    assert whole.training[4]["epochs"] == 1
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["line", "validation"]


def test_an_epoch_holds_every_record_once(lab: Any, cached: Any) -> None:
    trial, _ = cached
    losses = lab(type("Still", (trial,), {"rate": 0.0}), 8).losses
    mean = sum(x * x for x in Line.xs) / 8
    assert sum(losses[n] for n in range(1, 5)) / 4 == pytest.approx(mean)
    assert sum(losses[n] for n in range(5, 9)) / 4 == pytest.approx(mean)
    assert [losses[n] for n in range(1, 5)] != [losses[n] for n in range(5, 9)]


def test_a_second_dataset_of_a_kind_is_refused(lab: Any, tmp_path: Path) -> None:
    class Two(Line):
        def training_data(self) -> Any:
            cache = self.context.experimental.cache_train_dataset
            first = cache("a", "1", directory=tmp_path)(
                lambda: tf.data.Dataset.from_tensor_slices([1.0, 2.0])
            )()
            cache("b", "1", directory=tmp_path)(
                lambda: tf.data.Dataset.from_tensor_slices([3.0, 4.0])
            )()
            return first.batch(2)

    with pytest.raises(
        TrialError, match="cache_train_dataset is used twice; a trial has one dataset of each kind"
    ):
        lab(Two, 1)
