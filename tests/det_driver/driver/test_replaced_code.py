"""An experiment goes on with other code, which is noted: when, its digest, and what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from det_core import Plugins
from det_core.config import parse
from det_core.errors import EntrypointError, ExperimentBusy
from det_driver.driver import create, replace_code
from det_driver.provenance import diff, digest, read
from det_driver.store import Store

CODE = "class Trial:\n    lr = 1\n"
CONFIG = {
    "entrypoint": "model_def:Trial",
    "searcher": {"name": "single", "metric": "loss", "max_length": 10},
    "environment": {"environment_variables": ["HF_TOKEN=hf_1234567"]},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as store:
        yield store


@pytest.fixture
def code(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    code.joinpath("model_def.py").write_text(CODE)
    code.joinpath("old.py").write_text("x = 1\n")
    return code


@pytest.fixture
def experiment(store: Store, code: Path) -> int:
    return create(store, parse(CONFIG).config, code, plugins=Plugins())


def test_the_new_code_its_digest_and_its_diff_are_kept(
    store: Store, code: Path, experiment: int
) -> None:
    directory = store.experiment_dir(experiment)
    packages = read(directory)["packages"]
    code.joinpath("model_def.py").write_text(CODE.replace("lr = 1", "lr = 2  # hf_1234567"))
    code.joinpath("old.py").unlink()
    replace_code(store, experiment, code)
    place = store.code_dir(experiment)
    assert [file.name for file in place.iterdir()] == ["model_def.py"]
    assert "lr = 2" in place.joinpath("model_def.py").read_text()
    kept = read(directory)
    (change,) = kept["code"]
    assert change["digest"] == digest(code)
    assert "-    lr = 1\n+    lr = 2" in change["diff"]
    assert "-x = 1" in change["diff"]
    assert "hf_1234567" not in change["diff"]
    assert kept["packages"] == packages
    replace_code(store, experiment, code)
    assert [each["diff"] == "" for each in read(directory)["code"]] == [False, True]
    assert [path.name for path in directory.iterdir() if path.name.startswith(".code")] == []


def test_code_that_does_not_compile_is_refused_before_a_run(
    store: Store, code: Path, experiment: int
) -> None:
    code.joinpath("model_def.py").write_text(CODE + "    def f(:\n")
    with pytest.raises(EntrypointError, match=r"model_def\.py: line 3: .*; correct it$"):
        replace_code(store, experiment, code)
    assert store.code_dir(experiment).joinpath("model_def.py").read_text() == CODE
    assert "code" not in read(store.experiment_dir(experiment))


def test_files_that_never_compiled_do_not_hinder(store: Store, code: Path) -> None:
    """Such as templates, and code for the Python of another environment."""
    code.joinpath("template.py").write_text("import {{name}}\n")
    experiment = create(store, parse(CONFIG).config, code, plugins=Plugins())
    code.joinpath("template.py").write_text("import {{other}}\n")
    replace_code(store, experiment, code)
    assert "other" in store.code_dir(experiment).joinpath("template.py").read_text()


def test_the_code_of_an_experiment_that_is_driven_stays(
    store: Store, code: Path, experiment: int
) -> None:
    with Store(store.home) as other, other.lock(experiment), pytest.raises(ExperimentBusy):
        replace_code(store, experiment, code)


def test_what_is_no_text_is_said_to_differ(tmp_path: Path) -> None:
    for name, data in (("a", b"\xff\x00"), ("b", b"\xfe")):
        tmp_path.joinpath(name).mkdir()
        tmp_path.joinpath(name, "w.bin").write_bytes(data)
    tmp_path.joinpath("b", "__init__.py").write_text("")
    assert diff(tmp_path / "a", tmp_path / "b").splitlines() == [
        "__init__.py differs",
        "w.bin differs",
    ]
    assert diff(tmp_path / "a", tmp_path / "a") == ""
