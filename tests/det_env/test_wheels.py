"""What is installed here, as wheels: editable or not, the same files make the same wheel."""

from __future__ import annotations

import hashlib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from det_core.errors import DetError
from det_env.wheels import closure, ours, pack


def test_an_installed_distribution_is_packed_with_all_that_it_is(tmp_path: Path) -> None:
    wheel = pack(distribution("det-node"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        record = next(archive.read(name).decode() for name in names if name.endswith("/RECORD"))
    assert wheel.name == "det_node-0.1.0-py3-none-any.whl"
    assert "det_node/worker.py" in names
    assert "det_node-0.1.0.dist-info/entry_points.txt" in names
    assert not [name for name in names if name.endswith((".pyc", ".pth", "direct_url.json"))]
    assert {line.rpartition(",")[0].rpartition(",")[0] for line in record.split()} == set(names)


def test_the_same_files_are_the_same_wheel_and_packed_once(tmp_path: Path) -> None:
    one, other = (pack(distribution("det-training-core"), tmp_path / name) for name in "ab")
    assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()
    before = one.stat().st_mtime_ns
    assert pack(distribution("det-training-core"), tmp_path / "a").stat().st_mtime_ns == before


def test_a_distribution_that_is_not_dets_is_packed_too(tmp_path: Path) -> None:
    assert pack(distribution("msgspec"), tmp_path).name.startswith("msgspec-")


def test_what_det_stands_on_comes_along_and_nothing_else() -> None:
    stands_on = ["det-driver", "det-node", "det-training-core"]
    assert [each.name for each in closure(["det-driver", "not-installed"])] == stands_on
    assert {"det-training-core", "det-node", "det-driver", "det-env"} <= ours()


def test_an_editable_that_is_a_finder_is_refused(tmp_path: Path) -> None:
    info = tmp_path / "odd-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (info / "RECORD").write_text("__odd.pth,,\nodd-1.dist-info/METADATA,,\n")
    (info / "direct_url.json").write_text('{"url": "file:///home/me/odd%20one"}')
    (tmp_path / "__odd.pth").write_text("import __odd_finder\n")
    from importlib.metadata import PathDistribution

    with pytest.raises(
        DetError,
        match="odd is installed as an editable of /home/me/odd one in a way that cannot be packed",
    ):
        pack(PathDistribution(info), tmp_path)
