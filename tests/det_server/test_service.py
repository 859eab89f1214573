"""The systemd unit that `det server install` prints."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.det_server.test_command import refused, said

from det_server.command import server

INSTALL = ("server", "install")


def line(unit: str, name: str) -> str:
    (found,) = [each for each in unit.splitlines() if each.startswith(f"{name}=")]
    return found.partition("=")[2]


def test_a_unit_has_user_home_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / 'a "b" 100% $HOME \\n'
    options = ("--host", "0.0.0.0", "--allow-host=x", "--allow-host", "y")
    unit = said(home, *INSTALL, *options, "--certificate", "c.pem", "--key=k.pem")
    assert line(unit, "User") == pwd.getpwuid(os.geteuid()).pw_name
    assert line(unit, "ExecStart").endswith(
        f' "server" "start" "--home={tmp_path}/a \\"b\\" 100%% $$HOME \\\\n" "--host=0.0.0.0"'
        f' "--allow-host=x" "--allow-host=y" "--certificate={tmp_path}/c.pem"'
        f' "--key={tmp_path}/k.pem"'
    )
    assert (line(unit, "Restart"), line(unit, "KillMode")) == ("on-failure", "process")


def test_the_home_is_that_of_the_user() -> None:
    done = CliRunner().invoke(server, ["install", "--user", "nobody", "--behind-proxy"])
    place = Path(pwd.getpwnam("nobody").pw_dir, ".det")
    assert line(done.output, "User") == "nobody"
    assert line(done.output, "ExecStart").endswith(f'"--home={place}" "--behind-proxy"')


def test_a_unit_that_would_not_start_is_refused(tmp_path: Path) -> None:
    assert "has no user 'no one'" in refused(tmp_path, *INSTALL, "--user", "no one")
    assert "--allow-host NAME" in refused(tmp_path, *INSTALL, "--host", "0.0.0.0", "--behind-proxy")
    assert "control characters" in refused(tmp_path / "a\nb", *INSTALL)
    wrong = CliRunner().invoke(server, ["install", "--prot", "1"])
    assert (wrong.exit_code, "--prot" in wrong.output) == (2, True)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_finds_no_fault_in_a_unit(tmp_path: Path) -> None:
    unit = said(tmp_path / 'a "b" 100% $HOME \\n', *INSTALL, "--port", "0")
    for right, text in ((True, unit), (False, unit.replace("on-failure", "perhaps"))):
        (tmp_path / "det-server.service").write_text(text)
        command = ["systemd-analyze", "verify", str(tmp_path / "det-server.service")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (not done.stderr) is right, done.stderr
