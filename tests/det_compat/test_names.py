"""Names are lent when they are asked for, and what is missing says how to get it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from det_core.support.installation import how_to_install


def in_a_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.process
def test_importing_determined_imports_no_framework() -> None:
    code = (
        "import sys, determined; print({'torch', 'tensorflow', 'keras', 'numpy'} &"
        " sys.modules.keys())"
    )
    assert in_a_process(code) == "set()"


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("determined.pytorch", "det_torch", None),
        ("determined.pytorch.lightning", "det_lightning", None),
        ("determined.keras", "det_keras", "cpu"),
        ("determined.keras.callbacks", "det_keras", "cpu"),
        ("determined.estimator", "det_estimator", "cpu"),
        ("determined.experimental.keras", "det_keras", "cpu"),
        ("determined.experimental.estimator", "det_estimator", "cpu"),
    ],
)
def test_a_part_whose_plugin_is_missing_says_what_to_install(
    module: str, package: str, extra: str | None
) -> None:
    if package == "det_lightning" and find_spec("det_torch") is None:
        pytest.skip("determined.pytorch, which is imported first, asks for det-torch")
    code = f"""
import sys
sys.modules["{package}"] = None
try:
    import {module}
except ImportError as error:
    print(error)
"""
    message = in_a_process(code)
    distribution = package.replace("_", "-")
    assert f"needs {distribution}; run: {how_to_install(distribution, extra)}" in message


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import determined

    with pytest.raises(
        AttributeError, match="module 'determined' has no attribute 'get_cluster_inf'"
    ):
        determined.get_cluster_inf  # noqa: B018 - the access is what is tested


def test_errors_are_ordinary_exceptions() -> None:
    from determined import errors

    assert issubclass(errors.InvalidExperimentException, Exception)
    assert issubclass(errors.InvalidCheckpointException, errors.InternalException)


def test_the_client_looks_into_the_local_store(tmp_path, monkeypatch) -> None:
    from det_driver.store import Store
    from determined.experimental import Determined, client

    monkeypatch.setenv("DET_HOME", str(tmp_path))
    with Store(tmp_path) as store:
        store.experiments.create(
            name="mine", config="{}", entrypoint="x", metric="m", smaller_is_better=True
        )
    client.login(master="localhost")
    assert [e.name for e in client.list_experiments()] == ["mine"]
    assert Determined().get_experiment(1).name == client.get_experiment(1).name == "mine"
