"""Each test of the kit fails for a searcher that breaks its rule, and for no reason but that."""

from __future__ import annotations

import pytest

GOOD = '''
import random

import pytest
from det_core.config import Double
from det_driver.search import TrialFactory, Close, Create, Exit, Objective, Searcher, Shutdown, Train
from det_testing import SearcherSuite as Kit


class Good(Searcher):
    """Ten trials, one after the other; closes each at 10, after a look at 5."""

    metric = "loss"

    def __init__(self, seed):
        self.factory = TrialFactory({"x": Double(minval=0, maxval=1)}, seed)
        self.open, self.exits, self.best = [], [], []

    def start(self):
        return self.next()

    def next(self):
        create = self.factory.create()
        self.open.append(create.trial)
        return [create, Train(create.trial, 5)]

    def validated(self, trial, length, metrics):
        loss = Objective("loss").loss(metrics)
        if trial not in self.open:
            return []
        if length == 5:
            return [Train(trial, 10)]
        if length < 10:
            return []
        self.open.remove(trial)
        self.best = sorted([*self.best, loss])[:3]
        return [Close(trial)]

    def exited(self, trial, reason):
        if len(self.exits) > trial:
            return []
        self.open = []
        self.exits.append(reason.value)
        return self.next() if self.factory.count < 10 else [self.over()]

    def over(self):
        return Shutdown(failed=set(self.exits) == {"errored"}, cancelled=set(self.exits) == {"canceled"})

    def progress(self, trial_progress):
        return len(self.exits) / 10

    def state(self):
        return {"factory": self.factory.state(), "open": [*self.open], "exits": [*self.exits], "best": [*self.best]}

    def restore(self, state):
        self.factory.restore(state["factory"])
        self.open, self.exits, self.best = [*state["open"]], [*state["exits"]], [*state["best"]]


class Suite(Kit):
    pass
'''

BROKEN = {
    "Silent": ("def start(self): return self.next()[:1]", "it_starts_with_a_trial_to_train"),
    "Endless": ("def over(self): return Train(0, 99)", "it_closes_every_trial_and_shuts_down"),
    "Forgetful": (
        "def exited(self, trial, reason): return []",
        "it_closes_every_trial_and_shuts_down",
    ),
    "Shrinking": (
        "def validated(self, trial, length, metrics): return [Train(trial, 5)]",
        "it_closes_every_trial_and_shuts_down",
    ),
    "Fancy": (
        (
            "def next(self): return [Create(trial=(c := self.factory.create({'x': {1, 2}})).trial,"
            " hparams=c.hparams, seed=c.seed), Train(c.trial, 5)]"
        ),
        "hyperparameters_are_plain",
    ),
    "Stubborn": (
        "def __init__(self, seed): super().__init__(0)",
        "another_seed_makes_other_trials",
    ),
    "Leaky": (
        "def next(self): random.random(); return super().next()",
        "it_leaves_the_randomness_of_others_alone",
    ),
    "Random": (
        (
            "def next(self):\n        c, t = super().next()\n        return [Create(trial=c.trial,"
            " hparams={'x': random.SystemRandom().random()}, seed=c.seed), t]"
        ),
        "the_same_seed_makes_the_same_search",
    ),
    "Twins": (
        (
            "def next(self):\n        c, t = super().next()\n"
            "        return [Create(trial=c.trial, hparams=c.hparams, seed=4), t]"
        ),
        "trials_have_seeds_of_their_own",
    ),
    "Infinite": (
        "def state(self): return super().state() | {'loss': float('inf')}",
        "the_state_is_json",
    ),
    "Keyed": ("def state(self): return super().state() | {'by': {1: 2}}", "the_state_is_json"),
    "Aliased": (
        "def state(self): return super().state() | {'exits': self.exits}",
        "later_events_leave_a_returned_state_alone",
    ),
    "Amnesic": ("def restore(self, state): pass", "a_restored_searcher_goes_on_as_the_first"),
    "Clocked": (
        (
            "count = 0\n    def state(self):\n        Tested.count += 1\n        return"
            " super().state() | {'n': Tested.count}"
        ),
        "replaying_any_prefix_gives_the_same_state",
    ),
    "Late": (
        (
            "def validated(self, trial, length, metrics):\n        self.best.append(length)\n"
            "        return super().validated(trial, length, metrics)"
        ),
        "late_reports_change_nothing",
    ),
    "Early": (
        (
            "def validated(self, trial, length, metrics):\n        return super().validated(trial,"
            " length if length == 5 else 10, metrics) + [Train(trial, 10)] * (length < 5)"
        ),
        "reports_before_the_asked_length_are_accepted",
    ),
    "Fragile": (
        (
            "def exited(self, trial, reason):\n        assert reason is Exit.COMPLETED\n"
            "        return super().exited(trial, reason)"
        ),
        "it_survives_trials_that_end_early",
    ),
    "Cheerful": (
        "def over(self): return Shutdown()",
        "it_says_when_every_trial_failed_or_was_cancelled[errored]",
    ),
    "Allergic": (
        (
            "def validated(self, trial, length, metrics):\n        assert metrics['loss'] =="
            " metrics['loss']\n        return super().validated(trial, length, metrics)"
        ),
        "not_a_number_is_survived",
    ),
    "Terse": (
        (
            "def validated(self, trial, length, metrics):\n        metrics['loss']\n"
            "        return super().validated(trial, length, metrics)"
        ),
        "a_missing_metric_is_an_error_that_names_those_present",
    ),
    "Lenient": (
        (
            "def validated(self, trial, length, metrics):\n        metrics = {k: float(v or 0) for"
            " k, v in metrics.items()}\n        return super().validated(trial, length, metrics)"
        ),
        "a_metric_that_is_no_number_is_an_error[0.5]",
    ),
    "Eager": (
        "def progress(self, trial_progress): return 2 * super().progress({})",
        "progress_goes_from_zero_to_one",
    ),
    "Modest": ("def progress(self, trial_progress): return 0.5", "progress_goes_from_zero_to_one"),
}
STATELESS = """def state(self): return None
    def restore(self, state): raise AssertionError"""
