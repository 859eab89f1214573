"""Distributions that are installed and broken, each in another way.

`det plugins` says what is wrong, all else works.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from tests.support.distributions import lay_out, on_path

FRAMEWORK = """
from det_core import Framework, hookimpl

@hookimpl
def det_frameworks():
    yield Framework(name="NAME", trial="det_NAME:Trial", load=load)

def load():
    from det_testing.fakes import OwnedAdapter
    return OwnedAdapter
"""
HOOK = """
from det_core import hookimpl

@hookimpl
def SIGNATURE:
    BODY
"""


def hook(signature: str, body: str) -> str:
    return HOOK.replace("SIGNATURE", signature).replace("BODY", body)


def framework(name: str) -> str:
    return FRAMEWORK.replace("NAME", name)


BROKEN = {
    "import error": (
        "import no_such_framework",
        (),
        r"ModuleNotFoundError: No module named 'no_such_framework'",
    ),
    "wrong record type": (
        hook("det_frameworks()", "yield {'name': 'bad'}"),
        (),
        r"plugin 'bad' yields \{'name': 'bad'\} from det_frameworks; yield det_core\.Framework",
    ),
    "duplicate name": (
        hook(
            "det_searchers()",
            "yield __import__('det_core').SearcherRecord(name='random', make=print)",
        ),
        (),
        r"plugins 'bad' and 'driver' both register the searcher 'random'; uninstall one of them",
    ),
    "unknown argument": (
        hook("det_run_started(experiment, worker)", "pass"),
        (),
        (
            r"plugin 'bad' does not fit this version of det-core: det_run_started does not give"
            r" 'worker', but experiment, trial, run"
        ),
    ),
    "misspelt hook": (
        hook("det_run_begun(experiment)", "pass"),
        (),
        (
            r"plugin 'bad' implements det_run_begun, which is no hook; did you mean"
            r" 'det_run_\w+'\?"
        ),
    ),
    "old core": (
        "from det_core import NotYetThere",
        ("det-training-core>=99,<100",),
        r"it requires det-training-core<100,>=99, but det-training-core \S+ is installed; "
        r"upgrade det-training-core: python3 -m pip install --upgrade \S*det-\w+",
    ),
    "new core": (
        "from det_core import NoLongerThere",
        ("det-training-core>=0.0.1,<0.0.2",),
        r"it requires det-training-core<0\.0\.2,>=0\.0\.1, but det-training-core \S+ is installed; "
        r"upgrade det-bad: python3 -m pip install --upgrade det-bad",
    ),
    "load that raises": (
        framework("bad").replace(
            "from det_testing.fakes", "raise ImportError('libbad.so.3 is missing')\n    from x"
        ),
        (),
        r"the framework 'bad' does not load: ImportError: libbad\.so\.3 is missing",
    ),
    "load that ends the process": (
        framework("bad").replace("from det_testing.fakes", "import os; os.abort()\n    from x"),
        (),
        r"loading what it registers ends the process with SIGABRT",
    ),
    "observer that raises": (
        hook("det_experiment_started(experiment)", "raise ValueError('disk on fire')"),
        (),
        r"det_experiment_started failed at \S+ \S+: ValueError: disk on fire \(.*det_bad\.py:6\)",
    ),
}
CONFIG = """
name: script
entrypoint: python3 train.py
searcher: {name: single, metric: error}
"""
SCRIPT = """
from det_core import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"error": 0.5})
"""


@pytest.fixture
def project(det) -> None:
    (det.cwd / "const.yaml").write_text(CONFIG)
    (det.cwd / "train.py").write_text(SCRIPT)


def installed(site: Path, source: str, requires: tuple[str, ...] = ()) -> dict[str, str]:
    """Install a plugin `good`, and this one as `bad`; return the environment in which they are."""
    lay_out(
        site, "det-good", entry_points={"good": "det_good"}, modules={"det_good": framework("good")}
    )
    lay_out(
        site,
        "det-bad",
        entry_points={"bad": "det_bad"},
        modules={"det_bad": source},
        requires=requires,
    )
    return {**on_path(site), "DET_STRICT_PLUGINS": "0"}


def problems(det, env: dict[str, str]) -> dict[str, str]:
    return {
        row["name"]: row["problem"] for row in json.loads(det("plugins", "--json", env=env).stdout)
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize(("source", "requires", "problem"), BROKEN.values(), ids=BROKEN)
def test_it_is_named_with_what_is_wrong_and_all_else_works(
    det, project, tmp_path: Path, source: str, requires: tuple[str, ...], problem: str
) -> None:
    env = installed(tmp_path / "site", source, requires)
    done = det("run", "const.yaml", env=env)
    assert "experiment 1 is completed" in done.stdout
    assert all(
        line.startswith(("det: skipped plugin 'bad'", "det: observer 'bad'"))
        for line in done.stderr.splitlines()
    )
    found = problems(det, env)
    assert re.fullmatch(problem, found["bad"]), found["bad"]
    assert found["good"] == found["driver"] == ""


def test_an_observer_that_is_mended_is_forgiven(det, project, tmp_path: Path) -> None:
    """When an experiment has ended in which it did not raise."""
    env = installed(
        tmp_path / "site",
        hook("det_experiment_started(experiment)", "raise ValueError('disk on fire')"),
    )
    det("run", "const.yaml", env=env)
    (tmp_path / "site" / "det_bad.py").write_text(
        hook("det_experiment_started(experiment)", "pass")
    )
    assert "disk on fire" in problems(det, env)["bad"]
    det("run", "const.yaml", env=env)
    assert problems(det, env)["bad"] == ""


def test_nothing_is_imported_where_that_is_not_wanted(det, tmp_path: Path) -> None:
    source, requires, _ = BROKEN["load that raises"]
    env = installed(tmp_path / "site", source, requires)
    rows = json.loads(det("plugins", "--no-load", "--json", env=env).stdout)
    assert [row["problem"] for row in rows if row["name"] == "bad"] == [""]


def test_a_plugin_for_this_core_is_not_refused(det, tmp_path: Path) -> None:
    """Whatever else it requires, under whichever conditions."""
    needs = (
        "det_core>=0.1,<99",
        "det-training-core-extras>=5",
        'det-training-core>=99; python_version < "3"',
        'det-training-core>=99; extra == "x"',
    )
    env = installed(tmp_path / "site", framework("bad"), needs)
    assert problems(det, env)["bad"] == ""


def test_a_requirement_that_cannot_be_read_is_named(det, tmp_path: Path) -> None:
    env = installed(tmp_path / "site", framework("bad"), ("det-training-core >=< 3",))
    assert (
        problems(det, env)["bad"]
        == "det-bad 1.0 has an unreadable requirement, 'det-training-core >=< 3'"
    )


HANGS = """
from det_core import hookimpl

