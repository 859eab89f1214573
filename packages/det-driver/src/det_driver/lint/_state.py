"""Rules about each batch: state that no checkpoint contains, and waiting for the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ._sources import FUNCTION, Function, Module, Sources, bound, rule

_KINDS = re.compile(
    r"(Trial|LightningAdapter|LightningModule|LightningDataModule|Module|Callback|Model)$"
)
_STEP = r"train_batch|training_step|train_step|on_train_batch_end|on_after_backward|on_before_\w+"
_TRAINING = re.compile(
    rf"{_STEP}|forward|call|optimizer_step|on_(train|training)_(batch|epoch|workload)_\w+"
    r"|on_(batch|epoch)_(begin|start|end)"
)
_VALIDATION = re.compile(r"evaluate_\w+|validation_step|on_(validation|test)_\w+")
_SAVERS = re.compile(
    r"\w*state_dict|[gs]et_(extra_)?state|on_(save|load)_checkpoint|on_checkpoint_(save|load)_start"
)
_CONTAINERS = (
    "list",
    "dict",
    "set",
    "collections.deque",
    "collections.defaultdict",
    "collections.Counter",
)
_CHANGES = re.compile("append(left)?|extend|insert|add|update|setdefault|pop(left)?|remove|clear")
_SYNC = r"\.(item|cpu|tolist|numpy)\(\)"


class Touch(NamedTuple):
    """A place that writes a name. `how` is "set", "add" (`+=`), "put" (an item) or "change"."""

    node: ast.AST
    name: str
    how: str
    value: ast.expr | None = None


def _touches(function: ast.AST, named: Callable[[ast.AST], str]) -> Iterator[Touch]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                    put = isinstance(each, ast.Subscript)
                    yield Touch(
                        node,
                        named(each.value if isinstance(each, ast.Subscript) else each),
                        "put" if put else "set",
                        node.value,
                    )
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            yield Touch(node, named(node.target.value), "change")
        elif isinstance(node, ast.AugAssign):
            yield Touch(node, named(node.target), "add")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _CHANGES.fullmatch(node.func.attr)
        ):
            yield Touch(
                node, named(node.func.value), "set" if node.func.attr == "clear" else "change"
            )


def _of_self(node: ast.AST) -> str:
    """Return `x` for `self.x`, else an empty string."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ):
        return node.attr
    return ""


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_container(value: ast.expr | None, module: Module) -> bool:
    made = isinstance(value, ast.Call) and module.dotted(value.func) in _CONTAINERS
    return made or isinstance(
        value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    )


def _classes(sources: Sources) -> dict[str, tuple[ast.ClassDef, Module]]:
    return {
        c.name: (c, m) for m in sources.modules for c in m.tree.body if isinstance(c, ast.ClassDef)
    }


def _trained(
    module: Module, sources: Sources
) -> Iterator[tuple[ast.ClassDef, dict[str, Function], set[str]]]:
    """Yield the module's trials, models and callbacks with their methods and their bases.

    They are recognized by the names of their bases.
    """
    classes = _classes(sources)
    for node in module.parents:
        if isinstance(node, ast.ClassDef):
            bases = _bases(node, module, classes)
            if any(map(_KINDS.search, bases)):
                yield (
                    node,
                    {each.name: each for each in node.body if isinstance(each, FUNCTION)},
                    bases,
                )


def _bases(
    owner: ast.ClassDef, module: Module, classes: dict[str, tuple[ast.ClassDef, Module]]
) -> set[str]:
    """Return the full names of all bases of a class, as far as the sources tell."""
    found: set[str] = set()
    waiting = [(owner, module)]
    while waiting:
        node, here = waiting.pop()
        for name in map(here.dotted, node.bases):
            own = classes.get(name.rpartition(".")[2])
            if own is not None and name not in found:
                waiting.append(own)
            found.add(name)
    return found


def _reached(methods: dict[str, Function], entries: re.Pattern[str]) -> dict[str, Function]:
    """Return the methods whose names match, and those that they call on `self`."""
    found: dict[str, Function] = {}
    waiting = [name for name in methods if entries.fullmatch(name)]
    while waiting:
        if (name := waiting.pop(0)) not in found:
            found[name] = methods[name]
            called = [
                _of_self(node.func)
                for node in ast.walk(methods[name])
                if isinstance(node, ast.Call)
            ]
            waiting += [each for each in called if each in methods]
    return found


