from __future__ import annotations

import inspect
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from det_core import (
    Backend,
    BackendRecord,
    DistributedContext,
    PluginError,
    Ranks,
    Serial,
    hookimpl,
)
from det_core.hooks import Plugins
from det_core.support.installation import how_to_install

SIX = ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
ONE = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 1}
TWO = ONE | {"size": 2, "local_size": 2}


class Fake(Serial):
    """A backend of a framework: the fourth of six ranks, on the second of two hosts."""

    strategy = "the strategy"

    def __init__(self) -> None:
        self.ranks = Ranks()
        self.met = self.left = 0

    def init(self) -> None:
        self.met += 1
        self.ranks = Ranks(rank=3, size=6, local_rank=1, local_size=3, cross_rank=1, cross_size=2)

    def shutdown(self) -> None:
        self.left += 1

    def allgather(self, value):
        """Answer for the ranks 0, 2, 4 on the first host and 1, 3, 5 on the second.

        Their numbers are in the value's place.
        """
        if isinstance(value, tuple):
            return [(rank % 2, rank // 2, f"of {rank}") for rank in range(6)]
        return [f"of {rank}" for rank in range(6)]


class Other(Fake):
    pass


class NoStrategy(Fake):
    strategy = None


@pytest.fixture
def install(monkeypatch):
    """Make backends known as installed plugins are: through the hook."""

    def known(*records: BackendRecord) -> None:
        plugins = Plugins()

        class Plugin:
            @hookimpl
            def det_backends(self):
                yield from records

        plugins.register(Plugin(), "stranger")
        monkeypatch.setattr(Plugins, "installed", classmethod(lambda cls: plugins))

    return known


# One process


def test_one_process_needs_nothing():
    with DistributedContext() as context:
        assert [getattr(context, name) for name in SIX] == list(ONE.values())
        assert (
            context.get_rank(),
            context.get_size(),
            context.get_local_rank(),
            context.get_num_agents(),
        ) == (0, 1, 0, 1)
        thing = object()
        for gather in (
            context.gather,
            context.allgather,
            context.gather_local,
            context.allgather_local,
        ):
            assert gather(thing) == [thing]
        assert context.broadcast(thing) is context.broadcast_local(thing) is thing
        assert context.agree(True)
        assert not context.agree(False)
        context.barrier()
    context.close()


@pytest.mark.process
def test_single_process_imports_no_socket_and_no_framework():
    code = (
        f"import sys; from det_core import DistributedContext; c = DistributedContext(**{ONE});"
        " c.allgather(1); print([m for m in ('socket', 'numpy', 'torch', 'tensorflow',"
        " 'det_node.wire') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_constructor_takes_what_determined_scripts_give():
    names = inspect.signature(DistributedContext).parameters
    given = [*SIX, "chief_ip", "pub_port", "pull_port", "port_offset", "force_tcp"]
    assert [name for name in given if name in names] == given


# Mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"local_rank": None, "cross_size": None},
            (
                "rank, size, local_size, cross_rank given, but not local_rank, cross_size; give all"
                " six numbers or none"
            ),
        ),
        ({"rank": 2}, "rank is 2; give a number from 0 to 1, as size is 2"),
        ({"rank": -1}, "rank is -1; give a number from 0 to 1, as size is 2"),
        ({"local_rank": 5}, "local_rank is 5; give a number from 0 to 1, as local_size is 2"),
        ({"cross_size": 0}, "cross_size is 0; give 1 or more"),
        ({"local_size": 3}, "local_size is 3; give at most size, which is 2"),
        ({"cross_size": 3}, "cross_size is 3; give at most size, which is 2"),
        (
            {},
            (
                "key is not given for 2 ranks; give the same 16 random bytes or more, or their hex"
                " digits, on every rank, or let det start the ranks"
            ),
        ),
        (
            {"key": "secret!"},
            "key has 7 characters that are not all hex digits; give bytes or hex digits",
        ),
        (
            {"key": "abcd"},
            "the key has 2 bytes; give at least 16 random ones, such as wire.new_key()",
        ),
        (
            {"local_size": 1, "cross_size": 2, "key": bytes(32)},
            "chief_ip is not given for 2 ranks on 2 hosts; give the address of rank 0's host",
        ),
    ],
)
def test_a_mistake_is_a_sentence(changes, message):
    with pytest.raises(ValueError) as caught:
        DistributedContext(**TWO | changes)
    assert str(caught.value) == message


# Several processes


