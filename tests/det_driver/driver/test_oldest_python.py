"""det runs on the oldest patch release of its Python that people have: 3.11.2 is Debian 12's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEBIAN = Path("/usr/bin/python3.11")
SSH = """
name: old
entrypoint: python3 -c "import sys; print('run by', sys.version_info[:3])"
searcher: {name: single, metric: loss, max_length: 1}
engine: {name: ssh, hosts: [127.0.0.1], agent: "env HOST={host}"}
"""


@pytest.mark.process
def test_experiment_runs_and_moves_under_debian_python(det, tmp_path: Path) -> None:
    """Before 3.11.4 `tarfile` knows no filters.

    Agents died of that, and no export could be imported.
    """
    if sys.version_info[:2] != (3, 11) or not DEBIAN.exists():
        pytest.skip(
            "there is no /usr/bin/python3.11 for which this environment's packages are built"
        )
    venv = tmp_path / "venv"
    subprocess.run([DEBIAN, "-m", "venv", "--without-pip", venv], check=True)
    paths = [
        path
        for path in sys.path
        if path and "lib/python3.11/lib-dynload" not in path and not path.endswith(".zip")
    ]
    found = [path for path in paths if not path.endswith("lib/python3.11")]
    (next(venv.glob("lib/python*/site-packages")) / "these.pth").write_text("\n".join(found))
    env = det.env({"PYTHONPATH": os.pathsep.join(found), "HOME": str(tmp_path / "user")})
    argv = [str(venv / "bin/python"), "-m", "det_driver.cli"]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*argv, *arguments],
            check=False,
            cwd=det.cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (det.cwd / "code.py").write_text("")
    (det.cwd / "old.yaml").write_text(SSH)
    assert "experiment 1 is completed" in run("run", "old.yaml")
    version = subprocess.run(
        [DEBIAN, "-c", "import sys; print(sys.version_info[:3])"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"run by {version.stdout.strip()}" in run("logs", "1")
    run("export", "1", "one.tar")
    run("rm", "1", "--yes")
    run("import", "one.tar")
    assert "completed" in run("list").lower()
