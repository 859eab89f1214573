"""The page of environment variables has those that `det` reads, and those that a run has."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/reference/environment.md"
CONFIG = (
    "entrypoint: env\nsearcher: {name: single, metric: error}\nmin_checkpoint_period: {batches:"
    " 1}\n"
)
SOMETIMES = {
    "DET_ALONE_SECONDS": "on other hosts",
    "DET_CHECKING": "where a trial is checked",
    "DET_CHIEF_PORT": "of a launch",
    "DET_CODE_COMMIT": "where the code is in a repository",
    "DET_ENVIRONMENT": "where the experiment has one",
    "DET_LATEST_CHECKPOINT": "once there is one",
    "DET_RANKS_KEY": "of a launch",
    "DET_RANKS_TIMEOUT": "where distributed.timeout is given",
    "DET_TARGET": "of a trial class",
}


def section(title: str) -> set[str]:
    """Return the variables that a section of the page has."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(DET_[A-Z_]+)`", text, re.MULTILINE))


def test_processes_of_a_run_have_the_documented_variables(det):
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    det("run", "c.yaml")
    printed = set(re.findall(r"\] (DET_[A-Z_]+)=", det("logs", "1").stdout))
    assert printed - section("Read by `det`") == section("Set for the processes of a run") - set(
        SOMETIMES
    )


def test_every_call_of_a_hook_is_printed_where_that_is_asked_for(det):
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    done = det("check", "c.yaml", "--config-only", env={"DET_TRACE_PLUGINS": "1"})
    assert "det_searchers" in done.stdout + done.stderr
