"""Dumps of a Determined master's database as each of its eras laid out its tables.

One small history, in tables of our own.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Tables = dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]]
BEGAN = 1_600_000_000.0
UUIDS = ("aaaaaaaa-0000-4000-8000-000000000001", "aaaaaaaa-0000-4000-8000-000000000002")
REQUESTS = {5: "bbbbbbbb-0000-4000-8000-000000000005", 9: "bbbbbbbb-0000-4000-8000-000000000009"}
LOG = ["starting\n", "tabs\tand \\ signs\n", "é and \N{SNOWMAN}\n"]
SECRET = "AKIA-hush-hush"


def stamp(seconds: float | None, *, zone: bool = True) -> str | None:
    """Return a time as PostgreSQL writes it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f") + (
        "+00" if zone else ""
    )


def field(value: Any) -> str:
    """Return a value in COPY's text format."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return f"\\\\x{value.hex()}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def dump(tables: Tables) -> bytes:
    """Return a dump in the plain format.

    Columns stand in an order of their own, as those of upgraded databases do.
    """
    parts = [
        "--\n-- PostgreSQL database dump\n--\n\nSET client_encoding = 'UTF8';\n\nCREATE TABLE"
        " public.experiments (\n);\n"
    ]
    for name in sorted(tables):
        columns, rows = tables[name]
        order = sorted(range(len(columns)), key=lambda place: (place * 7) % 11)
        listed = ", ".join(
            '"timestamp"' if columns[at] == "timestamp" else columns[at] for at in order
        )
        parts.append(f"\n\nCOPY public.{name} ({listed}) FROM stdin;\n")
        parts += ["\t".join(field(row[at]) for at in order) + "\n" for row in rows]
        parts.append("\\.\n")
    parts.append("\n\n--\n-- PostgreSQL database dump complete\n--\n\n")
    return "".join(parts).encode("utf-8")


def archive(files: Mapping[str, str]) -> bytes:
    """Return code as it was stored."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


def change(made: Tables, table: str, row: int, **values: Any) -> None:
    """Change values of a row; columns that are not there are added, with NULL in other rows."""
    columns, rows = made[table]
    names = (*columns, *(name for name in values if name not in columns))
    wide = [
        dict(zip(names, (*each, *[None] * (len(names) - len(columns))), strict=True))
        for each in rows
    ]
    wide[row] |= values
    made[table] = names, [tuple(each.values()) for each in wide]


