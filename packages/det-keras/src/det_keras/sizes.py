"""Checks a file of Keras before it is read.

HDF5 and zip allocate any size that a file claims.
"""

from __future__ import annotations

import io
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py

from det_core import CheckpointError
from det_core.support.archives import check_size, check_zip


def check_weights(file: Path) -> None:
    """Check a `.keras` or HDF5 file. Any other file is ignored.

    Raises CheckpointError if it needs far more memory than its size, or refers to other files.
    """
    try:
        if h5py.is_hdf5(file):
            _check_hdf5(file, file.stat().st_size)
            return
        check_zip(file)
        if zipfile.is_zipfile(file):
            with ExitStack() as stack:
                archive = stack.enter_context(zipfile.ZipFile(file))
                for member in archive.infolist():
                    if member.filename.endswith(".h5"):
                        # HDF5 seeks back and forth, and each seek back in a compressed member reads
                        # it from its beginning.
                        packed = member.compress_type != zipfile.ZIP_STORED
                        source: Any = stack.enter_context(archive.open(member))
                        _check_hdf5(
                            io.BytesIO(source.read()) if packed else source, member.file_size
                        )
    # h5py and zipfile raise errors of many types for malformed files.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file} cannot be read safely: {reason}; the checkpoint is damaged"
        ) from error


def _check_hdf5(source: Any, size: int) -> None:
    with h5py.File(source, "r") as held:
        seen: set[Any] = set()
        todo, needed = [held["/"]], 0
        while todo:
            group = todo.pop()
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(f"{name!r} is a link to elsewhere")
                item = group[name]
                if (number := h5py.h5o.get_info(item.id).addr) in seen:
                    continue
                seen.add(number)
                if isinstance(item, h5py.Group):
                    todo.append(item)
                elif isinstance(item, h5py.Dataset):
                    if item.external or item.is_virtual:
                        raise ValueError(f"{name!r} lies in another file")
                    needed += item.nbytes
    check_size(needed, size)
