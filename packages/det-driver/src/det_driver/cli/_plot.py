"""Drawing into a file, with matplotlib where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from det_core.errors import DetError


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, in inches; nothing is shown on a screen."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise DetError("--plot draws with matplotlib, which is not installed; pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format that the suffix of `path` names."""
    try:
        figure.savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise DetError(
            f"cannot draw into {path}: {' '.join(str(error).split())}; give a file such as plot.png"
        ) from error
