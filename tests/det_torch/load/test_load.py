"""A trial out of a checkpoint: det's own, and those that Determined wrote."""

from __future__ import annotations

import importlib.util
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from det_core import CheckpointError, EntrypointError
from det_torch import PyTorchTrial, load_trial_from_checkpoint_path, rng, state


def _conftest():
    spec = importlib.util.spec_from_file_location(
        "load_conftest", Path(__file__).with_name("conftest.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kit = _conftest()
EXPECTED = {"weight": torch.tensor([[0.0, 1.0, 2.0]]), "bias": torch.tensor([5.0])}


def loaded(trial) -> bool:
    return all(
        torch.equal(value, EXPECTED[name]) for name, value in trial.model.state_dict().items()
    )


# det's own


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """The directory of a checkpoint that a script with a module `model_def` wrote."""
    project = kit.write_code(tmp_path / "project")
    (project / "train.py").write_text(
        "import det_torch\nfrom det_torch import Batch\nfrom model_def import Trial\n"
        "with det_torch.init(hparams={'width': 2}) as context:\n"
        "    det_torch.Trainer(Trial(context), context).fit(max_length=Batch(3))\n"
    )
    subprocess.run([sys.executable, "train.py"], cwd=project, check=True, capture_output=True)
    (checkpoint,) = (project / "checkpoints").iterdir()
    return checkpoint


@pytest.mark.process
def test_trial_is_rebuilt_from_its_checkpoints_code_and_hparams(trained):
    trial = load_trial_from_checkpoint_path(trained)
    assert (trial.name, trial.model.in_features) == ("first", 2)
    saved = torch.load(trained / "state_dict.pth", weights_only=True)["models_state_dict"][0]
    assert torch.equal(trial.model.weight, saved["weight"])


@pytest.mark.process
def test_loading_needs_no_part_of_the_project_that_wrote_it(trained, tmp_path):
    moved = tmp_path / "moved"
    trained.rename(moved)
    program = (
        "import det_torch;"
        f" print(det_torch.load_trial_from_checkpoint_path({str(moved)!r}).model.in_features)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd="/", check=True, capture_output=True, text=True
    )
    assert done.stdout == "2\n"


# What Determined wrote


@pytest.mark.parametrize(
    "file", ["state_dict.pth", "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt"]
)
@pytest.mark.parametrize("load_data", [True, False])
def test_weights_load_from_every_place_that_determined_used(old, file, load_data):
    assert loaded(load_trial_from_checkpoint_path(old(file=file, load_data=load_data)))


def test_singular_keys_of_the_oldest_checkpoints_are_understood(old):
    first = kit.old_state()
    singular = {
        "model_state_dict": first["models_state_dict"][0],
        "optimizer_state_dict": first["optimizers_state_dict"][0],
        "lr_scheduler": None,
    }
    assert loaded(load_trial_from_checkpoint_path(old(singular)))


def test_both_forms_of_a_key_are_a_damaged_checkpoint(old):
    with pytest.raises(
        CheckpointError, match=r"both 'model_state_dict' and 'models_state_dict'; it is damaged"
    ):
        load_trial_from_checkpoint_path(old(kit.old_state(model_state_dict=kit.weights())))


def test_defect_7_weights_saved_under_ddp_fit_a_plain_model(old):
    """Their prefix was stripped where training was resumed, and not where a trial was loaded."""
    assert loaded(
        load_trial_from_checkpoint_path(
            old(kit.old_state(models_state_dict=[kit.weights(prefix="module.")]))
        )
    )


def test_weights_without_the_prefix_fit_a_model_under_ddp():
    model = torch.nn.ModuleDict({"module": torch.nn.Linear(3, 1)})
    state.load_weights(model, kit.weights())
    assert torch.equal(model["module"].bias, EXPECTED["bias"])


@pytest.mark.parametrize("numpy_1", [False, True])
def test_numpy_and_python_generators_load_from_old_checkpoints(old, numpy_1):
    """NumPy's was kept as an array, whose private names changed with NumPy 2."""
    np.random.seed(3)
    random.seed(4)
    directory = old()
    expected = (np.random.rand(), random.random())
    if numpy_1:
        kit.as_numpy_1_named_them(directory / "state_dict.pth")
    rng.set_rng_state(state.load(directory)["rng_state"])
    assert (np.random.rand(), random.random()) == expected


def test_trial_state_is_never_unpickled(old, tmp_path):
    directory = old()
    for name in ("trial_state.pkl", "workload_sequencer.pkl"):
        (directory / name).write_bytes(pickle.dumps(kit.Payload(tmp_path / "touched")))
    assert loaded(load_trial_from_checkpoint_path(directory))
    assert not (tmp_path / "touched").exists()


def test_defect_6_checkpoint_without_configuration_has_defaults(old):
    """The harness that went before wrote null for both when it was given no configuration."""
    directory = old()
    facts = json.loads((directory / "load_data.json").read_text())
    (directory / "load_data.json").write_text(
        json.dumps(facts | {"experiment_config": None, "hparams": None})
    )
    assert loaded(load_trial_from_checkpoint_path(directory))


def test_configuration_with_unknown_keys_is_read_in_part(old):
    directory = old()
    facts = json.loads((directory / "load_data.json").read_text())
    facts["experiment_config"]["of_another_time"] = {"yes": 1}
    (directory / "load_data.json").write_text(json.dumps(facts))
    with pytest.warns(
        UserWarning, match=r"the checkpoint's configuration is read in part: .*of_another_time"
    ):
        trial = load_trial_from_checkpoint_path(directory)
    assert trial.context.get_data_config() == {"a": 1}


# What is refused


@pytest.mark.parametrize("place", ["callbacks", "models_state_dict"])
def test_a_malicious_pickle_is_refused_and_not_run(old, tmp_path, place):
    touched = tmp_path / "touched"
    bad = kit.old_state(**{place: [kit.Payload(touched)]})
    torch.save(bad, tmp_path / "proof.pt")
    torch.load(tmp_path / "proof.pt", weights_only=False)  # it does what it says
    touched.unlink()
    with pytest.raises(
        CheckpointError,
        match=r"state_dict.pth cannot be read safely: .*must hold tensors and plain data",
    ):
        load_trial_from_checkpoint_path(old(bad))
    assert not touched.exists()


def test_bare_pickle_as_a_state_is_refused_and_not_run(old, tmp_path):
    directory = old()
    (directory / "state_dict.pth").write_bytes(pickle.dumps(kit.Payload(tmp_path / "touched")))
    with pytest.raises(CheckpointError, match=r"cannot be read safely"):
        load_trial_from_checkpoint_path(directory)
    assert not (tmp_path / "touched").exists()


def test_a_class_that_is_no_trial_is_not_made(old):
    """An altered load_data.json may name any class at all."""
    directory = old()
    facts = json.loads((directory / "load_data.json").read_text())
    (directory / "load_data.json").write_text(
        json.dumps(facts | {"trial_cls_spec": "subprocess:Popen"})
    )
    with pytest.raises(
        CheckpointError, match=r"subprocess.Popen is no PyTorchTrial; give the trial_class"
    ):
        load_trial_from_checkpoint_path(directory)


def test_a_directory_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"holds neither load_data.json nor metadata.json; name the directory"
    ):
        load_trial_from_checkpoint_path(tmp_path)


def test_a_checkpoint_without_a_state_is_named(old):
    directory = old()
    (directory / "state_dict.pth").unlink()
    with pytest.raises(CheckpointError, match=r"holds no state_dict.pth"):
        load_trial_from_checkpoint_path(directory)


def test_facts_that_are_no_json_are_named(old):
    directory = old()
    (directory / "load_data.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"load_data.json is not JSON: .* the checkpoint is damaged"
    ):
        load_trial_from_checkpoint_path(directory)


def test_code_that_is_gone_is_named(old):
    directory = old()
    (directory / "code" / "model_def.py").unlink()
    with pytest.raises(EntrypointError, match=r"no module named 'model_def'"):
        load_trial_from_checkpoint_path(directory)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "__main__:Trial",
            r"was defined in a script or a notebook \(__main__:Trial\).*give it as trial_class",
        ),
        (
            "x:f.<locals>.Trial",
            r"was defined inside a function \(x:f.<locals>.Trial\).*give it as trial_class",
        ),
        (None, r"does not say which trial class it is of; give it as trial_class"),
    ],
)
def test_a_class_that_cannot_be_imported_must_be_given(old, spec, message):
    directory = old()
    facts = json.loads((directory / "load_data.json").read_text()) | {"trial_cls_spec": spec}
    if spec is None:
        facts["experiment_config"]["entrypoint"] = None
    (directory / "load_data.json").write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=message):
        load_trial_from_checkpoint_path(directory)
    assert loaded(load_trial_from_checkpoint_path(directory, trial_class=Given))


