"""Says at the end of a session how many of all cases it ran, summed over the sessions of a tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tally")
    group.addoption(
        "--tally", type=Path, help="add the numbers of cases to this file and print their sums"
    )
    group.addoption("--counted", action="store_true", help="another session has counted all cases")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tally"):
        config.pluginmanager.register(Tally(config), "tally")


class Tally:
    """Counts cases; a campaign's are none of the full tier."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.chosen, self.all = config, 0, 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self.config.getoption("--counted"):
            self.all = sum(item.get_closest_marker("thorough") is None for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.chosen = len(session.items)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["tally"] = (self.chosen, self.all)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of xdist counted: each of them collects all cases."""
        self.chosen, self.all = getattr(node, "workeroutput", {}).get(
            "tally", (self.chosen, self.all)
        )

    def pytest_unconfigure(self) -> None:
        if hasattr(self.config, "workeroutput"):
            return
        file: Path = self.config.getoption("--tally")
        with file.open("a", encoding="utf-8") as kept:
            kept.write(f"{self.chosen} {self.all}\n")
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
        chosen, every = (sum(int(line[place]) for line in lines) for place in (0, 1))
        print(f"{chosen:,} of {every:,} cases; the rest: nox -t full")
