"""Packs installed distributions as wheels, so that environments get det and its plugins from here.

They need not be published.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name

from det_core.errors import DetError

_NEVER = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
# All files have this time, so that the same files make the same wheel.
_TIME = (2020, 1, 1, 0, 0, 0)


def ours() -> set[str]:
    """Return the names of the installed distributions of det and of plugins."""
    return {
        canonicalize_name(entry.dist.name)
        for entry in entry_points(group="det")
        if entry.dist is not None
    }


def closure(names: Iterable[str]) -> list[Distribution]:
    """Return the installed distributions of these names, with the det packages that they require.

    "det packages" are det's distributions and plugins. Names that are not installed are left out.
    """
    known = ours()
    left, found = [canonicalize_name(name) for name in names], dict[str, Distribution]()
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        left += [each for each in _required(found[name]) if each in known]
    return [found[name] for name in sorted(found)]


def _required(found: Distribution) -> Iterator[NormalizedName]:
    for text in found.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def pack(found: Distribution, root: Path) -> Path:
    """Return the wheel of an installed distribution.

    It is kept below `root` while its files are unchanged.
    """
    files = sorted(_files(found))
    stats = [(name, path.stat()) for name, path in files]
    key = hashlib.sha256(
        json.dumps([(n, s.st_mtime_ns, s.st_size) for n, s in stats]).encode()
    ).hexdigest()[:16]
    place = root / "wheels" / key / _file_name(found)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        # Another process may write the same wheel.
        partial = place.with_name(f".{place.name}.{os.getpid()}")
        _write(partial, files, f"{_stem(found)}.dist-info/RECORD")
        partial.rename(place)
    return place


def _files(found: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution with their names in a wheel.

    Files of an editable installation are in its source directory.
    """
    info = f"{_stem(found)}.dist-info/"
    if found.files is None:
        raise DetError(
            f"{found.name} was installed without a list of its files; install it again with pip"
            " or uv"
        )
    sources = dict[str, Path]()
    for file in found.files:
        path = Path(str(found.locate_file(file)))
        name = file.as_posix()
        if name.endswith(".pth"):
            sources |= _below(found, path)
        elif ".dist-info/" in name:
            inner = name.partition(".dist-info/")[2]
            if inner not in _NEVER and path.is_file():
                yield info + inner, path
        elif not name.startswith("..") and not name.endswith(".pyc") and path.is_file():
            yield name, path
    yield from sources.items()


def _below(found: Distribution, pth: Path) -> dict[str, Path]:
    lines = [line for line in pth.read_text().splitlines() if line.strip()]
    places = [Path(line) for line in lines if Path(line).is_absolute() and Path(line).is_dir()]
    if len(places) != len(lines):
        origin = json.loads(found.read_text("direct_url.json") or "{}").get("url", "")
        raise DetError(
            f"{found.name} is installed as an editable of {unquote(urlparse(origin).path)} in a way"
            " that cannot be packed; name that directory in environment.requirements, or install"
            " it without -e"
        )
    return {
        file.relative_to(place).as_posix(): file
        for place in places
        for file in place.rglob("*")
        if file.is_file()
        and "__pycache__" not in file.parts
        and not any(p.endswith(".egg-info") for p in file.parts)
    }


def _write(wheel: Path, files: Iterable[tuple[str, Path]], record: str) -> None:
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, path in files:
            data = path.read_bytes()
            _add(archive, name, data, path.stat().st_mode & 0o111)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
        _add(archive, record, "".join([*rows, f"{record},,\n"]).encode(), 0)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, executable: int) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


def _stem(found: Distribution) -> str:
    return f"{canonicalize_name(found.name).replace('-', '_')}-{found.version}"


def _file_name(found: Distribution) -> str:
    lines = (found.read_text("WHEEL") or "").splitlines()
    tags = [
        line.partition(":")[2].strip().split("-") for line in lines if line.startswith("Tag:")
    ] or [["py3", "none", "any"]]
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    return f"{_stem(found)}-{tag}.whl"
