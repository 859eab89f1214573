"""`det engine check` tries all that an engine needs, and says what is wrong."""

from __future__ import annotations

from pathlib import Path


def config(det, text: str) -> Path:
    path: Path = det.cwd / "engine.yaml"
    path.write_text(text)
    return path


def test_an_engine_that_works_says_what_there_is(det, tmp_path: Path) -> None:
    path = config(det, "engine: {name: ssh, hosts: [127.0.0.1], agent: 'env HOST={host}'}\n")
    said = det(
        "engine", "check", path, env={"HOME": str(tmp_path / "user"), "DET_SLOTS_TOTAL": "2"}
    ).stdout.splitlines()
    assert said[0].startswith("ssh: it answers; agents are to connect to 127.0.0.1:")
    assert said[1].endswith(": an agent connected, with cpu:0, cpu:1")
    assert "; what is written to the storage here is read there, and back" in said[2]
    assert said[3] == "the engine ssh works"
    assert list((det.home / "checkpoints").iterdir()) == []


def test_this_machine_needs_no_storage_of_another(det) -> None:
    said = det("engine", "check", "local").stdout
    assert said.splitlines()[-1] == "the engine local works"


def test_what_is_wrong_is_one_line(det, tmp_path: Path) -> None:
    path = config(det, "engine: {name: ssh, hosts: [127.0.0.1], agent: 'false {host}'}\n")
    said = det("engine", "check", path, status=2, env={"HOME": str(tmp_path / "user")}).stderr
    assert said.startswith("det: no agent could be started; the last one's words: it said nothing")


def test_an_engine_without_agents_has_nothing_to_try(det) -> None:
    said = det("engine", "check", "in-process", status=2).stderr
    assert said == "det: the engine in-process starts no agents; there is nothing to try\n"
