"""DeterminedCallback in one process, outside of `det run`."""

from __future__ import annotations

import os
import signal
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest

from det_core import StorageError, TrialError, core

pytest.importorskip("tensorflow")

import tensorflow as tf

from det_keras import DeterminedCallback, TensorBoard
from det_keras.rng import seed_everything
from det_keras.versions import KERAS_3, keras

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 40)


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as made:
        yield made


def make_model(optimizer="adam", first=None, eagerly=True):
    """Return a small model; run eagerly, as tracing would take most of the time of these tests."""
    seed_everything(3)
    layers = [
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([*([first] if first is not None else []), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer() if callable(optimizer) else optimizer,
        loss,
        metrics=["accuracy"],
        run_eagerly=eagerly,
    )
    return model


def fit(
    context,
    model,
    epochs,
    checkpoint=None,
    continue_id=1,
    callbacks=(),
    verbose=2,
    callback=DeterminedCallback,
    **options,
):
    det = callback(context, checkpoint, continue_id, **options)
    return model.fit(
        X,
        Y,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        validation_data=(X, Y),
        verbose=verbose,
        callbacks=[det, *callbacks],
    )


def checkpoints(context) -> list[str]:
    """Return the uuids, oldest first."""
    return [manifest.uuid for manifest, _ in context._host.checkpoints]


def reports(context, group: str) -> list[tuple[int, dict]]:
    return [(batches, metrics) for name, batches, metrics in context._host.history if name == group]


def weights(model) -> list[np.ndarray]:
    """Return everything that training changes."""
    optimizer = model.optimizer.variables
    return [
        *model.get_weights(),
        *(np.asarray(v) for v in (optimizer() if callable(optimizer) else optimizer)),
    ]


def assert_equal(left, right) -> None:
    assert len(left) == len(right)
    for mine, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_each_epoch_is_reported_with_its_place(context):
    history = fit(context, make_model(), 2).history
    training = reports(context, "training")
    assert [(batches, m["epochs"], m["batches"]) for batches, m in training] == [
        (5, 1, 5),
        (10, 2, 10),
    ]
    assert [m["loss"] for _, m in training] == pytest.approx(history["loss"])
    assert not [name for _, m in training for name in m if name.startswith("val_")]
    validation = reports(context, "validation")
    assert [(batches, m["epochs"]) for batches, m in validation] == [(5, 1), (10, 2)]
    assert [m["accuracy"] for _, m in validation] == pytest.approx(history["val_accuracy"])


def test_validation_is_reported_before_the_epochs_training(context):
    fit(context, make_model(), 1)
    assert [group for group, _, _ in context._host.history] == ["validation", "training"]


def test_training_is_reported_every_so_many_batches(context):
    fit(context, make_model(), 2, train_metrics_report_period=4)
    assert [batches for batches, _ in reports(context, "training")] == [4, 8]


@pytest.mark.slow
def test_batches_are_counted_where_several_are_trained_at_once(context):
    model = make_model()
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=2
    )
    fit(context, model, 2)
    assert [batches for batches, _ in reports(context, "training")] == [5, 10]


def test_batch_end_hook_exists_only_if_batches_are_reported(context):
    """Keras waits for each batch where a callback has this hook."""
    base = keras.callbacks.Callback
    assert DeterminedCallback.on_train_batch_end is base.on_train_batch_end
    assert (
        DeterminedCallback(context, None, 1, train_metrics_report_period=2).on_train_batch_end
        != base.on_train_batch_end
    )


@pytest.mark.slow
@pytest.mark.parametrize(("every", "saved"), [(1, [5, 10, 15]), (2, [10, 15]), (0, [15])])
def test_checkpoints_are_saved_every_n_epochs_and_at_the_end(context, every, saved):
    fit(context, make_model(), 3, checkpoint_epochs=every)
    assert [manifest.batches for manifest, _ in context._host.checkpoints] == saved
    assert context.checkpoint.get_metadata(checkpoints(context)[-1])["epochs_completed"] == 3


OPTIMIZERS = ["adam"] if KERAS_3 else ["adam", keras.optimizers.legacy.Adam]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_training_is_that_which_was_never_interrupted(context, optimizer):
    whole = make_model(optimizer, eagerly=False)
    expected = fit(context, whole, 4, callbacks=[keras.callbacks.EarlyStopping(patience=9)]).history
    fit(
        context,
        make_model(optimizer, eagerly=False),
        2,
        callbacks=[keras.callbacks.EarlyStopping(patience=9)],
    )
    model, stopping = (
        make_model(optimizer, eagerly=False),
        keras.callbacks.EarlyStopping(patience=9),
    )
    history = fit(context, model, 4, checkpoints(context)[-1], callbacks=[stopping])
    assert_equal(weights(model), weights(whole))
    assert history.history == expected
    assert history.epoch == [0, 1, 2, 3]
    assert stopping.best == min(expected["val_loss"])
    assert [batches for batches, _ in reports(context, "training")][-2:] == [15, 20]


@pytest.mark.slow
def test_models_built_by_data_or_with_a_shape_both_resume(context):
    for first in (None, keras.layers.InputLayer((4,))):
        fit(context, make_model(first=first), 1)
        model = make_model(first=first)
        fit(context, model, 1, checkpoints(context)[-1])  # nothing is left to train
        assert model.built


@pytest.mark.slow
def test_the_model_of_another_training_is_a_beginning(context):
    trained = make_model()
    fit(context, trained, 2, continue_id="mine")
    model = make_model()
    before = len(reports(context, "training"))
    ended = []
    start = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: ended.append((epoch, model.get_weights()))
    )
    fit(context, model, 1, checkpoints(context)[-1], continue_id="other", callbacks=[start])
    assert [epoch for epoch, _ in ended] == [0]
    assert_equal(ended[0][1], trained.get_weights())
    assert [batches for batches, _ in reports(context, "training")[before:]] == [5]


