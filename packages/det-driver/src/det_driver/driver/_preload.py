"""Which runs may be forks of a process that has imported their framework, and what it preloads.

The user's code is parsed, not run. This finds imports in the entrypoint and in the other files of
the user's code.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from det_core.config import ExperimentConfig, Single, is_trial_entrypoint
from det_core.support.paths import read_regular
from det_node.agent import HOOK

_ENVIRONMENT = re.compile(r"\b(environ|putenv|unsetenv|set_start_method)\b")


def find_preload_modules(
    config: ExperimentConfig, gpus: Sequence[str], code_dir: Path
) -> tuple[str, ...] | None:
    """Return the modules that all runs import, including their framework.

    Returns None where each run needs a new interpreter:

    - It uses a GPU or a container.
    - Something must come before imports: a startup hook, environment variables of the
      configuration, or code that sets some.
    - It is the only trial, so that a preload saves nothing.
    """
    entrypoint = config.entrypoint
    if (
        not is_trial_entrypoint(entrypoint)
        or not isinstance(entrypoint, str)
        or isinstance(config.searcher, Single)
    ):
        return None
    if (
        config.environment.container
        or gpus
        or config.environment.environment_variables.cpu
        or (code_dir / HOOK).exists()
    ):
        return None
    code = read_code(entrypoint.partition(":")[0], code_dir)
    return None if code.sets_environment else tuple(sorted(code.imports - sys.stdlib_module_names))


@dataclass
class Code:
    """The modules that a module imports from other directories, itself or through its own files."""

    imports: set[str] = field(default_factory=set)
    sets_environment: bool = False


def read_code(module: str, code_dir: Path) -> Code:
    """Parse a module of a directory and the others there that it imports.

    Files that are not Python are skipped.
    """
    code, seen, left = Code(), set[Path](), [*_files(module, code_dir)]
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            text = read_regular(file).decode()
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError):
            continue
        code.sets_environment |= bool(_ENVIRONMENT.search(text)) and any(
            map(_sets_environment, ast.walk(tree))
        )
        for name in _imported(tree, file, code_dir):
            own = list(_files(name, code_dir))
            left += own
            if not own:
                code.imports.add(name.partition(".")[0])
    return code


def _files(module: str, code_dir: Path) -> Iterator[Path]:
    """Yield the files of the directory that run when a module is imported."""
    place = code_dir
    for part in module.split("."):
        if (place / f"{part}.py").is_file():
            yield place / f"{part}.py"
        place = place / part
        if (place / "__init__.py").is_file():
            yield place / "__init__.py"


def _imported(tree: ast.AST, file: Path, code_dir: Path) -> Iterator[str]:
    package = file.parent.relative_to(code_dir).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            yield from (name for name in (base, *inside) if name and any(_files(name, code_dir)))
            if (
                not node.level
                and not any(_files(base, code_dir))
                and not (code_dir / base.replace(".", "/")).is_dir()
            ):
                yield base


def _sets_environment(node: ast.AST) -> bool:
    """Return whether a node changes environment variables or how processes are started."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return any(map(_is_variable, targets))
        case ast.AugAssign(target=target):
            return _is_variable(target)
        case ast.Call(
            func=ast.Attribute(value=changed, attr="setdefault" | "update" | "pop" | "clear")
        ):
            return _is_environ(changed)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in ("putenv", "unsetenv", "set_start_method")
        case _:
            return False


def _is_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and _is_environ(node.value)


def _is_environ(node: ast.AST) -> bool:
    return "environ" in (getattr(node, "attr", None), getattr(node, "id", None))
