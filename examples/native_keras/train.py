"""Handwritten digits with Keras: a script that is its own experiment.

python3 train.py --local trains here; python3 train.py searches over three trials, each of which
runs this script again.
"""

from __future__ import annotations

import sys

import keras
from sklearn.datasets import load_digits

import det_keras
from det_driver.native import Categorical, Integer, Log, Mode

config = {
    "name": "native_keras",
    "hyperparameters": {
        "global_batch_size": 32,
        "hidden": Integer(32, 128),
        "activation": Categorical(["relu", "tanh"]),
        "learning_rate": Log(-3, -2),
    },
    "searcher": {
        "name": "random",
        "metric": "val_accuracy",
        "smaller_is_better": False,
        "max_trials": 3,
    },
    "reproducibility": {"experiment_seed": 1},
}

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
held_out = [i % 3 == 0 for i in range(len(labels))]
trained = [not each for each in held_out]

mode = Mode.LOCAL if "--local" in sys.argv else Mode.CLUSTER
context = det_keras.init(config, mode=mode, context_dir=".")

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(
            context.get_hparam("hidden"), activation=context.get_hparam("activation")
        ),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model = context.wrap_model(model)
model.compile(
    keras.optimizers.Adam(context.get_hparam("learning_rate")),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(
    images[trained],
    labels[trained],
    epochs=4,
    validation_data=(images[held_out], labels[held_out]),
    verbose=2,
)
print("accuracy here:", history.history["val_accuracy"][-1])  # a worker does not get here
