"""Trials that raise or break the contract, each in a process of `det run --in-process`."""

from __future__ import annotations

from typing import Any

import pytest

BOOM = 'raise ValueError("boom")'


def trial(signature: str, *lines: str) -> str:
    """Return a trial with one method of its own."""
    return f"class Trial(Sound):\n    def {signature}:\n" + "".join(
        f"        {line}\n" for line in lines
    )


def parts(broken: str) -> str:
    """Return a trial whose parts are made by `build_*` methods, one of which raises."""
    bodies = {
        "build_model(self)": "return nn.Linear(1, 1)",
        "build_optimizer(self, model)": "return torch.optim.SGD(model.parameters(), lr=0.1)",
        "build_lr_scheduler(self, optimizer)": "return None",
    }
    text = "class Trial(Sound):\n    def __init__(self, context):\n        self.context = context\n"
    for signature, body in bodies.items():
        text += (
            f"\n    def {signature}:\n        {BOOM if signature.startswith(broken) else body}\n"
        )
    return text


def hook(name: str) -> str:
    """Return a trial with a callback that raises in one of its hooks."""
    return (
        f"class Hook(PyTorchCallback):\n    def {name}(self, *arguments):\n        {BOOM}\n\n\n"
        + trial("build_callbacks(self)", 'return {"hook": Hook()}')
    )


def data(split: str, workers: int) -> str:
    """Return a trial whose dataset raises, in the training process or in one of the loader's."""
    return f"class Bad(Lines):\n    def __getitem__(self, index):\n        {BOOM}\n\n\n" + trial(
        f"build_{split}_data_loader(self)",
        f"return DataLoader(Bad(), batch_size=2, num_workers={workers})",
    )


