"""Hooks and environment variables: each has a page, each hook a test."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from det_core import hookspecs
from det_core.backend import RANK_VARIABLES

ROOT = Path(__file__).parents[2]
HOOKS = {
    name: [parameter for parameter in inspect.signature(spec).parameters if parameter != "self"]
    for group in hookspecs.GROUPS
    for name, spec in vars(group).items()
    if name.startswith("det_")
}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_page_of_hooks_has_each_with_its_arguments() -> None:
    headings = re.findall(r"^### `(\w+)\((.*)\)`$", page("hooks.md"), re.MULTILINE)
    assert {name: arguments.split(", ") if arguments else [] for name, arguments in headings} == HOOKS


def test_the_hooks_are_on_the_page_in_their_groups_and_order() -> None:
    assert re.findall(r"^### `(\w+)", page("hooks.md"), re.MULTILINE) == list(HOOKS)


def test_the_diagram_has_every_hook() -> None:
    diagram = page("hooks.md").split("## When they are called")[1].split("```")[1]
    assert set(re.findall(r"det_\w+", diagram)) == set(HOOKS)


def test_every_hook_is_implemented_by_some_test() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))
    text += (ROOT / "packages/det-testing/src/det_testing/fake_hooks.py").read_text(encoding="utf-8")
    assert [name for name in HOOKS if not re.search(rf"\b{name}\b", text)] == []


def test_the_page_of_variables_has_those_that_are_read_or_set() -> None:
    used = set(RANK_VARIABLES.values())
    for path in ROOT.glob("packages/*/src/**/*.py"):
        used |= set(re.findall(r'"(DET_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    assert set(re.findall(r"^\| `(DET_[A-Z_]+)`", page("reference/environment.md"), re.MULTILINE)) == used


def test_the_diagram_has_the_order_in_which_a_run_calls_them() -> None:
    """That of a plugin which notes all that it hears: a test of its own compares it with a run."""
    diagram = page("hooks.md").split("## When they are called")[1].split("```")[1]
    drawn = [name for name in re.findall(r"det_\w+", diagram.partition("det run")[2]) if name != "det_storages"]
    told = re.findall(
        r'"hook": "(det_\w+)"', (ROOT / "tests/repo/test_strangers_plugin.py").read_text(encoding="utf-8")
    )
    assert drawn == list(dict.fromkeys(told))
