"""Receivers of webhooks and of mail on loopback, which answer as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any


class Receiver:
    """What came, in order: `(path, headers, body)`. `answers` are the next statuses, then 200."""

    def __init__(self) -> None:
        self.came: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.location = ""
        self.url = ""

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, _, body in self.came]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.came.append((self.path, dict(self.headers), body))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook/t0k3n"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


class Mailbox:
    """What an SMTP server got: each line that a client sent. `refused` is a recipient's status."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refused = ""
        self.port = 0


@contextmanager
def receiving_mail() -> Iterator[Mailbox]:
    mailbox = Mailbox()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().rstrip("\r\n"):
                mailbox.lines.append(line)
                word = line.partition(" ")[0].upper()
                if word == "QUIT":
                    return
                if word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                        mailbox.lines.append(text)
                answer = mailbox.refused if word == "RCPT" and mailbox.refused else "250 good"
                self.wfile.write(f"{answer}\r\n".encode())

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        mailbox.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield mailbox
        server.shutdown()
        thread.join()
