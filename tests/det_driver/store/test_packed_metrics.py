"""Training metrics are packed in columns as they come, and read as if they were not."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
import subprocess
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core.errors import StoreError
from det_driver.store import (
    ExperimentRow,
    Run,
    Store,
    TrialRow,
    _chunks,
    _databases,
    _experiments,
    _history,
    _metrics,
)
from det_driver.store._chunks import Report, pack, unpack
from det_driver.store._history import CHUNK, FEW
from det_driver.store._schema import EXPERIMENT

floats = st.floats(width=64)
plain = (
    st.none() | st.booleans() | st.integers() | floats | st.text() | st.lists(floats, max_size=3)
)
values = st.dictionaries(
    st.sampled_from(["loss", "lr", "accuracy", ""]), floats | st.integers() | plain
)
reports = st.builds(Report, st.integers(0, 2**40), st.integers(0, 2**62), floats, values)


def exact(value: Any) -> Any:
    """A value that equals another only if each bit does, for every NaN that JSON can hold."""
    match value:
        case float():
            return "float", "nan" if math.isnan(value) else struct.pack("d", value)
        case list():
            return [exact(each) for each in value]
        case dict():
            return [(name, exact(each)) for name, each in value.items()]
        case _:
            return type(value), value


@settings(deadline=None)
@given(st.lists(reports, max_size=20))
def test_packed_metrics_keep_every_bit_and_type(some: list[Report]) -> None:
    packed = pack(some)
    assert packed is not None
    assert [exact(list(each)) for each in unpack(packed)] == [exact(list(each)) for each in some]


@pytest.mark.parametrize("largest", [4000, 10])
def test_reports_too_large_for_a_chunk_are_split_or_stay_rows(
    store: Store, trial: TrialRow, run: Run, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(_chunks, "LARGEST_BYTES", largest)
    report(store, trial, run, range(CHUNK + 3))
    assert rows(store, "chunks") == (4 if largest == 4000 else 0)
    assert rows(store, "metrics") == (3 if largest == 4000 else CHUNK + 3)
    assert seen(store, trial) == [("training", n) for n in range(CHUNK + 3)]
    assert [*store.metrics.series(trial.id, "training", "batches")[0]] == [*range(CHUNK + 3)]


@pytest.mark.slow
def test_a_chunk_that_decompresses_to_more_than_any_is_refused(
    store: Store, trial: TrialRow, run: Run
) -> None:
    report(store, trial, run, range(CHUNK + 3))
    bomb = zlib.compress(bytes(_chunks.LARGEST_BYTES + 1), 9)
    with closing(sqlite3.connect(store.experiment_dir(1) / "experiment.db")) as raw, raw:
        raw.execute("UPDATE chunks SET data = ?", (bomb,))
    for read in (
        lambda: seen(store, trial),
        lambda: store.metrics.series(trial.id, "training", "loss"),
    ):
        with pytest.raises(
            StoreError,
            match=(
                r"experiment.db holds a value .* of metrics decompress to more than 268,435,456\)"
            ),
        ):
            read()


def rows(store: Store, table: str) -> int:
    with closing(sqlite3.connect(store.experiment_dir(1) / "experiment.db")) as raw:
        return int(raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def report(
    store: Store, trial: TrialRow, run: Run, positions: range, group: str = "training"
) -> None:
    with store.transaction():
        for batches in positions:
            store.metrics.report(
                trial.id, run.id, group, batches, {"loss": batches / 7, "batches": batches}
            )


def seen(store: Store, trial: TrialRow, **which: Any) -> list[tuple[str, int]]:
    found = list(store.metrics.read(trial_id=trial.id, **which))
    assert all(each.values == {"loss": each.batches / 7, "batches": each.batches} for each in found)
    return [(each.group, each.batches) for each in found]


def test_reports_become_chunks_and_take_a_fifth_of_their_rows(
    store: Store, trial: TrialRow, run: Run
) -> None:
    count = 20 * CHUNK + 5
    report(store, trial, run, range(count))
    report(store, trial, run, range(0, count, 1000), "validation")
    assert rows(store, "chunks") == 20
    assert rows(store, "metrics") == 5 + len(range(0, count, 1000))
    file = store.experiment_dir(1) / "experiment.db"
    with closing(sqlite3.connect(file)) as raw:
        ((packed,),) = raw.execute("SELECT sum(length(data)) FROM chunks").fetchall()
    text = sum(len(f'{{"loss":{n / 7},"batches":{n}}}') + 8 + 8 + 8 for n in range(count))
    assert packed < text / 4
    both = sorted(
        [("training", n) for n in range(count)] + [("validation", n) for n in range(0, count, 1000)]
    )
    assert seen(store, trial) == sorted(both, key=lambda each: (each[1], each[0]))
    assert store.trials.get(trial.id).batches == count - 1


def test_what_a_run_left_is_packed_when_it_ends(store: Store, trial: TrialRow, run: Run) -> None:
    report(store, trial, run, range(FEW))
    report(store, trial, run, range(FEW - 1), "other")
    store.runs.end(run.id, "COMPLETED")
    assert rows(store, "chunks") == 1
    assert rows(store, "metrics") == FEW - 1
    assert len(seen(store, trial)) == 2 * FEW - 1


def test_a_range_is_read_without_the_rest(store: Store, trial: TrialRow, run: Run) -> None:
    report(store, trial, run, range(10 * CHUNK))
    with closing(sqlite3.connect(store.experiment_dir(1) / "experiment.db")) as raw, raw:
        raw.execute(
            f"UPDATE chunks SET data = x'00' WHERE first > {4 * CHUNK} OR last < {3 * CHUNK}"
        )
    asked = range(3 * CHUNK + 7, 4 * CHUNK - 7)
    assert [at for _, at in seen(store, trial, first=asked[0], last=asked[-1])] == [*asked]
    assert seen(store, trial, group="validation") == []


def test_stream_has_no_gap_or_repeat_while_a_driver_packs(
    store: Store, trial: TrialRow, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_history, "PAGE", 100)
    monkeypatch.setattr(_history, "_SPANS", 2)
    count = 8 * CHUNK + 300
    report(store, trial, run, range(0, count, 2))
    with Store.reader(store.home) as reader:
        stream = reader.metrics.read(trial_id=trial.id)
        first = [next(stream).batches for _ in range(10)]
        report(store, trial, run, range(count, count + CHUNK))
        store.runs.end(run.id, "COMPLETED")
        assert rows(store, "metrics") < FEW
        assert first + [each.batches for each in stream] == [
            *range(0, count, 2),
            *range(count, count + CHUNK),
        ]


def test_many_reports_of_one_position_are_read_whole(
    store: Store, trial: TrialRow, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_history, "PAGE", 4)
    for group in "abcdefghij":
        report(store, trial, run, range(3, 6), group)
    for _ in range(9):
        report(store, trial, run, range(4, 5), "a")
    assert seen(store, trial) == [(group, at) for at in range(3, 6) for group in "abcdefghij"]
    assert seen(store, trial, archived=True) == [("a", 4)] * 9


begins = st.tuples(st.just("begin"), st.integers(0, 12))
told = st.tuples(
    st.just("report"), st.sampled_from(["training", "other", "validation"]), st.integers(0, 12)
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions=st.lists(told | begins | st.just(("pack",)), max_size=30))
def test_packed_history_has_one_report_per_position(
    store: Store,
    another: Callable[..., ExperimentRow],
    monkeypatch: pytest.MonkeyPatch,
    actions: list[Any],
) -> None:
    monkeypatch.setattr(_metrics, "FEW", 1)
    monkeypatch.setattr(_metrics, "CHUNK", 3)
    monkeypatch.setattr(_history, "PAGE", 3)
    trial = store.trials.create(another(metric="loss").id, 0, {}, seed=0)
    run = store.runs.begin(trial.id)
    live: dict[tuple[int, str], int] = {}
    gone: list[tuple[int, str, int]] = []
    for number, (kind, *arguments) in enumerate(actions):
        if kind == "begin":
            run = store.runs.begin(trial.id, arguments[0])
            past = [key for key in live if key[0] > arguments[0]]
            gone += [(*key, live.pop(key)) for key in past]
        elif kind == "report":
            group, batches = arguments
            store.metrics.report(trial.id, run.id, group, batches, {"loss": number})
            gone += [(batches, group, live[batches, group])] if (batches, group) in live else []
            live[batches, group] = number
        else:
            store.metrics.pack(trial.id)
        for group in ("training", None) if number % 4 == 0 else ():
            found = store.metrics.read(trial_id=trial.id, group=group, first=2, last=9)
            expected = [
                (*key, value)
                for key, value in sorted(live.items())
                if 2 <= key[0] <= 9 and group in (None, key[1])
            ]
            assert [(each.batches, each.group, each.values["loss"]) for each in found] == expected
        archived = store.metrics.read(trial_id=trial.id, archived=True)
        assert sorted(
            (each.batches, each.group, each.values["loss"]) for each in archived
        ) == sorted(gone)
    losses = [value for (_, group), value in live.items() if group == "validation"]
    assert store.trials.get(trial.id).best_metric == min(losses, default=None)


WRITE = """
import sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store, store.lock(1):
    at = store.trials.get(1).batches
    run = store.runs.begin(1, at)
    while True:
        at += 1
        store.metrics.report(1, run.id, "training", at, {"loss": float(at)})
        print(at, flush=True)
