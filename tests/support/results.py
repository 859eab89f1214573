"""Writes what a run of pytest found, for sessions that count cases and repeat failures.

`--results FILE` writes a JSON object: `chosen` and `all` (numbers of cases, campaigns left out),
`failed` (the names of the failed tests) and `status` (pytest's exit status).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("results").addoption(
        "--results", type=Path, help="write the numbers of cases and the failed tests to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--results"):
        config.pluginmanager.register(Results(config), "results")


class Results:
    """Counts cases and collects the names of failed tests. With xdist, its workers count."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.chosen, self.all = config, 0, 0
        self.failed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.all = sum(item.get_closest_marker("thorough") is None for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.chosen = len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test whose call and teardown both fail is one failed test.
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Use the counts of a worker of xdist, because the main process collects no cases."""
        self.chosen, self.all = getattr(node, "workeroutput", {}).get(
            "counted", (self.chosen, self.all)
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["counted"] = (self.chosen, self.all)
            return
        found = {
            "chosen": self.chosen,
            "all": self.all,
            "failed": self.failed,
            "status": int(exitstatus),
        }
        file: Path = self.config.getoption("--results")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found), encoding="utf-8")
