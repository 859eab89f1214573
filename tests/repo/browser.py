"""A Chromium without a window, spoken to over its debugging pipe.

Nothing but the browser has to be installed.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = (
    None
    if os.environ.get("DET_TEST_BROWSER") == "none"
    else shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)


class Browser:
    """One page of a browser.

    Use it in a `with`; it has a profile of its own in the directory `profile`.
    """

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        asked, self._ask = os.pipe()
        self._answers, answered = os.pipe()
        # It reads from its third descriptor and answers on its fourth; a shell puts them there. It
        # reserves more addresses than a process that runs tests beside another may have.
        options = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe"
            f" --user-data-dir={profile}"
        )
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'ulimit -Sv $(ulimit -Hv); exec "$0" {options} about:blank 3<&{asked} 4>&{answered}',
                CHROMIUM,
            ],
            pass_fds=(asked, answered),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(asked)
        os.close(answered)
        self._number, self._buffer, self._session = 0, b"", ""
        self._events: list[str] = []
        [page] = [
            each
            for each in self._call("Target.getTargets")["targetInfos"]
            if each["type"] == "page"
        ]
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")

    def open(self, page: Path | str, width: int, query: str = "") -> None:
        """Load a page, a file or an address, at a width, in pixels, and wait until it is there."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._events.clear()
        self._call(
            "Page.navigate", url=f"{page if isinstance(page, str) else page.as_uri()}{query}"
        )
        while "Page.loadEventFired" not in self._events:
            self._hear()

    def before_scripts(self, script: str) -> None:
        """Run a script in every page that is opened from now on, before its own."""
        self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def set_cookie(self, name: str, value: str, site: str) -> None:
        """Give the browser a cookie of a site."""
        self._call(
            "Network.setCookie", name=name, value=value, url=site, httpOnly=True, sameSite="Strict"
        )

    def block(self, *addresses: str) -> None:
        """Let requests to addresses, with `*` for anything, fail from now on, and no others."""
        self._call("Network.enable")
        self._call("Network.setBlockedURLs", urls=list(addresses))

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression gives there.

        Where that is a promise, wait for its value.
        """
        found = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def do_as_user(self, statement: str) -> None:
        """Execute what a page may only do when its user has clicked, such as to open a window."""
        self._call("Runtime.evaluate", expression=f"void ({statement})", userGesture=True)

    def photograph(self, file: Path) -> None:
        """Write what is seen as a picture.

        The file's name says whether it is a PNG or, much smaller, a WebP.
        """
        kind = {"format": "webp", "quality": 80} if file.suffix == ".webp" else {"format": "png"}
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **kind)["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        said = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            said["sessionId"] = self._session
        os.write(self._ask, json.dumps(said).encode() + b"\0")
        while (heard := self._hear()).get("id") != self._number:
            pass
        assert "error" not in heard, heard["error"]
        return heard["result"]

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._answers, 1 << 16)
            assert more, "the browser ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        if "method" in heard:
            self._events.append(heard["method"])
        return heard

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *problem: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ask)
        os.close(self._answers)
