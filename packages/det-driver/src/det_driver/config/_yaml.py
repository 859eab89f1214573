"""YAML 1.2 through PyYAML's safe C loader, with the place of every key and value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from det_core.config import to_builtins
from det_core.config.faults import Path, dotted, shown
from det_core.errors import ConfigError

if TYPE_CHECKING:
    import yaml

Mark = tuple[int, int]
DEEPEST = 64
_CORE = "tag:yaml.org,2002:"
_STR, _MERGE, _MAP, _SEQ = (f"{_CORE}{name}" for name in ("str", "merge", "map", "seq"))
_MOST_VALUES = 200_000
_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)
_PATTERNS = {f"{_CORE}{name}": re.compile(rf"(?:{pattern})\Z") for name, pattern, _ in _SCALARS}
RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = {
    start.replace("\0", ""): [
        (f"{_CORE}{name}", _PATTERNS[f"{_CORE}{name}"])
        for name, _, starts in _SCALARS
        if start in starts
    ]
    for start in dict.fromkeys("".join(starts for _, _, starts in _SCALARS))
}
"""For each first character of a scalar, the possible tags and their patterns.

They are those of YAML 1.2's core schema.
"""


@dataclass
class Document:
    """A parsed file: its data, and the line and column, from 1, of each key and value."""

    data: Any
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    problems: list[tuple[Mark, str]] = field(default_factory=list)


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader, in C if possible, with YAML 1.2's scalars.

    So `1e-3` is a number, and `on` is text.
    """
    # It takes longer to import than the rest of this package.
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return type("Loader", (base,), {"yaml_implicit_resolvers": RESOLVERS})


def parse_yaml(text: str, name: str) -> Document:
    """Return the one document in `text`. Raises ConfigError with the place if it is not YAML."""
    import yaml

    try:
        _refuse_depth(text, name)
        node = yaml.compose(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        # libyaml has its own limit since 0.2.6, and reads ahead.
        if "nesting depth" in (error.problem or ""):
            raise ConfigError(f"{place}: nested more than {DEEPEST} deep; flatten it") from None
        raise ConfigError(f"{place}: not valid YAML: {_reason(error, text)}") from None
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        raise ConfigError(f"{name}: not valid YAML: {reason}") from None
    document = Document(None)
    if node is not None:
        document.data = _Builder(document).value(node, ())
    return document


def _refuse_depth(text: str, name: str) -> None:
    """Raise ConfigError for text that nests too deep, before it becomes nodes.

    The C loader recurses without a limit, and crashes.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=_loader()):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > DEEPEST:
            line, column = _mark(event)
            raise ConfigError(
                f"{name}:{line}:{column}: nested more than {DEEPEST} deep; flatten it"
            )


def _reason(error: yaml.MarkedYAMLError, text: str) -> str:
    reason = ", ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark
    line = "".join(text.splitlines()[mark.line : mark.line + 1]) if mark else ""
    return f"{reason}; indent with spaces, not tabs" if re.match(r"\s*\t", line) else reason


def scalar(text: str) -> Any:
    """Return the value of a plain YAML scalar: a number, true, false, null, or the text itself."""
    for tag, pattern in RESOLVERS.get(text[:1], []):
        if pattern.match(text):
            return _convert(tag, text)
    return text


def _convert(tag: str, text: str) -> Any:
    name = tag.rpartition(":")[2]
    if name == "null":
        return None
    if name == "bool":
        return text.lower() == "true"
    if name == "int":
        digits = text.replace("_", "")
        based = digits[:2] in ("0o", "0x")
        return int(digits, 0) if based else int(digits) if len(digits) <= 4000 else text
    if name == "float":
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


class _Builder:
    """Turns nodes into data. An alias is copied, up to a limit that only a hostile file reaches."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: set[int] = set()
        self._count = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        import yaml

        mark = _mark(node)
        self._document.values.setdefault(path, mark)
        self._count += 1
        if id(node) in self._open:
            return self._refuse(
                mark, f"{dotted(path)} contains itself through an alias; write it out"
            )
        if len(path) > DEEPEST:
            return self._refuse(
                mark, f"{dotted(path[:3])} is nested more than {DEEPEST} deep; flatten it"
            )
        if self._count > _MOST_VALUES:
            return self._refuse(
                mark, f"aliases unfold to more than {_MOST_VALUES} values; write less"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (_MAP, _SEQ):
            return self._refuse(mark, self._tagged(node, path))
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._map(node, path)
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _refuse(self, mark: Mark, text: str) -> None:
        if self._count <= _MOST_VALUES + 1:
            self._document.problems.append((mark, text))

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if node.tag in (_STR, _MERGE):
            return node.value
        pattern = _PATTERNS.get(node.tag)
        if pattern is not None and pattern.match(node.value):
            return _convert(node.tag, node.value)
        return self._refuse(_mark(node), self._tagged(node, path))

    def _tagged(self, node: yaml.Node, path: Path) -> str:
        tag = node.tag.replace(_CORE, "!!")
        return (
            f"{dotted(path)} has the tag {tag}, which does not fit; write the value without a tag"
        )

    def _map(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for merged in self._merged(value_node, path):
                    inherited = merged | inherited
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in own:
                first = self._document.keys[(*path, key)][0]
                text = (
                    f"the key {dotted((*path, key))!r} is given twice, first in line {first};"
                    " keep one"
                )
                self._refuse(_mark(key_node), text)
                continue
            self._document.keys[(*path, key)] = _mark(key_node)
            self._document.values.pop((*path, key), None)
            own[key] = self.value(value_node, (*path, key))
        return inherited | own

    def _merged(self, node: yaml.Node, path: Path) -> Iterator[dict[str, Any]]:
        import yaml

        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                self._refuse(_mark(source), "<< takes a map, or a list of maps, by alias")
            elif isinstance(value := self.value(source, path), dict):
                yield value

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        import yaml

        value = self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(value, str):
            return value
        where = f" of {dotted(path)}" if path else ""
        self._refuse(_mark(node), f"the key {shown(value)}{where} is not text; put it in quotes")
        return None


def _mark(part: yaml.Node | yaml.Event) -> Mark:
    mark = part.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def to_yaml(config: Any, *, masked: bool = False) -> str:
    """Return the complete configuration as YAML, without its secrets if `masked`."""
    import yaml

    base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    both = {
        start: [*base.yaml_implicit_resolvers.get(start, []), *RESOLVERS.get(start, [])]
        for start in {*base.yaml_implicit_resolvers, *RESOLVERS}
    }
    dumper = type(
        "Dumper", (base,), {"yaml_implicit_resolvers": both, "ignore_aliases": lambda *_: True}
    )
    text: str = yaml.dump(
        to_builtins(config, masked=masked), Dumper=dumper, sort_keys=False, allow_unicode=True
    )
    return text
