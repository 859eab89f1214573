"""The definitions in the code of a configuration, read without an import.

They reveal mistakes in an entrypoint.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from det_core.checkpoint.code import code_files
from det_core.config import is_trial_entrypoint
from det_core.errors import EntrypointError, nearest

_BASES = ("Trial", "LightningAdapter")


def check_entrypoint(entrypoint: str | Sequence[str] | None, code_dir: Path) -> None:
    """Raise EntrypointError for a word that is no command, but names a module of `code_dir`.

    The name may also be misspelt. Examples are `model_def`, `model_def.py`, `model_def.Trial` and
    `modle_def`. Words that may be commands on other machines pass.
    """
    words = [entrypoint] if isinstance(entrypoint, str) else list(entrypoint or ())
    word = words[0].strip() if len(words) == 1 else ""
    if not word or is_trial_entrypoint(word) or len(word.split()) > 1 or os.sep in word:
        return
    if shutil.which(word) or shutil.which(word, path=str(Path(sys.executable).parent)):
        return
    modules, name = _modules(code_dir), word.removesuffix(".py")
    module, _, rest = name.replace(":", ".").partition(".")
    if not (found := module if module in modules else nearest(module, modules)):
        return
    classes = _classes(modules[found])
    trials = [nearest(rest, classes)] if rest and nearest(rest, classes) else _trials(classes)
    if not trials and modules[found].name != "__init__.py":
        raise EntrypointError(
            f"entrypoint {word!r} is no command; did you mean 'python3 {modules[found].name}'?"
        )
    listed = " or ".join(repr(f"{found}:{trial}") for trial in trials)
    way_out = (
        f"did you mean {listed}?" if trials else "write module:Class, such as model_def:MyTrial"
    )
    raise EntrypointError(f"entrypoint {word!r} names no class; {way_out}")


def check_syntax(code_dir: Path, before: Path) -> None:
    """Raise EntrypointError for a Python file that does not compile.

    Files that are as in the directory `before` pass, and those that did not compile there either.
    """
    for file in code_files(code_dir):
        if file.suffix != ".py":
            continue
        earlier = before / file
        if (wrong := _mistake(code_dir / file)) and not (earlier.is_file() and _mistake(earlier)):
            raise EntrypointError(f"{file}: {wrong}; correct it")


def _mistake(path: Path) -> str:
    """Return why a file does not compile, or an empty text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"line {error.lineno}: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            return str(error) or type(error).__name__
    return ""


def likely_entrypoint(code_dir: Path) -> str | None:
    """Return the trial class in a directory, or the command for its `train.py`.

    Returns None if there is no single candidate.
    """
    modules = _modules(code_dir)
    found = [
        f"{module}:{trial}" for module, path in modules.items() for trial in _trials(_classes(path))
    ]
    if len(found) == 1:
        return found[0]
    return "python3 train.py" if not found and "train" in modules else None


def _modules(code_dir: Path) -> dict[str, Path]:
    packages = {path.parent.name: path for path in sorted(code_dir.glob("*/__init__.py"))}
    return packages | {path.stem: path for path in sorted(code_dir.glob("*.py"))}


def _classes(path: Path) -> dict[str, list[str]]:
    """Return the classes of a module, each with the last names of its bases.

    Returns nothing if the module cannot be parsed.
    """
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        node.name: [_last(base) for base in node.bases]
        for node in body
        if isinstance(node, ast.ClassDef)
    }


def _last(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _trials(classes: dict[str, list[str]]) -> list[str]:
    """Return the classes that derive from a framework's trial."""
    return [name for name, bases in classes.items() if any(base.endswith(_BASES) for base in bases)]
