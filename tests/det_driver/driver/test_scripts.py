"""Experiments whose entrypoint is a script, driven by real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import json, os, sys, time
    from det_core import core

    info = core.get_cluster_info()
    hold = int(os.environ.get("HOLD", "0"))
    with core.init() as context:
        start = 0
        if info.latest_checkpoint:
            with context.checkpoint.restore_path(info.latest_checkpoint) as path:
                start = json.loads((path / "state.json").read_text())
        for batch in range(start + 1, 21):
            context.train.report_training_metrics(batch, {"loss": 1 / batch})
            if batch == hold:
                open("held", "w").close()
                while not context.preempt.should_preempt():
                    time.sleep(0.05)
            if batch % 5 == 0:
                context.train.report_validation_metrics(batch, {"error": 1 / batch})
                with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
                    (path / "state.json").write_text(json.dumps(batch))
                if context.preempt.should_preempt():
                    break
"""

CONFIG = """
    name: script
    entrypoint: python3 train.py
    searcher: {name: single, metric: error}
"""


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        path = directory / name.replace("__", ".")
        path.write_text(textwrap.dedent(text).lstrip())


@pytest.fixture
def project(det):
    write(det.cwd, train__py=SCRIPT, const__yaml=CONFIG)
    return det.cwd


def start_held(det, wait_until) -> subprocess.Popen[str]:
    """Start the experiment.

    Return its driver when the script has trained for eight batches and waits.
    """
    driver = det.start("run", "const.yaml", env={"HOLD": "8"})
    wait_until((det.home / "experiments" / "1" / "code" / "held").exists, "some training")
    return driver


def history(det, experiment: int) -> list[tuple]:
    return [
        (m["group"], m["batches"], m.get("loss"), m.get("error")) for m in det.metrics(experiment)
    ]


WHOLE = [
    row
    for batch in range(1, 21)
    for row in [
        ("training", batch, 1 / batch, None),
        *([("validation", batch, None, 1 / batch)] if batch % 5 == 0 else []),
    ]
]


def test_a_script_is_trained_to_its_end(det, project):
    result = det.json("run", "const.yaml")
    assert result["state"] == "COMPLETED"
    assert result["best_metric"] == pytest.approx(0.05)
    assert history(det, 1) == WHOLE
    assert Path(result["checkpoint"]["path"], "state.json").read_text() == "20"


def test_script_of_a_killed_driver_resumes_without_gap_or_repeat(det, project, wait_until):
    driver = start_held(det, wait_until)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    det("resume", "1")
    assert history(det, 1) == WHOLE


