"""Requests that change something: what waits for what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.applications import Starlette
from starlette.testclient import TestClient

from det_web.boards import Boards
from det_web.endpoints import ApiRequest, Endpoint
from det_web.lists import Lists

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
