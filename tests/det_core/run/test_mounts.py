"""A file that a container would find is named with the bind mount that it was meant to be in."""

from __future__ import annotations

from pathlib import Path

import pytest

from det_core.config import BindMount, ExperimentConfig
from det_core.config._resources import Environment
from det_core.train.failure import explained
from det_core.train.host import Outcome

MOUNTS = (
    BindMount(host_path="/mnt/scratch", container_path="/absent/data/scratch"),
    BindMount(host_path="/mnt/data", container_path="/absent/data"),
)


def failed(path: str, config: ExperimentConfig) -> str:
    """Return the sentence for a file that a trial does not find."""
    with pytest.raises(OSError) as caught:
        Path(path).read_text()
    outcome, sentence, trace = explained(caught.value, config)
    assert outcome is Outcome.ERROR
    assert "FileNotFoundError" in trace
    return sentence


@pytest.mark.parametrize(
    ("path", "host", "container"),
    [
        ("/absent/data/train/0.png", "/mnt/data", "/absent/data"),
        ("/absent/data", "/mnt/data", "/absent/data"),
        ("/absent/data/scratch/x", "/mnt/scratch", "/absent/data/scratch"),
    ],
)
def test_a_missing_file_below_a_mount_names_the_mount(path: str, host: str, container: str) -> None:
    assert (
        failed(path, ExperimentConfig(bind_mounts=MOUNTS))
        == f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'; bind_mounts has"
        f" {host} at {container}, which only containers see: read it from {host}, run with"
        f" --bind {host}:{container}, or set environment.container"
    )


@pytest.mark.parametrize(
    ("path", "config"),
    [
        ("/absent/database/x", ExperimentConfig(bind_mounts=MOUNTS)),
        (
            "/absent/data/x",
            ExperimentConfig(bind_mounts=MOUNTS, environment=Environment(container="auto")),
        ),
        ("/absent/data/x", ExperimentConfig()),
    ],
)
def test_no_mount_is_named_where_none_was_meant(path: str, config: ExperimentConfig) -> None:
    assert "bind_mounts" not in failed(path, config)


def test_a_missing_relative_file_names_the_copy_of_the_code() -> None:
    sentence = failed("../data/train.npy", ExperimentConfig(bind_mounts=MOUNTS))
    assert sentence.endswith(
        "'../data/train.npy'; a run has a copy of the code directory, where relative paths begin:"
        " give an absolute path, or put the file into the code directory"
    )
