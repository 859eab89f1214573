"""Finds secrets in code that is about to be sent to others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from det_core.checkpoint.code import IGNORE_FILE, code_files

_LONGEST = 1 << 20
"""The most bytes of a file that are searched."""
_MOST_NAMED = 5
_TEMPLATES = ("*.example", "*.sample", "*.template", "*.dist")
_NAMES = {
    "passwords or tokens": (
        *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".pgpass", ".my.cnf"),
        *(".git-credentials", ".htpasswd", ".dockercfg", "kubeconfig", "secrets.y*ml"),
        *("*/.aws/credentials", "*/.docker/config.json", "*/.kube/config", "*/.kaggle/kaggle.json"),
    ),
    "a private key": (
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"),
        *("*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk"),
    ),
}
_WORD = rb"(?<![A-Za-z0-9_-])"
_CONTENTS = {
    "a private key": rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "keys of AWS": _WORD + rb"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"
    rb"|aws_secret_access_key[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}",
    "a token of GitHub": _WORD + rb"(?:gh[opsru]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})",
    "a token of GitLab": _WORD + rb"glpat-[A-Za-z0-9_-]{20}",
    "a token of Hugging Face": _WORD + rb"hf_[A-Za-z0-9]{34}(?![A-Za-z0-9])",
    "a token of Slack": _WORD + rb"xox[abeoprs]-[A-Za-z0-9-]{10}",
    "a webhook of Slack": rb"hooks\.slack\.com/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{20}",
    "a key of Google": _WORD + rb"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])",
    "a key of OpenAI or Anthropic": _WORD + rb"sk-(?:proj-|ant-|svcacct-)[A-Za-z0-9_-]{20}",
    "a key of Stripe": _WORD + rb"[sr]k_live_[A-Za-z0-9]{20}",
    "a token of PyPI": _WORD + rb"pypi-AgE[A-Za-z0-9_-]{50}",
    "a token of npm": _WORD + rb"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])",
}
_in_content = re.compile(
    b"|".join(b"(?P<k%d>%s)" % (n, each) for n, each in enumerate(_CONTENTS.values()))
)


def find_secrets(code: Path) -> dict[str, str]:
    """Return the files of a code directory that seem to hold secrets, with what each holds.

    They are found by well-known names, and by private keys and well-known prefixes of tokens in
    the first MiB of each file. What `.detignore` lists is not searched.
    """
    found = {}
    for name in code_files(code):
        with suppress(OSError):
            if what := _by_name(name) or _by_content(code / name):
                found[name.as_posix()] = what
    return found


def describe_secrets(found: Sequence[tuple[str, str]]) -> str:
    """Return a warning about files from `find_secrets` that are about to be sent."""
    listed = ", ".join(f"{name} ({what})" for name, what in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (
        f"the code seems to hold secrets, which everybody on the server could read: {listed}{more};"
        f" to leave them out, list them in {IGNORE_FILE}"
    )


def _by_name(path: Path) -> str:
    name, whole = path.name.lower(), f"/{path.as_posix().lower()}"
    if any(fnmatchcase(name, pattern) for pattern in _TEMPLATES):
        return ""
    for what, patterns in _NAMES.items():
        if any(fnmatchcase(whole if "/" in each else name, each) for each in patterns):
            return what
    return ""


def _by_content(file: Path) -> str:
    with file.open("rb") as opened:
        match = _in_content.search(opened.read(_LONGEST))
    return list(_CONTENTS)[int((match.lastgroup or "k0")[1:])] if match else ""
