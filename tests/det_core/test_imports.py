"""Importing the code of a directory, whatever of the same name is imported already."""

from __future__ import annotations

import sys

import pytest

from det_core import import_from_path


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Two directories with a module of the same name, of which the first is on the path."""
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "the_model.py").write_text(f"OF = {name!r}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "mine"), *sys.path])
    yield tmp_path
    sys.modules.pop("the_model", None)


def test_a_module_of_the_same_name_is_that_of_the_directory_and_the_others_is_put_back(code):
    import the_model as mine

    with import_from_path(code / "theirs"):
        import the_model as theirs
    assert (mine.OF, theirs.OF) == ("mine", "theirs")
    assert sys.modules["the_model"] is mine
    assert str(code / "theirs") not in sys.path


def test_a_module_that_nobody_had_imported_stays_with_its_directory_on_the_path(code):
    with import_from_path(code / "theirs"):
        import the_model
    assert the_model.OF == "theirs"
    assert sys.modules["the_model"] is the_model
    assert str(code / "theirs") in sys.path


def test_what_was_imported_before_is_put_back_though_the_code_fails(code):
    import the_model as mine

    (code / "theirs" / "the_model.py").write_text("raise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"), import_from_path(code / "theirs"):
        import the_model  # noqa: F401
    assert sys.modules["the_model"] is mine
