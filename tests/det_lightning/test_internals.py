"""Private names of Lightning's: in one file, and each with what of det breaks without it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import CombinedLoader
from tests.det_lightning.conftest import Line, records
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, SequentialSampler
from torchmetrics import MeanMetric

from det_lightning import internals

SOURCES = Path(internals.__file__).parent
OWNERS = ("lightning", "lightning_utilities", "torchmetrics")
DOCUMENTED = {
    "lightning.fabric.plugins",
    "lightning.pytorch",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.core.optimizer",
    "lightning.pytorch.plugins",
    "lightning.pytorch.strategies",
    "lightning.pytorch.utilities",
    "torchmetrics",
}
"""Modules that pages of the documentation have; what else is imported of Lightning is private."""

NOT_LIGHTNINGS = {
    "adapter.py": {"adapter._last"},
    "horovod.py": {"strategy._stacked", "ctx.strategy._sum"},
    "validation.py": {"'_buffers'", "'_parameters'", "'_modules'"},
}
"""Private names on others than `self` that are det's own, and those of torch's modules."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def trees(*names: str) -> dict[str, ast.Module]:
    files = [SOURCES / name for name in names] or sorted(SOURCES.glob("*.py"))
    return {file.name: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that classes of a file define.

    Methods, attributes of the class, attributes set on `self`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                targets = (
                    each.targets
                    if isinstance(each, ast.Assign)
                    else [getattr(each, "target", None)]
                )
                yield from (target.id for target in targets if isinstance(target, ast.Name))
                yield from [each.name] if isinstance(each, ast.FunctionDef) else []
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own(node.value)
        ):
            yield node.attr


def own(node: ast.AST) -> bool:
    """Tell whether an expression is `self`, `cls` or `super()`."""
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name) and called.id in ("self", "cls", "super")


