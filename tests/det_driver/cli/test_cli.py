"""The command line, as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from det_core import Plugins
from det_driver.cli import main

SCRIPT = "entrypoint: 'true'\nsearcher: {name: single, metric: error}\n"
COMMANDS = [
    "run",
    "resume",
    "pause",
    "cancel",
    "list",
    "show",
    "logs",
    "metrics",
    "checkpoint",
    "preview",
    "horovod",
    "check",
    "config",
    "plugins",
    "tensorboard",
    "version",
]


def test_help_lists_every_command_and_imports_no_framework(det):
    code = "import sys; from det_driver.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(sorted(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], env=det.env(None), capture_output=True, text=True, check=True
    ).stdout
    for command in (*COMMANDS, "launch"):
        assert f"\n  {command} " in out
    modules = out.splitlines()[-1]
    for heavy in ("torch", "tensorflow", "keras", "numpy", "rich.live", "fsspec", "sqlite3"):
        assert f"'{heavy}'" not in modules


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_says_what_it_does(det, command):
    out = det(command, "--help").stdout
    assert out.startswith("Usage: det " + command)
    assert len(out.splitlines()) > 4


def test_a_misspelt_command_is_told_the_nearest(det):
    done = det("rnu", status=2)
    assert "did you mean 'run'?" in done.stderr


@pytest.mark.parametrize(("command", "package"), [("horovod", "det-horovod"), ("plugin", "det-testing")])
def test_a_command_of_a_package_that_is_not_installed_names_the_package(command, package, monkeypatch, capsys):
    monkeypatch.setattr(Plugins, "installed", lambda **options: Plugins())
    with pytest.raises(SystemExit) as left:
        main([command, "anything"])
    said = f"det: det {command} comes with {package}, which is not installed; run: pip install {package}\n"
    assert (left.value.code, capsys.readouterr().err) == (2, said)


def test_list_before_anything_ran_says_how_to_begin(det):
    assert "start one with: det run CONFIG" in det("list", status=2).stderr
    assert det.json("list") == []


def test_an_unknown_experiment_is_one_line(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    det("run", "c.yaml")
    for command in (["show", "9"], ["logs", "9"], ["metrics", "9"], ["resume", "9"], ["pause", "9"]):
        done = det(*command, status=2)
        assert done.stderr.startswith("det: no experiment 9")
        assert len(done.stderr.splitlines()) == 1


def test_a_completed_experiment_is_neither_resumed_nor_paused(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    det("run", "c.yaml")
    assert "experiment 1 is completed" in det("resume", "1", status=2).stderr
    assert "experiment 1 is completed already" in det("pause", "1", status=2).stderr


def test_overrides_and_templates_reach_the_experiment(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    det.cwd.joinpath("t.yaml").write_text("max_restarts: 1\ndescription: from the template\n")
    det("run", "c.yaml", "--template", "t.yaml", "--config", "name=renamed", "--config", "max_restarts=3")
    experiment = det.json("show", "1")["experiment"]
    assert experiment["name"] == "renamed"
    assert experiment["description"] == "from the template"
    assert experiment["config"]["max_restarts"] == 3


def test_a_bad_override_is_one_line(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    done = det("run", "c.yaml", "--config", "max_restarts=-1", status=2)
    assert "max_restarts" in done.stderr
    assert not det.home.joinpath("index.db").exists()


def test_a_configuration_that_does_not_exist_is_one_line(det):
    done = det("run", "nowhere.yaml", status=2)
    assert "nowhere.yaml" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_schema_is_json_and_knows_the_searcher(det):
    schema = json.loads(det("config", "schema").stdout)
    assert "searcher" in schema["properties"] or "$defs" in schema


def test_secrets_are_masked_when_a_configuration_is_shown(det):
    det.cwd.joinpath("c.yaml").write_text(
        SCRIPT + "checkpoint_storage: {type: s3, bucket: b, access_key: AKIA, secret_key: hunter2}\n"
    )
    out = det("config", "show", "c.yaml").stdout
    assert "hunter2" not in out
    assert "bucket: b" in out


def test_plugins_lists_the_built_in_ones_with_their_distribution(det):
    rows = {row["name"]: row for row in det.json("plugins", "--no-load")}
    assert rows["driver"]["distribution"].startswith("det-driver ")
    assert "searchers" in rows["driver"]["hooks"]
    assert not any(row["problem"] for row in rows.values() if row["distribution"] == rows["driver"]["distribution"])


def test_version_names_det_and_python(det):
    versions = det.json("version")
    assert versions["python"].startswith("3.")
    assert versions["det-core"]


def test_logs_and_metrics_of_one_trial_and_as_csv(det):
    det.cwd.joinpath("train.py").write_text(
        "from det_core import core\n"
        "with core.init() as context:\n"
        "    print('hello from the trial')\n"
        "    context.train.report_training_metrics(1, {'loss': 0.5})\n"
        "    context.train.report_validation_metrics(1, {'error': 0.25})\n"
    )
    det.cwd.joinpath("c.yaml").write_text(SCRIPT.replace("'true'", "python3 train.py"))
    det("run", "c.yaml")
    assert "[trial 1 run 1 rank-0] hello from the trial" in det("logs", "1").stdout
    assert det("logs", "1", "--trial", "1", "--tail", "0").stdout == ""
    lines = det("metrics", "1", "--csv").stdout.split()
    assert lines[0].startswith("trial,group,batches")
    assert len(lines) == 3


def test_output_piped_into_a_reader_that_leaves_is_no_error(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    det("run", "c.yaml")
    command = f"{sys.executable} -m det_driver.cli config schema | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=det.env(None),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_shell_completion_is_offered(det):
    done = det(env={"_DET_COMPLETE": "bash_source"})
    assert "complete" in done.stdout


def test_no_color_is_honoured(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    det("run", "c.yaml")
    out = det("list", env={"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color"}).stdout
    assert "\x1b[3" not in out


def test_checkpoints_are_listed_shown_exported_and_deleted(det):
    det.cwd.joinpath("train.py").write_text(
        "from det_core import core\n"
        "with core.init() as context:\n"
        "    with context.checkpoint.store_path({'steps_completed': 3}) as (path, uuid):\n"
        "        (path / 'weights').write_text('w')\n"
    )
    det.cwd.joinpath("c.yaml").write_text(SCRIPT.replace("'true'", "python3 train.py"))
    det("run", "c.yaml")
    (listed,) = [det.json("checkpoint", "list", "1")][0]
    uuid = listed["uuid"]
    assert listed["batches"] == 3
    assert "weights" in det.json("checkpoint", "show", uuid[:8])["files"]
    det("checkpoint", "export", uuid, "out")
    assert (det.cwd / "out" / "weights").read_text() == "w"
    assert "is not empty" in det("checkpoint", "export", uuid, "out", status=2).stderr
    assert det("checkpoint", "describe", uuid).stdout == det("checkpoint", "show", uuid).stdout
    det("checkpoint", "download", uuid, "again")
    det("checkpoint", "delete", uuid, "--yes")
    assert det.json("checkpoint", "list", "1") == []
    assert not os.path.exists(det.home / "checkpoints" / uuid)