@hookimpl
def det_experiment_started(experiment):
    print("HANGS", flush=True)
    while True:
        pass
"""


@pytest.mark.process
def test_the_second_signal_ends_a_run_whose_observer_hangs(det, project, tmp_path: Path) -> None:
    """It is named, and the experiment can be resumed."""
    env = installed(tmp_path / "site", HANGS)
    process = det.start("run", "const.yaml", env=env)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any("HANGS" in line for line in lines)
    process.send_signal(signal.SIGTERM)
    assert any("once more ends at once" in line for line in lines)
    process.send_signal(signal.SIGTERM)
    # Not `communicate`, which does not know of the lines that are already in the buffer.
    rest = "".join(lines)
    process.wait(timeout=60)
    assert (
        "observer 'bad' failed in det_experiment_started: it did not return when the run was to end"
        in rest
    )
    assert process.returncode == 130
    assert "det resume 1" in rest


@pytest.mark.process
def test_plugins_that_print_exit_or_are_slow_are_named(det, tmp_path: Path) -> None:
    """The output of `det plugins --json` stays JSON."""
    slow = "import time\nprint('hello')\ntime.sleep(1.1)\n"
    env = installed(tmp_path / "site", "import sys; print('bye'); sys.exit(3)")
    lay_out(
        tmp_path / "site", "det-slow", entry_points={"slow": "det_slow"}, modules={"det_slow": slow}
    )
    rows = json.loads(det("plugins", "--no-load", "--json", env=env).stdout)
    found = {row["name"]: row["problem"] for row in rows}
    assert re.fullmatch(
        r"its import takes \d+\.\d s, which every command waits for; .*", found["slow"]
    )
    assert "plugin 'bad' raised SystemExit (sys.exit(3)) in its import" in found["bad"]
    assert found["good"] == ""
