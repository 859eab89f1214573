"""Converts between plain data or JSON and a configuration that may be incomplete."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import ConfigError
from ._experiment import ExperimentConfig
from ._extensions import Extensions
from ._searchers import RANGES, Length
from .decoding import Decoding
from .faults import Path, shown
from .fields import fields_of

MASK = "********"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = frozenset(
    (
        *("secrets", "passwords", "passphrase", "pwd", "credential", "credentials", "creds"),
        *("jwt", "apikey", "apitoken", "authorization"),
    )
)
"""The words that make any name the name of a secret."""
_SERVICES = (
    *("anthropic", "aws", "azure", "clearml", "comet", "github", "gitlab", "google", "hf", "hub"),
    *("huggingface", "mlflow", "neptune", "openai", "slack", "wandb"),
)
_KEYS = frozenset(
    (
        *("access", "account", "api", "auth", "encryption", "private", "secret", "signing", "ssh"),
        *_SERVICES,
    )
)
_TOKENS = frozenset(
    ("access", "api", "auth", "bearer", "bot", "refresh", "security", "session", *_SERVICES)
)
_OPTIONS = re.compile(r"(?i)(?:(?:.*[_-])?(?:pass|pat|pw|cookie)|(?:id[_-])?token)")
"""The names of options that name other things in models, as `pw` and `id_token` do."""
_VARIABLES = re.compile(r"(?:.*[_-])?(?:PASS|PAT|AUTH|COOKIE)")
"""The names of variables that end in a word that means something else in lower case."""
_LOOSE = re.compile(
    r"(?i)[\w-]*(?:secret|token|passw(?:or)?d|passphrase|credentials?|[_-]key)(?:[_-][\w-]*)?"
    r"|(?:[\w-]*[_-])?(?:sig|signature)"
)
_SHORTEST = 6
"""Shorter secrets are not searched in texts, as they are likely to be other words there."""
_COUNTED = re.compile(r"(?i)(?:max|min|num|n|total)[_-]")
_GIVEN = re.compile(r"(?<![\w-])([\w-]+)=(?=.)", re.DOTALL)
_OPTION = re.compile(r"(?<!\S)--?([\w-]+)")
_SHELL = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+""", re.DOTALL)
_CLOSED = re.compile(r"""(?:[^"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')*""", re.DOTALL)
"""Texts that the shell can read. The module shlex takes a hundred times longer for a log."""
_UNCLOSED = re.compile(r"""["'].*|\S+""")
_PLAIN = re.compile(r"\S+")
_QUOTED = re.compile(r"""(["'])((?:(?!\1)[^\\]|\\.)*)\1""", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\{\w+\}|[A-Z_][A-Z\d_]*)")
"""A variable in a command, such as $HF_TOKEN, is no secret."""
# The user of an address of http(s) is a token if it is long. A password may hold / and @.
_IN_A_URL = re.compile(
    r"(://[^/:@\s]*:)(?:[^/\s]+@|(?!\d+/)[^@\s]+@)|(https?://)[^/:@\s]{16,}@", re.IGNORECASE
)


