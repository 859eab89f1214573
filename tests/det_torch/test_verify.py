"""`det verify` and `det check --determinism` on trials of PyTorch.

Some are sound, and six are broken on purpose.
"""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.support.verified import example_is_verified

CONFIG = """\
name: tried
entrypoint: model_def:Tried
hyperparameters: {global_batch_size: 4}
data: {api_key: "0.5"}
searcher: {name: single, metric: loss, max_length: {batches: 12}}
min_validation_period: {batches: 6}
min_checkpoint_period: {batches: 6}
checkpoint_policy: all
checkpoint_storage: {type: shared_fs, host_path: CHECKPOINTS, save_trial_best: 9, save_trial_latest: 9}
scheduling_unit: 3
reproducibility: {experiment_seed: 7}
"""

MODEL = """\
import random, time
from pathlib import Path
import torch
from det_torch import DataLoader, PyTorchTrial
BEFORE

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.tensor([i / 24, 1.0]) FEATURE, torch.tensor([i / 12])

class Tried(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        # A name that counts as a secret is masked where the configuration is stored.
        float(context.get_data_config().get("api_key", 0))
        self.model = context.wrap_model(torch.nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return DataLoader(ORDER, batch_size=4, shuffle=SHUFFLE)

    def build_validation_data_loader(self):
        return DataLoader(Points(), batch_size=8)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1]) SCALE
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}
"""


def train(
    det: Any, env: dict[str, str] | None = None, *words: str, status: int = 0, **parts: str
) -> None:
    code = MODEL
    filled = {
        "BEFORE": "",
        "FEATURE": "",
        "ORDER": "Points()",
        "SHUFFLE": "True",
        "SCALE": "",
    } | parts
    for name, text in filled.items():
        code = code.replace(name, textwrap.dedent(text))
    det.cwd.joinpath("model_def.py").write_text(code)
    det.cwd.joinpath("const.yaml").write_text(CONFIG.replace("CHECKPOINTS", str(det.cwd / "saved")))
    det("run", "const.yaml", "--quiet", *words, env=env, status=status)


def test_a_sound_trial_is_verified_and_left_as_it_was(det: Any) -> None:
    train(det)
    before = sorted(str(path) for path in det.home.rglob("*") if path.is_file())

    said = det.json("verify", "1")

    assert (said["same"], said["batches"], said["difference"], said["causes"]) == (
        True,
        12,
        None,
        [],
    )
    assert (said["reports"], said["checkpoints"]) == (6, [6, 12])
    assert sorted(str(path) for path in det.home.rglob("*") if path.is_file()) == before
    assert det("verify", "1", "--batches", "5").returncode == 0
    (uuid,) = [each["uuid"] for each in det.json("checkpoint", "list", "1") if each["batches"] == 6]
    assert (
        "the same, 3 reports and 1 checkpoints compared"
        in det("verify", "1", "--from", uuid).stdout
    )


@pytest.mark.thorough
def test_the_startup_hook_is_run_again(det: Any) -> None:
    det.cwd.joinpath("startup-hook.sh").write_text("export HOOKED=0.5\n")
    train(det, SCALE="* float(__import__('os').environ['HOOKED'])")
    assert det.json("verify", "1")["same"]


@pytest.mark.parametrize(
    ("parts", "what", "cause"),
    [
        (
            {"ORDER": "[Points()[i] for i in random.SystemRandom().sample(range(24), 24)]"},
            "data",
            "not reproducible at all",
        ),
        pytest.param(
            *({"FEATURE": "* (time.time() % 1000)"}, "data", "not reproducible at all"),
            marks=pytest.mark.thorough,
        ),
        (
            {"BEFORE": "count = [0]", "SCALE": "* (count.append(0) or len(count))"},
            "training",
            "a checkpoint does not carry",
        ),
    ],
    ids=["unseeded shuffle", "time in a feature", "global counter"],
)
def test_unseeded_randomness_is_found_in_its_first_batch(
    det: Any, parts: dict[str, str], what: str, cause: str
) -> None:
    train(det, **parts)

    said = det("verify", "1", status=1).stdout

    assert what in said
    assert cause in said
    assert "not deterministic" in det("check", "const.yaml", "--determinism", status=1).stdout


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_the_example_is_verified(det: Any) -> None:
    assert example_is_verified(det, "digits_torch")["checkpoints"]


TWO = (
    "-c",
    "resources.slots_per_trial=2",
    "-c",
    "hyperparameters.global_batch_size=8",
    "-c",
    "distributed.backend=native",
)


@pytest.mark.parametrize("backend", ["native", pytest.param("horovod", marks=pytest.mark.thorough)])
def test_two_ranks_are_trained_again_as_two(det: Any, backend: str) -> None:
    if backend == "horovod":
        pytest.importorskip("horovod.torch", reason="run: det horovod install")
    train(det, {"DET_SLOTS_TOTAL": "2"}, *TWO, "-c", f"distributed.backend={backend}")

    said = json.loads(det("verify", "1", "--json", env={"DET_SLOTS_TOTAL": "2"}).stdout)

    assert (said["same"], said["reports"], said["checkpoints"]) == (True, 6, [6, 12])


