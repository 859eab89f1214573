"""What modules may say, by their syntax: public names, state, the environment."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from det_core import PluginError

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src"))
FILES = sorted(path for source in SOURCES for path in source.rglob("*.py"))
PLUGINS = [path for path in FILES if "det-core" not in path.parts]
IMPORT_NAMES = {folder.name for source in SOURCES for folder in source.iterdir()}
METHODS = 25
"""A class with more of them owes a reason."""

FRAMEWORKS = ("jax", "keras", "lightning", "numpy", "optuna", "tensorflow", "torch")
READS_ENVIRONMENT = (
    "accounts",
    "agent",
    "backends/socket",
    "cli",
    "client/_client",
    "core",
    "det_env/container",
    "det_env/uv",
    "det_horovod/_meet",
    "det_keras/_hooks",
    "det_keras/backends",
    "det_ray/cluster",
    "det_ray/place",
    "det_testing",
    "det_torch/backends",
    "determined/_masters",
    "det_web/cluster",
    "det_web/command",
    "det_web/configuration",
    "determined/core",
    "determined/launch/wrap_rank",
    "determined/tensorboard",
    "driver/_lifecycle",
    "engines",
    "first_check",
    "forkserver",
    "guard",
    "launch/_command",
    "machine",
    "native",
    "notebook",
    "ranks/distributed",
    "ranks/network",
    "recording",
    "support/origin",
    "task",
    "train/session",
    "verify/replay",
    "worker",
)
"""Modules and packages of det_core, det_node and det_driver by their names there.

Those of plugins by their whole names.
"""


def named(path: Path) -> str:
    """Return a source file's name below `src`, without its suffix."""
    return (
        path.relative_to(next(s for s in SOURCES if path.is_relative_to(s)))
        .with_suffix("")
        .as_posix()
    )


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public_packages() -> list[Path]:
    """Return the `__init__` of each package that has no private part in its name."""
    found = (init for source in SOURCES for init in sorted(source.rglob("__init__.py")))
    return [
        init
        for init in found
        if not any(part.startswith("_") for part in named(init).split("/")[:-1])
    ]


def package_name(init: Path) -> str:
    return named(init).removesuffix("/__init__").replace("/", ".")


def imported(init: Path) -> ModuleType:
    """Import a package, or skip the test where what it stands on is not installed here."""
    name = package_name(init)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in {*FRAMEWORKS, name.partition(".")[0]}:
            raise
        pytest.skip(f"{error.name} is not installed")