def _is_secret(name: str, *, surely: bool = False) -> bool:
    """Return whether a name is that of a secret, as HF_TOKEN and secretKey are.

    With `surely`, those are left out that name other things in models, as pad_token and token do.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    pairs = pairwise(words)
    if (
        not _SECRET_WORDS.isdisjoint(words)
        or any(word.endswith(("secret", "password", "passwd")) for word in words)
        or any(
            (after in ("key", "keys") and before in _KEYS)
            or (after in ("token", "tokens") and before in _TOKENS)
            for before, after in pairs
        )
    ):
        return True
    if surely or _COUNTED.match(name):
        return False
    bare = name.rstrip("0123456789")
    return bool(
        _is_option(bare)
        or _VARIABLES.fullmatch(bare)
        or _LOOSE.fullmatch(bare)
        or (bare.endswith("TOKENS") and bare.isupper())
    )


def _is_option(name: str) -> bool:
    """Return whether the option `--name` of a command is followed by a secret."""
    return _is_secret(name, surely=True) or bool(
        _OPTIONS.fullmatch(name) and not _COUNTED.match(name)
    )


def to_builtins(value: Any, *, masked: bool = False) -> Any:
    """Return a configuration, or a part of one, as plain data.

    With `masked`, secrets are masked.
    """
    if isinstance(value, Length):
        return {value.unit: value.n}
    if isinstance(value, Struct):
        return _struct(value, masked)
    if isinstance(value, dict):
        return {key: to_builtins(item, masked=masked) for key, item in value.items()}
    if isinstance(value, list | tuple):
        plain = [to_builtins(item, masked=masked) for item in value]
        return _without_arguments(plain) if masked else plain
    if isinstance(value, str):
        return _blotted(value) if masked else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return msgspec.to_builtins(value)


def _struct(value: Struct, masked: bool) -> dict[str, Any]:
    config = value.__struct_config__
    plain: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
    for field in fields_of(type(value)).values():
        item = getattr(value, field.name)
        if item is None or item is True or item is False:
            plain[field.key] = item
            continue
        if "rest" in field.type.marks:
            plain |= to_builtins(item, masked=masked)
        else:
            secret = masked and item is not None and "secret" in field.type.marks
            if masked and field.key == "entrypoint" and isinstance(item, str):
                plain[field.key] = _blotted(item, command=True)
                continue
            plain[field.key] = MASK if secret else to_builtins(item, masked=masked)
            if masked and "secrets" in field.type.marks:
                plain[field.key] = _without_named(plain[field.key])
            elif masked and "named_secrets" in field.type.marks:
                plain[field.key] = _without_named(plain[field.key], surely=True)
    return plain


def _without_named(value: Any, named: bool = False, *, surely: bool = False) -> Any:
    """Return a free map with the texts masked whose keys name a secret."""
    if isinstance(value, dict):
        return {
            key: _without_named(item, named or _is_secret(key, surely=surely), surely=surely)
            # The type of a hyperparameter is not secret.
            if (key, item in [*RANGES]) != ("type", True)
            else item
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_named(item, named, surely=surely) for item in value]
    return MASK if named and isinstance(value, str) else value


def _without_arguments(plain: list[Any]) -> list[Any]:
    """Mask the words of a command that follow an option such as `--password`."""
    for number, (before, item) in enumerate(pairwise(plain), 1):
        if isinstance(before, str) and isinstance(item, str) and not item.startswith("-"):
            option = _OPTION.fullmatch(before)
            if option and _is_option(option[1]):
                plain[number] = MASK
    return plain


def _blotted(text: str, *, command: bool = False) -> str:
    """Mask the secret in `HF_TOKEN=…`, `--token …` and `https://user:password@host`.

    The name decides. The secret is a word, as the shell reads it. After a name at the beginning or
    within a word, as in `Server=…;Password=…`, it is the rest of a text that is no command.
    """
    for given in () if command else _GIVEN.finditer(text):
        before = text[: given.start()]
        if before[-1:].isspace() or not _is_secret(given[1]):
            continue
        if not _REFERENCE.fullmatch(text, given.end()):
            text = text[: given.end()] + MASK
        break
    return _IN_A_URL.sub(lambda found: f"{found[1] or found[2]}{MASK}@", _without_words(text))


def _without_words(text: str, words: re.Pattern[str] = _SHELL) -> str:
    """Mask the words of a command that an option or `NAME=` before them shows to be secret."""
    secret = False

    def blot(found: re.Match[str]) -> str:
        nonlocal secret
        word = found[0]
        if secret and not word.startswith("-"):
            secret = False
            return _hidden(word)
        option = _OPTION.fullmatch(word)
        secret = option is not None and _is_option(option[1])
        quoted = _QUOTED.fullmatch(word)
        for given in _GIVEN.finditer(word):
            # Otherwise it is a command in quotes.
            nested = quoted and given.start() == 1 and not given[1].startswith("-")
            spaced = word[: given.start()][-1:].isspace()
            if not nested and not spaced and _is_secret(given[1]):
                end = len(word) - (quoted is not None)
                return word[: given.end()] + _hidden(word[given.end() : end]) + word[end:]
        if quoted:
            return quoted[1] + _without_words(quoted[2]) + quoted[1]
        if any(letter.isspace() for letter in word):
            # A quote that is an apostrophe, or one that is not closed.
            return _without_words(word, _PLAIN)
        return word

    if words is _SHELL and not _CLOSED.fullmatch(text):
        words = _UNCLOSED
    return words.sub(blot, text)


def _hidden(word: str) -> str:
    quoted = _QUOTED.fullmatch(word)
    mark, bare = (quoted[1], quoted[2]) if quoted else ("", word)
    if not bare or (mark != "'" and _REFERENCE.fullmatch(bare)):
        return word
    # It separates commands, or words of a sentence.
    end = "" if mark else bare[len(bare.rstrip(";,")) :]
    return f"{mark}{MASK}{mark}{end}"


def masked(config: Any) -> dict[str, Any]:
    """Return a configuration as plain data with its secrets masked.

    It can be printed, and stored in checkpoints.
    """
    plain: dict[str, Any] = to_builtins(config, masked=True)
    return plain


def without_secrets(text: str, config: Any, *, shortest: int = _SHORTEST) -> str:
    """Return a text with the configuration's secrets masked, as `secret_masker` does.

    For example, the text is the file that the configuration was read from.
    """
    return secret_masker(config, shortest=shortest)(text)


def secret_masker(config: Any, *, shortest: int = _SHORTEST) -> Callable[[str], str]:
    """Return a function that masks the configuration's secrets in a text.

    They are whole words, as other texts may hold the same letters by chance. Secrets of fewer
    characters than `shortest` are left.
    """
    found: set[str] = set()
    for _, plain, blotted in _find_masked(to_builtins(config), masked(config)):
        # A text may hold several.
        parts = map(re.escape, blotted.split(MASK))
        if matched := re.fullmatch("(.+?)".join(parts), plain, re.DOTALL):
            found.update(matched.groups())
    secrets = sorted((s for s in found if len(s) >= max(1, shortest)), key=len, reverse=True)
    # In JSON, a line may end as \n before a secret.
    words = (
        (r"(?:(?<!\w)|(?<=\\[bfnrt]))" if re.match(r"\w", secret) else "")
        + re.escape(secret)
        + (r"(?!\w)" if re.match(r"\w", secret[-1]) else "")
        for secret in secrets
    )
    pattern = re.compile("|".join(words))
    return lambda text: pattern.sub(MASK, text) if secrets else text


def find_secrets(config: Any) -> list[tuple[Path, str]]:
    """Return the texts that `masked` masks, with their paths. `with_secrets` restores them."""
    return [(path, plain) for path, plain, _ in _find_masked(to_builtins(config), masked(config))]


def with_secrets(plain: Any, secrets: Iterable[tuple[Path, str]]) -> Any:
    """Return a masked configuration, plain data, with its secrets restored."""
    known = {tuple(path): text for path, text in secrets}

    def restore(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: restore(each, (*path, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [restore(each, (*path, number)) for number, each in enumerate(value)]
        return known.get(path, value) if isinstance(value, str) and MASK in value else value

    return restore(plain, ())


def masked_hparams(hparams: Mapping[str, Any], config: ExperimentConfig) -> dict[str, Any]:
    """Return a trial's hyperparameters with the secrets masked that the configuration gives it."""
    return _with_constants(hparams, config, 0)


