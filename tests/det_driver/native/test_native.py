"""Scripts that are their own experiments: run as a person runs them, and again by real workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap

import pytest

from det_core import DetError
from det_core.config import Length
from det_driver.native import Categorical, Constant, Double, Integer, Log, Mode, begin, create
from det_driver.native.script import script_of

HEAD = """
import os, sys
from det_driver.native import Categorical, Integer, Mode, create
from det_testing.fakes import OwnedOneVar

class Trial(OwnedOneVar):
    pass

single = {"name": "single", "metric": "val_loss", "max_length": {"batches": 8}}
config = {"searcher": single, "hyperparameters": {"lr": Categorical([0.05])}, "reproducibility": {"experiment_seed": 1}}
"""


@pytest.fixture
def script(det, tmp_path):
    """Run a script in the project, with the fakes installed as a stranger's plugin would be."""
    info = tmp_path / "site" / "fakes-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text("[det]\nfakes = det_testing.fake_hooks\n")

    def run(text: str, *arguments: str, status: int = 0, name: str = "train.py", **env: str):
        det.cwd.joinpath(name).write_text(HEAD + textwrap.dedent(text))
        return python(name, *arguments, status=status, **env)

    def python(*arguments: str, status: int = 0, **env: str):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=det.cwd,
            env=det.env({"PYTHONPATH": str(info.parent), **env}),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    run.python = python
    return run


def logs(det) -> str:
    return det("logs", "1").stdout


def test_local_trains_to_the_end_and_the_script_goes_on(script, det):
    done = script("""
        result = create(Trial, config, mode=Mode.LOCAL)
        print("after", result.hparams, result.validation["val_loss"] < 1, os.listdir(result.checkpoints[-1]))
        """)
    assert "training Trial here for 8 batches: lr=0.05" in done.stdout
    assert re.search(r"batch 8 validation: val_loss=", done.stdout)
    assert "after {'lr': 0.05} True" in done.stdout
    assert "manifest.json" in done.stdout
    assert not det.home.joinpath("index.db").exists()


@pytest.mark.parametrize("length", [{"batches": 7}, {"epochs": 2}])
def test_local_knows_the_length_of_its_trial_before_it_starts(length):
    place = begin(
        {"searcher": {"name": "single", "metric": "loss", "max_length": length}},
        Mode.LOCAL,
        framework="",
    )
    ((unit, n),) = length.items()
    assert place.run.length == Length(unit, n)


def test_local_says_what_it_does_not_use(script):
    done = script("create(Trial, {**config, 'resources': {'slots_per_trial': 2}}, mode=Mode.LOCAL)")
    assert (
        "det: resources of the configuration is for Mode.CLUSTER and not used here" in done.stderr
    )


CLUSTER = """
print("before", sys.argv[1:])
create(Trial, config, context_dir=".")
print("after")
"""


def test_cluster_submits_and_workers_execute_up_to_the_call(script, det):
    done = script(CLUSTER, "--fast", "1")
    assert (
        "experiment 1 (train) is submitted; its workers run train.py again, and nothing that"
        " follows runs here" in done.stdout
    )
    assert "experiment 1 is completed: best val_loss" in done.stdout
    assert "after" not in done.stdout.replace("that follows", "")
    log = logs(det)
    assert "before ['--fast', '1']" in log
    assert "train.py has handed over Trial; what follows in it does not run" in log
    assert "] after" not in log


def test_notebook_shows_one_progress_line_and_no_reports(script):
    notebook = "import types; sys.modules['ipykernel'] = types.ModuleType('ipykernel')\n"
    out = script(notebook + 'create(Trial, config, context_dir=".")\n').stdout
    assert (
        "\nexperiment 1 (train) is completed, 100%, best val_loss " in out
    )  # text mode reads \\r as a new line
    assert out.splitlines()[-2].startswith("experiment 1 is completed: best val_loss")
    assert "batch 8" not in out.replace("(batch 8)", "")


def test_both_modes_train_to_the_same_numbers(script, det):
    local = script(
        "print(repr(create(Trial, config, mode='local').validation['weight']))", name="local.py"
    ).stdout
    script("create(Trial, config, mode='cluster', context_dir='.')")
    [validation] = det.metrics(1, "validation")
    assert repr(validation["weight"]) == local.splitlines()[-1]


