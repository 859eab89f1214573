"""Models that users bring, trained by det and by torch alone.

The numbers are equal, bit for bit on one rank.

And so they are where the run was killed on the way. On two ranks the residual network is compared
with two replicas of torch's own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.compared import compare
from torch.utils.data import DataLoader

from det_core import Stop
from det_testing._play import Cast, Request, play

HERE = Path(__file__).parent
TITLES = {
    "cnn": "residual CNN, BatchNorm",
    "language": "GPT-2, dropout, bf16",
    "gan": "GAN",
    "averaged": "EMA of a CNN",
    "swa": "SWA of a CNN, BatchNorm updated in the end",
    "compiled": "torch.compile of a CNN",
}
NAMES = pytest.mark.parametrize("name", list(TITLES))
ROUNDING = 1e-5  # of sums that are taken in another order


@pytest.fixture(scope="module")
def trained() -> Iterator[Any]:
    """The module of the trials, under a name by which other processes can import it."""
    sys.path.append(str(HERE))
    import trained

    yield trained
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the killed runs left, in a folder for each."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, str(HERE / "trained.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def saved(checkpoints: Path) -> list[Path]:
    """Return what is there whole.

    Who is killed just then leaves the directory in which it was filled, too.
    """
    return list(checkpoints.glob("[!.]*"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A sum over several threads is another sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def compare_with_torch(trained: Any, way: str, alone: Any, trial: Any, result: Any) -> None:
    assert result.stop is Stop.COMPLETED
    losses = [report.metrics["loss"] for report in result.training]
    validations = [report.metrics["val_loss"] for report in result.validation]
    weights = (trained.states(trial.user.modules), alone.states)
    compare(
        TITLES[alone.name], way, weights, ([losses, validations], [alone.losses, alone.validations])
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "compiled" else []) for name in TITLES],
)
def test_det_trains_as_torch_alone_does(
    trained: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = trained.Alone(name)
    compare_with_torch(trained, "undisturbed", alone, *trained.train(name))
    assert alone.losses[-1] != alone.losses[0]


@pytest.mark.thorough
@pytest.mark.process
@NAMES
def test_a_run_that_was_killed_goes_on_to_the_same_numbers(
    trained: Any, killed: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(killed / name)
    (checkpoint,) = saved(Path("checkpoints"))
    trial, result = trained.train(name, latest=checkpoint)
    compare_with_torch(trained, "killed", trained.Alone(name), trial, result)


def test_a_language_model_generates_what_it_does_without_det(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is that of Hugging Face, and it is saved, loaded and asked by their own means."""
    from transformers import GPT2LMHeadModel

    monkeypatch.chdir(tmp_path)
    trial, _ = trained.train("language")
    model = trial.user.modules[0]
    assert type(model) is GPT2LMHeadModel
    told = trial.user.continued()
    assert told == trained.Alone("language").user.continued()
    model.save_pretrained("saved")
    trial.user.modules = [GPT2LMHeadModel.from_pretrained("saved")]
    assert trial.user.continued() == told


def two_replicas(trained: Any) -> dict[str, Any]:
    """Train the residual network by torch alone, a replica for each rank.

    Each normalizes over its own batch.

    Gradients are the means of theirs, and running statistics those of the first, as in torch's
    DistributedDataParallel.
    """
    replicas = []
    for _ in range(2):
        torch.manual_seed(1)
        replicas.append(trained.USERS["cnn"]())
    batches, losses = cycle(DataLoader(trained.USERS["cnn"].data().training, batch_size=4)), []
    for _ in range(trained.LENGTH):
        mine = [replica.loss(next(batches)) for replica in replicas]
        for loss in mine:
            loss.backward()
        for pair in zip(*(replica.modules[0].parameters() for replica in replicas), strict=True):
            mean = (pair[0].grad + pair[1].grad) / 2
            for parameter in pair:
                parameter.grad = mean.clone()
        for replica in replicas:
            replica.optimizers[0].step()
            replica.optimizers[0].zero_grad()
            replica.scheduler.step()
        losses.append(torch.stack(mine).mean().item())
    metrics = {"loss": dict(enumerate(losses, 1)), "val_loss": trained.validated(replicas[0])}
    return {"weights": trained.states(replicas[0].modules), "metrics": metrics}


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("backend", ["torch", pytest.param("horovod", marks=pytest.mark.thorough)])
def test_batch_normalization_on_two_ranks_equals_two_replicas(
    trained: Any, backend: str, tmp_path: Path
) -> None:
    """Up to rounding, 1e-5, as sums over ranks and batches are taken in another order.

    One that was killed, to the same bits.
    """
    if backend == "horovod" and find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    cast = Cast(
        trial=trained.UserTrial, framework="torch", hooks="det_torch._hooks", backend=backend
    )
    first, second = tmp_path / "first", tmp_path / "second"
    killed: dict[str, Any] = {"model": "cnn", "kill_at": trained.KILLED_AT}
    first.mkdir()
    with pytest.raises(RuntimeError, match="rank 1 ended with status -9"):
        play(
            cast,
            [
                Request(
                    name="killed",
                    length=trained.LENGTH,
                    save_at=[trained.SAVE_EVERY],
                    hparams=killed,
                )
            ],
            first,
        )
    (checkpoint,) = saved(first / "checkpoints")
    shutil.copytree(checkpoint, second / "checkpoints" / checkpoint.name)
    going_on = Request(
        name="killed", length=trained.LENGTH, checkpoint=checkpoint.name, hparams={"model": "cnn"}
    )
    whole = Request(name="undisturbed", length=trained.LENGTH, hparams={"model": "cnn"})
    chief, alone = play(cast, [whole, going_on], second)[0], two_replicas(trained)
    for way, run in chief.items():
        (state,) = torch.load(
            second / "checkpoints" / run.checkpoints[trained.LENGTH] / "state_dict.pth",
            weights_only=True,
        )["models_state_dict"]
        found = {"loss": run.losses, "val_loss": run.validations[trained.LENGTH]["val_loss"]}
        losses = {at: loss for at, loss in alone["metrics"]["loss"].items() if at in run.losses}
        metrics = (found, {**alone["metrics"], "loss": losses})
        compare(
            f"{TITLES['cnn']}, {backend}",
            way,
            ([state], alone["weights"]),
            metrics,
            ranks=2,
            bound=ROUNDING,
        )
    whole_losses, losses = chief["undisturbed"].losses, chief["killed"].losses
    assert losses == {at: loss for at, loss in whole_losses.items() if at > trained.SAVE_EVERY}
    assert chief["killed"].validations == chief["undisturbed"].validations
