"""What is wrong with an adapter, the suite finds: each fault here is expected to fail, strictly."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from det_core import Framework, Loop, Plugins, RunInfo, hookimpl
from det_testing import AdapterSuite, fake_hooks, fakes

RESUMES = dict.fromkeys(
    (
        "test_a_preempted_run_saves_and_stops",
        "test_resumes_at_a_boundary",
        "test_resumes_at_an_epochs_last_batch",
        "test_resumes_before_an_epochs_last_batch",
        "test_resumes_between_aggregated_gradients",
        "test_resumes_within_an_epoch",
    ),
    "planted",
)


class Faulty(AdapterSuite):
    """A suite for an adapter with one fault."""

    __test__ = False
    adapter: ClassVar[type[fakes.OwnedAdapter]] = fakes.OwnedAdapter
    tensors = ""

    @pytest.fixture
    def plugins(self) -> Plugins:
        adapter, tensors = self.adapter, self.tensors

        class Hooks:
            @hookimpl
            def det_frameworks(self) -> Iterator[Framework]:
                yield Framework(
                    name="faulty",
                    trial="det_testing:OwnedTrial",
                    load=lambda: adapter,
                    capabilities=frozenset({"aggregation"}),
                    tensors=tensors,
                )

            det_build_model = staticmethod(fake_hooks.det_build_model)
            det_build_data_loader = staticmethod(fake_hooks.det_build_data_loader)

        plugins = Plugins(strict=True)
        plugins.register(Hooks(), "faulty")
        return plugins

    @pytest.fixture
    def trial(self) -> type:
        return fakes.OwnedOneVar

    @pytest.fixture
    def hooks(self) -> str:
        return fake_hooks.__name__


class ForgetsRandomNumbers(fakes.OwnedAdapter):
    def load(self, path: Path) -> None:
        before = self.training.random.getstate()
        super().load(path)
        self.training.random.setstate(before)


class TestForgetsRandomNumbers(Faulty):
    __test__ = True
    adapter = ForgetsRandomNumbers
    expected_failures = RESUMES


class ForgetsGradients(fakes.OwnedAdapter):
    def load(self, path: Path) -> None:
        super().load(path)
        self.training.model.gradients = []


class TestForgetsGradients(Faulty):
    __test__ = True
    adapter = ForgetsGradients
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_resumes_between_aggregated_gradients": "planted"
    }


class ReadsDataFromItsBeginning(fakes.OwnedAdapter):
    def train(self, loop: Loop) -> None:
        for number in loop.batches(range(100)):
            loop.step(self.training.batch(number))


class TestReadsDataFromItsBeginning(Faulty):
    __test__ = True
    adapter = ReadsDataFromItsBeginning
    expected_failures = RESUMES


class RepeatsABatch(fakes.OwnedAdapter):
    """As Lightning's callback does: the position that it saves lags behind."""

    def train(self, loop: Loop) -> None:
        for number in loop.batches(count(max(0, loop.done - 1))):
            loop.step(self.training.batch(number))


class TestRepeatsABatch(Faulty):
    __test__ = True
    adapter = RepeatsABatch
    expected_failures = RESUMES


class ValidatesWithNoise(fakes.OwnedAdapter):
    def validate(self) -> Any:
        self.training.random.random()
        return super().validate()


class TestValidatesWithNoise(Faulty):
    __test__ = True
    adapter = ValidatesWithNoise
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_validation_changes_no_weight_and_no_rng": "planted"
    }


class SavesWithNoise(fakes.OwnedAdapter):
    def save(self, path: Path) -> None:
        super().save(path)
        self.training.random.random()


class TestSavesWithNoise(Faulty):
    __test__ = True
    adapter = SavesWithNoise
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_saving_changes_no_weight_and_no_rng": "planted",
        **{k: v for k, v in RESUMES.items() if k != "test_a_preempted_run_saves_and_stops"},
    }


class Unseeded(fakes.OwnedAdapter):
    @classmethod
    def create(cls, trial: Any, run: RunInfo) -> Any:
        adapter = super().create(trial, run)
        adapter.training.random = random.Random()
        return adapter


class TestUnseeded(Faulty):
    __test__ = True
    adapter = Unseeded
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_same_seed_same_losses": "planted",
        "test_validation_changes_no_weight_and_no_rng": "planted",
        "test_saving_changes_no_weight_and_no_rng": "planted",
        "test_a_preempted_run_saves_and_stops": "planted",
    }


class SeededAlike(fakes.OwnedAdapter):
    @classmethod
    def create(cls, trial: Any, run: RunInfo) -> Any:
        adapter = super().create(trial, run)
        adapter.training.random = random.Random(0)
        return adapter


class TestSeededAlike(Faulty):
    __test__ = True
    adapter = SeededAlike
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_another_seed_gives_other_losses": "planted"
    }


class LeaksAThread(fakes.OwnedAdapter):
    def close(self) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class LeaksAFile(fakes.OwnedAdapter):
    def close(self) -> None:
        Path(tempfile.mkdtemp(), "left").touch()


class LeaksADescriptor(fakes.OwnedAdapter):
    def close(self) -> None:
        os.open(os.devnull, os.O_RDONLY)


class TestLeaksAThread(Faulty):
    __test__ = True
    adapter = LeaksAThread
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_close_leaves_no_thread_process_or_file_behind": "planted"
    }


class TestLeaksAFile(Faulty):
    __test__ = True
    adapter = LeaksAFile
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_close_leaves_no_thread_process_or_file_behind": "planted"
    }


class TestLeaksADescriptor(Faulty):
    __test__ = True
    adapter = LeaksADescriptor
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_close_leaves_no_thread_process_or_file_behind": "planted"
    }


class KeepsMetricsOnTheDevice(fakes.OwnedAdapter):
    def numbers(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
        return [{name: Odd(value.item()) for name, value in row.items()} for row in rows]

    def reported(
        self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]
    ) -> Mapping[str, Any]:
        return {**metrics, "device": object()}


class Odd(float):
    """A float that no encoder knows."""


class TestKeepsMetricsOnTheDevice(Faulty):
    __test__ = True
    adapter = KeepsMetricsOnTheDevice
    expected_failures: ClassVar[Mapping[str, str]] = {"test_metrics_are_plain_numbers": "planted"}


VERIFIES = {"test_verify_compares_what_decides_how_training_goes_on": "planted"}


def no_tensors(path: Path) -> dict[str, Any]:
    return {}


def tensors_with_the_time(path: Path) -> dict[str, Any]:
    return {"time": time.time_ns()}


class TestVerifiesNothing(Faulty):
    __test__ = True
    tensors = f"{__name__}.no_tensors"
    expected_failures = VERIFIES


class TestVerifiesTheTime(Faulty):
    __test__ = True
    tensors = f"{__name__}.tensors_with_the_time"
    expected_failures = VERIFIES
