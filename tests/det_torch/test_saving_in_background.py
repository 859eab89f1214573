"""Checkpoints that are written while training goes on hold the state of their moment.

They do so bit for bit, whatever happens meanwhile.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from det_core import Every, Schedule
from det_core.checkpoint import read_checkpoint
from det_core.storage import LocalStorage
from det_torch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial, state
from det_torch.copies import Copies

SECONDS = 20.0
EACH = Schedule(report=Every(3), checkpoint=Every(2), policy="none")
OFF = {"optimizations": {"asynchronous_checkpoints": False}}
LENGTH = 13


class Busy(PyTorchTrial):
    """Has all that changes in place.

    Weights, moments, running statistics, an average, counters, generators.
    """

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        model = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1)
        )
        self.model = context.wrap_model(model)
        self.average = context.wrap_model(nn.Linear(16, 1))
        parameters = self.model.parameters()
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(parameters, lr=0.05, amsgrad=True)
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.scheduler = context.wrap_lr_scheduler(
            schedule, step_mode=LRScheduler.StepMode.STEP_EVERY_BATCH
        )

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"counting": Counting()}

    def build_training_data_loader(self) -> Any:
        xs = torch.randn(40, 4, generator=torch.Generator().manual_seed(2))
        return DataLoader(
            list(zip(xs, xs.sum(1, keepdim=True), strict=True)), batch_size=4, shuffle=True
        )

    def build_validation_data_loader(self) -> Any:
        return DataLoader([(torch.ones(4), torch.ones(1))], batch_size=1)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        x, y = batch
        loss = ((self.model(x) - y * (1 + 0.1 * random.random())) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        with torch.no_grad():
            self.average.weight.lerp_(self.model[-1].weight, 0.1)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"val_loss": ((self.model(batch[0]) - batch[1]) ** 2).mean()}


class Counting(PyTorchCallback):
    """A state of its own, which changes in place."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"steps": [], "sum": torch.zeros(3)}

    def on_before_optimizer_step(self, parameters: Any) -> None:
        self.seen["steps"].append(len(self.seen["steps"]))
        self.seen["sum"] += 1

    def state_dict(self) -> dict[str, Any]:
        return self.seen

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict


