"""Files of Weights & Biases, as the library wrote them."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.det_migrate.test_command import invoke
from tests.det_migrate.test_others import DATA, KEY, bring, read

from det_core.errors import DetError
from det_driver.provenance import elsewhere
from det_driver.store import Store, TrialState
from det_migrate.others import OtherRun, Point, Remark
from det_migrate.wandb import find_wandb


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory wandb of a training."""
    for file in DATA.glob("*.wandb"):
        folder = tmp_path / "wandb" / f"offline-run-{file.stem}"
        (folder / "files").mkdir(parents=True)
        shutil.copy(file, folder)
    (tmp_path / "wandb/offline-run-0/files/output.log").write_text(f"it began\nthe key is {KEY}\n")
    return tmp_path / "wandb"


def test_what_wandb_wrote_comes_back_as_it_was(place: Path, home: Path) -> None:
    done = invoke(home, "migrate", "wandb", str(place), "--metric", "val.loss")
    assert done.exit_code == 0, done.output
    assert "trials: 3 read, 3 written" in done.stdout
    assert "  12 left out: not a number" in done.stdout
    trials = read(home, 1)
    assert {name: rest[0] for name, rest in trials.items()} == {
        "run first123": TrialState.COMPLETED,
        "run second45": TrialState.ERROR,
    }
    _, hparams, reports = trials["run first123"]
    assert {name: hparams[name] for name in ("lr", "net")} == {
        "lr": 0.1,
        "net": {"width": 8, "act": "relu"},
    }
    # The run went on from step 20 in a second file.
    steps = (0, 10, 20, 30, 40)
    assert [(at, values) for at, _, values in reports["validation"]] == [
        (at, {"val.loss": 2 / (at + 1)}) for at in steps
    ]
    assert [(at, values["loss"]) for at, _, values in reports["training"]] == [
        (at, 1 / (at + 1)) for at in steps
    ]
    assert all(math.isnan(values["odd"]) for _, _, values in reports["training"])
    assert set(read(home, 2)) == {"run third678"}
    with Store.reader(home) as store:
        first, second = store.trials.list(1)
        assert (first.best_metric, first.best_batches) == (2 / 41, 40)
        assert second.exit_reason == "it ended with status 3"
        assert store.experiments.get(2).name == "digits: sweep sweep9"
        [run] = store.runs.list(first.id)
        assert (run.log_dir / "rank-0.log").read_text().startswith("it began\nthe key is ")
        kept = elsewhere(store.experiment_dir(1))["trials"][str(first.id)]
        assert (kept["tags"], kept["notes"], kept["summary"]["best"]) == (["a"], "a note", 0.5)
        assert kept["summary"]["odd"] == "nan"
    assert not [
        file for file in home.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()
    ]
    assert bring(find_wandb(place), home).left_out == {("experiments", "there already"): 2}


def test_a_run_that_was_killed_is_read_as_far_as_it_goes(place: Path, home: Path) -> None:
    [file] = place.glob("*-1/*.wandb")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    bring(find_wandb(place), home)
    with Store.reader(home) as store:
        assert "it never ended in W&B" in {trial.exit_reason for trial in store.trials.list(1)}


SMALL = (DATA / "0.wandb").read_bytes()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(SMALL) - 1), st.integers(1, 255), st.booleans())
def test_a_damaged_file_is_read_up_to_there_or_refused(at: int, change: int, is_cut: bool) -> None:
    undamaged = [*find_wandb(DATA / "0.wandb")[0].records()]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "run.wandb"
        file.write_bytes(
            SMALL[:at] if is_cut else bytes([*SMALL[:at], SMALL[at] ^ change, *SMALL[at + 1 :]])
        )
        try:
            [project] = find_wandb(file)
            found = [*project.records()]
        except DetError:
            return
    points = [repr(each) for each in found if isinstance(each, Point)]
    assert points == [repr(each) for each in undamaged if isinstance(each, Point)][: len(points)]
    [run] = [each for each in found if isinstance(each, OtherRun)]
    assert (
        run.state is TrialState.ERROR
        or is_cut
        or [each for each in found if isinstance(each, Remark)]
        or at < 7
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no file", "it is no file of W&B's"),
        (SMALL[:7], "says nothing of its run"),
        (SMALL[:20] + b"?" + SMALL[21:], "byte 7 is damaged"),
    ],
)
def test_what_is_no_file_of_wandb_is_named(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "run.wandb").write_bytes(data)
    with pytest.raises(DetError, match=why):
        find_wandb(tmp_path)
    (tmp_path / "run.wandb").unlink()
    with pytest.raises(DetError, match="there is no file"):
        find_wandb(tmp_path)
