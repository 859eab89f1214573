"""An environment of its own for what installs things.

It has stand-ins for a framework and for Horovod's source.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tarfile
import textwrap
import venv
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LIMIT_SECONDS = 120
BACKEND = """
    import os, pathlib, subprocess, sys, sysconfig, time, zipfile
    def build_wheel(folder, settings=None, metadata=None):
        import setuptools
        assert setuptools.__version__ == "80.0", "the environment's own setuptools was taken"
        for percent in (7, 42, 100):
            print(f"[{percent:3d}%] Building CXX object", flush=True)
        time.sleep(float(os.environ.get("STAND_IN_SECONDS", 0)))
        source = pathlib.Path("good.cc")
        source.write_text("#error this is broken" if os.environ.get("STAND_IN_BREAKS") else "#include <string_view>")
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        library = pathlib.Path(f"mpi_lib_v2{suffix}")
        subprocess.check_call([os.environ["CXX"], "-std=c++14", "-g", "-c", str(source), "-o", str(library)])
        python, system = f"cp{sys.version_info.major}{sys.version_info.minor}", sysconfig.get_platform()
        name = f"horovod-0.28.1-{python}-{python}-{system.replace('-', '_').replace('.', '_')}.whl"
        kept = {key: value for key, value in os.environ.items() if key.startswith("HOROVOD_")}
        with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
            wheel.writestr("horovod/__init__.py", f"variables = {kept!r}; built = {time.time()}")
            wheel.write(library, f"horovod/torch/{library}")
            info = "horovod-0.28.1.dist-info"
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: horovod\\nVersion: 0.28.1\\n")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: {python}-{python}-{system}\\n")
            wheel.writestr(f"{info}/RECORD", "")
        return name
    """


@dataclass
class Environment:
    """A virtual environment that sees the packages of this one.

    pip finds only what is in `index`.
    """

    root: Path
    index: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def packages(self) -> Path:
        return next((self.root / "lib").glob("python*/site-packages"))

    @property
    def cache(self) -> Path:
        return self.root / "cache" / "det" / "horovod"

    def environ(self) -> dict[str, str]:
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "HOROVOD_", "PYTHON"))
        }
        mine = {
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": str(self.index),
            "XDG_CACHE_HOME": str(self.root / "cache"),
        }
        return {**inherited, **mine, **self.variables}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.python), "-m", "det_driver.cli", *arguments],
            env=self.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def det(self, *arguments: str) -> tuple[int, str, str]:
        """Run `det`; return its status, output and errors."""
        process = self.start(*arguments)
        try:
            output, error = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
            process.wait()
        return process.returncode, output, error

    def add_framework(self, distribution: str, version: str) -> None:
        """Make something importable that has a framework's name."""
        name = "torch" if distribution == "torch" else "tensorflow"
        (self.packages / name).mkdir()
        (self.packages / name / "__init__.py").write_text(
            "raise AssertionError('it is not to be imported')"
        )
        info = self.packages / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "top_level.txt").write_text(f"{name}\n")
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n")

    def hide(self, *names: str) -> None:
        """Make packages of the environment that this one sees impossible to find."""
        code = f"import sys\nfor name in {names!r}: sys.modules[name] = None\n"
        (self.packages / "sitecustomize.py").write_text(code)


@pytest.fixture
def environment(tmp_path: Path, index: Path) -> Environment:
    made = Environment(tmp_path / "environment", index)
    venv.create(made.root, symlinks=True)
    (made.packages / "parent.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    return made


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = (
        tmp_path_factory.mktemp("index"),
        tmp_path_factory.mktemp("source") / "horovod-0.28.1",
    )
    source.mkdir()
    (source / "backend.py").write_text(textwrap.dedent(BACKEND))
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    with tarfile.open(folder / "horovod-0.28.1.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    for name, version in (
        ("cmake", "3.31.0"),
        ("setuptools", "80.0"),
        ("wheel", "0.45.0"),
        ("packaging", "24.0"),
    ):
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            info = f"{name}-{version}.dist-info"
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")
            if name == "setuptools":
                wheel.writestr("setuptools/__init__.py", f"__version__ = {version!r}")
    return folder
