"""The commands that Determined's users type."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
    import determined as det

    with det.core.init() as context:
        for step in (1, 2):
            with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "step").write_text(str(step))
            context.train.report_validation_metrics(step, {"error": 1 / step})
"""
CONFIG = """
    name: words
    entrypoint: python3 script.py
    checkpoint_storage: {type: directory, container_path: /tmp/words, save_trial_latest: 2}
    searcher: {name: single, metric: error}
    max_restarts: 0
"""


@pytest.fixture
def project(write: Any, tmp_path: Any) -> None:
    write(
        config__yaml=CONFIG.replace("/tmp/words", str(tmp_path / "checkpoints")), script__py=SCRIPT
    )


@pytest.fixture
def done(det: Any, project: None) -> None:
    det("experiment", "create", "config.yaml", ".", "-f")


def test_create_runs_in_the_background_and_wait_reports_the_end(det: Any, project: None) -> None:
    assert "experiment 1 runs in the background" in det("e", "create", "config.yaml", ".").stdout
    assert "experiment 1 is completed" in det("e", "wait", "1").stdout


def test_describe_list_logs_and_config(det: Any, done: None) -> None:
    assert "words" in det("e", "list").stdout
    assert "experiment 1 (words) is completed" in det("e", "describe", "1").stdout
    assert det.json("e", "describe", "1")["trials"][0]["state"] == "COMPLETED"
    assert "entrypoint: python3 script.py" in det("e", "config", "1").stdout
    assert det("e", "list-trials", "1").stdout == det("show", "1").stdout
    assert len(det("e", "list-checkpoints", "1").stdout.splitlines()) == 3


def test_downloads(det: Any, done: None) -> None:
    det("e", "download-model-def", "1", "-o", "code")
    assert det.cwd.joinpath("code", "script.py").exists()
    det("e", "download", "1", "-o", "best")
    assert det.cwd.joinpath("best", "step").read_text() == "2"
    det("trial", "download", "1", "--latest", "-o", "latest")
    assert det.cwd.joinpath("latest", "step").read_text() == "2"
    uuid = det.json("checkpoint", "list", "1")[0]["uuid"]
    det("checkpoint", "download", uuid, "--output-dir", "by-uuid")
    assert det.cwd.joinpath("by-uuid", "step").exists()
    refused = det("trial", "download", "1", "--latest", "--best", status=2)
    assert "give exactly one of --best, --latest and --uuid" in refused.stderr


def test_trial_describe_and_logs(det: Any, done: None) -> None:
    shown = det("t", "describe", "1", "--metrics").stdout
    assert "trial 1 of experiment 1 is completed at batch 2, best error 0.5" in shown
    assert "validation at batch 2" in shown
    assert det("t", "logs", "1").stdout == det("logs", "1").stdout


def test_archived_experiments_are_not_listed(det: Any, done: None) -> None:
    det("e", "archive", "1")
    assert "words" not in det("e", "list").stdout
    assert "words" in det("e", "list", "--all").stdout
    det("e", "unarchive", "1")
    assert "words" in det("e", "list").stdout


def test_paused_then_activated(det: Any, project: None, wait_until: Any) -> None:
    assert det("e", "create", "config.yaml", ".", "--paused").stdout == "Created experiment 1\n"
    assert det.json("show", "1")["experiment"]["state"] == "PAUSED"
    det("e", "activate", "1")
    det("e", "wait", "1")


def test_cancel_and_kill_of_what_has_ended_say_so(det: Any, done: None) -> None:
    for word in ("pause", "cancel", "kill"):
        assert "experiment 1 is completed already" in det("e", word, "1", status=2).stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--local",), "--local goes with --test"),
        (("--include", "x.py"), "--include x.py is not known to det; put the file into MODEL_DIR"),
        (("--paused", "-f"), "--paused contradicts -f and --test"),
        (("--paused", "--config", "name=x"), "--paused takes no --config"),
    ],
)
def test_what_contradicts_itself_is_refused(
    det: Any, project: None, options: tuple[str, ...], message: str
) -> None:
    assert message in det("e", "create", "config.yaml", ".", *options, status=2).stderr


def test_a_typo_is_answered_with_the_word_that_was_meant(det: Any) -> None:
    assert "'experiment'" in det("experimnt", status=2).stderr


def test_test_mode_checks_the_configuration(det: Any, project: None) -> None:
    assert (
        "config.yaml is valid" in det("e", "create", "config.yaml", ".", "--local", "--test").stdout
    )


def test_preview_search(det: Any, project: None) -> None:
    det("e", "create", "config.yaml", ".", "--paused", "-h")
    write = det.cwd / "search.yaml"
    write.write_text(
        "name: s\nentrypoint: m:T\nhyperparameters: {lr: {type: log, minval: -3, maxval:"
        " 0}}\nsearcher: {name: adaptive_asha, metric: error, max_trials: 16, max_length: {batches:"
        " 64}}\n"
    )
    assert det("preview-search", "search.yaml").stdout == det("preview", "search.yaml").stdout


def test_the_help_names_them(det: Any) -> None:
    shown = det("--help").stdout
    assert "experiment" in shown
    assert "preview-search" in shown
