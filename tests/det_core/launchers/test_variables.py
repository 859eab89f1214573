"""What each launcher tells its ranks."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from urllib.request import Request, urlopen

import pytest

from det_core import DetError, Ranks
from det_core.launchers import Layout, Place
from det_core.launchers.horovod import Horovod
from det_core.launchers.tensorflow import TensorFlow
from det_core.launchers.torch import Torch

ONE = Layout(places=[Place(ranks=Ranks(), host="127.0.0.1", port=2000)], here="127.0.0.1", start_timeout=7)


def on_hosts(*sizes: int) -> Layout:
    """Return a layout with as many ranks on each of the hosts h0, h1 ..., whose ports begin at 2000."""
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
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [last[name] for name in names] == ["3", "4", "1", "2", "1", "2"]


def test_every_rank_of_torch_comes_to_the_port_of_the_chief():
    layout = on_hosts(2, 2)
    assert {Torch().port(layout, rank) for rank in range(4)} == {2000}


def test_tensorflow_gets_a_cluster_of_workers():
    layout = on_hosts(2, 1)
    found = [json.loads(each["TF_CONFIG"]) for each in of(TensorFlow(), layout)]
    assert {tuple(config["cluster"]["worker"]) for config in found} == {("h0:2000", "h0:2001", "h1:2000")}
    assert [config["task"] for config in found] == [{"type": "worker", "index": n} for n in range(3)]
    assert [TensorFlow().port(layout, rank) for rank in range(3)] == [2000, 2001, 2000]


def test_addresses_of_ipv6_are_in_brackets_for_tensorflow():
    places = [Place(ranks=Ranks(rank=n, size=2, local_rank=n, local_size=2), host="::1", port=n) for n in (1, 2)]
    config = json.loads(of(TensorFlow(), Layout(places=places, here="::1", start_timeout=1))[0]["TF_CONFIG"])
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


def test_horovod_numbers_the_hosts_that_have_a_rank_of_the_same_local_number(horovod):
    found = of(horovod, on_hosts(2, 1))
    assert [each["HOROVOD_CROSS_SIZE"] for each in found] == ["2", "1", "2"]
    assert [each["HOROVOD_CROSS_RANK"] for each in found] == ["0", "0", "1"]
    assert {each["HOROVOD_GLOO_TIMEOUT_SECONDS"] for each in found} == {"7"}


def test_horovods_rendezvous_is_open_as_long_as_the_meeting_and_not_longer(horovod):
    with horovod.meeting(on_hosts(2)) as variables:
        port = int(variables[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        url = f"http://127.0.0.1:{port}/scope/key"
        with urlopen(Request(url, data=b"value", method="PUT"), timeout=5):
            pass
        with urlopen(url, timeout=5) as answer:
            assert answer.read() == b"value"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert not any(thread.name == "det-horovod" for thread in threading.enumerate())


def test_horovods_rendezvous_survives_garbage(horovod):
    with horovod.meeting(on_hosts(2)) as variables:
        address = ("127.0.0.1", int(variables[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
        for junk in (b"\x00" * 64, b"GET\r\n\r\n", b"PUT /a/b HTTP/1.1\r\n\r\n"):
            with socket.create_connection(address, timeout=5) as sock:
                sock.sendall(junk)
                sock.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        with urlopen(Request(f"http://{address[0]}:{address[1]}/s/k", data=b"v", method="PUT"), timeout=5) as answer:
            assert answer.status == 200


def test_a_horovod_that_is_not_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr("det_core.launchers.horovod.find_spec", lambda name: None)
    with (
        pytest.raises(DetError, match="Horovod is not installed; run: det horovod install"),
        Horovod().meeting(on_hosts(2)),
    ):
        pass
