"""Somebody who comes from Determined types what they know.

The table of docs/from-determined.md, line by line.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.repo.reader import pattern

from det_driver.cli import main
from det_driver.cli._main import _COMMANDS
from det_driver.cli._words import ALIASES, INSTEAD
from det_driver.store import ExperimentState, Store
from determined._commands import experiment, trial
from determined._words import INSTEAD as INSTEAD_WITHIN
from determined._words import OPTIONS

ROOT = Path(__file__).parents[2]
PAGE = (
    (ROOT / "docs/from-determined.md").read_text(encoding="utf-8").partition("### Line by line")[2]
)
ROWS = re.findall(r"^\| `(det .+?)` \| (.+) \|$", PAGE.partition("\n## ")[0], re.MULTILINE)
CONFIG = {
    "name": "digits",
    "entrypoint": "python3 script.py",
    "searcher": {"name": "single", "metric": "error"},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a completed experiment 1, in a directory with its configuration and script."""
    home = tmp_path / "home"
    monkeypatch.setenv("DET_HOME", str(home))
    monkeypatch.delenv("DET_MASTER", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "const.yaml").write_text(json.dumps(CONFIG))
    (tmp_path / "script.py").write_text("")
    with Store(home) as store:
        id = store.experiments.create(
            name="digits", config=json.dumps(CONFIG), entrypoint="python3 script.py", metric="error"
        ).id
        with store.lock(id):
            made = store.trials.create(id, 0, {"lr": 0.1}, 0)
            run = store.runs.begin(made.id)
            store.metrics.report(made.id, run.id, "validation", 100, {"error": 0.25})
            run.log_dir.mkdir(parents=True)
            (run.log_dir / "rank-0.log").write_text("hello\n")
            store.runs.end(run.id, "COMPLETED")
            store.trials.update(made.id, state="COMPLETED")
            store.experiments.update(id, state=ExperimentState.COMPLETED, started=1.0, ended=2.0)
        code = store.code_dir(id)
        code.mkdir(parents=True)
        (code / "script.py").write_text("")
    return home


@pytest.mark.parametrize(("line", "said"), ROWS, ids=[line for line, _ in ROWS])
def test_a_line_of_determineds_users_works_or_is_answered(
    home: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    """The page shows the first line that is printed, in backticks, or an answer.

    An answer is the whole of what is printed.
    """
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line)[1:])
    out, err = capsys.readouterr()
    works = said.startswith("`")
    assert end.value.code == (0 if works else 2), out + err
    seen = ((out or err).splitlines()[0] if works else err.removeprefix("det: ").strip()).replace(
        str(home), "$DET_HOME"
    )
    assert pattern(said.strip("`")).fullmatch(seen.strip()), seen


def test_several_experiments_are_described_one_after_the_other(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(home) as store:
        store.experiments.create(name="second", config=json.dumps(CONFIG), metric="error")
    assert main_of(capsys, "e", "describe", "1,2").count("\nentrypoint: ") == 2
    described = json.loads(main_of(capsys, "e", "describe", "1,2", "--json"))
    assert [each["experiment"]["name"] for each in described] == ["digits", "second"]
    with pytest.raises(SystemExit) as end:
        main(["e", "describe", "1,x"])
    assert (end.value.code, "'x' is no number of an experiment" in capsys.readouterr().err) == (
        2,
        True,
    )


def main_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command that succeeds prints."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_page_has_the_lines_that_are_typed_most() -> None:
    assert len(ROWS) >= 40


def test_every_answer_is_for_something_that_does_not_work() -> None:
    """No answer hides a command or an option, and each is of a command that there is."""
    groups = {"experiment": experiment, "trial": trial}
    for name in INSTEAD_WITHIN:
        first, *rest = name.split()
        assert rest[-1] not in getattr(
            groups[first].commands.get(rest[0]), "commands", groups[first].commands
        )
    for name, options in OPTIONS.items():
        first, second = name.split()
        known = {option for each in groups[first].commands[second].params for option in each.opts}
        assert not known & options.keys()
    assert not INSTEAD.keys() & (_COMMANDS.keys() | ALIASES.keys())
    answers = [
        *INSTEAD_WITHIN.values(),
        *(text for options in OPTIONS.values() for text in options.values()),
    ]
    named = {name for text in answers for name in re.findall(r"\bdet ([a-z]+)", text)}
    assert named <= {*_COMMANDS, "e", "t"}