def rank(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions.

    ruff's order of `__all__`, which is isort's.
    """
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


each_package = pytest.mark.parametrize("init", public_packages(), ids=package_name)


@each_package
def test_all_is_sorted_and_every_name_in_it_exists(init: Path) -> None:
    package = imported(init)
    names = getattr(package, "__all__", None)
    if names is None:
        pytest.fail(f"{package.__name__} has no __all__")
    assert list(names) == sorted(names, key=rank)
    assert [name for name in names if not exists(package, name)] == []


def exists(package: ModuleType, name: str) -> bool:
    """Tell whether a package has a name, or would have it if its framework were installed here."""
    try:
        return hasattr(package, name)
    except (PluginError, ImportError):
        return name in getattr(package, "__all__", ())


@each_package
def test_nothing_public_is_missing_from_all(init: Path) -> None:
    """What an `__init__` imports from its package and does not use itself is public."""
    body = tree(init)
    listed = [
        node.value
        for node in body.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and "__all__" in ast.unparse(node).partition("=")[0]
    ]
    imports = [
        node
        for node in ast.walk(body)
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
    ]
    found = {alias.asname or alias.name for node in imports for alias in node.names}
    found -= {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
    inner = {path.stem for path in init.parent.iterdir()}
    # Where it is not listed, det_core.support.lazy has made it.
    public = ast.literal_eval(listed[0] or ast.Tuple()) if listed else imported(init).__all__
    assert {n for n in found if not n.startswith("_")} - inner - set(public) == set()


def test_a_plugin_imports_public_names_of_core_and_node_only() -> None:
    private = [
        f"{named(path)}:{node.lineno}: from {node.module} import {alias.name}"
        for path in PLUGINS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0]
        in {"det_core", "det_node"} - {named(path).split("/")[0]}
        for alias in node.names
        if any(
            part.startswith("_") and not part.endswith("__")
            for part in f"{node.module}.{alias.name}".split(".")
        )
    ]
    assert private == []


STANDS_ON = {
    "det_estimator": ("det_keras", "det_testing"),
    "det_keras": ("det_testing",),
    "det_lightning": ("det_torch", "det_testing"),
    "det_torch": ("det_testing",),
    "det_driver": ("det_node",),
    "det_testing": ("det_driver", "det_node"),
    "determined": ("det_driver", "det_node"),
    "det_env": ("det_driver", "det_node"),
    "det_migrate": ("det_driver",),
    "det_web": ("det_driver", "det_node"),
    "det_server": ("det_driver", "det_node", "det_web"),
}
"""A house.

Another of its own framework. The kit, for the trial that its suite asks for. All that has names of
Determined.
"""
PARTS = {
    "det_estimator": ("det_driver.native", "det_horovod"),
    "det_horovod": ("det_driver.cli", "det_node"),
    "det_keras": ("det_driver.native", "det_horovod"),
    "det_kubernetes": ("det_driver.engines", "det_node"),
    "det_lightning": ("det_horovod",),
    "det_optuna": ("det_driver.search",),
    "det_ray": ("det_driver.engines", "det_node"),
    "det_slurm": ("det_driver.engines", "det_node"),
    "det_torch": ("det_horovod",),
}
"""The part of another house that a plugin may know: what it registers is executed there."""


def test_plugins_do_not_know_each_other() -> None:
    for path in PLUGINS:
        own = named(path).split("/")[0]
        for node in ast.walk(tree(path)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            known = (own, *STANDS_ON.get(own, ()))
            others = [
                m
                for m in modules
                if re.match(r"det_(?!core\b)", m) and m.split(".")[0] not in known
            ]
            others = [m for m in others if not m.startswith(PARTS.get(own, ("-",)))]
            assert others == [], f"{named(path)} imports {others}"


MUTABLE = (
    "list",
    "dict",
    "set",
    "defaultdict",
    "deque",
    "Counter",
    "count",
    "Lock",
    "local",
    "Queue",
    "SimpleQueue",
)


def test_modules_keep_no_state() -> None:
    """At module level there are constants, in capitals or private, and loggers.

    Nothing rebinds or fills them.
    """
    found = {named(path): state_of(tree(path)) for path in FILES}
    assert {name: state for name, state in found.items() if state} == {}


def state_of(module: ast.Module) -> list[str]:
    """Return the statements that give a module a state."""
    state = [
        f"{node.lineno}: global {', '.join(node.names)}"
        for node in ast.walk(module)
        if isinstance(node, ast.Global)
    ]
    for node in module.body:
        value = (
            getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        )
        called = value.func if isinstance(value, ast.Call) else None
        maker = getattr(called, "id", getattr(called, "attr", ""))
        empty = (isinstance(value, ast.List) and not value.elts) or (
            isinstance(value, ast.Dict) and not value.keys
        )
        if empty or maker in MUTABLE:
            state.append(f"{node.lineno}: {ast.unparse(node)}")
    return state


def is_edge(path: Path) -> bool:
    """Return whether a module may read the environment."""
    name = (
        named(path).removeprefix("det_core/").removeprefix("det_node/").removeprefix("det_driver/")
    )
    return any(name == place or name.startswith(f"{place}/") for place in READS_ENVIRONMENT)


def test_the_environment_is_read_at_the_edges_only() -> None:
    reads = [
        f"{named(path)}:{node.lineno}"
        for path in FILES
        if not is_edge(path)
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"))
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    assert reads == []


def test_types_are_looked_at_while_modules_are_imported() -> None:
    """Where two threads decode to a new struct, one finds it half known, and the process crashes.

    A `Decoder` at the level of its module has looked at its type before there are threads; so has
    what is made of its `type`.
    """
    found = {named(path): late_looks(tree(path)) for path in FILES}
    assert {name: late for name, late in found.items() if late} == {}


def late_looks(module: ast.Module) -> list[str]:
    """Return the calls in functions that have msgspec look at a type."""
    late: list[str] = []

    def look(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Call) and inside:
            called, last = ast.unparse(node.func), ast.unparse(node.args[-1]) if node.args else ""
            typed = called.startswith("msgspec.") and any(
                keyword.arg == "type" for keyword in node.keywords
            )
            converts = called == "msgspec.convert" and not last.endswith(".type")
            if typed or converts or re.fullmatch(r"msgspec\.\w+\.Decoder\(.*\)\.decode", called):
                late.append(f"{node.lineno}: {ast.unparse(node)}")
        alone = isinstance(node, ast.With) and ast.unparse(node.items[0]).endswith("._looks")
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            look(child, (inside or function) and not alone)

    look(module, inside=False)
    return late


def test_each_large_class_has_a_reason_on_its_page() -> None:
    page = (ROOT / "docs/decisions/0034-large-classes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    reasons = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    large = {
        node.name
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        and sum(isinstance(each, ast.FunctionDef) for each in node.body) > METHODS
    }
    assert large == reasons


PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/development").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_names_of_code_on_a_developers_page_exist(page: Path) -> None:
    """Names begin with a package, as `det_core.train`, or with a class that the page named before.

    A name with another beginning is no concern of this test.
    """
    classes: dict[str, object] = {}
    missing = []
    for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)+)`", page.read_text()):
        root, _, rest = name.partition(".")
        if root in IMPORT_NAMES and not _is_module(name):
            owner, _, last = name.rpartition(".")
            found = getattr(pkgutil.resolve_name(owner), last, None)
            named = found if isinstance(found, type) else pkgutil.resolve_name(owner)
            classes[getattr(named, "__name__", "")] = named
        elif root in classes:
            found = getattr(classes[root], rest, None)
        else:
            continue
        if found is None:
            missing.append(name)
    assert missing == []


def _is_module(name: str) -> bool:
    """Return whether there is a module of that name, which may need a framework to be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
