"""What is built, of what, and how: Horovod's newest release with what it takes for today's frameworks."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass

from ._frameworks import NAMES, Framework

VERSION = "0.28.1"
TOOLS = ("cmake>=3.13,<4", "setuptools<81", "wheel", "packaging")  # Gloo's CMakeLists are refused by cmake 4
_OWN_NAMES = {"torch": "PYTORCH", "tensorflow": "TENSORFLOW"}
_EDITION = 1  # of this recipe: a wheel that an older one made is not taken from the cache


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One build; two that are equal make the same wheel. `gpu` is nccl, rocm or nothing; `arch` are flags that the user chose."""

    frameworks: Sequence[Framework]
    gpu: str = ""
    mpi: bool = False
    arch: str = ""

    @property
    def named(self) -> str:
        """The frameworks, for people."""
        return " and ".join(str(each) for each in self.frameworks)

    @property
    def operations(self) -> str:
        """What the ranks can talk over."""
        return "+".join(["gloo", *(["mpi"] if self.mpi else []), *([self.gpu] if self.gpu else [])])

    @property
    def key(self) -> str:
        """The name of the wheel's folder in the cache: all that it depends on."""
        libc = "".join(platform.libc_ver())
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        parts = [
            VERSION,
            *(f"{each.distribution}{each.version}" for each in self.frameworks),
            self.operations,
            python,
            sysconfig.get_platform(),
            *([libc] if libc else []),
            *([self.arch.strip("- ")] if self.arch else []),
            f"r{_EDITION}",
        ]
        return re.sub(r"[^\w.+-]", "_", "-".join(parts))

    def variables(self) -> dict[str, str]:
        """Return Horovod's variables for its build."""
        named = {each.name for each in self.frameworks}
        found = {f"HOROVOD_{'WITH' if name in named else 'WITHOUT'}_{_OWN_NAMES[name]}": "1" for name in NAMES}
        found |= {"HOROVOD_WITHOUT_MXNET": "1", "HOROVOD_WITH_GLOO": "1", "HOROVOD_CPU_OPERATIONS": "GLOO"}
        found |= {"HOROVOD_WITH_MPI": "1"} if self.mpi else {"HOROVOD_WITHOUT_MPI": "1"}
        if self.gpu:
            found |= {"HOROVOD_GPU": "ROCM" if self.gpu == "rocm" else "CUDA", "HOROVOD_GPU_OPERATIONS": "NCCL"}
        return found

    @property
    def without_xla(self) -> bool:
        """Whether TensorFlow's headers of XLA are not where Horovod looks for them."""
        return any(each.name == "tensorflow" and each.release >= (2, 16) for each in self.frameworks)
