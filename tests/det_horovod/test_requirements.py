"""What is missing is said before anything is built, each with its way out."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from det_horovod._compiler import rewritten
from det_horovod._frameworks import Framework
from det_horovod._recipe import Recipe

pytestmark = pytest.mark.process

TORCH = Framework("torch", "torch", "2.13.0")


@pytest.fixture
def torch(environment):
    environment.add_framework("torch", "2.13.0")


def only(environment, tmp_path, *programs: str) -> None:
    """Leave nothing on PATH but these."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(shutil.which(program))
    environment.variables["PATH"] = str(folder)


def refused(environment, *arguments: str) -> str:
    status, output, error = environment.det("horovod", "install", *arguments)
    assert (status, output) == (2, "")
    return error


def test_without_a_framework_there_is_nothing_to_build_for(environment):
    environment.hide("torch", "tensorflow")
    assert (
        refused(environment)
        == "det: there is no framework for Horovod to serve; install torch, tensorflow or"
        " tensorflow-cpu first, in this environment\n"
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("tensorflo", "--with has 'tensorflo'; did you mean 'tensorflow'?"),
        ("pytorch", "--with has 'pytorch'; did you mean 'torch'?"),
        ("torch,jax", "--with has 'jax'; give torch or tensorflow, or both with a comma between"),
        ("", "--with has ''; give torch or tensorflow, or both with a comma between"),
    ],
)
def test_a_framework_that_horovod_does_not_know_is_refused(environment, torch, wanted, message):
    assert refused(environment, "--with", wanted) == f"det: {message}\n"


def test_a_framework_that_is_not_here_is_refused(environment, torch):
    environment.hide("tensorflow")
    expected = (
        "det: tensorflow is not installed here; install it first, as Horovod is built against it\n"
    )
    assert refused(environment, "--with", "torch,tensorflow") == expected


def test_all_that_the_machine_lacks_is_said_at_once(environment, torch, tmp_path):
    only(environment, tmp_path)
    assert (
        refused(environment, "--mpi")
        == "det: Horovod cannot be built: no C++ compiler g++, no make, no mpicxx; on Debian or"
        " Ubuntu: apt-get install g++ libopenmpi-dev make\n"
    )


def test_the_compiler_may_be_another(environment, torch, tmp_path):
    only(environment, tmp_path, "make")
    environment.variables["CXX"] = "clang++-99 -v"
    assert "no C++ compiler clang++-99;" in refused(environment)


def test_headers_that_are_missing_are_named(environment, torch, tmp_path):
    code = (
        "import sysconfig, functools\nreal = sysconfig.get_path\nsysconfig.get_path = lambda name,"
        " *a, **k: "
    )
    code += "'/nowhere' if name in ('include', 'platinclude') else real(name, *a, **k)\n"
    (environment.packages / "sitecustomize.py").write_text(code)
    version = sys.version_info.minor
    assert (
        refused(environment)
        == "det: Horovod cannot be built: no Python.h in /nowhere; on Debian or Ubuntu: apt-get"
        f" install python3.{version}-dev\n"
    )


def test_a_compiler_that_is_too_old_is_found_out(environment, torch, tmp_path):
    old = tmp_path / "old-g++"
    old.write_text("#!/bin/sh\necho 'cc1plus: error: unrecognized option -std=c++17' >&2\nexit 1\n")
    old.chmod(0o755)
    environment.variables["CXX"] = str(old)
    assert (
        refused(environment)
        == f"det: {old} compiles no C++17 with Python's headers (cc1plus: error: unrecognized"
        " option -std=c++17); install g++ 9 or newer, or name another compiler in CXX\n"
    )


def test_gpus_need_their_toolkits(environment, torch, tmp_path):
    only(environment, tmp_path, "g++", "make")
    environment.variables |= {"HOROVOD_NCCL_HOME": str(tmp_path), "CUDA_HOME": str(tmp_path)}
    if not os.path.exists("/usr/local/cuda/bin/nvcc"):
        assert "no nvcc (install CUDA's toolkit, or set HOROVOD_CUDA_HOME)" in refused(
            environment, "--gpu", "nccl"
        )
    assert "no nccl.h (from NVIDIA's repository, or set HOROVOD_NCCL_HOME)" in refused(
        environment, "--gpu", "nccl"
    )
    assert "no hipcc (install ROCm, and put its bin/ on PATH)" in refused(environment, "--rocm")


def test_pip_itself_may_be_missing(environment, torch):
    environment.hide("pip")
    assert f"no pip in this environment (run: {environment.python} -m ensurepip)" in refused(
        environment
    )


def test_compiler_is_set_to_cpp17_without_debug_information():
    assert rewritten(["-std=c++14", "-g", "-O2", "-std=gnu++11", "x.cc"], False) == [
        *("-std=c++17", "-O2", "-std=c++17", "x.cc")
    ]
    assert rewritten(["-std=c++20"], False) == ["-std=c++20"]


def test_gloo_context_is_compiled_from_a_patched_copy(tmp_path):
    """The copy parses the interface."""
    source = tmp_path / "gloo" / "gloo_context.cc"
    source.parent.mkdir()
    source.write_text("attr device_attr;\ndevice_attr.iface = gloo_iface_;\n")
    *before, copy = rewritten(["-c", str(source)], False)
    assert before == ["-c"]
    assert Path(copy).parent == source.parent  # what it includes is found beside it
    assert Path(copy).read_text() == "attr device_attr;\ndevice_attr.iface = ParseGlooIface();\n"


def test_xla_operations_compile_to_nothing_if_headers_moved():
    file = "/src/horovod/tensorflow/xla_mpi_ops.cc"
    assert rewritten(["-c", file], True) == [
        "-c",
        file,
        "-UTENSORFLOW_VERSION",
        "-DTENSORFLOW_VERSION=0",
    ]
    assert rewritten(["-c", file], False) == ["-c", file]
    assert rewritten(["-c", "mpi_ops.cc"], True) == ["-c", "mpi_ops.cc"]
    assert not Recipe(
        frameworks=[TORCH, Framework("tensorflow", "tensorflow-cpu", "2.15.1")]
    ).without_xla
    assert Recipe(frameworks=[Framework("tensorflow", "tensorflow", "2.21.0rc1")]).without_xla


def test_a_wheel_is_known_by_all_that_it_depends_on():
    recipe = Recipe(
        frameworks=[TORCH, Framework("tensorflow", "tensorflow-cpu", "2.21.0")],
        gpu="nccl",
        mpi=True,
    )
    python = f"cp3{sys.version_info.minor}"
    assert recipe.key.startswith(
        f"0.28.1-torch2.13.0-tensorflow-cpu2.21.0-gloo+mpi+nccl-{python}-linux"
    )
    assert len({Recipe(frameworks=[TORCH], gpu=gpu).key for gpu in ("", "nccl", "rocm")}) == 3
    assert "-mavx_-mfma-" in Recipe(frameworks=[TORCH], arch="-mavx -mfma").key