def test_sigint_pauses_with_status_130_and_resume_completes(det, project, wait_until):
    driver = start_held(det, wait_until)
    os.kill(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert "go on with: det resume 1" in output
    det("resume", "1")
    assert history(det, 1) == WHOLE


def test_pause_from_another_terminal_waits_until_it_is_paused(det, project, wait_until):
    driver = start_held(det, wait_until)
    assert "experiment 1 is paused" in det("pause", "1", "--wait").stdout
    assert driver.wait(timeout=30) == 130


def test_cancel_terminates_a_script_that_never_checks_for_it(det, wait_until):
    write(det.cwd, const__yaml=CONFIG.replace("python3 train.py", "touch started; sleep 100"))
    driver = det.start("run", "const.yaml")
    code = det.home / "experiments" / "1" / "code"
    wait_until((code / "started").exists, "the start")
    follower = det.start("logs", "1", "--follow")
    det("cancel", "1", "--no-wait")
    assert driver.wait(timeout=30) == 1
    assert follower.wait(timeout=30) == 0
    assert det.json("show", "1")["experiment"]["state"] == "CANCELED"


def test_unconnected_script_does_not_outlive_its_driver(det, wait_until):
    write(det.cwd, const__yaml=CONFIG.replace("python3 train.py", "touch started; sleep 100"))
    driver = det.start("run", "const.yaml")
    code = det.home / "experiments" / "1" / "code"
    wait_until((code / "started").exists, "the start")
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()  # the fixture fails the test when the sleep is left behind


def test_failed_script_is_retried_max_restarts_times(det):
    """Each attempt starts from the latest checkpoint."""
    write(
        det.cwd,
        train__py="""
            import sys
            from det_core import core
            info = core.get_cluster_info()
            with core.init() as context:
                done = info.steps_completed
                with context.checkpoint.store_path({"steps_completed": done + 1}) as (path, uuid):
                    (path / "x").write_text("x")
            sys.exit(3)
        """,
        const__yaml=CONFIG + "    max_restarts: 2\n",
    )
    done = det("run", "const.yaml", status=1)
    assert "trial 1: the process exited with status 3" in done.stderr
    trial = det.json("show", "1")["trials"][0]
    assert (trial["runs"], trial["restarts"], trial["state"]) == (3, 2, "ERROR")


FAILS = "print(1); {}[2]"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            f"python3 -c '{FAILS}'",
            subprocess.run(
                [sys.executable, "-c", FAILS], check=False, capture_output=True, text=True
            ).stderr
            + "det: trial 1: the process exited with status 1: KeyError: 2\n",
        ),
        (
            "echo $$ is no word; echo so long; exit 4",
            "so long\ndet: trial 1: the process exited with status 4\n",
        ),
        (
            "kill -9 $$",
            (
                "det: trial 1: the process was killed by SIGKILL: most often the machine or its"
                " container had no memory left\n"
            ),
        ),
        (
            "no-such-command",
            "no-such-command: not found\ndet: trial 1: the process exited with status 127\n",
        ),
    ],
)
def test_failed_script_error_quotes_its_log_and_exit_status(det, script, said):
    """`det show` knows the cause, too."""
    path = det.cwd / "c.yaml"
    path.write_text(
        json.dumps(
            {"entrypoint": script, "searcher": {"name": "single", "metric": "m"}, "max_restarts": 0}
        )
    )
    assert det("run", path, status=1).stderr.endswith(said)
    assert said.splitlines()[-1].removeprefix("det: trial 1: ") in det("show", "1").stdout
    assert det("logs", "1").stderr.splitlines()[-1] == said.splitlines()[-1]


def test_a_log_policy_cancels_retries(det):
    policies = (
        "    log_policies: [{name: oom, pattern: '.*out of memory.*', action: cancel_retries}]\n"
    )
    write(
        det.cwd,
        const__yaml=CONFIG.replace("python3 train.py", "echo CUDA out of memory; exit 1")
        + policies,
    )
    det("run", "const.yaml", status=1)
    assert det.json("show", "1")["trials"][0]["runs"] == 1


def test_the_startup_hook_is_sourced_and_its_environment_kept(det):
    write(
        det.cwd,
        const__yaml=CONFIG.replace(
            "python3 train.py", "echo hook says $FROM_HOOK, config says $FROM_CONFIG"
        )
        + "    environment: {environment_variables: [FROM_CONFIG=hello]}\n",
    )
    (det.cwd / "startup-hook.sh").write_text("export FROM_HOOK=good-day\n")
    det("run", "const.yaml")
    assert "hook says good-day, config says hello" in det("logs", "1").stdout


@pytest.mark.parametrize(("hook", "status"), [("false", 1), ("exit 3", 3)])
def test_a_startup_hook_that_fails_ends_the_run_and_is_named(det, hook, status):
    write(
        det.cwd,
        const__yaml=CONFIG.replace("python3 train.py", "echo never") + "    max_restarts: 0\n",
    )
    (det.cwd / "startup-hook.sh").write_text(f"{hook}\n")
    done = det("run", "const.yaml", status=1)
    assert f"det: startup-hook.sh ended the run with status {status}" in done.stderr
    assert "never" not in det("logs", "1").stdout


def test_scripts_find_their_run_in_the_environment(det):
    write(
        det.cwd,
        const__yaml=CONFIG.replace("python3 train.py", "env")
        + "    hyperparameters: {lr: 0.5}\n    reproducibility: {experiment_seed: 7}\n",
    )
    det("run", "const.yaml")
    lines = det("logs", "1").stdout.splitlines()
    found = dict(line.split("] ", 1)[1].partition("=")[::2] for line in lines if "] DET_" in line)
    assert found["DET_EXPERIMENT_ID"] == "1"
    assert found["DET_TRIAL_ID"] == "1"
    assert json.loads(found["DET_HPARAMS"]) == {"lr": 0.5}
    assert found["DET_STEPS_COMPLETED"] == "0"
    assert found["DET_TASK_TYPE"] == "TRIAL"
    assert "DET_LATEST_CHECKPOINT" not in found