class Late(LocalStorage):
    """Lets what it is given be written only when a later batch was trained, or the run waits."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.trained = 0
        self.waited = 0

    @contextmanager
    def store(self, uuid: str) -> Iterator[Path]:
        began, until = self.trained, time.monotonic() + 0.3
        while self.trained <= began and time.monotonic() < until:
            time.sleep(0.0005)
        self.waited += self.trained > began
        with super().store(uuid) as path:
            yield path


@pytest.fixture
def late(lab: Any) -> Late:
    lab.storage = Late(lab.root / "late")
    return lab.storage


def noting(storage: Any) -> type:
    class Noting(Busy):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            metrics = super().train_batch(batch, epoch_idx, batch_idx)
            storage.trained = batch_idx + 1
            return metrics

    return Noting


def assert_equal(one: Any, other: Any, place: str = "state") -> None:
    """Compare two states, tensors bit for bit."""
    assert type(one) is type(other), place
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
        assert (one.dtype, one.stride()) == (other.dtype, other.stride()), place
    elif isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            assert_equal(one[key], other[key], f"{place}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{place}[{index}]")
    else:
        assert one == other, place


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", [1, 3])
def test_async_checkpoints_hold_their_moment_and_resume_exactly(
    lab: Any, late: Late, aggregation: int
) -> None:
    """What training changes while a checkpoint waits to be written is not in it.

    The files are those of a blocking save.
    """
    how = {"optimizations": {"aggregation_frequency": aggregation}}
    whole = lab(noting(late), LENGTH, schedule=EACH, config=how)
    assert late.waited >= 1, "training did not go on"
    at_once = lab(
        Busy,
        LENGTH,
        schedule=EACH,
        config={"optimizations": how["optimizations"] | OFF["optimizations"]},
    )
    assert list(whole.checkpoints) == list(at_once.checkpoints) == [2, 4, 6, 8, 10, 12, 13]
    for batches, uuid in whole.checkpoints.items():
        assert_equal(
            lab.contents(uuid), lab.contents(at_once.checkpoints[batches]), f"at {batches}"
        )
    for batches in (2, 6, 10):
        resumed = lab(
            Busy,
            LENGTH,
            schedule=EACH,
            config=how,
            checkpoint=whole.checkpoints[batches],
            first_batch=batches,
        )
        losses = {at: loss for at, loss in whole.losses.items() if at > batches}
        assert resumed.losses == losses
        assert_equal(
            lab.contents(resumed.checkpoints[LENGTH]), lab.contents(whole.checkpoints[LENGTH])
        )


def test_callbacks_that_read_the_directory_pause_training(lab: Any, late: Late) -> None:
    seen = []

    class Looking(Counting):
        def on_checkpoint_write_end(self, path: Path) -> None:
            time.sleep(0.01)
            seen.append((sorted(file.name for file in path.iterdir()), late.trained))

    class Trial(noting(late)):  # type: ignore[misc]
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"looking": Looking()}

    lab(Trial, 4, schedule=EACH)
    assert seen == [(["state_dict.pth"], 2), (["state_dict.pth"], 4)]


@pytest.mark.slow
def test_upload_callback_runs_in_the_training_thread(lab: Any, late: Late) -> None:
    """The checkpoint is in the storage by then."""
    heard = []

    class Hearing(Counting):
        def on_checkpoint_upload_end(self, uuid: str) -> None:
            assert lab.storage.exists(uuid)
            assert torch.rand(1).numel()  # what hooks draw does not count
            heard.append(
                (
                    uuid,
                    __import__("threading").current_thread()
                    is __import__("threading").main_thread(),
                )
            )

    class Trial(noting(late)):  # type: ignore[misc]
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"hearing": Hearing()}

    ran = lab(Trial, 6, schedule=EACH)
    assert heard == [(uuid, True) for uuid in ran.checkpoints.values()]
    assert ran.losses == lab(Busy, 6, schedule=EACH, config=OFF).losses


# The copy


def odd_state() -> dict[str, Any]:
    base = torch.arange(12.0).reshape(3, 4)
    tied = nn.Linear(3, 3)
    model = nn.Sequential(tied, nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = tied.weight
    return {
        "model": model.state_dict(),
        "views": [base, base[1:], base.t(), base],
        "kinds": (
            torch.tensor(1.5),
            torch.zeros(0),
            torch.ones(2, dtype=torch.bfloat16),
            torch.tensor([True]),
        ),
        "parameter": nn.Parameter(torch.ones(2)),
        "leaf": torch.ones(2, requires_grad=True),
        "odd": [torch.eye(3).to_sparse(), torch.complex(torch.ones(2), torch.ones(2)).conj()],
        "plain": {"numbers": [1, 2.5, None, "text", b"bytes"], "sets": {1, 2}},
    }


def test_a_copy_is_written_as_the_state_would_be(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    contents = odd_state()
    state.save(contents, one)
    state.save(Copies().take(contents), other)
    before, after = (torch.load(each / state.FILE, weights_only=True) for each in (one, other))
    odd, also = before.pop("odd"), after.pop("odd")
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(odd, also, strict=True))
    assert_equal(before, after)
    assert after["model"]._metadata == before["model"]._metadata
    assert (
        after["views"][0].untyped_storage().data_ptr()
        == after["views"][2].untyped_storage().data_ptr()
    )
    assert (other / state.FILE).stat().st_size == (one / state.FILE).stat().st_size


def test_copy_is_independent_and_reuses_the_memory_of_the_last() -> None:
    weights, copies = {"w": torch.zeros(1000), "list": [1]}, Copies()
    first = copies.take(weights)
    weights["w"].add_(1)
    weights["list"].append(2)
    assert (first["w"].sum(), first["list"]) == (0, [1])
    place = first["w"].data_ptr()
    second = copies.take(weights)
    assert (second["w"].sum(), second["w"].data_ptr()) == (1000, place)
    written = []
    copies.writing(weights, lambda copied, path: written.append((copied["w"].data_ptr(), path)))(
        Path("there")
    )
    assert written == [(place, Path("there"))]


def test_what_the_state_no_longer_needs_is_given_back() -> None:
    copies = Copies()
    copies.take({"w": torch.zeros(1000)})
    copies.take(OrderedDict(w=torch.zeros(10)))
    assert [size for size, _ in copies._memory] == [40]


# What goes wrong


FULL = textwrap.dedent("""
    import sys
    from pathlib import Path
    import torch
    from det_core import Every, Schedule
    from tests.det_torch.conftest import Lab
    from tests.det_torch.test_saving_in_background import EACH, OFF, Busy

    class Large(Busy):
        def __init__(self, context):
            super().__init__(context)
            self.large = context.wrap_model(torch.nn.Linear(1200, 1000))  # two of them do not fit

    lab = Lab(Path(sys.argv[1]))
    try:
        lab(Large, 13, schedule=EACH, config=OFF if sys.argv[2] == "at once" else {})
    except BaseException as error:
        print(type(error).__name__, error)
    print(len(list(lab.storage.list())), [manifest.batches for manifest, _ in lab.host.checkpoints])
    """)
IN_A_SMALL_FILESYSTEM = 'mount -t tmpfs -o size=8m tmpfs "$1" && shift && exec "$@"'


@pytest.mark.process
@pytest.mark.parametrize("how", ["beside", "at once"])
def test_full_disk_error_is_the_same_and_keeps_older_checkpoints(tmp_path: Path, how: str) -> None:
    """On a filesystem of 8 MiB of its own, mounted in a namespace that ends with the process."""
    unshare = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
    mounted = [*unshare, "sh", "-c", IN_A_SMALL_FILESYSTEM, "sh", str(tmp_path)]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a filesystem")
    root = Path(__file__).parents[2]
    script = [*mounted, sys.executable, "-c", FULL, str(tmp_path), how]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(script, capture_output=True, text=True, cwd=root, env=env, check=False)
    assert done.returncode == 0, done.stderr
    told, left = done.stdout.splitlines()
    assert told.startswith("StorageError cannot write checkpoint ")
    assert "No space left on device" in told
    assert "make room there" in told
    assert left == "1 [2]"


KILLED = textwrap.dedent("""
    import sys
    import torch
    from pathlib import Path
    from det_core import DistributedContext, CheckpointSink, Every, LocalHost, Plugins, RunInfo, Schedule, Target, run_trial
    from det_core.config import parse
    from det_core.storage import LocalStorage
    from tests.det_torch.test_saving_in_background import Busy

    class Large(Busy):
        def __init__(self, context):
            super().__init__(context)
            self.large = context.wrap_model(torch.nn.Linear(5000, 5000))

        def train_batch(self, batch, epoch_idx, batch_idx):
            print(batch_idx, flush=True)
            with torch.no_grad():
                self.large.weight.add_(1)
            return super().train_batch(batch, epoch_idx, batch_idx)

    torch.set_num_threads(1)
    plugins = Plugins.installed(strict=True)
    info = RunInfo(
        config=parse({"entrypoint": "model_def:Trial"}).config, hparams={"global_batch_size": 2}, seed=1, trial_id=1,
        build=plugins.build("torch"), distributed=DistributedContext(), checkpoint=sys.argv[3] or None,
    )
    class Saying(LocalHost):
        def checkpointed(self, manifest, storage):
            print("saved", manifest.batches, manifest.uuid, flush=True)
    run_trial(
        plugins.frameworks()["torch"], Large, info, Saying(Target(n=int(sys.argv[2]))),
        CheckpointSink(storage=LocalStorage(Path(sys.argv[1]))),
        schedule=lambda adapter: Schedule(report=Every(100), checkpoint=Every(4), policy="none"),
    )
    """)
SIZE = 5000 * 5000 * 4


def started(tmp_path: Path, length: int, checkpoint: str = "") -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "checkpoints"), str(length), checkpoint],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "share", [0.0, 0.3, 0.7, 1.0], ids=["begun", "a third", "most of it", "being hashed"]
)
def test_killed_writer_leaves_the_previous_checkpoint_whole(tmp_path: Path, share: float) -> None:
    storage = LocalStorage(tmp_path / "checkpoints")
    process = started(tmp_path, 10_000)
    assert process.stdout is not None
    try:
        older = next(line.split()[2] for line in process.stdout if line.startswith("saved"))
        staging, deadline = tmp_path / "checkpoints" / ".staging", time.monotonic() + 60
        while True:  # the next one, as soon as so much of it is there
            assert time.monotonic() < deadline
            begun = [path for path in staging.glob("writing-*") if older not in path.name]
            files = [file for path in begun for file in path.glob(state.FILE)]
            if begun and (share == 0.0 or any(size_of(file) >= share * SIZE for file in files)):
                break
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        rest = process.stdout.read()
        process.wait(30)
        process.stdout.close()
    whole = list(storage.list())
    said = [older, *(line.split()[2] for line in rest.splitlines() if line.startswith("saved"))]
    assert set(said) <= set(whole)
    assert len(whole) <= len(said) + 1  # one may have been renamed and not told
    positions = {}
    for uuid in whole:
        with read_checkpoint(storage, uuid) as (path, manifest):  # each byte as its manifest says
            positions[manifest.batches] = uuid
            contents = torch.load(path / state.FILE, weights_only=True)
        assert contents["callbacks"]["counting"]["steps"] == list(range(manifest.batches))
    if share != 0.3:
        return
    newest = max(positions)
    for checkpoint in ("", positions[newest]):
        with started(tmp_path, newest + 4, checkpoint) as again:
            assert again.stdout is not None
            lines = again.stdout.read().splitlines()
        assert again.returncode == 0
        last = next(
            line.split()[2] for line in reversed(lines) if line.startswith(f"saved {newest + 4} ")
        )
        with storage.restore(last) as path:
            positions[-1 if checkpoint else -2] = torch.load(path / state.FILE, weights_only=True)
    assert_equal(positions[-1], positions[-2])


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
