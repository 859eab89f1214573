"""Samples the load of the machine in a thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..support.threads import start_thread
from ..train import arguments as check
from ..train.host import HostLost, TrialHost
from ._train import Steps


class ProfilerContext:
    """Reports the load of CPU, memory, disk, network and GPUs as metrics of the group `system`.

    One rank of each host samples. Linux only: elsewhere nothing is reported. The GPUs are those of
    `CUDA_VISIBLE_DEVICES`, or all. They are read through NVIDIA's NVML if the package
    `nvidia-ml-py` is installed: `gpu0_util` in percent of the time, `gpu0_memory_used_bytes`, and
    so on.
    """

    def __init__(self, host: TrialHost, steps: Steps, local_rank: int) -> None:
        self._host, self._steps, self._local_rank = host, steps, local_rank
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Start sampling. A second call does nothing.

        It samples every `sampling_interval` seconds, and reports the mean of every
        `samples_per_report` samples. What is left is reported when it stops. Raises ArgumentError,
        a ValueError, for other numbers.
        """
        seconds = check.real(
            "profiler.on",
            "sampling_interval",
            sampling_interval,
            "seconds, from 0.1 to a day",
            0.1,
            86_400.0,
        )
        samples = check.whole(
            "profiler.on", "samples_per_report", samples_per_report, "a whole number, 1 or more", 1
        )
        if self._thread is not None or self._local_rank != 0:
            return
        self._stop.clear()
        self._thread = start_thread(self._sample, seconds, samples, name="det-profiler")

    def off(self) -> None:
        """Stop sampling. Does nothing if it is off."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(timeout=5)
            self._thread = None

    def _sample(self, interval: float, count: int) -> None:
        before, gpus = _read(), _gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        samples: list[dict[str, float]] = []
        goes_on = True
        with suppress(HostLost):
            while goes_on:
                goes_on = not self._stop.wait(interval)
                if goes_on or not samples:
                    now = _read()
                    samples.append(_rates(before, now) | gpus())
                    before = now
                if len(samples) >= count or not goes_on:
                    self._host.report("system", self._steps.completed, _mean(samples))
                    samples.clear()


def _mean(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each number that all samples have."""
    known = set(samples[0]).intersection(*samples)
    return {
        name: sum(each[name] for each in samples) / len(samples)
        for name in samples[0]
        if name in known
    }


def _read() -> dict[str, float]:
    """Return counters since the machine started, and the memory in use."""
    values = {"time": time.monotonic()}
    for name, reader in (
        ("stat", _cpu),
        ("meminfo", _memory),
        ("net/dev", _network),
        ("diskstats", _disk),
    ):
        try:
            values |= reader(Path("/proc", name).read_text().splitlines())
        except (OSError, ValueError, IndexError):
            continue
    return values


def _rates(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    seconds = max(now["time"] - before["time"], 1e-6)
    rates = {"memory_used_bytes": now.get("memory", 0.0)}
    busy, total = (
        now.get("cpu_busy", 0.0) - before.get("cpu_busy", 0.0),
        now.get("cpu", 0.0) - before.get("cpu", 0.0),
    )
    rates["cpu_util"] = 100.0 * busy / total if total > 0 else 0.0
    for name in ("net_received", "net_sent", "disk_read", "disk_written"):
        rates[f"{name}_bytes_per_second"] = (now.get(name, 0.0) - before.get(name, 0.0)) / seconds
    return rates


def _cpu(lines: list[str]) -> dict[str, float]:
    ticks = [float(value) for value in lines[0].split()[1:9]]
    return {"cpu": sum(ticks), "cpu_busy": sum(ticks) - ticks[3] - ticks[4]}


def _memory(lines: list[str]) -> dict[str, float]:
    values = {line.split(":")[0]: float(line.split()[1]) * 1024 for line in lines if ":" in line}
    return {"memory": values["MemTotal"] - values["MemAvailable"]}


def _network(lines: list[str]) -> dict[str, float]:
    rows = [line.split(":")[1].split() for line in lines[2:] if not line.strip().startswith("lo:")]
    return {
        "net_received": sum(float(r[0]) for r in rows),
        "net_sent": sum(float(r[8]) for r in rows),
    }


def _disk(lines: list[str]) -> dict[str, float]:
    whole = [row for row in (line.split() for line in lines) if Path("/sys/block", row[2]).exists()]
    return {
        "disk_read": sum(float(r[5]) for r in whole) * 512,
        "disk_written": sum(float(r[9]) for r in whole) * 512,
    }


def _gpus(visible: str | None) -> Callable[[], dict[str, float]]:
    """Return a function that reads the load of the visible GPUs.

    Without NVML it returns nothing.
    """
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    # The package is not installed (ImportError), or there is no driver (an error of NVML).
    except Exception:
        return dict
    names = (
        range(nvml.nvmlDeviceGetCount()) if visible is None else filter(None, visible.split(","))
    )
    found: dict[int, Any] = {}
    for k, name in enumerate(map(str, names)):
        # There is no such device, or it is not a GPU of this machine.
        with suppress(nvml.NVMLError):
            found[k] = _handle(nvml, name)

    def read() -> dict[str, float]:
        values: dict[str, float] = {}
        for k, handle in found.items():
            # The GPU is lost, or does not support the query.
            with suppress(nvml.NVMLError):
                values[f"gpu{k}_util"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                values[f"gpu{k}_memory_used_bytes"] = float(
                    nvml.nvmlDeviceGetMemoryInfo(handle).used
                )
        return values

    return read


def _handle(nvml: Any, name: str) -> Any:
    """Return the device of an entry of CUDA_VISIBLE_DEVICES: a number, GPU-… or MIG-…."""
    return (
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(name)
    )
