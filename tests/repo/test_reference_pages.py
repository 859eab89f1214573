"""Keys, options, hooks, public names and environment variables.

Each has a page, and each is met by some test.

The pages of keys and of options are written from the code:
tests/det_driver/config/test_configuration_page.py and test_cli_page.py; that of the events by
test_events_page.py; whether each public name has its place among the built pages says
test_built_pages.py.
"""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from functools import cache
from pathlib import Path

from det_core.config import ENGINES, RANGES, SEARCHERS, STORAGES, ExperimentConfig
from det_core.config.fields import base_of, fields_of, is_struct, item_of
from det_core.hooks import hookspecs
from det_core.ranks.backend import RANK_VARIABLES

ROOT = Path(__file__).parents[2]
API = sorted((ROOT / "docs/reference/api").glob("*.md"))
HOOKS = {
    name: [parameter for parameter in inspect.signature(spec).parameters if parameter != "self"]
    for group in hookspecs.GROUPS
    for name, spec in vars(group).items()
    if name.startswith("det_")
}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@cache
def names_in_tests() -> frozenset[str]:
    """Return every word of every test, and of what tests train."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "packages/det-testing/src").rglob("*.py")]
    files += [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".yaml")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return frozenset(re.findall(r"--[\w-]+|\w+", text))


def test_the_page_of_hooks_has_each_with_its_arguments() -> None:
    headings = re.findall(r"^### `(\w+)\((.*)\)`$", page("hooks.md"), re.MULTILINE)
    assert {
        name: arguments.split(", ") if arguments else [] for name, arguments in headings
    } == HOOKS


def test_the_hooks_are_on_the_page_in_their_groups_and_order() -> None:
    assert re.findall(r"^### `(\w+)", page("hooks.md"), re.MULTILINE) == list(HOOKS)


def test_the_diagram_has_every_hook() -> None:
    diagram = page("hooks.md").split("## When they are called")[1].split("```")[1]
    assert set(re.findall(r"det_\w+", diagram)) == set(HOOKS)


def test_every_hook_is_implemented_by_some_test() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py")
    )
    text += (ROOT / "packages/det-testing/src/det_testing/fake_hooks.py").read_text(
        encoding="utf-8"
    )
    assert [name for name in HOOKS if not re.search(rf"\b{name}\b", text)] == []


def test_the_page_of_variables_has_those_that_are_read_or_set() -> None:
    used = set(RANK_VARIABLES.values())
    for path in ROOT.glob("packages/*/src/**/*.py"):
        used |= set(re.findall(r'"(DET_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    assert (
        set(re.findall(r"^\| `(DET_[A-Z_]+)`", page("reference/environment.md"), re.MULTILINE))
        == used
    )


def test_every_variable_that_det_reads_is_met_by_some_test() -> None:
    """Those that are set for a run are asked for by a test of a run.

    det_driver/cli/test_variables.py.
    """
    read = page("reference/environment.md").partition("## Set for")[0]
    found = re.findall(r"^\| `(DET_[A-Z_]+)`", read, re.MULTILINE)
    assert len(found) >= 8
    assert [name for name in found if name not in names_in_tests()] == []


def test_the_diagram_has_the_order_in_which_a_run_calls_them() -> None:
    """That of a plugin which notes all that it hears: a test of its own compares it with a run."""
    diagram = page("hooks.md").split("## When they are called")[1].split("```")[1]
    not_always = ("det_storages", "det_trials_waiting", "det_trial_status", "det_trial_noticed")
    drawn = [
        name
        for name in re.findall(r"det_\w+", diagram.partition("det run")[2])
        if name not in not_always
    ]
    told = re.findall(
        r'"hook": "(det_\w+)"',
        (ROOT / "tests/repo/test_strangers_plugin.py").read_text(encoding="utf-8"),
    )
    assert drawn == list(dict.fromkeys(told))


def keys(struct: type) -> set[str]:
    """Return the keys of a struct and of those below it that det does anything with."""
    honoured = {
        key: f
        for key, f in fields_of(struct).items()
        if f.type.marks.get("honoured", "yes") == "yes"
    }
    found = {key for key, field in honoured.items() if "rest" not in field.type.marks}
    for field in honoured.values():
        for arm in field.type.arms:
            inner = item_of(arm).arm if base_of(arm) is list else arm
            if is_struct(inner):
                found |= keys(inner)
    return found


def test_every_key_is_met_by_some_test() -> None:
    structs = [
        ExperimentConfig,
        *RANGES.values(),
        *SEARCHERS.values(),
        *STORAGES.values(),
        *ENGINES.values(),
    ]
    assert sorted(set().union(*map(keys, structs)) - names_in_tests()) == []


def test_every_key_that_is_said_to_be_honoured_is_read_somewhere() -> None:
    files = [path for path in ROOT.glob("packages/*/src/**/*.py") if "config" not in path.parts]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    read = {name for found in re.findall(r'\.(\w+)|(\w+)=|"(\w+)"', text) for name in found}
    read.add("preemption_timeout")  # as `preemption_seconds`
    structs = [
        ExperimentConfig,
        *RANGES.values(),
        *SEARCHERS.values(),
        *STORAGES.values(),
        *ENGINES.values(),
    ]
    assert sorted(set().union(*map(keys, structs)) - read) == []


def test_every_option_is_met_by_some_test() -> None:
    writer = runpy.run_path(str(Path(__file__).with_name("cli_page.py")))
    typed = {
        name: [word for each in writer["options"](command) for word in each.opts]
        for name, command, _ in writer["commands"]()
    }
    typed["det launch"] = [
        word
        for each in writer["launch_options"](writer["parser"]("det launch"))
        for word in each.option_strings
    ]
    missed = {
        name: [each for each in words if each.startswith("--") and each not in names_in_tests()]
        for name, words in typed.items()
    }
    assert {name: words for name, words in missed.items() if words} == {}


def test_every_name_that_documentation_imports_is_in_the_api() -> None:
    """Others are for who works on det: they may move without a word."""
    shown = set(
        re.findall(r"automodule:: (\S+)", "".join(path.read_text(encoding="utf-8") for path in API))
    )
    told = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("*.md"),
        *ROOT.glob("examples/*/*.md"),
    ]
    texts = [
        (path, text)
        for path in told
        for text in re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.M | re.S)
    ]
    texts += [(path, path.read_text(encoding="utf-8")) for path in ROOT.glob("examples/[!p]*/*.py")]
    hidden = [
        f"{path.relative_to(ROOT)}: from {node.module} import {alias.name}"
        for path, text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and re.match(r"det_(?!arrays|jax|numpy|mlflow)", node.module or "")
        for alias in node.names
        if not {node.module, f"{node.module}.{alias.name}", node.module.removesuffix(".testing")}
        & shown
    ]
    assert hidden == []


def classes(package: Path) -> dict[str, list[str]]:
    """Return the public methods and properties of every class of a package."""
    found: dict[str, list[str]] = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                members = [
                    each.name
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                found.setdefault(node.name, []).extend(
                    name for name in members if not name.startswith("_")
                )
    return found


def test_every_public_function_is_used_by_a_test_or_by_the_code() -> None:
    """Types are met with what gives and takes them.

    What overrides a framework's own is called by the framework.
    """
    overriding = {"DetCallback", "DeterminedCallback", "HorovodStrategy"}
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("packages/*/src/**/*.py")]
    called = set(re.findall(r"(?<!def )(?<!\w)(\w+)\(|\.(\w+)", "".join(sources)))
    met = names_in_tests() | {name for pair in called for name in pair}
    missed = set()
    for module in re.findall(
        r"automodule:: (\S+)", "".join(path.read_text(encoding="utf-8") for path in API)
    ):
        [package] = ROOT.glob(f"packages/*/src/{module.partition('.')[0]}")
        place = package.parent / module.replace(".", "/")
        text = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text(
            encoding="utf-8"
        )
        listed = text.partition("__all__ = [")[2].partition("]")[0]
        names = [*re.findall(r"import (\w+) as \1\b", text), *re.findall(r'"(\w+)"', listed)]
        assert names, module
        methods = classes(package)
        missed |= {f"{module}.{name}" for name in names if name[0].islower() and name not in met}
        missed |= {
            f"{module}.{name}.{method}"
            for name in set(names) - overriding
            for method in methods.get(name, ())
            if method not in met
        }
    assert sorted(missed) == []
