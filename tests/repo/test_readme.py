"""What the README shows and says is so: its picture, its figures, and what there is."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from tests.repo.figures_table import written
from tests.repo.reader import Reader, blocks
from tests.support.terminal import Screen, seen

from det_core.hooks import OURS, Plugins, discover
from det_driver.cli._words import INSTEAD

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PICTURE = ROOT / "docs/_static/search.svg"
COLUMNS = 80
GATED = """
import os
import time

from model_def import DigitsTrial as Written


class DigitsTrial(Written):
    def train_batch(self, batch, epoch_idx, batch_idx):
        while batch_idx == 130 and self.context.get_trial_id() > 5 and not os.path.exists("GATE"):
            time.sleep(0.05)
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
SEARCH = """
name: digits
entrypoint: gated:DigitsTrial
hyperparameters: {global_batch_size: 32, lr: {type: log, minval: -3, maxval: 0}}
searcher:
  {name: random, metric: accuracy, smaller_is_better: false, max_trials: 7, max_length: 200, max_concurrent_trials: 2}
scheduling_unit: 40
reproducibility: {experiment_seed: 1}
"""


@pytest.mark.thorough
def test_the_picture_is_of_a_search_with_the_trial_of_the_readme(
    det, tmp_path: Path, pytestconfig
) -> None:
    """Two of its trials are held at a gate while it is taken.

    Numbers differ from run to run. `pytest --record` takes it anew.
    """
    reader, gate = Reader(det.home, det.cwd), tmp_path / "gate"
    for block in blocks(README)[:3]:
        if block.language == "python":
            reader.does(block)
    (det.cwd / "gated.py").write_text(GATED.replace("GATE", str(gate)))
    (det.cwd / "search.yaml").write_text(SEARCH)
    taken: list[str] = []

    def take(screen: Screen) -> None:
        frame = re.split(r"(?:\x1b\[2K(?:\x1b\[1A)?)+", screen.written.replace("\r", ""))[-2:][
            0
        ]  # the last may not be whole
        if not taken and all(
            re.search(rf"^ *{trial}  running +120 ", plain(frame), re.MULTILINE) for trial in (6, 7)
        ):
            taken.append(frame)
            gate.touch()

    env = det.env({"DET_SLOTS_TOTAL": "2"})
    screen = seen(det.argv(["run", "search.yaml"]), COLUMNS, env=env, cwd=det.cwd, watch=take)
    assert screen.wrapped[:1] == [] or screen.wrapped[0].startswith(("best checkpoint", "load it"))
    drawn = drawing(taken[0])
    if pytestconfig.getoption("--record"):
        PICTURE.write_text(drawn, encoding="utf-8")
    assert masked(drawn) == masked(PICTURE.read_text(encoding="utf-8"))
    assert "running" in masked(drawn)
    assert "url(http" not in drawn.replace('"', "")


def plain(frame: str) -> str:
    return Text.from_ansi(frame).plain


