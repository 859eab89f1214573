from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, Run, Store, TrialRow

WRITE = """
import sys, time
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store, store.lock(1):
    print("ready", flush=True)
    n = 0
    worst = 0.0
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        began = time.monotonic()
        with store.transaction():
            store.journal.append(1, "{}")
            store.trials.update(1, batches=(n := n + 1))
        worst = max(worst, time.monotonic() - began)
    print(n, worst, flush=True)
"""


@pytest.mark.process
def test_readers_see_whole_transactions_and_hold_nobody_up(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    store.experiments.create(name="x", config="{}")
    with store.lock(1):
        trial = store.trials.create(1, 0, {}, 0)
    writer = start(WRITE, store.home)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    reads, last = 0, 0
    with Store.reader(store.home) as reader:
        while writer.poll() is None and reads < 100_000:
            with reader.transaction():
                batches = reader.trials.get(trial.id).batches
                newest = [
                    event.seq
                    for event in reader.journal.read(trial.experiment_id, after=max(batches - 1, 0))
                ]
            assert newest == ([batches] if batches else [])
            assert batches >= last
            reads, last = reads + 1, batches
    written, worst = writer.communicate()[0].split()

    assert reads > 10
    assert int(written) > 100
    assert float(worst) < 5, "a writer that waits for a reader waits for the busy timeout of 30 s"


def test_a_writer_goes_on_while_a_reader_keeps_its_snapshot(store: Store, trial: TrialRow) -> None:
    with Store.reader(store.home) as reader, reader.transaction():
        reader.trials.get(trial.id)
        for batches in range(50):
            store.trials.update(trial.id, batches=batches)
        assert reader.trials.get(trial.id) == trial


def test_a_history_is_streamed_while_its_reader_writes(
    store: Store, experiment: ExperimentRow, trial: TrialRow
) -> None:
    """A half-read cursor would keep a stale snapshot, in which SQLite refuses to write."""
    run = store.runs.begin(trial.id)
    for batches in range(3):
        store.metrics.report(trial.id, run.id, "training", batches, {"loss": 1.0})
        store.journal.append(experiment.id, "{}")

    for stream in (store.metrics.read(trial_id=trial.id), store.journal.read(experiment.id)):
        next(stream)
        store.trials.update(trial.id, restarts=2)
        assert len([*stream]) == 2


def test_reading_where_there_is_no_store_makes_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"^no store in {tmp_path}; det run makes one$"):
        Store.reader(tmp_path)

    assert [*tmp_path.iterdir()] == []


READ_AT_ONCE = """
import sys, threading, time
from pathlib import Path
from det_driver.store import Store

def read():
    with Store.reader(Path(sys.argv[1])) as store:
        begin.wait()
        [only] = store.experiments.list()
        said.append((only.experiment.name, len(list(store.metrics.read(trial_id=int(sys.argv[2]))))))

said = []

def slowly(frame, *_):
    if frame.f_code.co_filename.endswith("enum.py"):  # which is asked for its members where a type is looked at
        time.sleep(0.01)

threading.settrace(slowly)
begin = threading.Barrier(8)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*set(said), len(said))
"""


@pytest.mark.process
def test_the_first_readers_of_a_process_may_be_several_threads(
    store: Store, trial: TrialRow, run: Run, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """As in a server that has just started.

    What is decoded for the first time in two threads at once is not half known to one.
    """
    for batches in range(300):
        store.metrics.report(trial.id, run.id, "training", batches, {"loss": 0.5})
    reader = start(READ_AT_ONCE, store.home, trial.id)
    assert (reader.communicate(timeout=60)[0], reader.returncode) == ("('digits', 300) 8\n", 0)
