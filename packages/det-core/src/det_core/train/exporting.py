"""Writes a checkpoint's model in a form that is read without det.

`python -m det_core.train.exporting DIRECTORY TARGET FRAMEWORK FORMAT` is its own process, in the
interpreter of the experiment, because it runs the trial's code. The configuration in a
checkpoint is masked. `experiment.json` in the parent of DIRECTORY holds it with its secrets.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ..config import from_json
from ..errors import CheckpointError, DetError, did_you_mean
from ..hooks import Plugins
from ..support.imports import import_from_path
from ..support.installation import how_to_install
from .load_data import known_config, read_load_data

FACTS = "config.json"
"""The file with the facts about a model. Hubs of models look for this name."""
EXPERIMENT = "experiment.json"
"""The file with the complete configuration, in the parent of a checkpoint's directory."""


def export(directory: Path, target: Path, framework: str, format: str, plugins: Plugins) -> None:
    """Write the model of the checkpoint in `directory` into `target`, and the facts about it.

    Raises CheckpointError for a format that the framework does not have, and for a model that has
    no such form.
    """
    record = plugins.frameworks().get(framework)
    if record is None:
        raise CheckpointError(
            f"the checkpoint is of the framework {framework!r}, which no installed plugin has"
        )
    if format not in record.exporters:
        known = ", ".join(sorted(record.exporters)) or "none"
        raise CheckpointError(
            f"the framework {framework} has no format {format!r}, but:"
            f" {known}{did_you_mean(format, record.exporters)}"
        )
    module, _, function = record.exporters[format].rpartition(".")
    code, file = directory / "code", directory.with_name(EXPERIMENT)
    config = from_json(file.read_bytes()) if file.is_file() else None
    with known_config(config), import_from_path(code) if code.is_dir() else nullcontext():
        getattr(importlib.import_module(module), function)(directory, target)
    facts = read_load_data(directory)
    description = {
        "format": format,
        "framework": framework,
        "hyperparameters": facts.get("hparams"),
    }
    (target / FACTS).write_text(json.dumps(description, indent=2) + "\n")


def needs(package: str, distribution: str, extra: str) -> CheckpointError:
    """Return the error for a format whose library is missing.

    The extra of a distribution installs it.
    """
    way_out = how_to_install(distribution, extra)
    return CheckpointError(
        f"this format is written by {package}, which is not installed here; run: {way_out}"
    )


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
