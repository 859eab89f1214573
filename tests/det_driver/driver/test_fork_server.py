"""Workers that are forks of a server.

As good as new interpreters, and isolated from one another.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from det_driver.store import Store
from det_node.process import is_running, process_identity

SEARCH = (
    "searcher: {name: random, metric: val_loss, max_trials: 3, max_length: 4,"
    " max_concurrent_trials: 1}\n"
)
ONE = SEARCH.replace("max_trials: 3", "max_trials: 1")

# What a trial finds when its module is imported, and leaves changed behind.
FACTS = """

    import gc, json, pathlib, random, resource, signal, sys, threading

    SHELLS = ("_", "PS1", "SHLVL", "PWD", "OLDPWD", "PYTEST_CURRENT_TEST")

    def facts():
        handlers = {s.name: str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)}
        status = pathlib.Path("/proc/self/status").read_text()
        return {
            "argv": sys.argv[1:], "path": sys.path, "cwd": os.getcwd(), "handlers": handlers,
            "environ": {k: v for k, v in sorted(os.environ.items()) if not k.startswith("DET_") and k not in SHELLS},
            "det": sorted(k for k in os.environ if k.startswith("DET_")),
            "leader": os.getsid(0) == os.getpgrp() == os.getpid(), "gc": [gc.isenabled(), gc.get_threshold()],
            "random": random.random(), "mask": [l for l in status.splitlines() if l.startswith(("SigBlk", "SigIgn", "Umask"))],
            "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "stdin": os.readlink("/proc/self/fd/0"),
            "buffered": [sys.stdout.write_through, sys.stdout.line_buffering, sys.stderr.line_buffering],
            "out": os.readlink("/proc/self/fd/1").rpartition("/")[2], "threads": threading.active_count(),
            "sockets": [os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in os.listdir("/proc/self/fd")
                        if os.path.exists(f"/proc/self/fd/{n}")].count("socket"),
            "changed": getattr(json, "changed", 0), "main": threading.current_thread() is threading.main_thread(),
        }

    FOUND = facts()
    FOUND["forked"] = "det_node.forkserver" in sys.orig_argv
    with open(os.environ["FACTS"], "a") as file:
        file.write(json.dumps(FOUND) + "\\n")
    json.changed = 1
    vars(os)["environ"]["CHANGED"] = "1"  # in a way that reading the code does not find
    os.umask(0o077)
    sys.path.append("/changed")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    random.seed(1)
    os.chdir("/")