def test_a_search_gives_each_trial_its_hyperparameters(script, det):
    script("""
        if __name__ == "__main__":
            grid = {**single, "name": "grid"}
            create(Trial, {"searcher": grid, "hyperparameters": {"lr": Categorical([0.01, 0.02, 0.04])}}, context_dir=".")
        """)
    trials = det.json("show", "1")["trials"]
    assert sorted(trial["hparams"]["lr"] for trial in trials) == [0.01, 0.02, 0.04]
    assert {trial["state"] for trial in trials} == {"COMPLETED"}


def test_a_run_that_is_killed_goes_on_to_the_same_numbers(script, det):
    killing = """
    class Killed(Trial):
        def build_data(self):
            data = super().build_data()
            if self.run.run_number == 1 and len(sys.argv) > 1:
                kill = data.records
                def records(batch):
                    if batch == 6:
                        os.kill(os.getpid(), 9)
                    return kill(batch)
                data.records = records
            return data

    create(Killed, {**config, "min_checkpoint_period": {"batches": 3}, "scheduling_unit": 1}, context_dir=".")
    """
    script(killing)
    script(killing, "kill")
    whole, killed = det.metrics(1, "validation"), det.metrics(2, "validation")
    assert [m["weight"] for m in whole] == [m["weight"] for m in killed]
    assert det.json("show", "2")["trials"][0]["restarts"] == 1


@pytest.mark.thorough
def test_several_ranks_execute_the_script_each(script, det):
    text = """
    print("rank", os.environ.get("DET_RANK"))
    create(Trial, {**config, "resources": {"slots_per_trial": 2}}, context_dir=".")
    """
    script(text, DET_SLOTS_TOTAL="2")
    assert {"rank 0", "rank 1"} <= {line.partition("] ")[2] for line in logs(det).splitlines()}
    assert logs(det).count("handed over") == 1


def test_the_status_is_that_of_the_experiment(script):
    done = script(
        """
        class Bad(Trial):
            def build_model(self):
                raise RuntimeError("no such model")
        create(Bad, {**config, "max_restarts": 0}, context_dir=".")
        """,
        status=1,
    )
    assert "det: trial 1: RuntimeError: no such model" in done.stderr


@pytest.mark.sample
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "if 'DET_DRIVER' not in os.environ: create(Trial, config, context_dir='.')",
            "train.py came to its end and began no training",
        ),
        (
            "if 'DET_DRIVER' in os.environ: sys.exit(3)\ncreate(Trial, config, context_dir='.')",
            "train.py called sys.exit(3) before it",
        ),
    ],
)
def test_a_script_that_hands_over_no_trial_is_told_so(script, text, message):
    text = text.replace("SUBMIT", "create(Trial, config, context_dir='.')")
    assert message in script(text, status=2).stderr


def test_only_what_belongs_to_the_code_is_submitted(script, det):
    det.cwd.joinpath(".detignore").write_text("secret.txt\n")
    det.cwd.joinpath("secret.txt").write_text("x")
    det.cwd.joinpath("kept.txt").write_text("x")
    script(CLUSTER)
    code = {path.name for path in (det.home / "experiments" / "1" / "code").iterdir()}
    assert {"train.py", "kept.txt"} <= code
    assert "secret.txt" not in code


def test_a_link_that_leads_out_of_the_code_is_refused(script, det, tmp_path):
    tmp_path.joinpath("outside").write_text("x")
    det.cwd.joinpath("link").symlink_to(tmp_path / "outside")
    assert "is a link that leads out of the code directory" in script(CLUSTER, status=1).stderr


def test_who_imports_the_script_submits_nothing(script, det):
    det.cwd.joinpath("train.py").write_text(HEAD + CLUSTER)
    assert (
        script.python("-c", "import train; print(train.Trial.__name__)").stdout.splitlines()[-1]
        == "Trial"
    )
    assert not det.home.joinpath("index.db").exists()


