"""Images of Determined as requirements: what their names say that they hold, in versions for which there is a det."""

from __future__ import annotations

import re

from det_core.errors import DetError

_PART = re.compile(r"(?:^|[-:/])(py|pytorch|tf)-(\d+(?:\.\d+)+)")
_KERAS_2 = ("keras==2.15.0", "numpy==1.26.4", "det-keras")


def requirements_of(image: str) -> tuple[list[str], list[str]]:
    """Return requirements for an image of Determined, and sentences on what is not as it was there.

    Raises DetError for an image whose name does not say what it holds.
    """
    tag = image.rpartition(":")[2]
    held = dict(_PART.findall(tag))
    gpu = re.search(r"(?:^|-)(cuda|gpu|rocm)", tag)
    found, other = list[str](), list[str]()
    if held.get("pytorch"):
        found += ["torch>=2.6", "det-torch"]
        if _numbers(held["pytorch"]) < (2, 6):
            other.append(f"PyTorch {held['pytorch']}: det needs 2.6 or newer")
    if held.get("tf"):
        build = "tensorflow[and-cuda]" if gpu else "tensorflow-cpu"
        found += [f"{build}==2.15.1", *_KERAS_2]
        if held["tf"] != "2.15.1":
            with_graphs = ", with its graphs as tf.compat.v1" if held["tf"].startswith("1.") else ""
            other.append(f"TensorFlow {held['tf']}: det needs 2.15, the last with Keras 2{with_graphs}")
    if not found:
        raise DetError(f"the name of the image {image!r} does not say what it holds; give environment.requirements")
    if held.get("py"):
        other.append(f"Python {held['py']}: det needs 3.11 or newer")
    if gpu and gpu[1] == "rocm":
        other.append(
            "ROCm: name the index of your version, such as --extra-index-url https://download.pytorch.org/whl/rocm6.4"
        )
    return found, other


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
