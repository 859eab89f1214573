"""How large each distribution is, and which other distributions and names it may use."""

from __future__ import annotations

import ast
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def sources(distribution: str) -> list[Path]:
    return sorted((ROOT / "packages" / distribution / "src").rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def lines_of_code(path: Path) -> int:
    """Count the lines that hold code: neither empty ones, nor comments, nor docstrings."""
    tree = ast.parse(path.read_bytes())
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            match body:
                case [ast.Expr(value=ast.Constant(value=str())) as text, *_]:
                    docstrings.update(range(text.lineno, (text.end_lineno or 0) + 1))
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
    with path.open("rb") as file:
        used = {
            line
            for token in tokenize.tokenize(file.readline)
            if token.type not in silent
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(used - docstrings)


def test_lines_of_each_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    """Print the lines of Python of each; there is no cap.

    Of det-core, lines of code and folders are printed, too: `core` is the Core API and `data` are
    cached data sets, and the rest is the contract (docs/decisions/0033-the-size-of-det-core.md).
    """
    packages = [path.name for path in sorted((ROOT / "packages").iterdir()) if path.is_dir()]
    found = {name: sources(name) for name in packages}
    parts: dict[str, list[Path]] = defaultdict(list)
    for path in found["det-core"]:
        parts[path.relative_to(ROOT / "packages/det-core/src/det_core").parts[0]].append(path)
    with capsys.disabled():
        print(f"\n{'distribution':<16}{'lines':>8}{'files':>8}")
        for name, files in found.items():
            print(f"{name:<16}{sum(map(lines, files)):>8}{len(files):>8}")
        print(f"\n{'of det-core':<16}{'lines':>8}{'of code':>8}")
        for name, files in sorted(parts.items()):
            code = sum(map(lines_of_code, files))
            print(f"{name:<16}{sum(map(lines, files)):>8}{code:>8}")
            assert code


def test_public_class_names_of_core_node_driver_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in (path for name in ("det-core", "det-node", "det-driver") for path in sources(name)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("house", "never"),
    [
        (
            "det-core",
            (
                "det_node",
                "det_driver",
                "det_testing",
                "det_horovod",
                "cryptography",
                "click",
                "rich",
            ),
        ),
        ("det-node", ("det_driver", "det_testing", "det_horovod", "click", "rich")),
        ("det-driver", ("det_testing", "det_horovod")),
    ],
)
def test_a_house_names_none_that_stands_on_it(house: str, never: tuple[str, ...]) -> None:
    """In no import, be it inside a function or for typing."""
    for path in sources(house):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            wrong = Counter(module for module in modules if module.partition(".")[0] in never)
            assert not wrong, f"{path.relative_to(ROOT)}:{node.lineno} imports {list(wrong)}"
