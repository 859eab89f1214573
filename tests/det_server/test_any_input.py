"""The whole API, with input that is drawn from its OpenAPI document: no reply has a status 5xx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp
from tests.det_server.asgi import HOST, X_DET, ask, sign_in
from tests.det_server.conftest import OF_ANN, OF_BOB, OF_NOBODY, mark_of

from det_server import Users
from det_web.endpoints import ROOT

LEFT_OUT = {f"{ROOT}/events", f"{ROOT}/session"}
"""The stream of events has no end. Too many attempts to sign in are refused."""
STRANGE = (
    *("", "\0", "0", "-1", "1e999", "nan", "9" * 40, "9" * 5000, "1,2", "1,x", "%", "'", '"', "\\"),
    *("../../../etc/passwd", "/etc/passwd", "..", "train.py", "x/../train.py", "\ud800", "\u202e"),
    *("validation", "training", "error", mark_of(OF_ANN), f"{mark_of(OF_ANN)}-x", "\x1b[31m", "é"),
    *("&a [*a, *a]", "{", "a: !!python/object:os.system x", "[" * 2000, "entrypoint: 7", "- 1"),
    *('["list", 7]', '["list"', "[]", '["--help"]', '["show", "x"]', '["run", "x"]', "null"),
)
TEXTS = st.sampled_from(STRANGE) | st.text(max_size=20)
NUMBERS = st.integers(-3, 5) | st.integers() | st.sampled_from([2**63 - 1, 2**63, -(2**63), 10**18])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def values(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that a schema allows, and sometimes others."""
    return _allowed(schema, parts) | _allowed(schema, parts) | ANYTHING


def _allowed(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _allowed(parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return st.one_of([_allowed(each, parts) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {})
        needed = {*schema.get("required", ())}
        return st.fixed_dictionaries(
            {name: values(each, parts) for name, each in fields.items() if name in needed},
            optional={name: values(fields[name], parts) for name in fields.keys() - needed},
        )
    if kind == "array":
        return st.lists(values(schema.get("items", {}), parts), max_size=4)
    known = {
        "integer": NUMBERS,
        "number": NUMBERS | st.floats(),
        "boolean": st.booleans(),
        "null": st.none(),
        "string": TEXTS,
    }
    return known.get(str(kind), ANYTHING)


@st.composite
def requests(draw: st.DrawFn, document: Mapping[str, Any]) -> tuple[str, str, bytes]:
    """Draw a method, a target and a body for an endpoint of a document."""
    path = draw(st.sampled_from(sorted({*document["paths"]} - LEFT_OUT)))
    method = draw(st.sampled_from(sorted(document["paths"][path])))
    operation = document["paths"][path][method]
    parts = document["components"]["schemas"]
    numbers = [OF_BOB, 99] if method == "delete" else [OF_ANN, OF_BOB, OF_NOBODY, 99]
    target, query = path, []
    for each in operation.get("parameters", ()):
        name = each["name"]
        if each["in"] == "path":
            given = st.sampled_from(numbers) if name == "id" else TEXTS
            target = target.replace(f"{{{name}}}", _quoted(draw(given | TEXTS)))
        elif each["in"] == "query" and (each["required"] or draw(st.booleans())):
            query.append(f"{name}={_quoted(draw(values(each['schema'], parts)))}")
    if draw(st.integers(0, 9)) == 0:
        query.append(draw(st.sampled_from(["a", "=", "&&", "%zz=%ff", "since", "ids=%ff"])))
    body = b""
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        body = json.dumps(draw(values(content["schema"], parts))).encode()
        body = draw(
            st.sampled_from([body, body, body, body[:-1], body + b"\xff", b"", b"[" * 9999])
        )
    return method.upper(), f"{target}?{'&'.join(query)}" if query else target, body


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    # What no text is in UTF-8 travels as bytes.
    return quote(text.encode(errors="surrogatepass"), safe="")


def check(app: ASGIApp, users: Users, name: str, many: int) -> None:
    """Send `many` drawn requests of a user."""
    headers = [HOST, X_DET, *sign_in(users, name)]
    found = asyncio.run(ask(app, "GET", f"{ROOT}/openapi.json", headers))

    @settings(max_examples=many, deadline=None, suppress_health_check=[*HealthCheck])
    @given(requests(json.loads(found.body)))
    def send(drawn: tuple[str, str, bytes]) -> None:
        method, target, body = drawn
        reply = asyncio.run(ask(app, method, target, headers, body))
        assert reply.status < 500, reply
        assert reply.status < 400 or {*json.loads(reply.body)} == {"error"}, reply

    send()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ann", "root"])
def test_no_input_is_an_error_of_the_server(app: ASGIApp, users: Users, name: str) -> None:
    check(app, users, name, 200)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_no_input_of_thousands_is_an_error(app: ASGIApp, users: Users) -> None:
    check(app, users, "root", 10_000)
