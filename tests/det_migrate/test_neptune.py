"""Parquet files with the columns and the names that Neptune's exporter writes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.det_migrate.test_command import invoke
from tests.det_migrate.test_others import BEGAN, bring, read

from det_core.errors import DetError
from det_driver.provenance import elsewhere
from det_driver.store import Store, TrialState
from det_migrate.neptune import find_neptune

TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("project_id", "run_id", "attribute_path", "attribute_type")
        ),
        ("step", pa.decimal128(18, 6)),
        ("timestamp", TIME),
        ("int_value", pa.int64()),
        ("float_value", pa.float64()),
        ("string_value", pa.string()),
        ("bool_value", pa.bool_()),
        ("datetime_value", TIME),
        ("string_set_value", pa.list_(pa.string())),
        ("file_value", pa.struct([("path", pa.string())])),
        (
            "histogram_value",
            pa.struct(
                [
                    ("type", pa.string()),
                    ("edges", pa.list_(pa.float64())),
                    ("values", pa.list_(pa.float64())),
                ]
            ),
        ),
    ]
)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGAN + seconds, UTC)


def attribute(run: str, path: str, kind: str, value: Any) -> dict[str, Any]:
    own = {"run_id": run, "attribute_path": path, "attribute_type": kind}
    return own if value is None else own | {f"{kind}_value": value}


def series(run: str, path: str, *steps: object) -> list[dict[str, Any]]:
    own = {"run_id": run, "attribute_path": path, "attribute_type": "float_series"}
    return [
        own | {"step": Decimal(str(step)), "timestamp": at(n), "float_value": n / 2}
        for n, step in enumerate(steps)
    ]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    rows = {
        "RUN-1_part_0": [
            attribute("RUN-1", "sys/name", "string", "first"),
            attribute("RUN-1", "sys/creation_time", "datetime", at(-5)),
            attribute("RUN-1", "sys/tags", "string_set", ["good"]),
            attribute("RUN-1", "parameters/lr", "float", 0.1),
            attribute("RUN-1", "parameters/net/depth", "int", 3),
            attribute("RUN-1", "parameters/api_key", "string", "hush-hush-hush"),
            # A run has a row without a value for each attribute of the others.
            attribute("RUN-1", "sys/failed", "bool", None),
            attribute("RUN-1", "parameters/of_another", "float", None),
            *series("RUN-1", "train/loss", 0, 1, 1.5, 2),
        ],
        "RUN-1_part_1": [
            *series("RUN-1", "val/loss", 2),
            *series("RUN-1", "monitoring/cpu", 0, 1),
            {**attribute("RUN-1", "model", "file", {"path": "model.bin"})},
            {
                **attribute("RUN-1", "weights", "histogram_series", None),
                "step": Decimal("0.000000"),
                "histogram_value": {"type": "COUNTING", "edges": [0.0, 1.0], "values": [2.0]},
            },
        ],
        "RUN-2_part_0": [
            attribute("RUN-2", "sys/failed", "bool", True),
            *series("RUN-2", "train/loss", 5),
        ],
    }
    for name, found in rows.items():
        file = tmp_path / "data" / "org_digits" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_pylist([{"project_id": "org/digits", **row} for row in found], SCHEMA),
            file,
        )
    return tmp_path / "data"


def test_an_export_of_neptune_comes_back_as_it_was(export: Path, home: Path) -> None:
    done = invoke(home, "migrate", "neptune", str(export), "--metric", "val/loss")
    assert done.exit_code == 0, done.output
    assert (
        "metrics: 7 read, 5 written\n  1 left out: at a step that is no whole number from 0 on"
        in done.stdout
    )
    assert "  1 left out: not a number" in done.stdout
    assert "org/digits: 2 values of its machines (monitoring/) are left out" in done.stdout
    trials = read(home, 1)
    state, hparams, reports = trials["first"]
    assert state is TrialState.COMPLETED
    assert {name: hparams[name] for name in ("lr", "net/depth")} == {"lr": 0.1, "net/depth": 3}
    assert reports == {
        "training": [
            (step, BEGAN + n, {"train/loss": n / 2}) for n, step in ((0, 0), (1, 1), (3, 2))
        ],
        "validation": [(2, BEGAN, {"val/loss": 0.0})],
    }
    assert trials["RUN-2"][0] is TrialState.ERROR
    with Store.reader(home) as store:
        assert [trial.started for trial in store.trials.list(1)] == [BEGAN - 5, BEGAN]
        assert elsewhere(store.experiment_dir(1))["trials"]["1"]["sys/tags"] == ["good"]
    assert not [
        file
        for file in home.rglob("*")
        if file.is_file() and b"hush-hush-hush" in file.read_bytes()
    ]
    assert bring(find_neptune(export), home).left_out == {("experiments", "there already"): 1}


def test_what_is_no_export_is_named(export: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DetError, match="there is no Parquet file below"):
        find_neptune(tmp_path / "empty")
    pq.write_table(pa.table({"loss": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(DetError, match="has no column project_id"):
        find_neptune(tmp_path / "other.parquet")
    file = export / "org_digits/RUN-1_part_0.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DetError, match=r"cannot read .*part_0\.parquet"):
        find_neptune(export)
