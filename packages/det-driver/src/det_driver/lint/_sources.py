"""What rules check: the modules that an entrypoint imports, and the files that install packages."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from det_core.checkpoint.code import code_files
from det_core.config import ExperimentConfig, is_trial_entrypoint

HOOK, REQUIREMENTS = "startup-hook.sh", "requirements.txt"
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_NOQA = re.compile(
    r"#\s*noqa(?::\s*(?P<codes>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE
)


@dataclass(frozen=True, order=True)
class Finding:
    """A place where a rule is broken. Lines and columns count from 1."""

    path: str
    line: int
    column: int
    code: str
    message: str


@dataclass(frozen=True)
class Text:
    """A file of the experiment that is not Python."""

    path: str
    text: str

    def silenced(self, code: str, first: int, last: int | None = None) -> bool:
        """Return whether a comment on one of the lines silences a rule."""
        found = map(_NOQA.search, self.text.splitlines()[first - 1 : last or first])
        return any(
            f and (not f["codes"] or code in re.split(r"[,\s]+", f["codes"].upper())) for f in found
        )


@dataclass(frozen=True)
class Module(Text):
    """A module of the user's: its syntax tree, and what the names in it mean."""

    tree: ast.Module
    imported: dict[str, str] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    # The parent of each node, in the order of `ast.walk`.
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    @classmethod
    def parse(cls, path: str, source: bytes) -> Module:
        """Parse a module. Raises SyntaxError or ValueError where it is not valid Python."""
        # Warnings of escapes in strings appear when the module is imported.
        with warnings.catch_warnings(action="ignore"):
            module = cls(path, source.decode("utf-8", "replace"), ast.parse(source))
        for node in ast.walk(module.tree):
            module.parents.update((child, node) for child in ast.iter_child_nodes(node))
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    module.imported[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                module.imported.update(
                    {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
                )
        for each in module.tree.body:
            if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                module.constants.update(
                    {target.id: each.value for target in targets if isinstance(target, ast.Name)}
                )
        return module

    def dotted(self, node: ast.AST) -> str:
        """Return the full name of a node, such as `numpy.random.seed` for `np.random.seed`.

        Returns an empty string for a node that is not a name.
        """
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside."""
        while (found := self.parents.get(node)) is not None:
            yield found
            node = found

    def value(self, node: ast.expr | None) -> object:
        """Return the constant value of an expression, directly or by a name.

        None where it has none.
        """
        if isinstance(node, ast.Name):
            name, given = node.id, self.constants.get(node.id)
            for up in self.around(node):
                # A name that the function itself sets, once.
                if isinstance(up, FUNCTION) and name in bound(up):
                    sets = [
                        n
                        for n in ast.walk(up)
                        if getattr(n, "id", getattr(n, "arg", "")) == name and not _loads(n)
                    ]
                    above = self.parents[sets[0]]
                    given = (
                        above.value if len(sets) == 1 and isinstance(above, ast.Assign) else None
                    )
                    break
            node = given
        if isinstance(node, ast.UnaryOp):
            node = node.operand
        return node.value if isinstance(node, ast.Constant) else None

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Yield every call with the full name of the function, or `.NAME` if only that is known."""
        for node in self.parents:
            if isinstance(node, ast.Call):
                yield node, self.dotted(node.func) or f".{getattr(node.func, 'attr', '')}"


def _loads(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def bound(function: Function) -> set[str]:
    """Return the local names of a function."""
    names = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return names | {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not _loads(n)}


@dataclass(frozen=True)
class Sources:
    """An experiment as the rules see it."""

    config: ExperimentConfig
    # That of the entrypoint comes first.
    modules: Sequence[Module]
    texts: Sequence[Text]
    unreadable: Sequence[Finding] = ()

    @property
    def is_script(self) -> bool:
        return not is_trial_entrypoint(self.config.entrypoint)

    @classmethod
    def read(cls, config: ExperimentConfig, root: Path) -> Sources:
        """Read the modules in `root` that the entrypoint imports, and the requirement files."""
        files = {path.as_posix() for path in code_files(root)}
        waiting, tops = _entries(config.entrypoint, files)
        modules: dict[str, Module] = {}
        unreadable: list[Finding] = []
        while waiting:
            if (path := waiting.pop(0)) in modules:
                continue
            try:
                modules[path] = module = Module.parse(path, (root / path).read_bytes())
            except (SyntaxError, ValueError) as error:
                modules[path] = Module(path, "", ast.Module([], []))
                line, column = (
                    getattr(error, "lineno", None) or 1,
                    getattr(error, "offset", None) or 1,
                )
                unreadable.append(
                    Finding(
                        path, line, column, "DET001", f"no Python: {getattr(error, 'msg', error)}"
                    )
                )
                continue
            package = PurePosixPath(path).parent.parts
            names = (name for node in module.parents for name in imports(node, package))
            waiting += [found for name in names for found in _found(name, files, tops)]
        texts = [Text(HOOK, (root / HOOK).read_text("utf-8", "replace"))] if HOOK in files else []
        named = re.findall(r"-r\s*(\S+)", "".join(text.text for text in texts))
        listed = sorted({REQUIREMENTS, *(str(PurePosixPath(name)) for name in named)} & files)
        texts += [Text(name, (root / name).read_text("utf-8", "replace")) for name in listed]
        return cls(config, list(modules.values()), texts, unreadable)


def _entries(entrypoint: str | Sequence[str] | None, files: set[str]) -> tuple[list[str], set[str]]:
    """Return the files of an entrypoint, and the directories where its imports are searched."""
    if isinstance(entrypoint, str) and is_trial_entrypoint(entrypoint):
        return list(_found(entrypoint.partition(":")[0], files, {""})), {""}
    try:
        words = shlex.split(entrypoint) if isinstance(entrypoint, str) else list(entrypoint or ())
    except ValueError:
        return [], {""}
    scripts = [
        path
        for word in words
        if (path := str(PurePosixPath(word))) in files and word.endswith(".py")
    ]
    named = [
        name
        for option, module in pairwise(words)
        if option == "-m"
        for name in (module, f"{module}.__main__")
    ]
    tops = {"", *(str(PurePosixPath(script).parent) for script in scripts)}
    return scripts + [path for name in named for path in _found(name, files, {""})], tops


def imports(node: ast.AST, package: Sequence[str] = ()) -> Iterator[str]:
    """Yield the full names of what a statement in a module of a package imports or may import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        around = package[: len(package) - node.level + 1] if node.level else ()
        base = ".".join([*around, *([node.module] if node.module else [])])
        yield from (base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names))


def _found(name: str, files: set[str], tops: Iterable[str]) -> Iterator[str]:
    """Yield the files that importing a module runs: its own, and those of its parent packages."""
    parts = name.split(".")
    for top in tops:
        for count in range(1, len(parts) + 1):
            stem = PurePosixPath(top, *parts[:count])
            yield from (path for path in (f"{stem}/__init__.py", f"{stem}.py") if path in files)


Check = Callable[[Any, Sources], Iterator[tuple[ast.AST | tuple[int, int], str]]]


@dataclass(frozen=True)
class Rule:
    """A rule. `why` says in its first sentence what is wrong, then why it matters and what to do.

    `of` are the types of sources that it checks.
    """

    code: str
    name: str
    why: str
    check: Check
    of: tuple[type[Text], ...]


def rule(code: str, *, of: tuple[type[Text], ...] = (Module,)) -> Callable[[Check], Rule]:
    """Make a rule from a function that finds breaches in one source.

    The rule has the function's name and docstring.
    """
    return lambda check: Rule(
        code, check.__name__.replace("_", "-"), inspect.getdoc(check) or "", check, of
    )