def drawing(frame: str) -> str:
    """Return a frame as an SVG that needs nothing from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(frame.rstrip()))
    svg = console.export_svg(title="det run search.yaml", unique_id="search")
    return re.sub(r"\s*@font-face \{[^}]*\}", "", svg).rstrip() + "\n"


def masked(svg: str) -> str:
    """Return the lines of a picture, without numbers."""
    lines: dict[str, str] = {}
    for y, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        lines[y] = f"{lines.get(y, '')} {html.unescape(text)}"
    return "\n".join(
        " ".join(re.sub(r"[\d.:]*\d(e-\d+)?", "#", line).split()) for line in lines.values()
    )


def test_its_figures_are_those_that_the_benchmarks_recorded_last() -> None:
    """Where this fails, run tests/repo/figures_table.py."""
    readme = README.read_text(encoding="utf-8")
    assert written(readme) == readme


@pytest.mark.parametrize("kind", ["Searchers", "Engines", "Storages"])
def test_what_it_says_that_there_is_is_what_the_houses_register(kind: str) -> None:
    plugins = Plugins()
    plugins.load(found for found in discover() if found.distribution in OURS)
    registered = {
        "Searchers": plugins.searchers(),
        "Engines": plugins.engines(),
        "Storages": plugins.storages(),
    }[kind]
    [line] = re.findall(rf"^{kind}[^:]*: (.+)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", line)) == set(registered)


def test_every_engine_that_is_a_plugin_is_named() -> None:
    [sentence] = re.findall(
        r"^Engines.*?as plugins \[(.+?)\]", README.read_text(encoding="utf-8"), re.M | re.S
    )
    engines = {
        file.parents[2].name.removeprefix("det-")
        for file in ROOT.glob("packages/*/src/*/*.py")
        if "EngineRecord(" in file.read_text(encoding="utf-8")
    } - {"core", "driver", "testing"}
    assert {word.lower() for word in re.findall(r"[A-Z]\w+", sentence)} == engines


THERE = {
    "web interface": ROOT / "packages/det-web",
    "samplers": ROOT / "packages/det-optuna",
    "Slurm": ROOT / "packages/det-slurm",
    "Ray": ROOT / "packages/det-ray",
    "Kubernetes": ROOT / "packages/det-kubernetes",
    "environments": ROOT / "packages/det-env",
    "FSDP": ROOT / "docs/guides/large-models.md",
    "several people share": ROOT / "packages/det-server",
    "user accounts": ROOT / "packages/det-server",
    "users": ROOT / "packages/det-server",
    "workspaces": ROOT / "packages/det-server",
    "tokens": ROOT / "packages/det-server",
    "sign in to": ROOT / "packages/det-server",
    "queue for slots": ROOT / "packages/det-driver/src/det_driver/queue",
    "shells": ROOT / "docs/guides/commands.md",
    "containers": ROOT / "packages/det-env",
    "webhooks": ROOT / "docs/guides/alerts.md",
    "history": ROOT / "packages/det-migrate",
    "model registry": ROOT / "packages/det-driver/src/det_driver/store/_models.py",
}
"""What a page may call absent, with what brings it: once that is there, the claim is wrong."""
ABSENT = re.compile(
    r"\bno\b(?! effect)|\bnot have\b|\bis gone\b|\bare gone\b|\bwithout a\b|\bnot in det\b|^## What is gone"
    r"|.*(?=\| not here)",
    re.MULTILINE,
)
PAGES = [
    "README.md",
    *(
        str(page.relative_to(ROOT))
        for folder in ("docs", "docs/guides", "docs/tutorials")
        for page in sorted((ROOT / folder).glob("*.md"))
    ),
]


def false_claims(text: str) -> list[tuple[str, str]]:
    """Return what a page calls absent although it is there, each with its sentence.

    What a command prints, in backticks, is of one home.
    """
    prose = re.sub(r"```.*?```|<!--.*?-->|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [
        (word, sentence)
        for sentence in re.split(r"(?<=[.:;])\s+(?!\n)|(?<=\|)\s+(?!\n|not here)", prose)
        for word, place in THERE.items()
        if place.exists()
        and (claim := ABSENT.search(sentence))
        and word in sentence[claim.start() :]
    ]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_calls_absent_is_not_there(page: str) -> None:
    assert false_claims((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "It trains. There is no web interface, no engine for Slurm, and no second sun.",
            ["web interface", "Slurm"],
        ),
        ("## What is gone\n\nThe master, users, shells, and containers.", ["users", "shells"]),
        ("| there is no master to sign in to |", ["sign in to"]),
        ("| FSDP, TPUs | not here |", ["FSDP"]),
        ("| `det shell list` | `no shells wait or run` |", []),
    ],
)
def test_a_false_claim_of_absence_is_found(text: str, words: list[str]) -> None:
    assert {word for word, _ in false_claims(text)} >= {*words}
    assert bool(false_claims(text)) == bool(words)


def test_a_group_of_commands_is_not_answered_as_absent() -> None:
    """What det-server and other packages have is named where Determined's word for it is typed."""
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (det [a-z -]+)$", page, re.MULTILINE)
    groups = [each for each in headings if any(other.startswith(f"{each} ") for other in headings)]
    answers = {
        word: INSTEAD[word] for word in INSTEAD for group in groups if group.endswith(f" {word}")
    }
    assert {"workspace", "token"} <= answers.keys()
    for word, answer in answers.items():
        assert any(group in answer for group in groups if group.endswith(f" {word}")), answer
