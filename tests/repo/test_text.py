"""What is written in the repository: paths and words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

PLACES = re.compile(r"(?<![\w.~])/(?:work|root|Users|private|opt|workspace)/")
_LONG = 60
NOT_OURS = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git knows, or all in a source distribution without git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = [name for name in listed.stdout.split("\0") if name]
    if listed.returncode:
        names = [
            str(path.relative_to(ROOT))
            for pattern in patterns or ["*"]
            for path in ROOT.rglob(pattern)
            if path.is_file()
        ]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


TEXTS = [
    p
    for p in tracked("*.py", "*.md", "*.toml", "*.yaml", "*.ini", "*.txt", ".ci/*")
    if p != Path(__file__)
]


def test_no_file_names_places_of_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{n}: {line}"
        for path in TEXTS
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PLACES.search(line)
    ]
    assert found == []


def test_nothing_is_left_to_be_done_in_a_comment() -> None:
    left = [
        f"{path.relative_to(ROOT)}:{n}: {line.strip()}"
        for path in TEXTS
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NOT_OURS.search(line)
    ]
    assert left == []


def test_no_merge_left_its_marks_or_a_line_twice() -> None:
    marks = [
        f"{path.relative_to(ROOT)}:{n}"
        for path in tracked()
        for n, line in enumerate(path.read_bytes().splitlines(), 1)
        if line.startswith((b"<<<<<<< ", b">>>>>>> "))
    ]
    assert marks == []
    changes = [
        line
        for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("- ") and len(line) > _LONG
    ]
    assert sorted(set(changes)) == sorted(changes)


def test_every_suppression_says_which_rule_it_suppresses() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{n}"
        for path in tracked("packages/*.py")
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"# (noqa|type: ignore)(?![:\[])|# nosec(?! B\d{3}$)", line)
    ]
    assert bare == []


def test_every_decision_is_dated() -> None:
    """The date stands below the title, so that a reader can tell the later of two decisions."""
    decisions = tracked("docs/decisions/*.md")
    dated = [
        path
        for path in decisions
        if re.match(r"# \d+\. .+\n\n\d{4}-\d\d-\d\d\n", path.read_text(encoding="utf-8"))
    ]
    assert decisions
    assert dated == decisions
