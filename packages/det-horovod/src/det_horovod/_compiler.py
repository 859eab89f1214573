"""Stands before the C++ compiler: `python _compiler.py [--without-xla] COMPILER... -- ARGUMENT...`.

Horovod's CMake file asks for C++14 after all that a user may add, and the headers of torch from 2.1 on need C++17. Its
operations for XLA, which are for GPUs only, include headers that TensorFlow has moved; that file is compiled as nothing.
Debug information makes the library eighteen times as large.

Gloo's context of a process set, of which there always is one, takes the address of the host's name whatever
`HOROVOD_GLOO_IFACE` says, as it forgets that: ranks on hosts whose names lead nowhere, or to loopback, do not meet.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_XLA = "xla_mpi_ops.cc"
_GLOO = "/gloo/gloo_context.cc"
_FORGOTTEN, _ASKED_AGAIN = "device_attr.iface = gloo_iface_;", "device_attr.iface = ParseGlooIface();"
_OLD = {f"-std={dialect}++{year}" for dialect in ("c", "gnu") for year in ("11", "14")}


def rewritten(arguments: list[str], without_xla: bool) -> list[str]:
    """Return the compiler's arguments as they have to be."""
    found = ["-std=c++17" if each in _OLD else each for each in arguments if each != "-g"]
    found = [mended(Path(each)) if each.endswith(_GLOO) else each for each in found]
    if without_xla and any(each.endswith(_XLA) for each in arguments):
        found += ["-UTENSORFLOW_VERSION", "-DTENSORFLOW_VERSION=0"]
    return found


def mended(source: Path) -> str:
    """Return the path of a copy, beside Gloo's context, that asks for the interface wherever it needs one."""
    copy = source.with_stem(f"{source.stem}_mended")
    copy.write_text(source.read_text().replace(_FORGOTTEN, _ASKED_AGAIN))
    return str(copy)


def main(argv: list[str]) -> None:
    """Become the compiler."""
    without_xla = argv[:1] == ["--without-xla"]
    between = argv.index("--")
    compiler = argv[int(without_xla) : between]
    os.execvp(compiler[0], [*compiler, *rewritten(argv[between + 1 :], without_xla)])


if __name__ == "__main__":
    main(sys.argv[1:])
