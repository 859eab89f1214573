"""The description of each key, read from the source, and the JSON Schema for editors."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from det_core.config import (
    RANGES,
    SECTIONS,
    UNITS,
    ExperimentConfig,
    Extensions,
    LogPolicy,
    to_builtins,
)
from det_core.config.fields import (
    Field,
    Type,
    base_of,
    choices_of,
    fields_of,
    is_struct,
    item_of,
    type_of,
)

Schema = dict[str, Any]
_DEVICE = "^/[^:]*:[^:]+(:[^:]*)?$"


def schema(extensions: Extensions | None = None) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a complete configuration, with descriptions.

    It includes the searchers, storages and plugins of `extensions`, but not old spellings. One
    mistake causes one error: if a key determines the other keys, it alone selects their schema. No
    schema is a choice of alternatives that are all tried.
    """
    writer = _Writer(extensions or Extensions())
    title = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "det experiment configuration",
    }
    return {
        **title,
        "type": "object",
        **writer.struct(ExperimentConfig),
        "$defs": writer.definitions,
    }


class _Writer:
    """Writes a schema for types, and definitions for the contents of maps.

    The definitions hold for maps only, so that null and text are possible in their place.
    """

    def __init__(self, extensions: Extensions) -> None:
        self.definitions: dict[str, Schema] = {}
        self._structs: dict[str, type[Struct]] = {}
        self._extensions = extensions
        self._kinds: dict[str, Callable[[Type], Schema]] = {
            "checkpoint_storage": lambda _: self._section("checkpoint_storage"),
            "device": lambda type_: _union(
                [self._reference(type_.arm), {"type": "string", "pattern": _DEVICE}]
            ),
            "engine": lambda _: self._section("engine"),
            "environment_variables": lambda type_: self._per_slot(
                type_, fields_of(type_.arm)["cpu"].type
            ),
            "hyperparameters": lambda _: {
                "type": "object",
                "additionalProperties": self._hyperparameter(),
            },
            "image": lambda type_: self._per_slot(type_, type_of(str)),
            "length": lambda _: self._length(1),
            "log_policies": lambda _: {"type": "array", "items": self._reference(LogPolicy)},
            "period": lambda _: self._length(0),
            "plugins": lambda _: self._plugins(),
            "searcher": lambda _: self._section("searcher"),
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
            "description": inspect.getdoc(cls) or "",
            "properties": properties,
            "required": sorted({*required, *([tag] if tag else [])}),
            "additionalProperties": len(own) < len(fields),
        }

    def _property(self, field: Field, doc: str | None) -> Schema:
        described = self._type(field.type)
        if not (field.required or "needed" in field.type.marks) or field.type.optional:
            described = _or_null(described)
        if not field.required and field.default is not None:
            described = {**described, "default": to_builtins(field.default)}
        return {"description": doc, **described} if doc else described

    def _type(self, type_: Type) -> Schema:
        if "kind" in type_.marks:
            return self._kinds[type_.marks["kind"]](type_)
        return _union([self._arm(arm, type_) for arm in type_.arms])

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
        names = (
            cls.__name__,
            *(
                f"{cls.__name__}:{section}"
                for section in (cls.__struct_config__.tag, cls.__module__)
            ),
        )
        name = next(each for each in names if self._structs.setdefault(each, cls) is cls)
        if name not in self.definitions:
            # A struct may refer to itself.
            self.definitions[name] = {}
            self.definitions[name] = self.struct(cls, tag)
        return {"type": "object", "$ref": f"#/$defs/{name}"}

    def _section(self, section: str) -> Schema:
        tag, _, _, _, nameless, signs = SECTIONS[section]
        structs = {
            name: self._extensions.struct(section, name) for name in self._extensions.names(section)
        }
        without: Schema | None = None
        if nameless and signs:
            named: Schema = {
                "if": {"anyOf": [{"required": [sign]} for sign in signs]},
                "else": {"required": [tag]},
            }
            without = {**named, "then": self.struct(nameless)}
        elif nameless:
            without = {"$ref": self._reference(nameless)["$ref"]}
        return self._tagged_union(
            tag, {name: struct for name, struct in structs.items() if struct}, without
        )

    def _tagged_union(
        self, tag: str, structs: Mapping[str, type[Struct]], without: Schema | None = None
    ) -> Schema:
        """Return the schema of a map in which the key `tag` determines the other keys.

        `without` is the schema of a map without that key.
        """
        branches = [
            {
                "if": {"properties": {tag: {"const": name}}},
                "then": {"$ref": self._reference(struct, tag)["$ref"]},
            }
            for name, struct in structs.items()
        ]
        meanings = [
            (inspect.getdoc(struct) or "").partition("\n")[0] for struct in structs.values()
        ]
        names = {
            "enum": list(structs),
            "enumDescriptions": meanings,
            "description": "Tells which other keys there are.",
        }
        conditional = {
            "if": {"required": [tag]},
            "then": {"allOf": branches},
            "else": without or {"required": [tag]},
        }
        return {"type": "object", "properties": {tag: names}, **conditional}

    def _per_slot(self, type_: Type, single: Type) -> Schema:
        return _union([self._type(single), self._reference(type_.arm)])

    def _length(self, least: int) -> Schema:
        name = "Length" if least else "Period"
        amount = {"type": "integer", "minimum": least}
        self.definitions[name] = {
            "description": "A number of batches, or of what the key says.",
            "minimum": least,
            "properties": {unit: {"description": f"So many {unit}.", **amount} for unit in UNITS},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        }
        return {"type": ["integer", "object"], "$ref": f"#/$defs/{name}"}

    def _hyperparameter(self) -> Schema:
        here = {"$ref": "#/$defs/Hyperparameter"}
        self.definitions["Hyperparameter"] = {
            "description": "A value, a range, or a map of these.",
            "if": {"type": "object", "required": ["type"]},
            "then": self._tagged_union("type", RANGES),
            "else": {"additionalProperties": here},
        }
        return here

    def _plugins(self) -> Schema:
        known = {
            name: _or_null(self._reference(find()))
            for name, find in sorted(self._extensions.plugins.items())
        }
        return {"type": "object", "properties": known, "additionalProperties": False}


def _union(schemas: list[Schema]) -> Schema:
    """Return one schema for values of these types.

    If the types differ, each other keyword concerns only one of them.
    """
    kinds = [each.get("type") for each in schemas]
    if len(schemas) == 1:
        return schemas[0]
    if None in kinds or len(set(kinds)) < len(kinds):
        return {"anyOf": schemas}
    return {key: value for each in schemas for key, value in each.items()} | {"type": kinds}


def _or_null(schema: Schema) -> Schema:
    kinds = schema.get("type", [])
    null: Schema = (
        {"type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]} if kinds else {}
    )
    null |= {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    null |= {"anyOf": [*schema["anyOf"], {"type": "null"}]} if "anyOf" in schema else {}
    return {**schema, **null}


@cache
def docs_of(struct: type[Struct]) -> dict[str, str]:
    """Return the text below each field, by the field's name.

    Returns nothing for a struct without source.
    """
    found: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        try:
            statement = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        for pair in pairwise(getattr(statement, "body", ())):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    found[name] = " ".join(text.split())
    return found
