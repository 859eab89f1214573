"""Which backend a run's `distributed.backend` means."""

from __future__ import annotations

import pytest

from det_core.backend import Backend, BackendRecord, Serial
from det_core.backends import choose_backend
from det_core.distributed import DistributedContext
from det_core.errors import ConfigError


def record(name: str, framework: str | None = "ship", *, ready: bool = True, priority: int = 0) -> BackendRecord:
    return BackendRecord(
        name=name, framework=framework, load=lambda: Serial, available=lambda: ready, priority=priority
    )


BOTH = [record("oars"), record("horovod", priority=10), record("socket", None), record("horovod", "train")]


@pytest.mark.parametrize(("wanted", "chosen"), [("auto", 1), ("native", 0), ("horovod", 1), ("oars", 0)])
def test_auto_takes_the_highest_priority_native_what_is_not_horovod_and_a_name_itself(wanted: str, chosen: int) -> None:
    assert choose_backend(wanted, "ship", BOTH) is BOTH[chosen]


def test_auto_passes_over_what_is_not_available() -> None:
    records = [record("oars"), record("horovod", ready=False, priority=10)]
    assert choose_backend("auto", "ship", records).name == "oars"


def test_horovod_that_is_not_installed_is_refused_with_the_commands_that_install_it() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_backend("horovod", "ship", [record("oars"), record("horovod", ready=False)])
    assert str(caught.value) == (
        "distributed.backend is 'horovod', which is not available here; run: pip install 'det-ship[horovod]', then: "
        "det horovod install"
    )


def test_a_name_that_nobody_registers_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'sails', which no plugin registers for 'ship'.*horovod or oars"):
        choose_backend("sails", "ship", BOTH)
    with pytest.raises(ConfigError, match=r"'horovd', which no plugin registers for 'ship'; did you mean 'horovod'\?$"):
        choose_backend("horovd", "ship", BOTH)


def test_a_framework_without_a_backend_is_told_to_take_one_slot() -> None:
    with pytest.raises(ConfigError, match=r"'cart' trains in one process; set resources.slots_per_trial to 1"):
        choose_backend("auto", "cart", BOTH)


def test_a_backend_that_needs_no_rendezvous_joins_as_it_is() -> None:
    backend: Backend = Serial.join(DistributedContext())
    assert backend.allgather(1) == [1]
