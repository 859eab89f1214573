"""Where an experiment comes from is kept with it, without secrets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from det_core.config import parse
from det_core.origin import packages
from det_driver.provenance import gather, read, write

CONFIG = parse(
    yaml.safe_load("""\
entrypoint: model_def:T
environment: {environment_variables: ["API_TOKEN=hunter2-hunter2"]}
searcher: {name: single, metric: loss, max_length: {batches: 1}}
""")
).config


def git(place: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


def test_the_commit_and_what_differs_from_it_are_kept_with_secrets_masked(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "remote", "add", "origin", "https://me:s3cretword@example.org/x.git")
    file = tmp_path / "model_def.py"
    file.write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean: Any = gather(tmp_path, CONFIG)
    file.write_text("a = 'hunter2-hunter2'\n")

    found = gather(tmp_path, CONFIG)
    write(tmp_path, found)

    assert clean["git"] == {"commit": found["git"]["commit"], "dirty": False}
    assert found["git"]["dirty"]
    assert "-a = 1" in found["git"]["diff"]
    text = (tmp_path / "provenance.json").read_text()
    assert "hunter2" not in text
    assert "s3cretword" not in text
    assert read(tmp_path) == found


def test_the_packages_are_kept_and_an_older_experiment_has_nothing(tmp_path: Path) -> None:
    assert "det-core" in packages()
    assert "git" not in gather(tmp_path, CONFIG)
    assert read(tmp_path) == {}