@pytest.mark.slow
def test_a_number_and_the_same_number_in_text_name_two_trainings(context):
    fit(context, make_model(), 1, continue_id=7)
    fit(context, make_model(), 2, checkpoints(context)[-1], continue_id="7")
    assert [batches for batches, _ in reports(context, "training")] == [5, 5, 10]


@pytest.mark.slow
def test_training_at_its_last_epoch_trains_no_more(context):
    fit(context, make_model(), 2)
    model = make_model()
    fit(context, model, 2, checkpoints(context)[-1])
    assert [batches for batches, _ in reports(context, "training")] == [5, 10]
    assert len(checkpoints(context)) == 2


@pytest.mark.slow
def test_the_next_fit_of_a_resumed_model_begins_where_it_is_told(context):
    fit(context, make_model(), 1)
    model = make_model()
    fit(context, model, 2, checkpoints(context)[-1])
    assert model.fit(X, Y, epochs=1, verbose=0).epoch == [0]


def test_signal_within_an_epoch_saves_at_its_end_and_stops(context):
    before = signal.getsignal(signal.SIGTERM)

    def shoot(batch, logs):
        if int(model.optimizer.iterations) == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    model = make_model()
    history = fit(
        context,
        model,
        5,
        checkpoint_epochs=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=shoot)],
    )
    assert history.epoch == [0, 1]
    assert [manifest.batches for manifest, _ in context._host.checkpoints] == [10]
    assert str(context._host.outcome) == "Outcome.PREEMPTED"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_in_the_last_epoch_changes_nothing(context):
    shoot = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: os.kill(os.getpid(), signal.SIGTERM)
    )
    fit(context, make_model(), 1, callbacks=[shoot])
    assert context._host.outcome is None


def averaged():
    return keras.optimizers.SGD(0.5, momentum=0.9, use_ema=True, ema_momentum=0.7)


def evaluated(context, uuid) -> dict:
    """Return what Keras alone finds in a checkpoint."""
    model = make_model(averaged, first=keras.layers.InputLayer((4,)))
    model.optimizer.build(model.trainable_variables)
    with context.checkpoint.restore_path(uuid) as path:
        model.load_weights(str(path / "model_checkpoint.weights.h5"))
    return model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.parametrize("preempted", [False, True])
