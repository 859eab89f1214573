"""Each rule: what it catches, at which place, and what is like it and right."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.errors import ConfigError
from det_driver.config import load
from det_driver.lint import RULES, chosen, explained, lint

CONFIG = """
entrypoint: {entrypoint}
hyperparameters: {hyperparameters}
searcher: {{name: single, metric: loss, smaller_is_better: true, max_length: {{epochs: 1}}}}
"""
TRIAL = "class MyTrial(PyTorchTrial):\n"
MODULE = "class Net(pl.LightningModule):\n"
KERAS = "class Mine(keras.callbacks.Callback):\n"


def config(entrypoint="model_def:MyTrial", hyperparameters="{global_batch_size: 16, lr: 0.1}"):
    return load(CONFIG.format(entrypoint=entrypoint, hyperparameters=hyperparameters)).config


def places(directory: Path, code: str, *, of=None, **files: str) -> list[str]:
    """Lint files, `__` in a name for a dot.

    Return `line:column` of what a rule finds, with the file but for model_def.py.
    """
    for name, text in files.items():
        path = directory / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = lint(of or config(), directory, [code])
    return [f"{f.path}:{f.line}:{f.column}".removeprefix("model_def.py:") for f in found]


def method(owner: str, body: str) -> str:
    return owner + textwrap.indent(textwrap.dedent(body), "    ")


INIT = "def __init__(self, context):\n    "
STEP = "def train_batch(self, batch, epoch_idx, batch_idx):\n    "

OBJECTS = (
    "def __init__(self):\n    self.found = []\n"
    "def training_step(self, b, i):\n    self.found.append(Result(b))\n"
)
BEST = "def on_epoch_end(self, e, logs):\n    if logs < self.best:\n        self.best = logs\n"

CAUGHT = [
    ("DET101", method(TRIAL, STEP + "self.seen += 1\n"), "3:9"),
    (
        "DET101",
        method(TRIAL, INIT + "self.found = []\n" + STEP + "self.found.append(batch)\n"),
        "5:9",
    ),
    ("DET101", method(TRIAL, INIT + "self.n = {}\n" + STEP + "self.n['a'] += 1\n"), "5:9"),
    (
        "DET101",
        method(TRIAL, INIT + "self.n = {}\n" + STEP + "self.n[0] = max(self.n[0], batch)\n"),
        "5:9",
    ),
    ("DET101", method(TRIAL, STEP + "self.h = self.net(batch, self.h)\n"), "3:9"),
    ("DET101", method(TRIAL, STEP + "self.count()\ndef count(self):\n    self.seen += 1\n"), "5:9"),
    (
        "DET101",
        "class Base(PyTorchTrial): ...\n"
        + method("class MyTrial(Base):\n", STEP + "self.n += 1\n"),
        "4:9",
    ),
    ("DET101", "class Result: ...\n" + method(MODULE, OBJECTS), "6:9"),
    (
        "DET101",
        method(
            KERAS,
            "def get_state(self):\n    return {}\n" + BEST,
        ),
        "6:13",
    ),
    (
        "DET101",
        method("class Counter(PyTorchCallback):\n", "def on_batch_end(self):\n    self.n += 1\n"),
        "3:9",
    ),
    ("DET101", method("class Net(keras.Model):\n", "def call(self, x):\n    self.n += 1\n"), "3:9"),
    (
        "DET101",  # of a language model in Determined's examples
        method(
            TRIAL,
            STEP + "if batch_idx == 0:\n        self.hidden = self.model.start()\n"
            "    scores, self.hidden = self.model(batch, self.hidden)\n",
        ),
        "5:9",
    ),
    ("DET102", "n = 0\ndef f():\n    global n\n    n += 1\n", "4:5"),
    ("DET102", "seen = []\ndef f(x):\n    seen.append(x)\n", "3:5"),
    ("DET102", "seen = {}\ndef f(x):\n    seen[x] = 1\n", "3:5"),
    ("DET201", "import torch\ntorch.optim.SGD(p, lr=0.1)\n", "2:23"),
    ("DET201", "from torch.optim import AdamW\nLR = 1e-3\nAdamW(p, LR)\n", "3:10"),
    (
        "DET201",
        "import torch\ndef f(p):\n    rate = 0.1\n    torch.optim.SGD(p, lr=rate)\n",
        "4:27",
    ),
    ("DET201", "import keras\nkeras.optimizers.Adam(0.01)\n", "2:23"),
    (
        "DET201",
        "import tensorflow as tf\ntf.compat.v1.train.MomentumOptimizer(0.01, 0.9)\n",
        "2:38",
    ),
    ("DET202", "for g in optimizer.param_groups:\n    g['lr'] = 0.1\n", "2:5"),
    ("DET202", "self.optimizer.param_groups[0]['lr'] *= 0.1\n", "1:1"),
    ("DET202", "model.optimizer.learning_rate.assign(0.1)\n", "1:1"),
    ("DET202", "import keras.backend as K\nK.set_value(model.optimizer.lr, 0.1)\n", "2:13"),
    ("DET203", "data = open('/data/images.npy')\n", "1:13"),
    ("DET203", "ROOT = 's3://bucket/images'\n", "1:8"),
    (
        "DET204",
        "def build_training_data_loader(self):\n    return DataLoader(data, batch_size=64)\n",
        "2:40",
    ),
    ("DET204", "SIZE = 64\nloader = DataLoader(data, SIZE, shuffle=True)\n", "2:27"),
    ("DET204", "def train_dataloader(self):\n    return DataLoader(data, self.size)\n", "2:29"),
    (
        "DET205",
        "loader = DataLoader(data, batch_size=self.context.get_global_batch_size())\n",
        "1:38",
    ),
    ("DET301", "download(root='/tmp/data')\n", "1:15"),
    ("DET301", "download(f'/tmp/data-{split}')\n", "1:10"),
    ("DET302", "import sys\nsys.path.insert(0, '..')\n", "2:1"),
    ("DET302", "import os\nos.environ['PATH'] = 'bin'\n", "2:1"),
    ("DET302", "import sys\nsys.path += ['..']\n", "2:1"),
    ("DET401", "import random\nr = random.Random()\n", "2:5"),
    ("DET401", "import numpy as np\nr = np.random.default_rng(None)\n", "2:5"),
    ("DET401", "import time, torch\ntorch.manual_seed(int(time.time()))\n", "2:1"),
    (
        "DET401",
        "import tensorflow as tf\ntf.random.Generator.from_non_deterministic_state()\n",
        "2:1",
    ),
    ("DET501", method(TRIAL, STEP + "return {'loss': loss.item()}\n"), "3:25"),
    ("DET501", method(TRIAL, STEP + "loss = self.loss(batch)\n    return float(loss)\n"), "4:16"),
    (
        "DET501",
        method(
            MODULE, "def training_step(self, b, i):\n    self.log('a', b.detach().cpu().numpy())\n"
        ),
        "3:23",
    ),
]
PASSED = [
    (
        "DET101",
        method(MODULE, "def validation_step(self, b, i):\n    self.best = min(self.best, b)\n"),
    ),
    ("DET101", method(MODULE, OBJECTS.replace("Result(b)", "self.loss(b)"))),
    ("DET101", method("class Count(pl.Callback):\n", BEST)),
    ("DET101", method(KERAS, BEST)),
    ("DET101", method(TRIAL, STEP + "self.last = batch\n    return self.loss(self.last)\n")),
    (
        "DET101",
        method(
            TRIAL, INIT + "self.found = {}\n" + STEP + "self.found['scores'] = self.model(batch)\n"
        ),
    ),
    (
        "DET101",
        method(
            MODULE,
            "def forward(self, x):\n    if len(x) > self.cached:\n        self.cached = len(x)\n",
        ),
    ),
    (
        "DET101",
        method(
            TRIAL,
            STEP
            + "if self.deep:\n        self.h = a(batch)\n    else:\n        self.h = b(batch)\n   "
            " self.h = f(self.h)\n",
        ),
    ),
    ("DET101", method(TRIAL, "def build_model(self):\n    self.parts += 1\n")),
    ("DET101", method("class Data(Dataset):\n", "def __getitem__(self, i):\n    self.n += 1\n")),
    (
        "DET101",
        method(
            MODULE,
            INIT
            + "self.register_buffer('n', zero)\ndef training_step(self, b, i):\n    self.n += 1\n",
        ),
    ),
    (
        "DET101",
        method(
            KERAS,
            "def on_epoch_end(self, e, logs):\n    self.n += 1\ndef get_state(self):\n    return"
            " self.n\n",
        ),
    ),
    (
        "DET101",
        method(
            MODULE,
            "def on_validation_epoch_start(self):\n    self.found = []\n"
            "def validation_step(self, b, i):\n    self.found.append(b)\n",
        ),
    ),
    (
        "DET101",
        method(
            MODULE,
            "def forward(self, x):\n    if self.mask is None:\n        self.mask = make(x)\n",
        ),
    ),
    (
        "DET101",
        method(
            MODULE,
            "def training_step(self, b, i):\n    self.accuracy.update(b)\n    self.logged = True\n",
        ),
    ),
    ("DET102", "def f():\n    n = 0\n    n += 1\n"),
    (
        "DET102",
        (
            "model = None\ndef get():\n    global model\n    if model is None:\n        model ="
            " load()\n"
        ),
    ),
    ("DET102", "MODELS = {}\ndef register(c):\n    MODELS[c.__name__] = c\n    return c\n"),
    ("DET102", "seen = []\ndef f(seen):\n    seen.append(1)\n"),
    ("DET201", "import torch\ntorch.optim.SGD(p, lr=hparams['lr'], momentum=0.9)\n"),
    ("DET201", "LR = 1\nimport torch\ndef f(LR):\n    torch.optim.SGD(p, lr=LR)\n"),
    (
        "DET201",
        (
            "import torch\ndef f(p):\n    lr = 0.1\n    lr = lr * size\n    torch.optim.SGD(p,"
            " lr=lr)\n"
        ),
    ),
    ("DET201", "Adam(0.1)\n"),
    (
        "DET202",
        (
            "class MyScheduler(LRScheduler):\n    def step(self):\n       "
            " self.optimizer.param_groups[0]['lr'] = 1\n"
        ),
    ),
    ("DET202", "settings['lr'] = 0.1\nshown = optimizer.lr\n"),
    (
        "DET203",
        (
            '"""As in /data/images."""\nroute = "/api/v1"\nparser.add_argument("--data",'
            ' default="/data/images")\n'
        ),
    ),
    (
        "DET203",
        "images = file['/data/images']\nlocal = name.startswith('/data/') or name == '/data/x'\n",
    ),
    (
        "DET204",
        "def build_validation_data_loader(self):\n    return DataLoader(data, batch_size=64)\n",
    ),
    (
        "DET204",
        (
            "size = 64\nsize = self.context.get_per_slot_batch_size()\nloader = DataLoader(data,"
            " size)\n"
        ),
    ),
    (
        "DET204",
        (
            "n = hparams['global_batch_size']\ndef train_dataloader(self):\n    return"
            " DataLoader(data, n)\n"
        ),
    ),
    ("DET205", "loader = DataLoader(data, batch_size=self.context.get_per_slot_batch_size())\n"),
    ("DET205", "print(self.context.get_global_batch_size())\n"),
    (
        "DET301",
        "import tempfile\nd = tempfile.mkdtemp(dir='/tmp')\ndownload(f'/tmp/data-{rank}')\n",
    ),
    (
        "DET302",
        (
            "import os, sys\nprint(sys.path, os.environ['PATH'])\nos.environ['OMP_NUM_THREADS'] ="
            " '1'\n"
        ),
    ),
    (
        "DET401",
        (
            "import random\nr = random.Random(seed)\nq ="
            " random.Random()\nq.seed(seed)\nrandom.random()\n"
        ),
    ),
    ("DET501", method(TRIAL, STEP + "if batch_idx % 100 == 0:\n        print(loss.item())\n")),
    (
        "DET501",
        method(TRIAL, "def evaluate_batch(self, batch):\n    return {'loss': loss.item()}\n"),
    ),
    (
        "DET501",
        method(
            TRIAL, STEP + "return {'loss': loss, 'share': float(len(batch)), 'a': batch.items()}\n"
        ),
    ),
]


@pytest.mark.parametrize(("code", "text", "place"), CAUGHT)
def test_a_rule_names_the_place_of_what_it_catches(
    code: str, text: str, place: str, tmp_path: Path
) -> None:
    assert places(tmp_path, code, model_def__py=text) == [place]


@pytest.mark.parametrize(("code", "text"), PASSED)
def test_a_rule_passes_what_is_like_it_and_right(code: str, text: str, tmp_path: Path) -> None:
    assert places(tmp_path, code, model_def__py=text) == []


def test_plain_data_of_a_callback_in_a_keras_script_is_lost(tmp_path: Path) -> None:
    script = config("python3 train.py")
    assert places(tmp_path, "DET101", of=script, train__py=method(KERAS, BEST)) == ["train.py:4:13"]


def test_every_rule_is_tried() -> None:
    elsewhere = {"DET001", "DET303", "DET402"}
    assert (
        {code for code, *_ in CAUGHT} == {code for code, *_ in PASSED} == RULES.keys() - elsewhere
    )


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("torch", 1),
        ("torch>=2", 1),
        ("torch==2.*", 1),
        ("  torch[cuda] ; python_version == '3.11'", 3),
        ("torch==2.13.0", 0),
        ("torch @ https://example.org/torch.whl", 0),
        ("# torch", 0),
        ("--index-url https://example.org", 0),
        ("-e .", 0),
        ("torch  # noqa: DET303", 0),
    ],
)
def test_a_requirement_has_to_be_pinned(line: str, column: int, tmp_path: Path) -> None:
    found = places(tmp_path, "DET303", requirements__txt=f"numpy==2.0.0\n{line}\n")
    assert found == ([f"requirements.txt:2:{column}"] if column else [])


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("pip install einops", [13]),
        ("python3 -m pip install -q 'einops>=0.8' timm==1.0.0 rich  # why", [28, 53]),
        ("pip install einops==0.8.1 -r wanted.txt ./wheel.whl", []),
        ("pip install -i https://example.org/simple einops==0.8.1 && echo done", []),
    ],
)
def test_what_the_startup_hook_installs_has_to_be_pinned(
    line: str, columns: list[int], tmp_path: Path
) -> None:
    hook = {"startup-hook__sh": f"set -e\n{line}\n", "wanted__txt": "numpy==2.0.0\nscipy\n"}
    of_wanted = ["wanted.txt:2:1"] if "wanted.txt" in line else []
    assert places(tmp_path, "DET303", **hook) == [
        *(f"startup-hook.sh:2:{column}" for column in columns),
        *of_wanted,
    ]


def test_the_startup_hook_does_not_edit_paths(tmp_path: Path) -> None:
    hook = "export DATA=1\nexport PYTHONPATH=$PWD/src:$PYTHONPATH\n"
    assert places(tmp_path, "DET302", startup_hook__sh=hook) == []
    assert places(tmp_path, "DET302", **{"startup-hook__sh": hook}) == ["startup-hook.sh:2:8"]


def test_a_script_has_to_seed_a_framework_that_it_uses(tmp_path: Path) -> None:
    script = config("python3 ./train.py --epochs 3")
    plain, seeded = (
        "import os\nimport torch\n",
        "import torch\ndef seed():\n    torch.manual_seed(1)\n",
    )
    assert places(tmp_path, "DET402", of=script, train__py=plain) == ["train.py:2:1"]
    assert places(tmp_path, "DET402", model_def__py=plain) == []  # det seeds the trial itself
    assert (
        places(tmp_path, "DET402", of=script, train__py=plain + "import seeds\n", seeds__py=seeded)
        == []
    )


def test_unparsable_file_is_named_once_and_others_are_checked(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("import broken\nopen('/data/x')\n")
    (tmp_path / "broken.py").write_text("x = (1,\nopen('/data/x')\n")
    assert [(f.path, f.line, f.code) for f in lint(config(), tmp_path)] == [
        ("broken.py", 1, "DET001"),
        ("model_def.py", 2, "DET203"),
    ]


@pytest.mark.filterwarnings("error")
def test_what_python_warns_of_is_left_to_the_import(tmp_path: Path) -> None:
    assert places(tmp_path, "DET203", model_def__py="pattern = '\\d'\nopen('/data/x')\n") == ["2:6"]


def test_batch_size_may_be_fixed_if_the_config_has_none(tmp_path: Path) -> None:
    text = "loader = DataLoader(data, batch_size=64, shuffle=True)\n"
    assert (
        places(tmp_path, "DET204", of=config(hyperparameters="{lr: 0.1}"), model_def__py=text) == []
    )


def test_learning_rate_may_be_fixed_without_hyperparameters(tmp_path: Path) -> None:
    text = "import torch\ntorch.optim.SGD(p, lr=0.1)\n"
    assert places(tmp_path, "DET201", of=config(hyperparameters="{}"), model_def__py=text) == []


def test_only_what_the_entrypoint_imports_is_looked_at(tmp_path: Path) -> None:
    bad = "open('/data/x')\n"
    files = {
        "model_def__py": (
            "import parts.layers\nfrom parts import other\ndef late():\n    import late\n"
        ),
        "parts/__init____py": bad,
        "parts/layers__py": "from .deep import x\nfrom . import near\n",
        "test_model__py": bad,
        "__detignore": "near.py\n",
    }
    files |= {f"{name}__py": bad for name in ("parts/other", "parts/deep", "parts/near", "late")}
    for name, text in files.items():
        path = tmp_path / re.sub(r"__(py|detignore)$", r".\1", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = {finding.path for finding in lint(config(), tmp_path)}
    assert found == {"late.py", "parts/__init__.py", "parts/deep.py", "parts/other.py"}


@pytest.mark.parametrize(
    ("entrypoint", "path"),
    [
        ("python3 -m jobs.train --x 1", "late.py"),
        ("python3 ./jobs/train.py", "jobs/late.py"),
        ("[python3, jobs/train.py]", "jobs/late.py"),
        ("'true'", None),
    ],
)
def test_a_command_names_its_script_which_imports_as_python_does(
    entrypoint: str, path: str | None, tmp_path: Path
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/train.py").write_text("import late\n")
    for place in {path, "jobs/late.py"} - {None}:
        (tmp_path / place).write_text("open('/data/x')\n")
    assert [finding.path for finding in lint(config(entrypoint), tmp_path)] == [path] * (
        path is not None
    )


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("# noqa", True),
        ("# noqa: DET203", True),
        ("# NOQA:E501, det203", True),
        ("# noqa: DET201 - because", False),
        ("# noqa: DET2", False),
        ("# DET203", False),
    ],
)
def test_a_comment_on_the_line_silences_a_rule(comment: str, silent: bool, tmp_path: Path) -> None:
    assert places(
        tmp_path, "DET203", model_def__py=f"x = open('/data/x')  {comment}\n"
    ) == [] * silent + ["1:10"] * (not silent)


def test_rules_are_chosen_by_code_by_its_beginning_and_by_name() -> None:
    assert chosen([], []) == RULES.keys()
    assert chosen(["DET101,fixed-path", "det3"], ["DET302"]) == {
        "DET101",
        "DET203",
        "DET301",
        "DET303",
    }
    assert chosen([], ["DET"]) == set()
    assert explained("det101") is explained("unsaved-state") is RULES["DET101"]


@pytest.mark.parametrize("word", ["DET999", "unsaved-sate", "", "E501"])
def test_a_code_that_no_rule_has_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"no rule .+ there are: DET001, DET101, "):
        chosen([word], [])


def test_a_name_with_a_typo_is_corrected() -> None:
    with pytest.raises(
        ConfigError, match=r"no rule 'unsaved-sate'; did you mean 'unsaved-state'\?"
    ):
        chosen([], ["unsaved-sate"])


@given(st.lists(st.sampled_from(sorted(RULES))), st.lists(st.sampled_from(sorted(RULES))))
def test_selected_rules_are_applied_except_ignored_ones(
    select: list[str], ignore: list[str]
) -> None:
    assert chosen(select, ignore) == (set(select) or RULES.keys()) - set(ignore)


HERE = sorted(Path(ast.__file__).parent.glob("*.py"))


@given(st.sampled_from(HERE), st.integers(0, 10**6), st.integers(1, 4000))
def test_no_text_breaks_the_linter(
    tmp_path_factory: pytest.TempPathFactory, path: Path, start: int, length: int
) -> None:
    """Pieces of Python's own library, whole or cut anywhere."""
    text = path.read_bytes()
    start %= max(1, len(text))
    folder = tmp_path_factory.mktemp("code")
    (folder / "model_def.py").write_bytes(text[start : start + length])
    lint(config(), folder)
