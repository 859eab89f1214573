"""Two houses, one door: how large each distribution is, how its rooms are furnished, and what its names mean."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSES = ("det-core", "det-driver", "det-testing", "det-horovod")
AT_MOST = {"det-core": 14_860}
"""The aim is 9,000; docs/decisions/0011-size-of-core.md says part by part what is above it."""
TOGETHER = 37_180
"""What was once one package had as many."""
ENGINES = {"det-slurm": 300, "det-kubernetes": 400, "det-ray": 400}
"""An engine says what is its scheduler's, and det_driver.engines has what they share."""

SMALL = 25
MAY_BE_SMALL = re.compile(r"(__init__|__main__|_hooks|records)\.py$")


def sources(distribution: str) -> list[Path]:
    return sorted((ROOT / "packages" / distribution / "src").rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_houses_are_as_small_as_they_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of Python, comments and empty ones too; the table is printed, whatever comes of it."""
    found = {
        package.name: sources(package.name) for package in sorted((ROOT / "packages").iterdir()) if package.is_dir()
    }
    total = {name: sum(map(lines, files)) for name, files in found.items()}
    with capsys.disabled():
        print(f"\n{'distribution':<16}{'lines':>8}{'files':>8}{'at most':>10}")
        for name, files in found.items():
            print(f"{name:<16}{total[name]:>8}{len(files):>8}{AT_MOST.get(name, ''):>10}")
        houses = sum(total[name] for name in HOUSES)
        print(f"{'the four houses':<16}{houses:>8}{sum(len(found[name]) for name in HOUSES):>8}{TOGETHER - 1:>10}")
    assert {name: total[name] for name, most in AT_MOST.items() if total[name] > most} == {}
    assert houses < TOGETHER


@pytest.mark.parametrize(("engine", "most"), ENGINES.items())
def test_an_engine_is_small(engine: str, most: int) -> None:
    assert sum(map(lines, sources(engine))) <= most


def test_no_room_is_a_cupboard() -> None:
    """A file of fewer lines than 25 is read together with another: it belongs there."""
    small = [path for name in HOUSES for path in sources(name) if lines(path) < SMALL]
    assert [str(path.relative_to(ROOT)) for path in small if not MAY_BE_SMALL.search(path.name)] == []


def test_no_class_of_core_and_driver_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in (path for name in ("det-core", "det-driver") for path in sources(name)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("house", "never"),
    [
        ("det-core", ("det_driver", "det_testing", "det_horovod", "click", "rich")),
        ("det-driver", ("det_testing", "det_horovod")),
    ],
)
def test_a_house_names_none_that_stands_on_it(house: str, never: tuple[str, ...]) -> None:
    """In no import, be it inside a function or for typing."""
    for path in sources(house):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong = Counter(module for module in modules if module.partition(".")[0] in never)
            assert not wrong, f"{path.relative_to(ROOT)}:{node.lineno} imports {list(wrong)}"
