"""Old spellings of earlier versions, translated to today's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from det_core.config.faults import Path, dotted

from ._source import Source

BATCHES_PER_STEP = 100
Renamed = Iterator[tuple[str, str]]
_STEPS = {
    "max_steps": "max_length",
    "target_trial_steps": "max_length",
    "step_budget": "budget",
    "steps_per_round": "length_per_round",
}
_SLURM = {"slots_per_node": "slots_per_node", "gpu_type": "gres", "sbatch_args": "sbatch_args"}
_POOL = ("resources", "resource_pool")
_OF_ENGINES = {
    "slurm": {
        **{("slurm", old): new for old, new in _SLURM.items()},
        _POOL: "partition",
        ("resources", "priority"): "nice",
    },
    "kubernetes": {**{("environment", old): old for old in ("image", "pod_spec")}, _POOL: "queue"},
}


def modernise(source: Source, problems: list[str]) -> list[tuple[str, str]]:
    """Rewrite `source.data` in today's spelling, and return the old and the new names.

    Conflicts are added to `problems`.
    """
    return [
        *_steps(source, problems),
        *_adaptive(source),
        *_rename(source, (), "batches_per_step", "scheduling_unit", problems),
        *_rename(source, ("environment", "image"), "gpu", "cuda", problems),
        *_rename(source, ("environment", "environment_variables"), "gpu", "cuda", problems),
        *_actions(source),
        *_checkpoint_path(source),
    ]


def to_engine(data: dict[str, Any]) -> Renamed:
    """Move Determined's settings for Slurm and Kubernetes into the engine's section.

    These include resource pools and priorities.
    """
    engine = data.get("engine")
    if not isinstance(engine, dict):
        return
    for (name, old), new in _OF_ENGINES.get(str(engine.get("name")), {}).items():
        section = data.get(name)
        if isinstance(section, dict) and section.get(old) not in (None, "") and new not in engine:
            value = section.pop(old)
            if new == "image" and isinstance(value, dict):
                value = value.get("cuda" if "resource" in engine else "cpu")
            engine[new] = f"gpu:{value}" if new == "gres" else value
            yield f"{name}.{old}", f"engine.{new}"
    if engine.get("name") == "kubernetes" and data.get("preemption_timeout") is not None:
        engine.setdefault("grace_period", data["preemption_timeout"])


def _section(source: Source, *path: str) -> dict[str, Any] | None:
    section: Any = source.data
    for part in path:
        section = section.get(part) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else None


def _rename(
    source: Source, path: tuple[str, ...], old: str, new: str, problems: list[str]
) -> Renamed:
    section = _section(source, *path)
    if section is None or old not in section:
        return
    old_path: Path = (*path, old)
    value = section.pop(old)
    if new in section:
        text = (
            f"{dotted(old_path)} is the old spelling of {dotted((*path, new))}, which is there too;"
            " keep the latter"
        )
        problems.append(source.place(old_path, of_key=True) + text)
        return
    section[new] = value
    source.moved(old_path, (*path, new))
    yield dotted(old_path), dotted((*path, new))


def _steps(source: Source, problems: list[str]) -> Renamed:
    per_step = source.data.get("batches_per_step", BATCHES_PER_STEP)
    for old, new in _STEPS.items():
        for pair in _rename(source, ("searcher",), old, new, problems):
            steps = source.data["searcher"][new]
            if _is_count(steps) and _is_count(per_step):
                source.data["searcher"][new] = steps * per_step
            yield pair
            yield from _periods(source, per_step)


def _periods(source: Source, per_step: Any) -> Renamed:
    """Convert periods to batches, as they were counted in steps, too."""
    for name in ("min_validation_period", "min_checkpoint_period"):
        steps = source.data.get(name)
        if _is_count(steps) and steps and _is_count(per_step):
            source.data[name] = {"batches": steps * per_step}
            yield f"{name}: {steps}", f"{steps * per_step} batches"


def _adaptive(source: Source) -> Renamed:
    """Replace the searchers that adaptive ASHA has replaced.

    A budget becomes a number of trials.
    """
    section = _section(source, "searcher") or {}
    name = section.get("name")
    if name not in ("adaptive", "adaptive_simple"):
        return
    section["name"] = "adaptive_asha"
    yield f"{source.place(('searcher', 'name'))}searcher.name: {name}", "adaptive_asha"
    if section.pop("train_stragglers", None) is not None:
        yield "searcher.train_stragglers", "nothing"
    trials = _trials(section)
    if trials is not None and "max_trials" not in section:
        source.moved(("searcher", "budget"), ("searcher", "max_trials"))
        section["max_trials"] = trials
        yield (
            f"{source.place(('searcher', 'budget'))}searcher.budget: {section.pop('budget')}",
            f"max_trials: {trials}",
        )


def _trials(section: dict[str, Any]) -> int | None:
    """Return the number of trials that a budget pays for, or None if it cannot be computed.

    Mistakes in the section are reported later.
    """
    try:
        (budget, unit), (length, other) = _amount(section["budget"]), _amount(section["max_length"])
        divisor, most = section.get("divisor", 4), section.get("max_rungs", 5)
        most = max(1, min(most, int(math.log(length, divisor)) + 1))
        first = {"aggressive": most, "conservative": 1}.get(
            section.get("mode", "standard"), (most - 1) // 2 + 1
        )
        rungs = section.get("bracket_rungs") or range(first, most + 1)
        # In a bracket of r rungs, one trial in d ** k reaches rung k. The number of trials in a
        # bracket is proportional to d ** (r - 1) / r.
        trials = sum(divisor ** (r - 1) / r for r in rungs)
        cost = sum(length * (1 + (r - 1) * (1 - 1 / divisor)) / r for r in rungs)
        return max(1, round(budget * trials / cost)) if unit == other else None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def _amount(length: Any) -> tuple[int, str]:
    """Return the number and the unit of a length."""
    ((unit, number),) = length.items() if isinstance(length, dict) else (("batches", length),)
    return number, unit


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _actions(source: Source) -> Renamed:
    policies = source.data.get("log_policies")
    for index, policy in enumerate(policies if isinstance(policies, list) else ()):
        action = policy.get("action") if isinstance(policy, dict) else None
        if isinstance(action, dict) and list(action) == ["type"]:
            policy["action"] = action["type"]
            where: Path = ("log_policies", index, "action")
            yield dotted((*where, "type")), dotted(where)


def _checkpoint_path(source: Source) -> Renamed:
    storage = _section(source, "checkpoint_storage") or {}
    if storage.get("type") == "shared_fs" and storage.get("storage_path") is None:
        storage.pop("storage_path", None)
        yield from _rename(source, ("checkpoint_storage",), "checkpoint_path", "storage_path", [])
