"""What each run ran in is kept, shown, and said where it has changed."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from det_core.support.origin import THREADS, brief, devices, digest, origin, packages
from det_driver.store import Store

SINGLE = "searcher: {name: single, metric: val_loss, max_length: 4}\nmax_restarts: 1\n"
# As if somebody installed another version while the first run trained.
INSTALLS = """
    class Fails(Trial):
        def build_data(self):
            import pathlib
            old = pathlib.Path(os.environ["SITE"]) / "others-1.0.dist-info"
            if old.exists():
                old.rename(old.with_name("others-2.0.dist-info"))
                raise RuntimeError("once")
            return super().build_data()
"""


def test_what_has_changed_between_two_runs_of_a_trial_is_said(
    project: Any, plugin_path: Path
) -> None:
    (plugin_path / "others-1.0.dist-info").mkdir()
    model = project.det.cwd / "model_def.py"
    model.write_text(model.read_text() + textwrap.dedent(INSTALLS))
    path = project.write(SINGLE)
    path.write_text(
        path.read_text()
        .replace("model_def:Trial", "model_def:Fails")
        .replace("max_restarts: 0\n", "")
    )
    project.det("run", path, "--quiet", env=project.environ(1, {"SITE": str(plugin_path)}))
    shown = project.det("show", "1", "--runs").stdout
    assert "trial 1 run 2, since run 1: others 2.0 (was 1.0)\n" in shown
    with Store.reader(project.det.home) as store:
        first, second = store.runs.list(1)
        kept = store.runs.origins(1)
    assert kept[first.origin]["packages"]["others"] == "1.0"
    assert kept[second.origin] == origin() | {
        "packages": {**kept[first.origin]["packages"], "others": "2.0"}
    } | {
        "executable": kept[second.origin]["executable"],
        **{key: kept[first.origin][key] for key in THREADS.values()},
    }
    told = json.loads(project.det("show", "1", "--runs", "--json").stdout)
    assert told["experiment"]["origins"] == kept
    assert [run["origin"] for run in told["trials"][0]["attempts"]] == [first.origin, second.origin]
    manifests = [
        json.loads(file.read_text())
        for file in project.det.home.glob("checkpoints/*/manifest.json")
    ]
    assert {manifest["origin"]["packages"] for manifest in manifests} == {
        digest(kept[second.origin]["packages"])
    }


def test_the_commit_of_the_code_goes_with_each_checkpoint(project: Any) -> None:
    def git(*words: str) -> str:
        words = (
            "git",
            "-C",
            str(project.det.cwd),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            *words,
        )
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    def written() -> set[str]:
        files = project.det.home.glob("checkpoints/*/manifest.json")
        return {json.loads(file.read_text())["origin"]["commit"] for file in files}

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    project.run(SINGLE.partition("max_restarts")[0])
    assert written() == {commit}
    with (project.det.cwd / "model_def.py").open("a") as model:
        model.write("# changed\n")
    project.run(SINGLE.partition("max_restarts")[0])
    assert written() == {commit, f"{commit}+"}


@pytest.mark.thorough
def test_alike_runs_share_one_origin_even_after_an_import(project: Any, tmp_path: Path) -> None:
    project.run("searcher: {name: random, metric: val_loss, max_trials: 4, max_length: 4}\n")
    project.det("export", "1", tmp_path / "one.tar")
    project.det.home = tmp_path / "another"
    project.det("import", tmp_path / "one.tar")
    with Store.reader(project.det.home) as store:
        (name,) = store.runs.origins(1)
        assert {
            run.origin for trial in store.trials.list(1) for run in store.runs.list(trial.id)
        } == {name}
    assert "since run" not in project.det("show", "1", "--runs").stdout


def test_origin_names_packages_and_nvidia_gpus(tmp_path: Path) -> None:
    assert "msgspec" in packages()
    assert brief()["packages"] == digest(origin()["packages"])
    place = tmp_path / "gpus/0000:00:04.0"
    place.mkdir(parents=True)
    (place / "information").write_text(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 30\nGPU UUID: \t GPU-1b5e\n"
    )
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\nGCC version: 12\n"
    )
    (found,) = devices(tmp_path)
    assert (
        found
        == "NVIDIA H100 80GB HBM3, GPU-1b5e, driver NVIDIA UNIX x86_64 Kernel Module 570.86.15 Thu"
        " Jan 23"
    )
    assert devices(tmp_path / "none") == []
