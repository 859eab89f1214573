"""`det launch`: ranks start, are heard, and end together."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from random import Random

import pytest

from det_node.launch._hosts import this_host
from det_node.launch._launch import Launch
from det_node.launch._plan import Plan
from det_node.launch.torch_distributed import Torch


def test_every_rank_runs_the_command_and_lines_name_the_rank(launch):
    done = launch("import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    assert sorted(done.stdout.splitlines()) == ["[rank=0] 0 of 2", "[rank=1] 1 of 2"]
    assert done.stderr == ""


def test_without_prefix_the_lines_are_as_they_were_written(launch, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # each line then comes in two pieces
    assert launch("print('hello')", "--no-prefix").stdout == "hello\nhello\n"


def test_log_dir_has_one_file_per_rank_and_nothing_is_printed(launch, det):
    done = launch("import os; print(os.environ['RANK'])", "--log-dir", "logs")
    assert done.stdout == ""
    assert {path.name: path.read_text() for path in (det.cwd / "logs").iterdir()} == {
        "rank-0.log": "0\n",
        "rank-1.log": "1\n",
    }


def test_each_rank_knows_where_it_stands_and_shares_the_cores(launch):
    script = (
        "import os; print(*(os.environ[n] for n in ('DET_RANK', 'DET_SIZE', 'DET_LOCAL_RANK',"
        " 'OMP_NUM_THREADS')))"
    )
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(launch(script).stdout.splitlines()) == [
        f"[rank=0] 0 2 0 {cores}",
        f"[rank=1] 1 2 1 {cores}",
    ]


def test_threads_that_somebody_chose_stay(launch, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "[rank=1] 7" in launch("import os; print(os.environ['OMP_NUM_THREADS'])").stdout


GPUS = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.mark.parametrize(
    ("visible", "options", "expected"),
    [
        ("4,6", (), ["4", "6"]),
        ("4,6,7", (), ["4", "6"]),
        ("4", (), ["4", "4"]),
        ("GPU-a,GPU-b", (), ["GPU-a", "GPU-b"]),
        ("4,6", ("--all-gpus",), ["4,6", "4,6"]),
        ("", (), ["", ""]),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(launch, monkeypatch, visible, options, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sorted(launch(GPUS, *options).stdout.splitlines()) == [
        f"[rank={n}] {gpu}" for n, gpu in enumerate(expected)
    ]


def test_number_of_ranks_defaults_to_the_number_of_gpus(det, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert len(det("launch", "torch", "sh", "-c", "echo $RANK").stdout.splitlines()) == 3


def test_a_single_rank_is_the_command_itself(det):
    process = det.start("launch", "torch", "-np", "1", "sh", "-c", "echo $$ $RANK $WORLD_SIZE")
    output, _ = process.communicate(timeout=30)
    assert output == f"{process.pid} 0 1\n"


def test_a_single_rank_with_a_log_dir_has_its_file(launch, det):
    launch("print('alone')", "--log-dir", "logs", ranks=1)
    assert (det.cwd / "logs" / "rank-0.log").read_text() == "alone\n"


def test_what_comes_after_the_command_is_the_commands(det):
    done = det("launch", "torch", "-np", "1", "echo", "-np", "3", "--hosts", "x", "--help")
    assert done.stdout == "-np 3 --hosts x --help\n"


def test_much_output_arrives_whole(launch):
    done = launch("import os, sys\nfor n in range(20000): print(n, 'x' * 80)")
    for rank in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[rank={rank}] ")]
        assert [int(line.split()[1]) for line in lines] == list(range(20000))


@pytest.mark.parametrize("closed", [False, True], ids=["full", "closed"])
def test_output_that_cannot_be_written_ends_no_rank(launch, det, closed):
    script = """
        import os
        for number in range(100):
            print(number, flush=True)
        open("done-" + os.environ["RANK"], "w")
    """
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe, open("/dev/full", "wb") as full:
        done = subprocess.run(
            det.argv(launch.argv(script)),
            cwd=det.cwd,
            env=det.env(None),
            stdout=pipe if closed else full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert sorted(path.name for path in det.cwd.iterdir()) == ["done-0", "done-1"]
    lost = "" if closed else "det: what the ranks printed is lost (No space left on device)\n"
    assert (done.returncode, done.stderr) == (0, lost)


def test_what_is_no_text_passes(launch):
    done = launch("import sys; sys.stdout.buffer.write(b'\\x00\\x07junk\\n')", "--no-prefix")
    assert done.stdout == "\x00\x07junk\n" * 2


# Failures


def test_first_failure_ends_the_others_and_is_shown_last(launch, note):
    began = time.monotonic()
    done = launch(
        note + "if rank: time.sleep(60)\ntime.sleep(0.2)\nraise ValueError('the first')", status=1
    )
    assert time.monotonic() - began < 10
    assert "[rank=0] ValueError: the first" in done.stdout
    lines = done.stderr.splitlines()
    assert (
        lines[0] == "det: rank 0 failed with status 1 first; the others were ended. Its last words:"
    )
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: the first"


def test_the_status_is_that_of_the_rank_that_failed_first(launch, note):
    done = launch(note + "time.sleep(60) if rank == 0 else sys.exit(7)", status=7)
    assert done.stderr == "det: rank 1 failed with status 7 first; the others were ended.\n"


def test_a_rank_that_fails_because_of_another_is_not_blamed(launch, note):
    """It ends before the one that it fails of, whose end takes time.

    But that one has said what went wrong before.
    """
    script = (
        note
        + """
