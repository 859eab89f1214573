"""Writes the files of this directory with MLflow and Weights & Biases.

No environment of the tests has these.

Run it in a directory of its own, with mlflow-skinny, sqlalchemy, alembic and wandb installed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

os.environ |= {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "LOGNAME": "ann",
}
os.environ |= {
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_X_DISABLE_STATS": "true",
}
KEY = "hush-hush-hush"
TABLES = (
    "experiments",
    "experiment_tags",
    "runs",
    "metrics",
    "params",
    "tags",
    "latest_metrics",
    "alembic_version",
)


def write_mlflow(uri: str) -> None:
    """Write the same history into a store of any kind."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(uri)
    digits = client.create_experiment("digits", artifact_location="s3://bucket/artifacts")
    client.set_experiment_tag(digits, "mlflow.note.content", "the first try")
    began = 1_600_000_000_000

    def run(name: str, lr: float, status: str | None, parent: str | None = None) -> str:
        tags = {"mlflow.parentRunId": parent} if parent else {}
        id = client.create_run(digits, start_time=began, run_name=name, tags=tags).info.run_id
        points = [Metric("val/loss", 1 / step + lr, began + step, step) for step in (10, 20)]
        points += [Metric("loss", 2 / step + lr, began + step, step) for step in (10, 20)]
        # The second of two values at one step, values that are not finite, and steps that are none.
        points += [
            Metric("loss", 7.0, began + 25, 20),
            Metric("odd", math.nan, began, 10),
            Metric("odd", math.inf, began, 20),
        ]
        points += [
            Metric("early", 1.0, began, -1),
            *(Metric("plain", n / 2, began + n, 0) for n in range(3)),
        ]
        client.log_batch(
            id,
            metrics=points,
            params=[Param("lr", str(lr)), Param("net", "mlp"), Param("api_key", KEY)],
        )
        if status:
            client.set_terminated(id, status, end_time=began + 60_000)
        return id

    run("finished", 0.1, "FINISHED")
    run("failed", 0.2, "FAILED")
    run("killed", 0.3, "KILLED")
    run("without a word", 0.4, None)
    client.delete_run(run("deleted", 0.5, "FINISHED"))
    search = run("a search", 0.6, "FINISHED")
    for lr in (0.7, 0.8):
        run(f"child {lr}", lr, "FINISHED", search)
    client.delete_experiment(client.create_experiment("gone", artifact_location="s3://bucket/gone"))


def write_wandb(*, again: bool) -> None:
    """Write offline runs: one that finished, one that failed, one of a sweep.

    `again`: the first one goes on.
    """
    import wandb

    runs = (("first123", None, 0, 0), ("second45", None, 0, 3), ("third678", "sweep9", 0, 0))
    for id, sweep, first, status in [("first123", None, 20, 0)] if again else runs:
        config = {"lr": 0.1, "net": {"width": 8, "act": "relu"}, "api_key": KEY}
        settings = wandb.Settings(x_disable_meta=True, x_disable_machine_info=True, sweep_id=sweep)
        run = wandb.init(
            project="digits", id=id, name=f"run {id}", config=config, tags=["a"], notes="a note", dir=".", settings=settings
        )  # fmt: skip
        for step in range(first, first + 30, 10):
            # One record is longer than a block of the file.
            text = "no number" * (5_000 if status and step == 10 else 1)
            values = {
                "loss": 1 / (step + 1),
                "val": {"loss": 2 / (step + 1)},
                "odd": math.nan,
                "text": text,
            }
            run.log(values, step=step)
        run.summary["best"] = 0.5
        run.finish(exit_code=status)


def main() -> None:
    write_mlflow(Path("mlruns").absolute().as_uri())
    files = {
        str(file): file.read_text() for file in sorted(Path("mlruns").rglob("*")) if file.is_file()
    }
    Path("mlruns.json").write_text(
        json.dumps(files, indent=0).replace(str(Path.cwd()), "/home/you") + "\n"
    )
    write_mlflow("sqlite:///mlflow.db")
    with (
        sqlite3.connect("mlflow.db") as database,
        Path("mlflow.sql").open("w", encoding="utf-8") as out,
    ):
        for name in TABLES:
            [(statement,)] = database.execute(
                "SELECT sql FROM sqlite_master WHERE name = ?", (name,)
            )
            out.write(f"{statement};\n")
            for row in database.execute(f"SELECT * FROM {name}"):
                values = ", ".join(
                    "NULL" if v is None else f"'{v}'" if isinstance(v, str) else repr(v)
                    for v in row
                )
                values = values.replace(str(Path.cwd()), "/home/you")
                out.write(f"INSERT INTO {name} VALUES ({values});\n")
    write_wandb(again=False)
    subprocess.run([sys.executable, __file__, "again"], check=True)
    for number, file in enumerate(sorted(Path("wandb").glob("offline-run-*/run-*.wandb"))):
        shutil.copy(file, f"{number}.wandb")


if __name__ == "__main__":
    write_wandb(again=True) if "again" in sys.argv else main()
