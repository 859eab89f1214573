"""Writes the README's table of packages from their metadata.

python tests/repo/packages_table.py.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BEGIN, END = (
    "<!-- packages: written by tests/repo/packages_table.py -->\n",
    "<!-- end of packages -->\n",
)
ORDER = (
    "det-core",
    "det-node",
    "det-driver",
    "det-testing",
    "det-horovod",
    "det-torch",
    "det-keras",
    "det-estimator",
    "det-lightning",
)
"""The houses first, then frameworks; others follow by name."""


def table(root: Path = ROOT) -> str:
    """Return the table.

    Its columns: distribution, import name, description, what of this repository it needs, version.
    """
    projects = {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in root.glob("packages/*/pyproject.toml")
    }
    rows = ["| distribution | import | what it holds | needs | |", "|---|---|---|---|---|"]
    for folder, project in sorted(projects.items(), key=lambda each: _order(each[0])):
        about = project["project"]
        [package] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        needs = ", ".join(text.partition(">")[0] for text in about["dependencies"])
        name = about["name"]
        rows.append(
            f"| [`{name}`](packages/{folder}) | `{package.removeprefix('src/')}` |"
            f" {about['description'].rstrip('.')} | {needs} | {about['version']} |"
        )
    return "\n".join(rows) + "\n"


def written(text: str, root: Path = ROOT) -> str:
    """Return a README with today's table in its place."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}{table(root)}{END}{rest.partition(END)[2]}"


def _order(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
