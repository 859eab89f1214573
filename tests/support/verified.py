"""An example that is trained, and trained again to compare."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = (
    "searcher.max_length.epochs=2",
    "min_validation_period.epochs=1",
    "min_checkpoint_period.epochs=1",
)


def example_is_verified(det: Any, name: str) -> dict[str, Any]:
    """Train an example for two epochs, and return what `det verify` says of it.

    It says that it trains the same again.
    """
    shutil.copytree(EXAMPLES / name, det.cwd / name)
    settings = [word for setting in SHORT for word in ("-c", setting)]
    det("run", det.cwd / name / "const.yaml", "--quiet", *settings)
    said: dict[str, Any] = det.json("verify", "1")
    assert (said["same"], said["difference"], said["causes"]) == (True, None, [])
    assert said["reports"] >= 2
    return said


def its_data_is_found_to_differ(det: Any, name: str) -> None:
    """Train an example whose data was broken on purpose, so that it differs each time.

    `det verify` says where first.
    """
    shutil.copytree(EXAMPLES / name, det.cwd / name)
    model = det.cwd / name / "model_def.py"
    whole = model.read_text()
    broken = whole.replace(" / 16", " / (16 + __import__('time').time_ns() % 997 / 1000)")
    assert broken != whole
    model.write_text(broken)
    det(
        "run",
        det.cwd / name / "const.yaml",
        "--quiet",
        *(word for setting in SHORT for word in ("-c", setting)),
    )
    said: dict[str, Any] = det.json("verify", "1", status=1)
    assert (said["same"], said["difference"]["what"], said["difference"]["batches"]) == (
        False,
        "data",
        0,
    )
    assert "reads the time" in said["causes"][0]
