"""The OpenAPI document, made of the endpoints and of the structs that they take and answer."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from . import cluster, experiments, searches, trials
from .endpoints import ROOT, Endpoint, Problem

ENDPOINTS: tuple[Endpoint, ...] = (
    *cluster.ENDPOINTS,
    *experiments.ENDPOINTS,
    *searches.ENDPOINTS,
    *trials.ENDPOINTS,
)
_REFUSED = {
    "400": "What was given is wrong.",
    "401": "The cookie, or the key, is missing.",
    "403": "Another site asked, or the header X-Det is missing.",
    "404": "There is no such thing.",
    "409": "It cannot be as it stands now.",
    "413": "The body is too long.",
    "421": "This server has another name.",
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document of /api/v1."""
    types = [e.answer for e in ENDPOINTS if not isinstance(e.answer, str)] + [e.body for e in ENDPOINTS if e.body]
    (*schemas, problem), components = msgspec.json.schema_components(
        [*types, Problem], ref_template="#/components/schemas/{name}"
    )
    of = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(ROOT + endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, of, problem)
    paths[f"{ROOT}/events"] = {
        "get": {
            "summary": "Tell what has changed, as it changes: events `hello`, `experiments` {ids}, `trials` {experiment, ids}.",
            "responses": {"200": {"description": "Events.", "content": {"text/event-stream": {}}}},
        }
    }
    paths["/metrics"] = {
        "get": {
            "summary": "Return what Prometheus reads.",
            "responses": {"200": {"description": "Its text format.", "content": {"text/plain": {}}}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "det", "version": "1", "description": "What the page of det is made from."},
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
    content = (
        {endpoint.answer: {}} if isinstance(endpoint.answer, str) else {json: {"schema": schemas[str(endpoint.answer)]}}
    )
    refused = {
        status: {"description": says, "content": {json: {"schema": problem}}} for status, says in _REFUSED.items()
    }
    operation: dict[str, Any] = {
        "summary": endpoint.says,
        "parameters": [*_of_path(endpoint), *_of_query(endpoint), *_of_header(endpoint)],
        "responses": {str(endpoint.status): {"description": endpoint.says, "content": content}, **refused},
    }
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {json: {"schema": schemas[str(endpoint.body)]}}}
    return operation


def _of_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    kinds = {"id": {"type": "integer", "minimum": 0}, "path": {"type": "string"}}
    names = re.findall(r"{(\w+)}", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": kinds[name]} for name in names]


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
