"""What is found in the user's code without running it."""

from __future__ import annotations

import pytest

from det_core.config import parse
from det_driver.driver._preload import find_preload_modules, read_code
from det_node.agent import HOOK

RANDOM = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": 10}


def write(directory, **files):
    for name, text in files.items():
        path = directory / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_imports_are_followed_through_the_files_of_the_directory(tmp_path):
    write(
        tmp_path,
        model_def="from net.blocks import Block\nfrom data import loader\nimport torch.nn as nn\n",
        data="def loader():\n    import pandas\n",
        unused="import tensorflow\n",
    )
    write(
        tmp_path,
        net__blocks="from . import head\nfrom .deep.er import x\nimport numpy\n",
        net__head="import einops\n",
    )
    write(tmp_path, net__deep__er="x = 1\nimport sklearn.svm\n")
    (tmp_path / "net" / "__init__.py").write_text("import scipy\n")
    found = read_code("model_def", tmp_path)
    assert found.imports == {"torch", "pandas", "numpy", "einops", "sklearn", "scipy"}
    assert not found.sets_environment


def test_packages_and_circular_imports_are_read(tmp_path):
    write(
        tmp_path,
        pkg__model="from .. import nothing\nfrom pkg import other\nimport torch\n",
        pkg__other="import pkg.model\n",
    )
    assert read_code("pkg.model", tmp_path).imports == {"torch"}


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['A'] = '1'",
        "os.environ['A'] += '1'",
        "del os.environ['A']",
        "os.environ.setdefault('A', '1')",
        "os.environ.update(A='1')",
        "os.putenv('A', '1')",
        "from os import environ; environ['A'] = '1'",
        "import multiprocessing; multiprocessing.set_start_method('spawn')",
    ],
)
def test_code_that_changes_the_environment_is_found(tmp_path, line):
    write(tmp_path, model_def="import helper\n", helper=f"import os\ndef f():\n    {line}\n")
    assert read_code("model_def", tmp_path).sets_environment


@pytest.mark.parametrize(
    "line",
    [
        "x = os.environ['A']",
        "x = os.environ.get('A', '1')",
        "x = 'os.environ[1] = 2'",
        "environment = {}",
    ],
)
def test_code_that_only_reads_it_is_not(tmp_path, line):
    write(tmp_path, model_def=f"import os\n{line}\n")
    assert not read_code("model_def", tmp_path).sets_environment


def test_unparsable_files_and_missing_modules_are_skipped(tmp_path):
    write(tmp_path, model_def="import broken\nimport torch\n", broken="def :\n")
    assert read_code("model_def", tmp_path).imports == {"torch"}
    assert read_code("absent", tmp_path).imports == set()


@pytest.mark.parametrize("kind", ["no Python", "of another encoding", "unreadable"])
def test_whatever_a_file_is_the_others_are_read(tmp_path, kind):
    write(
        tmp_path,
        model_def="import other\nimport broken\n",
        other="import torch\n",
        broken="def :\n",
    )
    if kind == "of another encoding":
        (tmp_path / "broken.py").write_bytes(
            "# coding: latin-1\nimport k\u00e4se\n".encode("latin-1")
        )
    elif kind == "unreadable":
        (tmp_path / "broken.py").unlink()
        (tmp_path / "broken.py").symlink_to(
            "/proc/self/mem"
        )  # which even root cannot read from its beginning
    assert read_code("model_def", tmp_path).imports == {"torch"}
    assert read_code("broken", tmp_path).imports == set()


def test_imports_that_are_relative_are_found_where_they_lead(tmp_path):
    write(
        tmp_path,
        pkg__deep__model="from ..blocks import x\nfrom .near import y\nfrom .. import beside\n",
        pkg__blocks="import torch\n",
        pkg__deep__near="import numpy\n",
        pkg__beside="import scipy\n",
        pkg__deep__blocks="import tensorflow\n",
        pkg__near="import tensorflow\n",
    )
    assert read_code("pkg.deep.model", tmp_path).imports == {"torch", "numpy", "scipy"}


# Which runs may be forks


def warm_of(directory, gpus=(), **settings):
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    settings = {
        "entrypoint": "pkg.model:Trial",
        "hyperparameters": space,
        "searcher": RANDOM,
        **settings,
    }
    return find_preload_modules(parse(settings).config, gpus, directory)


@pytest.fixture
def code(tmp_path):
    write(tmp_path, pkg__model="import torch, json\nfrom det_core import Trial\nimport os.path\n")
    return tmp_path


def test_trials_of_a_search_preload_what_their_code_imports(code):
    assert warm_of(code) == ("det_core", "torch")


@pytest.mark.parametrize(
    "settings",
    [
        {"entrypoint": "python3 pkg/model.py"},
        {"entrypoint": ["python3", "-c", "pkg.model:Trial"]},
        {"searcher": {"name": "single", "metric": "loss", "max_length": 10}, "hyperparameters": {}},
        {"environment": {"container": "podman", "image": "an/image"}},
        {"environment": {"environment_variables": ["A=1"]}},
        {"gpus": ("0",)},
    ],
)
def test_runs_without_common_imports_need_own_interpreters(code, settings):
    """So do runs whose settings must apply before imports."""
    assert warm_of(code, **settings) is None


def test_startup_hook_or_environment_code_prevents_preloading(code):
    (code / HOOK).write_text("true")
    assert warm_of(code) is None
    (code / HOOK).unlink()
    write(code, pkg__model="import torch, os\nos.environ['A'] = 'b'\n")
    assert warm_of(code) is None
