"""The backend that exchanges tensors over Horovod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from det_core.train.ranks import lost
from det_horovod import Begun

from ._base import TorchBackend

_SUMMED = {
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
}


class HorovodBackend(Begun, TorchBackend):
    """Uses Horovod's global process set."""

    module = "horovod.torch"
    named: ClassVar[Mapping[str, str]] = {"name": "det.objects"}
    """The name of objects. Horovod's default contains the type, which may differ between ranks."""

    def barrier(self) -> None:
        self._call(self._hvd.barrier)

    def start_sum(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        handle = self._call(self._hvd.allreduce_async_, tensor, name=name, op=self._hvd.Sum)
        return partial(self._call, self._hvd.synchronize, handle)

    def send(self, data: torch.Tensor) -> None:
        self._call(self._hvd.broadcast_, data, root_rank=0, name="det.send")

    def carries(self, dtype: torch.dtype) -> bool:
        return dtype in _SUMMED

    def _call(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return verb(*arguments, **options)
        except RuntimeError as error:
            # HorovodInternalError is a RuntimeError.
            raise lost(
                error, self.ranks.rank, self.ranks.size, "while tensors were exchanged"
            ) from error
