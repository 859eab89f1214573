"""Which outcome a run has that ends with an exception."""

from __future__ import annotations

import pytest

from det_core import Outcome
from det_core.train.failure import explained


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"
            " memory: you tried to allocate 524288000 bytes. Error code 12"
        ),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes"),
    ],
    ids=["Python", "torch on a CPU", "CUDA", "cuBLAS", "XLA"],
)
def test_allocation_that_fails_is_out_of_memory(error: BaseException) -> None:
    assert explained(error)[0] is Outcome.OUT_OF_MEMORY


def test_other_runtime_error_is_an_error() -> None:
    assert explained(RuntimeError("the queue is out of memory cards"))[0] is Outcome.ERROR
