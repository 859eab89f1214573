"""The words of docstrings, of `--help`, of pages and of names: terms of the field."""

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
WORDS = re.compile(
    r"told|tells?|heard|hears?|said|spoke|answer(s|ed)?|settled|taken|awaited|mend(ed)?"
    r"|beside|anew|whoever|thereby"
)
"""Words that the glossary replaces. No name in the source of a distribution contains them."""
NAMES_OF_OTHERS = frozenset({"tell"})
"""Of file objects, and of Optuna's studies."""
FIELDS = ("name", "id", "arg", "attr", "asname", "rest")
"""Fields of a syntax tree's nodes that hold a name."""
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


def find_names(source: str) -> set[tuple[int, str]]:
    """Return the names in a module that contain one of `WORDS`, each with its line."""
    found = {
        (getattr(node, "lineno", 0), name)
        for node in ast.walk(ast.parse(source))
        for name in (getattr(node, field, None) for field in FIELDS)
        if isinstance(name, str) and name not in NAMES_OF_OTHERS
    }
    return {(line, name) for line, name in found if any(map(WORDS.fullmatch, split(name)))}


def split(name: str) -> set[str]:
    """Return the words of a name in snake case or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


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


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_names_in_the_source_use_plain_words(distribution: str) -> None:
    source = ROOT / "packages" / distribution / "src"
    assert [
        f"{path.relative_to(source)}:{line}: {name}"
        for path in sorted(source.rglob("*.py"))
        for line, name in sorted(find_names(path.read_text(encoding="utf-8")))
    ] == []


def test_words_in_names_are_found() -> None:
    """In names of all kinds. Parts of longer words and text do not count."""
    source = """
import json as told_json
class SaidTwice: ...
def _tell_all(heard, *, retold): ...
self.settledAt = "said"
run(beside=True)
try: ...
except OSError as mended: ...
match retell:
    case {"a": _, **anew}: ...
    case [HEAR_ME, *said]: ...
file.tell()
"""
    assert find_names(source) == {
        (2, "told_json"),
        (3, "SaidTwice"),
        (4, "_tell_all"),
        (4, "heard"),
        (5, "settledAt"),
        (6, "beside"),
        (8, "mended"),
        (10, "anew"),
        (11, "HEAR_ME"),
        (11, "said"),
    }


def test_words_that_are_banned_are_found() -> None:
    assert per_thousand(["One is told; " + "word " * 8]) == (
        11,
        1000 / 11,
        1000 / 11,
        [("told", 1)],
    )
