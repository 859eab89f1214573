"""How Horovod is built: its newest release, for the installed frameworks and this host's tools."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from det_core.errors import DetError

from ._frameworks import NAMES, Framework

VERSION = "0.28.1"
# CMake 4 refuses Gloo's CMakeLists.
TOOLS = ("cmake>=3.13,<4", "setuptools<81", "wheel", "packaging")
_OWN_NAMES = {"torch": "PYTORCH", "tensorflow": "TENSORFLOW"}
# The edition of this recipe. Wheels of older editions in the cache are not used.
_EDITION = 2
_PROGRAM = (
    b"#include <Python.h>\n#include <string_view>\n#include <optional>\nint main() { return 0; }\n"
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The parameters of a build. Equal recipes make equal wheels.

    `gpu` is "nccl", "rocm" or empty. `arch` holds compiler flags that the user chose.
    """

    frameworks: Sequence[Framework]
    gpu: str = ""
    mpi: bool = False
    arch: str = ""

    @property
    def named(self) -> str:
        """The frameworks, as text for users."""
        return " and ".join(str(each) for each in self.frameworks)

    @property
    def operations(self) -> str:
        """The libraries by which the ranks can communicate."""
        return "+".join(["gloo", *(["mpi"] if self.mpi else []), *([self.gpu] if self.gpu else [])])

    @property
    def key(self) -> str:
        """The name of the wheel's folder in the cache.

        It holds everything that the wheel depends on.
        """
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
        """Return the environment variables of Horovod's build."""
        named = {each.name for each in self.frameworks}
        found = {
            f"HOROVOD_{'WITH' if name in named else 'WITHOUT'}_{_OWN_NAMES[name]}": "1"
            for name in NAMES
        }
        found |= {
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_CPU_OPERATIONS": "GLOO",
        }
        found |= {"HOROVOD_WITH_MPI": "1"} if self.mpi else {"HOROVOD_WITHOUT_MPI": "1"}
        if self.gpu:
            found |= {
                "HOROVOD_GPU": "ROCM" if self.gpu == "rocm" else "CUDA",
                "HOROVOD_GPU_OPERATIONS": "NCCL",
            }
        return found

    @property
    def without_xla(self) -> bool:
        """Whether TensorFlow's XLA headers are not where Horovod includes them from."""
        return any(
            each.name == "tensorflow" and each.release >= (2, 16) for each in self.frameworks
        )


def check(recipe: Recipe, environ: Mapping[str, str]) -> None:
    """Raise DetError with everything that is missing and the Debian packages that install it."""
    missing = list(_missing(recipe, environ))
    packages = sorted({package for _, package in missing if package})
    command = f"; on Debian or Ubuntu: apt-get install {' '.join(packages)}" if packages else ""
    if missing:
        raise DetError(
            f"Horovod cannot be built: {', '.join(what for what, _ in missing)}{command}"
        )
    _try_compiler(compiler(environ))


def compiler(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the C++ compiler: `CXX`, or g++."""
    return shlex.split(environ.get("CXX", "")) or ["g++"]


def _missing(recipe: Recipe, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each missing requirement with its Debian package, or an empty string."""
    path = environ.get("PATH", os.defpath)

    def there(program: str) -> bool:
        return shutil.which(program, path=path) is not None

    if find_spec("pip") is None:
        yield f"no pip in this environment (run: {sys.executable} -m ensurepip)", ""
    cxx, *_ = compiler(environ)
    if not there(cxx):
        yield f"no C++ compiler {cxx}", "g++"
    if not there("make"):
        yield "no make", "make"
    if not any(
        (Path(sysconfig.get_path(name)) / "Python.h").is_file()
        for name in ("include", "platinclude")
    ):
        yield (
            f"no Python.h in {sysconfig.get_path('include')}",
            f"python3.{sys.version_info.minor}-dev",
        )
    if recipe.mpi and not there("mpicxx"):
        yield "no mpicxx", "libopenmpi-dev"
    if recipe.gpu == "nccl":
        yield from _missing_of_cuda(environ, there("nvcc"))
    if recipe.gpu == "rocm" and not there("hipcc"):
        yield "no hipcc (install ROCm, and put its bin/ on PATH)", ""


def _missing_of_cuda(environ: Mapping[str, str], nvcc: bool) -> Iterator[tuple[str, str]]:
    homes = [environ[name] for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME") if name in environ]
    if not nvcc and not any(
        (Path(home) / "bin" / "nvcc").is_file() for home in [*homes, "/usr/local/cuda"]
    ):
        yield "no nvcc (install CUDA's toolkit, or set HOROVOD_CUDA_HOME)", ""
    home = environ.get("HOROVOD_NCCL_HOME")
    places = (
        [Path(home) / "include"]
        if home
        else [Path("/usr/include"), Path("/usr/local/cuda/include")]
    )
    if not any((place / "nccl.h").is_file() for place in places):
        yield "no nccl.h (from NVIDIA's repository, or set HOROVOD_NCCL_HOME)", "libnccl-dev"


def _try_compiler(command: list[str]) -> None:
    """Compile a few lines that include Python's headers and those of C++17."""
    arguments = [
        "-std=c++17",
        "-fsyntax-only",
        f"-I{sysconfig.get_path('include')}",
        "-x",
        "c++",
        "-",
    ]
    done = subprocess.run(
        [*command, *arguments], input=_PROGRAM, capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        problem = next(
            (line for line in lines if "error:" in line),
            lines[-1] if lines else f"status {done.returncode}",
        )
        raise DetError(
            f"{shlex.join(command)} compiles no C++17 with Python's headers ({problem.strip()});"
            " install g++ 9 or newer, or name another compiler in CXX"
        )
