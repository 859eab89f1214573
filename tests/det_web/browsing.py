"""The page in a browser: what one does there, and what is seen then."""

from __future__ import annotations

import csv
import io
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


SAVED = """
  window.saved = [];
  let made = URL.createObjectURL.bind(URL);
  URL.createObjectURL = blob => (saved.push(blob), made(blob));
  HTMLAnchorElement.prototype.click = function () { if (this.download) saved.at(-1).called = this.download; };
"""
"""What the page gives the browser to save is kept by the page instead."""


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
        """Return what an expression gives once that is true.

        Asked from here: a strict policy lets no page wait for a text.
        """
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
            "[...document.querySelectorAll('button, summary')].find(b => b.textContent.trim() ==="
            f" {json.dumps(text)})"
        )
        self.until(f"!!({found}) && !({found}).disabled")
        self.tell(f"({found}).click()")

    def type(self, label: str, text: str) -> None:
        """Type into the field of that name."""
        self.tell(f"""{{
              let field = document.querySelector('[aria-label={json.dumps(label)}]');
              field.value = {json.dumps(text)};
              field.dispatchEvent(new Event('input', {{bubbles: true}}));
            }}""")

    def texts(self, selector: str) -> list[str]:
        return list(
            self.tell(
                f"[...document.querySelectorAll({json.dumps(selector)})].map(e =>"
                " e.textContent.trim())"
            )
        )

    def save(self, within: str, button: str) -> None:
        """Press a button of a section of the page, by both their names, and wait for its file.

        The page has SAVED.
        """
        self.tell(f"""{{
              let labels = e => [e, e.querySelector('.rows')].map(x => x?.ariaLabel ?? '');
              let name = e => labels(e) + (e.querySelector('h2, b')?.textContent ?? '');
              let places = [...document.querySelectorAll('section, figure, .tabled')];
              let place = places.find(e => name(e).includes({json.dumps(within)}));
              saved.length = 0;
              [...place.querySelectorAll('button')].find(b => b.textContent.trim() === {json.dumps(button)}).click();
            }}""")
        self.until("!!saved[0]?.called")

    def rows(self, within: str) -> list[dict[str, str]]:
        """Return the rows of the CSV that a section of the page saves."""
        self.save(within, "CSV")
        return list(csv.DictReader(io.StringIO(str(self.tell("saved[0].text()")))))

    def trials(self) -> list[str]:
        """The trials that the table shows, from the top."""
        return list(
            self.tell("[...document.querySelectorAll('.rows tbody a')].map(a => a.textContent)")
        )


@contextmanager
def signed_in(server: Server, profile: Path) -> Iterator[Page]:
    """Give a browser of its own that is signed in to a server."""
    with Browser(profile) as browser:
        browser.before_scripts(PROBLEMS)
        name, _, value = server.cookie.partition("=")
        browser.set_cookie(name, value, f"http://127.0.0.1:{server.port}")
        yield Page(browser, server)
