"""The command line, as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from jsonschema import Draft202012Validator

from det_core import Plugins
from det_core.config import to_builtins
from det_core.support.installation import how_to_install
from det_driver.cli import main
from det_driver.config import load

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
    code = (
        "import sys; from det_driver.cli import main\ntry: main(['--help'])\nexcept SystemExit:"
        " pass\nprint(sorted(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], env=det.env(None), capture_output=True, text=True, check=True
    ).stdout
    for command in (*COMMANDS, "launch"):
        assert f"\n  {command} " in out
    modules = out.splitlines()[-1]
    for heavy in (
        "torch",
        "tensorflow",
        "keras",
        "numpy",
        "rich.live",
        "fsspec",
        "sqlite3",
        "det_driver.lint",
    ):
        assert f"'{heavy}'" not in modules


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_says_what_it_does(det, command):
    out = det(command, "--help").stdout
    assert out.startswith("Usage: det " + command)
    assert len(out.splitlines()) > 4


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("rnu", "no such command 'rnu'; did you mean 'run'?"),
        ("wibble", "no such command 'wibble'; see det --help"),
        ("checkpoint lsit", "no such command 'lsit'; did you mean 'list'?"),
        ("plugin nwe", "no such command 'nwe'; did you mean 'new'?"),
        ("config wibble", "no such command 'wibble'; see det config --help"),
        ("list --lmit 3", "no such option '--lmit'; did you mean '--limit'?"),
        ("list --wibble", "no such option '--wibble'; see det list --help"),
    ],
)
def test_a_misspelt_command_or_option_is_told_the_nearest(det, typed, said):
    assert det(*typed.split(), status=2).stderr == f"det: {said}\n"


@pytest.mark.sample
@pytest.mark.parametrize("group", ["", "checkpoint", "config", "home", "plugin"])
def test_a_group_without_a_command_prints_its_help(det, group):
    done = det(*group.split())
    assert done.stdout == det(*group.split(), "--help").stdout
    assert (done.stderr, done.stdout.splitlines()[0]) == (
        "",
        f"Usage: det{f' {group}'.rstrip()} [OPTIONS] COMMAND [ARGS]...",
    )


def test_it_says_its_version(det):
    assert det("--version").stdout == f"det, version {version('det-driver')}\n"


def test_entrypoint_without_class_is_refused_before_the_run(det):
    det.cwd.joinpath("model_def.py").write_text("class MyTrial(PyTorchTrial): ...\n")
    det.cwd.joinpath("c.yaml").write_text(SCRIPT.replace("'true'", "model_def"))
    said = "det: entrypoint 'model_def' names no class; did you mean 'model_def:MyTrial'?\n"
    assert det("run", "c.yaml", status=2).stderr == det("check", "c.yaml", status=2).stderr == said
    assert det.json("list") == []
    det.cwd.joinpath("c.yaml").write_text(
        SCRIPT.replace("'true'", "model_def:MyTrial").replace("error}", "error, max_length: 1}")
    )
    assert (
        det("check", "c.yaml", "--config-only").stdout == "c.yaml is valid\n"
    )  # PyTorchTrial is not known there
    assert "PyTorchTrial" in det("check", "c.yaml", status=1).stderr


@pytest.mark.parametrize(
    ("command", "package"), [("horovod", "det-horovod"), ("plugin", "det-testing")]
)
def test_command_of_a_missing_package_names_the_package(command, package, monkeypatch, capsys):
    monkeypatch.setattr(Plugins, "installed", lambda **options: Plugins())
    with pytest.raises(SystemExit) as left:
        main([command, "anything"])
    said = (
        f"det: det {command} comes with {package}, which is not installed; run:"
        f" {how_to_install(package)}\n"
    )
    assert (left.value.code, capsys.readouterr().err) == (2, said)


def test_list_before_anything_ran_says_how_to_begin(det):
    assert "start one with: det run CONFIG" in det("list", status=2).stderr
    assert det.json("list") == []


def test_an_unknown_experiment_is_one_line(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    det("run", "c.yaml")
    for command in (
        ["show", "9"],
        ["logs", "9"],
        ["metrics", "9"],
        ["resume", "9"],
        ["pause", "9"],
    ):
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
    det(
        "run",
        "c.yaml",
        "--template",
        "t.yaml",
        "--config",
        "name=renamed",
        "--config",
        "max_restarts=3",
    )
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
    assert '\n      "properties"' not in det("config", "schema", "--indent", "1").stdout


def test_new_config_fits_the_code_and_names_its_schema(det):
    """The file names the schema in the way that editors know, and is sound by it."""
    for code, entrypoint in (
        ("train.py", "python3 train.py"),
        ("model.py", "model:MyTrial"),
        ("b.py", "model_def:MyTrial"),
    ):
        det.cwd.joinpath(code).write_text(
            "class MyTrial(PyTorchTrial): ...\n" if code != "train.py" else ""
        )
        path = f"{code}.yaml"
        assert f"det check {path}" in det("config", "new", path).stdout
        first, text = det.cwd.joinpath(path).read_text().split("\n", 1)
        assert f"entrypoint: {entrypoint}" in text
        assert first == "# yaml-language-server: $schema=det.schema.json"
        assert load(text).notices == ()
        schema = json.loads(det.cwd.joinpath("det.schema.json").read_text())
        assert Draft202012Validator(schema).is_valid(to_builtins(load(text).config))
    said = det("config", "new", path, status=2).stderr
    assert (
        said
        == f"det: cannot write {path}: File exists; name a new file in a directory that is there\n"
    )


def test_secrets_are_masked_when_a_configuration_is_shown(det):
    det.cwd.joinpath("c.yaml").write_text(
        SCRIPT + "checkpoint_storage: {type: s3, bucket: b, access_key: AKIA, secret_key: hunter2,"
        " endpoint_url: 'http://s3:1'}\n"
    )
    out = det("config", "show", "c.yaml").stdout
    assert "hunter2" not in out
    assert "endpoint_url: http://s3:1" in out
    assert "bucket: b" in out


def test_plugins_lists_the_built_in_ones_with_their_distribution(det):
    rows = {row["name"]: row for row in det.json("plugins", "--no-load")}
    assert rows["driver"]["distribution"].startswith("det-driver ")
    assert "searchers" in rows["driver"]["hooks"]
    assert not any(
        row["problem"]
        for row in rows.values()
        if row["distribution"] == rows["driver"]["distribution"]
    )


def test_version_names_det_and_python(det):
    versions = det.json("version")
    assert versions["python"].startswith("3.")
    assert versions["det-training-core"]


def test_misspelt_metric_error_suggests_a_reported_metric(det):
    det.cwd.joinpath("train.py").write_text(
        "from det_core import core\n"
        "with core.init() as context:\n"
        "    context.train.report_validation_metrics(1, {'accuracy': 0.5, 'error': 0.25})\n"
    )
    det.cwd.joinpath("c.yaml").write_text(
        SCRIPT.replace("'true'", "python3 train.py").replace("error", "eror")
    )
    said = (
        "no trial has a usable 'eror' (searcher.metric): validations reported accuracy, error; did"
        " you mean 'error'?"
    )
    assert said in det("run", "c.yaml").stdout  # a single trial is ranked among nobody


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
    assert det("logs", "1", "--rank", "0").stdout == det("logs", "1").stdout
    said = "det: no run of experiment 1 has a rank 3; leave out --rank for all of them\n"
    assert det("logs", "1", "--rank", "3", status=2).stderr == said
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


def test_completion_works_and_lists_nothing_without_a_store(det):
    done = det(env={"_DET_COMPLETE": "bash_source"})
    assert "complete" in done.stdout
    assert completed(det, "det show ") == completed(det, "det checkpoint show ") == []
    assert completed(det, "det resu") == ["resume"]


def completed(det, typed: str) -> list[str]:
    """Return what the Tab key would offer behind what was typed."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    lines = det(env={"_DET_COMPLETE": "bash_complete", **words}).stdout.splitlines()
    return [line.partition(",")[2] for line in lines if line]


