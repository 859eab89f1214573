"""Scripts of several ranks under `det run`: `python3 -m det_node.launch.X` in the entrypoint."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest
from tests.support.script_endings import ENDINGS, MEET, check_endings

SCRIPT = """
    import json, os, time
    from det_core import DistributedContext, core

    info = core.get_cluster_info()
    pause = float(os.environ.get("PAUSE", "0"))
    with DistributedContext.from_socket() as ranks, core.init(distributed=ranks) as context:
        print("rank", ranks.rank, "of", ranks.size, "is", os.getpid())
        start = 0
        if info.latest_checkpoint:
            with context.checkpoint.restore_path(info.latest_checkpoint) as path:
                start = json.loads((path / "state.json").read_text())
        for batch in range(start + 1, 21):
            while batch == 8 and "GATE" in os.environ and not os.path.exists(os.environ["GATE"]):
                time.sleep(0.01)
            time.sleep(pause)
            loss = sum(ranks.allgather(1 / batch)) / ranks.size
            if ranks.rank == 0:
                context.train.report_training_metrics(batch, {"loss": loss})
            if batch % 5 == 0:
                if ranks.rank == 0:
                    context.train.report_validation_metrics(batch, {"error": loss})
                    with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
                        (path / "state.json").write_text(json.dumps(batch))
                if context.preempt.should_preempt():
                    print("preempted at", batch)
                    break
"""

CONFIG = """
    name: script
    entrypoint: python3 -m det_node.launch.socket python3 train.py
    resources: {slots_per_trial: 2}
    searcher: {name: single, metric: error}
    max_restarts: 0
"""

WHOLE = [
    row
    for batch in range(1, 21)
    for row in [
        ("training", batch, 1 / batch, None),
        *([("validation", batch, None, 1 / batch)] if batch % 5 == 0 else []),
    ]
]


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(textwrap.dedent(text).lstrip())


@pytest.fixture
def project(det, monkeypatch):
    monkeypatch.setenv("DET_SLOTS_TOTAL", "2")
    write(det.cwd, train__py=SCRIPT, const__yaml=CONFIG)
    return det


def history(det) -> list[tuple]:
    return [(m["group"], m["batches"], m.get("loss"), m.get("error")) for m in det.metrics(1)]


def said(det) -> list[str]:
    return [line.split("] ", 1)[1] for line in det("logs", "1").stdout.splitlines() if "] " in line]


def test_a_script_trains_on_every_slot_and_its_chief_reports(project):
    assert project.json("run", "const.yaml")["state"] == "COMPLETED"
    assert history(project) == WHOLE
    lines = said(project)
    assert [sum(f"[rank={n}] rank {n} of 2" in line for line in lines) for n in range(2)] == [1, 1]


@pytest.fixture
def at_a_gate(project, wait_until, tmp_path):
    """Returns the driver of an experiment whose ranks wait, and what lets them go on.

    It does so as soon as seven batches are trained.
    """
    gate = tmp_path / "gate"
    write(project.cwd, const__yaml=CONFIG.replace("max_restarts: 0", "max_restarts: 1"))
    driver = project.start("run", "const.yaml", env={"PAUSE": "0.1", "GATE": str(gate)})
    wait_until(
        lambda: (
            project.home.joinpath("experiments/1/experiment.db").exists()
            and len(project.metrics(1)) == 8
        ),
        "seven batches and a validation",
    )
    return driver, gate.touch


def test_pause_reaches_all_ranks_at_one_batch_and_script_resumes(project, at_a_gate):
    driver, open_gate = at_a_gate
    driver.send_signal(signal.SIGINT)
    open_gate()
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    where = [line.rpartition(" ")[2] for line in said(project) if "preempted at" in line]
    assert len(where) == 2
    assert where[0] == where[1]
    project("resume", "1")
    assert history(project) == WHOLE


@pytest.mark.sample
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_the_run_which_is_tried_again(project, at_a_gate, victim):
    driver, open_gate = at_a_gate
    [pid] = [
        int(line.rpartition(" ")[2]) for line in said(project) if f"rank {victim} of 2 is" in line
    ]
    os.kill(pid, signal.SIGKILL)
    open_gate()
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 0, output
    assert history(project) == WHOLE
    trial = project.json("show", "1")["trials"][0]
    assert (trial["runs"], trial["restarts"]) == (2, 1)
    assert any(
        f"rank {victim} was ended by SIGKILL first; the others were ended." in line
        for line in said(project)
    )


def test_the_ranks_end_with_a_driver_that_is_killed(project, wait_until):
    driver = project.start("run", "const.yaml", env={"PAUSE": "1"})
    wait_until(
        lambda: (
            project.home.joinpath("experiments/1/experiment.db").exists()
            and len(project.metrics(1)) > 0
        ),
        "some training",
    )
    driver.kill()
    driver.wait()  # the fixture fails the test when a rank is left behind


def test_the_first_failure_of_a_script_is_the_end_of_its_log(project):
    write(
        project.cwd,
        train__py=(
            "import os, time\ntime.sleep(20 * int(os.environ['DET_RANK']))\nraise"
            " ValueError('mine')\n"
        ),
    )
    done = project("run", "const.yaml", status=1)
    assert "det: trial 1: the process exited with status 1: ValueError: mine" in done.stderr
    lines = said(project)
    assert "det: rank 0 failed with status 1 first; the others were ended. Its last words:" in lines
    assert lines[-1] == "ValueError: mine"


RANK_1_MEETS_IT = (
    MEET
    + """
from det_core import DistributedContext
with DistributedContext.from_socket() as ranks, core.init(distributed=ranks) as context:
    if ranks.rank == 0:
        context.train.report_validation_metrics(1, {"loss": 1.0})
    else:
        meet()
    ranks.barrier()
