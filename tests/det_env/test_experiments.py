"""An experiment in an environment of its own.

Solved when it is made, kept with it, made again wherever it goes.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_core.errors import DetError
from det_driver.client import Client
from det_driver.store import Store
from det_node.environments import READY, digest_of, place_of

Written = Callable[..., Path]
SIX = 'requirements: ["six==1.16.0"]'


@pytest.fixture
def shared(root: Path) -> dict[str, str]:
    return {"DET_ENVIRONMENTS": str(root)}


def solved(home: Path, experiment: int = 1) -> Path:
    return home / f"experiments/{experiment}/environment"


def test_script_runs_under_another_python_with_requirements(
    det: Any, experiment: Written, shared: dict[str, str]
) -> None:
    config = experiment(f'{{python: "3.12", {SIX}, environment_variables: [GREETING=hello]}}')
    (config.parent / "startup-hook.sh").write_text("export HOOKED=yes\n")
    done = det("run", config, env=shared)
    assert "experiment 1 is completed" in done.stdout
    digest = digest_of(solved(det.home))
    assert f"it is 1.16.0 (3, 12) {digest} hello yes" in det("logs", "1").stdout
    manifest = next((det.home / "checkpoints").glob("*/manifest.json"))
    assert json.loads(manifest.read_text())["environment"] == digest


def test_preparing_is_a_state_before_any_slot_is_taken(
    det: Any, experiment: Written, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    config = experiment(f"{{{SIX}}}")
    root = tmp_path / "envs"
    env = {"DET_ENVIRONMENTS": str(root)}
    det("env", "build", config, env=env)
    place = next(path.parent for path in root.glob(f"*/{READY}"))
    shutil.rmtree(place)
    with place.with_name(f"{place.name}.lock").open("w") as lock:  # as somebody who makes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        driver = det.start("run", config, env=env)
        wait_until(
            lambda: (
                bool((det.home / "experiments/1").exists()) and "PREPARING" in det("list").stdout
            )
        )
        shown = det("show", "1").stdout
        assert "is preparing" in shown
        assert "environment-0-" in shown  # where its log is
        with Store.reader(det.home) as store:
            assert store.slots.holders() == {}
    out, _ = driver.communicate(timeout=60)
    assert "waiting for the environment, which is made; its log: " in out
    assert driver.returncode == 0
    log = next((det.home / "experiments/1/agents").glob("environment-*/rank-0.log")).read_text()
    assert "making an environment of Python" in log
    assert "six==1.16.0" in log


def test_the_trials_of_a_search_share_one_environment(
    det: Any, experiment: Written, shared: dict[str, str]
) -> None:
    config = experiment(f"{{{SIX}}}")
    searcher = "searcher={name: random, metric: loss, max_length: {batches: 1}, max_trials: 3}"
    det(
        "run",
        config,
        "-c",
        searcher,
        "-c",
        "hyperparameters={x: {type: int, minval: 0, maxval: 9}}",
        env=shared,
    )
    assert det("logs", "1").stdout.count("it is 1.16.0") == 3
    assert len(list((det.home / "experiments/1/agents").glob("environment-*"))) <= 1


def paused(home: Path, config: Path, root: Path) -> None:
    """Make an experiment that no driver has taken up yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DET_ENVIRONMENTS", str(root))
        Client(home).create_experiment(config, config.parent, start=False)


@pytest.mark.thorough
def test_an_export_carries_the_lock_and_a_resume_never_solves(
    det: Any, experiment: Written, root: Path, tmp_path: Path
) -> None:
    config = experiment(f"{{{SIX}}}")
    paused(det.home, config, root)
    det("export", "1", tmp_path / "one.tar")
    elsewhere = {
        "DET_HOME": str(tmp_path / "elsewhere"),
        "DET_ENVIRONMENTS": str(tmp_path / "fresh"),
    }
    det("import", tmp_path / "one.tar", env=elsewhere)
    shutil.rmtree(config.parent)
    done = det("resume", "1", env=elsewhere)
    assert "experiment 1 is completed" in done.stdout
    assert digest_of(solved(tmp_path / "elsewhere")) == digest_of(solved(det.home))
    assert not (tmp_path / "fresh/solved").exists()


