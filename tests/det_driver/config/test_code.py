"""An entrypoint that is a slip is refused before anything runs, with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from det_core.errors import EntrypointError
from det_driver.config import check_entrypoint, likely_entrypoint

CODE = {
    "model_def.py": "class Net: ...\nclass DigitsTrial(pytorch.PyTorchTrial[int]): ...\n",
    "two.py": "class A(TFKerasTrial): ...\nclass B(LightningAdapter): ...\n",
    "train.py": "print('a script')\n",
    "crooked.py": "class Trial(:\n",
    "package/__init__.py": "",
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name, text in CODE.items():
        tmp_path.joinpath(name).parent.mkdir(exist_ok=True)
        tmp_path.joinpath(name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("entrypoint", "problem"),
    [
        (
            "model_def",
            "entrypoint 'model_def' names no class; did you mean 'model_def:DigitsTrial'?",
        ),
        (
            "modle_def",
            "entrypoint 'modle_def' names no class; did you mean 'model_def:DigitsTrial'?",
        ),
        (
            "model_def.py",
            "entrypoint 'model_def.py' names no class; did you mean 'model_def:DigitsTrial'?",
        ),
        (
            "model_def:",
            "entrypoint 'model_def:' names no class; did you mean 'model_def:DigitsTrial'?",
        ),
        (
            "model_def.DigitTrial",
            (
                "entrypoint 'model_def.DigitTrial' names no class; did you mean"
                " 'model_def:DigitsTrial'?"
            ),
        ),
        (
            "model_def.Nets",
            "entrypoint 'model_def.Nets' names no class; did you mean 'model_def:Net'?",
        ),
        (["two"], "entrypoint 'two' names no class; did you mean 'two:A' or 'two:B'?"),
        ("train.py", "entrypoint 'train.py' is no command; did you mean 'python3 train.py'?"),
        ("trian", "entrypoint 'trian' is no command; did you mean 'python3 train.py'?"),
        ("crooked", "entrypoint 'crooked' is no command; did you mean 'python3 crooked.py'?"),
        (
            "package",
            "entrypoint 'package' names no class; write module:Class, such as model_def:MyTrial",
        ),
    ],
)
def test_a_word_that_is_a_module_and_no_command_is_refused(
    code: Path, entrypoint: str, problem: str
) -> None:
    with pytest.raises(EntrypointError) as refusal:
        check_entrypoint(entrypoint, code)
    assert str(refusal.value) == problem


@pytest.mark.parametrize(
    "entrypoint",
    [
        "model_def:Trail",
        "true",
        "python3 model_def.py",
        "./train.py",
        "a-tool-of-the-cluster",
        "",
        None,
        ["a", "b"],
    ],
)
def test_what_may_be_meant_passes(code: Path, entrypoint: str) -> None:
    check_entrypoint(entrypoint, code)


def test_likely_entrypoint_is_the_only_trial_class_or_a_script(code: Path) -> None:
    assert likely_entrypoint(code) is None  # there are three
    (code / "two.py").unlink()
    assert likely_entrypoint(code) == "model_def:DigitsTrial"
    (code / "model_def.py").unlink()
    assert likely_entrypoint(code) == "python3 train.py"
    (code / "train.py").unlink()
    assert likely_entrypoint(code) is None
