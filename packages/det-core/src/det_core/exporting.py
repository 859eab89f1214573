"""A checkpoint's model in a form that is read without det: `python -m det_core.exporting DIRECTORY TARGET FRAMEWORK FORMAT`.

A process of its own, in the interpreter of the experiment, as the trial's code is run for it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from .errors import CheckpointError, DetError, did_you_mean
from .imports import import_from_path
from .load_data import read_load_data
from .plugins import Plugins

FACTS = "config.json"
"""What stands beside a model: a name that hubs of models look for."""


def export(directory: Path, target: Path, framework: str, format: str, plugins: Plugins) -> None:
    """Write the model of the framework's checkpoint in `directory` into the directory `target`, and what it was made with.

    Raises CheckpointError for a format that the framework does not have, and for a model that has no such form.
    """
    record = plugins.frameworks().get(framework)
    if record is None:
        raise CheckpointError(f"the checkpoint is of the framework {framework!r}, which no installed plugin has")
    if format not in record.exporters:
        known = ", ".join(sorted(record.exporters)) or "none"
        raise CheckpointError(
            f"the framework {framework} has no format {format!r}, but: {known}{did_you_mean(format, record.exporters)}"
        )
    module, _, function = record.exporters[format].rpartition(".")
    code = directory / "code"
    with import_from_path(code) if code.is_dir() else nullcontext():
        getattr(importlib.import_module(module), function)(directory, target)
    facts = read_load_data(directory)
    told = {"format": format, "framework": framework, "hyperparameters": facts.get("hparams")}
    (target / FACTS).write_text(json.dumps(told, indent=2) + "\n")


def needs(package: str, extra: str) -> CheckpointError:
    """Return what to say where a format's library is missing; `extra` is what installs it."""
    return CheckpointError(f"this format is written by {package}, which is not installed here: pip install '{extra}'")


def main(words: Sequence[str]) -> int:
    directory, target, framework, format = words
    try:
        export(Path(directory), Path(target), framework, format, Plugins.installed())
    except DetError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