def test_search_gives_each_script_trial_its_hyperparameters(det):
    write(
        det.cwd,
        train__py="""
            from det_core import core
            info = core.get_cluster_info()
            with core.init() as context:
                x = info.trial.hparams["x"]
                for op in context.searcher.operations():
                    context.train.report_validation_metrics(op.length, {"error": (x - 3) ** 2})
                    op.report_completed((x - 3) ** 2)
        """,
        const__yaml="""
            entrypoint: python3 train.py
            hyperparameters: {x: {type: int, minval: 0, maxval: 5, count: 6}}
            searcher: {name: grid, metric: error, max_length: {batches: 10}, max_concurrent_trials: 2}
        """,
    )
    result = det.json("run", "const.yaml")
    assert result["trials"] == {"COMPLETED": 6}
    assert result["best_metric"] == 0
    shown = det.json("show", "1")["trials"]
    assert sorted(t["hparams"]["x"] for t in shown) == [0, 1, 2, 3, 4, 5]


def test_invalid_hyperparameters_are_replaced_by_a_random_search(det):
    write(
        det.cwd,
        train__py="""
            from det_core import InvalidHP, core
            info = core.get_cluster_info()
            with core.init() as context:
                if info.trial.hparams["x"] < 0:
                    raise InvalidHP("x must not be negative")
                context.train.report_validation_metrics(1, {"error": info.trial.hparams["x"]})
        """,
        const__yaml="""
            entrypoint: python3 train.py
            hyperparameters: {x: {type: double, minval: -1, maxval: 1}}
            searcher: {name: random, metric: error, max_trials: 4}
            reproducibility: {experiment_seed: 1}
        """,
    )
    result = det.json("run", "const.yaml")
    assert result["trials"]["COMPLETED"] == 4
    assert result["trials"]["INVALID_HP"] >= 1


def test_experiment_with_a_driver_cannot_be_driven_twice(det, project, wait_until):
    driver = start_held(det, wait_until)
    for options in [(), ("--detach",)]:
        done = det("resume", "1", *options, status=2)
        assert str(driver.pid) in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_detached_experiment_has_its_driver_on_return(det, project):
    started = det.json("run", "const.yaml", "--detach")
    experiment = det.json("show", "1")["experiment"]
    assert (experiment["state"], experiment["pid"]) == ("COMPLETED", None) or experiment[
        "pid"
    ] == started["pid"]


def test_detached_experiments_run_in_the_background(det, project, wait_until):
    started = det.json("run", "const.yaml", "--detach")
    assert started["experiment"] == 1
    wait_until(lambda: det.json("show", "1")["experiment"]["state"] == "COMPLETED", "completion")
    assert history(det, 1) == WHOLE


def test_a_script_is_started_once_with_all_its_slots(det):
    write(
        det.cwd,
        const__yaml=CONFIG.replace("python3 train.py", "env")
        + "    resources: {slots_per_trial: 2}\n",
    )
    det("run", "const.yaml", env={"DET_SLOTS_TOTAL": "2"})
    assert "DET_SLOT_IDS=[0, 1]" in det("logs", "1").stdout


KEY = """
    import hashlib, os
    from det_core import core

    with core.init() as context:
        print("key", hashlib.sha256(os.environ["DET_DRIVER_KEY"].encode()).hexdigest())
        context.train.report_validation_metrics(1, {"error": 0.5})
"""


def test_each_run_has_a_key_of_its_own(det, project):
    """Code that a run downloaded may know that run's key, but cannot speak for another run."""
    more = "    hyperparameters: {x: {type: categorical, vals: [1, 2, 3]}}\n"
    write(project, train__py=KEY, const__yaml=CONFIG.replace("name: single", "name: grid") + more)
    det("run", "const.yaml")
    keys = [line.split()[-1] for line in det("logs", "1").stdout.splitlines() if " key " in line]
    assert (len(keys), len(set(keys))) == (3, 3)
