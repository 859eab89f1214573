"""Creates the OpenAPI document from the endpoints and their structs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from starlette.routing import Route

from . import alerts, cluster, experiments, models, queue, searches, trials, usage
from .endpoints import ROOT, Endpoint, Problem

ENDPOINTS: tuple[Endpoint, ...] = (
    *alerts.ENDPOINTS,
    *cluster.ENDPOINTS,
    *experiments.ENDPOINTS,
    *models.ENDPOINTS,
    *queue.ENDPOINTS,
    *searches.ENDPOINTS,
    *trials.ENDPOINTS,
    *usage.ENDPOINTS,
)
_TEXT = {"type": "string"}
_REFUSED = {
    "400": "What was given is wrong.",
    "401": "The cookie, or the key, is missing.",
    "403": "Another site asked, or the header X-Det is missing.",
    "404": "There is no such thing.",
    "409": "It cannot be as it stands now.",
    "413": "The body is too long.",
    "421": "This server has another name.",
}


Handler = TypeVar("Handler", bound=Callable[..., Any])


def takes(
    *,
    query: type[msgspec.Struct] | None = None,
    body: type[msgspec.Struct] | None = None,
    response: type | str = "application/json",
    status: int = 200,
) -> Callable[[Handler], Handler]:
    """Note what a handler of a route takes and replies with, for the OpenAPI document."""

    def note(handler: Handler) -> Handler:
        vars(handler)["takes"] = {
            "query": query,
            "body": body,
            "response": response,
            "status": status,
        }
        return handler

    return note


def describe(routes: Iterable[Route]) -> list[Endpoint]:
    """Return the endpoints that routes of /api/v1 are, for the OpenAPI document."""
    return [
        Endpoint(
            method=method,
            path=re.sub(r":\w+}", "}", route.path.removeprefix(ROOT)),
            does=route.endpoint,
            **{"response": "application/json", **getattr(route.endpoint, "takes", {})},
        )
        for route in routes
        if route.path.startswith(ROOT)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def document(more: Iterable[Endpoint] = ()) -> dict[str, Any]:
    """Return the OpenAPI document of /api/v1. `more` are endpoints of a server's own."""
    endpoints = (*ENDPOINTS, *more)
    types = [e.response for e in endpoints if not isinstance(e.response, str)] + [
        e.body for e in endpoints if e.body
    ]
    (*schemas, problem), components = msgspec.json.schema_components(
        [*types, Problem], ref_template="#/components/schemas/{name}"
    )
    of = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(ROOT + endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, of, problem
        )
    paths[f"{ROOT}/events"] = {
        "get": {
            "summary": (
                "Tell what has changed, as it changes: events `hello`, `experiments` {ids},"
                " `trials` {experiment, ids}."
            ),
            "responses": {"200": {"description": "Events.", "content": {"text/event-stream": {}}}},
        }
    }
    paths["/metrics"] = {
        "get": {
            "summary": "Return what Prometheus reads.",
            "responses": {
                "200": {"description": "Its text format.", "content": {"text/plain": {}}}
            },
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "det",
            "version": "1",
            "description": "What the page of det is made from.",
        },
        "security": [{"cookie": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "cookie": {"type": "apiKey", "in": "cookie", "name": "det_PORT"},
                "key": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Any], problem: Any) -> dict[str, Any]:
    json = "application/json"
    content: dict[str, Any] = {json: {"schema": schemas.get(str(endpoint.response))}}
    if isinstance(endpoint.response, str):
        content = {kind: {} for kind in endpoint.response.split(", ")}
    refused = {
        status: {"description": says, "content": {json: {"schema": problem}}}
        for status, says in _REFUSED.items()
    }
    operation: dict[str, Any] = {
        "summary": endpoint.says,
        "parameters": [*_of_path(endpoint), *_of_query(endpoint), *_of_header(endpoint)],
        "responses": {
            str(endpoint.status): {"description": endpoint.says, "content": content},
            **refused,
        },
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {json: {"schema": schemas[str(endpoint.body)]}},
        }
    return operation


def _of_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    kinds = {"id": {"type": "integer", "minimum": 0}}
    return [
        {"name": name, "in": "path", "required": True, "schema": kinds.get(name, _TEXT)}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _of_query(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    schema = msgspec.json.schema(endpoint.query)["$defs"][endpoint.query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": of}
        for name, of in schema["properties"].items()
    ]


def _of_header(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.method == "GET":
        return []
    return [{"name": "X-Det", "in": "header", "required": True, "schema": {"const": "1"}}]