"""


def facts_of(
    project, tmp_path: Path, text: str = SEARCH, env: dict[str, str] | None = None, **options
) -> list[dict]:
    """Run a search; return what each of its runs found."""
    model = project.det.cwd / "model_def.py"
    if "FACTS" not in model.read_text():
        model.write_text(model.read_text() + textwrap.dedent(FACTS))
    file = tmp_path / "facts"
    file.unlink(missing_ok=True)
    project.run(text, env={"FACTS": str(file), **(env or {})}, **options)
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_fork_finds_what_a_new_interpreter_finds(project, tmp_path):
    """A fork has no state of the trials that ran before it."""
    forks = facts_of(project, tmp_path)
    table = project.outcome().table
    assert len(forks) == 3
    assert all(fact.pop("forked") for fact in forks)
    project.det.home = tmp_path / "home2"
    (project.det.cwd / "startup-hook.sh").write_text("true\n")
    fresh = facts_of(project, tmp_path)
    assert not any(fact.pop("forked") for fact in fresh)
    for fork, new in zip(forks, fresh, strict=True):
        assert fork.keys() == new.keys()
        for name in new:
            assert str(fork[name]).replace(f"{tmp_path}/home/", f"{tmp_path}/home2/") == str(
                new[name]
            ), name
    assert project.outcome().table == table


@pytest.mark.sample
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hook", {"startup-hook.sh": "export A=1\n"}),
        ("shadowed", {"helper.py": "WHOSE = 'theirs'\n"}),
        ("sets its environment", {"other.py": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"}),
    ],
)
def test_runs_with_needs_before_imports_get_new_interpreters(project, tmp_path, name, change):
    for file, text in change.items():
        (project.det.cwd / file).write_text(text)
    if name == "sets its environment":
        model = project.det.cwd / "model_def.py"
        model.write_text("import other\n" + model.read_text())
    if name == "shadowed":
        # A plugin imports a module of the same name.
        (tmp_path / "site" / "helper.py").write_text("WHOSE = 'ours'\n")
        (tmp_path / "site" / "more_hooks.py").write_text("import helper\n")
        (tmp_path / "site" / "fakes-1.0.dist-info" / "entry_points.txt").write_text(
            "[det]\nfakes = det_testing.fake_hooks\nmore = more_hooks\n"
        )
    found = facts_of(project, tmp_path, ONE)
    assert len(found) == 1
    assert not any(fact["forked"] for fact in found)


def test_configured_variables_get_new_interpreters(project, tmp_path):
    text = ONE + "environment: {environment_variables: [MINE=hello]}\n"
    (found,) = facts_of(project, tmp_path, text)
    assert found["environ"]["MINE"] == "hello"
    assert not found["forked"]


def test_crashed_or_leaking_trial_does_not_affect_others(project):
    model = project.det.cwd / "model_def.py"
    model.write_text(
        model.read_text()
        + textwrap.dedent("""
            import subprocess
            from det_core import core

            class Crash(Trial):
                def build_data(self):
                    subprocess.Popen(["sleep", "1000"])
                    if self.run.trial_id == 2:
                        os.abort()
                    return super().build_data()
        """)
    )
    path = project.write(SEARCH)
    path.write_text(path.read_text().replace("model_def:Trial", "model_def:Crash"))
    done = project.det("run", path, "--quiet", env=project.environ(1))
    assert "trial 2: the process was killed by SIGABRT: compiled code gave up" in done.stderr
    states = [str(trial.state) for trial in project.outcome().trials]
    assert states == ["COMPLETED", "ERROR", "COMPLETED"]
    # The fixture fails the test when a sleep is left behind.


def servers(home: Path) -> list[int]:
    """Return the fork servers of a home, which lead their sessions.

    Their workers lead their own.
    """
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"det_node.forkserver" in (entry / "cmdline").read_bytes():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                is_worker = b"forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()
                if (
                    not is_worker
                    and f"DET_HOME={home}".encode() in (entry / "environ").read_bytes()
                ):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def slow(project, running, wait_until):
    """A search that has been started, with a run under way."""
    path = project.write(
        SEARCH.replace("max_length: 4", "max_length: 40") + "min_checkpoint_period: 5\n"
    )
    driver = project.det.start(
        "run", path, "--quiet", "-c", "max_restarts=1", env=project.environ(1, {"PAUSE": "0.02"})
    )

    def saved() -> bool:
        if not running():
            return False
        with Store.reader(project.det.home) as store:
            return bool(store.checkpoints.list(trial_id=1))

    wait_until(saved, "a checkpoint")
    return driver


@pytest.mark.thorough
def test_the_workers_of_a_server_that_is_killed_go_on(project, slow):
    (server,) = servers(project.det.home)
    os.kill(server, signal.SIGKILL)
    assert slow.wait(timeout=60) == 0
    found = project.outcome()
    found.check()
    assert [trial.restarts for trial in found.trials] == [0, 0, 0]
    assert [len(runs) for runs in project.runs().values()] == [1, 1, 1]
    assert [trial.batches for trial in found.trials] == [40, 40, 40]


def test_fork_server_without_a_driver_ends_after_workers_save(project, slow, wait_until):
    (server,) = servers(project.det.home)
    birth = process_identity(server)
    slow.kill()
    slow.wait()
    wait_until(lambda: not is_running(server, birth), "the end of the server", 15)
    assert list((project.det.home / "experiments" / "1" / "spool").glob("*.json"))


def test_second_ctrl_c_ends_a_search_that_still_imports(project, tmp_path, wait_until):
    context = tmp_path / "site"
    (context / "slow_hooks.py").write_text(
        "from det_core import Framework, hookimpl\ndef load():\n    import time\n    open(__file__"
        " + '.loading', 'w')\n    time.sleep(100)\n@hookimpl\ndef det_frameworks(): yield"
        " Framework(name='slow', trial='slow_framework:Trial', load=load)\n"
    )
    points = context / "fakes-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "slow = slow_hooks\n")
    model = project.det.cwd / "model_def.py"
    model.write_text("try: import slow_framework\nexcept ImportError: pass\n" + model.read_text())
    driver = project.det.start("run", project.write(SEARCH), "--quiet", env=project.environ(1))
    wait_until((context / "slow_hooks.py.loading").exists, "the import")
    os.kill(driver.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        driver.wait(timeout=1)
    os.kill(driver.pid, signal.SIGINT)
    assert driver.wait(timeout=10) == 130


MANY = SEARCH.replace("max_trials: 3", "max_trials: 14")
# A run that tells when it and its process began, and lasts; the tenth may look at the fork that
# waits for the next run.
WATCHED = """
    import time

    def stat(pid):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

    FOUND["born"] = int(stat("self")[19]) / os.sysconf("SC_CLK_TCK")
    FOUND["now"] = time.clock_gettime(time.CLOCK_BOOTTIME)
    if os.environ.get("KILLED") and os.environ["DET_TRIAL_ID"] == "10":
        server, waiting = os.getppid(), []
        for turn in range(200):
            children = pathlib.Path(f"/proc/{server}/task/{server}/children").read_text().split()
            waiting = [pid for pid in children if pid != str(os.getpid()) and stat(pid)[0] != "Z"]
            if waiting:
                break
            time.sleep(0.05)
        os.kill({"server": server, "waiting": int(waiting[0])}[os.environ["KILLED"]], 9)
        for turn in range(200):
            FOUND["left"] = [pid for pid in waiting if os.path.exists(f"/proc/{pid}") and stat(pid)[0] != "Z"]
            if not FOUND["left"]:
                break
            time.sleep(0.05)
    with open(os.environ["FACTS"] + "-watched", "a") as file:
        file.write(json.dumps(FOUND) + "\\n")
    time.sleep(0.2)