def test_several_processes_meet_and_speak(processes):
    processes.start(
        """
        with context() as c:
            say([c.rank, c.size, c.local_rank, c.local_size, c.get_num_agents()])
            say([c.gather(rank), c.allgather(rank), c.broadcast(rank), c.agree(rank == 1)])
            say([c.gather_local(rank), c.allgather_local(rank), c.broadcast_local(rank)])
            c.barrier()
        """,
        size=3,
    )
    everyone = [0, 1, 2]
    for rank, said in enumerate(processes.finish()):
        gathered = everyone if rank == 0 else None
        assert said == [
            [rank, 3, rank, 3, 1],
            [gathered, everyone, 0, True],
            [gathered, everyone, 0],
        ]


@pytest.mark.process
def test_the_port_may_be_moved(kit):
    port = kit.free_port()

    def one(rank):
        numbers = TWO | {"rank": rank, "local_rank": rank}
        with DistributedContext(
            **numbers, chief_ip="127.0.0.1", pub_port=port - 7, port_offset=7, key=kit.KEY
        ) as context:
            return context.allgather(rank)

    assert kit.as_threads(lambda: one(0), lambda: one(1)) == [[0, 1], [0, 1]]


@pytest.mark.process
def test_a_rank_that_does_not_come_ends_the_wait(kit):
    before = time.monotonic()
    with pytest.raises(ConnectionError, match=r"rank 1 of 2 did not come to 127\.0\.0\.1:"):
        DistributedContext(**TWO, pub_port=kit.free_port(), key=kit.KEY, start_timeout=0.2)
    assert time.monotonic() - before < 5


# Backends of frameworks


def test_a_backend_gives_the_numbers_and_the_verbs():
    backend = Fake()
    with DistributedContext.from_backend(backend) as context:
        assert [getattr(context, name) for name in SIX] == [3, 6, 1, 3, 1, 2]
        assert context.allgather("x") == [f"of {rank}" for rank in range(6)]
        assert context.gather("x") is None
        assert context.allgather_local("x") == ["of 1", "of 3", "of 5"]
        assert context.gather_local("x") is None
        assert context.broadcast_local("x") == "of 1"
    assert (backend.met, backend.left) == (1, 1)


def test_the_launchers_names_find_the_plugins_backend(install):
    install(
        *(
            BackendRecord(name=name, load=lambda: Fake)
            for name in ("horovod", "torch", "tensorflow")
        )
    )
    assert (
        DistributedContext.from_horovod(ModuleType("horovod.torch"), chief_ip="10.0.0.1").rank == 3
    )
    assert DistributedContext.from_torch_distributed(chief_ip="10.0.0.1").rank == 3
    context, strategy = DistributedContext.from_tf_config()
    assert (context.rank, strategy) == (3, "the strategy")


def test_the_module_says_whose_horovod_it_is(install):
    def load(kind: type[Backend]):
        return lambda: kind

    install(
        BackendRecord(name="horovod", framework="keras", load=load(Other), priority=5),
        BackendRecord(name="horovod", framework="torch", load=load(Fake)),
    )
    assert type(DistributedContext.from_horovod(ModuleType("horovod.torch"))._backend) is Fake
    assert type(DistributedContext.from_horovod(SimpleNamespace())._backend) is Other


@pytest.mark.parametrize(
    ("make", "name", "hint"),
    [
        (
            DistributedContext.from_horovod,
            "horovod",
            f"{how_to_install('det-horovod')}, then: det horovod install",
        ),
        (DistributedContext.from_torch_distributed, "torch", how_to_install("det-torch")),
        (DistributedContext.from_tf_config, "tensorflow", how_to_install("det-keras")),
    ],
)
def test_a_missing_plugin_is_a_sentence(install, make, name, hint):
    install(BackendRecord(name="serial", load=lambda: Serial))
    with pytest.raises(PluginError) as caught:
        make()
    assert (
        str(caught.value)
        == f"no plugin registers the backend {name!r}; installed: serial. Try: {hint}"
    )
    install(BackendRecord(name=name, load=lambda: Fake, available=lambda: False))
    with pytest.raises(PluginError) as caught:
        make()
    assert str(caught.value) == f"the backend {name!r} is not available here. Try: {hint}"


def test_a_backend_without_a_strategy_is_a_sentence(install):
    install(BackendRecord(name="tensorflow", load=lambda: NoStrategy))
    with pytest.raises(
        PluginError, match="the backend NoStrategy has no strategy; upgrade det-keras"
    ):
        DistributedContext.from_tf_config()


def test_core_registers_its_own_backends():
    records = {record.name: record for record in Plugins.installed().backends()}
    assert records["serial"].load() is Serial
    assert records["socket"].load().__name__ == "Socket"
