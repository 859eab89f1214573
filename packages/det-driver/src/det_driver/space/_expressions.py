"""Expressions in a configuration, such as `hidden * layers <= 1024`: parsing and evaluation.

Python executes nothing of them. A whitelist of its syntax is translated into closures. A name that
Python could not read, such as weight-decay, stands in backticks.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from det_core.errors import did_you_mean

LONGEST = 1000
Lookup = Callable[[str], Any]
"""Returns the value of a name. Raises Undefined if it has no value now."""
_Value = Callable[[Lookup], Any]
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    # Powers of ints could grow without limit.
    ast.Pow: lambda a, b: float(a) ** float(b),
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "len": len,
    "log2": math.log2,
    "log10": math.log10,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
}
_KNOWN = "numbers, text, names, + - * / // % **, comparisons, and, or, not, in, " + ", ".join(
    _FUNCTIONS
)


_QUOTED = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|`([^`]*)`|(`)""")


class Undefined(Exception):
    """A name has no value: its hyperparameter is absent, or its metric was not reported."""


class Expression:
    """A condition over names.

    Raises ValueError, which names the wrong part and a fix, if the text cannot be parsed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        if len(text) > LONGEST:
            raise ValueError(
                f"it has {len(text)} characters, {LONGEST} at most; give several constraints"
            )
        self._quoted: dict[str, str] = {}
        source = self._without_backticks(text.strip())
        try:
            tree = ast.parse(source, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
            at = (
                f" at column {error.offset}"
                if isinstance(error, SyntaxError) and error.offset
                else ""
            )
            assigns = "=" in text and not any(each in text for each in ("==", "<=", ">=", "!="))
            way_out = (
                "compare with ==" if assigns else "give a condition such as hidden * layers <= 1024"
            )
            raise ValueError(f"it cannot be read{at} ({why}); {way_out}") from None
        self._value = self._read(tree.body)

    def holds(self, lookup: Lookup, *, undefined: bool = True) -> bool:
        """Return whether the condition is met.

        A condition that cannot be computed, because of a division by zero for example, is not met.
        If a name is undefined, this returns `undefined`. Raises TypeError if the expression is no
        condition, or if it compares values that cannot be compared.
        """
        try:
            value = self._value(lookup)
        except Undefined:
            return undefined
        except (ArithmeticError, ValueError):
            return False
        if not isinstance(value, bool):
            raise TypeError(
                f"it gives {value!r}, neither true nor false; compare it with something"
            )
        return value

    def _without_backticks(self, text: str) -> str:
        """Return the text with an identifier in place of each name in backticks."""
        stem = "_"
        while stem in text:
            stem += "_"

        def identifier(found: re.Match[str]) -> str:
            literal, name, unclosed = found.groups()
            if literal is not None:
                return str(literal)
            if unclosed or not name.strip():
                raise ValueError("a name in backticks ends with a second one; write `weight-decay`")
            # As long as the name, so that the columns in messages are right.
            short = f"{stem}{len(self._quoted)}".ljust(len(name) + 2, "_")
            self._quoted[short] = name.strip()
            return short

        return _QUOTED.sub(identifier, text)

    def _shown(self, node: ast.expr) -> str:
        shown = ast.unparse(node)
        for short, name in self._quoted.items():
            shown = shown.replace(short, f"`{name}`")
        return repr(shown)

    def _read(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return lambda _: value
            case ast.Name() | ast.Attribute():
                return self._name(node)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                items = [self._read(part) for part in parts]
                return lambda lookup: [item(lookup) for item in items]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._read(operand)
                return lambda lookup: not _truth(inner(lookup))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self._read(operand)
                return lambda lookup: -_number(inner(lookup))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._read(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._arithmetic(_ARITHMETIC[type(op)], self._read(left), self._read(right))
            case ast.BoolOp(op=op, values=values):
                return self._junction(
                    isinstance(op, ast.And), [self._read(value) for value in values]
                )
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARISONS for op in ops
            ):
                return self._comparison([self._read(each) for each in (left, *others)], ops)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition, yes, no = self._read(test), self._read(body), self._read(orelse)
                return lambda lookup: yes(lookup) if _truth(condition(lookup)) else no(lookup)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if (
                name in _FUNCTIONS
            ):
                function, given = _FUNCTIONS[name], [self._read(argument) for argument in arguments]
                return lambda lookup: function(*(value(lookup) for value in given))
            case ast.Call(func=ast.Name(id=name)) if name not in _FUNCTIONS:
                hint = did_you_mean(name, _FUNCTIONS) or f"; there are {', '.join(_FUNCTIONS)}"
                raise ValueError(f"{name!r} is no function here{hint}")
        raise ValueError(f"{self._shown(node)} is not understood; it takes {_KNOWN}")

    def _name(self, node: ast.expr) -> _Value:
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            raise ValueError(
                f"{self._shown(node)} is not understood; a dot joins names only, as in net.hidden"
            )
        name = ".".join(self._quoted.get(part, part) for part in reversed([*parts, inner.id]))
        self.names.add(name)
        return lambda lookup: lookup(name)

    @staticmethod
    def _arithmetic(function: Callable[[Any, Any], Any], left: _Value, right: _Value) -> _Value:
        def compute(lookup: Lookup) -> Any:
            found = function(_number(left(lookup)), _number(right(lookup)))
            if isinstance(found, complex):
                raise ArithmeticError
            return found

        return compute

    @staticmethod
    def _junction(every: bool, values: list[_Value]) -> _Value:
        # Evaluate all parts: an undefined name in any part makes the whole undefined.
        def join(lookup: Lookup) -> bool:
            found = [_truth(value(lookup)) for value in values]
            return all(found) if every else any(found)

        return join

    @staticmethod
    def _comparison(values: list[_Value], ops: list[ast.cmpop]) -> _Value:
        functions = [_COMPARISONS[type(op)] for op in ops]

        def compare(lookup: Lookup) -> bool:
            found = [value(lookup) for value in values]
            return all(f(a, b) for f, a, b in zip(functions, found, found[1:], strict=False))

        return compare


def needs_backticks(name: str) -> bool:
    """Return whether an expression must have a name in backticks."""
    return not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


def lookup_in(hparams: Mapping[str, Any]) -> Lookup:
    """Return a function that finds a hyperparameter by its dotted name."""

    def lookup(name: str) -> Any:
        here: Any = hparams
        for part in name.split("."):
            if not isinstance(here, Mapping) or part not in here:
                raise Undefined(name)
            here = here[part]
        return here

    return lookup


def _number(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    raise TypeError(f"it computes with {value!r}, which is no number; compare it instead")


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is neither true nor false; compare it with something")