def test_training_resumes_from_weights_before_the_end_hooks(context, preempted):
    """Keras changes the weights at the end to averages or to the best ones."""

    def best():
        return keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)

    def shoot(epoch, logs):
        if preempted and epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = make_model(averaged)
    expected = fit(context, whole, 4, callbacks=[best()]).history
    end = keras.callbacks.LambdaCallback(on_epoch_begin=shoot)
    fit(
        context, make_model(averaged), 4 if preempted else 2, continue_id=2, callbacks=[best(), end]
    )
    model = make_model(averaged)
    assert (
        fit(context, model, 4, checkpoints(context)[-1], 2, callbacks=[best()]).history == expected
    )
    assert_equal(weights(model), weights(whole))


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_checkpoint_matches_reports_and_script_has_keras_weights(context, first):
    """Whichever callback comes first.

    The last weights are overwritten by averages and by the best.
    """

    def best():
        return keras.callbacks.EarlyStopping(
            "accuracy", patience=1, min_delta=9.0, restore_best_weights=True
        )

    def trained(callbacks):
        model = make_model(averaged)
        model.fit(
            X,
            Y,
            batch_size=8,
            epochs=5,
            shuffle=False,
            validation_data=(X, Y),
            verbose=0,
            callbacks=callbacks,
        )
        return model

    det = DeterminedCallback(context, None, 1, checkpoint_epochs=0)
    model, alone = trained([det, best()] if first else [best(), det]), trained([best()])
    assert_equal(model.get_weights(), alone.get_weights())
    reported = reports(context, "validation")[-1][1]
    found = evaluated(context, checkpoints(context)[-1])
    assert {name: reported[name] for name in found} == pytest.approx(found, rel=1e-6)


@pytest.mark.slow
def test_early_stopping_keeps_its_patience_over_a_restart(context):
    def stopping():
        return keras.callbacks.EarlyStopping(monitor="never_better", patience=3, mode="min")

    def flat():
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(never_better=1.0)
        )

    fit(context, make_model(), 2, callbacks=[flat(), stopping()])
    history = fit(
        context, make_model(), 9, checkpoints(context)[-1], callbacks=[flat(), stopping()]
    )
    assert history.epoch == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_a_users_callback_has_to_remember_is_asked_of_it(context):
    class Counter(keras.callbacks.Callback):
        epochs = 0

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1

        def get_state(self):
            return {"epochs": self.epochs}

        def load_state(self, state):
            self.epochs = state["epochs"]

    fit(context, make_model(), 2, callbacks=[Counter()])
    counter = Counter()
    fit(context, make_model(), 3, checkpoints(context)[-1], callbacks=[counter])
    assert counter.epochs == 3


class Begins(keras.callbacks.Callback):
    """Sets weights and the rate when training begins, and draws a number."""

    def on_train_begin(self, logs=None):
        self.model.set_weights([np.ones_like(weight) for weight in self.model.get_weights()])
        self.model.optimizer.learning_rate.assign(0.01)
        np.random.rand()

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate.assign(0.02 + np.random.rand() / 100)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [True, False])
def test_on_train_begin_changes_are_made_once_across_resumes(context, behind):
    """Whether the callback is listed behind DeterminedCallback or before it."""

    def trained(epochs, checkpoint=None):
        model, det = (
            make_model(first=keras.layers.InputLayer((4,))),
            DeterminedCallback(context, checkpoint, 1),
        )
        callbacks = [det, Begins()] if behind else [Begins(), det]
        options = {"batch_size": 8, "shuffle": False, "verbose": 0, "callbacks": callbacks}
        return model, model.fit(X, Y, epochs=epochs, **options).history

    whole, expected = trained(3)
    trained(2)
    resumed, found = trained(3, checkpoints(context)[-1])
    assert found == expected
    assert_equal(weights(resumed), weights(whole))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_learning_rate_that_a_callback_lowered_is_kept(context, optimizer):
    """The files of Keras 2 do not hold it."""

    def plateau():
        return keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0)

    def rate(model):
        return float(np.asarray(model.optimizer.learning_rate))

    whole = make_model(optimizer)
    expected = fit(context, whole, 4, callbacks=[plateau()]).history
    fit(context, make_model(optimizer), 3, callbacks=[plateau()])
    model = make_model(optimizer)
    found = fit(context, model, 4, checkpoints(context)[-1], callbacks=[plateau()])
    assert found.history == expected
    assert rate(model) == rate(whole) < 1e-4
    assert_equal(weights(model), weights(whole))