import atexit, subprocess
if rank == 1:
    atexit.register(time.sleep, 1)
    raise ValueError("the cause")
time.sleep(0.7)
raise RuntimeError("connection reset by peer")
"""
    )
    done = launch(script, status=1)
    assert "det: rank 1 failed with status 1 first" in done.stderr
    assert done.stderr.endswith("ValueError: the cause\n")


def test_an_old_traceback_that_a_rank_survived_is_not_blamed(launch, note, monkeypatch):
    monkeypatch.setattr("det_node.launch._output._RECENT_SECONDS", 0.3)
    script = (
        note
        + """
import traceback
if rank == 0:
    try:
        1 / 0
    except ZeroDivisionError:
        traceback.print_exc()
    time.sleep(60)
time.sleep(1)
sys.exit(5)
"""
    )
    plan = Plan(
        argv=[sys.executable, "-c", script],
        hosts=this_host(2),
        environ=dict(os.environ),
        cwd=launch.det.cwd,
    )
    assert Launch(Torch(), plan, io.BytesIO()).run() == 5


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_all(launch, note, ranks, all_gone, victim):
    process = launch.start(note + "time.sleep(100)")
    pids = ranks()
    os.kill(pids[victim], signal.SIGKILL)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL
    assert f"det: rank {victim} was ended by SIGKILL first; the others were ended." in output
    assert all_gone(pids) < 1


STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
"""


def test_ranks_that_ignore_being_told_are_killed(launch, note, ranks, all_gone):
    process = launch.start(STUBBORN.join(("import signal", note)) + "time.sleep(100)")
    pids = ranks()
    began = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    assert process.wait(20) == 128 + signal.SIGKILL
    assert time.monotonic() - began < 10
    all_gone(pids)


@pytest.mark.parametrize(
    "command", ["time.sleep(100)", "import subprocess; subprocess.run(['sleep', '100'])"]
)
def test_the_ranks_end_with_a_launcher_that_is_killed(launch, note, ranks, all_gone, command):
    process = launch.start(STUBBORN.join(("import signal", note)) + command)
    pids = ranks()
    process.kill()
    process.wait()
    assert all_gone(pids) < 5


def test_the_ranks_end_with_the_process_that_started_them(launch, note, ranks, all_gone):
    script = note + "import subprocess; subprocess.run(['sleep', '100'])"
    process = launch.start(script)
    pids = ranks()
    starter = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(starter, signal.SIGKILL)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert (
        "det: the process on the host '127.0.0.1' ended with signal 9, and its ranks with it"
        in output
    )
    all_gone(pids)


def test_what_a_rank_left_in_another_session_is_ended(launch, det, wait_until, all_gone):
    daemon = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '100'],"
        " start_new_session=True).pid)"
    )
    done = launch(daemon, "--no-prefix")
    all_gone([int(pid) for pid in done.stdout.split()])


