"""`det run --bind`: code that reads the paths of a container finds them without one."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from det_core.errors import DetError
from det_driver.cli import main
from det_driver.cli._run import link_paths


def test_a_link_is_made_once_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host, container = tmp_path / "data", tmp_path / "in" / "a" / "container"
    host.mkdir()
    (host / "x").write_text("1")
    link_paths([f"{host}:{container}"])
    assert (container / "x").read_text() == "1"
    said = f"det: {container} is a link to {host} now, and stays; remove it with: rm {container}\n"
    assert capsys.readouterr().err == said
    link_paths([f"{host}:{container}", f"{host}:{host}"])
    assert capsys.readouterr().err == ""


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "other").mkdir()
    os.symlink("nowhere", tmp_path / "broken")
    for name in ("other", "broken"):
        with pytest.raises(DetError, match=f"{name} is there already, and is not "):
            link_paths([f"{tmp_path}/data:{tmp_path}/{name}"])
        assert os.path.lexists(tmp_path / name)


def test_failed_bind_link_error_shows_the_command_to_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pair = f"{tmp_path}:{tmp_path}/file/data"
    with pytest.raises(DetError) as refused:
        link_paths([pair])
    assert str(refused.value).startswith(
        f"--bind {pair}: the link {tmp_path}/file/data cannot be made: "
    )
    assert f"sudo ln -s {tmp_path} {tmp_path}/file/data, or set environment.container" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("pair", "said"),
    [("x", "give a path"), ("/tmp:data", "absolute"), ("/no/such:/x", "no /no/such")],
)
def test_what_is_no_pair_of_paths_is_refused(pair: str, said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        link_paths([pair])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("engine: {name: ssh, hosts: [a]}\n", "the engine is ssh; make them on its machines"),
        ("environment: {container: auto, image: python}\n", "write bind_mounts"),
    ],
)
def test_links_are_for_this_machine_without_a_container(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: str,
    said: str,
) -> None:
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        f"entrypoint: python3 x.py\nsearcher: {{name: single, metric: loss}}\n{lines}"
    )
    with pytest.raises(SystemExit) as end:
        main(["run", "c.yaml", "--bind", f"{tmp_path}:/such"])
    assert end.value.code == 2
    assert said in capsys.readouterr().err
