"""Several hosts, which are network namespaces of this machine.

Each has its own address. A bridge of two ends joins them.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from det_core import DetError
from det_core.ranks.network import interface_towards
from det_node.launch._hosts import (
    address_of_this,
    addresses,
    agent_argv,
    is_local_host,
    parse_hosts,
    ranks_on,
)

pytestmark = pytest.mark.process


def test_ranks_fill_hosts_in_order_and_know_their_place(launch, hosts):
    script = """
        import os
        ns = os.stat("/proc/self/ns/net").st_ino
        print(*(os.environ[f"DET_{n}"] for n in ("RANK", "LOCAL_RANK", "CROSS_RANK", "SIZE", "CHIEF_IP")), ns, flush=True)
    """
    said = [
        line.split()[1:]
        for line in sorted(launch(script, *hosts.options(2, 1)).stdout.splitlines())
    ]
    chief = hosts.names[0]
    assert [line[:5] for line in said] == [
        ["0", "0", "0", "3", chief],
        ["1", "1", "0", "3", chief],
        ["2", "0", "1", "3", chief],
    ]
    assert said[0][5] == said[1][5] != said[2][5]


def test_torch_joins_across_hosts_without_interface_settings(launch, hosts):
    pytest.importorskip("torch")
    script = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        value = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(value)
        print("sum", value.item())
        dist.destroy_process_group()
    """
    done = launch(script, *hosts.options(2, 1), "--start-timeout", "90")
    assert [f"[rank={n}] sum 6.0" in done.stdout for n in range(3)] == [True] * 3


def test_horovod_meets_across_hosts_whose_names_lead_to_them(det, hosts):
    """Horovod 0.28.1 takes the interface that it is given for all ranks together.

    For process sets it takes the host's own name.
    """
    pytest.importorskip("horovod.torch")
    hosts.agent += " unshare --uts sh -c 'hostname {host}; exec \"$@\"' agent"
    script = (
        "import horovod.torch as hvd, torch; hvd.init(); print('sum', hvd.allreduce(torch.ones(1),"
        " op=hvd.Sum).item())"
    )
    command = det.argv(
        ["launch", "horovod", *hosts.options(2, 1), "--", sys.executable, "-c", script]
    )
    first = [word.replace("{host}", hosts.names[0]) for word in shlex.split(hosts.agent)]
    process = subprocess.Popen(
        [*first, *command],
        cwd=det.cwd,
        env=det.env(None),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    det.started.append(process)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert [f"[rank={n}] sum 3.0" in output for n in range(3)] == [True] * 3


def test_cores_own_context_meets_across_hosts(launch, hosts):
    script = """
        from det_core import DistributedContext
        with DistributedContext.from_socket() as context:
            everybody = context.allgather((context.rank, context.cross_rank))
            print(everybody, context.allgather_local(context.rank), flush=True)
    """
    done = launch(script, *hosts.options(2, 1), name="socket")
    everybody = [(0, 0), (1, 0), (2, 1)]
    assert sorted(done.stdout.splitlines()) == [
        f"[rank=0] {everybody} [0, 1]",
        f"[rank=1] {everybody} [0, 1]",
        f"[rank=2] {everybody} [2]",
    ]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_on_one_host_ends_those_of_the_other(
    launch, hosts, note, ranks, all_gone, victim
):
    process = launch.start(note + "time.sleep(100)", *hosts.options(2, 1))
    pids = ranks(3)
    began = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL
    assert f"rank {victim} was ended by SIGKILL first" in output
    all_gone(pids)
    assert time.monotonic() - began < 10


def test_ranks_of_every_host_end_with_the_launcher(launch, hosts, note, ranks, all_gone):
    process = launch.start(note + "time.sleep(100)", *hosts.options(1, 1))
    pids = ranks(2)
    process.kill()
    process.wait()
    assert all_gone(pids) < 5


def test_a_link_that_breaks_ends_all(launch, hosts, note, ranks, all_gone, wait_until):
    """An agent such as ssh is killed.

    Its host's process sees its input end, the launcher its output.
    """
    hosts.agent = "sh -c 'ip netns exec {host} \"$@\"; exit 3' agent"
    process = launch.start(note + "time.sleep(100)", *hosts.options(1, 1))
    pids = ranks(2)
    starter = int(Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(starter, signal.SIGKILL)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert (
        f"det: the process on the host {hosts.names[1]!r} ended with status 3, and its ranks"
        " with it" in output
    )
    all_gone(pids)


def test_variables_arrive_on_other_hosts_and_on_no_command_line(launch, hosts, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "hunter-two")
    monkeypatch.setenv("HOME", "/home/of/the/launcher")
    monkeypatch.setenv("DET_ADDRESS", "192.0.2.6")
    hosts.agent += " env -u DET_ADDRESS"  # as ssh, which hands on nothing
    script = """
        import os, pathlib
        lines = b"".join(p.read_bytes() for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if int(p.parent.name) != os.getpid())
        secret = os.environ["MY_SECRET"]
        print(secret, secret.encode() in lines, os.environ.get("DET_ADDRESS"), flush=True)
    """
    assert launch(script, *hosts.options(1, 1)).stdout.count("hunter-two False None") == 2


def test_code_that_is_not_on_a_host_is_a_sentence(launch, hosts):
    """The agent here changes the root of what it runs to a place without the code."""
    hosts.agent = (
        f"ip netns exec {{host}} unshare --mount sh -c 'umount -l {launch.det.cwd} 2>/dev/null;"
        ' exec "$@"\' agent'
    )
    hidden = launch.det.cwd
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(hidden)], check=True, timeout=20)
    try:
        (hidden / "sub").mkdir()
        launch.det.cwd = hidden / "sub"
        done = launch("pass", *hosts.options(1, 1), status=2)
    finally:
        launch.det.cwd = hidden
        subprocess.run(["umount", "-l", str(hidden)], check=True, timeout=20)
    assert (
        done.stderr
        == f"det: there is no directory {hidden / 'sub'} on {os.uname().nodename}; the code must be"
        " there on every host\n"
    )


