"""The page in a browser, against a real server on a home with a real search.

What one does there, and what it does then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import start, stop
from tests.repo.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)

SIDEWAYS = (
    "Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth)"
)
CUT_NAMES = (
    "[...document.querySelectorAll('.legend li:not(.event)')]"
    ".filter(name => name.scrollWidth > name.clientWidth + 1).map(name => name.innerText)"
)
"""The names below curves that are cut."""
VIEWS = [
    "/",
    *(
        f"/e/1/{each}"
        for each in ("trials", "search", "compare", "code", "checkpoints", "config", "logs")
    ),
    *(f"/t/1/{each}" for each in ("metrics", "media", "logs", "system")),
    *("/compare?t=1,2", "/compare?t=1,2,3,4", "/compare", "/cluster", "/nothing"),
]


@pytest.fixture(scope="module")
def page(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    server = start(made)
    with signed_in(server, tmp_path_factory.mktemp("profile")) as page:
        yield page
    stop(server)


def drawn(page: Page) -> None:
    """Wait for the parallel coordinates, which are drawn in slices."""
    page.until("document.querySelector('.parallel canvas')?.dataset.drawn === '4'")


def test_the_file_that_a_browser_is_given_signs_it_in(made: Path, tmp_path: Path) -> None:
    server = start(made)
    try:
        with Browser(tmp_path / "profile") as browser:
            browser.open(made / f"ui-{server.port}.html", 1300)
            Page(browser, server).until("!!document.querySelector('.rows tbody a')")
    finally:
        stop(server)


@pytest.mark.sample
@pytest.mark.parametrize("width", [1300, 400])
def test_every_view_opens_without_a_problem_and_nothing_is_cut(page: Page, width: int) -> None:
    wrong = []
    for view in VIEWS:
        page.open(view, "main :is(a, button, .empty)", width)
        page.until("!document.querySelector('[aria-busy]')")
        found = [
            page.tell("problems"),
            page.tell(SIDEWAYS),
            page.text("[role=alert]"),
            page.tell(CUT_NAMES),
        ]
        if found != [[], 0, "", []]:
            wrong.append((view, found))
    assert wrong == []


def test_columns_sort_and_the_order_survives_a_reload(page: Page) -> None:
    page.open("/e/1/trials")
    page.click("trial")
    page.until("location.search.includes('sort=id')")
    assert page.until("document.querySelector('th[aria-sort=ascending]')?.textContent") == "trial ↑"
    first = page.trials()
    assert first == sorted(first, key=int)
    page.click("trial ↑")
    page.until("!!document.querySelector('th[aria-sort=descending]')")
    assert page.trials() == first[::-1]
    page.open(str(page.tell("location.pathname + location.search")))
    assert page.trials() == first[::-1]


def test_filter_is_in_the_address_and_can_be_linked(page: Page) -> None:
    page.open("/e/1/trials?sort=id")
    rates = {
        str(t["id"]): t["hparams"]["lr"] for t in page.server.get("/trials?ids=1,2,3,4")["trials"]
    }
    middle = sorted(rates.values())[1]
    page.type("filter", f"lr<={middle} -state:error")
    page.until(
        "document.querySelectorAll('.rows tbody a').length === 2 && location.search.includes('q=')"
    )
    wanted = sorted((each for each in rates if rates[each] <= middle), key=int)
    assert page.trials() == wanted
    page.open(str(page.tell("location.pathname + location.search")))
    assert page.trials() == wanted
    page.type("filter", "nothing<3")
    assert page.until(
        "document.querySelector('.tabled .counted').textContent.includes('no column') && 1"
    )


def test_axis_brush_filters_the_table_and_escape_clears_it(page: Page) -> None:
    page.open("/e/1/trials")
    drawn(page)
    page.tell("""{
      let handle = document.querySelector('.handle[data-axis=lr]'), box = handle.getBoundingClientRect();
      let at = (kind, y) => new PointerEvent(kind, {clientX: box.x + 20, clientY: box.y + y, bubbles: true});
      handle.dispatchEvent(at('pointerdown', 20));
      window.dispatchEvent(at('pointermove', 150));
      window.dispatchEvent(at('pointerup', 150));
    }""")
    page.until(
        "location.search.includes('brush=lr:') && document.querySelectorAll('.rows tbody"
        " a').length < 4"
    )
    low, high = map(
        float, re.findall(r"lr:([\d.e-]+)~([\d.e-]+)", str(page.tell("location.search")))[0]
    )
    rates = {
        str(t["id"]): t["hparams"]["lr"] for t in page.server.get("/trials?ids=1,2,3,4")["trials"]
    }
    assert set(page.trials()) == {each for each, rate in rates.items() if low <= rate <= high}
    page.press("Escape")
    page.until(
        "document.querySelectorAll('.rows tbody a').length === 4 &&"
        " !location.search.includes('brush')"
    )


def test_keys_move_choose_and_compare(page: Page) -> None:
    page.open("/e/1/trials?sort=id")
    for key in "jxjx":
        page.press(key)
    page.until("[...document.querySelectorAll('.rows input:checked')].length === 2")
    page.press("c")
    page.until("location.pathname + location.search === '/compare?t=1,2'")
    assert page.until("document.querySelector('h1')?.textContent") == "Compare 2 trials"
    page.until("document.querySelector('.plot canvas')?.dataset.drawn === '2'")
    page.press("?")
    page.until("document.querySelector('dialog[open]')?.getAttribute('aria-label') === 'Keys'")
    page.click("Close")
    page.until("!document.querySelector('dialog')")
    page.press("g")
    page.until("location.pathname === '/'")
    page.press("l")
    page.until("location.pathname === '/e/1/trials'")
    page.until("!!document.querySelector('[aria-label=filter]')")
    page.press("/")
    assert page.until("document.activeElement.getAttribute('aria-label')") == "filter"


def test_dark_is_remembered(page: Page) -> None:
    page.open("/")
    before = page.tell("getComputedStyle(document.body).backgroundColor")
    page.press("d")
    dark = page.until(
        f"(c => c !== {json.dumps(before)} && c)(getComputedStyle(document.body).backgroundColor)"
    )
    page.open("/")
    assert page.tell("getComputedStyle(document.body).backgroundColor") == dark
    page.press("d")
    page.until(f"getComputedStyle(document.body).backgroundColor === {json.dumps(before)}")


def test_scripts_in_notes_names_logs_and_code_stay_text(page: Page) -> None:
    page.open("/e/1/trials", ".note")
    assert (page.text(".note strong"), "<script>alert(2)</script>" in page.text(".note")) == (
        "bold",
        True,
    )
    page.open("/t/1/metrics", "figure")
    assert "<b>odd</b>" in page.tell(
        "[...document.querySelectorAll('figcaption b')].map(b => b.textContent)"
    )
    page.open("/t/1/logs", ".log pre")
    page.until("document.querySelector('.log').textContent.includes('<script>alert(1)</script>')")
    page.open("/e/1/code?file=evil.html", ".code pre")
    assert "<script>alert(3)</script>" in page.text(".code")
    assert page.tell("document.scripts.length") == 1


def test_log_search_lists_lines_that_link_to_their_place(page: Page) -> None:
    page.open("/t/1/logs", ".log pre")
    page.type("search the log", "TRAINING with")
    page.until(
        "document.querySelectorAll('.hits li').length >= 1 && location.search.includes('find=')"
    )
    page.tell("document.querySelector('.hits button').click()")
    page.until("location.search.includes('at=')")


def test_every_rung_and_what_was_defaulted_are_shown(page: Page) -> None:
    page.open("/e/1/search", "svg .bar")
    assert page.tell("document.querySelectorAll('svg g .bar.good').length") == 2
    page.open("/e/1/config", ".config tr")
    rows = (
        "[...document.querySelectorAll('.config tr{}')].map(r => r.querySelector('th').textContent)"
    )
    assert "searcher.metric" in page.tell(rows.format(":not(.dim)"))
    assert "max_restarts" in page.tell(rows.format(".dim"))


def test_a_zoom_asks_for_its_stretch_and_is_a_link(page: Page) -> None:
    page.open("/t/1/metrics?zoom=1~3", ".plot canvas")
    page.until(
        "performance.getEntriesByType('resource').some(e => e.name.includes('/series') &&"
        " e.name.includes('from=1'))"
    )
    page.click("Whole")
    page.until("!location.search.includes('zoom')")


def test_changes_are_saved_and_other_pages_show_them(page: Page) -> None:
    page.open("/")
    page.server.ask("/api/v1/experiments/1", "PATCH", {"name": "by another page"})
    page.until("document.querySelector('.rows tbody').textContent.includes('by another page')")
    page.open("/e/1/trials", ".note")
    page.click("Rename")
    page.type("name", "small")
    page.click("Save")
    page.until("document.querySelector('h1').textContent.includes('small')")
    page.click("Archive")
    page.until("[...document.querySelectorAll('button')].some(b => b.textContent === 'Unarchive')")
    page.open("/", "main .tabled")
    page.until("document.querySelector('.tabled .counted').textContent === '0 of 1'")
    page.open("/e/1/trials", ".note")
    page.click("Unarchive")
    page.until("[...document.querySelectorAll('button')].some(b => b.textContent === 'Archive')")


def test_fork_is_checked_while_typing_and_delete_is_confirmed(page: Page) -> None:
    page.open("/e/1/trials", ".note")
    page.click("Fork")
    good = page.until("document.querySelector('dialog textarea')?.value")
    page.type("configuration", f"{good}\nunknown_key: 1\n")
    page.until("document.querySelector('.problems').textContent.includes('unknown_key')")
    assert page.tell(
        "[...document.querySelectorAll('dialog button')].find(b => b.textContent ==="
        " 'Start').disabled"
    )
    page.click("Back")
    page.click("Delete")
    page.until("document.querySelector('dialog')?.textContent.includes('cannot be taken back')")
    page.click("Back")
    page.until("!document.querySelector('dialog')")


def test_page_reports_a_lost_server_and_a_missing_sign_in(page: Page, made: Path) -> None:
    short = start(made)
    elsewhere = Page(page.browser, short)
    elsewhere.open("/", "[role=alert]")
    assert "open the address that" in elsewhere.text("[role=alert]")
    assert elsewhere.tell("document.querySelector('.offline').hidden")
    stop(short)
    elsewhere.until("!document.querySelector('.offline').hidden")


def test_what_could_not_be_asked_once_is_asked_again(page: Page) -> None:
    """A machine whose network changes, as with a tunnel, breaks requests that are under way."""
    page.browser.block("*/api/v1/experiments*")
    try:
        page.open("/", "[role=alert]")
    finally:
        page.browser.block()
    page.until(
        "!!document.querySelector('.rows tbody a') && !document.querySelector('[role=alert]')"
    )


def test_nothing_is_asked_of_another_machine(page: Page) -> None:
    asked = "performance.getEntriesByType('resource').map(entry => entry.name)"
    for view in ("/e/1/trials", "/t/1/metrics"):
        page.open(view, "figure")
        assert {each.split("/")[2] for each in page.tell(asked)} == {
            f"127.0.0.1:{page.server.port}"
        }


def test_the_bundle_is_small_and_needs_no_loosened_policy(page: Page) -> None:
    page.open("/")
    loaded = page.tell("performance.getEntriesByType('resource').map(e => e.name)")
    scripts = [each.partition("/static/")[2] for each in loaded if each.endswith(".js")]
    assert "app.js" in scripts
    assert "team.js" not in scripts

    def size(**headers: str | None) -> int:
        found = (page.server.ask(f"/static/{name}", headers=headers) for name in scripts)
        return sum(len(each.body) for each in found)

    assert size(**{"Accept-Encoding": "gzip"}) <= 45_000
    assert size() <= 120_000
    assert "unsafe" not in page.server.ask("/").headers["content-security-policy"]
    assert "style=" not in page.server.ask("/").body.decode()


def test_tensorboard_is_a_link_once_it_is_there(page: Page) -> None:
    pytest.importorskip("tensorboard")
    page.open("/?sort=id")
    page.tell("document.querySelector('[aria-label=\"choose 1\"]').click()")
    page.click("TensorBoard 1")
    address = page.until(
        "[...document.querySelectorAll('a')].find(a => a.textContent === 'TensorBoard of 1')?.href"
    )
    page.browser.open(address, 1300)
    page.until("document.title === 'TensorBoard'")
