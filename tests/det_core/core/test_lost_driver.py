"""Scripts whose driver is gone: they save and end as for a pause, and the next run reports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from det_core.config import from_json
from det_core.core import Context, PreemptMode
from det_core.ranks.distributed import DistributedContext
from det_core.storage import open_storage
from det_core.train.environ import WorkerEnv
from det_core.train.host import HostLost, Outcome, Target
from det_core.train.local import LocalHost
from det_core.train.run_setup import decode_note, make_checkpoint_sink


class Driver(LocalHost):
    """A driver that is gone after so many messages."""

    def __init__(self, messages: int) -> None:
        super().__init__(Target(n=30, unit="batches"))
        self.left = messages
        self.got: list[tuple[Any, ...]] = []

    def _take(self, *message: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise HostLost("the driver is gone")
        self.got.append(message)

    def target(self) -> Target:
        self._take("target")
        return super().target()

    def report(self, group: str, batches: int, metrics: Any) -> None:
        self._take(group, batches, metrics)

    def validated(self, batches: int, metrics: Any, length: int | None) -> Target:
        self._take("validation", batches, metrics)
        return Target(n=30)

    def checkpointed(self, manifest: Any, storage: str) -> None:
        self._take("checkpoint", manifest.batches)

    def finished(self, outcome: Outcome, message: str = "") -> None:
        self._take("finished", outcome)

    def deleted(self, uuid: str) -> None:
        self._take("deleted", uuid)

    def best_validation(self) -> float | None:
        self._take("best")
        return 0.5

    def progress(self, fraction: float) -> None:
        self._take("progress", fraction)

    def status(self, text: str) -> None:
        self._take("status", text)

    def alert(self, title: str, description: str, level: str) -> None:
        self._take("alert", title)


def begin(folder: Path, driver: Driver, **facts: Any) -> Context:
    config = from_json(
        '{"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "error",'
        ' "max_length": {"batches": 30}}}'
    )
    env = WorkerEnv(
        experiment_id=1,
        trial_id=2,
        run_id=3,
        run_number=1,
        seed=0,
        hparams={},
        config=config,
        slot_ids=(0,),
        driver=("127.0.0.1", 1),
        key=b"",
        checkpoint_root=folder / "checkpoints",
        tensorboard_dir=folder / "tensorboard",
        spool=folder / "spool",
        **facts,
    )
    keep = make_checkpoint_sink(env, open_storage(None, env.checkpoint_root))
    return Context(driver, keep, DistributedContext(), env, PreemptMode.WorkersAskChief)


def save(context: Context, batches: int) -> str:
    with context.checkpoint.store_path({"steps_completed": batches}) as (path, uuid):
        (path / "state").write_text(str(batches))
    return uuid


def test_nothing_a_script_calls_raises_when_its_driver_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with begin(tmp_path, Driver(2)) as context:
        operation = next(context.searcher.operations())
        uuid = save(context, 5)
        context.train.report_validation_metrics(10, {"error": 0.5})
        context.train.report_training_metrics(10, {"loss": 0.5})
        context.train.report_progress(0.5)
        context.train.set_status("training")
        context.alert("title")
        operation.report_progress(10)
        operation.report_completed(0.5)
        assert context.train.get_experiment_best_validation() is None
        assert list(context.searcher.operations()) == []
        context.checkpoint.delete(uuid)
        assert context.preempt.should_preempt()
        later = save(context, 11)
    assert capsys.readouterr().err.count("the driver is gone") == 1
    # A checkpoint that the driver still has is not deleted, and the last one is noted for it.
    assert (tmp_path / "checkpoints" / uuid).is_dir()
    [note] = (tmp_path / "spool").glob("*.json")
    assert decode_note(note.read_bytes()).manifest.uuid == later


def test_the_next_run_sends_the_reports_that_a_lost_driver_lacks(tmp_path: Path) -> None:
    """Those of positions that it trains again are left out, and what was stored for sure, too."""
    with begin(tmp_path, Driver(4)) as context:
        context.train.report_training_metrics(3, {"loss": 3.0})
        context.train.report_validation_metrics(4, {"error": 4.0})
        context.train.report_training_metrics(5, {"loss": 5.0})
        context.train.report_training_metrics(6, {"loss": math.inf})
        context.train.report_training_metrics(7, {"loss": 7.0})
        context.train.report_validation_metrics(8, {"error": 8.0})
        context.train.report_validation_metrics(9, {"error": 9.0})
    driver = Driver(100)
    begin(tmp_path, driver, steps_completed=8, latest_checkpoint="x").close()
    assert driver.got == [
        ("training", 5, {"loss": 5.0}),
        ("training", 6, {"loss": math.inf}),
        ("training", 7, {"loss": 7.0}),
        ("validation", 8, {"error": 8.0, "batches": 8}),
    ]
    again = Driver(100)
    begin(tmp_path, again, steps_completed=8, latest_checkpoint="x").close()
    assert again.got == []


def test_reports_stay_noted_where_the_next_driver_is_lost_too(tmp_path: Path) -> None:
    """Each of them once, in their order, wherever those drivers are lost."""
    with begin(tmp_path, Driver(0)) as context:
        context.train.report_training_metrics(1, {"loss": 1.0})
        context.train.report_validation_metrics(2, {"error": 2.0})
        context.train.report_training_metrics(3, {"loss": 3.0})
    for messages in (0, 1, 2, 0):
        begin(tmp_path, Driver(messages), steps_completed=4).close()
    with begin(tmp_path, Driver(0), steps_completed=4) as context:
        context.train.report_training_metrics(5, {"loss": 5.0})
    for _ in range(2):
        # No reply shows that the driver has stored the last ones.
        driver = Driver(100)
        begin(tmp_path, driver, steps_completed=6).close()
        assert [message[1] for message in driver.got] == [1, 2, 3, 5]
    with begin(tmp_path, Driver(100), steps_completed=6) as context:
        context.train.report_validation_metrics(7, {"error": 7.0})
    driver = Driver(100)
    begin(tmp_path, driver, steps_completed=8).close()
    assert driver.got == []


def test_reports_are_noted_after_an_incomplete_line(tmp_path: Path) -> None:
    """It is of a process that was killed while it noted them."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "trial-2.reports").write_text('["a", 1, {"x": 1}]\n["training", 1, {"lo')
    with begin(tmp_path, Driver(0), steps_completed=4) as context:
        context.train.report_training_metrics(5, {"loss": 5.0})
    driver = Driver(100)
    begin(tmp_path, driver, steps_completed=6).close()
    assert driver.got[-1] == ("training", 5, {"loss": 5.0})


def test_a_damaged_note_of_reports_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "trial-2.reports").write_text('[1, 2]\n7\n["a", 1, {"x": 1}]\n["b", 2, {')
    driver = Driver(100)
    begin(tmp_path, driver, steps_completed=4).close()
    assert driver.got == [("a", 1, {"x": 1})]
