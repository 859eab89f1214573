"""The ASGI application: the page's files, /api/v1, /login and /metrics, behind the guard."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from det_core.errors import DetError

from .boards import Boards
from .cluster import prometheus
from .endpoints import ROOT, Endpoint, Owners, failed, no_owners, visible_to
from .events import Live
from .guard import COOKIE_SECONDS, SIGN_IN, Bodies, Guard, Keys, SignedIn, cookie_name
from .lists import Lists
from .openapi import ENDPOINTS, document

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_ZIPPED = 5
METHODS = ["GET", "POST", "PATCH", "PUT", "DELETE"]


def make_app(
    home: Path, keys: Keys, port: int, hosts: Collection[str], static: Path = STATIC
) -> ASGIApp:
    """Return the application for one home. `hosts` are the names by which clients reach it."""

    def login(request: Request) -> Response:
        cookie = keys.cookie(request.query_params.get("token", ""))
        if cookie is None:
            return PlainTextResponse(
                f"{SIGN_IN}: it is good for one browser, and this one has been used\n", 401
            )
        response = RedirectResponse("/", 303, {"cache-control": "no-store"})
        response.set_cookie(
            cookie_name(port),
            cookie,
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            path="/",
        )
        return response

    routes = [Route("/login", login), *make_routes(home, static=static)]
    app = SignedIn(Bodies(make_router(routes)), keys, hosts, port)
    return Guard(app, hosts, port)


def make_router(routes: list[Route]) -> ASGIApp:
    """Return an application of routes, which compresses what it sends."""

    async def nothing(request: Request, error: Exception) -> Response:
        # A path with a line feed matches no route, not even the last one.
        return failed(404, "there is nothing at this address")

    return GZipMiddleware(
        Starlette(routes=routes, exception_handlers={404: nothing}), 1000, _ZIPPED
    )


def make_routes(
    home: Path,
    *,
    static: Path = STATIC,
    on_made: Callable[[Request, int], None] | None = None,
    owners: Owners = no_owners,
    more: Collection[Endpoint] = (),
) -> list[Route]:
    """Return the routes of the API and of the page, for one home. They match every path.

    `on_made` is called with the number of each experiment that a request has created. `owners`
    returns who owns which experiment. `more` are endpoints whose routes the server adds, for the
    OpenAPI document.
    """
    lists, live, boards = Lists(), Live(home), Boards()

    def scraped(request: Request) -> Response:
        try:
            return PlainTextResponse(
                prometheus(home, visible_to(request)), headers={"cache-control": "no-store"}
            )
        except DetError as error:
            return failed(409, str(error))

    def openapi(request: Request) -> Response:
        return JSONResponse(document(more), headers={"cache-control": "no-store"})

    def nothing(request: Request) -> Response:
        return failed(
            404, f"{request.method} {request.url.path} is nothing of det's; see {ROOT}/openapi.json"
        )

    def file(request: Request) -> Response:
        place = static / str(request.path_params["name"])
        if place.parent != static or not place.is_file():
            return failed(404, "the page has no file of that name")
        kind = _TYPES.get(place.suffix)
        return FileResponse(place, headers={"cache-control": "no-cache"}, media_type=kind)

    def page(request: Request) -> Response:
        index = static / "index.html"
        if not index.is_file():
            return PlainTextResponse(
                "det-web was installed without its page: build it in packages/det-web/page\n", 503
            )
        return FileResponse(
            index, headers={"cache-control": "no-cache"}, media_type=_TYPES[".html"]
        )

    return [
        *(endpoint.route(home, lists, boards, on_made, owners) for endpoint in ENDPOINTS),
        Route(f"{ROOT}/events", live.serve),
        Route(f"{ROOT}/openapi.json", openapi),
        Route("/api/{rest:path}", nothing, methods=METHODS),
        Route("/metrics", scraped),
        Route("/static/{name}", file),
        Route("/static/{rest:path}", nothing),
        Route("/{rest:path}", page),
    ]
