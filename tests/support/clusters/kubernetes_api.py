"""An API server of Kubernetes, as far as det needs one.

It serves over TLS, for who has the token, and holds all that is sent to the schemas.

There is no etcd and no watch; nothing of it is outside of the test's process.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import secrets
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

VERSIONS = ("1.29", "1.31", "1.34", "1.37")
PATH = re.compile(
    r"^/(?:api|apis/(?P<group>[\w.-]+))/(?P<version>v\w+)(?:/namespaces/(?P<namespace>[\w-]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[\w.-]+))?$"
)
NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
LABEL = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
PLURALS = {
    "Job": "jobs",
    "Secret": "secrets",
    "Pod": "pods",
    "Node": "nodes",
    "Event": "events",
    "Workload": "workloads",
}
Key = tuple[str, str]


class Refused(Exception):
    """What the server does not do, with the status of HTTP and a reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


def now(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Api:
    """Objects of one namespace, by plural and name, behind a lock.

    `sent` is what clients applied, in order.
    """

    def __init__(self, directory: Path, host: str) -> None:
        self.lock = threading.RLock()
        self.objects: dict[Key, dict[str, Any]] = {}
        self.sent: list[dict[str, Any]] = []
        self.token, self.users = secrets.token_hex(8), {"det"}
        self.directory, self.host, self.port = directory, host, 0
        self.refuses: Callable[[str, str], str] = lambda verb, plural: ""
        self._version = 0
        self._server: ThreadingHTTPServer | None = None
        ca = ("-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
        for words in (ca, *(self._certificate(name) for name in ("server", "det", "stranger"))):
            self._openssl(*words)

    def _openssl(self, *words: str) -> None:
        new = (
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        )
        subprocess.run(
            ["openssl", *new, *words],
            cwd=self.directory,
            check=True,
            capture_output=True,
            timeout=60,
        )

    def _certificate(self, name: str) -> tuple[str, ...]:
        names = (
            "-addext",
            f"subjectAltName=IP:{self.host},IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        )
        by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", f"{name}.key", "-out", f"{name}.crt")
        return ("-subj", f"/CN={name}", *names, *by)

    # The server

    def start(self) -> None:
        """Listen, where it did before if it did."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / "server.crt", self.directory / "server.key")
        context.load_verify_locations(self.directory / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        server = ThreadingHTTPServer(
            (self.host, self.port), type("Handler", (_Handler,), {"api": self})
        )
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        server.daemon_threads = True
        self.port = server.server_address[1]
        self._server = server
        threading.Thread(
            target=server.serve_forever, args=(0.05,), daemon=True, name="api-server"
        ).start()

    def stop(self) -> None:
        """Be gone, with every connection."""
        if server := self._server:
            self._server = None
            server.shutdown()
            server.server_close()

    @property
    def is_up(self) -> bool:
        return self._server is not None

    def kubeconfig(self, **user: Any) -> Path:
        """Write a configuration for a client, who has the token unless it is told otherwise."""
        file = self.directory / f"kubeconfig-{secrets.token_hex(4)}"
        cluster = {
            "server": f"https://{self.host}:{self.port}",
            "certificate-authority": str(self.directory / "ca.crt"),
        }
        told = {
            "clusters": [{"name": "fake", "cluster": cluster}],
            "contexts": [
                {
                    "name": "fake",
                    "context": {"cluster": "fake", "user": "me", "namespace": "research"},
                }
            ],
            "users": [{"name": "me", "user": user or {"token": self.token}}],
            "current-context": "fake",
        }
        file.write_text(json.dumps(told))
        return file

    def knows(self, bearer: str, certificate: dict[str, Any] | None) -> bool:
        subject = dict(pair for part in (certificate or {}).get("subject", ()) for pair in part)
        return bearer == f"Bearer {self.token}" or subject.get("commonName") in self.users

    # Objects

    @contextmanager
    def changed(self, plural: str, name: str) -> Iterator[dict[str, Any]]:
        """Change an object that is there."""
        with self.lock:
            yield self.objects[plural, name]
            self._version += 1
            if (plural, name) in self.objects:
                self.objects[plural, name]["metadata"]["resourceVersion"] = str(self._version)

    def put(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Have an object that is not there."""
        with self.lock:
            self._version += 1
            made = copy.deepcopy(wanted)
            given = {
                "uid": secrets.token_hex(16),
                "creationTimestamp": now(),
                "resourceVersion": str(self._version),
            }
            made["metadata"] = {"namespace": "research", **made["metadata"], **given}
            made.setdefault("status", {})
            self.objects[PLURALS[made["kind"]], made["metadata"]["name"]] = made
            return made

    def all(self, plural: str) -> list[dict[str, Any]]:
        with self.lock:
            return [each for (kind, _), each in sorted(self.objects.items()) if kind == plural]

    def listed(self, plural: str, labels: str, fields: str) -> list[dict[str, Any]]:
        found = self.all(plural)
        for key, values in _selected(labels):
            found = [
                each for each in found if each["metadata"].get("labels", {}).get(key) in values
            ]
        for key, values in _selected(fields):
            found = [each for each in found if _at(each, key) in values]
        return copy.deepcopy(found)

    def apply(self, plural: str, name: str, wanted: dict[str, Any], manager: str) -> dict[str, Any]:
        """Do a server-side apply.

        Create, or lay what is wanted over what is there, unless somebody else has changed that.
        """
        self._judge(plural, name, wanted, manager)
        with self.lock:
            self.sent.append(copy.deepcopy(wanted))
            if (plural, name) not in self.objects:
                made = self.put(wanted)
                made["managed"] = {}
                return made
            there = self.objects[plural, name]
            for path in there.get("managed", {}).get("others", ()):
                if _at(wanted, path) not in (None, _at(there, path)):
                    raise Refused(
                        409,
                        "Conflict",
                        f'Apply failed with 1 conflict: conflict with "kueue": .{path}',
                    )
            if plural == "jobs" and _at(wanted, "spec.template") != _at(there, "spec.template"):
                raise Refused(
                    422,
                    "Invalid",
                    f'Job.batch "{name}" is invalid: spec.template: field is immutable',
                )
            with self.changed(plural, name) as found:
                labels = found["metadata"].get("labels", {}) | wanted["metadata"].get("labels", {})
                found["metadata"]["labels"] = labels
                found.update(
                    {
                        key: value
                        for key, value in copy.deepcopy(wanted).items()
                        if key not in ("metadata", "status")
                    }
                )
            return there

    def _judge(self, plural: str, name: str, wanted: dict[str, Any], manager: str) -> None:
        # The tests of other engines import this module, where the package is missing.
        import kubernetes_validate

        if not manager:
            raise Refused(
                400,
                "BadRequest",
                "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for"
                " apply patch",
            )
        for each in (name, wanted["metadata"]["name"]):
            if not NAME.match(each) or len(each) > 63 or each != name:
                raise Refused(
                    422, "Invalid", f'{plural} "{each}" is invalid: metadata.name: Invalid value'
                )
        bad = [v for v in wanted["metadata"].get("labels", {}).values() if not LABEL.match(v)]
        if bad:
            raise Refused(
                422,
                "Invalid",
                f'{plural} "{name}" is invalid: metadata.labels: Invalid value: "{bad[0]}"',
            )
        for version in VERSIONS[-1:]:
            try:
                kubernetes_validate.validate(wanted, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                path = ".".join(map(str, error.path))
                raise Refused(
                    400,
                    "BadRequest",
                    f"failed to create typed patch object ({name}): .{path}: {error.message}",
                ) from None

    def delete(self, plural: str, name: str, grace: int | None, cascade: str | None) -> None:
        """Begin to delete.

        What has a grace, or dependents that go first, is gone when controllers have seen to it.
        """
        with self.changed(plural, name) as found:
            metadata = found["metadata"]
            if plural == "pods":
                seconds = (
                    found["spec"].get("terminationGracePeriodSeconds", 30)
                    if grace is None
                    else grace
                )
                ends = time.time() + seconds
                metadata["ends"] = min(ends, metadata.get("ends", ends))
                metadata["deletionTimestamp"] = now(metadata["ends"] - time.time())
            elif plural == "jobs":
                assert cascade in ("Foreground", "Background"), "pods would be left behind"
                metadata["deletionTimestamp"] = now()
            else:
                del self.objects[plural, name]

    def gone(self, plural: str, name: str) -> None:
        """Have an object gone at once, and what it owns."""
        with self.lock:
            uid = self.objects.pop((plural, name))["metadata"]["uid"]
            for key, each in list(self.objects.items()):
                if any(
                    owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", ())
                ):
                    self.gone(*key)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    api: Api

    def do_GET(self) -> None:
        self._answer("get")

    def do_PATCH(self) -> None:
        self._answer("patch")

    def do_DELETE(self) -> None:
        self._answer("delete")

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, verb: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.api.is_up:  # a connection that was kept
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        try:
            code, said = 200, self._do(verb, body)
        except Refused as error:
            code = error.code
            status = {
                "status": "Failure",
                "message": str(error),
                "reason": error.reason,
                "code": code,
            }
            said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, **status}
        data = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _do(self, verb: str, body: bytes) -> Any:
        api, url = self.api, urlsplit(self.path)
        asked = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if not api.knows(self.headers.get("Authorization", ""), self.connection.getpeercert()):
            raise Refused(401, "Unauthorized", "Unauthorized")
        parts = PATH.match(url.path)
        if parts is None or parts["plural"] not in PLURALS.values():
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        plural, name = parts["plural"], parts["name"]
        if why := api.refuses(verb, plural):
            raise Refused(
                403,
                "Forbidden",
                f'{plural} is forbidden: User "det" cannot {verb} resource "{plural}"{why}',
            )
        if plural != "nodes" and parts["namespace"] != "research":
            raise Refused(404, "NotFound", f'namespaces "{parts["namespace"]}" not found')
        if name is None:
            items = api.listed(
                plural, asked.get("labelSelector", ""), asked.get("fieldSelector", "")
            )
            return {
                "kind": "List",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"},
                "items": items,
            }
        if verb == "patch":
            assert self.headers["Content-Type"] == "application/apply-patch+yaml"
            return copy.deepcopy(
                api.apply(plural, name, json.loads(body), asked.get("fieldManager", ""))
            )
        if (plural, name) not in api.objects:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        if verb == "delete":
            grace = asked.get("gracePeriodSeconds")
            api.delete(
                plural, name, None if grace is None else int(grace), asked.get("propagationPolicy")
            )
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return copy.deepcopy(api.objects[plural, name])


def _selected(text: str) -> list[tuple[str, list[str]]]:
    """Return what a selector asks for: `a=b,c in (d,e)`."""
    found = []
    for key, sets, value in re.findall(r"([\w./-]+)(?: in \(([^)]*)\)|==?([^,]*))", text):
        found.append((key, sets.split(",") if sets else [value]))
    return found


def _at(each: dict[str, Any], path: str) -> Any:
    value: Any = each
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def decoded(secret: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of a Secret."""
    return {name: base64.b64decode(value) for name, value in secret["data"].items()}
