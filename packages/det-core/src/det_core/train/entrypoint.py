"""Imports the class of an entrypoint `module:Class` and makes a trial of it.

Mistakes of the user raise an error with one sentence.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import EntrypointError, TrialError, did_you_mean, nearest
from ..support.installation import DISTRIBUTIONS, how_to_install

T = TypeVar("T")


def load_trial(entrypoint: str, code_dir: Path) -> type:
    """Import the class that `entrypoint` names, from `code_dir` or elsewhere on `sys.path`.

    `code_dir` is put at the head of `sys.path`. Raises EntrypointError when there is no such module
    or class. What the module itself raises while it is imported passes through.
    """
    module_name, _, path = entrypoint.partition(":")
    if not all(part.isidentifier() for name in (module_name, path) for part in name.split(".")):
        raise EntrypointError(
            f"entrypoint {entrypoint!r} names no class; write module:Class, such as"
            " model_def:MyTrial"
        )
    if sys.path[:1] != [str(code_dir)]:
        sys.path.insert(0, str(code_dir))
        importlib.invalidate_caches()
    found: object = _imported(module_name, entrypoint, code_dir)
    where = module_name
    for name in path.split("."):
        if not hasattr(found, name):
            classes = _classes(found, module_name)
            near, listed = did_you_mean(name, classes) or ";", ", ".join(classes) or "no class"
            raise EntrypointError(
                f"entrypoint {entrypoint!r}: {where} has no {name!r}{near} it defines: {listed}"
            )
        found = getattr(found, name)
        where += f".{name}" if ":" in where else f":{name}"
    if not inspect.isclass(found):
        raise EntrypointError(
            f"entrypoint {entrypoint!r} is no class but of type {type(found).__name__}; name a"
            " trial class"
        )
    return found


def _imported(module_name: str, entrypoint: str, code_dir: Path) -> object:
    """Import a module of the user.

    Raises EntrypointError if it is not there or lacks a plugin of det. Other errors pass through.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            files = sorted(path.name for path in code_dir.glob("*.py"))
            if module_name in files:
                module = entrypoint.replace(".py:", ":", 1)
                raise EntrypointError(
                    f"entrypoint {entrypoint!r} names a file; name its module: {module!r}"
                ) from None
            near = did_you_mean(module_name, [name.removesuffix(".py") for name in files])
            raise EntrypointError(
                f"entrypoint {entrypoint!r}: no module named {module_name!r} in {code_dir} "
                f"(it has {', '.join(files) or 'no Python files'}){near}"
            ) from None
        package = (error.name or "").partition(".")[0]
        if package.startswith("det_") and importlib.util.find_spec(package) is None:
            name = package.replace("_", "-")
            way_out = (
                f"Try: {how_to_install(name)}"
                if name in DISTRIBUTIONS
                else "Install the package that brings it"
            )
            raise EntrypointError(
                f"entrypoint {entrypoint!r} imports {package}, which is not installed. {way_out}"
            ) from error
        raise


def _classes(found: object, module_name: str) -> list[str]:
    members = getattr(found, "__dict__", {}).items()
    return [
        name
        for name, value in members
        if inspect.isclass(value) and value.__module__ == module_name
    ]


def make_importable(code_dir: Path) -> None:
    """Put a directory of the user's code at the head of `sys.path`, once."""
    if str(code_dir) not in sys.path:
        sys.path.insert(0, str(code_dir))
        importlib.invalidate_caches()


def make_trial(trial_class: type[T], base: type, context: Any, **arguments: Any) -> T:
    """Make a trial, and set its `context` if the constructor of `base` was not called.

    Raises TrialError for a class that lacks a method which every `base` must have, or whose
    constructor takes other arguments.
    """
    missing = sorted(getattr(trial_class, "__abstractmethods__", ()))
    if missing:
        raise TrialError(
            f"{trial_class.__name__} does not define {', '.join(missing)}; every {base.__name__}"
            f" must{misspelled(trial_class, base, missing)}"
        )
    must_take(trial_class, f"{trial_class.__name__}.__init__", [("context",)], **arguments)
    make: Callable[..., Any] = trial_class
    trial = make(context, **arguments)
    if not hasattr(trial, "context"):
        trial.context = context
    return trial  # type: ignore[no-any-return]


def misspelled(trial_class: type, base: type, missing: Iterable[str]) -> str:
    """Return the end of a sentence about missing methods, with those of similar names.

    Only names that `base` does not have count, each for the one that it resembles most. Empty if
    none is similar.
    """
    missing = list(missing)
    own = [
        name for name in dir(trial_class) if not name.startswith("_") and not hasattr(base, name)
    ]
    found = ((nearest(name, own), name) for name in missing)
    return "".join(
        f"; it has {near!r}, did you mean {name!r}?"
        for near, name in found
        if near and nearest(near, missing) == name
    )


def must_take(
    function: Callable[..., Any], name: str, forms: Sequence[Sequence[str]], **arguments: Any
) -> None:
    """Raise TrialError unless a user's method accepts the parameters of one of the forms.

    `arguments` are its keywords.
    """
    signature = inspect.signature(function)
    for form in forms:
        try:
            signature.bind(*form, **arguments)
            return
        except TypeError:
            continue
    wanted = ", ".join(("self", *forms[0], *arguments))
    raise TrialError(f"{name} takes {signature}; define it as {name.rpartition('.')[2]}({wanted})")
