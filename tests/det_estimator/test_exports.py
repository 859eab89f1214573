"""Saved models: in checkpoints, and by exporters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.det_estimator.conftest import EACH_BATCH, Host
from tests.det_estimator.trials import Line, v1

from det_core import CheckpointError, CheckpointSink, Every, Schedule, Stop, TrialError, run_trial
from det_core.config import Length
from det_estimator import load_estimator_from_checkpoint_path
from det_testing._play import Cast, Request, play

EACH = Schedule(report=Every(1), validate=Every(1), checkpoint=Every(1), policy="none")


class Serving(Line):
    """With one receiver, and exporters that tests choose."""

    names = ("line",)

    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        return dict.fromkeys(self.names, self.serving)

    def serving(self) -> Any:
        x = v1.placeholder(tf.float32, [None], "x")
        return tf.estimator.export.TensorServingInputReceiver(x, {"x": x})

    def build_validation_spec(self) -> Any:
        return tf.estimator.EvalSpec(self.validation_data, steps=None, exporters=self.exporters())

    def exporters(self) -> Any:
        return None


def test_each_checkpoint_holds_a_saved_model_that_answers(lab: Any) -> None:
    ran = lab(Serving, 4)
    with lab.opened(ran.checkpoints[4]) as path:
        model = load_estimator_from_checkpoint_path(path)
        answer = model.signatures["serving_default"](x=tf.constant([2.0]))["y"]
        assert float(answer[0]) == pytest.approx(2 * ran.validation[4]["weight"])


def test_a_saved_model_is_found_by_its_name(lab: Any) -> None:
    two = lab(type("Two", (Serving,), {"names": ("a", "b")}), 1)
    with lab.opened(two.checkpoints[1]) as path:
        assert load_estimator_from_checkpoint_path(path, name="b", tags=["serve"]) is not None
        with pytest.raises(
            CheckpointError, match=r"holds 2 saved models \(a, b\); say which one by name"
        ):
            load_estimator_from_checkpoint_path(path)
        with pytest.raises(CheckpointError, match="holds no saved model 'c'; there are: a, b"):
            load_estimator_from_checkpoint_path(path, name="c")


@pytest.mark.parametrize("name", ["../out", "checkpoint"])
def test_a_name_that_is_none_for_a_folder_is_refused(lab: Any, name: str) -> None:
    with pytest.raises(TrialError, match=r"names a model .*; give it another name"):
        lab(type("Odd", (Serving,), {"names": (name,)}), 1)


def exported(lab: Any, uuid: str, name: str) -> list[Path]:
    with lab.opened(uuid) as path:
        return sorted(
            file.parent.relative_to(path)
            for file in (path / "export" / name).glob("*/saved_model.pb")
        )


def test_exporters_write_into_checkpoints(lab: Any) -> None:
    """The latest keeps as many as it is told.

    The final one has the newest model, as any validation may be the last.
    """

    class Trial(Serving):
        def exporters(self) -> Any:
            latest = tf.estimator.LatestExporter("latest", self.serving, exports_to_keep=2)
            return [latest, tf.estimator.FinalExporter("final", self.serving)]

    ran = lab(Trial, 4, schedule=EACH)
    assert [len(exported(lab, ran.checkpoints[n], "latest")) for n in (1, 2, 3, 4)] == [1, 2, 2, 2]
    assert [len(exported(lab, ran.checkpoints[n], "final")) for n in (1, 4)] == [1, 1]
    again = lab(Trial, 5, schedule=EACH, checkpoint=ran.checkpoints[4])
    assert len(exported(lab, again.checkpoints[5], "latest")) == 2


def test_last_checkpoint_has_the_exports_of_the_last_validation(lab: Any) -> None:
    class Trial(Serving):
        def exporters(self) -> Any:
            latest = tf.estimator.LatestExporter("latest", self.serving)
            return [latest, tf.estimator.FinalExporter("final", self.serving)]

    ran = lab(Trial, 4, length=Length("batches", 4))
    assert list(ran.checkpoints) == [4]
    with lab.opened(ran.checkpoints[4]) as path:
        for name in ("latest", "final"):
            [folder] = (path / "export" / name).iterdir()
            answer = tf.saved_model.load(str(folder)).signatures["serving_default"](
                x=tf.constant([2.0])
            )["y"]
            assert float(answer[0]) == pytest.approx(2 * ran.validation[4]["weight"])


def test_an_exporter_that_raises_in_the_end_costs_no_training(lab: Any) -> None:
    class Breaks(tf.estimator.FinalExporter):
        def export(self, *arguments: Any, **more: Any) -> Any:
            raise RuntimeError("the disk of the models is full")

    trial = type("Trial", (Serving,), {"exporters": lambda self: Breaks("final", self.serving)})
    host, keep = Host(4, None), CheckpointSink(storage=lab.storage)
    with pytest.raises(RuntimeError, match="the disk of the models is full"):
        run_trial(
            lab.framework,
            trial,
            lab.info(length=Length("batches", 4)),
            host,
            keep,
            schedule=lambda _: EACH_BATCH,
        )
    assert [manifest.batches for manifest, _ in host.checkpoints] == [4]


class Best(Serving):
    """Exports what is better than anything before, and gets worse with each batch."""

    rate = -0.01

    def exporters(self) -> Any:
        return tf.estimator.BestExporter("best", self.serving)


def test_the_best_stays_the_best_over_a_restart(lab: Any) -> None:
    ran = lab(Best, 2, schedule=EACH)
    assert len(exported(lab, ran.checkpoints[2], "best")) == 1
    again = lab(Best, 4, schedule=EACH, checkpoint=ran.checkpoints[2])
    assert exported(lab, again.checkpoints[4], "best") == exported(lab, ran.checkpoints[2], "best")


def stopping(name: str, **limit: Any) -> type[Line]:
    """Return a trial whose loss is always 25.5, with one of TensorFlow's hooks."""

    class Stopping(Line):
        rate = 0.0

        def build_estimator(self) -> Any:
            self.estimator = super().build_estimator()
            return self.estimator

        def hooks(self) -> list[Any]:
            stop: Any = getattr(tf.estimator.experimental, name)
            return [stop(self.estimator, "loss", **limit, run_every_secs=None, run_every_steps=1)]

    return Stopping


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("stop_if_no_decrease_hook", {"max_steps_without_decrease": 3}),
        pytest.param(
            "stop_if_no_increase_hook", {"max_steps_without_increase": 3}, marks=pytest.mark.slow
        ),
        ("stop_if_higher_hook", {"threshold": 25.0, "min_steps": 4}),
        pytest.param(
            "stop_if_lower_hook", {"threshold": 26.0, "min_steps": 4}, marks=pytest.mark.slow
        ),
    ],
)
def test_hook_that_stops_by_a_metric_reads_validations(
    lab: Any, name: str, limit: dict[str, Any]
) -> None:
    """It reads them where its estimator evaluates, and remembers existing ones over a restart."""
    trial = stopping(name, **limit)
    whole = lab(trial, 40, schedule=EACH)
    assert whole.stop is Stop.USER_STOPPED
    first = lab(trial, 40, schedule=EACH, preempt_at=2)
    second = lab(trial, 40, schedule=EACH, checkpoint=first.checkpoints[2], first_batch=2)
    assert second.stop is Stop.USER_STOPPED
    # The validation after batch 4 is the third without a change, and the first that a threshold
    # counts for. The hook stops training after batch 5. It reads the global step while the batch
    # increments it. If it reads 4 twice, it skips a check and stops after batch 6. A run that lost
    # the first two validations would end at 7 or 8 where the hook counts changes.
    assert {max(whole.training), max(second.training)} <= {5, 6}


