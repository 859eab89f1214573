"""Importing the code of a directory, whatever of the same name is imported already."""

from __future__ import annotations

import sys
import types

import pytest

from det_core import import_from_path
from det_core.support.imports import is_library_module


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Two directories with a module of the same name, of which the first is on the path."""
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "the_model.py").write_text(f"OF = {name!r}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "mine"), *sys.path])
    yield tmp_path
    sys.modules.pop("the_model", None)


def test_import_from_path_restores_a_module_of_the_same_name(code):
    import the_model as mine

    with import_from_path(code / "theirs"):
        import the_model as theirs
    assert (mine.OF, theirs.OF) == ("mine", "theirs")
    assert sys.modules["the_model"] is mine
    assert str(code / "theirs") not in sys.path


def test_import_from_path_keeps_a_module_that_was_new(code):
    with import_from_path(code / "theirs"):
        import the_model
    assert the_model.OF == "theirs"
    assert sys.modules["the_model"] is the_model
    assert str(code / "theirs") in sys.path


def test_import_from_path_restores_modules_after_an_error(code):
    import the_model as mine

    (code / "theirs" / "the_model.py").write_text("raise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"), import_from_path(code / "theirs"):
        import the_model  # noqa: F401
    assert sys.modules["the_model"] is mine


@pytest.mark.parametrize(
    ("folder", "installed"),
    [
        ("/env/lib/python3.11/site-packages/x", True),
        ("/usr/lib/python3/dist-packages/x", True),
        ("/home/me/my-packages/x", False),
    ],
)
def test_module_of_an_installed_package_is_a_librarys(folder, installed, monkeypatch):
    module = types.ModuleType("of_somebody")
    module.__file__ = f"{folder}/of_somebody.py"
    monkeypatch.setitem(sys.modules, "of_somebody", module)
    assert is_library_module("of_somebody") is installed
    assert is_library_module("os.path")
    assert is_library_module("pytest")
    assert not is_library_module(__name__)