"""


def watched(project, tmp_path: Path, killed: str = "") -> list[dict]:
    """Run a search of many trials, one after the other; return what each found."""
    model = project.det.cwd / "model_def.py"
    model.write_text(model.read_text() + textwrap.dedent(FACTS) + textwrap.dedent(WATCHED))
    facts_of(project, tmp_path, MANY, env={"KILLED": killed} if killed else {})
    return [json.loads(line) for line in (tmp_path / "facts-watched").read_text().splitlines()]


@pytest.mark.thorough
def test_prepared_fork_equals_the_earlier_ones_after_many_runs(project, tmp_path):
    """After many runs a fork waits for the next run and finds what the others found."""
    found = watched(project, tmp_path)
    assert len(found) == 14
    waited = [late["born"] < early["now"] + 0.1 for early, late in itertools.pairwise(found)]
    assert not any(waited[:7])
    assert any(waited[8:])
    for each in found:
        assert each["forked"]
        for name in each.keys() - {"born", "now", "environ", "random"}:
            assert each[name] == found[0][name], name
    assert len({each["random"] for each in found}) == 14


@pytest.mark.sample
@pytest.mark.parametrize("killed", ["waiting", "server"])
def test_killed_waiting_fork_or_server_affects_no_trial(project, tmp_path, killed):
    """No fork outlives its server."""
    found = watched(project, tmp_path, killed)
    assert [each["left"] for each in found if "left" in each] == [[]]
    outcome = project.outcome()
    assert [(str(trial.state), trial.restarts) for trial in outcome.trials] == [
        ("COMPLETED", 0)
    ] * 14
    assert [len(runs) for runs in project.runs().values()] == [1] * 14


def test_a_single_trial_is_not_forked(project, tmp_path):
    (found,) = facts_of(
        project, tmp_path, "searcher: {name: single, metric: val_loss, max_length: 4}\n"
    )
    assert not found["forked"]


AHEAD = SEARCH.replace("max_trials: 3", "max_trials: 8")
IMPORTED = (
    "import os\nwith open(os.environ['IMPORTED'], 'a') as file:\n   "
    " file.write(f'NAME:{os.getpid()} ')\n"
)
# A run that had to import itself, and is not the first, waits for the server to have done so.
WAITS = """
import os, time
for turn in range(600):
    with open(os.environ["IMPORTED"]) as file:
        pids = [word.split(":")[1] for word in file.read().split() if word.startswith("others_fine:")]
    if str(os.getpid()) not in pids[1:] or len(pids) >= 4 or os.path.exists("startup-hook.sh"):
        break
    time.sleep(0.05)