def test_no_color_is_honoured(det):
    det.cwd.joinpath("c.yaml").write_text(SCRIPT)
    det("run", "c.yaml")
    out = det("list", env={"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color"}).stdout
    assert "\x1b[3" not in out


def test_untyped_storage_settings_limit_checkpoints_in_the_home(det):
    """Without `checkpoint_storage.type`, `save_trial_latest` applies to the storage of the home."""
    det.cwd.joinpath("train.py").write_text(
        "from det_core import core\n"
        "with core.init() as context:\n"
        "    for batch in (1, 2, 3):\n"
        "        with context.checkpoint.store_path({'steps_completed': batch}) as (path, uuid):\n"
        "            (path / 'weights').write_text('w')\n"
    )
    det.cwd.joinpath("c.yaml").write_text(SCRIPT.replace("'true'", "python3 train.py"))
    det("run", "c.yaml", "--config", "checkpoint_storage.save_trial_latest=2")
    assert [each["batches"] for each in det.json("checkpoint", "list", "1")] == [2, 3]
    assert len(list((det.home / "checkpoints").glob("[0-9a-f]*"))) == 2


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
    assert completed(det, "det show ") == completed(det, "det rm ") == ["1"]
    assert (
        completed(det, "det logs 1 --trial ") == completed(det, "det metrics 1 --trial ") == ["1"]
    )
    assert completed(det, "det logs 2 --trial ") == completed(det, "det show 2") == []
    assert (
        completed(det, "det checkpoint export ")
        == completed(det, f"det checkpoint show {uuid[:3]}")
        == [uuid]
    )
    assert "weights" in det.json("checkpoint", "show", uuid[:8])["files"]
    det("checkpoint", "export", uuid, "out")
    assert (det.cwd / "out" / "weights").read_text() == "w"
    assert "is not empty" in det("checkpoint", "export", uuid, "out", status=2).stderr
    assert det("checkpoint", "describe", uuid).stdout == det("checkpoint", "show", uuid).stdout
    det("checkpoint", "download", uuid, "again")
    det("checkpoint", "delete", uuid, "--yes")
    assert det.json("checkpoint", "list", "1") == []
    assert [each["state"] for each in det.json("checkpoint", "list", "1", "--deleted")] == [
        "DELETED"
    ]
    assert not os.path.exists(det.home / "checkpoints" / uuid)


@pytest.mark.skipif(find_spec("det_web") is not None, reason="the page is installed")
def test_the_page_is_asked_for_where_there_is_none(det):
    det.cwd.joinpath("c.yaml").write_text(
        "entrypoint: 'true'\nsearcher: {name: single, metric: error}\n"
    )
    assert (
        f"--ui needs the page, which is not installed; run: {how_to_install('det-web')}"
        in det("run", "c.yaml", "--ui", status=2).stderr
    )
    assert det.json("list") == []
