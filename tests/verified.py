"""An example that is trained, and trained again to compare."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = ("searcher.max_length.epochs=2", "min_validation_period.epochs=1", "min_checkpoint_period.epochs=1")


def example_is_verified(det: Any, name: str) -> dict[str, Any]:
    """Train an example for two epochs, and return what `det verify` says of it, which is that it trains the same again."""
    shutil.copytree(EXAMPLES / name, det.cwd / name)
    settings = [word for setting in SHORT for word in ("-c", setting)]
    det("run", det.cwd / name / "const.yaml", "--quiet", *settings)
    said: dict[str, Any] = det.json("verify", "1")
    assert (said["same"], said["difference"], said["causes"]) == (True, None, [])
    assert said["reports"] >= 2
    return said
