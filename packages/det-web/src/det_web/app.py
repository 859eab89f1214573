"""The application: the page's files, /api/v1, /login and /metrics, behind the guard."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from det_core.errors import DetError

from .boards import Boards
from .cluster import prometheus
from .endpoints import ROOT, failed
from .events import Live
from .guard import SIGN_IN, Guard, Keys, cookie_name
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


def make_app(home: Path, keys: Keys, port: int, hosts: Iterable[str], static: Path = STATIC) -> ASGIApp:
    """Return the application for one home, at a port, by the names that it goes by."""
    lists, live, boards = Lists(), Live(home), Boards()

    def login(request: Request) -> Response:
        cookie = keys.cookie(request.query_params.get("token", ""))
        if cookie is None:
            return PlainTextResponse(f"{SIGN_IN}: it is good for one browser, and this one has been used\n", 401)
        answer = RedirectResponse("/", 303, {"cache-control": "no-store"})
        answer.set_cookie(cookie_name(port), cookie, httponly=True, samesite="strict", path="/")
        return answer

    def scraped(request: Request) -> Response:
        try:
            return PlainTextResponse(prometheus(home), headers={"cache-control": "no-store"})
        except DetError as error:
            return failed(409, str(error))

    def openapi(request: Request) -> Response:
        return JSONResponse(document(), headers={"cache-control": "no-store"})

    def nothing(request: Request) -> Response:
        return failed(404, f"{request.method} {request.url.path} is nothing of det's; see {ROOT}/openapi.json")

    def file(request: Request) -> Response:
        place = static / str(request.path_params["name"])
        if place.parent != static or not place.is_file():
            return failed(404, "the page has no file of that name")
        kind = _TYPES.get(place.suffix)
        return FileResponse(place, headers={"cache-control": "no-cache"}, media_type=kind)

    def page(request: Request) -> Response:
        index = static / "index.html"
        if not index.is_file():
            return PlainTextResponse("det-web was installed without its page: build it in packages/det-web/page\n", 503)
        return FileResponse(index, headers={"cache-control": "no-cache"}, media_type=_TYPES[".html"])

    routes = [
        *(endpoint.route(home, lists, boards) for endpoint in ENDPOINTS),
        Route(f"{ROOT}/events", live.answer),
        Route(f"{ROOT}/openapi.json", openapi),
        Route("/api/{rest:path}", nothing, methods=METHODS),
        Route("/metrics", scraped),
        Route("/login", login),
        Route("/static/{name}", file),
        Route("/static/{rest:path}", nothing),
        Route("/{rest:path}", page),
    ]
    return Guard(GZipMiddleware(Starlette(routes=routes), 1000, _ZIPPED), keys, hosts, port)
