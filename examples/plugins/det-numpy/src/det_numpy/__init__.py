"""numpy for det: a trial is a model of named arrays, and its author writes the gradients."""

__version__ = "0.1.0"
__all__ = ["NumpyTrial"]


class NumpyTrial:
    """Derive from it and define:

    `build_params(rng)`, the arrays by name; `build_batches(split)`, a list for `training` and one
    for `validation`; `train_batch(params, batch, rng)`, which changes `params` in place, draws from
    `rng` only and returns metrics; `evaluate(params, batches)`, which returns the metrics of the
    validation batches. `length` is what it is trained for, in batches, or None; `finish(params)`
    may change them once more when training is over.
    """

    shuffle, length = True, None

    def __init__(self, hparams):
        self.hparams = hparams

    def finish(self, params):
        pass
