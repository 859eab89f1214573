"""Runs uv, with an environment that has pip's indexes, and shortens its messages."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from uv import find_uv_bin

from det_core.errors import DetError

_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
_OF_OTHERS = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "UV_PYTHON",
    "UV_PROJECT_ENVIRONMENT",
    "UV_SYSTEM_PYTHON",
    "PYTHONPATH",
    "PYTHONHOME",
)


def uv(*words: str | Path, root: Path, cwd: Path, loud: bool = False) -> str:
    """Run uv and return its output. Raises UvFailed with its message.

    With `loud` the output is printed, too.
    """
    try:
        done = subprocess.run(
            [find_uv_bin(), *map(str, words)],
            cwd=cwd,
            env=environ(os.environ, root),
            capture_output=True,
            check=False,
        )
    except (OSError, FileNotFoundError) as error:
        raise DetError(f"uv cannot be run: {error}; pip install --force-reinstall uv") from error
    output, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if loud:
        sys.stdout.write(output + errors)
        sys.stdout.flush()
    if done.returncode:
        raise UvFailed(sentence(errors or output))
    return output


def find_settings(root: Path) -> list[tuple[str, str]]:
    """Return uv's variables, on which the packages that it finds may depend."""
    return sorted(pair for pair in environ(os.environ, root).items() if pair[0].startswith("UV_"))


class UvFailed(DetError):
    """uv has failed. The text is its message."""


def sentence(text: str) -> str:
    """Return uv's message as one line, without the characters that it draws around it."""
    lines = [re.sub(r"^[\s×╰─▶├│]+", "", line) for line in text.splitlines()]
    kept = [
        line
        for line in lines
        if line and not line.startswith(("warning:", "Using ", "Resolved ", "Creating "))
    ]
    return (
        " ".join(" ".join(kept).split()).removeprefix("error: ").rstrip(".")
        or "it does not say why"
    )


def environ(base: Mapping[str, str], root: Path) -> dict[str, str]:
    """Return the environment variables for uv, with pip's indexes.

    The cache is on the same file system as the environments, so that files are linked. Settings of
    uv, in its variables or a uv.toml, take precedence over those of pip.
    """
    kept = {name: value for name, value in base.items() if name not in _OF_OTHERS}
    own = {"UV_CACHE_DIR": str(root / "uv"), "UV_NO_PROGRESS": "1"}
    files = [
        Path(base.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "uv" / "uv.toml",
        Path("/etc/uv/uv.toml"),
    ]
    pip = (
        {}
        if any(file.exists() for file in files) or "UV_CONFIG_FILE" in base
        else pip_variables(base)
    )
    return {**own, **pip, **kept, "PATH": _path(base)}


def _path(base: Mapping[str, str]) -> str:
    """Return PATH with pyenv's interpreters instead of its shims.

    A shim starts only the version that pyenv is set to.
    """
    pyenv = Path(base.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places = [
        place
        for place in base.get("PATH", os.defpath).split(os.pathsep)
        if Path(place) != pyenv / "shims"
    ]
    return os.pathsep.join(
        [*places, *map(str, sorted(pyenv.glob("versions/3.1[1-9]*/bin"), reverse=True))]
    )


def pip_variables(base: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings of indexes, from its files and variables, as uv's variables."""
    settings = dict[str, str]()
    for file in _pip_files(base):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            settings |= dict(parser[section]) if parser.has_section(section) else {}
    variables = {
        name: base.get(f"PIP_{name.upper().replace('-', '_')}", settings.get(name, ""))
        for name in _PIP
    }
    found = {name: " ".join(value.split()) for name, value in variables.items() if value.strip()}
    uv_variables = {
        _PIP[name]: value.replace(" ", ",") if name == "find-links" else value
        for name, value in found.items()
    }
    # With several indexes, pip takes the newest version of any of them.
    return uv_variables | (
        {"UV_INDEX_STRATEGY": "unsafe-best-match"} if "UV_INDEX" in uv_variables else {}
    )


def _pip_files(base: Mapping[str, str]) -> Sequence[Path]:
    """Return pip's configuration files. Later ones take precedence."""
    home = Path.home()
    user = Path(base.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        user,
        Path(sys.prefix) / "pip.conf",
    ]
    return [*files, *([Path(base["PIP_CONFIG_FILE"])] if base.get("PIP_CONFIG_FILE") else [])]
