"""What each key means, read from the source, and the JSON Schema of configurations, for editors."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from det_core.config import RANGES, SECTIONS, UNITS, ExperimentConfig, Extensions, LogPolicy, to_builtins
from det_core.config.fields import Field, Type, base_of, choices_of, fields_of, is_struct, item_of, type_of

Schema = dict[str, Any]


def schema(extensions: Extensions | None = None) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a complete configuration, each key with its description.

    The searchers, storages and plugins of `extensions` are in it too. Old spellings are not.
    """
    writer = _Writer(extensions or Extensions())
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "det experiment configuration"}
    return {**title, **writer.struct(ExperimentConfig), "$defs": writer.definitions}


class _Writer:
    def __init__(self, extensions: Extensions) -> None:
        self.definitions: dict[str, Schema] = {}
        self._extensions = extensions
        self._kinds: dict[str, Callable[[Type], Schema]] = {
            "checkpoint_storage": lambda _: self._one_of("checkpoint_storage"),
            "environment_variables": lambda type_: self._per_slot(type_, fields_of(type_.arm)["cpu"].type),
            "hyperparameters": lambda _: {"type": "object", "additionalProperties": self._hyperparameter()},
            "image": lambda type_: self._per_slot(type_, type_of(str)),
            "length": lambda _: self._length(1),
            "log_policies": lambda _: {"type": "array", "items": self._reference(LogPolicy)},
            "period": lambda _: self._length(0),
            "plugins": lambda _: self._plugins(),
            "searcher": lambda _: self._one_of("searcher"),
        }

    def struct(self, cls: type[Struct], tag: str | None = None) -> Schema:
        fields, docs = fields_of(cls), docs_of(cls)
        own = [f for f in fields.values() if "rest" not in f.type.marks]
        properties = {f.key: self._property(f, docs.get(f.name)) for f in own}
        required = [f.key for f in own if f.required or "needed" in f.type.marks]
        config = cls.__struct_config__
        if tag and tag not in properties:
            properties = {tag: {"const": config.tag}, **properties}
        return {
            "type": "object",
            "description": inspect.getdoc(cls) or "",
            "properties": properties,
            "required": sorted({*required, *([tag] if tag else [])}),
            "additionalProperties": len(own) < len(fields),
        }

    def _property(self, field: Field, doc: str | None) -> Schema:
        described = self._type(field.type)
        if not (field.required or "needed" in field.type.marks) or field.type.optional:
            described = {"anyOf": [described, {"type": "null"}]} if described else {}
        if not field.required and field.default is not None:
            described = {**described, "default": to_builtins(field.default)}
        return {"description": doc, **described} if doc else described

    def _type(self, type_: Type) -> Schema:
        if "kind" in type_.marks:
            return self._kinds[type_.marks["kind"]](type_)
        arms = [self._arm(arm, type_) for arm in type_.arms]
        return arms[0] if len(arms) == 1 else {"anyOf": arms}

    def _arm(self, arm: Any, type_: Type) -> Schema:
        base = base_of(arm)
        if base is Annotated:
            return self._type(type_of(arm))
        if is_struct(arm):
            return self._reference(arm)
        if base is Literal:
            return {"enum": list(choices_of(arm))}
        hint = base if base in (list, dict) else arm
        written = msgspec.json.schema(Annotated[hint, Meta(**type_.bounds)])
        if base is list:
            written["items"] = self._type(item_of(arm))
        if base is dict and item_of(arm).arm is not Any:
            written["additionalProperties"] = self._type(item_of(arm))
        return written

    def _reference(self, cls: type[Struct], tag: str | None = None) -> Schema:
        name = (
            f"{cls.__name__}:{cls.__struct_config__.tag}" if tag and cls.__name__ in self.definitions else cls.__name__
        )
        if name not in self.definitions:
            self.definitions[name] = {}  # a struct may refer to itself
            self.definitions[name] = self.struct(cls, tag)
        return {"$ref": f"#/$defs/{name}"}

    def _one_of(self, section: str) -> Schema:
        tag, names = SECTIONS[section].tag, self._extensions.names(section)
        structs = [struct for name in names if (struct := self._extensions.struct(section, name))]
        return {"type": "object", "required": [tag], "oneOf": [self._reference(struct, tag) for struct in structs]}

    def _per_slot(self, type_: Type, single: Type) -> Schema:
        return {"anyOf": [self._type(single), self._reference(type_.arm)]}

    def _length(self, least: int) -> Schema:
        name = "Length" if least else "Period"
        amount = {"type": "integer", "minimum": least}
        maps = [
            {"type": "object", "properties": {unit: amount}, "required": [unit], "additionalProperties": False}
            for unit in UNITS
        ]
        text = "A number of batches, or of what the key says."
        self.definitions[name] = {"description": text, "anyOf": [amount, *maps]}
        return {"$ref": f"#/$defs/{name}"}

    def _hyperparameter(self) -> Schema:
        here = {"$ref": "#/$defs/Hyperparameter"}
        nested = {"type": "object", "properties": {"type": False}, "additionalProperties": here}
        value = {"type": ["null", "boolean", "number", "string", "array"]}
        ranges = [self._reference(cls, "type") for cls in RANGES.values()]
        text = "A value, a range, or a map of these."
        self.definitions["Hyperparameter"] = {"description": text, "anyOf": [value, *ranges, nested]}
        return here

    def _plugins(self) -> Schema:
        known = {name: self._reference(find()) for name, find in sorted(self._extensions.plugins.items())}
        return {"type": "object", "properties": known, "additionalProperties": False}


@cache
def docs_of(struct: type[Struct]) -> dict[str, str]:
    """Return what stands under each field, by the field's name; nothing for a struct whose source is not there."""
    found: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        try:
            statement = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        for pair in pairwise(getattr(statement, "body", ())):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
