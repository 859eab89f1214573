"""`det check` names broken rules, and what its options make of them."""

from __future__ import annotations

import pytest

CONFIG = """
entrypoint: python3 train.py
hyperparameters: {lr: 0.1}
searcher: {name: single, metric: loss, smaller_is_better: true}
"""
SLOPPY = "import sys\nsys.path.append('..')\nimages = open('/data/images')\n"
PATH = (
    "train.py:2:1: DET302 sys.path is edited; keep modules with the entrypoint, or install them\n"
)
PLACE = (
    "train.py:3:15: DET203 the path '/data/images' is fixed in the code; read it from `data` of the"
    " configuration\n"
)


@pytest.fixture(autouse=True)
def sloppy(det) -> None:
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    det.cwd.joinpath("train.py").write_text(SLOPPY)


def test_check_prints_broken_rules_between_config_and_trial(det) -> None:
    said = det("check", "c.yaml").stdout
    assert (
        said
        == f"c.yaml is valid\n{PATH}{PLACE}the entrypoint is a script, 'python3 train.py': nothing"
        " more to check\n"
    )


def test_a_place_is_named_as_seen_from_where_one_stands(det) -> None:
    det.cwd.joinpath("c.yaml").rename(det.cwd.parent / "c.yaml")
    said = det("check", det.cwd.parent / "c.yaml", det.cwd, "--config-only").stdout.splitlines()
    assert [line.partition(" ")[0] for line in said[1:]] == ["train.py:2:1:", "train.py:3:15:"]


def test_with_strict_a_broken_rule_is_status_1(det) -> None:
    assert PATH in det("check", "c.yaml", "--config-only", "--strict", status=1).stdout
    det("check", "c.yaml", "--strict", "--ignore", "DET302,fixed-path")


def test_rules_are_selected_and_ignored(det) -> None:
    assert (
        det("check", "c.yaml", "--config-only", "--select", "DET3").stdout
        == f"c.yaml is valid\n{PATH}"
    )
    assert (
        det("check", "c.yaml", "--config-only", "--ignore", "DET3").stdout
        == f"c.yaml is valid\n{PLACE}"
    )


def test_a_code_that_there_is_not_is_one_line(det) -> None:
    said = det("check", "c.yaml", "--ignore", "DET302", "--select", "DET909", status=2).stderr
    assert said.startswith("det: no rule 'DET909'; did you mean 'DET")
    assert said.count("\n") == 1
    assert det("check", "--explain", "x9", status=2).stderr.startswith(
        "det: no rule 'x9'; there are: DET001, "
    )


def test_a_rule_is_explained_without_a_configuration(det) -> None:
    said = det("check", "--explain", "fixed-path").stdout
    assert said.startswith("DET203 fixed-path\n\nA place of one machine")
    assert said.endswith("\n\nSilence a line by: # noqa: DET203\n")


def test_check_prints_nothing_twice_after_switching_environment(det) -> None:
    """The det of an environment does not repeat what the calling det has printed."""
    said = det("check", "c.yaml", env={"DET_CHECKED": "1"}).stdout
    assert said == "the entrypoint is a script, 'python3 train.py': nothing more to check\n"
