"""A trained example, and a program without det that evaluates what was exported of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Det

BEGINNING = """
import sys
import numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
chosen = np.arange(len(labels)) % 3 == 0
images, labels, place = images[chosen].astype("float32") / 16, labels[chosen], sys.argv[1]
"""
END = """
assert not [name for name in sys.modules if name.partition(".")[0].startswith("det_")]
parts = [slice(k, k + SIZE) for k in range(0, len(labels), SIZE)]
counts = np.array([len(labels[part]) for part in parts]) if WEIGHTED else None
print(np.average([(predict(images[part]) == labels[part]).mean() for part in parts], weights=counts))
"""
PROGRAMS = {
    "torch-export": (
        """
        import torch
        model = torch.export.load(place + "/model.pt2").module()
        predict = lambda x: model(torch.tensor(x)).argmax(1).numpy()
    """
    ),
    "onnx": (
        """
        import onnxruntime
        session = onnxruntime.InferenceSession(place + "/model.onnx")
        predict = lambda x: session.run(None, {session.get_inputs()[0].name: x})[0].argmax(1)
    """
    ),
}
"""How programs of torch are read, by format."""
NEEDS = {"safetensors": ["safetensors"], "onnx": ["onnxscript", "onnxruntime"]}


@dataclass(frozen=True)
class Trained:
    """An experiment's best checkpoint, and the accuracy there."""

    det: Det
    uuid: str
    accuracy: float

    def evaluates(self, form: str, read: str, size: int, *, weighted: bool = False) -> float:
        """Export a format, and return what a program finds.

        `read` defines `predict(images)`, which gets `size` images.

        The accuracy is the mean of batches, or, if `weighted`, of images.
        """
        said = self.det("checkpoint", "export", "--format", form, self.uuid, form).stdout
        assert said == f"exported the model of checkpoint {self.uuid} to {form}\n"
        end = END.replace("SIZE", str(size)).replace("WEIGHTED", str(weighted))
        (self.det.cwd / "program.py").write_text(BEGINNING + textwrap.dedent(read) + end)
        command = [sys.executable, "program.py", form]
        done = subprocess.run(
            command, cwd=self.det.cwd, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout)


def trained(place: Path, example: str, config: str) -> Trained:
    """Train an example of the repository for a moment."""
    (place / "project").mkdir()
    det = Det(place / "home", place / "project")
    code = Path(__file__).parents[2] / "examples" / example / "model_def.py"
    (det.cwd / "model_def.py").write_text(code.read_text())
    (det.cwd / "c.yaml").write_text(config)
    det("run", "c.yaml", "--quiet")
    best = max(det.json("checkpoint", "list", "1"), key=lambda each: each["metric"])
    return Trained(det, best["uuid"], best["metric"])