def touched(tree: ast.AST, ours: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each use of a private name of others, as it is written, and the name."""
    within = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values[1:]
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and private(node.attr)
            and not (own(node.value) and node.attr in ours)
        ):
            yield ast.unparse(node), node.attr
        elif (
            isinstance(node, ast.Constant)
            and id(node) not in within
            and re.fullmatch(r"_[a-z]\w*", str(node.value))
        ):
            yield repr(node.value), str(node.value)  # as given to getattr
        elif isinstance(node, ast.keyword) and private(node.arg or ""):
            yield f"{node.arg}=", str(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for module, name in imported(node):
                if module.partition(".")[0] in OWNERS and (
                    private(name) or module not in DOCUMENTED
                ):
                    yield f"import {module}.{name}", name


def imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    if isinstance(node, ast.Import):
        return [(alias.name, "") for alias in node.names]
    return [(node.module or "", alias.name) for alias in node.names if not node.level]


def test_no_other_file_touches_what_is_private_to_lightning() -> None:
    files = trees()
    ours = {name for tree in files.values() for name in defined(tree)}
    found = {
        name: {text for text, _ in touched(tree, ours)}
        for name, tree in files.items()
        if name != "internals.py"
    }
    assert {name: texts for name, texts in found.items() if texts} == NOT_LIGHTNINGS


def test_what_is_private_is_told_from_what_is_not() -> None:
    uses = """
import lightning.pytorch as pl
from lightning.pytorch.loops.fit_loop import Any
from lightning.pytorch import Trainer, _Fit
class Ours:
    _set = 0
    def _ours(self):
        self._set = super()._ours() + self._theirs + self.trainer._set + getattr(pl, "_name") + pl.f(_key=f"is_{self._set}_it")
"""
    tree = ast.parse(uses)
    assert sorted(text for text, _ in touched(tree, set(defined(tree)))) == [
        "'_name'",
        "_key=",
        "import lightning.pytorch._Fit",
        "import lightning.pytorch.loops.fit_loop.Any",
        "self._theirs",
        "self.trainer._set",
    ]


def parts() -> dict[str, ast.FunctionDef | ast.ClassDef]:
    body = trees("internals.py")["internals.py"].body
    return {each.name: each for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("part", sorted(parts()))
def test_each_internal_documents_its_names_and_has_a_test(part: str) -> None:
    """It names a version of Lightning as well."""
    node, said = parts()[part], str(ast.get_docstring(parts()[part]))
    module = trees("internals.py")["internals.py"]
    whole = {
        name
        for each in module.body
        for text, name in touched(each, set())
        if text.startswith("import ")
    }
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & whole
    names |= {name for text, name in touched(node, set())}
    assert {name for name in names if not re.search(rf"`[\w.]*\b{name}\b[\w.]*`", said)} == set()
    assert names
    assert re.search(r"\b2\.\d+\.\d+\b", said)
    assert f"needs(internals.{part})" in Path(__file__).read_text(encoding="utf-8")


@contextmanager
def needs(part: Callable[..., Any]) -> Iterator[None]:
    """Let a failure name what of Lightning is gone or has changed, and what of det needs it."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(part.__doc__).split())
        broke = f"Lightning {pl.__version__}: {type(error).__name__}: {error}"
        raise AssertionError(
            f"det_lightning.internals.{part.__name__} broke with {broke}\n{said}"
        ) from error


def test_a_failure_says_which_name_broke_and_what_needs_it() -> None:
    with (
        pytest.raises(
            AssertionError,
            match=r"(?s)layer_sync broke with Lightning \d.*'_layer_sync'.*strategy refuses",
        ),
        needs(internals.layer_sync),
    ):
        internals.layer_sync(object())  # type: ignore[arg-type]


# A tiny fit, of eight batches


class Hooks(pl.Callback):
    """Calls a function in a hook, and keeps what it returns."""

    def __init__(self, **hooks: Callable[[pl.Trainer], Any]) -> None:
        self.found: list[Any] = []
        for name, do in hooks.items():
            setattr(self, name, lambda trainer, *args, do=do: self.found.append(do(trainer)))


class Logs(Line):
    """Logs its loss, for each batch and over the epoch, and learns slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001)


def trainer(*callbacks: pl.Callback, **more: Any) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    given: Any = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        **quiet,
        **more,
    }
    return pl.Trainer(callbacks=[*callbacks], **given)


def fit(module: pl.LightningModule, **more: Any) -> list[Any]:
    """Return what these hooks return within a fit; other keywords are the trainer's."""
    hooks = Hooks(**{name: more.pop(name) for name in list(more) if name.startswith("on_")})
    trainer(hooks, **more).fit(module)
    return hooks.found


def validate(trainer: pl.Trainer) -> None:
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True


@pytest.fixture(autouse=True)
def quiet(recwarn: pytest.WarningsRecorder) -> None:
    """Keep what Lightning says of tiny fits to itself."""


# Loops


def test_lightnings_fit_loop() -> None:
    order: list[str] = []

    class Noting(internals.LightningsFitLoop):
        done = property(lambda self: self.trainer.should_stop)

    def note(name: str) -> Any:
        def noted(self: Any) -> None:
            order.append(name)
            getattr(super(Noting, self), name)()

        return noted

    for name in (
        "on_run_start",
        "on_advance_start",
        "advance",
        "on_advance_end",
        "on_iteration_done",
        "on_run_end",
    ):
        setattr(Noting, name, note(name))

    with needs(internals.LightningsFitLoop):
        hooks = Hooks(
            on_train_epoch_end=lambda trainer: setattr(
                trainer, "should_stop", trainer.current_epoch == 1
            )
        )
        ours = trainer(hooks, max_epochs=-1)
        given = ours.fit_loop
        assert isinstance(given, internals.LightningsFitLoop.__mro__[1])
        ours.fit_loop = Noting(ours, given.min_epochs, -1)
        ours.fit_loop.epoch_loop = given.epoch_loop
        ours.fit(Line())
        epoch = ["on_advance_start", "advance", "on_advance_end", "on_iteration_done"]
        assert order == ["on_run_start", *epoch, *epoch, "on_run_end"]
        assert (ours.fit_loop.max_epochs, ours.fit_loop.max_batches) == (-1, 8)


class Watches(Logs):
    """Has a scheduler that watches a metric."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.scheduler, "monitor": "loss"},
        }


@pytest.mark.parametrize("restarting", [True, False])
def test_set_restarting(restarting: bool) -> None:
    def at_end(trainer: pl.Trainer) -> bool:
        internals.set_restarting(trainer, restarting)
        return bool(trainer.fit_loop.restarting)

    with needs(internals.set_restarting):
        module = Watches()
        assert fit(module, on_train_epoch_end=at_end, max_steps=8) == [restarting]
        assert module.scheduler.last_epoch == (0 if restarting else 1)


def test_accumulates() -> None:
    with needs(internals.accumulates):
        told = fit(Line(), on_train_batch_end=internals.accumulates, accumulate_grad_batches=3)
        assert told == [True, True, False, True, True, False, True, False]


class Steps(Logger):
    """Notes the step of each metric."""

    name = version = "steps"

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int | None]] = {}

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        for name in metrics:
            self.seen.setdefault(name, []).append(step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Take no notice."""


def test_fewer_steps() -> None:
    def at_end(trainer: pl.Trainer) -> None:
        with internals.fewer_steps(trainer, 1):
            log(trainer, "fewer")
        log(trainer, "all")

    def log(trainer: pl.Trainer, name: str) -> None:
        with internals.between_epochs(trainer):
            trainer.lightning_module.named = name  # type: ignore[assignment]
            validate(trainer)

    class Named(Line):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log(str(self.named), 1.0)

    with needs(internals.fewer_steps):
        steps = Steps()
        fit(
            Named(),
            on_train_batch_end=at_end,
            logger=steps,
            limit_val_batches=1,
            check_val_every_n_epoch=9,
        )
        assert steps.seen["all"] == list(range(8))
        assert steps.seen["fewer"] == list(range(-1, 7))


def test_checkpoint_of() -> None:
    def at_batch(trainer: pl.Trainer) -> None:
        checkpoint = internals.checkpoint_of(trainer)
        assert {
            "state_dict",
            "loops",
            "callbacks",
            "optimizer_states",
            "lr_schedulers",
            "own",
        } <= set(checkpoint)
        assert (
            checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"]
            == trainer.global_step
        )
        ours = trainer.lightning_module.state_dict()
        assert all(
            value is checkpoint["state_dict"][name] or value.equal(checkpoint["state_dict"][name])
            for name, value in ours.items()
        )

    class Saves(Line):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["own"] = 1

    with needs(internals.checkpoint_of):
        assert len(fit(Saves(), on_train_batch_end=at_batch)) == 8


# Data


class Marked(internals.DataSource):
    """Gives half of the data."""

    def dataloader(self) -> Any:
        assert self.is_defined()
        loader: Any = super().dataloader()
        return DataLoader(loader.dataset, batch_size=4)


class Builds(Line):
    """Notes the epochs in which its data is built."""

    def __init__(self) -> None:
        super().__init__()
        self.trained_on: list[int] = []

    def train_dataloader(self) -> Any:
        self.trained_on.append(self.trainer.current_epoch)
        return DataLoader(records(4), batch_size=2)

    def val_dataloader(self) -> Any:
        return DataLoader(records(2), batch_size=2)


EVERY_SECOND: dict[str, Any] = {
    "reload_dataloaders_every_n_epochs": 2,
    "max_epochs": 5,
    "limit_val_batches": 1,
}


def test_built_in() -> None:
    with needs(internals.built_in):
        found = fit(Builds(), on_train_epoch_end=internals.built_in, **EVERY_SECOND)
        assert found == [[0, 0], [0, 0], [2, 2], [2, 2], [4, 4]]


def test_set_built_in() -> None:
    with needs(internals.set_built_in):
        module = Builds()
        fit(
            module,
            on_train_start=lambda trainer: internals.set_built_in(trainer, -1),
            **EVERY_SECOND,
        )
        assert module.trained_on == [0, 1, 3]


def test_data_source() -> None:
    with needs(internals.DataSource):
        module = Line()
        source = Marked(module, "train_dataloader")
        assert (source.instance, source.name, source.is_defined()) == (
            module,
            "train_dataloader",
            True,
        )
        assert not Marked(pl.LightningModule(), "train_dataloader").is_defined()


def test_replace_source() -> None:
    def size(trainer: pl.Trainer) -> tuple[int, Any]:
        return trainer.num_training_batches, trainer.num_val_batches

    with needs(internals.replace_source):
        hooks = Hooks(on_validation_end=size)
        ours = trainer(hooks, limit_val_batches=1.0)
        for loop in (ours.fit_loop, ours.fit_loop.epoch_loop.val_loop):
            internals.replace_source(loop, lambda source: Marked(source.instance, source.name))
        ours.fit(Line())
        assert hooks.found == [(4, [1])]


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
def test_mode_of(mode: Any) -> None:
    with needs(internals.mode_of):
        assert internals.mode_of(CombinedLoader([DataLoader(records(2))], mode)) == mode


@pytest.mark.parametrize(
    ("length", "limit", "expected"), [(6, 0.5, 3), (6, 4, 4), (None, 4, 4), (None, 1.0, None)]
)
def test_limited(length: int | None, limit: Any, expected: int | None) -> None:
    with needs(internals.limited):
        assert internals.limited(length, limit) == expected


def test_unshuffled() -> None:
    with needs(internals.unshuffled):
        found = internals.unshuffled(DataLoader(records(4), shuffle=True))
        assert isinstance(found.flattened[0].sampler, SequentialSampler)


# What is logged


def test_results_of_epoch_and_their_values() -> None:
    def at_batch(trainer: pl.Trainer) -> Any:
        results = internals.results_of_epoch(trainer)
        assert [key for key, _ in results.valid_items()] == list(results) == ["training_step.loss"]
        metric = results["training_step.loss"]
        assert (metric.meta.name, metric.meta.on_step, metric.meta.on_epoch) == ("loss", True, True)
        assert (metric.meta.forked_name(True), metric.meta.forked_name(False)) == (
            "loss_step",
            "loss_epoch",
        )
        return metric, internals.value_of_batch(metric)

    def at_end(trainer: pl.Trainer) -> Any:
        results = internals.results_of_epoch(trainer)
        return internals.value_of_epoch(results, results["training_step.loss"])

    with (
        needs(internals.results_of_epoch),
        needs(internals.value_of_batch),
        needs(internals.value_of_epoch),
    ):
        module = Logs()
        *batches, over_epoch = fit(module, on_train_batch_end=at_batch, on_train_epoch_end=at_end)
        assert [value for _, value in batches] == module.losses
        assert over_epoch.item() == pytest.approx(torch.stack(module.losses).mean().item())


def test_results_of_validation() -> None:
    def facts(trainer: pl.Trainer) -> Any:
        (metric,) = internals.results_of_validation(trainer).values()
        meta = metric.meta
        return (
            meta.name,
            meta.fx,
            meta.sync.should,
            meta.is_mean_reduction,
            int(metric.cumulated_batch_size),
        )

    with needs(internals.results_of_validation):
        found = fit(Line(), on_validation_end=facts, limit_val_batches=1.0)
        assert found == [("val_loss", "validation_step", False, True, 4)]


def test_new_result() -> None:
    """As it equals what `log` makes, the next `log` takes the sum on."""

    def at_start(trainer: pl.Trainer) -> None:
        facts = {"fx": "training_step", "name": "loss", "on_step": True, "on_epoch": True}
        made = internals.new_result(
            trainer, facts, torch.mean, is_tensor=True, synced=False, chief_only=False
        )
        internals.set_updates(made, 1)
        made.value, made.cumulated_batch_size = torch.tensor(160.0), torch.tensor(16)
        internals.results_of_epoch(trainer)["training_step.loss"] = made
        internals.set_metrics_of_callbacks(trainer, {}, within_epoch=True)

    def at_end(trainer: pl.Trainer) -> Any:
        return internals.results_of_epoch(trainer)["training_step.loss"].compute().item()

    with needs(internals.new_result):
        module = Logs()
        _, over_both = fit(module, on_train_start=at_start, on_train_epoch_end=at_end)
        mean = torch.stack(module.losses).mean().item()
        assert over_both == pytest.approx((10 + mean) / 2)


def test_set_updates() -> None:
    with needs(internals.set_updates):
        metric = MeanMetric()
        metric.update(2.0)
        assert metric.compute() == 2.0
        metric.mean_value, metric.weight = torch.tensor(30.0), torch.tensor(6.0)
        assert metric.compute() == 2.0
        internals.set_updates(metric, 6)
        assert (metric.update_count, metric.compute()) == (6, 5.0)


def test_metrics_of_callbacks() -> None:
    def known(trainer: pl.Trainer) -> Any:
        first = dict(internals.metrics_of_callbacks(trainer))
        assert internals.metrics_of_callbacks(trainer) == first
        return first

    with needs(internals.metrics_of_callbacks):
        module = Logs()
        before, *rest = fit(module, on_train_batch_end=known)
        assert before == {}
        assert [each["loss_step"] for each in rest] == module.losses[:-1]


@pytest.mark.parametrize("within_epoch", [True, False])
def test_set_metrics_of_callbacks(within_epoch: bool) -> None:
    """Sums go on within an epoch only: else the first batch clears them."""

    def at_start(trainer: pl.Trainer) -> None:
        if trainer.current_epoch == 1:
            for each in internals.results_of_epoch(trainer).values():
                each.value, each.cumulated_batch_size, each.has_reset = (
                    torch.tensor(160.0),
                    torch.tensor(16),
                    False,
                )
            internals.set_metrics_of_callbacks(
                trainer, {"own": torch.tensor(3.0)}, within_epoch=within_epoch
            )

    def at_end(trainer: pl.Trainer) -> Any:
        results = internals.results_of_epoch(trainer)
        return trainer.callback_metrics.get("own"), results["training_step.loss"].compute().item()

    with needs(internals.set_metrics_of_callbacks):
        module = Logs()
        *_, (own, over_epoch) = fit(
            module, on_train_epoch_start=at_start, on_train_epoch_end=at_end, max_epochs=2
        )
        mean = torch.stack(module.losses[8:]).mean().item()
        assert own == 3.0
        assert over_epoch == pytest.approx((10 + mean) / 2 if within_epoch else mean)


def test_between_epochs() -> None:
    """A validation behind the third batch gives callbacks its metrics.

    The epoch's sums go on.
    """

    def at_batch(trainer: pl.Trainer) -> None:
        if trainer.global_step == 3:
            with internals.between_epochs(trainer):
                validate(trainer)
            assert "val_loss" in internals.metrics_of_callbacks(trainer)

    def at_end(trainer: pl.Trainer) -> Any:
        return internals.results_of_epoch(trainer)["training_step.loss"].compute().item()

    with needs(internals.between_epochs):
        module = Logs()
        never = {"limit_val_batches": 2, "check_val_every_n_epoch": 9}
        *_, over_epoch = fit(
            module, on_train_batch_end=at_batch, on_train_epoch_end=at_end, **never
        )
        assert over_epoch == pytest.approx(torch.stack(module.losses).mean().item())


# Modules and strategies


def test_overrides() -> None:
    class Own(Line):
        def on_validation_model_zero_grad(self) -> None:
            """Keep them."""

    with needs(internals.overrides):
        found = [
            internals.overrides(module, "on_validation_model_zero_grad")
            for module in (Own(), Line())
        ]
        assert found == [True, False]


def test_attributes_of_a_module() -> None:
    class Kept(Line):
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()

    with needs(internals.attributes_of_a_module):
        module = Kept(0.1)
        fit(module)
        assert set(vars(module)) - internals.attributes_of_a_module() == set()


def test_layer_sync() -> None:
    with needs(internals.layer_sync):
        found: list[Any] = [
            internals.layer_sync(trainer(strategy="ddp", devices=1, sync_batchnorm=sync).strategy)  # type: ignore[arg-type]
            for sync in (True, False)
        ]
        assert isinstance(found[0], LayerSync)
        assert found[1] is None


def test_divides_as_told() -> None:
    with needs(internals.shards_over_all_ranks):
        found = [
            internals.shards_over_all_ranks(ModelParallelStrategy(**given))
            for given in ({}, {"tensor_parallel_size": 2})
        ]
        assert found == [True, False]


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_read_divided(tmp_path: Path) -> None:
    whole = Line().state_dict()
    torch.save({"state_dict": whole, "optimizer_states": [], "epoch": 7}, tmp_path / "one.ckpt")
    module = Line()
    strategy = ModelParallelStrategy()
    strategy.connect(fully_shard(module))
    with needs(internals.read_divided):
        rest = internals.read_divided(strategy, tmp_path / "one.ckpt", True)
        found = {name: tensor.full_tensor() for name, tensor in module.state_dict().items()}  # type: ignore[operator]
        assert rest["epoch"] == 7
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)