def test_weights_of_another_model_are_named(old):
    with pytest.raises(
        CheckpointError, match=r"does not fit Trial: .*size mismatch.*; give the trial_class"
    ):
        load_trial_from_checkpoint_path(old(kit.old_state(models_state_dict=[kit.weights(7)])))
    with pytest.raises(
        CheckpointError, match=r"holds 2 models, but Trial wraps 1; give the trial_class"
    ):
        load_trial_from_checkpoint_path(
            old(kit.old_state(models_state_dict=[kit.weights()] * 2), name="two")
        )


# How it is asked


class Given(PyTorchTrial):
    """A trial that is handed over."""

    def __init__(self, context, scale=1):
        self.context, self.scale = context, scale
        self.model = context.wrap_model(torch.nn.Linear(3, 1))

    def build_training_data_loader(self):
        return [torch.ones(4, 3)]

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        return self.model(batch).mean()

    def evaluate_batch(self, batch):
        return {"score": 1.0}


def test_a_given_class_is_made_without_importing_any_code(old):
    directory = old()
    (directory / "code" / "model_def.py").write_text("raise SystemExit\n")
    assert loaded(load_trial_from_checkpoint_path(directory, trial_class=Given))


def test_arguments_go_to_the_trials_constructor_in_one_form(old):
    directory = old()
    assert load_trial_from_checkpoint_path(directory, trial_kwargs={"scale": 2}).scale == 2
    assert load_trial_from_checkpoint_path(directory, scale=3).scale == 3
    with pytest.raises(ValueError, match=r"as trial_kwargs or as keywords, not both"):
        load_trial_from_checkpoint_path(directory, trial_kwargs={"scale": 2}, scale=3)


