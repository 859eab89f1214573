"""Changes what `det export` wrote, as somebody could who knows its format."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory


def repack(file: Path, change: Callable[[Path], object]) -> None:
    """Change an export as somebody could who knows its digests."""
    with TemporaryDirectory() as scratch:
        with tarfile.open(file) as tar:
            tar.extractall(scratch, filter="data")
        (Path(scratch) / "det-digests.json").unlink()
        change(Path(scratch))
        files = [
            path for path in Path(scratch).rglob("*") if path.is_file() and not path.is_symlink()
        ]
        named = {
            path.relative_to(scratch).as_posix(): path
            for path in files
            if not path.name.startswith("det-")
        }
        digests = {
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in named.items()
        }
        own = Path(scratch) / "det-digests.json"
        if not own.exists():
            own.write_text(json.dumps(digests))
        names = sorted(
            path.name for path in Path(scratch).iterdir() if not path.name.startswith("det-")
        )
        with tarfile.open(file, "w") as tar:
            for name in ("det-experiment.json", *names, "det-digests.json"):
                tar.add(Path(scratch) / name, name)