def test_stray_processes_end_although_the_starter_is_killed(launch, note, ranks, det, all_gone):
    """A rank left the stray process in another session."""
    stray = (
        "import subprocess; stray = subprocess.Popen(['sleep', '100'],"
        " start_new_session=True).pid; "
    )
    process = launch.start(stray + f"open('stray', 'w').write(str(stray))\n{note}time.sleep(100)")
    pids = ranks()
    starter = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(starter, signal.SIGKILL)
    assert process.wait(20) == 2
    all_gone([*pids, int(det.cwd.joinpath("stray").read_text())])


def test_whoever_is_killed_whenever_nothing_is_left(launch, note, ranks, all_gone, request):
    """A campaign: the launcher, the process that starts the ranks, or a rank, at a random time."""
    random = Random(17)
    script = note + "import subprocess; subprocess.Popen(['sleep', '100']); time.sleep(100)"
    for _ in range(request.config.getoption("--kills")):
        for file in launch.det.cwd.glob("pid-*"):
            file.unlink()
        process = launch.start(script)
        victim = random.choice(["launcher", "starter", 0, 1, "early"])
        if victim == "early":
            time.sleep(random.uniform(0, 0.6))
            process.kill()
            process.wait()
            continue  # the fixture looks for what is left
        pids = ranks()
        time.sleep(random.uniform(0, 0.2))
        starter = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(
            {"launcher": process.pid, "starter": starter}.get(victim) or pids[victim],
            signal.SIGKILL,
        )
        process.wait(20)
        all_gone(pids)


def test_launch_interrupted_before_the_hosts_answer_ends(launch):
    process = launch.start("pass", "--hosts", "b:1", "--agent", "sh -c 'exec sleep 100'")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_ranks_may_end_well_after_it(launch, note, ranks, number):
    script = note.replace("rank =", f"signal.signal({int(number)}, lambda *_: sys.exit(0))\nrank =")
    process = launch.start(script + "time.sleep(100)")
    ranks()
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert output == f"det: {number.name} is passed on to the ranks; a second one kills them\n"


def test_ranks_save_where_every_process_of_a_job_is_asked_to_end(
    launch, note, ranks, wait_until, det
):
    """As `scancel`, `systemctl stop` and the end of a container do."""
    script = """
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
        open(f"ready-{rank}", "w").close()
        while not asked:
            time.sleep(0.05)
        time.sleep(1)
        open(f"saved-{rank}", "w").close()
    """
    process = launch.start(note + textwrap.dedent(script))
    pids = ranks()
    starter = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    wait_until(lambda: len([*det.cwd.glob("ready-*")]) == 2, "ranks that hear signals")
    for pid in (starter, *pids, process.pid):
        os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert {path.name for path in det.cwd.glob("saved-*")} == {"saved-0", "saved-1"}


def test_ranks_ended_by_a_forwarded_signal_are_no_failure(launch, note, ranks):
    process = launch.start(note + "time.sleep(100)")
    ranks()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert "failed" not in output


def test_a_second_signal_kills(launch, note, ranks, wait_until, all_gone):
    process = launch.start(STUBBORN.join(("import signal", note)) + "time.sleep(100)")
    pids = ranks()
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 128 + signal.SIGINT
    all_gone(pids)


# Meeting

COME = """
import socket
port = int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    meeting = server.accept()
"""


def test_a_rank_that_does_not_come_in_time_ends_all_and_is_named(launch, note):
    began = time.monotonic()
    done = launch(note + COME + "time.sleep(100)", "--start-timeout", "2", status=1)
    assert 2 < time.monotonic() - began < 12
    assert done.stderr == "det: rank 1 did not come to meet the others within 2 s; all are ended\n"


def test_ranks_that_have_met_have_all_the_time_they_need(launch, note):
    script = (
        note + COME + "meeting = socket.create_connection(('127.0.0.1', port)) if rank else"
        " meeting\ntime.sleep(2.5)"
    )
    launch(
        script.replace("if rank == 0:", "time.sleep(0.5 * rank)\nif rank == 0:"),
        "--start-timeout",
        "2",
    )


def test_ranks_that_never_join_are_left_alone_without_a_timeout(launch):
    launch("import time; time.sleep(1)")


