"""`det check` refuses what a driver would refuse, with the same sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from det_core import Plugins
from det_core.config import parse
from det_core.errors import DetError, EntrypointError, PluginError
from det_driver.check import check_trial
from det_driver.driver import searcher_of

PLUGINS = Plugins.installed()
SEARCHERS = """
from det_driver.search import Create, Searcher, Train


class Good(Searcher):
    def __init__(self, config, hyperparameters, seed):
        self.metric = config.metric

    def start(self):
        return [Create(0, {}, 1), Train(0, 3)]

    def validated(self, trial, length, metrics):
        return []

    def exited(self, trial, reason):
        return []

    def progress(self, trial_progress):
        return 0.0


class Idle(Good):
    def start(self):
        return []
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with searchers of a user, which is importable in this test only."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "searchers_to_check", raising=False)
    (tmp_path / "searchers_to_check.py").write_text(SEARCHERS)
    return tmp_path


@pytest.mark.parametrize("entrypoint", ["python3 train.py", "model_def:Trial"])
@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("Nowhere", EntrypointError, "name a class derived from det_driver.search.Searcher"),
        ("Idle", PluginError, "searcher Idle starts without a trial"),
    ],
)
def test_a_custom_searcher_is_checked_as_a_driver_does(
    code: Path, entrypoint: str, name: str, error: type[DetError], said: str
) -> None:
    searcher = {"name": "custom", "metric": "x", "entrypoint": f"searchers_to_check:{name}"}
    config = parse({"entrypoint": entrypoint, "searcher": searcher}).config
    with pytest.raises(error, match=said) as checked:
        list(check_trial(config, code, PLUGINS, code / "scratch"))
    with pytest.raises(error) as driven:
        searcher_of(config, PLUGINS, code).start()
    assert str(checked.value) == str(driven.value)


def test_a_searcher_in_the_code_of_a_script_is_found(code: Path) -> None:
    searcher = {"name": "custom", "metric": "x", "entrypoint": "searchers_to_check:Good"}
    config = parse({"entrypoint": "python3 train.py", "searcher": searcher}).config
    [line] = check_trial(config, code, PLUGINS, code / "scratch")
    assert line.startswith("the entrypoint is a script")
