"""The page in a browser: what one does there, and what is seen then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.det_web.conftest import Server
from tests.repo.browser import Browser

PATIENCE_SECONDS = 60.0
PROBLEMS = """
window.problems = [];
addEventListener("error", event => problems.push(event.message));
addEventListener("unhandledrejection", event => problems.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => problems.push(event.violatedDirective + " " + event.blockedURI));
"""


class Page:
    """A browser that is signed in to a server."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self.browser, self.server = browser, server

    def open(self, path: str, wanted: str = ".rows tbody a", width: int = 1300) -> None:
        """Open a view and wait until something of it is there."""
        self.browser.open(f"http://127.0.0.1:{self.server.port}{path}", width)
        self.until(f"!!document.querySelector({json.dumps(wanted)})")

    def tell(self, expression: str) -> Any:
        return self.browser.evaluate(expression)

    def until(self, expression: str) -> Any:
        """Return what an expression gives once that is true. Asked from here: a strict policy lets no page wait for a text."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.tell(expression)):
            if time.monotonic() > deadline:
                seen = self.tell("location.href + '\\n' + document.body.innerText")
                pytest.fail(f"{expression} did not come true on {seen}")
            time.sleep(0.02)
        return found

    def text(self, selector: str) -> str:
        return str(self.tell(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def press(self, key: str) -> None:
        event = f"new KeyboardEvent('keydown', {{key: {key!r}, bubbles: true, cancelable: true}})"
        self.tell(f"(document.activeElement ?? document.body).dispatchEvent({event})")

    def click(self, text: str) -> None:
        """Press the button of that name."""
        found = (
            f"[...document.querySelectorAll('button, summary')].find(b => b.textContent.trim() === {json.dumps(text)})"
        )
        self.until(f"!!({found}) && !({found}).disabled")
        self.tell(f"({found}).click()")

    def type(self, label: str, text: str) -> None:
        """Type into the field of that name."""
        self.tell(
            f"""{{
              let field = document.querySelector('[aria-label={json.dumps(label)}]');
              field.value = {json.dumps(text)};
              field.dispatchEvent(new Event('input', {{bubbles: true}}));
            }}"""
        )

    def trials(self) -> list[str]:
        """The trials that the table shows, from the top."""
        return list(self.tell("[...document.querySelectorAll('.rows tbody a')].map(a => a.textContent)"))


@contextmanager
def signed_in(server: Server, profile: Path) -> Iterator[Page]:
    """Give a browser of its own that is signed in to a server."""
    with Browser(profile) as browser:
        browser.before_scripts(PROBLEMS)
        name, _, value = server.cookie.partition("=")
        browser.set_cookie(name, value, f"http://127.0.0.1:{server.port}")
        yield Page(browser, server)
