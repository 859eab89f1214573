"""The pytest plugin of the kit. It reports conformance, and fails if tests were left out.

Name it in a `conftest.py`: `pytest_plugins = ["det_testing.plugin"]`. It is not loaded
automatically, so that nothing of det is imported before coverage measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ._suite import Suite, kit_tests

# The suites are not imported yet. Rewriting makes their assertions show the compared values.
_SUITES = "_adapter_suite _numbers_suite _search_play _searcher_suite _storage_suite _strict_suite"
pytest.register_assert_rewrite(*(f"{__package__}.{suite}" for suite in _SUITES.split()))

_INFO = "det_conformance"
_NARROWING = ("keyword", "markexpr", "deselect", "lf", "stepwise", "collectonly")


@dataclass
class _Tally:
    """The results of the tests of one subclass of a suite."""

    label: str
    defined: list[str]
    outcomes: dict[str, set[str]] = field(default_factory=dict)
    # The reason for each skipped test, with its parameters.
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        return [test for test in self.defined if test not in self.outcomes]

    def line(self) -> str:
        ranked = ("failed", "xfailed", "passed", "skipped")
        counts = Counter(
            next(each for each in ranked if each in outcomes) for outcomes in self.outcomes.values()
        )
        expected = f"{counts['xfailed']} expected failure{'' if counts['xfailed'] == 1 else 's'}"
        parts = [
            f"{len(self.outcomes)} tests, {counts['passed']} passed, {expected},"
            f" {counts['skipped']} skipped"
        ]
        if counts["failed"]:
            parts.append(f"{counts['failed']} failed")
        if self.missing:
            parts.append(f"not run: {', '.join(self.missing)}")
        why = "".join(
            f"\n  {count} case{'' if count == 1 else 's'} skipped: {reason}"
            for reason, count in Counter(self.reasons.values()).items()
        )
        return f"det conformance {self.label}: {', '.join(parts)}{why}"


class _Conformance:
    """Counts the kit's tests, each once for all of its parameters.

    A report carries its suite, so that reports of xdist's workers count too.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._narrowed = any(getattr(config.option, name, None) for name in _NARROWING) or any(
            "::" in argument for argument in config.args
        )
        self._is_worker = hasattr(config, "workerinput")
        self._tallies: dict[str, _Tally] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if info := _info(item):
            self._tally(info)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if info := _info(item):
            setattr(report, _INFO, info)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        info = getattr(report, _INFO, None)
        if info is not None and (report.when == "call" or report.outcome != "passed"):
            tally = self._tally(info)
            tally.outcomes.setdefault(info["test"], set()).add(_outcome(report))
            if _outcome(report) == "skipped" and isinstance(report.longrepr, tuple | list):
                tally.reasons[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        complete = not (
            self._narrowed or self._is_worker or session.shouldstop or session.shouldfail
        )
        if (
            complete
            and session.exitstatus == pytest.ExitCode.OK
            and any(t.missing for t in self._tallies.values())
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for _, tally in sorted(self._tallies.items()):
            if tally.outcomes or not self._narrowed:
                bad = tally.missing and not self._narrowed
                terminalreporter.write_line(tally.line(), red=bool(bad))

    def _tally(self, info: dict[str, Any]) -> _Tally:
        return self._tallies.setdefault(info["suite"], _Tally(info["label"], info["defined"]))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Conformance(config), "det-conformance")


def _info(item: pytest.Item) -> dict[str, Any] | None:
    """Return the suite and name of a test of the kit, in a form that processes can exchange."""
    suite = getattr(item, "cls", None)
    if not (
        isinstance(item, pytest.Function) and isinstance(suite, type) and issubclass(suite, Suite)
    ):
        return None
    defined = list(kit_tests(suite))
    if item.originalname not in defined:
        return None
    return {
        "suite": f"{suite.__module__}:{suite.__qualname__}",
        "label": suite.label or suite.__name__.removeprefix("Test").lower(),
        "test": item.originalname,
        "defined": defined,
    }


def _outcome(report: pytest.TestReport) -> str:
    return (
        "xfailed" if hasattr(report, "wasxfail") and report.outcome == "skipped" else report.outcome
    )