def test_submitted_trial_class_is_importable_from_a_checkpoint(script, det):
    script(CLUSTER)
    [load_data] = det.home.glob("checkpoints/*/load_data.json")
    assert json.loads(load_data.read_text())["trial_cls_spec"] == "train:Trial"


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Title\n"]},
        {
            "cell_type": "code",
            "source": ["%matplotlib inline\n", "!pip list\n", *HEAD.splitlines(keepends=True)],
        },
        {"cell_type": "code", "source": "%%bash\nfalse\n"},
        {
            "cell_type": "code",
            "source": (
                "print('in the notebook')\ncreate(Trial, config, context_dir='.',"
                " command=['note.ipynb'])\n"
            ),
        },
    ]
}


def test_a_notebook_is_submitted_by_its_path(script, det):
    det.cwd.joinpath("note.ipynb").write_text(json.dumps(NOTEBOOK))
    code = script_of(det.cwd / "note.ipynb")
    done = script.python("-c", code)
    assert "its workers run note.ipynb again" in done.stdout
    assert "experiment 1 is completed" in done.stdout
    assert "in the notebook" in logs(det)
    assert (det.home / "experiments" / "1" / "code" / "note__det__.py").is_file()


def test_a_class_from_a_cell_trains_here(script):
    done = script.python(
        "-c", HEAD + "print('after', len(create(Trial, config, mode='local').reports))"
    )
    assert "after 2" in done.stdout


def test_a_notebook_that_is_none_is_refused(tmp_path):
    tmp_path.joinpath("x.ipynb").write_text("{}")
    with pytest.raises(
        DetError, match=r"cannot be read as a notebook: KeyError; give an .ipynb file"
    ):
        script_of(tmp_path / "x.ipynb")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "create(Trial, config)",
            "context_dir is empty; name the directory of your code, such as '.'",
        ),
        (
            "create(Trial, config, context_dir='nowhere')",
            "context_dir is 'nowhere', which is no directory",
        ),
        (
            "create(Trial, config, context_dir='sub')",
            r"the script .*train\.py is not in context_dir",
        ),
        (
            "create(Trial, config, context_dir='.', command='ls -l')",
            "command is 'ls -l'; begin it with the path of a .py",
        ),
        (
            "create(Trial, config, context_dir='.', command='no.py')",
            "command begins with 'no.py', which is no file in",
        ),
        ("create(Trial, config, context_dir='.', command=[])", "command is empty"),
        (
            "create(Trial, config, context_dir='.', mode='moon')",
            "mode is 'moon'; give Mode.LOCAL or Mode.CLUSTER",
        ),
        (
            "create(Trial, {'searcher': {'name': 'single', 'metric': 'x'}}, mode='local')",
            "searcher.max_length is missing",
        ),
        (
            "create(Trial, {'searchr': {}, 'searcher': single}, mode='local')",
            "did you mean 'searcher'",
        ),
        ("create(7, config, mode='local')", "create got 7; give a trial class"),
    ],
)
def test_mistakes_are_named_in_the_last_line(script, det, call, message):
    det.cwd.joinpath("sub").mkdir()
    done = script(call, status=1)
    assert re.search(message, done.stderr.strip().splitlines()[-1]), done.stderr
    assert not det.home.joinpath("index.db").exists()


def test_an_interpreter_without_a_script_has_to_name_one(script):
    done = script.python("-c", HEAD + "create(Trial, config, context_dir='.')", status=1)
    assert "give command=['notebook.ipynb'], or the path of a script" in done.stderr


def test_create_outside_a_script_submits_nothing():
    assert create(object, mode=Mode.CLUSTER) is None  # this test is no script


def test_the_entrypoint_is_for_workers_only():
    from det_driver.native import script

    with pytest.raises(DetError, match="is loaded by det's workers; run the script itself"):
        _ = script.Trial
    with pytest.raises(AttributeError):
        _ = script.Other


def test_ranges_are_what_a_yaml_would_say():
    assert Constant(3) == {"type": "const", "val": 3}
    assert Integer(1, 4) == {"type": "int", "minval": 1, "maxval": 4}
    assert Double(0.0, 1.0, count=3) == {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 3}
    assert Log(-4, -1) == {"type": "log", "minval": -4, "maxval": -1, "base": 10.0}
    assert Categorical(("a", "b")) == {"type": "categorical", "vals": ["a", "b"]}
