"""Wraps the C++ compiler: `python _compiler.py [--without-xla] COMPILER... -- ARGUMENT...`.

It changes three things:

- Horovod's CMake file requests C++14 behind all options of the user. The headers of torch 2.1 and
  later need C++17.
- Horovod's XLA operations, which are for GPUs only, include headers that TensorFlow has moved. That
  file is compiled as an empty one.
- Debug information makes the library eighteen times as large, and is left out.

It also corrects Gloo's context of a process set, which is always used. That context ignores
`HOROVOD_GLOO_IFACE` and uses the address of the host's name. Ranks on hosts whose names do not
resolve, or resolve to loopback, could not connect.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_XLA = "xla_mpi_ops.cc"
_GLOO = "/gloo/gloo_context.cc"
_FORGOTTEN, _ASKED_AGAIN = (
    "device_attr.iface = gloo_iface_;",
    "device_attr.iface = ParseGlooIface();",
)
_OLD = {f"-std={dialect}++{year}" for dialect in ("c", "gnu") for year in ("11", "14")}


def rewritten(arguments: list[str], without_xla: bool) -> list[str]:
    """Return the changed arguments of the compiler."""
    found = ["-std=c++17" if each in _OLD else each for each in arguments if each != "-g"]
    found = [patch(Path(each)) if each.endswith(_GLOO) else each for each in found]
    if without_xla and any(each.endswith(_XLA) for each in arguments):
        found += ["-UTENSORFLOW_VERSION", "-DTENSORFLOW_VERSION=0"]
    return found


def patch(source: Path) -> str:
    """Write a corrected copy of Gloo's context next to it, and return the path of the copy.

    The copy reads the interface from the environment wherever it needs one.
    """
    copy = source.with_stem(f"{source.stem}_patched")
    copy.write_text(source.read_text().replace(_FORGOTTEN, _ASKED_AGAIN))
    return str(copy)


def main(argv: list[str]) -> None:
    """Replace this process with the compiler."""
    without_xla = argv[:1] == ["--without-xla"]
    between = argv.index("--")
    compiler = argv[int(without_xla) : between]
    os.execvp(compiler[0], [*compiler, *rewritten(argv[between + 1 :], without_xla)])


if __name__ == "__main__":
    main(sys.argv[1:])