"""
)
RANK_ENDINGS = {
    **ENDINGS,
    "exits": ("rank 1 exited with status 5", "rank 1 exited with status 5"),
    "vanishes": ("peer_lost", "rank 1 is gone"),
}


@pytest.mark.slow
def test_endings_of_any_rank_are_classified_as_for_a_trial_class(det):
    settings = {
        "entrypoint": "python3 -m det_node.launch.socket python3 train.py",
        "resources": {"slots_per_trial": 2},
    }
    check_endings(det, RANK_1_MEETS_IT, RANK_ENDINGS, **settings)


@pytest.mark.thorough
def test_preemption_and_wrong_metric_behave_as_in_a_trial_class(project):
    """SIGTERM strikes a rank at batch 8; the metric's name is the user's mistake."""
    strike = (
        "batch == 8 and start == 0 and ranks.rank == 1 and os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    write(
        project.cwd,
        train__py=SCRIPT.replace("import json, os, time", "import json, os, signal, time").replace(
            "time.sleep(pause)\n", strike
        ),
        const__yaml=CONFIG.replace(
            "name: single, metric: error", "name: random, max_trials: 1, metric: eror"
        ),
    )
    done = project("run", "const.yaml", "--quiet", status=2)
    (trial,) = project.json("show", "1", "--runs")["trials"]
    assert [run["outcome"] for run in trial["attempts"]] == ["preempted", "completed"]
    assert [run["first_batch"] for run in trial["attempts"]] == [0, 10]
    assert trial["restarts"] == 0
    said = (
        "no trial has a usable 'eror' (searcher.metric): validations reported error; did you mean"
        " 'error'?"
    )
    assert done.stderr.splitlines()[-1] == f"det: {said}"


ROLES = """
    from det_core import DistributedContext, core
    with DistributedContext.from_socket() as ranks, core.init(distributed=ranks) as context:
        if ranks.rank == 1:
            for call in (
                lambda: context.train.report_training_metrics(1, {"loss": 1}),
                lambda: context.train.report_progress(0.5),
                lambda: context.train.set_status("x"),
                lambda: context.checkpoint.upload("."),
                lambda: context.checkpoint.delete("x"),
            ):
                try:
                    call()
                except RuntimeError as error:
                    print("refused:", error)
"""


def test_what_only_the_chief_may_do_is_refused_elsewhere(project):
    write(project.cwd, train__py=ROLES)
    project("run", "const.yaml")
    refused = [line.partition("refused: ")[2] for line in said(project) if "refused:" in line]
    assert refused == [
        "rank 1 tried to report metrics; only rank 0 may",
        "rank 1 tried to report progress; only rank 0 may",
        "rank 1 tried to set the status; only rank 0 may",
        "rank 1 tried to upload a checkpoint without shard=True; only rank 0 may",
        "rank 1 tried to delete a checkpoint; only rank 0 may",
    ]


def test_a_launcher_with_one_slot_is_not_in_the_way(project):
    write(
        project.cwd,
        train__py="import os; print('alone:', os.environ['DET_SIZE'], os.getppid())\n",
        const__yaml=CONFIG.replace("slots_per_trial: 2", "slots_per_trial: 1"),
    )
    project("run", "const.yaml")
    assert any(line.startswith("alone: 1") for line in said(project))


def test_script_of_several_slots_without_ranks_gets_a_hint(project):
    write(
        project.cwd,
        const__yaml=CONFIG.replace("-m det_node.launch.socket python3 train.py", "train.py"),
        train__py="",
    )
    project("run", "const.yaml")
    assert said(project) == [
        "det: this run has 2 slots and its entrypoint is one process; unless that starts its ranks"
        " itself, write: python3 -m det_node.launch.torch_distributed python3 train.py"
    ]


@pytest.mark.parametrize(
    ("entrypoint", "context", "message"),
    [
        (
            "python3 train.py",
            "None",
            (
                "this run has 2 slots; give core.init() a DistributedContext, such as"
                " from_torch_distributed() or from_socket(), and start its ranks: python3 -m"
                " det_node.launch.torch_distributed python3 ..."
            ),
        ),
        (
            "python3 -m det_node.launch.socket python3 train.py",
            "None",
            (
                "this run has 2 slots; give core.init() a DistributedContext, such as"
                " from_torch_distributed() or from_socket()"
            ),
        ),
        (
            (
                "python3 -m det_node.launch.socket sh -c 'test $DET_RANK = 1 || exec sleep 9; exec"
                " python3 train.py'"
            ),
            "DistributedContext()",
            (
                "this process is rank 1 of 2, but its DistributedContext has 1; make it with the"
                " method of the launcher, such as from_torch_distributed() or from_socket()"
            ),
        ),
    ],
)
def test_a_context_that_does_not_fit_the_ranks_is_refused(project, entrypoint, context, message):
    write(
        project.cwd,
        train__py=(
            f"from det_core import DistributedContext, core\ncore.init(distributed={context})\n"
        ),
        const__yaml=CONFIG.replace(
            "python3 -m det_node.launch.socket python3 train.py", entrypoint
        ),
    )
    project("run", "const.yaml", status=2)
    assert said(project)[-1] == f"det_core.errors.ArgumentError: {message}"


def test_late_rank_of_a_script_times_out_as_configured(project):
    late = SCRIPT.replace("start = 0", "start = 0; time.sleep(60 * ranks.rank)")
    write(project.cwd, train__py=late, const__yaml=CONFIG + "    distributed: {timeout: 2}\n")
    project("run", "const.yaml", status=1)
    assert any(
        "rank 1 did not call allgather within 2 s of rank 0" in line for line in said(project)
    )
