"""`det plugin`: writes packages for new plugins, from templates that work unchanged."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from det_core.errors import DetError
from det_core.support.installation import CORE, sources
from det_driver.cli import Settings

from . import __version__

_PREFIX = "det-"
_OURS = {"core", "training-core", "node", "plugin", "plugins"}
_TEMPLATES = Path(__file__).parent / "templates"
# The suffix keeps tools from treating a template as the file that it becomes.
_SUFFIX = ".in"

KINDS = {
    "framework": ("Trains models of {name} with det.", CORE),
    "searcher": (
        "A searcher for det: which trials to make, and how long to train each.",
        CORE,
        "det-driver",
        "msgspec>=0.18",
    ),
    "storage": ("A place where det keeps checkpoints.", CORE),
    "engine": ("A place where det executes runs.", CORE, "det-node", "det-driver"),
    "observer": ("Gets the events of det's experiments and passes them on.", CORE, "msgspec>=0.18"),
}
"""The kinds of plugins, each with its package's summary and requirements."""


@click.group()
def plugin() -> None:
    """About plugins of your own."""


@plugin.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    required=True,
    help="What it brings: " + ", ".join(KINDS) + ".",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where its directory is made; here by default.",
)
@click.pass_obj
def new(settings: Settings, name: str, kind: str, directory: Path) -> None:
    """Write a complete package for a plugin NAME, which passes its own tests as it is.

    It is called det-NAME, with an entry point, hooks, a skeleton that works, a conformance test, a
    nox file and a README.
    """
    names = Names.of(name)
    _check_free(settings, names, kind)
    written = write_plugin(names, kind, directory)
    root = directory / names.distribution
    for file in written:
        sys.stdout.write(f"{file}\n")
    path = shlex.quote(str(root) if root.is_absolute() else f"./{root}")
    sys.stdout.write(
        f"\nit works as it is:\n  python3 -m pip install -e {path}\n  cd {path} && python3 -m"
        " pytest\n"
    )


def _check_free(settings: Settings, names: Names, kind: str) -> None:
    """Raise DetError if a name is registered already and conflicts with the new plugin."""
    plugins = settings.plugins
    for info in plugins.infos:
        if info.name == names.name:
            raise DetError(
                f"a plugin {names.name!r} is installed already, by {info.distribution}; give"
                " another name"
            )
    registered: dict[str, Mapping[str, object]] = {
        "framework": plugins.frameworks(),
        "searcher": plugins.searchers(),
        "storage": plugins.storages(),
        "engine": plugins.engines(),
        "observer": plugins.plugin_configs(),
    }
    if names.name in registered[kind]:
        raise DetError(f"the {kind} {names.name!r} is registered already; give another name")


@dataclass(frozen=True, kw_only=True)
class Names:
    """A name in its four forms: `my-thing`, `det-my-thing`, `det_my_thing` and `MyThing`."""

    name: str
    distribution: str
    package: str
    class_: str

    @classmethod
    def of(cls, given: str) -> Names:
        """Parse `my-thing` or `det-my-thing`.

        Raises DetError if it cannot be the name of a package.
        """
        name = given.removeprefix(_PREFIX)
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
            near = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).lower())
            example = near.strip("-0123456789").removeprefix(_PREFIX) or "my-plugin"
            raise DetError(
                f"{given!r} cannot be the name of a plugin; use lower-case letters, digits and"
                f" hyphens, such as {example!r}"
            )
        if name in _OURS:
            raise DetError(f"{given!r} is a name of det's own; give the plugin another")
        parts = name.split("-")
        class_ = "".join(part.capitalize() for part in parts)
        return cls(
            name=name,
            distribution=f"{_PREFIX}{name}",
            package="_".join(["det", *parts]),
            class_=class_,
        )


def write_plugin(names: Names, kind: str, parent: Path) -> list[Path]:
    """Write the package of a plugin into a new directory below `parent`, and return its files.

    The files are in order. Raises DetError if the directory exists: nothing is ever overwritten.
    """
    target = parent / names.distribution
    if target.exists() or target.is_symlink():
        raise DetError(f"{target} is there already; give another name, or another --dir")
    words = _words(names, kind)
    written = []
    try:
        for source in (_TEMPLATES / kind, _TEMPLATES / "common"):
            for template in source.rglob(f"*{_SUFFIX}"):
                path = (
                    str(template.relative_to(source))
                    .removesuffix(_SUFFIX)
                    .replace("PACKAGE", names.package)
                )
                file = target / (".gitignore" if path == "gitignore" else path)
                file.parent.mkdir(parents=True, exist_ok=True)
                text = template.read_text(encoding="utf-8")
                for word, value in words.items():
                    text = text.replace("{{" + word + "}}", value)
                file.write_text(text, encoding="utf-8")
                written.append(file)
    except OSError as error:
        raise DetError(
            f"cannot write {error.filename}: {error.strerror}; give another --dir"
        ) from error
    return sorted(written)


def _words(names: Names, kind: str) -> dict[str, str]:
    major, minor = (int(part) for part in __version__.split(".")[:2])
    bounds = f">={major}.{minor},<{major}.{minor + 1}"
    summary, *needs = KINDS[kind]
    return {
        "name": names.name,
        "distribution": names.distribution,
        "package": names.package,
        "class": names.class_,
        "summary": summary.format(name=names.name),
        "entry": ":plugin" if kind == "observer" else "",
        "needs": ", ".join(
            f'"{need}{bounds if need.startswith(_PREFIX) else ""}"' for need in needs
        ),
        "sources": json.dumps(sources("det-testing"), indent=4).replace('"\n]', '",\n]'),
        "testing": f"det-testing{bounds}",
    }
