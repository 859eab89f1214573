"""Two processes that met over det's own connections meet over Horovod's Gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_core import DetError, DistributedContext, Ranks
from det_core.config import Optimizations
from det_horovod import available, horovod_slots, meet, settings
from det_node.backends import Socket

LIMIT_SECONDS = 120
PREAMBLE = """
    import json, os, socket, sys, threading
    from det_core import DistributedContext
    from det_horovod import meet
    def url(variables):
        address, _, rest = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
        return address, rest
    rank = int(sys.argv[1])
    control = DistributedContext(rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1,
                                 pub_port=int(sys.argv[2]), key=bytes(range(32)))
    before = dict(os.environ)
    """


def on_hosts(*sizes: int) -> list[Ranks]:
    """Return the ranks of a run with as many on each host."""
    local = [(host, n, size) for host, size in enumerate(sizes) for n in range(size)]
    return [
        Ranks(
            rank=rank,
            size=sum(sizes),
            local_rank=n,
            local_size=size,
            cross_rank=host,
            cross_size=len(sizes),
        )
        for rank, (host, n, size) in enumerate(local)
    ]


@pytest.fixture
def two_ranks(tmp_path: Path) -> Callable[[str], list[Any]]:
    """Run a script in two processes; return what each printed as JSON, None for nothing."""

    def run(script: str) -> list[Any]:
        path = tmp_path / "rank.py"
        path.write_text(textwrap.dedent(PREAMBLE) + textwrap.dedent(script))
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        ranks = [
            subprocess.Popen(
                [sys.executable, str(path), str(rank), str(port)], stdout=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        try:
            outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
        finally:
            for each in ranks:
                each.kill()
                each.wait()
        return [json.loads(output or "null") for output in outputs]

    return run


@pytest.mark.process
def test_every_rank_gets_its_place_and_the_chiefs_rendezvous(two_ranks):
    chief, other = two_ranks("""
        with meet(control, {"HOROVOD_CYCLE_TIME": "2"}):
            print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}))
            control.barrier()
        control.close()
        """)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    assert [chief[f"HOROVOD_{name}"] for name in names] == ["0", "2", "0", "2", "0", "1", "host0"]
    assert [other[f"HOROVOD_{name}"] for name in names] == ["1", "2", "1", "2", "0", "1", "host0"]
    shared = (
        "GLOO_RENDEZVOUS_ADDR",
        "GLOO_RENDEZVOUS_PORT",
        "GLOO_IFACE",
        "GLOO_TIMEOUT_SECONDS",
        "CYCLE_TIME",
    )
    assert [chief[f"HOROVOD_{name}"] for name in shared] == [
        other[f"HOROVOD_{name}"] for name in shared
    ]
    assert (chief["HOROVOD_GLOO_IFACE"], chief["HOROVOD_GLOO_TIMEOUT_SECONDS"]) == ("lo", "600")
    assert chief["HOROVOD_CYCLE_TIME"] == "2"


@pytest.mark.process
def test_closing_leaves_no_thread_or_port_and_restores_variables(two_ranks):
    said = two_ranks("""
        os.environ["HOROVOD_RANK"] = before["HOROVOD_RANK"] = "7"
        threads = threading.active_count()
        for _ in range(2):  # closing twice is safe
            meeting = meet(control)
            host, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].split("/")[0].split(":")
            socket.create_connection((host, int(port)), timeout=5).close()
            control.barrier()
            meeting.close()
            meeting.close()
            control.barrier()
        try:
            socket.create_connection((host, int(port)), timeout=5)
            refused = False
        except ConnectionRefusedError:
            refused = True
        control.barrier()
        print(json.dumps([refused, threading.active_count() - threads, dict(os.environ) == before]))
        control.close()
        """)
    assert said == [[True, 0, True], [True, 0, True]]


@pytest.mark.process
def test_what_the_user_has_set_stays(two_ranks, monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "9")
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth7")
    said = two_ranks("""
        with meet(control, {"HOROVOD_CYCLE_TIME": "2", "HOROVOD_FUSION_THRESHOLD": "0"}):
            print(json.dumps([os.environ[f"HOROVOD_{n}"] for n in ("CYCLE_TIME", "GLOO_IFACE", "FUSION_THRESHOLD")]))
            control.barrier()
        control.close()
        """)
    assert said == [["9", "eth7", "0"]] * 2


@pytest.mark.process
@pytest.mark.skipif(
    not available("torch"), reason="Horovod is not built for torch here; run: det horovod install"
)
def test_two_ranks_of_torch_reduce_twice_over(two_ranks):
    said = two_ranks("""
        import torch
        import horovod.torch as hvd
        sums = []
        for round in range(2):  # they can meet again, within one meeting and in another
            with meet(control):
                for _ in range(2):
                    hvd.init()
                    sums.append(hvd.allreduce(torch.full((3,), float(rank + round)), op=hvd.Sum).tolist())
                    everyone = hvd.ProcessSet([0, 1])
                    control.barrier()
                    hvd.shutdown()
                    control.barrier()
        print(json.dumps(sums))
        control.close()
        """)
    assert said == [[[1.0] * 3, [1.0] * 3, [3.0] * 3, [3.0] * 3]] * 2


@pytest.mark.process
@pytest.mark.skipif(
    not available("tensorflow"),
    reason="Horovod is not built for TensorFlow here; run: det horovod install",
)
def test_two_ranks_of_tensorflow_reduce(two_ranks):
    said = two_ranks("""
        import tensorflow as tf
        import horovod.tensorflow as hvd
        with meet(control):
            hvd.init()
            sums = hvd.allreduce(tf.fill((3,), float(rank)), op=hvd.Sum).numpy().tolist()
            control.barrier()
            hvd.shutdown()
        print(json.dumps(sums))
        control.close()
        """)
    assert said == [[1.0] * 3] * 2


@pytest.mark.process
@pytest.mark.skipif(
    not available("torch"), reason="Horovod is not built for torch here; run: det horovod install"
)
def test_horovod_ends_a_process_whose_peer_does_not_come_in_time(two_ranks):
    chief, other = two_ranks("""
        import horovod.torch as hvd
        with meet(control, timeout=2):
            if rank == 0:
                hvd.init()
            try:
                control.barrier()
            except ConnectionError as error:
                print(json.dumps(type(error).__name__))
        """)
    assert (chief, other) == (None, "RankLost")


def test_one_process_needs_no_rendezvous(monkeypatch):
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    with DistributedContext() as control, meet(control):
        assert "HOROVOD_RANK" not in __import__("os").environ


def test_horovod_numbers_the_hosts_anew_for_each_local_rank():
    slots = horovod_slots(on_hosts(1, 2, 2))
    assert [(s.cross_rank, s.cross_size) for s in slots] == [(0, 3), (1, 3), (0, 2), (2, 3), (1, 2)]
    assert [s.hostname for s in slots] == ["host0", "host1", "host1", "host2", "host2"]


def test_an_address_that_horovod_cannot_speak_to_is_refused():
    class Control(DistributedContext):
        def __init__(self) -> None:
            self.size, self.rank, self.chief_ip = 2, 0, "fe80::1"

    message = (
        r"Horovod's rendezvous speaks IPv4 only, and the chief's address is fe80::1; give its IPv4"
        r" address, or"
    )
    with pytest.raises(DetError, match=message):
        meet(Control())


def test_the_chiefs_address_is_the_one_that_a_context_was_given():
    assert DistributedContext().chief_ip == "127.0.0.1"
    assert Socket(on_hosts(1, 1)[0], chief=("10.1.2.3", 1), key=bytes(32)).chief_ip == "10.1.2.3"


def test_tensor_fusion_is_set_in_the_units_of_horovod():
    assert settings(Optimizations()) == {
        "HOROVOD_FUSION_THRESHOLD": "67108864",
        "HOROVOD_CYCLE_TIME": "1",
    }
    tuned = settings(
        Optimizations(
            tensor_fusion_threshold=0, tensor_fusion_cycle_time=2.5, auto_tune_tensor_fusion=True
        )
    )
    assert tuned == {
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_AUTOTUNE": "1",
    }