"""


@pytest.mark.process
def test_no_report_that_was_committed_is_lost_by_a_kill(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with Store(tmp_path) as store:
        store.experiments.create(name="x", config="{}")
        with store.lock(1):
            store.trials.create(1, 0, {}, 0)
    dice, told = random.Random(0), 0
    for _ in range(4):
        writer = start(WRITE, tmp_path)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(dice.random() * 0.5)
        writer.kill()
        before, told = told, int(writer.communicate()[0].split("\n")[-2])
        with Store.reader(tmp_path) as store:
            found = [(each.batches, each.values["loss"]) for each in store.metrics.read(trial_id=1)]
        assert found == [(at, float(at)) for at in range(1, len(found) + 1)]
        assert before < told <= len(found) <= told + 1
    assert told > CHUNK


def test_older_experiment_is_read_unpacked_and_packed_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        for module in (_databases, _experiments):
            earlier.setattr(module, "EXPERIMENT", EXPERIMENT[:-1])
        with Store(tmp_path) as store:
            store.experiments.create(name="x", config="{}")
            with store.lock(1) as database:
                trial = store.trials.create(1, 0, {}, 0)
                for batches in range(2 * CHUNK):
                    database.run(
                        "INSERT INTO metrics (trial_id, run_id, kind, batches, time, data) VALUES"
                        " (?, 1, 'training', ?, 0.0, ?)",
                        (trial.id, batches, f'{{"loss":{batches / 7},"batches":{batches}}}'),
                    )
    with Store.reader(tmp_path) as store:
        assert len(seen(store, trial)) == 2 * CHUNK
    with Store(tmp_path) as store, store.lock(1):
        run = store.runs.begin(trial.id, 2 * CHUNK)
        report(store, trial, run, range(2 * CHUNK, 2 * CHUNK + 1))
        store.runs.end(run.id, "COMPLETED")
        assert len(seen(store, trial)) == 2 * CHUNK + 1
        assert rows(store, "metrics") < FEW
