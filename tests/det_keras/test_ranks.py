"""What concerns several ranks and can be seen on one; the conformance kit trains on two."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from det_core import BackendRecord, PluginError, Serial, TrialError
from det_core.support.installation import how_to_install
from det_keras import versions
from det_keras.adapter import KerasAdapter
from det_keras.ranks import join_ranks, warn_about_local_statistics, without_xla
from det_keras.testing import OneVarTrial
from det_keras.versions import check_backend, keras


def test_an_optimizer_that_horovod_has_wrapped_is_refused(info: Any) -> None:
    """Under Keras 3 it would train without exchanging a gradient, and without a warning."""
    hvd = pytest.importorskip("horovod.tensorflow.keras")
    hvd.init()

    class Trap(OneVarTrial):
        def build_model(self) -> Any:
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
            return self.context.wrap_model(model)

    with pytest.raises(
        TrialError, match=r"wrapped by horovod.tensorflow.keras.DistributedOptimizer"
    ) as raised:
        KerasAdapter.create(Trap, info())
    assert "\n" not in str(raised.value)


def test_a_backend_that_knows_no_tensors_is_refused(info: Any) -> None:
    run = replace(
        info(),
        distributed=_Two(),
        backend=BackendRecord(name="odd", framework="keras", load=lambda: Serial),
    )
    with pytest.raises(PluginError, match="the backend 'odd' cannot reduce Keras's gradients"):
        join_ranks(run)


class _Two:
    size = 2


def test_xla_is_switched_off_with_a_warning() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.warns(UserWarning, match="XLA cannot exchange gradients"):
        without_xla(model)
    assert not model.jit_compile


def test_batch_normalization_that_is_not_synchronized_is_named() -> None:
    layer = keras.layers.BatchNormalization(synchronized=True, name="shared")
    with pytest.warns(
        UserWarning,
        match="shared has synchronized=True, which Keras heeds under tf.distribute only",
    ):
        warn_about_local_statistics(keras.Sequential([keras.Input((1,)), layer]))


def test_another_backend_of_keras_is_refused() -> None:
    check_backend()
    with pytest.raises(
        PluginError, match="Keras runs on 'jax' here, and det-keras on TensorFlow only"
    ):
        check_backend("jax")


class WithoutKeras:
    """TensorFlow whose Keras cannot be imported, as the package of its backend is missing."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    @property
    def keras(self) -> Any:
        try:
            raise ModuleNotFoundError(f"No module named {self.missing!r}", name=self.missing)
        except ImportError:
            raise ImportError("Keras cannot be imported. Check that it is installed.")  # noqa: B904


def test_error_names_the_missing_package_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(backend=lambda: "jax")
    monkeypatch.setitem(sys.modules, "keras.src.backend.config", config)
    monkeypatch.setattr(versions, "tf", WithoutKeras("jax"))
    with pytest.raises(PluginError) as refused:
        versions.find_version()
    assert str(refused.value) == (
        "Keras cannot be imported, as its backend is 'jax', whose package 'jax' is not installed;"
        " det-keras trains on TensorFlow only, which is installed: set KERAS_BACKEND=tensorflow, or"
        " 'backend' in ~/.keras/keras.json"
    )
    config.backend = lambda: "tensorflow"
    monkeypatch.setattr(versions, "tf", WithoutKeras("h5py"))
    with pytest.raises(PluginError, match="No module named 'h5py'; install it: pip install h5py"):
        versions.find_version()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not versions.KERAS_3, reason="Keras 2 has no backends")
def test_backend_that_is_not_installed_is_named() -> None:
    code = (
        "import sys\nsys.modules['jax'] = None\nimport det_keras\nfrom det_core import PluginError\n"
        "try: det_keras.DeterminedCallback\nexcept PluginError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "as its backend is 'jax', whose package 'jax' is not installed" in done.stdout, (
        done.stderr
    )


@pytest.mark.process
def test_without_tensorflow_a_sentence_says_how_to_install_it() -> None:
    code = (
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'tensorflow' else find(name, *more)\n"
        "import det_keras\nfrom det_core import PluginError\n"
        "try: det_keras.TFKerasTrial\nexcept PluginError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    for extra in ("tensorflow", "cpu"):
        assert how_to_install("det-keras", extra) in done.stdout, done.stderr
