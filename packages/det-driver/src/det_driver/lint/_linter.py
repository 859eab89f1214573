"""The rules by their codes, which of them are chosen, and what they find in an experiment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from det_core.config import ExperimentConfig
from det_core.errors import ConfigError, did_you_mean

from . import _practices, _state
from ._sources import Finding, Rule, Sources, Text

_FOUND = [
    each
    for module in (_practices, _state)
    for each in vars(module).values()
    if isinstance(each, Rule)
]
RULES: Mapping[str, Rule] = MappingProxyType(
    {each.code: each for each in sorted(_FOUND, key=lambda rule: rule.code)}
)


def chosen(select: Iterable[str], ignore: Iterable[str]) -> frozenset[str]:
    """Return the codes of the selected rules, or of all, without the ignored ones.

    Each entry is a code, a prefix of codes (`DET3`), a rule's name, or several of them separated by
    commas. Raises ConfigError for one that matches no rule.
    """
    wanted, left_out = (
        {code for entry in entries for word in entry.split(",") for code in _codes(word.strip())}
        for entries in (select, ignore)
    )
    return frozenset((wanted or RULES.keys()) - left_out)


def explained(word: str) -> Rule:
    """Return the rule of a code or a name. Raises ConfigError where there is none."""
    return RULES[_codes(word)[0]]


def _codes(word: str) -> list[str]:
    found = [
        code
        for code, rule in RULES.items()
        if word and (code.startswith(word.upper()) or rule.name == word)
    ]
    if not found:
        names = [*RULES, *(rule.name for rule in RULES.values())]
        near = did_you_mean(word if re.search("[a-z]", word) else word.upper(), names) or ";"
        raise ConfigError(f"no rule {word!r}{near} there are: {', '.join(RULES)}")
    return found


def lint(config: ExperimentConfig, root: Path, codes: Iterable[str] = ()) -> list[Finding]:
    """Return the places where an experiment's code breaks the chosen rules, by default all.

    They are sorted by file and line. No code is run.
    """
    sources = Sources.read(config, root)
    asked = frozenset(codes) or RULES.keys()
    found = {finding for finding in sources.unreadable if finding.code in asked}
    for rule in (RULES[code] for code in asked):
        for source in (*sources.modules, *sources.texts):
            if type(source) in rule.of:
                found.update(_places(rule, source, sources))
    return sorted(found)


def _places(rule: Rule, source: Text, sources: Sources) -> Iterator[Finding]:
    for place, message in rule.check(source, sources):
        if isinstance(place, tuple):
            line, column, last = *place, place[0]
        else:
            line, column = getattr(place, "lineno", 1), getattr(place, "col_offset", 0) + 1
            last = getattr(place, "end_lineno", line)
        if not source.silenced(rule.code, line, last):
            yield Finding(source.path, line, column, rule.code, message)
