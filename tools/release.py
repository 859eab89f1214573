"""What a release needs: `python -m tools.release`, from the root of the repository.

    version X.Y.Z   moves the versions of all packages, and what they ask of one another
    check [TAG]     says what is not ready to be published as that version
    links URL       gives every package the links of the repository at URL
    build           puts the wheel and the source distribution of every package into dist/

All packages share one version. It is written in their metadata and modules, in the requirements
between them, in the plugins below examples/, in the README's table, in CITATION.cff, and on pages
and in tests that quote them.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.repo.packages_table import written

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((?:a|b|rc)\d+)?")
PROJECT_VERSION = re.compile(r'^(version = ")(.+)(")$', re.MULTILINE)
MODULE_VERSION = re.compile(r'^(__version__ = ")(.+)(")$', re.MULTILINE)
QUOTING = (
    "docs/**/*.md",
    "examples/plugins/*/pyproject.toml",
    "tests/det_testing/test_scaffold.py",
    "tests/repo/test_example_plugins.py",
)
UNPUBLISHED = ("README.md", "docs/guides/install.md")
"""Pages that say that nothing is published, until the first release."""


def bounds(version: str) -> str:
    """Return what a package asks of another that was released with it.

    Before 1.0 a minor version may break what the last had.
    """
    match = VERSION.fullmatch(version)
    if match is None:
        raise SystemExit(f"{version!r} is no version; give one such as 0.2.0 or 1.0.0rc1")
    major, minor = int(match[1]), int(match[2])
    low = f"{major}.{minor}.0{match[4]}" if match[4] and match[3] == "0" else f"{major}.{minor}"
    return f">={low},<0.{minor + 1}" if major == 0 else f">={low},<{major + 1}"


def packages(root: Path) -> dict[str, Path]:
    """Return the folders of all packages by the names of these."""
    return {
        file.parent.name: file.parent for file in sorted(root.glob("packages/*/pyproject.toml"))
    }


def distributions(root: Path) -> dict[str, Path]:
    """Return the folders of all packages by the names under which an index has them."""
    return {
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "name"
        ]: folder
        for folder in packages(root).values()
    }


def versions(root: Path) -> dict[str, str]:
    """Return every place where a package says its version, with what it says there."""
    found = {}
    for folder in packages(root).values():
        for file in (folder / "pyproject.toml", *folder.glob("src/*/__init__.py")):
            pattern = PROJECT_VERSION if file.suffix == ".toml" else MODULE_VERSION
            for match in pattern.finditer(file.read_text(encoding="utf-8")):
                found[str(file.relative_to(root))] = match[2]
    return found


def move(root: Path, version: str) -> list[str]:
    """Write a version wherever there is one; return the files that changed."""
    new = bounds(version)
    [before] = set(versions(root).values()) or {version}
    old = bounds(before)
    names = "|".join(distributions(root).keys() | packages(root).keys())
    quoted = re.compile(rf"\b((?:{names}) +){re.escape(before)}(?![\w.])")
    changed = []
    for file in _files(root):
        text = file.read_text(encoding="utf-8")
        moved = text.replace(old, new)
        if file.is_relative_to(root / "packages"):
            pattern = PROJECT_VERSION if file.suffix == ".toml" else MODULE_VERSION
            moved = pattern.sub(rf"\g<1>{version}\g<3>", moved)
        moved = quoted.sub(rf"\g<1>{version}", moved)
        if file.name == "CITATION.cff":
            moved = re.sub(r"^version: .*$", f"version: {version}", moved, flags=re.MULTILINE)
        if file.name == "CHANGELOG.md":
            moved = re.sub(
                r"^## Unreleased: .*$", f"## Unreleased: {version}", text, flags=re.MULTILINE
            )
        if moved != text:
            file.write_text(moved, encoding="utf-8")
            changed.append(str(file.relative_to(root)))
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    if (table := written(text, root)) != text:
        readme.write_text(table, encoding="utf-8")
        changed.append("README.md")
    return changed


def _files(root: Path) -> Iterator[Path]:
    for folder in packages(root).values():
        yield folder / "pyproject.toml"
        yield from folder.glob("src/*/__init__.py")
    for pattern in QUOTING:
        yield from (file for file in sorted(root.glob(pattern)) if "_build" not in file.parts)
    yield from (root / "CITATION.cff", root / "CHANGELOG.md")


def unready(root: Path, tag: str | None = None) -> list[str]:
    """Return, in a sentence each, what is not ready to be published.

    With a tag, as that version.
    """
    said = versions(root)
    version = tag.removeprefix("v") if tag else said.get("packages/det-core/pyproject.toml", "")
    found = [
        f"{file} says {other}, and not {version}"
        for file, other in said.items()
        if other != version
    ]
    for folder in packages(root).values():
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        ours = re.findall(
            r'"(det-[a-z-]+)(?:\[[\w,]+\])?([^"]*)"', text.partition("dependencies")[2]
        )
        found += [
            f"{folder.name} asks for {name}{asked}, and not for {name}{bounds(version)}"
            for name, asked in ours
            if name in distributions(root) and asked != bounds(version)
        ]
    heading = rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading '## {version}, {datetime.date.today()}'")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        found.append(f"CITATION.cff does not say version: {version}")
    found += [
        f"{name} says that nothing is on PyPI yet; say how to install what is published"
        for name in UNPUBLISHED
        if "on PyPI yet" in (root / name).read_text(encoding="utf-8")
    ]
    return found


def link(root: Path, url: str) -> None:
    """Write the links of the repository at `url` into every package's metadata.

    They are known where a release is built.
    """
    url = url.rstrip("/")
    if not url.startswith("https://"):
        raise SystemExit(
            f"{url!r} is no address of a repository; give one that begins with https://"
        )
    for name, folder in packages(root).items():
        links = {
            "Homepage": url,
            "Documentation": f"{url}/tree/main/docs",
            "Source": f"{url}/tree/main/packages/{name}",
            "Changelog": f"{url}/blob/main/CHANGELOG.md",
            "Issues": f"{url}/issues",
        }
        table = "".join(f'{key} = "{value}"\n' for key, value in links.items())
        file = folder / "pyproject.toml"
        text = re.sub(r"\[project\.urls\]\n(?:.+\n)*\n", "", file.read_text(encoding="utf-8"))
        file.write_text(
            text.replace(
                "[project.entry-points", f"[project.urls]\n{table}\n[project.entry-points", 1
            ),
            encoding="utf-8",
        )


def build(root: Path) -> None:
    """Build every package as an index wants it; `build` has to be installed."""
    for folder in packages(root).values():
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", str(root / "dist"), str(folder)], check=True
        )


def main(arguments: list[str] | None = None) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release", description="What a release needs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version", help="move the versions of all packages").add_argument("version")
    commands.add_parser("check", help="say what is not ready").add_argument("tag", nargs="?")
    commands.add_parser("links", help="give every package the repository's links").add_argument(
        "url"
    )
    commands.add_parser("build", help="build every package into dist/")
    asked = parser.parse_args(arguments)
    root = Path.cwd()
    match asked.command:
        case "version":
            print(
                "\n".join(move(root, asked.version)) or f"everything says {asked.version} already"
            )
        case "check":
            if found := unready(root, asked.tag):
                raise SystemExit("\n".join(found))
        case "links":
            link(root, asked.url)
        case "build":
            build(root)


if __name__ == "__main__":
    main()
