"""`det horovod install`.

What is built, kept and installed, of a stand-in for Horovod's source that compiles one file.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import zipfile

import pytest

pytestmark = pytest.mark.process

VERSION = "2.13.0+cpu"


@pytest.fixture(autouse=True)
def torch(environment):
    environment.add_framework("torch", VERSION)


def installed(environment) -> dict:
    code = "import horovod; print(horovod.variables, '|', horovod.__file__, '|', horovod.built)"
    done = subprocess.run(
        [environment.python, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    variables, path, built = done.stdout.split(" | ")
    return {"variables": eval(variables), "path": path, "built": float(built)}


def wheels(environment) -> list:
    return sorted(environment.cache.glob("*/*.whl"))


def test_horovod_is_built_once_and_installed_alone(environment):
    """Nothing else in the environment changes."""
    environment.variables |= {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_BUILD_ARCH_FLAGS": "-O1",
    }
    before = {path.name for path in environment.packages.iterdir()}
    status, output, error = environment.det("horovod", "install")
    assert status == 0, error
    assert error.splitlines()[0] == f"building Horovod for torch {VERSION} over gloo"
    assert [line.split()[0] for line in error.splitlines()[1:]] == ["42", "100"]
    assert f"installed Horovod for torch {VERSION}; try it with: det horovod check" in output
    [wheel] = wheels(environment)
    fresh = {path.name for path in environment.packages.iterdir()} - before
    assert fresh == {"horovod", "horovod-0.28.1.dist-info"}
    assert list(environment.cache.glob("*.building")) == []
    found = installed(environment)
    assert {
        name: value for name, value in found["variables"].items() if name != "HOROVOD_CMAKE"
    } == {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_CPU_OPERATIONS": "GLOO",
        "HOROVOD_BUILD_ARCH_FLAGS": "-O1",  # what has no option here is the user's
    }
    status, output, error = environment.det("horovod", "install")
    assert (status, error) == (0, "")
    assert output.splitlines() == [
        f"built before: {wheel}",
        f"Horovod for torch {VERSION} is installed",
    ]


@pytest.mark.thorough
def test_built_wheel_is_reused_unless_a_build_is_forced(environment):
    environment.det("horovod", "install")
    first = installed(environment)["built"]
    for folder in environment.packages.glob("horovod*"):
        shutil.rmtree(folder)
    assert environment.det("horovod", "install")[0] == 0
    assert installed(environment)["built"] == first
    assert environment.det("horovod", "install", "--force")[0] == 0
    assert installed(environment)["built"] > first
    assert len(wheels(environment)) == 1


def test_wheels_can_be_kept_elsewhere(environment, tmp_path):
    script = environment.det(
        "horovod", "install", "--print", "--wheel-dir", str(tmp_path / "elsewhere")
    )[1]
    assert f"{tmp_path}/elsewhere/0.28.1-torch{VERSION}-gloo-cp3" in script
    assert str(environment.cache) not in script


def test_a_place_that_cannot_be_written_to_is_a_sentence(environment, tmp_path):
    (tmp_path / "file").touch()
    status, _, error = environment.det(
        "horovod", "install", "--wheel-dir", str(tmp_path / "file" / "wheels")
    )
    assert status == 2
    assert (
        error
        == f"det: wheels cannot be kept in {tmp_path}/file/wheels (Not a directory); give another"
        " place with --wheel-dir\n"
    )


def test_a_failure_shows_the_end_of_the_log_and_where_it_is(environment):
    environment.variables["STAND_IN_BREAKS"] = "1"
    status, _, error = environment.det("horovod", "install")
    assert status == 2
    lines = error.splitlines()
    [log] = environment.cache.glob("*.log")
    assert lines[-1] == f"det: building Horovod failed (status 1); its whole log: {log}"
    assert any("#error this is broken" in line for line in log.read_text().splitlines())
    assert len(lines) <= 25
    assert wheels(environment) == []


@pytest.mark.thorough
def test_two_builders_build_it_once(environment):
    environment.variables["STAND_IN_SECONDS"] = "2"
    first, second = environment.start("horovod", "install"), environment.start("horovod", "install")
    said = [process.communicate(timeout=120) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert (
        sum("another process builds the same; waiting for it" in output for output, _ in said) == 1
    )
    assert sum("\nbuilt in " in f"\n{output}" for output, _ in said) == 1
    assert len(wheels(environment)) == 1


@pytest.mark.sample
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_builder_that_is_ended_leaves_no_half_of_a_wheel(environment, number, status):
    environment.variables["STAND_IN_SECONDS"] = "3"
    builder = environment.start("horovod", "install")
    limit = time.monotonic() + 60
    while not list(environment.cache.glob("*.building/wheels")) and time.monotonic() < limit:
        time.sleep(0.05)
    builder.send_signal(number)
    builder.communicate(timeout=60)
    assert builder.returncode == status
    assert wheels(environment) == []
    if number == signal.SIGINT:
        assert list(environment.cache.glob("*.building")) == []
        return
    del environment.variables["STAND_IN_SECONDS"]
    assert environment.det("horovod", "install")[0] == 0
    assert len(wheels(environment)) == 1


def test_what_it_prints_is_what_it_does(environment):
    status, script, error = environment.det("horovod", "install", "--print")
    assert (status, error, environment.cache.exists()) == (0, "", False)
    subprocess.run(["bash", "-euc", script], env=environment.environ(), timeout=120, check=True)
    assert installed(environment)["variables"]["HOROVOD_WITH_PYTORCH"] == "1"


def test_of_a_wheel_that_is_there_it_prints_the_installation(environment):
    key = (
        environment.det("horovod", "install", "--print")[1].split(".building")[0].rpartition("/")[2]
    )
    wheel = environment.cache / key / "horovod-0.28.1-any.whl"
    wheel.parent.mkdir(parents=True)
    zipfile.ZipFile(wheel, "w").close()
    script = environment.det("horovod", "install", "--print")[1]
    assert [line.split()[-1] for line in script.splitlines()] == [str(wheel)] * 2
    assert all(" install " in line for line in script.splitlines())
    wheel.write_bytes(wheel.read_bytes()[:10])  # cut short, it is as good as none
    assert " wheel " in environment.det("horovod", "install", "--print")[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--mpi"], {"HOROVOD_WITH_MPI": "1", "HOROVOD_CPU_OPERATIONS": "GLOO"}),
        (
            ["--gpu", "nccl"],
            {"HOROVOD_GPU": "CUDA", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_WITHOUT_MPI": "1"},
        ),
        (
            ["--rocm"],
            {"HOROVOD_GPU": "ROCM", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_WITHOUT_MPI": "1"},
        ),
    ],
)
def test_more_can_be_asked_for(environment, arguments, expected):
    _, script, _ = environment.det("horovod", "install", "--print", *arguments)
    exported = dict(
        line.removeprefix("export ").split("=", 1)
        for line in script.splitlines()
        if "export " in line
    )
    assert expected.items() <= exported.items()


def test_two_kinds_of_gpu_are_one_too_many(environment):
    status, _, error = environment.det("horovod", "install", "--gpu", "nccl", "--rocm")
    assert status == 2
    assert "--gpu nccl is for NVIDIA's GPUs and --rocm for AMD's; give one of them" in error