def test_unsolvable_environment_error_quotes_the_resolver(
    det: Any, experiment: Written, shared: dict[str, str]
) -> None:
    refused = {
        "{requirements: [nosuch-package-of-anybody]}": "nosuch-package-of-anybody was not found",
        '{requirements: ["six==99"]}': "there is no version of six==99",
        '{python: "3.99", requirements: [six]}': (
            "environment.python is '3.99': No interpreter found for Python 3.99"
        ),
        '{python: "3.10"}': (
            "environment.python is '3.10', and there is no det before Python 3.11; give a newer one"
        ),
        '{requirements: ["six==="]}': "cannot be met: Couldn't parse requirement in them",
        "{requirements: [./nowhere]}": "Distribution not found at: file:///",
        "{python: 3.11}": "environment.python is 3.11; give text, such as '3.11'",
        "{requirements: nothing.txt}": "nothing.txt: No such file or directory; name a file",
        "{python: /bin/true}": (
            "environment.python is /bin/true, which is no Python from 3.11 on; name one, or a"
            " version"
        ),
        "{python: /no/python}": "environment.python is /no/python, which is no Python from 3.11 on",
    }
    for environment, sentence in refused.items():
        done = det("run", experiment(environment), status=2, env=shared)
        assert sentence in done.stderr
        assert done.stderr.startswith("det: ")
        assert done.stderr.count("\n") == 1
    assert not list((det.home / "experiments").glob("[0-9]*"))


def test_a_lock_that_does_not_fit_this_machine_is_named(
    det: Any, experiment: Written, root: Path
) -> None:
    paused(det.home, experiment(f"{{{SIX}}}"), root)
    lock = solved(det.home) / "requirements.lock"
    lock.write_text(re.sub("six==.*", "tensorflow-cpu-aws==2.15.1", lock.read_text()))
    done = det("resume", "1", status=2, env={"DET_ENVIRONMENTS": str(root)})
    assert "det: the environment cannot be made: " in done.stderr
    assert "the lock was solved for Python 3.11, and this is " in done.stderr
    assert "rank-0.log has all)" in done.stderr


def test_a_python_by_its_path_needs_no_plugin(det: Any, experiment: Written) -> None:
    script = "import sys; from det_core import core\nprint('it is', sys.executable)\n"
    config = experiment(f"{{python: {sys.executable}}}", script=script)
    det("run", config)
    assert f"it is {Path(sys.executable).parent}" in det("logs", "1").stdout
    assert not solved(det.home).exists()


def test_an_environment_that_was_taken_away_meanwhile_is_named(tmp_path: Path) -> None:
    from det_node.agent import RunSpec
    from det_node.agent._processes import python_of

    spec = RunSpec(
        run_id=1,
        entrypoint="",
        trial_class=False,
        code_dir=tmp_path,
        log_dir=tmp_path,
        variables={"DET_ENVIRONMENTS": str(tmp_path)},
        environment="0" * 64,
    )
    with pytest.raises(
        DetError,
        match=(
            r"its environment has been removed from .*: resume the experiment, which makes it again"
        ),
    ):
        python_of(spec)


def test_in_process_and_other_hosts_have_no_environment(det: Any, experiment: Written) -> None:
    config = experiment(f"{{{SIX}}}")
    done = det("run", config, "--in-process", status=2)
    assert (
        "--in-process trains in this interpreter, and environment.requirements asks for another"
        in done.stderr
    )
    done = det("run", config, "-c", "distributed={hosts: [a]}", status=2)
    assert "environment.requirements is not made on distributed.hosts" in done.stderr


@pytest.mark.thorough
def test_a_strangers_package_comes_from_its_directory(
    det: Any, experiment: Written, shared: dict[str, str], plugin: Path
) -> None:
    script = (
        "import stranger; from det_core import core\nprint('it is', stranger.WORD,"
        " stranger.__file__)\n"
    )
    config = experiment(f"{{requirements: [{plugin}]}}", script=script)
    det("run", config, env=shared)
    assert "it is found" in det("logs", "1").stdout
    assert list(solved(det.home).glob("stranger-1.2-*.whl"))
    assert str(plugin) not in (solved(det.home) / "requirements.lock").read_text()


@pytest.mark.thorough
def test_a_removed_environment_is_made_again_by_the_next_driver(
    det: Any, experiment: Written, tmp_path: Path
) -> None:
    env = {"DET_ENVIRONMENTS": str(tmp_path / "envs")}
    config = experiment(f"{{{SIX}}}")
    det("run", config, env=env)
    place = place_of(tmp_path / "envs", digest_of(solved(det.home)))
    assert (place / READY).is_file()
    det("env", "prune", "--days", "0", env=env)
    assert not place.exists()
    det("run", config, env=env)
    assert (place / READY).is_file()
    assert os.access((place / READY).read_text(), os.X_OK)
