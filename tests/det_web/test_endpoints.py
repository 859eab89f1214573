"""Requests that change something: what waits for what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.testclient import TestClient

from det_web.boards import Boards
from det_web.endpoints import STARTS, ApiRequest, Endpoint
from det_web.lists import Lists
from det_web.serve import THREADS

WAIT_SECONDS = 30.0


def test_changes_of_one_object_alone_wait_for_each_other(tmp_path: Path) -> None:
    """To start a driver takes seconds, for which other users must not wait."""
    both = threading.Barrier(2)
    now, most = [0, 0], [0, 0]

    def does(asked: ApiRequest) -> dict[str, int]:
        at = int(asked.path["id"])
        now[at] += 1
        most[at] = max(most[at], now[at])
        # It ends only if requests for two objects are handled at the same time.
        both.wait(WAIT_SECONDS)
        now[at] -= 1
        return {}

    endpoint = Endpoint(method="POST", path="/things/{id}", does=does, response=dict)
    app = Starlette(routes=[endpoint.route(tmp_path / "home", Lists(), Boards())])
    with TestClient(app) as client, ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(client.post, f"/api/v1/things/{id}") for id in (0, 1, 0, 1)]
        assert [each.result().status_code for each in asked] == [200] * 4
    assert most == [1, 1]


def test_other_requests_do_not_wait_for_drivers_that_start(tmp_path: Path) -> None:
    """All drivers of a team may start at the same moment, for longer than somebody looks."""
    starting, go_on = threading.Semaphore(0), threading.Event()

    def does(asked: ApiRequest) -> dict[str, bool]:
        starting.release()
        return {"seen": go_on.wait(WAIT_SECONDS)}

    def looks(asked: ApiRequest) -> dict[str, int]:
        go_on.set()
        return {}

    start = Endpoint(method="POST", path="/things/{id}", does=does, response=dict, starts=True)
    look = Endpoint(method="GET", path="/things", does=looks, response=dict)
    home = tmp_path / "home"
    app = Starlette(routes=[each.route(home, Lists(), Boards()) for each in (start, look)])
    with TestClient(app) as client, ThreadPoolExecutor(2 * STARTS) as threads:
        client.portal.call(set_threads)
        asked = [threads.submit(client.post, f"/api/v1/things/{id}") for id in range(2 * STARTS)]
        assert all(starting.acquire(timeout=WAIT_SECONDS) for _ in range(STARTS))
        assert client.get("/api/v1/things").status_code == 200
        assert all(each.result().json() == {"seen": True} for each in asked)


async def set_threads() -> None:
    """Have as few threads as the page."""
    current_default_thread_limiter().total_tokens = THREADS
