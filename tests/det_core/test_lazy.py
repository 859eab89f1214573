"""The public names of a package that imports them when they are asked for."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

INIT = """
    from typing import TYPE_CHECKING
    from det_core.support.lazy import lazy

    if TYPE_CHECKING:
        from . import three as three
        from .one import Thing as Thing
        from .two import LIMIT as LIMIT
        from .two import make as make

    asked = []
    lazy(__name__, before=lambda: asked.append(True))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    folder.joinpath("__init__.py").write_text("\n".join(line[4:] for line in INIT.splitlines()))
    folder.joinpath("one.py").write_text("class Thing: ...\n")
    folder.joinpath("three.py").write_text("VALUE = 3\n")
    folder.joinpath("two.py").write_text("LIMIT = 3\ndef make(): return LIMIT\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lazy_example", "lazy_example.one", "lazy_example.two", "lazy_example.three"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("lazy_example")


def test_a_name_is_imported_when_it_is_asked_for_and_only_then(package: ModuleType) -> None:
    assert "lazy_example.two" not in sys.modules
    assert package.make() == package.LIMIT == 3
    assert "lazy_example.one" not in sys.modules


def test_all_and_dir_know_the_names_constants_first(package: ModuleType) -> None:
    assert package.__all__ == ["LIMIT", "Thing", "make"]
    assert {"LIMIT", "Thing", "make", "lazy"} <= set(dir(package))


def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_example' has no attribute 'nothing'"):
        _ = package.nothing


def test_modules_of_the_package_are_imported_as_ever(package: ModuleType) -> None:
    from lazy_example import one

    assert one.Thing is package.Thing


def test_lazy_submodule_is_in_dir_but_not_in_a_star_import(package: ModuleType) -> None:
    assert "three" in dir(package)
    assert "three" not in package.__all__
    assert package.three.VALUE == 3


def test_what_must_come_before_an_import_is_asked_for_then_alone(package: ModuleType) -> None:
    assert not hasattr(package, "nothing")
    assert package.asked == []
    _ = package.LIMIT
    _ = package.LIMIT
    assert package.asked == [True]
