"""Tables in terminals of several widths, as pyte shows what a real pseudo-terminal was written."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from contextlib import redirect_stdout
from pathlib import Path

import pytest

pyte = pytest.importorskip("pyte")

from det_driver.cli import main  # noqa: E402
from det_driver.cli._table import Column, fitting, print_table  # noqa: E402
from det_driver.store import ExperimentState, Store  # noqa: E402

WIDTHS = (20, 60, 80, 100, 200)
REASON = (
    "FloatingPointError: validation_loss is nan from batch 12345678 on, after 0.00123456 had been"
    " reported"
)
NAMES = ("a", "mnist with a convolution, and augmented", "数据集上的实验" * 4, "x" * 70)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with long names, numbers of many digits, and reasons that are sentences."""
    home = tmp_path_factory.mktemp("tables") / "home"
    with Store(home) as store:
        for number, name in enumerate(NAMES):
            id = store.experiments.create(
                name=name,
                config="{}",
                metric="validation_loss",
                labels=["paper", "a label of several words"],
            ).id
            with store.lock(id):
                for request in range(3):
                    hparams = {
                        "learning_rate": 1.23456789e-05,
                        "width": 123456,
                        "activation": "leaky_relu_with_slope",
                    }
                    trial = store.trials.create(id, request, hparams, 0)
                    run = store.runs.begin(trial.id, host="node-17.cluster.example.org")
                    store.metrics.report(
                        trial.id,
                        run.id,
                        "validation",
                        12345678,
                        {"validation_loss": 1234.5678 + request, "text": name},
                    )
                    uuid = f"d24d0fe4-19f9-49a4-b903-f1d91a6f{id:02}{request:02}"
                    store.checkpoints.record(
                        uuid, trial.id, run.id, 12345678, storage="", size=1 << 40
                    )
                    store.runs.end(run.id, "ERROR", REASON)
                    store.trials.update(trial.id, state="ERROR", exit_reason=REASON)
                store.experiments.update(
                    id, state=ExperimentState.COMPLETED, started=1.0, ended=2.0 + number
                )
    return home


@pytest.fixture
def home(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DET_HOME", str(made))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS", raising=False)
    return made


def seen(arguments: list[str], columns: int) -> tuple[list[str], bool]:
    """Return the lines that a terminal shows after a command, and whether one was too long."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 300, columns, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                return
            if not part:
                return
            parts.append(part)

    reading = threading.Thread(target=read)
    reading.start()
    with (
        os.fdopen(theirs, "w") as terminal,
        redirect_stdout(terminal),
        pytest.raises(SystemExit) as end,
    ):
        main(arguments)
    reading.join(30)
    os.close(ours)
    assert end.value.code == 0
    screen = pyte.Screen(columns, 300)
    wide = pyte.Screen(1000, 300)
    for each in (screen, wide):
        pyte.ByteStream(each).feed(b"".join(parts))
    lines, unbroken = ([line.rstrip() for line in each.display] for each in (screen, wide))
    return [line for line in unbroken if line], lines != unbroken


COMMANDS = [
    ["list"],
    ["show", "2"],
    ["show", "3", "--runs"],
    ["checkpoint", "list", "2"],
    ["compare", "1", "2", "3", "4"],
    ["metrics", "3"],
]


@pytest.mark.slow
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_number_or_word_of_a_table_is_torn(
    home: Path, arguments: list[str], columns: int
) -> None:
    """No table is wider than the terminal, and all that looks like a number is a result."""
    lines, wrapped = seen(arguments, columns)
    assert not wrapped, "\n".join(lines)
    for number in re.findall(r"(?<![\w.-])\d[\d.]{4,}(?:e-\d+)?(?![\w-])", "\n".join(lines)):
        assert number in (
            "1234.57",
            "1235.57",
            "1236.57",
            "12345678",
            "123456",
            "0.00123456",
            "1.23457e-05",
            "1024.0",
        )
    words = {word for line in lines for word in re.findall(r"(?<=\s)[a-z]+(?=\s)", line)}
    for torn in ("convolu", "augmen", "valida", "COMPLE", "report"):
        assert torn not in words


def test_a_wide_terminal_and_a_pipe_leave_nothing_out(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = seen(["list"], 200)
    assert lines[0].split() == [
        "id",
        "name",
        "state",
        "progress",
        "trials",
        "metric",
        "best",
        "created",
        "labels",
    ]
    with pytest.raises(SystemExit):
        main(["list"])
    piped = capsys.readouterr().out.splitlines()
    assert piped[0].split() == lines[0].split()
    assert "x" * 70 in piped[1]
    assert len({line.index("COMPLETED") for line in piped[1:2] + piped[3:]}) == 1


def test_a_narrow_terminal_names_what_it_leaves_out(home: Path) -> None:
    lines, _ = seen(["list"], 60)
    assert lines[0].split()[:3] == ["id", "name", "state"]
    assert lines[-1].startswith("no room in 60 columns for: ") or "labels" in lines[-1]
    shown, _ = seen(["show", "1"], 60)
    assert "best validation_loss" in "\n".join(shown)


def test_columns_of_a_lower_rank_stay() -> None:
    made = [Column(name, rank, ["12345"]) for name, rank in (("a", 2), ("b", 0), ("c", 1))]
    assert [c.name for c in fitting(made, 5)] == ["b"]
    assert [c.name for c in fitting(made, 12)] == ["b", "c"]
    assert [c.name for c in fitting(made, 19)] == ["a", "b", "c"]


def test_wide_characters_take_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "state"), [("数据", "ok"), ("data", "ok")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name  state", "数据  ok", "data  ok"]


def test_an_empty_table_is_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [])
    assert capsys.readouterr().out == "a  b\n"
