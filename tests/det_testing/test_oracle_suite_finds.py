"""What is wrong with an adapter at both ends of training, or on two ranks, the suite finds.

Each fault fails, strictly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from tests.det_testing import faulty_hooks, variants

from det_core import Plugins
from det_testing import AdapterSuite

FINISHED = "test_end_hooks_change_only_the_last_report_and_checkpoint"
ALONE = "test_trains_as_the_framework_alone"
EVALUATED = "test_a_report_is_what_the_checkpoint_evaluates_to"
EVALUATED_ON_TWO = "test_two_ranks_report_what_the_checkpoint_evaluates_to[native]"
VALIDATED_ON_TWO = "test_two_ranks_validate_every_record_once[native]"
ON_TWO = "test_two_ranks_train_a_variant_as_one_would"


def planted(*tests: str) -> Mapping[str, str]:
    return dict.fromkeys(tests, "planted")


class Faulty(AdapterSuite):
    """A suite for an adapter with one fault, on one rank and on two."""

    __test__ = False
    fault: ClassVar[str]

    @pytest.fixture
    def plugins(self, monkeypatch: pytest.MonkeyPatch) -> Plugins:
        monkeypatch.setenv("PLANTED", self.fault)
        plugins = Plugins(strict=True)
        plugins.register(faulty_hooks, "faulty")
        return plugins

    @pytest.fixture
    def hooks(self) -> str:
        return faulty_hooks.__name__

    @pytest.fixture
    def trial(self) -> type:
        return variants.RealTrial

    @pytest.fixture
    def variants(self) -> dict[str, type]:
        return variants.OF_FAKES

    @pytest.fixture
    def evaluate(self) -> Any:
        return variants.evaluate

    @pytest.fixture
    def plain(self) -> Any:
        return variants.plain


class TestReal(Faulty):
    """Without a fault."""

    __test__ = True
    fault = "RealAdapter"


class TestDriftingStatistics(Faulty):
    __test__ = True
    fault = "DriftingStatistics"
    expected_failures = planted(EVALUATED_ON_TWO)


class TestShortRankValidatesAgain(Faulty):
    __test__ = True
    fault = "ShortRankValidatesAgain"
    expected_failures = planted(VALIDATED_ON_TWO)


class TestValidatesTheFirstBatch(Faulty):
    __test__ = True
    fault = "ValidatesTheFirstBatch"
    expected_failures = planted(
        "test_losses_have_their_closed_form", VALIDATED_ON_TWO, EVALUATED_ON_TWO
    )


class TestShardsAgain(Faulty):
    __test__ = True
    fault = "ShardsAgain"
    expected_failures = planted(f"{ON_TWO}[native-sharded]")


class TestReadsAStreamOnEachRank(Faulty):
    __test__ = True
    fault = "ReadsAStreamOnEachRank"
    expected_failures = planted(f"{ON_TWO}[native-streamed]")


class TestNeverFinishes(Faulty):
    __test__ = True
    fault = "NeverFinishes"
    expected_failures = planted(FINISHED, f"{ALONE}[finishing]", f"{ON_TWO}[native-finishing]")


class TestFinishesBeforeEachSave(Faulty):
    __test__ = True
    fault = "FinishesBeforeEachSave"
    expected_failures = planted(FINISHED)


class TestFinishesNoRunThatGoesOn(Faulty):
    __test__ = True
    fault = "FinishesNoRunThatGoesOn"
    expected_failures = planted(f"{FINISHED}[5]", f"{FINISHED}[8]")


class TestKnowsNoLength(Faulty):
    __test__ = True
    fault = "KnowsNoLength"
    expected_failures = planted(
        "test_a_schedule_is_made_from_the_trials_length", f"{ALONE}[scheduled]"
    )


class TestComparesNoWeights(Faulty):
    __test__ = True
    fault = "ComparesNoWeights"
    expected_failures = planted(f"{ON_TWO}[native-bypassing]")


class TestSavesAnotherWeight(Faulty):
    __test__ = True
    fault = "SavesAnotherWeight"
    expected_failures = planted(EVALUATED, EVALUATED_ON_TWO)


class TestTrainsAlmostAlike(Faulty):
    __test__ = True
    fault = "TrainsAlmostAlike"
    expected_failures = planted(ALONE)