def hparams_with_secrets(hparams: Mapping[str, Any], config: ExperimentConfig) -> dict[str, Any]:
    """Return the hyperparameters that `masked_hparams` masked. `config` has its secrets."""
    return _with_constants(hparams, config, 1)


def _with_constants(
    hparams: Mapping[str, Any], config: ExperimentConfig, which: int
) -> dict[str, Any]:
    """Replace the constants of a configuration by their masked form, or back.

    Values that differ from the constant are left as they are.
    """
    plain, blotted = (
        to_builtins(config.hyperparameters),
        masked(config)["hyperparameters"],
    )

    def replaced(values: Mapping[str, Any], plain: Any, blotted: Any) -> dict[str, Any]:
        found = {}
        for name, value in values.items():
            own, other = plain.get(name), blotted.get(name)
            if not isinstance(own, dict) or own == other:
                found[name] = value
            elif own.get("type") == "const":
                pair = other["val"], own["val"]
                found[name] = pair[which] if value == pair[1 - which] else value
            elif "type" not in own and isinstance(value, dict):
                found[name] = replaced(value, own, other)
            else:
                found[name] = value
        return found

    return dict(hparams) if plain == blotted else replaced(hparams, plain, blotted)


def _find_masked(plain: Any, blotted: Any, path: Path = ()) -> Iterator[tuple[Path, str, str]]:
    pairs: Iterable[tuple[Any, Any, Any]] = ()
    if isinstance(plain, str) and plain != blotted:
        yield path, plain, str(blotted)
    elif isinstance(plain, dict):
        pairs = [(key, value, blotted[key]) for key, value in plain.items()]
    elif isinstance(plain, list):
        pairs = [(number, *both) for number, both in enumerate(zip(plain, blotted, strict=True))]
    for key, value, other in pairs:
        yield from _find_masked(value, other, (*path, key))


