"""Environments of small packages, with what uv keeps shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
import det_core.core
import six
variables = [os.environ.get(name) for name in ("DET_ENVIRONMENT", "GREETING", "HOOKED")]
print("it is", six.__version__, sys.version_info[:2], *variables)
with det_core.core.init() as context:
    for op in context.searcher.operations():
        with context.checkpoint.store_path({"steps_completed": op.length}) as (path, uuid):
            (path / "state").write_text("1")
        context.train.report_validation_metrics(steps_completed=op.length, metrics={"loss": 1.0})
        op.report_completed(1.0)
"""


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the environments of a session lie."""
    return tmp_path_factory.mktemp("environments")


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Path]:
    """Write a script and its configuration, whose environment is as given.

    Return the configuration.
    """

    def write(
        environment: str, script: str = SCRIPT, name: str = "const.yaml", **files: str
    ) -> Path:
        place = tmp_path / "code"
        place.mkdir(exist_ok=True)
        (place / "train.py").write_text(script)
        for file, text in files.items():
            (place / file.replace("__", ".")).write_text(text)
        searcher = "{name: single, metric: loss, max_length: {batches: 3}}"
        text = f"entrypoint: python3 train.py\nenvironment: {environment}\nsearcher: {searcher}\n"
        (place / name).write_text(text)
        return place / name

    return write


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The source of a stranger's package, which nobody has published."""
    place = tmp_path / "stranger"
    (place / "src/stranger").mkdir(parents=True)
    (place / "src/stranger/__init__.py").write_text("WORD = 'found'\n")
    (place / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "stranger"\nversion = "1.2"\ndependencies = ["det-driver>=0.1"]\n'
    )
    return place