def test_harmless_torch_load_kwargs_of_old_callers_are_accepted(old):
    """Those that would allow unpickling are refused."""
    directory = old()
    assert loaded(
        load_trial_from_checkpoint_path(directory, torch_load_kwargs={"map_location": "cpu"})
    )
    with pytest.raises(ValueError, match=r"weights_only=False; det unpickles nothing"):
        load_trial_from_checkpoint_path(directory, torch_load_kwargs={"weights_only": False})
    with pytest.raises(ValueError, match=r"torch_load_kwargs has 'pickle_module'; leave it out"):
        load_trial_from_checkpoint_path(directory, torch_load_kwargs={"pickle_module": pickle})


def test_a_nested_class_is_found(old):
    directory = old()
    facts = json.loads((directory / "load_data.json").read_text())
    (directory / "load_data.json").write_text(
        json.dumps(facts | {"trial_cls_spec": "model_def:Outer.Inner"})
    )
    assert type(load_trial_from_checkpoint_path(directory)).__qualname__ == "Outer.Inner"


def test_code_with_an_imported_modules_name_is_imported_apart(old, tmp_path, monkeypatch):
    """Nearly every project has a module `model_def`, and helpers of equal names."""
    project = kit.write_code(tmp_path / "project", name="mine", width=9)
    monkeypatch.syspath_prepend(str(project))
    import layers
    import model_def

    trial = load_trial_from_checkpoint_path(old())
    assert (trial.name, trial.model.in_features) == ("first", 3)
    assert sys.modules["model_def"] is model_def
    assert sys.modules["layers"] is layers
    assert model_def.Trial.name == "mine"
    assert sys.path[0] == str(project)


def test_checkpoints_with_equal_module_names_load_in_turn(old):
    first, second = old(name="one"), old(name="two")
    kit.write_code(second / "code", name="second")
    assert load_trial_from_checkpoint_path(first).name == "first"
    assert load_trial_from_checkpoint_path(second).name == "second"
    assert load_trial_from_checkpoint_path(first).name == "first"


def test_loaded_trial_is_not_wrapped_and_evaluates_batches(old):
    trial = load_trial_from_checkpoint_path(old())
    (batch,) = trial.build_validation_data_loader()
    assert trial.evaluate_batch(batch)["score"].item() == pytest.approx(8.0)
    assert next(trial.model.parameters()).device.type == "cpu"


@pytest.mark.process
def test_loading_a_trial_defined_in_main_requires_its_class(tmp_path):
    (tmp_path / "layers.py").write_text("def width_of(hparams):\n    return 3\n")
    program = (
        kit.textwrap.dedent(kit.MODEL_DEF.format(name="main"))
        + "\nimport det_torch\nwith det_torch.init() as context:\n"
        "    det_torch.Trainer(Trial(context), context).fit(max_length=det_torch.Batch(1))\n"
    )
    (tmp_path / "train.py").write_text(program)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, capture_output=True)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    with pytest.raises(
        CheckpointError, match=r"defined in a script or a notebook \(__main__:Trial\)"
    ):
        load_trial_from_checkpoint_path(checkpoint)
    assert load_trial_from_checkpoint_path(checkpoint, trial_class=Given).model.in_features == 3
