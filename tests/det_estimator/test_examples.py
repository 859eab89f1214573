"""The examples learn, load, and are searched over, through `det run`."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.sample
@pytest.mark.parametrize(
    ("example", "epochs", "accuracy"), [("digits_estimator", 5, 0.93), ("digits_tf_layers", 4, 0.9)]
)
def test_an_example_learns(det, example: str, epochs: int, accuracy: float) -> None:
    config = EXAMPLES / example / "const.yaml"
    printed = det("run", config, "--config", f"searcher.max_length.epochs={epochs}").stdout
    assert float(re.search(r"best accuracy ([\d.]+)", printed)[1]) > accuracy


def test_iris_learns_and_its_checkpoint_loads_as_printed(det) -> None:
    config = EXAMPLES / "iris_estimator" / "const.yaml"
    printed = det("run", config, "--config", "searcher.max_length.epochs=40").stdout
    assert float(re.search(r"best accuracy ([\d.]+)", printed)[1]) > 0.85
    command = re.search(r"^load it: (.+)$", printed, re.MULTILINE)[1]
    done = subprocess.run(
        ["bash", "-c", command], cwd="/", capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    best = re.search(r"best checkpoint: (\S+)", printed)[1]
    assert list(Path(best, "export", "best_exporter").glob("*/saved_model.pb"))


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_search_over_an_estimator(det) -> None:
    """adaptive_asha: some trials stop early, and the best is found among those that went on."""
    (det.cwd / "model_def.py").write_text(
        (EXAMPLES / "iris_estimator" / "model_def.py").read_text()
    )
    text = (EXAMPLES / "iris_estimator" / "search.yaml").read_text()
    text = text.replace("max_trials: 16", "max_trials: 4").replace("epochs: 60", "epochs: 16")
    (det.cwd / "search.yaml").write_text(text)
    process = det.start("run", "search.yaml", "-q")
    assert process.wait(timeout=500) == 0
    trials = det.json("show", "1")["trials"]
    assert len(trials) == 4
    assert {trial["state"] for trial in trials} == {"COMPLETED"}
    assert (
        len({trial["batches"] for trial in trials}) > 1
    )  # not all of them were trained to the end


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
def test_two_ranks_learn(det) -> None:
    config = EXAMPLES / "digits_estimator" / "distributed.yaml"
    done = det("run", config, "--config", "searcher.max_length.epochs=4")
    assert "2 ranks; gradients are reduced by horovod" in det("logs", "1").stdout
    assert float(re.search(r"best accuracy ([\d.]+)", done.stdout)[1]) > 0.9


def test_the_wrong_tensorflow_is_one_line(det) -> None:
    """As somebody sees it who has installed det-estimator beside a later TensorFlow.

    No traceback.
    """
    (det.cwd / "sitecustomize.py").write_text(
        "import importlib.metadata as m\nreal = m.version\n"
        "m.version = lambda name: '2.21.0' if name.startswith('tensorflow') else real(name)\n"
    )
    (det.cwd / "model_def.py").write_text(
        "from det_estimator import EstimatorTrial\n\nclass T(EstimatorTrial): ...\n"
    )
    (det.cwd / "a.yaml").write_text(
        "name: a\nentrypoint: model_def:T\nsearcher: {name: single, metric: loss, max_length:"
        " {batches: 1}}\n"
    )
    done = det("run", "a.yaml", status=None, env={"PYTHONPATH": str(det.cwd)})
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert (
        "det-estimator needs TensorFlow 2.15, as later ones have no tf.estimator, and 2.21.0 is"
        " installed" in told
    )
    assert "Traceback" not in told
