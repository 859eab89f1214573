"""Which backend a run's `distributed.backend` means."""

from __future__ import annotations

import pytest

from det_core.errors import ConfigError
from det_core.ranks.backend import Backend, BackendRecord, Serial
from det_core.ranks.choice import choose_backend
from det_core.ranks.distributed import DistributedContext
from det_core.support.installation import how_to_install


def record(
    name: str, framework: str | None = "ship", *, ready: bool = True, priority: int = 0
) -> BackendRecord:
    return BackendRecord(
        name=name,
        framework=framework,
        load=lambda: Serial,
        available=lambda: ready,
        priority=priority,
    )


BOTH = [
    record("oars"),
    record("horovod", priority=10),
    record("socket", None),
    record("horovod", "train"),
]


@pytest.mark.parametrize(
    ("wanted", "chosen"), [("auto", 1), ("native", 0), ("horovod", 1), ("oars", 0)]
)
def test_wanted_backend_selects_one_of_those_available(wanted: str, chosen: int) -> None:
    """`auto` is the highest priority, `native` any but Horovod, and a name is itself."""
    assert choose_backend(wanted, "ship", BOTH) is BOTH[chosen]


def test_auto_passes_over_what_is_not_available() -> None:
    records = [record("oars"), record("horovod", ready=False, priority=10)]
    assert choose_backend("auto", "ship", records).name == "oars"


def test_missing_horovod_error_has_the_install_commands() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_backend("horovod", "ship", [record("oars"), record("horovod", ready=False)])
    assert (
        str(caught.value) == "distributed.backend is 'horovod', which is not available here; "
        f"run: {how_to_install('det-horovod')}, then: det horovod install"
    )


def test_unknown_backend_error_lists_the_registered_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"'sails', which no plugin registers for 'ship'.*horovod or oars"
    ):
        choose_backend("sails", "ship", BOTH)
    with pytest.raises(
        ConfigError,
        match=r"'horovd', which no plugin registers for 'ship'; did you mean 'horovod'\?$",
    ):
        choose_backend("horovd", "ship", BOTH)


def test_a_framework_without_a_backend_is_told_to_take_one_slot() -> None:
    with pytest.raises(
        ConfigError, match=r"'cart' trains in one process; set resources.slots_per_trial to 1"
    ):
        choose_backend("auto", "cart", BOTH)


def test_a_backend_that_needs_no_rendezvous_joins_as_it_is() -> None:
    backend: Backend = Serial.join(DistributedContext())
    assert backend.allgather(1) == [1]
