"""What `det plugins` says of a plugin whose requirements are not installed."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from tests.support.distributions import lay_out

from det_driver.cli import main

SOURCE = """
from det_core import Framework, hookimpl


class Sun:
    @hookimpl
    def det_frameworks(self):
        yield Framework(
            name="sun",
            trial="sun:Trial",
            load=print,
            requires=("det-lightning>=99", "no-such-sun>=1"),
        )
"""


def test_missing_requirement_is_installed_from_where_det_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No index has det's own packages, and anybody may take their names there."""
    lay_out(tmp_path, "det-sun", entry_points={"sun": "det_sun:Sun"}, modules={"det_sun": SOURCE})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "det_driver.cli._plugins.how_to_install", lambda name: f"python3 -m pip install ./{name}"
    )
    version = metadata.version

    def missing(name: str) -> str:
        if name == "det-lightning":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("det_driver.cli._plugins.metadata.version", missing)
    with pytest.raises(SystemExit):
        main(["plugins", "--no-load", "--json"])
    [row] = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "sun"]
    assert (
        "requires det-lightning>=99, which is not installed: python3 -m pip install ./det-lightning"
        in row["problem"]
    )
    assert "not installed: pip install 'no-such-sun>=1'" in row["problem"]