class Stopping(stopping("stop_if_no_decrease_hook", max_steps_without_decrease=3)):  # type: ignore[misc]
    """Stops where the loss does not fall, in a module that another process can import."""


@pytest.mark.process
@pytest.mark.slow
def test_hook_that_reads_validations_stops_all_ranks(tmp_path: Path) -> None:
    """Only the chief writes them, and its hook stops the other rank, too."""
    cast = Cast(
        trial=Stopping, framework="estimator", hooks="det_estimator._hooks", backend="native"
    )
    request = Request(name="run", length=40, validate=1, hparams={"global_batch_size": 4})
    ranks = play(cast, [request], tmp_path)
    assert [rank["run"].stop for rank in ranks] == [Stop.USER_STOPPED] * 2
    assert max(ranks[0]["run"].reports) in (5, 6)


@pytest.mark.parametrize(
    ("name", "threshold"), [("stop_if_higher_hook", 26.0), ("stop_if_lower_hook", 25.0)]
)
def test_hook_whose_threshold_is_not_crossed_stops_nothing(
    lab: Any, name: str, threshold: float
) -> None:
    ran = lab(stopping(name, threshold=threshold), 4, schedule=EACH)
    assert ran.stop is not Stop.USER_STOPPED
    assert max(ran.training) == 4


def test_keras_model_in_its_default_format_is_exported(lab: Any) -> None:
    """It is validated, too."""

    class OfKeras(Line):
        def build_estimator(self) -> Any:
            model = tf.keras.Sequential([tf.keras.Input((1,), name="x"), tf.keras.layers.Dense(1)])
            model.compile(self.context.wrap_optimizer(tf.keras.optimizers.legacy.SGD(0.01)), "mse")
            return tf.keras.estimator.model_to_estimator(model)

        def records(self) -> Any:
            x = tf.reshape(tf.constant(self.xs), (8, 1))
            return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, 2 * x)))

        def build_serving_input_receiver_fns(self) -> dict[str, Any]:
            return {"line": self.serving}

        def serving(self) -> Any:
            x = v1.placeholder(tf.float32, [None, 1], "x")
            return tf.estimator.export.TensorServingInputReceiver(x, {"x": x})

    ran = lab(OfKeras, 4, schedule=EACH)
    assert ran.validation[4]["loss"] < ran.validation[1]["loss"]