def test_chief_port_is_free_for_the_chief_and_reserved(launch):
    script = """
        import os, socket
        port = int(os.environ["MASTER_PORT"])
        if os.environ["RANK"] == "0":
            try:
                socket.create_server(("", port), reuse_port=False).close()
                print("free for who asks for it")
                sock = socket.socket()
                sock.bind(("", port))
            except OSError as error:
                print("kept:", error.strerror)
    """
    assert (
        launch(script).stdout
        == "[rank=0] free for who asks for it\n[rank=0] kept: Address already in use\n"
    )


def test_a_port_can_be_chosen(launch):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    assert (
        f"[rank=1] {port}\n"
        in launch("import os; print(os.environ['MASTER_PORT'])", "--port", str(port)).stdout
    )


# Mistakes


def test_a_port_that_is_taken_is_a_sentence(launch):
    with socket.create_server(("", 0)) as sock:
        port = sock.getsockname()[1]
        done = launch("pass", "--port", str(port), status=2)
    assert (
        done.stderr
        == f"det: port {port} cannot be used (Address already in use); give another --port\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            (
                "no launcher is named; write one before the options: horovod, socket, tensorflow,"
                " torch"
            ),
        ),
        (
            ["nccl", "ls"],
            (
                "no plugin registers the launcher 'nccl'; installed: horovod, socket, tensorflow,"
                " torch"
            ),
        ),
        (
            ["torch"],
            "there is no command to launch; write it at the end, such as: python3 train.py",
        ),
        (
            ["torch", "-np", "2", "train.py"],
            "cannot run 'train.py' on {host}: No such file or directory; write: python3 train.py",
        ),
        (
            ["torch", "-np", "1", "trane"],
            "cannot run 'trane' on {host}: No such file or directory; see PATH",
        ),
        (
            ["torch", "--hosts", "a", "ls"],
            "--hosts has 'a'; write name:slots, such as h1:2,h2:2, with 1 slot or more each",
        ),
        (
            ["torch", "--hosts", "a:0", "ls"],
            "--hosts has 'a:0'; write name:slots, such as h1:2,h2:2, with 1 slot or more each",
        ),
        (
            ["torch", "--hosts", "a:1,a:1", "ls"],
            "--hosts names 'a' twice; give each host once, with all of its slots",
        ),
        (
            ["torch", "-np", "3", "--hosts", "a:1", "ls"],
            "-np is 3, but --hosts has 1 slots; leave -np out, or let them agree",
        ),
        (
            ["torch", "--hosts", "localhost:1,b:1", "--agent", "env -u {host}", "ls"],
            (
                "the host 'localhost' is localhost to the others, which is each one's own; give"
                " --chief-ip, or set DET_ADDRESS"
            ),
        ),
        (
            ["torch", "--hosts", "b:1", "--agent", "no-such-agent {host}", "ls"],
            "cannot run 'no-such-agent' for the host 'b': No such file or directory; see --agent",
        ),
        (
            ["torch", "--hosts", "b:1", "--agent", " ", "ls"],
            "--agent is ' '; give a command that runs what follows it on {{host}}",
        ),
        (
            [
                "torch",
                "--hosts",
                "b:1",
                "--agent",
                "sh -c 'echo Permission denied; exit 255' {host}",
                "ls",
            ],
            (
                "the process on the host 'b' ended with status 255, and its ranks with it; it said:"
                " Permission denied"
            ),
        ),
        (
            [
                "torch",
                "--hosts",
                "b:1",
                "--agent",
                "sh -c 'exec sleep 9'",
                "--start-timeout",
                "0.5",
                "ls",
            ],
            "the host 'b' did not answer in time; see --agent, --hosts and --start-timeout",
        ),
        (
            ["torch", "--trial", "a:B"],
            (
                "--trial is for the entrypoint of a configuration; run the configuration with: det"
                " run CONFIG"
            ),
        ),
        (
            ["torch", "--trial", "a:B", "ls"],
            "--trial is a:B, and there is a command, too: ls; give one of them",
        ),
    ],
)
def test_mistakes_are_sentences(det, arguments, message):
    done = det("launch", *arguments, status=2)
    assert done.stderr.splitlines()[-1] == "det: " + message.format(host=os.uname().nodename)
    assert len(done.stderr.splitlines()) == 1


def test_a_rank_launches_nothing(det):
    done = det("launch", "torch", "ls", status=2, env={"DET_RANK": "1", "DET_SIZE": "2"})
    assert (
        done.stderr
        == "det: this process is rank 1 of 2 already; launch once, around the whole command\n"
    )
