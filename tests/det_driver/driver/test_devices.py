"""Which devices a driver leases, and how many of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from det_driver.driver import DriverSettings
from det_driver.store import Store

NVIDIA_SMI = """#!/bin/sh
echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111-0000)"
echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb2222-0000)"
echo "GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cccc3333-0000)"
"""

TRAIN = """
gpus=$(echo $CUDA_VISIBLE_DEVICES | tr , ' ')
for gpu in $gpus; do mkdir $PLACE/$gpu || exit 1; done
[ -z "$WAITS" ] || while [ ! -e $PLACE/go ]; do sleep 0.05; done
sleep 0.5
for gpu in $gpus; do rmdir $PLACE/$gpu; done
"""
REPORTS = """
python3 -c "
from det_core import core
with core.init() as context: context.train.report_validation_metrics(1, {'loss': 1.0})"
"""


def seen(tmp_path: Path, **environ: str) -> tuple[str, ...]:
    return DriverSettings.detect(environ, home=tmp_path).devices()


def test_a_gpu_has_one_id_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    by_number = seen(tmp_path, CUDA_VISIBLE_DEVICES="0,2")
    by_uuid = seen(tmp_path, CUDA_VISIBLE_DEVICES="GPU-cccc, GPU-bbbb2222-0000")
    assert by_number == ("cuda:GPU-aaaa1111-0000", "cuda:GPU-cccc3333-0000")
    assert by_uuid == ("cuda:GPU-cccc3333-0000", "cuda:GPU-bbbb2222-0000")
    with Store(tmp_path / "home") as store:
        first, second = store.slots.lease(1, 2, by_number), store.slots.lease(2, 1, by_uuid)
        assert first is not None
        assert second is not None
        assert (second.devices, second.slots) == (("cuda:GPU-bbbb2222-0000",), (1,))
        assert store.slots.lease(2, 1, by_uuid) is None


def test_without_nvidias_tool_a_gpu_is_known_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert seen(tmp_path, CUDA_VISIBLE_DEVICES="3") == ("cuda:3",)
    assert seen(tmp_path, CUDA_VISIBLE_DEVICES="", DET_SLOTS_TOTAL="2") == ("cpu:0", "cpu:1")


@pytest.mark.thorough
def test_drivers_that_see_different_gpus_never_have_one_at_once(det: Any, wait_until: Any) -> None:
    det.cwd.joinpath("train.sh").write_text(TRAIN + REPORTS)
    det.cwd.joinpath("c.yaml").write_text(
        "entrypoint: sh train.sh\nmax_restarts: 0\nhyperparameters: {x: {type: categorical, vals:"
        " [1, 2, 3, 4]}}\nsearcher: {name: grid, metric: loss, max_concurrent_trials: 4}\n"
    )
    (place := det.cwd.parent / "place").mkdir()

    def drive(gpus: str, **more: str) -> Any:
        return det.start(
            "run",
            "c.yaml",
            "--quiet",
            env={"PLACE": str(place), "CUDA_VISIBLE_DEVICES": gpus, **more},
        )

    last = drive("3", WAITS="1")
    wait_until((place / "3").exists, "a trial that has GPU 3")
    assert drive("0,1,2,3").wait(timeout=60) == 0
    (place / "go").touch()
    assert last.wait(timeout=60) == 0


def test_running_trials_hold_at_most_max_slots(det: Any) -> None:
    det.cwd.joinpath("train.sh").write_text("mkdir one || exit 1\nsleep 0.2\nrmdir one\n" + REPORTS)
    det.cwd.joinpath("c.yaml").write_text(
        "entrypoint: sh train.sh\nmax_restarts: 0\nhyperparameters: {x: {type: categorical, vals:"
        " [1, 2, 3]}}\nresources: {max_slots: 1}\nsearcher: {name: grid, metric: loss,"
        " max_concurrent_trials: 3}\n"
    )
    det("run", "c.yaml", "--quiet", env={"DET_SLOTS_TOTAL": "3"})
    assert [trial["state"] for trial in det.json("show", "1")["trials"]] == ["COMPLETED"] * 3
