"""What modules may say, by their syntax: public names, state, the environment."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src"))
FILES = sorted(path for source in SOURCES for path in source.rglob("*.py"))
PLUGINS = [path for path in FILES if "det-core" not in path.parts]

READS_ENVIRONMENT = (
    "cli",
    "client/_client",
    "engines",
    "environ",
    "core",
    "worker",
    "session",
    "experiment/_settings",
    "horovod/_meet",
    "launchers/host", "backends/socket",
)


def named(path: Path) -> str:
    """Return a source file's name below `src`, without its suffix."""
    return path.relative_to(next(s for s in SOURCES if path.is_relative_to(s))).with_suffix("").as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public_packages() -> Iterator[ModuleType]:
    """Yield each importable package that has no private part in its name."""
    for source in SOURCES:
        for init in sorted(source.rglob("__init__.py")):
            name = ".".join(init.parent.relative_to(source).parts)
            if not any(part.startswith("_") for part in name.split(".")):
                try:
                    yield importlib.import_module(name)
                except ModuleNotFoundError as error:  # a plugin that is not installed here
                    if error.name != name.split(".")[0]:
                        raise


def rank(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions: ruff's order of `__all__`, which is isort's."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("package", list(public_packages()), ids=lambda package: package.__name__)
def test_all_is_sorted_and_every_name_in_it_exists(package: ModuleType) -> None:
    names = getattr(package, "__all__", None)
    if names is None:
        pytest.fail(f"{package.__name__} has no __all__")
    assert list(names) == sorted(names, key=rank)
    assert [name for name in names if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", list(public_packages()), ids=lambda package: package.__name__)
def test_nothing_public_is_missing_from_all(package: ModuleType) -> None:
    """What an `__init__` imports from its package and does not use itself is what it makes public."""
    body = tree(Path(str(package.__file__)))
    imports = [node for node in ast.walk(body) if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    imported -= {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
    inner = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert {n for n in imported if not n.startswith("_")} - inner - set(package.__all__) == set()


@pytest.mark.parametrize("path", PLUGINS, ids=named)
def test_a_plugin_imports_public_names_of_core_only(path: Path) -> None:
    private = [
        f"{node.lineno}: from {node.module} import {alias.name}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "det_core"
        for alias in node.names
        if any(part.startswith("_") for part in f"{node.module}.{alias.name}".split("."))
    ]
    assert private == []


def test_plugins_do_not_know_each_other() -> None:
    for path in PLUGINS:
        own = named(path).split("/")[0]
        for node in ast.walk(tree(path)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            others = [m for m in modules if re.match(r"det_(?!core\b)", m) and m.split(".")[0] != own]
            assert others == [], f"{named(path)} imports {others}"


MUTABLE = ("list", "dict", "set", "defaultdict", "deque", "Counter", "count", "Lock", "local", "Queue", "SimpleQueue")


@pytest.mark.parametrize("path", FILES, ids=named)
def test_modules_keep_no_state(path: Path) -> None:
    """At module level there are constants, in capitals or private, and loggers; nothing rebinds or fills them."""
    module = tree(path)
    state = [
        f"{node.lineno}: global {', '.join(node.names)}" for node in ast.walk(module) if isinstance(node, ast.Global)
    ]
    for node in module.body:
        value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        called = value.func if isinstance(value, ast.Call) else None
        maker = getattr(called, "id", getattr(called, "attr", ""))
        empty = (isinstance(value, ast.List) and not value.elts) or (isinstance(value, ast.Dict) and not value.keys)
        if empty or maker in MUTABLE:
            state.append(f"{node.lineno}: {ast.unparse(node)}")
    assert state == []


@pytest.mark.parametrize("path", FILES, ids=named)
def test_the_environment_is_read_at_the_edges_only(path: Path) -> None:
    """`det_core.testing` aside, which stands for edges."""
    name = named(path).removeprefix("det_core/")
    edge = any(name == place or name.startswith(f"{place}/") for place in (*READS_ENVIRONMENT, "testing"))
    reads = [
        node.lineno
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"))
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    assert edge or reads == []