def test_callback_without_methods_for_its_state_begins_again(context):
    class Counter(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epochs = 0

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1

    with pytest.warns(UserWarning, match="training changes Counter.epochs of callbacks") as told:
        fit(context, make_model(), 2, callbacks=[Counter(), keras.callbacks.EarlyStopping()])
    assert len([each for each in told if "of callbacks" in str(each.message)]) == 1
    counter = Counter()
    fit(context, make_model(), 3, checkpoints(context)[-1], callbacks=[counter])
    assert counter.epochs == 1


class Stops(keras.callbacks.Callback):
    """Ends training after the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def worsening():
    """Return what ends training after two epochs, as no loss is as high as the first."""
    return keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)


@pytest.mark.slow
@pytest.mark.parametrize("stopping", [Stops, worsening])
def test_script_that_a_callback_ended_trains_no_more(context, stopping):
    """It has the weights that Keras leaves, such as the best ones."""
    whole = make_model()
    history = fit(context, whole, 5, callbacks=[stopping()]).history
    before = len(context._host.history)
    model = make_model()
    found = fit(context, model, 5, checkpoints(context)[-1], callbacks=[stopping()])
    assert len(found.history["loss"]) == len(history["loss"]) < 5
    assert len(context._host.history) == before
    assert_equal(weights(model), weights(whole))


def drawn_order(context, epochs, checkpoint=None):
    """Return the first records of the batches of each epoch, of data that is shuffled."""

    class Order(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.seen = keras.layers.Dense(1), []

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            self.seen.append(float(data[0][0, 0]))
            return super().train_step(data)

    seed_everything(3)
    model = Order()
    model.compile("sgd", "mse", run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40).batch(8)
    callbacks = [DeterminedCallback(context, checkpoint, 1)]
    model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    return [model.seen[begin : begin + 5] for begin in range(0, len(model.seen), 5)]


def test_resumed_epoch_is_shuffled_like_a_scripts_first(context):
    """So a shuffled order is not exact, as the page says."""
    first, second = drawn_order(context, 2)
    [resumed] = drawn_order(context, 3, checkpoints(context)[-1])
    assert resumed == first != second


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no other dropout")
def test_dropout_of_keras_2_needs_its_generators_to_be_exact(context):
    def trained(epochs, checkpoint=None):
        model = make_model(first=keras.layers.InputLayer((4,)))
        keras.backend.experimental.disable_tf_random_generator()
        tf.random.set_seed(3)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dropout(0.5, seed=3), *model.layers]
        )
        model.compile("sgd", "mse")
        fit(context, model, epochs, checkpoint)
        return model

    try:
        whole = trained(3)
        trained(2)
        resumed = trained(3, checkpoints(context)[-1])
    finally:
        keras.backend.experimental.enable_tf_random_generator()
    assert not np.array_equal(resumed.get_weights()[0], whole.get_weights()[0])


class Changes(keras.callbacks.Callback):
    """Changes the model when the second epoch begins."""

    def __init__(self, change, retraces=True):
        super().__init__()
        self.change, self.retraces = change, retraces

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.change(self.model)
            if self.retraces:
                self.model.make_train_function(force=True)


def unfreeze(model):
    model.layers[0].trainable = not model.layers[0].trainable


def replace(model):
    model.optimizer = keras.optimizers.SGD(0.001)


def compile_again(model):
    model.compile(model.optimizer, "sparse_categorical_crossentropy", run_eagerly=True)
    model.make_train_function(force=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unfreeze, "a callback changed which weights are trained"),
        (replace, "a callback gave the model another optimizer than its"),
        (compile_again, "a callback compiled the model again"),
    ],
)
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_train_batch_end", "on_epoch_end"])
def test_what_a_callback_changes_for_no_resume_is_refused(context, change, message, hook):
    """It is refused in that epoch, before it is in a checkpoint."""

    def once(number, logs):
        if number == 1 and not done:
            done.append(number)
            change(model)

    done = []
    model = make_model(first=keras.layers.InputLayer((4,)))
    with pytest.raises(TrialError, match=message):
        fit(context, model, 3, callbacks=[keras.callbacks.LambdaCallback(**{hook: once})])
    assert len(checkpoints(context)) == (0 if hook == "on_train_batch_end" else 1)


def test_a_model_that_its_first_batch_builds_counts_as_unchanged(context):
    fit(context, make_model(), 2)
    assert len(checkpoints(context)) == 2


def set_numbers(model):
    model.optimizer.beta_1, model.optimizer.clipnorm = 0.5, 0.1
    model.layers[-2].rate = 0.8


@pytest.mark.slow
@pytest.mark.parametrize(("eagerly", "retraces"), [(True, False), (False, True), (False, False)])
def test_numbers_that_a_callback_sets_survive_a_restart(context, eagerly, retraces):
    """A compiled step that is not traced again has the old ones, and so it stays."""
    whole = make_model(eagerly=eagerly)
    expected = fit(context, whole, 4, callbacks=[Changes(set_numbers, retraces)]).history
    for epochs in (2, 3, 4):
        model = make_model(eagerly=eagerly)
        checkpoint = checkpoints(context)[-1] if epochs > 2 else None
        callbacks = [Changes(set_numbers, retraces)]
        found = fit(context, model, epochs, checkpoint, 2, callbacks=callbacks)
    assert found.history == expected
    assert_equal(weights(model), weights(whole))


def test_a_script_may_save_its_model_in_its_own_way(context):
    class Mine(DeterminedCallback):
        def save_model(self, model, path, distributed):
            np.savez(f"{path}.npz", *model.get_weights())

        def load_model(self, model, path, distributed):
            with np.load(f"{path}.npz") as arrays:
                model.set_weights([arrays[name] for name in arrays.files])

    trained = make_model()
    fit(context, trained, 1, callback=Mine)
    model = make_model()
    fit(context, model, 1, checkpoints(context)[-1], callback=Mine)
    assert_equal(model.get_weights(), trained.get_weights())


def test_checkpoint_weights_can_be_loaded_by_keras_alone(context):
    trained = make_model()
    fit(context, trained, 1)
    model = make_model(first=keras.layers.InputLayer((4,)))
    with context.checkpoint.restore_path(checkpoints(context)[-1]) as path:
        model.load_weights(str(path / "model_checkpoint.weights.h5"))
    assert_equal(model.get_weights(), trained.get_weights())


def test_progress_is_whole_lines(context, capfd, monkeypatch):
    monkeypatch.setattr("det_keras.determined_callback._SECONDS", float("inf"))
    fit(context, make_model(), 2, verbose=1)
    out = capfd.readouterr().out
    lines = [line for line in out.splitlines() if not line.startswith("{")]
    assert "\r" not in out
    assert "\b" not in out
    assert [line.partition(":")[0] for line in lines] == [
        "epoch 1/2, batch 5",
        "epoch 2/2, batch 10",
    ]
    assert "val_loss=" in lines[0]
    fit(context, make_model(), 1, verbose=0)
    assert [line for line in capfd.readouterr().out.splitlines() if not line.startswith("{")] == []


def test_validating_and_predicting_alone_print_no_bar(context, capfd):
    callback = DeterminedCallback(context, None, 1)
    model = make_model()
    model.evaluate(X, Y, callbacks=[callback], verbose=1)
    model.predict(X, callbacks=[callback], verbose=1)
    assert [line for line in capfd.readouterr().out.splitlines() if not line.startswith("{")] == []
    assert [(batches, m["epochs"]) for batches, m in reports(context, "validation")] == [(0, 0)]


def test_alone_tensorboard_writes_where_it_is_told(context, tmp_path):
    make_model().fit(
        X, Y, verbose=0, callbacks=[TensorBoard(context, str(tmp_path / "logs"), profile_batch=0)]
    )
    assert list((tmp_path / "logs" / "train").glob("*tfevents*"))


@pytest.mark.parametrize(
    "rival",
    [
        lambda: keras.callbacks.BackupAndRestore("backup"),
        lambda: keras.callbacks.ModelCheckpoint("model.keras"),
    ],
    ids=["BackupAndRestore", "ModelCheckpoint"],
)
def test_another_callback_that_saves_is_refused(context, rival):
    with pytest.raises(TrialError, match=r"both save and restore; leave .* out of the callbacks"):
        fit(context, make_model(), 1, callbacks=[rival()])


def test_two_of_them_are_refused(context):
    with pytest.raises(
        TrialError, match="the callbacks of fit\\(\\) have two of DeterminedCallback; leave one out"
    ):
        fit(context, make_model(), 1, callbacks=[DeterminedCallback(context, None, 2)])


def phases(context, checkpoint=None, signal_in=None):
    """Train as a script with two calls of fit() does, which is interrupted in the epoch of a phase.

    Return the model.
    """
    model = make_model()
    for phase, (rate, epochs) in {"head": (0.1, 3), "all": (0.01, 2)}.items():
        model.compile(keras.optimizers.Adam(rate), model.loss, run_eagerly=True)
        stop = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs, at=phase: (
                signal.raise_signal(signal.SIGTERM) if (at, epoch) == signal_in else None
            )
        )
        fit(context, model, epochs, checkpoint, phase, [stop], verbose=0)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [("head", 0), ("head", 2), ("all", 0)])
def test_script_of_two_phases_resumes_as_if_uninterrupted(context, tmp_path, interrupted):
    """Batches are counted over both.

    What is over is not trained again. What follows a pause is left to the next run.
    """
    whole = phases(context)
    expected = [(batches, m["epochs"]) for batches, m in reports(context, "training")]
    assert expected == [(5, 1), (10, 2), (15, 3), (20, 4), (25, 5)]
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as first:
        phases(first, signal_in=interrupted)
        latest = checkpoints(first)[-1]
        done = [(batches, m["epochs"]) for batches, m in reports(first, "training")]
    assert done == expected[: {("head", 0): 1, ("head", 2): 4, ("all", 0): 4}[interrupted]]
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as second:
        resumed = phases(second, latest)
        done += [(batches, m["epochs"]) for batches, m in reports(second, "training")]
    assert done == expected
    assert_equal(weights(resumed), weights(whole))


def test_two_calls_of_fit_need_two_ids_in_a_run(context, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context.info = SimpleNamespace(trial=SimpleNamespace(config={}))
    model = make_model()
    fit(context, model, 1)
    with pytest.raises(
        TrialError, match=r"two calls of fit\(\) have the continue_id 1; give each its own"
    ):
        fit(context, model, 1)


def test_phase_without_a_checkpoint_counts_on_in_a_run(context, tmp_path, monkeypatch):
    """Reports of a run never go back, also where only the first call of fit() was restored."""
    monkeypatch.chdir(tmp_path)
    fit(context, make_model(), 1, continue_id="first")
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as second:
        second.info = SimpleNamespace(trial=SimpleNamespace(config={}))
        model = make_model()
        fit(second, model, 2, checkpoints(context)[-1], continue_id="first")
        fit(second, model, 1, continue_id="second")
        assert [batches for batches, _ in reports(second, "training")] == [10, 15]


UNKNOWN_TO_KERAS_2 = pytest.mark.skipif(
    not KERAS_3, reason="Keras 2 asks for the number of steps itself"
)


@pytest.mark.parametrize(
    ("steps", "period", "expected"),
    [
        (1, "epoch", [5, 10, 15]),
        (1, 2, [2, 4, 6, 8, 10, 12, 14]),
        pytest.param(4, "epoch", [5, 10, 15], marks=UNKNOWN_TO_KERAS_2),
        pytest.param(4, 2, [4, 9, 10, 14], marks=UNKNOWN_TO_KERAS_2),
        pytest.param(4, 5, [5, 10, 15], marks=UNKNOWN_TO_KERAS_2),
    ],
)
def test_batches_of_data_of_unknown_length_are_counted(context, steps, period, expected):
    """Keras begins a batch that it then does not find, and several beyond the end."""
    records = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(8)
    model = make_model()
    model.compile("sgd", model.loss, steps_per_execution=steps)
    callback = DeterminedCallback(context, None, 1, train_metrics_report_period=period)
    model.fit(records, epochs=3, verbose=0, callbacks=[callback])
    assert [batches for batches, _ in reports(context, "training")] == expected


def test_one_of_them_is_for_one_fit(context):
    model, callback = make_model(), DeterminedCallback(context, None, 1)
    model.fit(X, Y, verbose=0, callbacks=[callback])
    with pytest.raises(TrialError, match="serves one fit\\(\\)"):
        model.fit(X, Y, verbose=0, callbacks=[callback])


def test_a_checkpoint_that_does_not_exist_is_an_error(context):
    with pytest.raises(StorageError):
        fit(context, make_model(), 1, "00000000-0000-4000-8000-000000000000")


def test_unbuilt_model_error_says_how_to_restore(context):
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        make_model(first=keras.layers.InputLayer((4,))).save_weights(
            str(path / "model_checkpoint.weights.h5")
        )
    with pytest.raises(TrialError, match=r"has no weights yet when fit\(\) begins.*keras.Input"):
        fit(context, make_model(), 1, uuid)


@keras.utils.register_keras_serializable()
class Summing(keras.Model):
    """Gets its shapes from the first batch, of one input or several."""

    def __init__(self, **options):
        super().__init__(**options)
        self.hidden, self.out = keras.layers.Dense(4), keras.layers.Dense(3)

    def call(self, x):
        parts = list(x.values()) if isinstance(x, dict) else x
        return self.out(self.hidden(sum(parts) if isinstance(parts, (list, tuple)) else parts))


@keras.utils.register_keras_serializable()
class Scaled(Summing):
    """Makes one of its weights itself."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, x):
        return self.scale * super().call(x)


class OwnStep(Summing):
    """Is never called on a batch: its own step calls its layers."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self.out(self.hidden(x))
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, True))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def make_unbuilt(kind=Summing):
    seed_everything(3)
    model = kind()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)
    return model


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (Summing, {"u": X, "v": X}),
        (Summing, OrderedDict(v=X, u=X)),
        (Summing, (X, X)),
        (Scaled, X),
    ],
    ids=["dict", "ordered", "tuple", "own weight"],
)
def test_model_that_its_first_batch_builds_resumes(context, kind, inputs, recwarn):
    def train(model, epochs, checkpoint=None):
        det = DeterminedCallback(context, checkpoint, 1)
        model.fit(
            inputs, Y, batch_size=20, epochs=epochs, shuffle=False, verbose=0, callbacks=[det]
        )
        return checkpoints(context)[-1]

    train(whole := make_unbuilt(kind), 3)
    first = train(make_unbuilt(kind), 1)
    # A model that a checkpoint has built is saved so that the next run can build it.
    second = train(make_unbuilt(kind), 2, first)
    train(resumed := make_unbuilt(kind), 3, second)
    assert_equal(weights(resumed), weights(whole))
    assert not [each for each in recwarn if "checkpoint" in str(each.message)]


def test_first_save_warns_of_a_model_that_no_run_can_build(context):
    """Its restart would find that out."""
    model = make_unbuilt(OwnStep)
    with pytest.warns(UserWarning, match="has no weights yet when fit") as warned:
        model.fit(X, Y, epochs=2, verbose=0, callbacks=[DeterminedCallback(context, None, 1)])
    assert [text for each in warned if model.name in (text := str(each.message))] == [
        f"the model '{model.name}' has no weights yet when fit() begins, so a checkpoint cannot be"
        " restored; begin it with keras.Input(shape), or call it on a batch before fit()"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train_metrics_report_period": 0},
            "train_metrics_report_period is 0; give 'epoch', or a number of batches",
        ),
        ({"train_metrics_report_period": "batch"}, "train_metrics_report_period is 'batch'"),
        ({"checkpoint_epochs": -1}, "checkpoint_epochs is -1; give a number of epochs, or 0"),
        (
            {"continue_id": None},
            "continue_id is None; give a number or text that names this training",
        ),
    ],
)
def test_wrong_arguments_are_named(context, options, message):
    with pytest.raises(TrialError, match=message):
        DeterminedCallback(
            **{"core_context": context, "checkpoint": None, "continue_id": 1, **options}
        )
