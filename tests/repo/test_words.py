"""The words of docstrings, of `--help` and of pages: terms of the field, in short sentences."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.repo.test_text import ROOT, tracked

DISTRIBUTIONS = sorted(path.name for path in (ROOT / "packages").iterdir() if path.is_dir())

# What docs/development/glossary.md replaces, and idioms that a reader has to translate.
BANNED = re.compile(
    r"\b(told|heard|anew|whoever|of which|beside|thereby|save for|unheard|unborn|let go|lets"
    r" go|whereof|wherefore"
    r"|in vain|as it were|be it|has become of|take notice|takes notice|give notice|of one's own)\b",
    re.IGNORECASE,
)
IDIOMS = 2.0
"""At most so many in 1,000 words."""
SEMICOLONS = 2.0
"""At most so many in 1,000 words. They chain sentences that should be apart."""
NAME_CHARACTERS = 60
GLOSSARY = Path("docs/development/glossary.md")
"""It has to name the words that it replaces."""


def docstrings(distribution: str) -> list[str]:
    """Return the docstrings of a distribution, `--help` among them."""
    found = []
    for path in sorted((ROOT / "packages" / distribution / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(ast.get_docstring(node) or "")
    return found


def prose(page: str) -> str:
    """Return a page without its code and tables' rules."""
    return re.sub(r"```.*?```|`[^`\n]*`|<!--.*?-->", " ", page, flags=re.DOTALL)


def pages() -> list[Path]:
    found = [
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
    ]
    found += [path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts]
    return [path for path in found if path.is_file() and path.relative_to(ROOT) != GLOSSARY]


def per_thousand(texts: list[str]) -> tuple[int, float, float, list[tuple[str, int]]]:
    """Return the number of words, the idioms and the semicolons in 1,000 of them.

    Also return the most frequent idioms.
    """
    words = sum(len(re.findall(r"\w+", text)) for text in texts)
    idioms = Counter(match.lower() for text in texts for match in BANNED.findall(text))
    semicolons = sum(text.count(";") for text in texts)
    return words, idioms.total() * 1000 / words, semicolons * 1000 / words, idioms.most_common(5)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_docstrings_use_plain_words(distribution: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, idioms, semicolons, most = per_thousand(docstrings(distribution))
    with capsys.disabled():
        print(
            f"\n{distribution}: {words} words, {idioms:.1f} idioms and {semicolons:.1f} semicolons"
            " in 1,000",
            end=" ",
        )
    assert idioms <= IDIOMS, most
    assert semicolons <= SEMICOLONS


def test_pages_use_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    words, idioms, semicolons, most = per_thousand(
        [prose(path.read_text(encoding="utf-8")) for path in pages()]
    )
    with capsys.disabled():
        print(
            f"\npages: {words} words, {idioms:.1f} idioms and {semicolons:.1f} semicolons in 1,000",
            end=" ",
        )
    assert idioms <= IDIOMS, most
    assert semicolons <= SEMICOLONS


def test_names_of_tests_have_at_most_60_characters() -> None:
    """A name states the behaviour. The reason is in the docstring."""
    names = [
        name
        for path in tracked("tests/*.py", "packages/det-testing/*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    ]
    assert len(names) > 3000
    assert [name for name in names if len(name) > NAME_CHARACTERS] == []


def test_words_that_are_banned_are_found() -> None:
    assert per_thousand(["One is told; " + "word " * 8]) == (
        11,
        1000 / 11,
        1000 / 11,
        [("told", 1)],
    )
