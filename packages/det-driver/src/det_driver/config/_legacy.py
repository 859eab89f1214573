"""Old spellings: what earlier versions called something, put into today's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from det_core.config.faults import Path, dotted

from ._source import Source

BATCHES_PER_STEP = 100
Renamed = Iterator[tuple[str, str]]
_STEPS = {"max_steps": "max_length", "target_trial_steps": "max_length", "steps_per_round": "length_per_round"}


def modernise(source: Source, problems: list[str]) -> list[tuple[str, str]]:
    """Rewrite `source.data` in today's words; return what was renamed, old and new; note clashes in `problems`."""
    return [
        *_steps(source, problems),
        *_rename(source, (), "batches_per_step", "scheduling_unit", problems),
        *_gpu(source, problems),
        *_actions(source),
        *_checkpoint_path(source),
    ]


def _section(source: Source, *path: str) -> dict[str, Any] | None:
    section: Any = source.data
    for part in path:
        section = section.get(part) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else None


def _rename(source: Source, path: tuple[str, ...], old: str, new: str, problems: list[str]) -> Renamed:
    section = _section(source, *path)
    if section is None or old not in section:
        return
    old_path: Path = (*path, old)
    value = section.pop(old)
    if new in section:
        text = f"{dotted(old_path)} is the old spelling of {dotted((*path, new))}, which is there too; keep the latter"
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
    """What is counted in steps elsewhere counted the periods in steps as well."""
    for name in ("min_validation_period", "min_checkpoint_period"):
        steps = source.data.get(name)
        if _is_count(steps) and steps and _is_count(per_step):
            source.data[name] = {"batches": steps * per_step}
            yield f"{name}: {steps}", f"{steps * per_step} batches"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _gpu(source: Source, problems: list[str]) -> Renamed:
    for name in ("image", "environment_variables"):
        yield from _rename(source, ("environment", name), "gpu", "cuda", problems)


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