"""


def imported(project, tmp_path: Path, packages: dict[str, str], more: str = "") -> list[str]:
    """Run a search whose code imports some packages of others.

    Return what was written when they were, in whatever process.
    """
    log = tmp_path / "imported"
    log.unlink(missing_ok=True)
    packages = {"others_fine": "", **packages}
    for name, content in packages.items():
        (tmp_path / "site" / f"{name}.py").write_text(IMPORTED.replace("NAME", name) + content)
    model = project.det.cwd / "model_def.py"
    before = model.read_text()
    model.write_text("".join(f"import {name}\n" for name in packages) + WAITS + more + before)
    project.run(AHEAD, env={"IMPORTED": str(log)})
    model.write_text(before)
    return [word.partition(":")[0] for word in log.read_text().split()]


def test_later_runs_find_what_the_first_run_imported(project, tmp_path):
    slow = "import time\ntime.sleep(0.3)\nimport colorsys\n"
    words = imported(
        project, tmp_path, {"others_slow": slow, "others_more": "import others_slow\n"}
    )
    # By the first, by who tries it, by the server, and by the one that ran meanwhile.
    assert 3 <= words.count("others_slow") <= 4
    assert words.count("others_more") == words.count("others_slow")


LEAVE = {
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,),"
        " daemon=True).start()\n"
    ),
    "a file": "kept = open('/dev/null')\n",
    "a process": "import subprocess\nkept = subprocess.Popen(['sleep', '1000'])\n",
    "a draw": "import random\nrandom.random()\n",
    "a handler": "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n",
    "a path": "import sys\nsys.path.append('/others')\n",
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", LEAVE)
def test_package_with_side_effects_is_imported_by_each_run(project, tmp_path, what):
    packages = {"others_leave": LEAVE[what], "others_need": "import others_leave\n"}
    words = imported(project, tmp_path, packages)
    assert words.count("others_leave") >= 8
    assert words.count("others_need") >= 8
    assert words.count("others_fine") <= 4


def test_run_draws_the_same_numbers_with_and_without_preload(project, tmp_path):
    packages = {
        "others_draw": "import random\nrandom.random()\n",
        "others_need": "import others_draw\n",
    }
    draws = "import random\nwith open(others_fine.os.environ['IMPORTED'], 'a') as file:\n"
    draws += "    file.write(f'{random.random()}: ')\n"
    words = imported(project, tmp_path, packages, draws)
    project.det.home = tmp_path / "home2"
    (project.det.cwd / "startup-hook.sh").write_text("true\n")
    fresh = imported(project, tmp_path, packages, draws)
    assert [word for word in words if word[0] == "0"] == [word for word in fresh if word[0] == "0"]
    assert fresh.count("others_fine") == 8
    assert words.count("others_fine") <= 4
