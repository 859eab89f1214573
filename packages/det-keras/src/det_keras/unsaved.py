"""Finds what training changes, and what no checkpoint holds: in its step, and in callbacks."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from det_core.support.imports import is_library_module

from .attributes import is_optimizer, only_variables
from .optim import variables_of
from .rng import variable_of
from .state import is_plain
from .versions import keras

# Their kernels hide how many numbers they have drawn.
_DRAWS = {
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("ParameterizedTruncatedNormal", "Multinomial", "RandomShuffle", "RandomGamma"),
    *("RandomPoissonV2", "FractionalAvgPool", "FractionalMaxPool"),
    *("SampleDistortedBoundingBoxV2", "UniformCandidateSampler", "LogUniformCandidateSampler"),
    *("LearnedUnigramCandidateSampler", "FixedUnigramCandidateSampler", "AllCandidateSampler"),
}
_WRITES = (
    *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply"),
    *("ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign"),
    *("LookupTableInsert", "LookupTableImport", "LookupTableRemove"),
    *("RngReadAndSkip", "RngSkip", "Stateful"),
)
# How many inputs come before those of the functions that an op calls.
_CALLS = {
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"), 0),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), 1),
}
_MOST = 3


def find_unsaved(function: Any, saved: Iterable[Any] | None) -> list[str]:
    """Return a sentence about each kind of state that a step changes and that is not `saved`.

    `function` is Keras's `train_function`. Eager functions are not looked into. Without `saved`,
    only random draws are found.
    """
    known = {id(variable_of(variable).handle) for variable in saved or ()}
    drawn: dict[str, None] = {}
    written: dict[str, None] = {}
    for traced in _traced(function):
        names: dict[int, str] = {}
        # A variable may be gone that an earlier trace has used.
        with suppress(AssertionError):
            names = {id(each.handle): each.name for each in traced.graph.variables}
        step = _Step(traced.graph)
        drawn |= dict.fromkeys(step.drawn)
        for resource in step.written if saved is not None else ():
            if id(resource) not in known:
                written[names.get(id(resource), "a lookup table")] = None
    problems = []
    if drawn:
        problems.append(
            f"the training step draws random numbers with {_listed(drawn)}, whose position no"
            " checkpoint can hold, so that no run is resumed exactly; draw from a"
            " keras.random.SeedGenerator or a tf.random.Generator in an attribute of the model"
        )
    if written:
        problems.append(
            f"the training step changes {_listed(written)}, which no checkpoint holds: a resumed"
            " run begins with it as it is built; keep variables, optimizers and generators in"
            " attributes of the model, and what a lookup table learns in variables"
        )
    return problems


def _listed(names: Mapping[str, None]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{', '.join([*names][:_MOST])}{more}"


def _traced(function: Any) -> Iterator[Any]:
    """Yield what `tf.function` has traced for a function, or for those that it calls."""
    cells = [] if function is None else [function, *_closure(function)]
    for each in cells:
        found = getattr(each, "_list_all_concrete_functions", None)
        if found is not None:
            yield from found()


def _closure(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        # A cell may be empty.
        with suppress(ValueError):
            yield cell.cell_contents


class _Step:
    """The random ops of a graph, and the resources from outside that it changes."""

    def __init__(self, graph: Any) -> None:
        self.drawn: list[str] = []
        self.written: list[Any] = []
        self._seen: set[Any] = set()
        definition = graph.as_graph_def()
        self._library = {each.signature.name: each for each in definition.library.function}
        outside = {
            inner.op.name: outer for outer, inner in graph.captures if outer.dtype == tf.resource
        }
        self._look(definition.node, outside)

    def _look(self, nodes: Iterable[Any], resources: Mapping[str, Any]) -> None:
        """Look at the ops of a function. `resources` are those among its inputs, by name."""
        for node in nodes:
            inputs = [
                resources.get(name.partition(":")[0]) for name in node.input if name[0] != "^"
            ]
            if node.op in _DRAWS:
                self.drawn.append(node.name)
            elif node.op.startswith(_WRITES) and node.op not in _CALLS:
                self.written += [each for each in inputs if each is not None]
            elif node.op in _CALLS:
                for name in _called(node):
                    self._enter(name, inputs[_CALLS[node.op] :])

    def _enter(self, name: str, inputs: list[Any]) -> None:
        key = name, tuple(map(id, inputs))
        function = self._library.get(name)
        if function is not None and key not in self._seen:
            self._seen.add(key)
            pairs = zip(function.signature.input_arg, inputs, strict=False)
            self._look(
                function.node_def, {arg.name: each for arg, each in pairs if each is not None}
            )


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (each.name for each in value.list.func)


_DEEPEST = 8


def digests(thing: Any, held: Iterable[Any] = (), *, plain: bool = False) -> dict[str, str]:
    """Return checksums of an object's attributes by their names.

    Covers containers, generators, variables, layers, and objects of the user's classes. Leaves out
    the objects in `held`. Includes plain data, such as numbers and text, only if `plain` is set.
    """
    seen = {id(each) for each in held}
    found = {}
    for name, value in vars(thing).items():
        if plain or not is_plain(value):
            parts: list[str] = []
            _digest(value, parts, seen, _DEEPEST)
            if parts:
                found[name] = hashlib.blake2b("/".join(parts).encode()).hexdigest()
    return found


def held_by(model: Any) -> list[Any]:
    """Return the parts of a model that callbacks may refer to, and that are saved with it."""
    optimizer = getattr(model, "optimizer", None)
    return [
        *(model, *model._flatten_layers()),
        # Keras 2 raises an error for the variables of a model that is not built.
        *(model.variables if model.built else ()),
        *(variables_of(optimizer) if optimizer is not None else ()),
    ]


def _digest(value: Any, parts: list[str], seen: set[int], depth: int) -> None:
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        parts.append(repr(value))
    elif isinstance(value, np.random.Generator):
        parts.append(repr(value.bit_generator.state))
    elif isinstance(value, random.Random):
        parts.append(repr(value.getstate()))
    elif id(value) in seen:
        return
    elif isinstance(value, (np.ndarray, tf.Tensor)) or only_variables([value]):
        # A tensor of a graph has no value.
        with suppress(Exception):
            array = np.ascontiguousarray(value.numpy() if hasattr(value, "numpy") else value)
            if array.dtype != object:
                parts.append(hashlib.blake2b(array.tobytes()).hexdigest())
    elif depth:
        seen = seen | {id(value)}
        for key, each in _inner(value):
            before = len(parts)
            _digest(each, parts, seen, depth - 1)
            if len(parts) > before:
                parts.append(repr(key))


def _inner(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple, deque)):
        return enumerate(value)
    if isinstance(value, (set, frozenset)):
        return enumerate(sorted(value, key=repr))
    if isinstance(value, keras.layers.Layer):
        return enumerate(only_variables(value.weights))
    if is_optimizer(value) or not is_users(type(value)) or not hasattr(value, "__dict__"):
        return ()
    attributes: dict[str, Any] = vars(value)
    return attributes.items()


def is_users(kind: type) -> bool:
    """Return whether a class is the user's own, and its objects are no functions or data."""
    if issubclass(kind, (type, ModuleType, FunctionType, MethodType, keras.utils.Sequence)):
        return False
    return not is_library_module(kind.__module__)
