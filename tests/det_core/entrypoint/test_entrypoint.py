"""From `module:Class` to the class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from det_core import EntrypointError, load_trial


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    """A code directory, whose modules are forgotten afterwards."""
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "model_def.py").write_text(
        "import collections\nfrom pathlib import Path\nclass Trial:\n    class Inner: pass\nclass"
        " Other: pass\nlength = 3\n"
    )
    package = tmp_path / "pkg" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "model.py").write_text(
        "from ..helper import VALUE\nclass Trial:\n    value = VALUE\n"
    )
    (tmp_path / "pkg" / "helper.py").write_text("VALUE = 7\n")
    (tmp_path / "broken.py").write_text("import a_library_that_is_missing\n")
    (tmp_path / "faulty.py").write_text("1 / 0\n")
    (tmp_path / "crooked.py").write_text("class Trial(:\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_class_is_found_in_the_code_directory(code: Path) -> None:
    assert load_trial("model_def:Trial", code).__qualname__ == "Trial"


def test_a_class_is_found_in_a_package(code: Path) -> None:
    assert load_trial("pkg.deep.model:Trial", code).value == 7  # type: ignore[attr-defined]


def test_a_class_may_lie_inside_another(code: Path) -> None:
    assert load_trial("model_def:Trial.Inner", code).__qualname__ == "Trial.Inner"


def test_module_in_the_code_directory_precedes_an_installed_one(code: Path) -> None:
    """The directory comes first on the path, even where it was on it already, further back."""
    (code / "tomllib.py").write_text("class Trial: pass\n")
    sys.path.append(str(code))
    installed = sys.modules.pop("tomllib", None)
    try:
        assert load_trial("tomllib:Trial", code).__module__ == "tomllib"
    finally:
        sys.modules.pop("tomllib", None)
        if installed:
            sys.modules["tomllib"] = installed


def test_an_installed_module_is_found_too(code: Path) -> None:
    assert load_trial("collections:OrderedDict", code).__qualname__ == "OrderedDict"


@pytest.mark.parametrize(
    "entrypoint",
    ["modle_def:Trial", "pkg.modle:Trial", "nowhere.at.all:Trial", "model_def.sub:Trial"],
)
def test_a_module_that_is_missing_is_named_with_those_there_are(
    code: Path, entrypoint: str
) -> None:
    module = entrypoint.partition(":")[0]
    with pytest.raises(
        EntrypointError,
        match=(
            rf"no module named '{module}' in .* \(it has broken\.py, crooked\.py, faulty\.py,"
            r" model_def\.py\)"
        )
        + (r"; did you mean 'model_def'\?$" if module.startswith("mod") else "$"),
    ):
        load_trial(entrypoint, code)


def test_a_file_in_place_of_a_module_is_told_the_module(code: Path) -> None:
    with pytest.raises(EntrypointError) as refused:
        load_trial("model_def.py:Trial", code)
    assert str(refused.value) == (
        "entrypoint 'model_def.py:Trial' names a file; name its module: 'model_def:Trial'"
    )


def test_a_directory_without_python_says_so(tmp_path: Path) -> None:
    with pytest.raises(EntrypointError, match=r"\(it has no Python files\)"):
        load_trial("model_defx:Trial", tmp_path)


def test_a_class_that_is_missing_is_named_with_those_there_are(code: Path) -> None:
    """Those that the module defines, and not those that it imports."""
    with pytest.raises(
        EntrypointError,
        match=(
            r"'model_def:Trail': model_def has no 'Trail'; did you mean 'Trial'\? it defines:"
            r" Trial, Other$"
        ),
    ):
        load_trial("model_def:Trail", code)


def test_a_missing_inner_class_is_named_by_the_class_around_it(code: Path) -> None:
    with pytest.raises(EntrypointError, match=r"model_def:Trial has no 'Outer'; it defines: Inner"):
        load_trial("model_def:Trial.Outer", code)


def test_what_is_no_class_is_refused(code: Path) -> None:
    with pytest.raises(
        EntrypointError,
        match="entrypoint 'model_def:length' is no class but of type int; name a trial class",
    ):
        load_trial("model_def:length", code)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "model_def",
        "model_def:",
        ":Trial",
        "model-def:Trial",
        "model_def:Trial:x",
        "..x:Trial",
        "a b:C",
    ],
)
def test_what_names_no_class_is_refused(code: Path, entrypoint: str) -> None:
    with pytest.raises(
        EntrypointError,
        match=(
            f"entrypoint '{entrypoint}' names no class; write module:Class, such as"
            " model_def:MyTrial"
        ),
    ):
        load_trial(entrypoint, code)


@pytest.mark.parametrize(
    ("entrypoint", "error"),
    [
        ("broken:Trial", ModuleNotFoundError),
        ("faulty:Trial", ZeroDivisionError),
        ("crooked:Trial", SyntaxError),
    ],
)
def test_what_the_users_module_raises_passes_through(
    code: Path, entrypoint: str, error: type[Exception]
) -> None:
    """A library that is missing is no missing entrypoint."""
    with pytest.raises(error):
        load_trial(entrypoint, code)


def test_what_a_package_raises_passes_through(code: Path) -> None:
    """Even a library whose name begins as the package's does."""
    (code / "pkg" / "__init__.py").write_text("import pk\n")
    with pytest.raises(ModuleNotFoundError, match="'pk'"):
        load_trial("pkg.deep.model:Trial", code)
