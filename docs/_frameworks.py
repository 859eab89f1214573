"""Stand-ins for the frameworks.

With them the API of their plugins can be read where none of them is installed.

Sphinx's own mocks are objects, of which no type can be made (`int | torch.Tensor`); these are
classes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from typing import Any

NAMES = (
    *(
        "accelerate",
        "keras",
        "lightning",
        "tensorboard",
        "tensorflow",
        "tensorflow_estimator",
        "torch",
    ),
    *("anyio", "argon2", "h5py", "httpx2", "lightkube", "starlette"),
    *("torchmetrics", "transformers", "uv"),
)
VERSIONS = {"keras": "3.0.0", "lightning": "2.6.1", "tensorflow": "2.15.0"}


class _Kind(type):
    """The type of what a framework brings.

    It has every attribute, and may be called, derived from and subscripted.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return (
            _named(f"{cls.__qualname__}.{name}", cls.__module__)
            if name != "__version__"
            else "3.0.0"
        )

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        """Return what was decorated, or a stand-in for what a framework would make."""
        if len(arguments) == 1 and not keywords and isinstance(arguments[0], types.FunctionType):
            return arguments[0]
        return cls if cls.__dict__.get("stands_in") else super().__call__(*arguments, **keywords)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def _named(name: str, module: str) -> _Kind:
    return _Kind(
        name.rpartition(".")[2], (), {"__module__": module, "__qualname__": name, "stands_in": True}
    )


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 (as of any package)

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return VERSIONS.get(self.__name__, "3.0.0")
        if name.startswith("__"):
            raise AttributeError(name)
        made = _named(name, self.__name__)
        setattr(self, name, made)
        return made


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, name: str) -> None:
        self._about = f"Name: {name}\nVersion: {VERSIONS[name]}\n"

    def read_text(self, filename: str) -> str | None:
        return self._about if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return path


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        wanted = name.partition(".")[0] in NAMES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def find_distributions(self, context: Any) -> list[importlib.metadata.Distribution]:
        return [_Distribution(context.name)] if context.name in VERSIONS else []

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


def install() -> None:
    """Let stand-ins be imported from now on, whatever is installed.

    So the pages are the same everywhere.
    """
    sys.meta_path.insert(0, _Finder())
