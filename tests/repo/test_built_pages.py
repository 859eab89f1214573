"""The documentation as it is read, at the width of a screen and at that of a phone.

`nox -s docs` builds it and runs this.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.repo.browser import CHROMIUM, Browser

DOCS = Path(__file__).parents[2] / "docs"
BUILT = DOCS / "_build"
PAGES = sorted(page for page in BUILT.rglob("*.html") if "_static" not in page.parts)
API = sorted((DOCS / "reference/api").glob("*.md"))
WIDTHS = (1400, 400)

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (BUILT / "objects.inv").exists(), reason="it is not built: nox -s docs"),
]
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)

CUT = """
Array.from(document.querySelectorAll("pre, table, img, dt.sig")).filter(element => {
  let wide = element.getBoundingClientRect().right > document.documentElement.clientWidth + 1
             || element.scrollWidth > element.clientWidth + 1;
  let hidden = element.closest("details:not([open])") || element.offsetParent === null;
  if (!wide || hidden) return false;
  for (let box = element; box && box !== document.body; box = box.parentElement) {
    let overflow = getComputedStyle(box).overflowX;
    let fits = box.getBoundingClientRect().right <= document.documentElement.clientWidth + 1;
    if ((overflow === "auto" || overflow === "scroll") && fits) return false;  // there it can be scrolled to
  }
  return true;
}).map(element => element.tagName + ": " + element.textContent.trim().slice(0, 80))
"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@in_a_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_no_code_is_cut_and_no_page_scrolls_sideways(browser: Browser, width: int) -> None:
    wrong = []
    for page in PAGES:
        browser.open(page, width)
        cut, over = browser.evaluate(CUT), browser.evaluate(SIDEWAYS)
        if cut or over > 1:
            wrong.append(f"{page.relative_to(BUILT)}: {over} pixels sideways; {cut}")
    assert wrong == []


@in_a_browser
def test_what_is_cut_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    line = "x" * 900
    page = tmp_path / "page.html"
    page.write_text(f"<body><div style='overflow:hidden'><pre>{line}</pre></div></body>")
    browser.open(page, 400)
    assert browser.evaluate(CUT) == [f"PRE: {line[:80]}"]
    page.write_text(f"<body><pre>{line}</pre></body>")
    browser.open(page, 400)
    assert browser.evaluate(SIDEWAYS) > 1
    page.write_text(f"<body><pre style='overflow-x:auto'>{line}</pre></body>")
    browser.open(page, 400)
    assert (browser.evaluate(CUT), browser.evaluate(SIDEWAYS)) == ([], 0)


@in_a_browser
def test_code_can_be_copied_by_a_button(browser: Browser) -> None:
    browser.open(BUILT / "tutorials/first-run.html", 1400)
    assert browser.evaluate(
        "document.querySelectorAll('.highlight pre').length"
    ) == browser.evaluate("document.querySelectorAll('.highlight button.copybtn').length")


@in_a_browser
def test_a_search_finds_the_page_that_answers(browser: Browser) -> None:
    browser.open(BUILT / "search.html", 1400, "?q=preemption")
    found = """
    new Promise(done => {
      let tries = 0;
      let look = () => {
        let links = Array.from(document.querySelectorAll("#search-results li a")).map(link => link.getAttribute("href"));
        if (links.length || ++tries > 100) done(links); else setTimeout(look, 50);
      };
      look();
    })
    """
    assert any(link.startswith("guides/core-api.html") for link in browser.evaluate(found))


def inventory() -> set[str]:
    """Return the names that have a place on some page."""
    head, _, packed = (BUILT / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2")
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines if " py:" in line}


PUBLIC = """
import importlib, json, sys
import _frameworks
_frameworks.install()
print(json.dumps({name: list(importlib.import_module(name).__all__) for name in sys.argv[1:]}))
"""


@pytest.mark.parametrize("page", API, ids=lambda page: page.stem)
def test_every_public_name_has_its_place_in_the_api(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    excluded = set(re.findall(r":exclude-members: (.+)", text))
    modules = re.findall(r"automodule:: (\S+)", text)
    if importlib.util.find_spec(modules[0].partition(".")[0]) is None:
        pytest.skip(f"{modules[0]} is not installed")
    read = subprocess.run(
        [sys.executable, "-c", PUBLIC, *modules],
        cwd=DOCS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    public = {
        f"{module}.{name}"
        for module, names in json.loads(read.stdout).items()
        for name in set(names) - excluded
    }
    assert public
    assert sorted(public - inventory()) == []