def test_ports_are_those_that_were_asked_for(launch, hosts):
    done = launch(
        "import os; print(os.environ['TF_CONFIG'])",
        *hosts.options(1, 2),
        "--port",
        "29400",
        name="tensorflow",
    )
    a, b = hosts.names
    assert f'"worker": ["{a}:29400", "{b}:29400", "{b}:29401"]' in done.stdout


SCRIPT = """
import os
from det_core import DistributedContext, core

with DistributedContext.from_socket() as ranks, core.init(distributed=ranks) as context:
    print("rank", ranks.rank, "on", ranks.cross_rank, "in", os.stat("/proc/self/ns/net").st_ino, flush=True)
    if ranks.rank == 0:
        context.train.report_validation_metrics(1, {"error": 0.5})
    ranks.barrier()
"""


def test_script_under_det_run_starts_ranks_on_configured_hosts(det, hosts):
    one, two = hosts.names
    det.cwd.joinpath("train.py").write_text(SCRIPT)
    det.cwd.joinpath("const.yaml").write_text(
        "entrypoint: python3 -m det_node.launch.socket python3 train.py\n"
        "resources: {slots_per_trial: 3}\n"
        f"distributed: {{hosts: ['{one}:2', '{two}']}}\n"
        "max_restarts: 0\n"
        "searcher: {name: single, metric: error}\n"
    )
    process = subprocess.Popen(
        ["ip", "netns", "exec", one, *det.argv(["run", "const.yaml"])],
        cwd=det.cwd,
        env=det.env({"DET_AGENT": hosts.agent}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    det.started.append(process)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    lines = [
        line.partition("] rank ")[2].split()
        for line in det("logs", "1").stdout.splitlines()
        if "] rank " in line
    ]
    assert sorted(words[:3] for words in lines) == [
        ["0", "on", "0"],
        ["1", "on", "0"],
        ["2", "on", "1"],
    ]
    assert len({words[-1] for words in lines}) == 2


def test_own_host_name_that_is_loopback_is_not_given_to_others(hosts, tmp_path):
    """Debian and Ubuntu let a machine's own name lead to 127.0.1.1."""
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 our-own-name\n")
    script = "hostname our-own-name; mount --bind $1 /etc/hosts; exec $2 -c $3"
    code = (
        "from det_node.launch._hosts import addresses, parse_hosts; "
        f"print(*addresses(parse_hosts('our-own-name:1,{hosts.names[1]}:1'), None))"
    )
    inside = ["ip", "netns", "exec", hosts.names[0], "unshare", "--uts", "--mount"]
    quoted = script.replace("$3", '"$3"')
    done = subprocess.run(
        [*inside, "sh", "-c", quoted, "sh", str(tmp_path / "hosts"), sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == hosts.names, done.stderr


def test_chief_listens_on_the_address_it_is_given(launch, hosts, tmp_path, monkeypatch):
    """As behind a translated address: here a name, which on its own machine is loopback."""
    one, two = hosts.names
    for name, address in ((one, "127.0.1.1"), (two, one)):
        (tmp_path / name).write_text(f"127.0.0.1 localhost\n{address} the-chief\n")
    mount = f"mount --bind {tmp_path}/{{host}} /etc/hosts"
    hosts.agent = f"ip netns exec {{host}} unshare --mount sh -c '{mount}; exec \"$@\"' agent"
    monkeypatch.setenv("DET_BIND_ADDRESS", "0.0.0.0")
    script = """
        from det_core import DistributedContext
        with DistributedContext.from_socket() as context:
            print(context.chief_ip, context.allgather(context.rank), flush=True)
    """
    done = launch(script, *hosts.options(1, 1), "--chief-ip", "the-chief", name="socket")
    assert sorted(done.stdout.splitlines()) == [f"[rank={n}] the-chief [0, 1]" for n in (0, 1)]


# Without namespaces


def test_the_hosts_of_a_command_line():
    hosts = parse_hosts("localhost:2, node-7.example.invalid:3,[fe80::1]:1")
    assert [(host.name, host.slots, host.here) for host in hosts] == [
        ("localhost", 2, True),
        ("node-7.example.invalid", 3, False),
        ("fe80::1", 1, False),
    ]
    assert [(r.rank, r.local_rank, r.local_size, r.cross_rank) for r in ranks_on(hosts)][1:4] == [
        (1, 1, 2, 0),
        (2, 0, 3, 1),
        (3, 1, 3, 1),
    ]


def test_this_machine_is_known_by_its_names_and_addresses():
    assert is_local_host("127.0.0.1")
    assert is_local_host(os.uname().nodename)
    assert not is_local_host("192.0.2.1")


def test_the_chief_can_be_given_an_address_that_the_others_reach():
    hosts = parse_hosts("localhost:1,192.0.2.7:1")
    with pytest.raises(DetError, match="give --chief-ip"):
        addresses(hosts, None)
    named = addresses(hosts, "192.0.2.6")
    assert named == ["192.0.2.6", "192.0.2.7"]
    assert address_of_this(hosts, named) == "192.0.2.6"
    with pytest.raises(DetError, match="give its name or address in --hosts"):
        addresses(parse_hosts("192.0.2.7:1,localhost:1"), None)


def test_the_address_of_this_machine_can_be_set_for_the_others(monkeypatch):
    monkeypatch.setenv("DET_ADDRESS", "192.0.2.6")
    hosts = parse_hosts("localhost:1,192.0.2.7:1")
    assert addresses(hosts, None) == ["192.0.2.6", "192.0.2.7"]
    assert address_of_this(parse_hosts("192.0.2.7:1"), ["192.0.2.7"]) == "192.0.2.6"
    assert addresses(parse_hosts("localhost:2"), None) == ["localhost"]


def test_words_for_ssh_are_quoted_as_it_hands_them_to_a_shell(monkeypatch):
    [host] = parse_hosts("node:1")
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")
    assert agent_argv(host, "ssh -o BatchMode=yes {host}")[:5] == [
        "ssh",
        "-o",
        "BatchMode=yes",
        "node",
        "'/my env/bin/python'",
    ]
    assert agent_argv(host, "srun -w {host}")[:4] == ["srun", "-w", "node", "/my env/bin/python"]


def test_the_interface_towards_an_address_is_found():
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no.such.host.invalid") is None
