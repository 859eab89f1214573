"""What each launcher tells its ranks."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from det_core import DetError, DistributedContext, Ranks
from det_core.ranks.launcher import Layout, Place
from det_horovod.launch import Horovod
from det_node.launch.socket import SocketLauncher
from det_node.launch.tensorflow import TensorFlow
from det_node.launch.torch_distributed import Torch

ONE = Layout(
    places=[Place(ranks=Ranks(), host="127.0.0.1", port=2000)], here="127.0.0.1", start_timeout=7
)


def on_hosts(*sizes: int) -> Layout:
    """Return a layout with as many ranks on each of the hosts h0, h1 and so on.

    Their ports begin at 2000.
    """
    total, places = sum(sizes), []
    for cross, size in enumerate(sizes):
        for local in range(size):
            ranks = Ranks(
                rank=len(places),
                size=total,
                local_rank=local,
                local_size=size,
                cross_rank=cross,
                cross_size=len(sizes),
            )
            places.append(Place(ranks=ranks, host=f"h{cross}", port=2000 + local))
    return Layout(places=places, here="127.0.0.1", start_timeout=7)


def of(launcher, layout: Layout) -> Sequence[dict[str, str]]:
    with launcher.meeting(layout) as variables:
        return [dict(each) for each in variables]


def test_torch_gets_what_torchrun_sets():
    last = of(Torch(), on_hosts(2, 2))[3]
    assert (last["MASTER_ADDR"], last["MASTER_PORT"]) == ("h0", "2000")
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    )
    assert [last[name] for name in names] == ["3", "4", "1", "2", "1", "2"]


def test_every_rank_of_torch_comes_to_the_port_of_the_chief():
    layout = on_hosts(2, 2)
    assert {Torch().port(layout, rank) for rank in range(4)} == {2000}


def test_tensorflow_gets_a_cluster_of_workers():
    layout = on_hosts(2, 1)
    found = [json.loads(each["TF_CONFIG"]) for each in of(TensorFlow(), layout)]
    assert {tuple(config["cluster"]["worker"]) for config in found} == {
        ("h0:2000", "h0:2001", "h1:2000")
    }
    assert [config["task"] for config in found] == [
        {"type": "worker", "index": n} for n in range(3)
    ]
    assert [TensorFlow().port(layout, rank) for rank in range(3)] == [2000, 2001, 2000]


def test_addresses_of_ipv6_are_in_brackets_for_tensorflow():
    places = [
        Place(ranks=Ranks(rank=n, size=2, local_rank=n, local_size=2), host="::1", port=n)
        for n in (1, 2)
    ]
    config = json.loads(
        of(TensorFlow(), Layout(places=places, here="::1", start_timeout=1))[0]["TF_CONFIG"]
    )
    assert config["cluster"]["worker"] == ["[::1]:1", "[::1]:2"]


@pytest.mark.parametrize("launcher", [Horovod(), TensorFlow()])
def test_a_single_rank_is_left_alone(launcher):
    assert of(launcher, ONE) == [{}]


def test_a_single_rank_of_torch_is_a_world_of_one():
    [only] = of(Torch(), ONE)
    assert (only["RANK"], only["WORLD_SIZE"]) == ("0", "1")


@pytest.fixture
def horovod():
    pytest.importorskip("horovod")
    return Horovod()


@pytest.mark.process
def test_horovod_cross_rank_counts_hosts_with_that_local_rank(horovod):
    found = of(horovod, on_hosts(2, 1))
    assert [each["HOROVOD_CROSS_SIZE"] for each in found] == ["2", "1", "2"]
    assert [each["HOROVOD_CROSS_RANK"] for each in found] == ["0", "0", "1"]
    assert {each["HOROVOD_GLOO_TIMEOUT_SECONDS"] for each in found} == {"7"}


@pytest.mark.process
def test_horovod_rendezvous_is_open_only_with_its_secret(horovod):
    """It closes when the meeting ends."""
    with horovod.meeting(on_hosts(2)) as variables:
        secret = (
            variables[0]["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
            + ":"
            + variables[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        )
        host, _, port = secret.partition("/")[0].partition(":")
        with urlopen(Request(f"http://{secret}/scope/key", data=b"value", method="PUT"), timeout=5):
            pass
        with urlopen(f"http://{secret}/scope/key", timeout=5) as answer:
            assert answer.read() == b"value"
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"http://{host}:{port}/guess/:0/scope/key", timeout=5)
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=5)


@pytest.mark.process
def test_horovod_rendezvous_of_a_named_host_uses_all_addresses(horovod):
    layout = on_hosts(1, 1)
    with horovod.meeting(Layout(places=layout.places, here="h0", start_timeout=1)) as variables:
        address = variables[1]["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        assert address.startswith("h0:")
        socket.create_connection(
            ("127.0.0.1", int(address.partition(":")[2].partition("/")[0])), timeout=5
        ).close()


def test_an_address_of_ipv6_is_refused_for_horovod(horovod):
    layout = Layout(places=on_hosts(2).places, here="::1", start_timeout=1)
    with (
        pytest.raises(DetError, match="speaks IPv4 only, and the address is ::1"),
        horovod.meeting(layout),
    ):
        pass


def test_a_horovod_that_is_not_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr("det_horovod.launch.find_spec", lambda name: None)
    with (
        pytest.raises(DetError, match="Horovod is not installed; run: det horovod install"),
        Horovod().meeting(on_hosts(2)),
    ):
        pass


def test_socket_ranks_get_a_new_key_for_each_launch():
    first, second = of(SocketLauncher(), on_hosts(2))
    assert first == second
    assert (first["DET_CHIEF_PORT"], first["DET_START_TIMEOUT"]) == ("2000", "7")
    assert len(bytes.fromhex(first["DET_RANKS_KEY"])) == 32
    assert of(SocketLauncher(), on_hosts(2))[0]["DET_RANKS_KEY"] != first["DET_RANKS_KEY"]


def test_from_socket_in_an_unlaunched_process_raises(monkeypatch):
    monkeypatch.delenv("DET_RANKS_KEY", raising=False)
    with pytest.raises(
        DetError, match="this process has no DET_RANKS_KEY; start it with: det launch socket"
    ):
        DistributedContext.from_socket()