def test_of_two_ranks_the_one_whose_data_differs_is_named(det: Any) -> None:
    """The last batch that rank 1 has in an epoch is drawn anew each time.

    Its weights, and so all, differ from there on.
    """
    env = {"DET_SLOTS_TOTAL": "2"}
    train(
        det,
        env,
        *TWO,
        FEATURE="* (1 if i < 20 or i % 2 == 0 else time.time() % 1000)",
        SHUFFLE="False",
    )

    said = json.loads(det("verify", "1", "--json", env=env, status=1).stdout)

    assert said["difference"]["what"] == "data"
    assert (said["difference"]["batches"], said["difference"]["name"]) == (2, "rank 1")
    assert "not reproducible at all" in said["causes"][0]


def test_error_of_one_rank_is_reported_rather_than_its_absence(det: Any) -> None:
    env = {"DET_SLOTS_TOTAL": "2"}
    fails = (
        "* (1 / 0 if __import__('os').environ.get('BREAK') == __import__('os').environ['DET_RANK']"
        " else 1.0)"
    )
    train(det, env, *TWO, SCALE=fails)

    for rank in ("0", "1"):
        said = det("verify", "1", env=env | {"BREAK": rank}, status=2).stderr
        assert "training again failed: ZeroDivisionError: division by zero" in said


def package(site: Path, version: str, scale: float) -> dict[str, str]:
    for earlier in site.glob("scaling-*.dist-info"):
        shutil.rmtree(earlier)
    info = site / f"scaling-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: scaling\nVersion: {version}\n"
    )
    site.joinpath("scaling.py").write_text(f"BY = {scale}\n# {version}\n")
    return {"PYTHONPATH": str(site)}


def test_a_changed_package_is_named_with_both_versions(det: Any, tmp_path: Path) -> None:
    env = package(tmp_path / "site", "1.0", 1.0)
    train(det, env, BEFORE="import scaling", SCALE="* scaling.BY")
    package(tmp_path / "site", "2.0.1", 1.25)

    said = det("verify", "1", env=env, status=1).stdout

    assert "training differs first at batch 3: loss" in said
    assert "scaling was 1.0 and is 2.0.1" in said
    assert "the same" in det("verify", "1", "--tolerance", "100", env=env).stdout


def test_changed_code_is_named(det: Any, tmp_path: Path) -> None:
    """An experiment has a copy of its own code.

    What changes lies outside, or is given by --code.
    """
    outside = tmp_path / "lib"
    outside.mkdir()
    (outside / "scaling.py").write_text("BY = 1.0\n")
    env = {"PYTHONPATH": str(outside)}
    train(det, env, BEFORE="import scaling", SCALE="* scaling.BY")
    changed = det.cwd / "model_def.py"
    text = changed.read_text()
    changed.write_text(text.replace("lr=0.1", "lr=0.2"))
    line = text[: text.index("lr=0.1")].count("\n") + 1

    said = det("verify", "1", "--code", det.cwd, env=env, status=1).stdout
    assert f"model_def.py differs from line {line} on" in said
    (outside / "scaling.py").write_text("BY = 1.50\n")
    said = det("verify", "1", env=env, status=1).stdout
    assert f"code has changed since: {outside / 'scaling.py'}" in said


def test_a_changed_data_file_is_named(det: Any, tmp_path: Path) -> None:
    file = tmp_path / "scale.txt"
    file.write_text("1.0")
    train(det, FEATURE=f"* float(Path({str(file)!r}).read_text())")
    file.write_text("1.5")
    os.utime(file)

    said = det("verify", "1", status=1).stdout

    assert f"a file that training reads has changed since: {file}" in said


def test_imported_experiment_resumes_and_verifies(det: Any, tmp_path: Path) -> None:
    mended = "* (1.0 if batch_idx < 8 or os.environ.get('MENDED') else 1 / 0)"
    # An experiment with a secret comes without it, and cannot be resumed.
    words = ("-c", "max_restarts=0", "-c", "data={}")
    train(det, None, *words, status=1, BEFORE="import os", SCALE=mended)
    det("export", "1", tmp_path / "one.det")
    other = {"DET_HOME": str(tmp_path / "other"), "MENDED": "1"}
    det("import", tmp_path / "one.det", env=other)
    det.cwd.joinpath("model_def.py").unlink()

    assert "completed" in det("resume", "1", env=other).stdout
    said = det("verify", "1", env=other).stdout
    assert "to batch 12: the same, 6 reports and 2 checkpoints compared" in said


def test_what_cannot_be_trained_again_is_said(det: Any) -> None:
    train(det)

    assert (
        "has no trial 99 that has trained" in det("verify", "1", "--trial", "99", status=2).stderr
    )


def test_a_few_batches_are_tried_twice_before_a_long_run(det: Any) -> None:
    train(det)

    assert det("check", "const.yaml", "--determinism").stdout.endswith(
        "trained the same twice, and through a checkpoint\n"
    )