METHODS = {
    "__init__": trial("__init__(self, context)", BOOM),
    "build_model": parts("build_model"),
    "build_optimizer": parts("build_optimizer"),
    "build_lr_scheduler": parts("build_lr_scheduler"),
    "build_training_data_loader": trial("build_training_data_loader(self)", BOOM),
    "build_validation_data_loader": trial("build_validation_data_loader(self)", BOOM),
    "build_callbacks": trial("build_callbacks(self)", BOOM),
    "train_batch": trial("train_batch(self, batch, epoch_idx, batch_idx)", BOOM),
    "evaluate_batch": trial("evaluate_batch(self, batch)", BOOM),
    "evaluation_reducer": trial("evaluation_reducer(self)", BOOM),
    "evaluate_full_dataset": (
        "class Trial(Sound):\n    evaluate_batch = PyTorchTrial.evaluate_batch\n\n"
        f"    def evaluate_full_dataset(self, data_loader):\n        {BOOM}\n"
    ),
    **{
        name: hook(name)
        for name in (
            "on_trial_startup",
            "on_training_start",
            "on_training_epoch_start",
            "on_training_epoch_end",
            "on_training_workload_end",
            "on_validation_start",
            "on_validation_epoch_start",
            "on_validation_epoch_end",
            "on_validation_end",
            "on_checkpoint_save_start",
            "on_checkpoint_write_end",
            "on_checkpoint_upload_end",
            "state_dict",
        )
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_trial_error_shows_only_the_users_frames_and_one_line(project: Any, method: str) -> None:
    lines = project.model(METHODS[method]).splitlines()
    done = project.quick("run", "const.yaml", "--in-process", "--quiet")
    file = project.home / "experiments" / "1" / "code" / "model_def.py"
    place = f'  File "{file}", line {lines.index("        " + BOOM) + 1}, in {method}'
    wanted = [
        "Traceback (most recent call last):",
        place,
        f"    {BOOM}",
        "ValueError: boom",
        "det: trial 1: ValueError: boom",
    ]
    assert (done.returncode, done.stderr.splitlines()) == (1, wanted)
    assert done.stdout.startswith("experiment 1 is error")
    shown = project.json("show", "1")
    assert [(t["state"], t["exit_reason"]) for t in shown["trials"]] == [
        ("ERROR", "ValueError: boom")
    ]


@pytest.mark.parametrize("split", ["training", "validation"])
@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_error_shows_the_users_frame_from_any_process(
    project: Any, split: str, workers: int
) -> None:
    lines = project.model(data(split, workers)).splitlines()
    done = project.quick("run", "const.yaml", "--in-process", "--quiet")
    file = project.home / "experiments" / "1" / "code" / "model_def.py"
    place = f'  File "{file}", line {lines.index("        " + BOOM) + 1}, in __getitem__'
    told = done.stderr.splitlines()
    assert done.returncode == 1
    assert [line for line in told if line][-4:] == [
        place,
        f"    {BOOM}",
        "ValueError: boom",
        "det: trial 1: ValueError: boom",
    ]
    assert "det_core" not in done.stderr
    assert "det_torch" not in done.stderr


def test_a_hook_that_raises_when_all_is_done_fails_no_trial(project: Any) -> None:
    project.model(hook("on_trial_shutdown"))
    done = project.quick("run", "const.yaml", "--in-process", "--quiet", status=0)
    assert done.stderr.splitlines()[-1] == "ValueError: boom"
    assert "det_torch" not in done.stderr


# What is raised, and its summary.
RAISED = {
    "an import of what is not there": (
        "import nowhere\n\nTrial = Sound",
        "ModuleNotFoundError: No module named 'nowhere'",
    ),
    "an error while it is imported": (f"{BOOM}\n\nTrial = Sound", "ValueError: boom"),
    "a syntax error": (
        "class Trial(Sound)\n    pass",
        "SyntaxError: expected ':' (model_def.py, line 4)",
    ),
    "endless recursion": (
        trial(
            "train_batch(self, batch, epoch_idx, batch_idx)",
            "return self.train_batch(batch, epoch_idx, batch_idx)",
        ),
        "RecursionError: maximum recursion depth exceeded",
    ),
    "a hyperparameter that is not there": (
        trial("train_batch(self, batch, epoch_idx, batch_idx)", 'self.context.get_hparam("lr")'),
        "ValueError: no hyperparameter 'lr'; there are: none",
    ),
    "a batch size that is not there": (
        trial("build_training_data_loader(self)", "self.context.get_per_slot_batch_size()"),
        "ValueError: no hyperparameter 'global_batch_size'; add it to the configuration",
    ),
    "options of a loader that do not fit": (
        trial("build_training_data_loader(self)", "return DataLoader(Lines(), batch_size=0)"),
        "ValueError: batch_size is 0; give 1 or more",
    ),
    "an exception that cannot be printed": (
        "class Odd(Exception):\n    def __str__(self):\n        raise TypeError\n\n\n"
        + trial("train_batch(self, batch, epoch_idx, batch_idx)", "raise Odd"),
        "Odd: <its __str__ raised TypeError>",
    ),
    "a message that is not UTF-8": (
        trial("train_batch(self, batch, epoch_idx, batch_idx)", 'raise ValueError("\\udcff")'),
        "ValueError: \\udcff",
    ),
    "a message of a megabyte": (
        trial("train_batch(self, batch, epoch_idx, batch_idx)", 'raise ValueError("x" * 2**20)'),
        "ValueError: " + "x" * 488 + "...",
    ),
    "a group of exceptions": (
        trial(
            "train_batch(self, batch, epoch_idx, batch_idx)",
            'raise ExceptionGroup("two", [ValueError("boom"), KeyError(1)])',
        ),
        "ExceptionGroup: two (2 sub-exceptions)",
    ),
    "an exception with a cause": (
        trial(
            "train_batch(self, batch, epoch_idx, batch_idx)",
            "try:",
            "    {}[1]",
            "except KeyError as error:",
            '    raise RuntimeError("no such thing") from error',
        ),
        "RuntimeError: no such thing",
    ),
    "an interrupt that nobody sent": (
        trial("train_batch(self, batch, epoch_idx, batch_idx)", "raise KeyboardInterrupt"),
        "KeyboardInterrupt",
    ),
    "hyperparameters that cannot work": (
        trial(
            "__init__(self, context)",
            "import det_core",
            'raise det_core.InvalidHP("lr is too high")',
        ),
        "lr is too high",
    ),
}


@pytest.mark.parametrize("title", RAISED)
def test_every_error_ends_in_one_line_without_frames_of_det(project: Any, title: str) -> None:
    model, line = RAISED[title]
    project.model(model)
    done = project.quick("run", "const.yaml", "--in-process", "--quiet")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"det: trial 1: {line}"
    assert [text for text in done.stderr.splitlines() if text.startswith("det: ")] == [
        f"det: trial 1: {line}"
    ]
    for ours in ("det_core/", "det_torch/", "importlib/"):
        assert ours not in done.stderr
    if "InvalidHP" not in model:
        assert str(project.home / "experiments" / "1" / "code" / "model_def.py") in done.stderr


# What is wrong with a trial, and the sentence that says so.
MISTAKES = {
    "a loss that is text": (
        trial("train_batch(self, batch, epoch_idx, batch_idx)", 'return "loss"'),
        "train_batch returned str; return the loss, or a dict of metrics by name",
    ),
    "no loss": (
        trial("train_batch(self, batch, epoch_idx, batch_idx)", "pass"),
        "train_batch returned NoneType; return the loss, or a dict of metrics by name",
    ),
    "the searcher's metric is missing": (
        trial("evaluate_batch(self, batch)", 'return {"loss": 1.0}'),
        (
            "searcher.metric is 'error', but the validation returned loss; return it, or name one"
            " of those"
        ),
    ),
    "a metric that is text": (
        trial("evaluate_batch(self, batch)", 'return {"error": "low"}'),
        "metric 'error' is 'low' (str); return a number, or a tensor or array that holds one",
    ),
    "a metric that is None": (
        trial("evaluate_batch(self, batch)", 'return {"error": None}'),
        "metric 'error' is None (NoneType); return a number, or a tensor or array that holds one",
    ),
    "a searcher's metric of many values": (
        trial("evaluate_batch(self, batch)", 'return {"error": torch.ones(3)}'),
        (
            "metric 'error (searcher.metric)' is [1.0, 1.0, 1.0] (list); return a number, or a"
            " tensor or array that holds one"
        ),
    ),
    "metrics that are text": (
        trial("evaluate_batch(self, batch)", 'return "error"'),
        "evaluate_batch returned str; return a dict of metrics by name",
    ),
    "metrics that change": (
        trial(
            "evaluate_batch(self, batch, batch_idx)", 'return {"error": 1.0, f"m{batch_idx}": 1.0}'
        ),
        (
            "evaluate_batch returned ['error', 'm1'] for batch 1 and ['error', 'm0'] before; "
            "return the same metrics for every batch"
        ),
    ),
    "a reducer that is text": (
        trial("evaluation_reducer(self)", 'return "mean"'),
        "evaluation_reducer gives 'mean' for 'error'; give one of det_torch.Reducer",
    ),
    "reducers for other metrics": (
        trial("evaluation_reducer(self)", 'return {"loss": Reducer.SUM}'),
        (
            "evaluation_reducer covers ['loss'], but evaluate_batch returns ['error']; give each"
            " metric one"
        ),
    ),
    "no model": (
        trial("__init__(self, context)", "pass"),
        "Trial wrapped no model; pass it through context.wrap_model(), or define build_model()",
    ),
    "no optimizer": (
        trial("__init__(self, context)", "context.wrap_model(nn.Linear(1, 1))"),
        (
            "Trial wrapped no optimizer; pass it through context.wrap_optimizer(), or define"
            " build_optimizer()"
        ),
    ),
    "a model that is none": (
        trial("__init__(self, context)", 'context.wrap_model("model")'),
        "wrap_model got str; give a torch.nn.Module",
    ),
    "both ways to validate": (
        trial("evaluate_full_dataset(self, data_loader)", "return {}"),
        "Trial defines both evaluate_batch and evaluate_full_dataset; define exactly one of them",
    ),
    "no way to validate": (
        "class Trial(Sound):\n    evaluate_batch = PyTorchTrial.evaluate_batch\n",
        (
            "Trial defines neither evaluate_batch nor evaluate_full_dataset; define exactly one of"
            " them"
        ),
    ),
    "a constructor without a context": (
        trial("__init__(self)", "pass"),
        "Trial.__init__ takes (); define it as __init__(self, context)",
    ),
    "train_batch without its arguments": (
        trial("train_batch(self, batch)", "pass"),
        (
            "Trial.train_batch takes (batch); define it as train_batch(self, batch, epoch_idx,"
            " batch_idx)"
        ),
    ),
    "a training loader without data": (
        trial("build_training_data_loader(self)", "return DataLoader(Lines(0), batch_size=2)"),
        "the training data loader is empty: its Lines holds no records; give it at least one batch",
    ),
    "a validation loader without data": (
        trial("build_validation_data_loader(self)", "return DataLoader(Lines(0), batch_size=2)"),
        (
            "the validation data loader is empty: its Lines holds no records; give it at least one"
            " batch"
        ),
    ),
    "a loader that drops all it has": (
        trial(
            "build_training_data_loader(self)",
            "return DataLoader(Lines(), batch_size=9, drop_last=True)",
        ),
        (
            "the training data loader is empty: 8 records do not fill a batch of 9, and drop_last"
            " is set; give it at least one batch"
        ),
    ),
    "no loader": (
        trial("build_validation_data_loader(self)", "pass"),
        (
            "build_validation_data_loader returned NoneType; return a data loader or an iterable of"
            " batches"
        ),
    ),
    "callbacks in a list": (
        trial("build_callbacks(self)", "return [PyTorchCallback()]"),
        "build_callbacks returned list; return a dict of callbacks by name",
    ),
    "a callback whose state cannot be kept safely": (
        "class Keeps(PyTorchCallback):\n    def state_dict(self):\n        return {'file':"
        " object()}\n\n\n" + trial("build_callbacks(self)", "return {'keeps': Keeps()}"),
        (
            "state_dict()['file'] of the callback 'keeps' is object, which a checkpoint cannot hold"
            " safely; keep tensors, numbers, text, lists and dicts there"
        ),
    ),
    "a length in epochs of data without a length": (
        trial(
            "build_training_data_loader(self)", "return ([torch.ones(2, 1)] * 2 for _ in range(9))"
        ),
        "a length of 1 epochs cannot be counted, as the data has no length; give it in batches",
    ),
    "sys.exit": (
        trial("train_batch(self, batch, epoch_idx, batch_idx)", "raise SystemExit(3)"),
        "the trial called sys.exit(3); return, or raise det_core.InvalidHP",
    ),
}


@pytest.mark.parametrize("title", MISTAKES)
def test_a_trial_that_breaks_the_contract_is_told_in_one_line(project: Any, title: str) -> None:
    model, line = MISTAKES[title]
    project.model(model)
    if "epochs" in title:
        text = project.cwd.joinpath("const.yaml").read_text()
        project.write("const.yaml", text.replace("{batches: 4}", "{epochs: 1}"))
    done = project.quick("run", "const.yaml", "--in-process", "--quiet")
    assert (done.returncode, done.stderr) == (2, f"det: trial 1: {line}\n")
    assert project.json("show", "1")["trials"][0]["exit_reason"] == line


def test_metric_that_is_always_nan_fails_the_experiment(project: Any) -> None:
    """The trial is completed, and the error is one line."""
    project.model(trial("evaluate_batch(self, batch)", 'return {"error": float("nan")}'))
    done = project.quick("run", "const.yaml", "--in-process", "--quiet")
    line = (
        "no trial has a usable 'error' (searcher.metric): it was never a number, NaN each time;"
        " lower the learning rate, or clip gradients"
    )
    assert (done.returncode, done.stderr) == (1, f"det: {line}\n")
    shown = project.json("show", "1")
    assert (shown["experiment"]["state"], shown["trials"][0]["state"]) == ("ERROR", "COMPLETED")
    again = project.quick("resume", "1", "--in-process", "--quiet")
    assert (again.returncode, again.stderr) == (1, f"det: {line}\n")


def test_a_metric_that_is_nan_now_and_then_is_the_worst_value(project: Any) -> None:
    project.model(
        trial(
            "evaluate_batch(self, batch)",
            'return {"error": float("nan") if self.context.current_train_batch() > 1 else 0.5}',
        )
    )
    done = project.quick("run", "const.yaml", "--in-process", "--quiet", status=0)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "experiment 1 is completed: best error 0.5 (trial 1)"


# Metrics that are strange, and right.
STRANGE = {
    "a name of 20,000 letters": ("'m' * 20000", "2.0", 2.0),
    "a name in other letters": ("'größe 🦉\\n%s'", "2.0", 2.0),
    "a name that is not UTF-8": ("'\\udcff'", "2.0", 2.0),
    "a name that is a number": ("5", "2.0", 2.0),
    "a value that is infinite": ("'far'", "float('inf')", "Infinity"),
}


@pytest.mark.parametrize("title", STRANGE)
def test_a_strange_metric_is_stored_and_printed(project: Any, title: str) -> None:
    name, value, stored = STRANGE[title]
    project.model(trial("evaluate_batch(self, batch)", f"return {{'error': 1.0, {name}: {value}}}"))
    done = project.quick("run", "const.yaml", "--in-process", status=0)
    assert done.stderr == ""
    key = eval(name)
    text = str(key).encode(errors="backslashreplace").decode()
    assert [
        row["metrics"][text] for row in project.json("metrics", "1", "--group", "validation")
    ] == [stored, stored]
    project.quick("metrics", "1", status=0)
    project.quick("metrics", "1", "--csv", status=0)


def test_non_numeric_training_metric_is_left_out_with_a_warning(project: Any) -> None:
    project.model(trial("train_batch(self, batch, epoch_idx, batch_idx)", 'return {"loss": "low"}'))
    done = project.quick("run", "const.yaml", "--in-process", "--quiet", status=0)
    assert done.stderr.count("metric 'loss' is 'low' (str)") == 1
    assert "it is left out of the reports" in done.stderr
