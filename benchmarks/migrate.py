"""Print how long `det migrate` takes for a dump of a large history, and how much memory.

`--scale 0.1` is for a tenth of it.

Whole, that is 1,000 experiments of 20 trials each, 10⁶ reports and 10⁶ lines of logs, which this
script makes up. The rows of a table lie in the dump as a server writes them: by time, those of all
trials among one another.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.det_migrate.eras import BEGAN, NEW, field, stamp, tables  # noqa: E402

TRIALS = 20


def write(file: Path, experiments: int, reports: int, lines: int) -> None:
    """Write the dump.

    Each trial has the same number of reports, every tenth of them a validation, and of lines.
    """
    made = tables("0.28.1")
    trials = range(1, experiments * TRIALS + 1)
    columns, [row] = made["experiments"]
    known = dict(zip(columns, row, strict=True)) | {"config": NEW}
    rows = [tuple((known | {"id": id}).values()) for id in range(1, experiments + 1)]
    with file.open("w", encoding="utf-8") as out:

        def begin(table: str, names: tuple[str, ...]) -> None:
            out.write(f"COPY public.{table} ({', '.join(names)}) FROM stdin;\n")

        begin("experiments", columns)
        out.writelines("\t".join(map(field, each)) + "\n" for each in rows)
        out.write("\\.\n")
        names = (
            "id",
            "trial_id",
            "end_time",
            "metrics",
            "total_batches",
            "trial_run_id",
            "archived",
        )
        each_has = max(1, reports // len(trials))
        for table, places in (
            ("raw_steps", range(10, 10 * each_has + 1, 10)),
            ("raw_validations", range(100, 10 * each_has + 1, 100)),
        ):
            begin(table, names)
            group = "avg_metrics" if table == "raw_steps" else "validation_metrics"
            for at in places:
                when = stamp(BEGAN + at)
                for trial in trials:
                    values = json.dumps(
                        {
                            group: {"loss": 1 / (at + trial), "error": trial / at, "lr": 0.1},
                            "num_inputs": 64,
                        }
                    )
                    out.write(
                        f"{at * len(trials) + trial}\t{trial}\t{when}\t{values}\t{at}\t1\tf\n"
                    )
            out.write("\\.\n")
        names = ("id", "experiment_id", "state", "start_time", "end_time", "hparams", "restarts")
        begin("runs", names)
        for trial in trials:
            times = f"{stamp(BEGAN)}\t{stamp(BEGAN + 900)}"
            out.write(
                f"{trial}\t{(trial - 1) // TRIALS + 1}\tCOMPLETED\t{times}"
                f"\t{json.dumps({'lr': trial})}\t0\n"
            )
        out.write("\\.\n")
        begin("trial_id_task_id", ("trial_id", "task_id"))
        out.writelines(f"{trial}\ttask-{trial}\n" for trial in trials)
        out.write("\\.\n")
        begin("task_logs", ("id", "task_id", "allocation_id", "rank_id", "log", '"timestamp"'))
        for n in range(max(1, lines // len(trials))):
            text = field(f"line {n}: loss went down, and the sun came up\n".encode())
            for trial in trials:
                out.write(
                    f"{n * len(trials) + trial}\ttask-{trial}\ttask-{trial}.1\t0\t{text}"
                    f"\t{stamp(BEGAN + n, zone=False)}\n"
                )
        out.write("\\.\n--\n-- PostgreSQL database dump complete\n--\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    scale = parser.parse_args().scale
    with tempfile.TemporaryDirectory() as place:
        file, home = Path(place) / "dump.sql", Path(place) / "home"
        write(file, max(1, int(1000 * scale)), int(1e6 * scale), int(1e6 * scale))
        began = time.monotonic()
        code = "import sys; from det_driver.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "migrate", str(file)],
            env={"DET_HOME": str(home), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        took = time.monotonic() - began
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        used, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
        sys.stdout.write(done.stdout)
        sys.stdout.write(
            f"{file.stat().st_size / 2**20:.0f} MiB of dump: {took:.1f} s, of a processor"
            f" {used:.1f} s, "
        )
        sys.stdout.write(f"at most {peak:.0f} MiB of memory, {size / 2**20:.0f} MiB stored\n")


if __name__ == "__main__":
    main()
