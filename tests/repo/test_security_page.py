"""SECURITY.md promises nothing that no test holds."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

from tests.repo.test_text import tracked

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(((?:tests|packages)/[^)#]+\.py)(?:#(\w+))?\)")


def test_every_test_that_the_security_page_names_is_there() -> None:
    named = LINK.findall((ROOT / "SECURITY.md").read_text())
    assert len(named) >= 14
    assert [each for each in named if not _is_there(*each)] == []


NO_PROMISE = "The network, with the tensors."
"""What the user has to see to."""


def test_every_promise_of_the_security_page_names_a_test() -> None:
    section = (
        (ROOT / "SECURITY.md")
        .read_text()
        .partition("## What det trusts\n")[2]
        .partition("\n## ")[0]
    )
    promises = re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- |^$|\Z)", section, re.MULTILINE | re.DOTALL)
    assert len(promises) == section.count("\n- ")
    named = {
        name: [test for _, test in LINK.findall(text)]
        for name, text in promises
        if name != NO_PROMISE
    }
    assert len(named) >= 8
    assert [name for name, tests in named.items() if not all(tests) or not tests] == []


def test_every_answer_to_bandit_is_on_the_page_of_checks() -> None:
    page = (ROOT / "docs/development/security.md").read_text()
    skipped, answered = (set(re.findall(r"B\d{3}", part)) for part in _first_columns(page))
    assert skipped == set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["bandit"]["skips"]
    )
    sources = [
        path.read_text(encoding="utf-8").splitlines()
        for path in tracked("packages/*.py", "tools/*.py")
    ]
    marked = [
        (line, above) for lines in sources for above, line in pairwise(lines) if NOSEC.search(line)
    ]
    assert {rule for line, _ in marked for rule in NOSEC.findall(line)} == answered
    assert [
        line
        for line, above in marked
        if not above.lstrip().startswith("# ") and not NOSEC.search(above)
    ] == []


NOSEC = re.compile(r"# nosec (B\d{3})$")


def _first_columns(page: str) -> list[str]:
    tables = re.findall(r"^\| rule .*\n((?:\|.*\n)+)", page, re.MULTILINE)
    return ["\n".join(row.split("|")[1] for row in table.splitlines()) for table in tables]


def _is_there(path: str, test: str) -> bool:
    return (ROOT / path).is_file() and f"def {test or 'test_'}{'(' if test else ''}" in (
        ROOT / path
    ).read_text()
