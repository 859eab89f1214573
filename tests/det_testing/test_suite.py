from __future__ import annotations

import sys

import pytest

pytest_plugins = ["pytester"]

KIT = '''
import pytest
from det_testing._suite import Suite

class SmallSuite(Suite):
    """A suite of three tests."""

    @pytest.fixture
    def number(self):
        raise NotImplementedError

    def test_is_positive(self, number):
        assert number > 0

    def test_is_even(self, number):
        assert number % 2 == 0

    @pytest.mark.parametrize("limit", [10, 100])
    def test_is_small(self, number, limit):
        if number == 42:
            pytest.skip("42 has no size")
        assert number < limit
'''
GOOD = """
import pytest
from kit import SmallSuite as Base

class TestFour(Base):
    @pytest.fixture
    def number(self):
        return 4
"""
# a suite is the kit's when its module is
IN_KIT = KIT.replace(
    "class SmallSuite(Suite):", "class SmallSuite(Suite):\n    __module__ = 'det_testing._small'"
)

# hypothesis's plugin imports all of hypothesis at the end of every run
QUICKLY = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    for name in ("kit", "test_it"):  # of a test before
        monkeypatch.delitem(sys.modules, name, raising=False)
    pytester.makeconftest('pytest_plugins = ["det_testing.plugin"]')
    pytester.makepyfile(kit=IN_KIT)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_inprocess(*QUICKLY, "test_it.py", *arguments)

    return run


def test_each_suite_ends_in_one_line(run) -> None:
    result = run(GOOD)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["det conformance four: 3 tests, 3 passed, 0 expected failures, 0 skipped"]
    )


def test_a_label_names_the_suite(run) -> None:
    result = run(GOOD + "    label = 'the four'\n")
    result.stdout.fnmatch_lines(["det conformance the four: 3 tests*"])


def test_parametrized_test_counts_once_with_its_worst_outcome(run) -> None:
    result = run(GOOD.replace("return 4", "return 20"))
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["det conformance four: 3 tests, 2 passed, 0 expected failures, 0 skipped, 1 failed"]
    )


def test_expected_failures_are_counted(run) -> None:
    result = run(
        GOOD.replace("return 4", "return 5")
        + "    expected_failures = {'test_is_even': 'odd (#12)'}\n"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["det conformance four: 3 tests, 2 passed, 1 expected failure, 0 skipped"]
    )


def test_one_parameter_can_be_expected_to_fail(run) -> None:
    expected = "    expected_failures = {'test_is_small[10]': 'large (#13)'}\n"
    result = run(GOOD.replace("return 4", "return 20") + expected)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["det conformance four: 3 tests, 2 passed, 1 expected failure, 0 skipped"]
    )


def test_an_expected_failure_that_passes_is_a_failure(run) -> None:
    result = run(GOOD + "    expected_failures = {'test_is_even': 'odd (#12)'}\n")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*XPASS(strict)*odd (#12)*", "det conformance four: *1 failed"])


def test_skipped_tests_are_counted_with_their_reasons(run) -> None:
    result = run(GOOD.replace("return 4", "return 42"))
    assert result.ret == 0

    result.stdout.fnmatch_lines(
        [
            "det conformance four: 3 tests, 2 passed, 0 expected failures, 1 skipped",
            "  2 cases skipped: 42 has no size",
        ]
    )


HIDING = (
    "def pytest_collection_modifyitems(items):\n    items[:] = [i for i in items if '{}' not in"
    " i.nodeid]\n"
)


@pytest.mark.parametrize(("hidden", "ran"), [("even", "2 tests"), ("Four", "0 tests")])
def test_fewer_tests_than_the_kit_defines_fail_the_session(
    run, pytester: pytest.Pytester, hidden, ran
) -> None:
    with open(pytester.path / "conftest.py", "a") as conftest:
        conftest.write("\n" + HIDING.format(hidden))
    result = run(GOOD + "\ndef test_other(): pass\n")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"det conformance four: {ran}, *not run: *test_is_even*"])


CHOICES = [
    ["-k", "even"],
    ["test_it.py::TestFour::test_is_even"],
    ["--deselect", "test_it.py::TestFour::test_is_small"],
]


@pytest.mark.parametrize("choice", CHOICES)
def test_fewer_tests_are_no_failure_when_someone_chose_them(
    run, pytester: pytest.Pytester, choice
) -> None:
    run(GOOD)
    result = pytester.runpytest_inprocess(*QUICKLY, *choice)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["det conformance four: *not run: *"])


def test_a_run_that_stops_at_the_first_failure_keeps_its_status(run) -> None:
    result = run(GOOD.replace("return 4", "return -1"), "-x")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["det conformance four: 1 tests, 0 passed, *1 failed, not run: *"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    def test_is_even(self): pass\n", "*TestFour overrides test_is_even; name it in *"),
        ("    test_is_even = None\n", "*TestFour overrides test_is_even; name it in *"),
        (
            "    expected_failures = {'test_nope': 'x'}\n",
            "*TestFour expects test_nope to fail, but the kit has no*",
        ),
        (
            "    expected_failures = {'test_is_even': ' '}\n",
            "*TestFour expects test_is_even to fail without a reason*",
        ),
    ],
)
def test_a_suite_is_not_bent(run, body, message) -> None:
    result = run(GOOD + body)
    assert result.ret == 2
    result.stdout.fnmatch_lines([message])


def test_a_mixin_does_not_override_either(run) -> None:
    mixin = "class Mixin:\n    def test_is_even(self): pass\n\nclass TestFour(Mixin, Base):"
    result = run(GOOD.replace("class TestFour(Base):", mixin))
    result.stdout.fnmatch_lines(["*TestFour overrides test_is_even*"])


@pytest.mark.process
def test_reports_of_several_processes_are_counted_together(run) -> None:
    pytest.importorskip("xdist")
    result = run(GOOD, "-n", "2")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["det conformance four: 3 tests, 3 passed, 0 expected failures, 0 skipped"]
    )
