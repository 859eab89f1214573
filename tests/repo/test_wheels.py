"""What a wheel says of itself, to an index and to whoever unpacks it.

Each is built, which takes a fraction of a second.
"""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from tests.repo.test_packages import PACKAGES, ROOT, distribution, import_name
from trove_classifiers import classifiers as known

OURS = ("3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Wheel:
    """A built wheel: its metadata and its files."""

    package: Path
    about: Message
    files: dict[str, bytes]


@pytest.fixture(scope="module", params=PACKAGES, ids=lambda package: package.name)
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    builder = WheelBuilder(str(request.param))
    [file] = builder.build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    [metadata] = [text for name, text in files.items() if name.endswith(".dist-info/METADATA")]
    return Wheel(request.param, Parser().parsestr(metadata.decode()), files)


def test_licence_is_spdx_and_its_text_is_in_the_wheel(wheel: Wheel) -> None:
    assert wheel.about["License-Expression"] == "Apache-2.0"
    assert wheel.about.get_all("License-File") == ["LICENSE"]
    [text] = [
        text for name, text in wheel.files.items() if name.endswith(".dist-info/licenses/LICENSE")
    ]
    assert text == (ROOT / "LICENSE").read_bytes()
    # An index refuses a wheel that says it twice.
    assert [
        each for each in wheel.about.get_all("Classifier") if each.startswith("License ::")
    ] == []


def test_an_index_can_show_and_find_it(wheel: Wheel) -> None:
    assert "\n" not in wheel.about["Summary"]
    assert wheel.about["Description-Content-Type"] == "text/markdown"
    assert len(wheel.about["Keywords"].split(",")) >= 3
    classifiers = wheel.about.get_all("Classifier")
    assert [
        each for each in classifiers if each not in known
    ] == []  # an index refuses what it does not know
    for wanted in (
        "Development Status ::",
        "Intended Audience ::",
        "Operating System :: POSIX :: Linux",
        "Topic ::",
    ):
        assert any(each.startswith(wanted) for each in classifiers), wanted


def test_classifiers_match_the_required_python_versions(wheel: Wheel) -> None:
    limit = re.fullmatch(r">=3\.11|<3\.12,>=3\.11", wheel.about["Requires-Python"])
    assert limit, wheel.about["Requires-Python"]
    named = [
        each.rpartition(" ")[2]
        for each in wheel.about.get_all("Classifier")
        if "Python :: 3." in each
    ]
    assert tuple(named) == (OURS[:1] if "<" in limit[0] else OURS)


def test_type_checkers_read_it(wheel: Wheel) -> None:
    assert f"{import_name(wheel.package)}/py.typed" in wheel.files
    assert "Typing :: Typed" in wheel.about.get_all("Classifier")


def test_it_holds_its_package_and_nothing_else(wheel: Wheel) -> None:
    tops = {name.partition("/")[0] for name in wheel.files}
    version = wheel.about["Version"]
    assert tops == {
        import_name(wheel.package),
        f"{distribution(wheel.package).replace('-', '_')}-{version}.dist-info",
    }
    assert [name for name in wheel.files if "__pycache__" in name or name.endswith(".pyc")] == []


def test_its_readme_leads_nowhere_that_an_index_does_not_have(wheel: Wheel) -> None:
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", str(wheel.about.get_payload())) == []


def test_wheel_has_no_project_links_before_a_release(wheel: Wheel) -> None:
    """`tools/release.py links` writes them in a release, as only then an address is known."""
    project = tomllib.loads((wheel.package / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert "urls" not in project
    assert wheel.about.get_all("Project-URL") is None


def test_a_wheel_can_be_built_again_from_the_source_distribution(tmp_path: Path) -> None:
    """So the licence has to be in that too, and not beside it.

    One is enough: they are of one kind.
    """
    [file] = SdistBuilder(str(PACKAGES[0])).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / Path(file).name.removesuffix(".tar.gz")
    [wheel] = WheelBuilder(str(unpacked)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