STORAGE = {
    "type": "s3",
    "bucket": "b",
    "access_key": SECRET,
    "secret_key": "s3cr3t-value",
    "prefix": "p",
}
SAVES = {"save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 1}
OLD = {
    "description": "digits",
    "labels": {"first": True, "second": True, "gone": False},
    "checkpoint_storage": {**STORAGE, **SAVES},
    "hyperparameters": {"lr": {"type": "double", "minval": 0.1, "maxval": 1.0}},
    "searcher": {
        "name": "random",
        "metric": "error",
        "smaller_is_better": True,
        "max_trials": 2,
        "max_steps": 3,
    },
    "min_validation_period": 1,
    "batches_per_step": 100,
    "environment": {"environment_variables": {"cpu": [f"API_TOKEN={SECRET}"], "gpu": []}},
    "entrypoint": "model_def:Digits",
    "internal": None,
}
NEW = {
    **{key: OLD[key] for key in ("checkpoint_storage", "hyperparameters", "entrypoint")},
    "name": "digits",
    "labels": ["first", "second"],
    "searcher": {**OLD["searcher"], "max_length": {"batches": 300}, "max_steps": None},
    "environment": {
        "environment_variables": {"cpu": [f"API_TOKEN={SECRET}"], "cuda": [], "rocm": []}
    },
    "log_policies": [{"pattern": ".*OOM.*", "action": {"type": "cancel_retries"}}],
    "project": "stale",
}
del NEW["searcher"]["max_steps"]
NEWEST = {
    **NEW,
    "searcher": (
        {
            "name": "adaptive_asha",
            "metric": "error",
            "smaller_is_better": True,
            "max_trials": 2,
            "max_time": 300,
        }
        | {
            "time_metric": "batches",
            "mode": "standard",
            "divisor": 4,
            "max_rungs": 5,
            "stop_once": True,
        }
    ),
    "log_policies": [{"name": "out of memory", "pattern": ".*OOM.*", "action": "cancel_retries"}],
    "retention_policy": {"log_retention_days": 90},
}

ERAS = (
    "0.12.0",
    "0.12.11",
    "0.13.0",
    "0.14.2",
    "0.15.6",
    "0.17.0",
    "0.18.0",
    "0.20.1",
    "0.23.0",
    "0.23.4",
    "0.26.7",
    "0.28.1",
    "0.30.0",
    "0.38.0",
)
"""The first version of each layout."""


def at_least(era: str, version: str) -> bool:
    return ERAS.index(era) >= ERAS.index(version)


def reports(trial: int) -> dict[str, list[tuple[int, float, dict[str, Any]]]]:
    """Return what counts of a trial: of each group, positions, times and values."""
    shift = trial / 100
    training = [(at, BEGAN + at, {"loss": 1 / at + shift, "steps": at}) for at in (100, 200, 300)]
    validation = [(at, BEGAN + at + 1, {"error": 10 / at + shift}) for at in (100, 300)]
    return {"training": training, "validation": validation}


def tables(era: str) -> Tables:
    """Return the tables of a database of an era."""
    made: Tables = {
        "cluster_id": (("cluster_id",), [("the-cluster",)]),
        "users": (
            ("id", "username", "admin", "active", "password_hash"),
            [(1, "ann", False, True, "$2a$hash")],
        ),
    }
    _add_experiments(made, era)
    _add_trials(made, era)
    _add_metrics(made, era)
    _add_checkpoints(made, era)
    _add_logs(made, era)
    return made


def _add_experiments(made: Tables, era: str) -> None:
    new = at_least(era, "0.15.6")
    row = {
        **{
            "id": 3,
            "state": "COMPLETED",
            "config": NEWEST if at_least(era, "0.38.0") else NEW if new else OLD,
            "archived": False,
            "parent_id": None,
        },
        **{
            "start_time": stamp(BEGAN - 10),
            "end_time": stamp(BEGAN + 400),
            "owner_id": 1,
            "progress": 1,
        },
        "model_definition": archive({"model_def.py": "class Digits: ...\n"}),
    }
    if not at_least(era, "0.26.7"):
        row |= {
            "git_remote": None,
            "git_commit": "c0ffee",
            "git_committer": None,
            "git_commit_date": None,
        }
    if new:
        row |= {
            "original_config": f"name: digits\ncheckpoint_storage: {{access_key: {SECRET}}}\n",
            "notes": "a note",
        }
    if at_least(era, "0.18.0"):
        row |= {"project_id": 4, "job_id": "j"}
        made["workspaces"] = (("id", "name", "archived", "user_id"), [(2, "Team", False, 1)])
        made["projects"] = (("id", "name", "notes", "workspace_id"), [(4, "Vision", [], 2)])
    if at_least(era, "0.28.1"):
        made["gopg_migrations"] = (
            ("id", "version", "created_at"),
            [(1, 20200101000000, None), (2, 20240401000000, None)],
        )
        row |= {"unmanaged": False, "external_experiment_id": None}
    if at_least(era, "0.38.0"):
        made["projects"] = (
            ("id", "name", "notes", "workspace_id", "key"),
            [(4, "Vision", [], 2, "VIS")],
        )
    made["experiments"] = (tuple(row), [tuple(row.values())])


def _add_trials(made: Tables, era: str) -> None:
    rows = []
    for trial in (5, 9):
        row: dict[str, Any] = {
            "id": trial,
            "experiment_id": 3,
            "state": "COMPLETED",
            "hparams": {"lr": trial / 10},
        }
        row |= {
            "start_time": stamp(BEGAN),
            "end_time": stamp(BEGAN + 350),
            "warm_start_checkpoint_id": None,
            "seed": 77,
        }
        if at_least(era, "0.14.2") and not at_least(era, "0.28.1"):
            row["request_id"] = REQUESTS[trial]
        if at_least(era, "0.17.0"):
            row |= {"restarts": 1, "runner_state": "x"}
        if at_least(era, "0.17.0") and not at_least(era, "0.26.7"):
            row["task_id"] = f"3.{REQUESTS[trial]}"
        rows.append(row)
    if at_least(era, "0.28.1"):
        made["trials_v2"] = (
            ("run_id", "request_id", "seed"),
            [(trial, REQUESTS[trial], 77) for trial in (5, 9)],
        )
        made["runs_metadata"] = (("run_id", "metadata"), [(5, {"who": "me"})])
        for row in rows:
            del row["seed"]
            row.update({"project_id": 4} if at_least(era, "0.30.0") else {})
            newer = {"archived": row["id"] == 9, "local_id": row["id"], "log_policy_matched": None}
            row.update(newer if at_least(era, "0.38.0") else {})
    made["runs" if at_least(era, "0.26.7") else "trials"] = (
        tuple(rows[0]),
        [tuple(row.values()) for row in rows],
    )
    if era == "0.15.6":
        columns = ("id", "run_type", "run_type_fk", "start_time", "end_time")
        times = {1: (BEGAN, BEGAN + 150), 2: (BEGAN + 160, BEGAN + 350)}
        found = [
            (n, "TRIAL", trial, stamp(a), stamp(b))
            for trial in (5, 9)
            for n, (a, b) in times.items()
        ]
        made["runs"] = (columns, found)
    if at_least(era, "0.17.0"):
        tasks, allocations = [], []
        for trial in (5, 9):
            task = f"3.{REQUESTS[trial]}"
            tasks.append((task, "TRIAL", stamp(BEGAN, zone=False), None, 1))
            for n, (begun, over) in {1: (0, 150), 2: (160, 350)}.items():
                times = (stamp(BEGAN + begun, zone=False), stamp(BEGAN + over, zone=False))
                allocations.append((task, f"{task}.{n}", "default", 1, *times))
        tasks.append(("notebook", "NOTEBOOK", None, None, 1))
        allocations.append(("notebook", "notebook.1", "default", 1, stamp(BEGAN, zone=False), None))
        made["tasks"] = (("task_id", "task_type", "start_time", "end_time", "log_version"), tasks)
        names = ("task_id", "allocation_id", "resource_pool", "slots", "start_time", "end_time")
        made["allocations"] = (names, allocations)
        if at_least(era, "0.26.7"):
            name = "run" if at_least(era, "0.28.1") else "trial"
            pairs = [(trial, f"3.{REQUESTS[trial]}") for trial in (5, 9)]
            made[f"{name}_id_task_id"] = ((f"{name}_id", "task_id"), pairs)


def _add_metrics(made: Tables, era: str) -> None:
    raw = "raw_" if at_least(era, "0.15.6") else ""
    found: dict[str, list[dict[str, Any]]] = {"steps": [], "validations": []}
    for trial in (5, 9):
        for table, group in (("steps", "training"), ("validations", "validation")):
            for at, time, values in reports(trial)[group]:
                name = "avg_metrics" if group == "training" else "validation_metrics"
                row: dict[str, Any] = {
                    "trial_id": trial,
                    "end_time": stamp(time),
                    "metrics": {name: values, "num_inputs": 9},
                }
                found[table].append(
                    row | {"at": at, "attempt": 1 if at == 100 else 2, "archived": False}
                )
            if raw and group == "training":
                lost = {
                    "trial_id": trial,
                    "end_time": stamp(BEGAN + 140),
                    "metrics": {"avg_metrics": {"loss": 99.0}},
                }
                found[table].append(lost | {"at": 200, "attempt": 1, "archived": True})
        empty = {"trial_id": trial, "end_time": stamp(BEGAN + 301), "metrics": {"avg_metrics": {}}}
        if not at_least(era, "0.23.0"):
            found["steps"].append(empty | {"at": 400, "attempt": 2, "archived": False})
    for table, rows in found.items():
        laid = [_laid_out(row, table, id, era) for id, row in enumerate(rows, 1)]
        made[raw + table] = (tuple(laid[0]), [tuple(row.values()) for row in laid])
    if at_least(era, "0.23.0"):
        group = "custom_type" if era == "0.23.0" else "metric_group"
        columns = (
            "id",
            "trial_id",
            "end_time",
            "metrics",
            "total_batches",
            "trial_run_id",
            "archived",
            group,
        )
        values = {"avg_metrics": {"bleu": 0.5, "odd": "NaN"}}
        made["generic_metrics"] = (
            columns,
            [(70, 5, stamp(BEGAN + 300), values, 300, 2, False, "translation")],
        )
    if at_least(era, "0.30.0"):
        values = {"agent": {"cpu_util_simple": 0.5}}
        made["system_metrics"] = (
            columns,
            [(80, 5, stamp(BEGAN + 1), values, None, 1, False, "cpu")],
        )


def _laid_out(row: Mapping[str, Any], table: str, id: int, era: str) -> dict[str, Any]:
    own = {key: row[key] for key in ("trial_id", "end_time", "metrics")}
    if not at_least(era, "0.20.1"):
        own["state"] = "COMPLETED"
    if not at_least(era, "0.17.0"):
        own["start_time"] = own["end_time"]
    step = row["at"] // 100
    if at_least(era, "0.14.2"):
        own |= {"id": id, "total_batches": row["at"]}
    elif table == "steps":
        own["id"] = step
        if at_least(era, "0.12.11"):
            own["num_batches"] = None if step == 2 else 100
        if at_least(era, "0.13.0"):
            own["prior_batches_processed"] = 12345
    else:
        own |= {"id": id, "step_id": step}
    if at_least(era, "0.15.6"):
        own |= {"trial_run_id": row["attempt"], "archived": row["archived"]}
    return own


def _add_checkpoints(made: Tables, era: str) -> None:
    resources = {"code/": 0, "state_dict.pth": 12, "metadata.json": 3}
    old, new = [], []
    for at, uuid, state in ((100, UUIDS[0], "COMPLETED"), (200, UUIDS[1], "DELETED")):
        row: dict[str, Any] = {
            "id": at,
            "trial_id": 5,
            "state": state,
            "end_time": stamp(BEGAN + at + 2),
            "uuid": uuid,
        }
        row |= {"resources": resources, "metadata": {"framework": "torch-1.9", "mine": 1}}
        row |= {"total_batches": at} if at_least(era, "0.14.2") else {"step_id": at // 100}
        row |= {"trial_run_id": 1, "archived": False} if at_least(era, "0.15.6") else {}
        old.append(row)
        task = f"3.{REQUESTS[5]}"
        metadata = {
            "framework": "torch-1.9",
            "mine": 1,
            "steps_completed": at,
            "experiment_config": NEW,
            "hparams": {},
        }
        newer = {
            "id": at + 1000,
            "uuid": uuid,
            "task_id": task,
            "allocation_id": f"{task}.1",
            "state": state,
        }
        new.append(
            newer
            | {
                "report_time": stamp(BEGAN + at + 2),
                "resources": resources,
                "metadata": metadata,
            }
        )
    old.append(
        {
            **old[0],
            "id": 300,
            "uuid": None if not at_least(era, "0.20.1") else "lost",
            "state": "ERROR",
        }
    )
    if at_least(era, "0.18.0"):
        # Until 0.23.4 the older ones lie in the one table, the newer ones in the other; then the
        # other has all, too.
        both = at_least(era, "0.23.4")
        new = [{**row, "storage_id": None} for row in new] if at_least(era, "0.28.1") else new
        made["checkpoints_v2"] = (
            tuple(new[0]),
            [tuple(row.values()) for row in (new if both else new[1:])],
        )
        old = old if both else [old[0], old[2]]
    if not at_least(era, "0.26.7"):
        name = "raw_checkpoints" if at_least(era, "0.15.6") else "checkpoints"
        made[name] = (tuple(old[0]), [tuple(row.values()) for row in old])
    if at_least(era, "0.28.1"):
        made["run_checkpoints"] = (("run_id", "checkpoint_id"), [(5, uuid) for uuid in UUIDS])
    if at_least(era, "0.18.0"):
        name = "model_id" if at_least(era, "0.17.0") else "model_name"
        made["models"] = (
            ("id", "name", "description", "user_id"),
            [(1, "reader", "reads digits", 1)],
        )
        made["model_versions"] = ((name, "version", "checkpoint_uuid"), [(1, 1, UUIDS[0])])


def _add_logs(made: Tables, era: str) -> None:
    if at_least(era, "0.18.0"):
        columns: Sequence[str] = (
            "id",
            "task_id",
            "allocation_id",
            "rank_id",
            "log",
            "timestamp",
            "level",
        )
        task = f"3.{REQUESTS[5]}"
        rows = [
            (n, task, f"{task}.2", None, text.encode(), stamp(BEGAN + 200 + n, zone=False), "INFO")
            for n, text in enumerate(LOG)
        ]
        made["task_logs"] = (
            tuple(columns),
            [*rows, (9, "notebook", None, None, b"not ours\n", None, None)],
        )
        made["trial_logs"] = (("id", "trial_id", "message", "log"), [])
    elif at_least(era, "0.14.2"):
        columns = ("id", "trial_id", "message", "log", "rank_id", "timestamp")
        rows = [
            (n, 5, b"", text.encode(), None, stamp(BEGAN + 200 + n, zone=False))
            for n, text in enumerate(LOG)
        ]
        made["trial_logs"] = (tuple(columns), rows)
    else:
        made["trial_logs"] = (
            ("id", "trial_id", "message"),
            [(n, 5, text.encode()) for n, text in enumerate(LOG)],
        )