def to_json(config: Any) -> str:
    """Return the complete configuration as JSON, with its secrets. `from_json` reads it."""
    return json.dumps(to_builtins(config), allow_nan=False)


@dataclass(frozen=True)
class Notice:
    """One sentence for a person, and the keys that it is about."""

    message: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Parsed:
    """A configuration and the notices for its reader."""

    config: ExperimentConfig
    notices: tuple[Notice, ...]


def parse(
    mapping: Mapping[str, Any], *, extensions: Extensions | None = None, name: str | None = None
) -> Parsed:
    """Read a mapping. Required keys may be missing, and rules between keys are not checked.

    `name` identifies it in errors. Raises ConfigError with every problem found. The driver's `load`
    checks a complete experiment.
    """
    before = f"{name}: " if name else ""
    try:
        data = json.loads(json.dumps(mapping, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        text = (
            f"{before}the configuration is not plain data: {error}; give text, numbers, lists and"
            " maps"
        )
        raise ConfigError(text) from None
    return _decoded(data, extensions or Extensions(), before)


def from_json(text: str | bytes, *, extensions: Extensions | None = None) -> ExperimentConfig:
    """Read the output of `to_json`. Without `extensions`, settings of plugins are not checked."""
    try:
        data = json.loads(text)
        # Half a character, which a configuration does not have, is in no encoding.
        json.dumps(data, ensure_ascii=False).encode()
    except ValueError as error:
        raise ConfigError(
            f"the stored configuration is not JSON: {error}; submit the experiment again"
        ) from None
    searcher = data.get("searcher") if isinstance(data, dict) else None
    if isinstance(searcher, dict) and searcher.get("name") == "auto":
        # Experiments of earlier versions do not say which choice they began with.
        searcher.setdefault("choice", 1)
    return _decoded(data, extensions or Extensions(open=True), "").config


def _decoded(data: Any, extensions: Extensions, before: str) -> Parsed:
    if not isinstance(data, dict):
        raise ConfigError(
            f"{before}the configuration is {shown(data)}; give a map such as searcher: {{name:"
            " single, …}"
        )
    decoding = Decoding(extensions)
    config: ExperimentConfig = decoding.struct(data, ExperimentConfig, ())
    if wrong := [fault for fault in decoding.faults if not fault.late or fault.path[1:]]:
        raise ConfigError(*(f"{before}{fault}" for fault in wrong))
    return Parsed(config, without_effect(decoding.without_effect(config)))


def without_effect(keys: Iterable[str]) -> tuple[Notice, ...]:
    """Return a notice of the keys that are accepted but have no effect."""
    named = tuple(dict.fromkeys(keys))
    return (
        (Notice(f"accepted, but without effect in det: {', '.join(named)}", named),)
        if named
        else ()
    )
