"""Mutants of a module, by the operators of Cosmic Ray and one of our own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

SWAPS = {
    "Comparison": (
        "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt"
        " Is_IsNot IsNot_Is"
    ),
    "Binary": "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul",
}
OPERATORS = [
    *(f"Replace{kind}Operator_{swap}" for kind, swaps in SWAPS.items() for swap in swaps.split()),
    *(
        "ReplaceUnaryOperator_Delete_Not",
        "ReplaceUnaryOperator_Delete_USub",
        "AddNot",
        "NumberReplacer",
    ),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
]


@dataclass(frozen=True)
class Mutant:
    """A module with one change: the lines that differ, stripped and joined, and the whole text."""

    line: int
    before: str
    after: str
    code: str = field(repr=False)


def mutants(source: str) -> list[Mutant]:
    """Make every mutant of a module; no two are the same."""
    import parso
    from cosmic_ray.ast import ast_nodes
    from cosmic_ray.operators.provider import OperatorProvider

    provider, tree = OperatorProvider(), parso.parse(source)
    operators = [*(provider[name]() for name in OPERATORS), CatchAnother(), DropStatement()]
    found: dict[str, Mutant] = {}
    for node in list(ast_nodes(tree)):
        for operator in operators:
            for index, _ in enumerate(list(operator.mutation_positions(node))):
                if _is_another(operator, node, index):
                    code = _mutated(tree, node, operator, index)
                    found.setdefault(code, Mutant(*_changed(source, code), code))
    return sorted(found.values(), key=lambda mutant: mutant.line)


def _is_another(operator: Any, node: Any, index: int) -> bool:
    """Tell whether a mutant says what neither the module nor another mutant says in other words."""
    if type(operator).__name__ == "AddNot":
        condition = node.children[2 if node.type == "test" else 1]
        text = condition.get_code().strip()
        return text != "TYPE_CHECKING" and (
            condition.type not in ("not_test", "comparison") or " in " in text
        )
    if type(operator).__name__ == "NumberReplacer":
        value = ast.literal_eval(node.value)
        return bool(value != value + (1, -1)[index])  # a very large one does not change
    return True


def _mutated(tree: Any, node: Any, operator: Any, index: int) -> str:
    """Let an operator change a node, and return the code; the tree is put back as it was."""
    from cosmic_ray.ast import ast_nodes

    kept = [
        (each, "children", [*each.children])
        if hasattr(each, "children")
        else (each, "value", each.value)
        for each in ast_nodes(node)
    ]
    siblings = node.parent.children
    place = next(i for i, each in enumerate(siblings) if each is node)
    siblings[place] = operator.mutate(node, index)
    code: str = tree.get_code()
    siblings[place] = node
    for each, name, value in kept:
        setattr(each, name, value)
    return code


def _changed(source: str, code: str) -> tuple[int, str, str]:
    """Return the first line that differs, and what stands there before and after."""
    old, new = source.splitlines(), code.splitlines()
    start = _alike(old, new)
    same = _alike(old[start:][::-1], new[start:][::-1])
    before, after = (
        " ".join(line.partition("  #")[0].strip() for line in lines[start : len(lines) - same])
        for lines in (old, new)
    )
    return start + 1, before, after


def _alike(one: list[str], other: list[str]) -> int:
    """Return how many lines at the beginning are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class CatchAnother:
    """An exception is not caught any more.

    Cosmic Ray's own stumbles over `module.Error` among several.
    """

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "except_clause":
            for siblings, index in self._caught(node):
                yield siblings[index].start_pos, siblings[index].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        from parso.python.tree import Name

        siblings, place = self._caught(node)[index]
        siblings[place] = Name(
            "StopAsyncIteration", siblings[place].start_pos, prefix=" " if place else ""
        )
        return node

    def _caught(self, node: Any) -> list[tuple[list[Any], int]]:
        """Return of each exception where it stands: among which nodes, and at which place."""
        caught = node.children[1]
        if caught.type != "atom":
            return [(node.children, 1)]
        inner = caught.children[1]
        if inner.type == "testlist_comp":
            return [(inner.children, place) for place in range(0, len(inner.children), 2)]
        return [(caught.children, 1)]


class DropStatement:
    """The operator that Cosmic Ray lacks: a statement of a function is left out.

    What binds a name for the first time is kept, as whoever runs it stumbles over the missing name.
    """

    KEPT = (
        "import_name",
        "import_from",
        "string",
        "keyword",
        "operator",
        "global_stmt",
        "nonlocal_stmt",
        "assert_stmt",
    )

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        from parso.tree import search_ancestor

        if node.type != "simple_stmt" or not (function := search_ancestor(node, "funcdef")):
            return
        statement = node.children[0]
        leaf = statement.get_first_leaf()
        if statement.type == "expr_stmt" and statement.children[0].type == "name":
            names, each = set(), function.get_first_leaf()
            while each.start_pos < leaf.start_pos:
                names.add(each.value)
                each = each.get_next_leaf()
            if leaf.value not in names:
                return
        if statement.type not in self.KEPT or leaf.value in (
            "break",
            "continue",
            "return",
            "raise",
        ):
            yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        from parso.python.tree import Keyword

        leaf = node.get_first_leaf()
        node.children[0] = Keyword("pass", leaf.start_pos, leaf.prefix)
        return node
