"""An epoch from the data set cache beside the pipeline that made it.

The records are the same. The time of each is measured in the same run.

The pipeline unpacks and scales pictures of 64 x 64 x 3, as one that decodes files does; times are
of the CPU.
`python benchmarks/dataset_cache.py [RECORDS]`
"""

from __future__ import annotations

import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from det_torch import DataLoader, cached


class Pictures(Dataset[Any]):
    """Packed pictures, each unpacked and scaled whenever it is read."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(0)
        self._packed = [
            zlib.compress((random.random((64, 64, 3)) * 32).astype(np.uint8).tobytes())
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: int) -> Any:
        picture = np.frombuffer(zlib.decompress(self._packed[index]), np.uint8).reshape(64, 64, 3)
        return (
            torch.from_numpy(picture.astype(np.float32).transpose(2, 0, 1) / 255 - 0.5),
            index % 10,
        )


def epoch(dataset: Any) -> Iterator[Any]:
    return iter(DataLoader(dataset, 64, shuffle=True, generator=torch.Generator().manual_seed(1)))


def seconds(dataset: Any) -> float:
    began = time.process_time()
    for _ in epoch(dataset):
        pass
    return time.process_time() - began


def main(count: int) -> None:
    pictures = Pictures(count)
    with tempfile.TemporaryDirectory() as place:
        began = time.process_time()
        kept = cached("pictures", "1", lambda: pictures, directory=place)
        built = time.process_time() - began
        pairs = zip(epoch(pictures), epoch(kept), strict=True)
        same = all(torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in pairs)
        times = [(seconds(pictures), seconds(kept)) for _ in range(5)]
        original, cache = (min(column) for column in zip(*times, strict=True))
        size = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
    print(
        f"{count} records, {size / 2**20:.0f} MiB in the cache, built in {built:.2f} s; an epoch"
        f" gives the same records: {same}"
    )
    print(
        f"an epoch of the pipeline {original:.3f} s, of the cache {cache:.3f} s:"
        f" {cache / original:.2f} times as long"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
