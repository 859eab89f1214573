"""What an image of Determined becomes: requirements, and what of it there is no det for."""

from __future__ import annotations

from typing import Any

import pytest

from det_core.errors import DetError
from det_env.command import requirements_of


def test_image_name_becomes_requirements_and_lists_differences() -> None:
    found, other = requirements_of(
        "determinedai/environments:py-3.8-pytorch-1.12-tf-2.11-cpu-0.24.0"
    )
    assert found[:3] == ["torch>=2.6", "det-torch", "tensorflow-cpu==2.15.1"]
    assert [each.partition(":")[0] for each in other] == [
        "PyTorch 1.12",
        "TensorFlow 2.11",
        "Python 3.8",
    ]


def test_gpus_and_graphs_have_their_own_words() -> None:
    found, other = requirements_of(
        "determinedai/environments:cuda-10.2-pytorch-1.7-tf-1.15-gpu-0.20.1"
    )
    assert "tensorflow[and-cuda]==2.15.1" in found
    assert any("tf.compat.v1" in each for each in other)
    assert (
        "ROCm"
        in requirements_of("determinedai/environments:rocm-5.0-pytorch-1.10-tf-2.7-rocm")[1][-1]
    )


def test_a_name_that_says_nothing_is_refused() -> None:
    with pytest.raises(
        DetError, match=r"does not say what it holds; give environment\.requirements"
    ):
        requirements_of("me/mine:latest")


def test_the_command_prints_a_section_of_a_configuration(det: Any) -> None:
    done = det("env", "image", "determinedai/environments:py-3.10-pytorch-2.0-gpu-0.31.1")
    assert done.stdout == 'environment:\n  requirements: ["torch>=2.6", "det-torch"]\n'
    assert "det: not as in the image: PyTorch 2.0: det needs 2.6 or newer\n" in done.stderr
