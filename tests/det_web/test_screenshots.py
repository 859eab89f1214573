"""The pictures in the guide: they can be made from what runs, are small, and are all shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.det_server.walk import SHOWN
from tests.det_web.browsing import signed_in
from tests.det_web.conftest import Server
from tests.det_web.screenshots import IMAGES, MOST_BYTES, MOST_TOGETHER, PICTURES, VIEWS, make
from tests.repo.browser import CHROMIUM


@pytest.mark.parametrize(("guide", "pictures"), [("page", PICTURES), ("server", SHOWN)])
def test_each_guide_shows_its_pictures(guide: str, pictures: Sequence[str]) -> None:
    text = (IMAGES.parent / f"{guide}.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[[^]]+\]\(images/(\w+)\.webp\)", text) == [*pictures]


def test_pictures_are_small() -> None:
    sizes = {file.stem: file.stat().st_size for file in IMAGES.iterdir()}
    assert sizes.keys() == {*PICTURES, *SHOWN}
    assert max(sizes.values()) <= MOST_BYTES
    assert sum(sizes.values()) <= MOST_TOGETHER


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
def test_pictures_are_made_of_a_home_with_a_search(server: Server, tmp_path: Path) -> None:
    with signed_in(server, tmp_path / "profile") as page:
        names = make(page, tmp_path)
        assert page.tell("problems") == []
    # No trial of this home has failed.
    assert {*names, "failed"} == VIEWS.keys()
    made = {name: (tmp_path / f"{name}.webp").read_bytes() for name in names}
    assert {each[:4] + each[8:12] for each in made.values()} == {b"RIFFWEBP"}
    assert len(set(made.values())) == len(names)