@rule("DET101")
def unsaved_state(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """State on `self` that one batch hands to the next, and that no checkpoint carries.

    A checkpoint holds weights, optimizers, schedules, random numbers and the position in the data.
    It holds no other attribute of a trial, of a PyTorch or Keras model, or of a `PyTorchCallback`.
    A count or a running mean starts from its first value in a trial that is resumed, and the
    numbers differ from those of a run without interruption. Keep a tensor as a buffer of the model,
    and other state in a callback that saves it. Of a `LightningModule`, and of callbacks of
    Lightning and of a Keras trial that save nothing themselves, a checkpoint also holds attributes
    of plain data: numbers, text, arrays, and lists and dicts of them. Objects of your own classes
    are still lost.
    """
    carried = {
        found
        for each in sources.modules
        for node in each.parents
        if (isinstance(node, FUNCTION) and _SAVERS.fullmatch(node.name))
        or (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") in ("register_buffer", "add_weight")
        )
        for part in ast.walk(node)
        if isinstance(found := getattr(part, "attr", None) or getattr(part, "value", None), str)
    }
    classes = _classes(sources)
    for _, methods, bases in _trained(module, sources):
        touches = {name: list(_touches(method, _of_self)) for name, method in methods.items()}
        plain_is_kept = _keeps_plain_data(bases, methods, sources)
        training, reported = _reached(methods, _TRAINING), {"", *methods, *carried}
        for name in [
            *training,
            *(name for name in _reached(methods, _VALIDATION) if name not in training),
        ]:
            for touch in touches[name]:
                if plain_is_kept and not _makes_object(touch, classes):
                    continue
                if touch.name not in reported and _is_handed_on(
                    touch, name, touches, name in training, module
                ):
                    reported.add(touch.name)
                    way_out = "make it a buffer of the model, or save it in a callback's state"
                    yield (
                        touch.node,
                        (
                            f"no checkpoint carries `self.{touch.name}`, which {name} changes;"
                            f" {way_out}"
                        ),
                    )


def _keeps_plain_data(bases: set[str], methods: dict[str, Function], sources: Sources) -> bool:
    """Return whether a checkpoint holds the attributes of plain data that training changes."""
    kinds = {name.rpartition(".")[2] for name in bases}
    if "LightningModule" in kinds:
        return True
    # Callbacks in a Keras script begin again as they are built.
    lost = sources.is_script and any("keras" in name for name in bases)
    return "Callback" in kinds and not lost and not any(map(_SAVERS.fullmatch, methods))


def _makes_object(touch: Touch, classes: Mapping[str, Any]) -> bool:
    """Return whether a place writes a new object of one of the user's classes."""
    node: Any = touch.node
    given = node.args if isinstance(node, ast.Call) else [node.value]
    return any(isinstance(each, ast.Call) and _name(each.func) in classes for each in given)


def _is_handed_on(
    touch: Touch, method: str, touches: dict[str, list[Touch]], trains: bool, module: Module
) -> bool:
    """Return whether a method changes what an earlier batch left.

    Returns False where another method resets it for each batch.
    """
    sets = [
        (place, t)
        for place, found in touches.items()
        for t in found
        if t.name == touch.name and t.how == "set"
    ]
    if touch.how == "set":
        plain = isinstance(touch.value, ast.Constant | None) or _is_container(touch.value, module)
        return not plain and _is_read_before(
            touch, [each for place, each in sets if place == method], module
        )
    if touch.how == "put" and touch.name not in map(_of_self, ast.walk(touch.value or touch.node)):
        # A stored value that depends on nothing stored before is a record, or belongs to this
        # batch.
        return False
    if touch.how != "add" and not any(_is_container(each.value, module) for _, each in sets):
        return False
    made = [
        each.value
        for place, each in sets
        if place == "__init__" and isinstance(each.value, ast.Call)
    ]
    if touch.how == "add" and any(isinstance(value.func, ast.Attribute) for value in made):
        # A variable or a metric of a framework may be saved by the framework.
        return False
    resetting = r"on_\w*batch_(start|begin)" if trains else r"(?!__)\w+"
    return not any(place == method or re.fullmatch(resetting, place) for place, _ in sets)


def _is_read_before(touch: Touch, sets: list[Touch], module: Module) -> bool:
    """Return whether a method reads the value of an earlier call, before or while setting it.

    Returns False where it reads the value only to create it once.
    """
    ups = list(module.around(touch.node))
    tests = [ast.unparse(up.test) for up in ups if isinstance(up, ast.If)]
    once = rf"self\.{touch.name} is None|not self\.{touch.name}\b"
    if "cache" in touch.name or any(
        re.search(once, test) and not re.search("[<>]", test) for test in tests
    ):
        return False
    unconditional = [
        each.node
        for each in sets
        if not any(isinstance(up, ast.If) and not up.orelse for up in module.around(each.node))
    ]
    before = [node for node in unconditional if _line(node) < _line(touch.node)]
    method = next(up for up in ups if isinstance(up, FUNCTION))
    reads = [
        n
        for n in ast.walk(method)
        if _of_self(n) == touch.name and _line(n) <= _line(touch.node, "end_lineno")
    ]
    calls = [n for n in reads if isinstance(up := module.parents[n], ast.Call) and up.func is n]
    return (
        not before
        and not calls
        and any(isinstance(getattr(n, "ctx", None), ast.Load) for n in reads)
    )


def _line(node: ast.AST, which: str = "lineno") -> int:
    return getattr(node, which, 0)


@rule("DET102")
def written_global(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A function writes a global of its module.

    No checkpoint carries it, each rank has its own, and trials that share a process share it: what
    a run computes depends on what ran before. Pass the value, or keep it where it is saved.
    """
    body = [
        statement
        for statement in module.tree.body
        if not isinstance(statement, (*FUNCTION, ast.ClassDef))
    ]
    at_import = [
        node.func for each in body for node in ast.walk(each) if isinstance(node, ast.Call)
    ]
    decorators = [each for node in module.parents for each in getattr(node, "decorator_list", ())]
    known = {_name(getattr(each, "func", each)) for each in (*at_import, *decorators)}
    containers = {name for name, value in module.constants.items() if _is_container(value, module)}
    for function in (node for node in module.parents if isinstance(node, FUNCTION)):
        declared = {
            name
            for node in ast.walk(function)
            if isinstance(node, ast.Global)
            for name in node.names
        }
        for touch in _touches(function, _name):
            ups = list(module.around(touch.node))
            tests = " ".join(ast.unparse(up.test) for up in ups if isinstance(up, ast.If))
            made_once = re.search(
                rf"\b{touch.name} (is None|not in)|not {touch.name}\b|not in {touch.name}\b", tests
            )
            at_work = (
                next(up for up in ups if isinstance(up, FUNCTION)) is function
                and function.name not in known
            )
            helps = re.search(
                "cache|memo|regist|warn", f"{function.name} {touch.name}", re.IGNORECASE
            )
            shared = touch.name in declared or (
                touch.how in ("change", "put") and touch.name in containers - bound(function)
            )
            if shared and at_work and not helps and not made_once:
                way_out = "pass it, or keep it where it is saved"
                yield touch.node, f"{function.name} writes the global `{touch.name}`; {way_out}"


@rule("DET501")
def sync_each_batch(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A value is fetched from the device at each batch, as by `loss.item()`.

    The processor waits until the device has computed it, and the device then waits for its next
    work. Return or log the tensor as it is: det makes it a number when it reports. What some
    batches need belongs under `if batch_idx % 100 == 0`.
    """
    for _, methods, _ in _trained(module, sources):
        for name, method in _reached(methods, re.compile(_STEP)).items():
            losses = {t.name for t in _touches(method, _name) if isinstance(t.value, ast.Call)}
            for node in ast.walk(method):
                tests = [
                    up.test for up in module.around(node) if isinstance(up, ast.If | ast.IfExp)
                ]
                sometimes = any(
                    isinstance(part, ast.Mod) for test in tests for part in ast.walk(test)
                )
                if (
                    isinstance(node, ast.Call)
                    and not sometimes
                    and (shown := _fetch(node, losses, module))
                ):
                    yield (
                        node,
                        (
                            f"{shown} in {name} waits for the device at each batch; hand over the"
                            " tensor as it is"
                        ),
                    )


def _fetch(call: ast.Call, computed: set[str], module: Module) -> str:
    """Return the text of a call that fetches a tensor from the device, else an empty string.

    Returns an empty string where a call inside this one fetches it.
    """
    function, shown = call.func, ast.unparse(call)
    if isinstance(function, ast.Attribute) and re.search(rf"{_SYNC}$", shown):
        of_numpy = module.dotted(getattr(function.value, "func", function.value)).startswith(
            "numpy."
        )
        return (
            ""
            if of_numpy or re.search(_SYNC, ast.unparse(function.value))
            else f".{function.attr}()"
        )
    of_loss = call.args and "loss" in _name(call.args[0]) and _name(call.args[0]) in computed
    return f"{_name(function)}(...)" if _name(function) in ("float", "int") and of_loss else ""
