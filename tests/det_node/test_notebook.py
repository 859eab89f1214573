"""What a notebook is started with, and when it is not started."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from det_node import notebook
from det_node.notebook import LOOPBACK, UNIX


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_TRIAL_RUN_ID", "1")
    monkeypatch.setenv("DET_EXPERIMENT_ID", "3")
    monkeypatch.setenv("DET_SCRATCH_DIR", str(tmp_path / "scratch"))


def test_a_notebook_that_was_preempted_does_not_start_over(
    environ: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("DET_TRIAL_RUN_ID", "2")
    assert notebook.serve_notebook(LOOPBACK, tmp_path, None, None) == 0
    assert "was preempted or has lost its driver has ended" in capfd.readouterr().err


def test_a_missing_jupyterlab_is_named_with_its_command(
    environ: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert notebook.serve_notebook(LOOPBACK, tmp_path, None, None) == 127
    said = capfd.readouterr().err
    assert said.startswith("det: JupyterLab is not installed in this environment; run: ")
    assert said.endswith(" -m pip install jupyterlab\n")


def test_only_a_socket_goes_without_a_token(environ: None, tmp_path: Path) -> None:
    alone = notebook._settings(LOOPBACK, tmp_path, "")
    assert (alone["ServerApp"]["ip"], alone["ServerApp"]["sock"]) == ("127.0.0.1", "")
    tokens = {notebook._settings(LOOPBACK, tmp_path, "")["IdentityProvider"]["token"] for _ in "12"}
    assert len(tokens) == 2
    assert min(map(len, tokens)) > 40
    behind = notebook._settings(UNIX, tmp_path, "/x/notebook")
    assert behind["IdentityProvider"]["token"] == ""
    assert "ip" not in behind["ServerApp"]
    assert behind["ServerApp"]["sock"] == "/x/notebook"
    assert behind["ServerApp"]["base_url"] == "/notebooks/3/"


def test_its_files_are_for_its_user_only(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("an old one")
    file.chmod(0o644)
    notebook._write(file, json.dumps({"token": "secret"}))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"token": "secret"}
    assert list(tmp_path.iterdir()) == [file]


class Answers(notebook._Jupyter):
    """A Jupyter that answers what a test says."""

    def __init__(self, *answers: object) -> None:
        super().__init__(Path("/nonexistent"), 0)
        self.answers = [*answers]

    def get(self, path: str) -> object:
        if isinstance(self.answers[0], Exception):
            raise self.answers.pop(0)  # type: ignore[misc]
        return self.answers.pop(0)


def kernel(state: str, last: str = "1") -> list[dict[str, str]]:
    return [{"id": "k", "execution_state": state, "last_activity": last}]


def test_a_cell_that_runs_is_activity_and_an_open_page_is_not() -> None:
    jupyter = Answers(
        *(OSError("it starts"), [], []),
        *(kernel("idle"), None, kernel("idle"), None),
        *(kernel("busy"), [], kernel("busy"), []),
        *(kernel("idle", "2"), [], kernel("idle", "2"), []),
        *(kernel("idle", "2"), [{"name": "1", "last_activity": "3"}]),
        *(OSError("it hangs"),),
    )
    found = [jupyter.was_active() for _ in range(10)]
    # It starts; it answers; a kernel; the same; a cell, twice; its end; nothing; a terminal; none.
    assert found == [True, True, True, False, True, True, True, False, True, False]
