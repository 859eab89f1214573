"""Where an experiment comes from is kept with it, without secrets."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from det_core.config import parse
from det_core.support.origin import packages
from det_driver.provenance import change, gather, read, set_user, user_of, write

CONFIG = parse(
    yaml.safe_load("""\
entrypoint: model_def:T
environment: {environment_variables: ["API_TOKEN=hunter2-hunter2"]}
searcher: {name: single, metric: loss, max_length: {batches: 1}}
""")
).config


def test_a_user_is_noted_once_and_that_of_a_submission_stays(tmp_path: Path) -> None:
    assert user_of(tmp_path) == ""
    write(tmp_path, {"host": "a"})
    set_user(tmp_path, "ann")
    set_user(tmp_path, "bob")
    assert read(tmp_path) == {"host": "a", "user": "ann"}
    write(tmp_path, {"submitted": {"by": "vera", "key": "1"}})
    set_user(tmp_path, "ann")
    assert (user_of(tmp_path), "user" in read(tmp_path)) == ("vera", False)


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    def add(number: int) -> None:
        change(tmp_path, lambda found: {**found, str(number): number})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(64)))
    assert sorted(read(tmp_path).values()) == list(range(64))
    assert [path.name for path in tmp_path.iterdir()] == ["provenance.json"]


def git(place: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True
    )


def test_commit_and_diff_are_kept_with_secrets_masked(tmp_path: Path) -> None:
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


def test_packages_are_kept_and_older_experiments_have_none(tmp_path: Path) -> None:
    assert "det-training-core" in packages()
    assert "git" not in gather(tmp_path, CONFIG)
    assert read(tmp_path) == {}
