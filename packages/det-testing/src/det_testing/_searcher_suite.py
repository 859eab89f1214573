"""Tests of any searcher."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from det_core.errors import MetricError
from det_driver.search import Create, Exit, Searcher, Shutdown, Train

from ._search_play import Play, give, reported
from ._suite import Suite

Make = Callable[[int], Searcher]
_MOMENTS = 40


class SearcherSuite(Suite):
    """Tests of a searcher. Inherit it, and give a function that makes your searcher from a seed.

    Its settings should make a search of ten to a few hundred trials, with at least one range of a
    hyperparameter.
    """

    @pytest.fixture
    def make_searcher(self) -> Make:
        """Return a function from a seed to a new searcher that has not started."""
        raise NotImplementedError(
            "override `make_searcher`: return a function that makes your searcher from a seed"
        )

    def test_it_starts_with_a_trial_to_train(self, make_searcher: Make) -> None:
        """A search in which nothing runs would never end."""
        operations = make_searcher(0).start()
        created = {operation.trial for operation in operations if isinstance(operation, Create)}
        assert created & {
            operation.trial for operation in operations if isinstance(operation, Train)
        }

    def test_it_closes_every_trial_and_shuts_down(self, make_searcher: Make) -> None:
        """Trials report in any order. The contract is checked at every step."""
        for seed in range(5):
            play = Play(make_searcher(seed), seed).finish()
            assert not play.ledger.open
            assert play.ledger.ended == play.ledger.created
            assert play.over == Shutdown()

    def test_hyperparameters_are_plain(self, make_searcher: Make) -> None:
        """They are stored and sent to other processes as JSON."""
        for create in Play(make_searcher(0)).finish().created:
            assert json.loads(json.dumps(create.hparams, allow_nan=False)) == create.hparams

    def test_the_same_seed_makes_the_same_search(self, make_searcher: Make) -> None:
        """Equal events give equal operations, bit for bit."""
        first, second = (Play(make_searcher(7), 1).finish() for _ in range(2))
        assert first.operations == second.operations

    def test_another_seed_makes_other_trials(self, make_searcher: Make) -> None:
        """At least the seeds of the trials differ."""
        first, second = (Play(make_searcher(seed), 1).finish() for seed in (7, 8))
        assert [create.seed for create in first.created] != [
            create.seed for create in second.created
        ]

    def test_trials_have_seeds_of_their_own(self, make_searcher: Make) -> None:
        """Two trials with the same seed would be the same trial twice."""
        seeds = [create.seed for create in Play(make_searcher(0)).finish().created]
        assert len(set(seeds)) == len(seeds)

    def test_it_leaves_the_randomness_of_others_alone(self, make_searcher: Make) -> None:
        """The user's random numbers and the search do not depend on each other."""
        random.seed(3)
        before = random.getstate()
        first = Play(make_searcher(0)).finish()
        assert random.getstate() == before
        random.seed(4)
        assert Play(make_searcher(0)).finish().operations == first.operations

    def test_the_state_is_json(self, make_searcher: Make) -> None:
        """It is strict JSON at every moment: no NaN, no infinity, nothing that JSON changes."""
        play = Play(make_searcher(0), nan=0.2, faults=0.1)
        _require_state(play.searcher)
        while play.step():
            state = play.searcher.state()
            assert state is not None
            assert json.loads(json.dumps(state, allow_nan=False)) == state

    def test_later_events_leave_a_returned_state_alone(self, make_searcher: Make) -> None:
        play = Play(make_searcher(0))
        _require_state(play.searcher)
        play.step()
        state = play.searcher.state()
        text = json.dumps(state)
        play.finish()
        assert json.dumps(state) == text

    def test_a_restored_searcher_goes_on_as_the_first(self, make_searcher: Make) -> None:
        """It is restored from any moment, including moments between failures."""
        play = Play(make_searcher(0), faults=0.1, nan=0.1)
        _require_state(play.searcher)
        states = []
        while play.step():
            states.append(json.dumps(play.searcher.state()))
        for moment in _some(len(states)):
            restored = make_searcher(0)
            restored.restore(json.loads(states[moment]))
            for event, wanted in list(zip(play.events, play.operations, strict=True))[moment + 1 :]:
                assert give(restored, event) == wanted
            assert restored.state() == play.searcher.state()

    def test_replaying_any_prefix_gives_the_same_state(self, make_searcher: Make) -> None:
        """A driver that was killed replays its journal.

        A searcher without a state still gives equal operations.
        """
        play = Play(make_searcher(0), faults=0.1, early=0.3)
        states = []
        while play.step():
            states.append(play.searcher.state())
        for moment in _some(len(states)):
            replayed = make_searcher(0)
            for event, wanted in list(zip(play.events, play.operations, strict=True))[: moment + 1]:
                assert give(replayed, event) == wanted
            assert replayed.state() == states[moment]

    def test_late_reports_change_nothing(self, make_searcher: Make) -> None:
        """A closed trial may still have been validating, and an exit may be reported twice."""
        play = Play(make_searcher(0))
        while play.step():
            for trial in set(play.trained) - play.ledger.open.keys():
                state = play.searcher.state()
                assert (
                    play.searcher.validated(trial, 10**6, reported(play.searcher, 0.0, 10**6)) == []
                )
                assert play.searcher.state() == state
        state = play.searcher.state()
        for trial in play.trained:
            assert play.searcher.exited(trial, Exit.ERRORED) == []
        assert play.searcher.state() == state
        assert play.operations == Play(make_searcher(0)).finish().operations

    def test_reports_before_the_asked_length_are_accepted(self, make_searcher: Make) -> None:
        """Trials also validate at their own period."""
        assert Play(make_searcher(0), early=0.5).finish().over == Shutdown()

    def test_it_survives_trials_that_end_early(self, make_searcher: Make) -> None:
        for seed in range(5):
            play = Play(make_searcher(seed), seed, faults=0.3).finish()
            assert play.ledger.ended == play.ledger.created

    @pytest.mark.parametrize("reason", [Exit.ERRORED, Exit.CANCELED])
    def test_it_says_when_every_trial_failed_or_was_cancelled(
        self, make_searcher: Make, reason: Exit
    ) -> None:
        """The experiment's state depends on it."""
        play = Play(make_searcher(0), faults=1.0, reasons=(reason,)).finish()
        assert play.over == Shutdown(
            failed=reason is Exit.ERRORED, cancelled=reason is Exit.CANCELED
        )

    def test_not_a_number_is_survived(self, make_searcher: Make) -> None:
        """NaN is the worst result and not an error, even if every trial reports it."""
        for share in (0.3, 1.0):
            assert Play(make_searcher(0), nan=share).finish().over == Shutdown()

    def test_a_missing_metric_is_an_error_that_names_those_present(
        self, make_searcher: Make
    ) -> None:
        """A misspelt `searcher.metric` is an error at the first report, which changes no state."""
        searcher, trial, until = _first(make_searcher)
        state = searcher.state()
        with pytest.raises(MetricError, match=rf"{searcher.metric}.*accuracy, f1"):
            searcher.validated(trial, until, {"f1": 0.5, "accuracy": 0.5})
        assert searcher.state() == state

    @pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
    def test_a_metric_that_is_no_number_is_an_error(self, make_searcher: Make, value: Any) -> None:
        searcher, trial, until = _first(make_searcher)
        metrics = reported(searcher, 0.0, until) | {str(searcher.metric): value}
        with pytest.raises(MetricError, match=str(searcher.metric)):
            searcher.validated(trial, until, metrics)

    def test_progress_goes_from_zero_to_one(self, make_searcher: Make) -> None:
        """It is always a fraction, even if trials report nonsense about their own progress."""
        play = Play(make_searcher(0), faults=0.1)
        while play.step():
            for done in (0.0, 0.5, 1.0, float("nan"), float("inf")):
                progress = play.searcher.progress(dict.fromkeys(play.ledger.open, done))
                assert 0 <= progress <= 1
        assert play.searcher.progress({}) == 1


def _require_state(searcher: Searcher) -> None:
    if searcher.state() is None:
        pytest.skip("it keeps no state")


def _some(count: int) -> range:
    """Return evenly spread moments, including the last one."""
    return range(count - 1, -1, -max(count // _MOMENTS, 1))


def _first(make_searcher: Make) -> tuple[Searcher, int, int]:
    """Return a searcher that has started, its first trial, and that trial's target."""
    searcher = make_searcher(0)
    if searcher.metric is None:
        pytest.skip("it reads no metric")
    train = next(operation for operation in searcher.start() if isinstance(operation, Train))
    return searcher, train.trial, train.until or 1
