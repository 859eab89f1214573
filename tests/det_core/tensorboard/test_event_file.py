"""What a report becomes in TensorBoard's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from det_core.train.tensorboard import EventFile

WITHOUT_TENSORFLOW = """
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Told(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            sys.exit("tensorflow was asked for")

sys.meta_path.insert(0, Told())
from det_core.train.tensorboard import EventFile
file = EventFile(Path(sys.argv[1]))
file.add("training", 1, {"loss": 1.0})
file.close()
"""


def read(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each tag, as TensorBoard finds them."""
    events = EventAccumulator(str(directory))
    events.Reload()
    return {
        tag: [(each.step, each.value) for each in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_reports_are_there_at_once(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events")
    file.add("training", 10, {"loss": 0.5, "note": "no number", "flag": True})
    file.add("validation", 10, {"loss": 0.25, "val_error": 1.5})
    file.add("system", 10, {"memory": 3})
    assert read(tmp_path / "events") == {
        "Determined/loss": [(10, 0.5)],
        "Determined/flag": [(10, 1.0)],
        "Determined/val_loss": [(10, 0.25)],
        "Determined/val_error": [(10, 1.5)],
        "system/memory": [(10, 3.0)],
    }
    file.close()


def test_two_files_of_one_second_are_two(tmp_path: Path) -> None:
    for step in (1, 2):
        file = EventFile(tmp_path)
        file.add("training", step, {"loss": float(step)})
        file.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert read(tmp_path) == {"Determined/loss": [(1, 1.0), (2, 2.0)]}


def test_without_a_directory_or_a_report_nothing_is_written(tmp_path: Path) -> None:
    EventFile(None).add("training", 1, {"loss": 1.0})
    EventFile(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("in the way")
    file = EventFile(tmp_path / "file")
    with pytest.warns(UserWarning, match="no more events for TensorBoard"):
        file.add("training", 1, {"loss": 1.0})
    file.add("training", 2, {"loss": 1.0})


@pytest.mark.process
def test_a_driver_does_not_import_tensorflow_to_write_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert read(tmp_path) == {"Determined/loss": [(1, 1.0)]}
