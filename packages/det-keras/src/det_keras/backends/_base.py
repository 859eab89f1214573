"""The verb that det-keras needs beside those of every backend: reducing gradients, inside of a compiled step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from det_core import Backend


class KerasBackend(Backend):
    """A backend that averages dense tensors over the ranks, as an operation of TensorFlow's graphs."""

    compress = False

    @abstractmethod
    def sum(self, tensors: list[Any]) -> list[Any]:
        """Return the sums of tensors over the ranks; all are reduced in one go. Every rank makes the same calls in one order."""

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the means of gradients over the ranks; with `compress` those of 32 bits travel as 16."""
        parts = [tf.convert_to_tensor(tensor) / tf.cast(self.ranks.size, tensor.dtype) for tensor in tensors]
        sent = [tf.cast(part, tf.float16) if self.compress and part.dtype == tf.float32 else part for part in parts]
        return [tf.cast(total, part.dtype) for total, part in zip(self.sum(sent), parts, strict=True)]
