"""A search on a Ray cluster.

The numbers are those of a search on this machine, and what is wrong is said.
"""

from __future__ import annotations

import pytest
from tests.det_driver.driver.conftest import Project
from tests.support.clusters.ray import why_no_ray
from tests.support.clusters.searches import RaySearches, ended

why_not = why_no_ray()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(240)]


@pytest.mark.sample
@pytest.mark.parametrize("way", ["straight", "carried"])
def test_cluster_trials_equal_local_ones_and_leave_nothing(
    on_ray: RaySearches, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines that have no way to the driver have their words carried by Ray."""
    if way == "carried":
        monkeypatch.setitem(on_ray.cluster.more, "DET_ADDRESS", "127.0.0.1")
    said = ended(on_ray.run("--quiet", trials=3, length=20, pause=0.01))
    assert on_ray.project.outcome(1).table == on_ray.undisturbed(trials=3, length=20)
    assert on_ray.restarts() == [0, 0, 0]
    assert (
        "ray" not in said.replace(str(on_ray.shared), "").lower()
    )  # what it says itself belongs into its own logs
    on_ray.no_job_is_left()


def test_a_driver_may_be_on_a_machine_that_is_not_of_the_cluster(on_ray: RaySearches) -> None:
    pytest.importorskip("aiohttp_cors", reason="a head that has clients takes ray[default]")
    head = on_ray.cluster.network.names[0]
    ended(on_ray.run("--quiet", trials=3, length=20, pause=0.01, address=f"ray://{head}:10001"))
    assert on_ray.project.outcome(1).table == on_ray.undisturbed(trials=3, length=20)
    on_ray.no_job_is_left()


def test_a_cluster_that_is_not_there_is_said_with_the_way_out(project: Project) -> None:
    path = project.write(
        "searcher: {name: single, metric: val_loss, max_length: 4}\nengine: {name: ray, address:"
        " '127.0.0.1:1'}\n"
    )
    said = project.det("run", path, "--quiet", status=2, env=project.environ(1)).stderr
    assert (
        "no Ray cluster answers at 127.0.0.1:1 (Connection refused); name its head in"
        " engine.address" in said
    )


def test_an_engine_is_checked_in_order(on_ray: RaySearches) -> None:
    path = on_ray.project.write(
        f"checkpoint_storage: {{type: directory, container_path: {on_ray.shared}/storage}}\nengine:"
        f" {on_ray.engine()}\n"
    )
    said = ended(on_ray.start("engine", "check", path)).splitlines()
    assert said[0].startswith(
        f"ray: it answers; agents are to connect to {on_ray.cluster.network.names[0]}:"
    )
    assert said[-3].startswith("n1: an agent connected, with cpu:0")
    assert said[-2].startswith("n1: has python 3.")
    assert said[-1] == "the engine ray works"