CLASS = """
class Test{name}(Kit):
    @pytest.fixture
    def make_searcher(self):
        class Tested(Good):
            {body}
        Tested.__init__.__globals__["Tested"] = Tested
        return Tested
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return, for each class, the tests of the kit that failed.

    One run of pytest for all of them.
    """
    source = GOOD + CLASS.format(name="Good", body="pass")
    for name, (body, _) in {**BROKEN, "Stateless": (STATELESS, "")}.items():
        indented = body.replace("\n    ", "\n            ")
        source += CLASS.format(name=name, body=indented)
    path = tmp_path_factory.mktemp("kit") / "test_it.py"
    path.write_text(source)
    path.with_name("pytest.ini").write_text("[pytest]\n")
    reports: dict[str, set[str]] = {}

    class Collector:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            _, owner, test = report.nodeid.split("::")
            failed = reports.setdefault(owner.removeprefix("Test"), set())
            if report.failed:
                failed.add(test.removeprefix("test_"))

    arguments = [
        str(path),
        "-p",
        "no:terminal",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(path.parent),
    ]
    pytest.main([*arguments, "-c", str(path.with_name("pytest.ini"))], plugins=[Collector()])
    return reports


@pytest.mark.slow
def test_a_good_searcher_passes(failures: dict[str, set[str]]) -> None:
    assert failures["Good"] == set()


@pytest.mark.slow
def test_a_searcher_need_not_keep_its_state(failures: dict[str, set[str]]) -> None:
    assert failures["Stateless"] == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"), [(name, expected) for name, (_, expected) in BROKEN.items()]
)
def test_a_broken_searcher_fails(failures: dict[str, set[str]], name: str, expected: str) -> None:
    assert expected in failures[name]


@pytest.mark.slow
def test_each_test_of_the_kit_can_fail(failures: dict[str, set[str]]) -> None:
    from det_testing import SearcherSuite
    from det_testing._suite import kit_tests

    able = {test.partition("[")[0] for failed in failures.values() for test in failed}
    assert {f"test_{test}" for test in able} == kit_tests(SearcherSuite).keys()
