"""Trials that do what only a process of their own can bear.

Real workers, started by the real command.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.support.thorough import sample

STEP = "train_batch(self, batch, epoch_idx, batch_idx)"
GO_ON = "return super().train_batch(batch, epoch_idx, batch_idx)"


def trial(signature: str, *lines: str) -> str:
    """Return a trial with one method of its own."""
    return f"class Trial(Sound):\n    def {signature}:\n" + "".join(
        f"        {line}\n" for line in lines
    )


# What a trial does, and the status and the last lines of stderr.
ENDS = {
    "raises": ((trial(STEP, 'raise ValueError("boom")')), 1, "ValueError: boom"),
    "ends its process as if all were well": (
        trial(STEP, "import os", "os._exit(0)"),
        1,
        (
            "the process ended before the trial was complete; return from its methods, and let det"
            " end it"
        ),
    ),
    "is killed": (
        trial(STEP, "import os", "os.kill(os.getpid(), 9)"),
        1,
        (
            "the process was killed by SIGKILL: most often the machine or its container had no"
            " memory left"
        ),
    ),
    "crashes": (
        trial(STEP, "import ctypes", "ctypes.string_at(0)"),
        1,
        (
            "the process was killed by SIGSEGV: compiled code crashed; with PYTHONFAULTHANDLER=1"
            " the log says where"
        ),
    ),
    "interrupts itself": (
        trial(STEP, "import os", "os.kill(os.getpid(), 2)", GO_ON),
        1,
        "KeyboardInterrupt",
    ),
    "loses a loader's process": (
        "class Bad(Lines):\n    def __getitem__(self, index):\n        import os\n       "
        " os._exit(3)\n\n\n"
        + trial(
            "build_training_data_loader(self)",
            "return DataLoader(Bad(), batch_size=2, num_workers=1)",
        ),
        1,
        "RuntimeError: DataLoader worker",
    ),
}


# One that interrupts itself is started again, as often as one that somebody else ends.
@pytest.mark.parametrize("title", sample(ENDS, ENDS.keys() - {"interrupts itself"}))
def test_however_a_worker_ends_the_last_line_says_so(project: Any, title: str) -> None:
    model, status, line = ENDS[title]
    project.model(model)
    # The check before training would meet it first, in a process of its own.
    done = project.det(
        "run", "const.yaml", "--quiet", "--config", "check_first=false", status=status
    )
    assert done.stderr.splitlines()[-1].startswith(f"det: trial 1: {line}")
    assert "det_core/" not in done.stderr
    assert project.json("show", "1")["trials"][0]["state"] == "ERROR"


def test_check_and_run_name_what_a_training_loses(project: Any) -> None:
    """Weights that no step changes, and a metric that is no number."""
    project.model(trial(STEP, 'return {"loss": "low"}'))
    checked = project.quick("check", "const.yaml", status=0)
    ran = project.det("run", "const.yaml")
    for shown in (checked.stdout, ran.stdout):
        assert "training 2 batches changed no weight: does the trial step its optimizer" in shown
        assert "metric 'loss' is 'low' (str)" in shown
        assert "it is left out of the training reports" in shown


def test_repeated_failure_is_tried_only_twice(project: Any) -> None:
    project.model(trial(STEP, 'raise ValueError("boom")'))
    project.det("run", "const.yaml", "--quiet", "--config", "max_restarts=5", status=1)
    shown = project.json("show", "1")["trials"][0]
    assert (shown["runs"], shown["restarts"]) == (2, 1)
    assert project.quick("logs", "1", status=0).stdout.count("ValueError: boom") == 2


@pytest.mark.thorough
def test_trial_that_stops_before_training_is_not_retried_forever(project: Any) -> None:
    project.model(
        trial("build_callbacks(self)", "import os", "os.kill(os.getpid(), 15)", "return {}")
    )
    done = project.det("run", "const.yaml", "--quiet", status=1)
    assert done.stderr.startswith("det: trial 1: the process ended before the trial was complete")
    assert project.json("show", "1")["trials"][0]["runs"] == 6


def test_binary_garbage_is_kept_in_the_log_and_harms_nobody(project: Any) -> None:
    project.model(
        trial(
            STEP,
            "import os",
            "os.write(1, bytes(range(256)) * 64)",
            "os.write(2, b'\\xff\\n')",
            GO_ON,
        )
    )
    project.det("run", "const.yaml", "--quiet")
    (log,) = project.home.glob("experiments/1/trials/*/run-1/rank-0.log")
    assert log.read_bytes().count(bytes(range(256))) == 4 * 64
    project.det("logs", "1")
    project.det("logs", "1", "--tail", "2")


def test_a_child_that_a_trial_leaves_behind_is_ended_with_it(project: Any) -> None:
    project.model(trial(STEP, "import subprocess", "subprocess.Popen(['sleep', '600'])", GO_ON))
    begin = time.monotonic()
    project.det("run", "const.yaml", "--quiet")
    assert time.monotonic() - begin < 60  # and the fixture finds none of the four


def test_user_module_with_a_name_of_pythons_does_not_break_det(project: Any) -> None:
    """`queue` is what det imports in a worker.

    `colorsys` is left for others to import, who name the user's file.
    """
    project.model("import colorsys\n\nTrial = Sound")
    project.write("queue.py", "raise ImportError('not this one')\n")
    project.write("colorsys.py", "raise ValueError('boom')\n")
    code = project.cwd / "code"
    code.mkdir()
    for file in ("model_def.py", "sound.py", "queue.py", "colorsys.py"):
        project.cwd.joinpath(file).rename(code / file)
    done = project.det("run", "const.yaml", "code", "--quiet", status=1)
    copied = project.home / "experiments" / "1" / "code" / "colorsys.py"
    assert done.stderr.splitlines()[-4:] == [
        f'  File "{copied}", line 1, in <module>',
        "    raise ValueError('boom')",
        "ValueError: boom",
        "det: trial 1: ValueError: boom (in the check before training; `check_first: false` skips"
        " it)",
    ]
