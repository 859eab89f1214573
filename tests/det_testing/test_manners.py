"""A package that reaches for what is private to det-core is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from det_testing._manners import private_imports

SOURCES = {
    "__init__.py": (
        "from __future__ import annotations\nimport os._exit\nfrom det_core import Adapter,"
        " __version__\n"
    ),
    "inner/deep.py": (
        "def late():\n    from det_driver.search._random import RandomSearch\n    import"
        " det_core._plan\n"
    ),
    "other.py": (
        "from det_core.train.loop import _NO\nfrom . import _hooks\nfrom ._hooks import plugin\n"
    ),
}


def test_each_private_name_is_listed_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in SOURCES.items():
        file = tmp_path / "det_nosy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert private_imports("det_nosy") == [
        "deep.py:2: det_driver.search._random.RandomSearch",
        "deep.py:3: det_core._plan",
        "other.py:1: det_core.train.loop._NO",
    ]


def test_a_single_module_is_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "det_alone.py").write_text("from det_core._private import x\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert private_imports("det_alone") == ["det_alone.py:1: det_core._private.x"]


def test_core_may_use_its_own() -> None:
    assert private_imports("det_core") == []
