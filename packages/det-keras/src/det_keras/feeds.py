"""The data of a trial, read as its run asks."""

from __future__ import annotations

from typing import Any

from .context import TFKerasTrialContext
from .data import Feed, Reading, make_feed
from .trial import TFKerasTrial
from .versions import keras


def feed_of(split: str, trial: TFKerasTrial, context: TFKerasTrialContext, model: Any) -> Feed:
    """Return the feed of what the trial's method for `training` or `validation` gives, through the build hook."""
    name = f"build_{split}_data_loader"
    data = context.run.build.data_loader(context, getattr(trial, name), split)
    reading = _reading(split, context, model)
    return make_feed(data, name, reading, training=split == "training", wrapped=context.datasets.__contains__)


def _reading(split: str, context: TFKerasTrialContext, model: Any) -> Reading:
    run, options, distributed = context.run, context.fit_options, context.distributed
    size = context.get_per_slot_batch_size() if "global_batch_size" in run.hparams else None
    records = run.config.records_per_epoch
    return Reading(
        batch_size=size,
        seed=run.seed,
        shuffle=options.shuffle and split == "training",
        rank=distributed.rank,
        size=distributed.size,
        workers=options.workers,
        use_multiprocessing=options.use_multiprocessing,
        max_queue_size=options.max_queue_size,
        validation_steps=1 if run.quick and split == "validation" else options.validation_steps,
        batches_per_epoch=records // (size * distributed.size) if records and size else None,
        any_structure=type(model).train_step is not keras.Model.train_step,
    )
