"""numpy behind core's loop."""

import itertools
import json

import numpy as np

from det_core import Adapter


class NumpyAdapter(Adapter):
    framework_version = np.__version__
    batches_per_epoch = global_batch_size = None  # each trial has its own

    def __init__(self, trial, run):
        self.trial, self._seed, self._rng = trial, run.seed, np.random.default_rng(run.seed)
        self._params = run.build.model(trial, lambda: trial.build_params(self._rng))
        self._batches = run.build.data_loader(
            trial, lambda: trial.build_batches("training"), "training"
        )
        self._held_out = run.build.data_loader(
            trial, lambda: trial.build_batches("validation"), "validation"
        )
        self.batches_per_epoch, self.global_batch_size = (
            len(self._batches),
            run.hparams.get("global_batch_size"),
        )

    @classmethod
    def create(cls, trial, run):
        return cls(trial(run.hparams), run)

    def train(self, loop):
        self.trial.length = loop.length
        for batch in loop.batches(self._after(loop.done)):
            loop.step(self.trial.train_batch(self._params, batch, self._rng))

    def _after(self, done):
        epoch, skip = divmod(done, len(self._batches))
        for number in itertools.count(epoch):
            shuffled = np.random.default_rng([self._seed, number]).permutation(len(self._batches))
            order = shuffled if self.trial.shuffle else range(len(self._batches))
            yield from (self._batches[index] for index in order[skip if number == epoch else 0 :])

    def finish(self):
        self.trial.finish(self._params)

    def validate(self):
        return self.trial.evaluate(self._params, self._held_out)

    def save(self, path):
        np.savez(path / "params.npz", **self._params)
        (path / "rng.json").write_text(json.dumps(self._rng.bit_generator.state))

    def load(self, path):
        with np.load(path / "params.npz") as saved:
            self._params.update(saved)
        self._rng.bit_generator.state = json.loads((path / "rng.json").read_text())
