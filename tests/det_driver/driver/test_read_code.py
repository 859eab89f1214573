"""What is found in the user's code without running it."""

from __future__ import annotations

import pytest

from det_driver.driver._warm import read_code


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
        tmp_path, net__blocks="from . import head\nfrom .deep.er import x\nimport numpy\n", net__head="import einops\n"
    )
    write(tmp_path, net__deep__er="x = 1\nimport sklearn.svm\n")
    (tmp_path / "net" / "__init__.py").write_text("import scipy\n")
    found = read_code("model_def", tmp_path)
    assert found.imports == {"torch", "pandas", "numpy", "einops", "sklearn", "scipy"}
    assert not found.sets_environment


def test_a_module_in_a_package_and_modules_that_import_each_other(tmp_path):
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
    "line", ["x = os.environ['A']", "x = os.environ.get('A', '1')", "x = 'os.environ[1] = 2'", "environment = {}"]
)
def test_code_that_only_reads_it_is_not(tmp_path, line):
    write(tmp_path, model_def=f"import os\n{line}\n")
    assert not read_code("model_def", tmp_path).sets_environment


def test_files_that_are_no_python_and_modules_that_are_not_there_are_passed_over(tmp_path):
    write(tmp_path, model_def="import broken\nimport torch\n", broken="def :\n")
    assert read_code("model_def", tmp_path).imports == {"torch"}
    assert read_code("absent", tmp_path).imports == set()
