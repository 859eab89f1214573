"""What a checkpoint says of its trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from det_core import CheckpointError
from det_core.train.load_data import loading_run, read_load_data, trial_class_of


class Base: ...


def test_either_file_is_read_the_newer_first(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"hparams": {"a": 1}}')
    assert read_load_data(tmp_path) == {"hparams": {"a": 1}}
    (tmp_path / "load_data.json").write_text('{"hparams": {"a": 2}}')
    assert read_load_data(tmp_path) == {"hparams": {"a": 2}}


def test_missing_or_damaged_checkpoint_error_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"holds neither load_data.json nor metadata.json; name the directory of a",
    ):
        read_load_data(tmp_path)
    (tmp_path / "load_data.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"load_data.json is not JSON: .*; the checkpoint is damaged"
    ):
        read_load_data(tmp_path)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A checkpoint whose code has a class that imports its neighbour when it is made."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "loaded_neighbour.py").write_text("VALUE = 5\n")
    (folder / "loaded_model.py").write_text(
        "from tests.det_core.adapter.test_load_data import Base\n"
        "class Trial(Base):\n"
        "    def __init__(self):\n"
        "        import loaded_neighbour\n"
        "        self.value = loaded_neighbour.VALUE\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    "facts",
    [
        {"trial_cls_spec": "loaded_model:Trial"},
        {"experiment_config": {"entrypoint": "loaded_model:Trial"}},
    ],
)
def test_a_class_is_that_of_the_checkpoints_own_code(code: Path, facts: dict[str, Any]) -> None:
    with trial_class_of(code, facts, object) as found:
        assert found().value == 5  # type: ignore[attr-defined]


def test_given_trial_class_overrides_the_checkpoint(tmp_path: Path) -> None:
    with trial_class_of(tmp_path, {}, Base, Base) as found:
        assert found is Base


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "does not say which trial class it is of; give it as trial_class"),
        ("model", "does not say which trial class it is of; give it as trial_class"),
        (
            "__main__:Trial",
            (
                r"was defined in a script or a notebook \(__main__:Trial\), from where it cannot be"
                r" imported"
            ),
        ),
        (
            "model:make.<locals>.Trial",
            r"was defined inside a function \(model:make.<locals>.Trial\)",
        ),
        ("subprocess:Popen", "subprocess.Popen is no Base; give the trial_class of the checkpoint"),
    ],
)
def test_a_class_that_cannot_be_had_is_asked_for(
    tmp_path: Path, spec: str | None, message: str
) -> None:
    facts = {"trial_cls_spec": spec, "experiment_config": None}
    with (
        pytest.raises(CheckpointError, match=message) as asked,
        trial_class_of(tmp_path, facts, Base),
    ):
        pass
    assert "\n" not in str(asked.value)


def test_loading_run_has_hyperparameters_and_configuration() -> None:
    """A loading run trains nothing and has one rank."""
    run = loading_run("fake", {"a": 1}, {"entrypoint": "model_def:Trial", "data": {"url": "x"}})
    assert (run.hparams, run.config.data, run.distributed.size) == ({"a": 1}, {"url": "x"}, 1)
    assert loading_run("fake", None, None).hparams == {}


def test_of_a_configuration_of_another_version_the_data_is_kept() -> None:
    config = json.loads('{"of_another_time": 1, "data": {"url": "x"}}')
    with pytest.warns(
        UserWarning, match=r"the checkpoint's configuration is read in part: .*of_another_time"
    ):
        assert loading_run("fake", {}, config).config.data == {"url": "x"}
