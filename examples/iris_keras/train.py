"""Iris species with Keras: a script of one's own, and det's callback.

Run it alone (python3 train.py), or by det (det run const.yaml).
"""

from __future__ import annotations

import argparse

import keras
from sklearn.datasets import load_iris

from det_core import core
from det_keras import DeterminedCallback, TensorBoard

HPARAMS = {
    "learning_rate": 0.01,
    "layer1_dense_size": 16,
    "global_batch_size": 16,
}  # of a script without det run


def load_data(validation: bool):
    """Return a third of the flowers to validate, or the others to train."""
    features, labels = load_iris(return_X_y=True)
    chosen = [i for i in range(len(labels)) if (i % 3 == 0) == validation]
    return features[chosen].astype("float32"), keras.utils.to_categorical(labels[chosen], 3)


def build_model(hparams):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(hparams["layer1_dense_size"], activation="relu")(inputs)
    outputs = keras.layers.Dense(3, activation="softmax")(hidden)
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.RMSprop(hparams["learning_rate"])
    model.compile(optimizer, "categorical_crossentropy", metrics=["categorical_accuracy"])
    return model


def main(context, strategy, checkpoint, continue_id, hparams, epochs):
    x, y = load_data(validation=False)
    with strategy.scope():
        model = build_model(hparams)
    model.fit(
        x,
        y,
        batch_size=hparams["global_batch_size"],
        validation_data=load_data(validation=True),
        epochs=epochs,
        verbose=2,
        callbacks=[
            DeterminedCallback(
                context, checkpoint=checkpoint, continue_id=continue_id, checkpoint_epochs=5
            ),
            TensorBoard(context, update_freq="epoch", profile_batch=0),
        ],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()

    info = core.get_cluster_info()
    checkpoint, continue_id, hparams = None, "alone", HPARAMS
    if info is not None:
        checkpoint, continue_id, hparams = (
            info.latest_checkpoint,
            info.trial.trial_id,
            info.trial.hparams,
        )
        keras.utils.set_random_seed(info.trial.trial_seed)

    distributed, strategy = core.DistributedContext.from_tf_config()
    with core.init(distributed=distributed) as context:
        main(context, strategy, checkpoint, continue_id, hparams, arguments.epochs)
