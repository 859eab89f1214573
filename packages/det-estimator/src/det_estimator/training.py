"""The training graph, and the session that stays open over a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import CheckpointError, RunInfo, TrialError
from det_core.train.ranks import lost

from .build import Parts
from .context import EstimatorTrialContext
from .inputs import Batches
from .loops import LoopedOps
from .randomness import RandomOps, drawn_in_parallel
from .waiting import Waiting

v1: Any = tf.compat.v1
PREFIX = "model.ckpt"


class Training:
    """A trial's training.

    The graph is built at once, and its session is opened when it is first needed. `metrics` are the
    tensors that each batch reports: the loss, and every scalar summary of the model.
    """

    def __init__(self, context: EstimatorTrialContext, parts: Parts) -> None:
        self._context, self._parts = context, parts
        self._session: Any = None
        self._pending: tuple[str, Mapping[str, int]] | None = None
        self.graph = tf.Graph()
        with self.graph.as_default(), self.graph.device(parts.config.device_fn):
            v1.set_random_seed(parts.config.tf_random_seed)
            v1.train.create_global_step()
            self._loops = LoopedOps(self.graph, _seed(context.run))
            self.batches = Batches(
                context,
                "training",
                parts.train.input_fn,
                **parts.arguments(tf.estimator.ModeKeys.TRAIN),
            )
            with self._loops.drawing():
                self._spec = parts.model(
                    self.batches.features, self.batches.labels, tf.estimator.ModeKeys.TRAIN
                )
            if context.wrapped_optimizers == 0:
                raise TrialError(
                    "no optimizer was wrapped; pass it through context.wrap_optimizer(optimizer)"
                    " right after creating it"
                )
            self.metrics = {"loss": self._spec.loss, **_scalars(self.graph)}
            self._complete()
        self.batches.measure()

    def _complete(self) -> None:
        """Add the ops that det needs to the graph."""
        parts, context = self._parts, self._context
        settings = getattr(parts.given, "_warm_start_settings", None)
        if settings is not None and context.run.checkpoint is None:
            v1.train.warm_start(*settings)
        self._summaries = v1.summary.merge_all()
        read_before_updates([*self.metrics.values(), self._summaries], self._spec.train_op)
        self._saver = v1.train.Saver(max_to_keep=1, save_relative_paths=True)
        self._scaffold = v1.train.Scaffold(
            saver=self._saver, copy_from_scaffold=self._spec.scaffold
        )
        chief = context.distributed.rank == 0
        self.hooks = [
            *parts.hooks(),
            *self._spec.training_hooks,
            *(self._spec.training_chief_hooks if chief else ()),
        ]
        self._waiting = Waiting(context.distributed)
        kept = {
            *self._waiting.variables(),
            *(variable.op.name for variable in v1.trainable_variables()),
        }
        self._unreduced = {
            variable.op.name: variable
            for variable in v1.global_variables()
            if variable.op.name not in kept and variable.dtype.base_dtype != tf.string
        }
        if context.backend is not None:
            own = self._waiting.variables()
            shared = [variable for variable in v1.global_variables() if variable.op.name not in own]
            self._broadcast = context.backend.broadcast_variables(shared)
        self._random: RandomOps | None = None
        self._old: str | None = None

    # The session

    @property
    def session(self) -> Any:
        """TensorFlow's own session. What it runs does not call the hooks."""
        return self._monitored().raw_session()

    def _monitored(self) -> Any:
        if self._session is None:
            hooks = [_Created(self), *self.hooks, _Complete(self)]
            with self.graph.as_default():
                self._session = v1.train.SingularMonitoredSession(
                    hooks=hooks, scaffold=self._scaffold, config=self._parts.config.session_config
                )
        return self._session

    def graph_is_complete(self) -> None:
        """Replace the graph's random ops, after hooks have added theirs."""
        self._random = RandomOps(self.graph, _seed(self._context.run), self._loops.counts)
        if self._random.stuck:
            warnings.warn(
                f"the random numbers of {', '.join(self._random.stuck[:3])} begin again when a run"
                " is resumed, which is then not exact; draw them outside of functions of the"
                " graph, or with tf.random.stateless_*",
                stacklevel=2,
            )
        if out_of_order := drawn_in_parallel(self.graph):
            warnings.warn(
                f"{', '.join(out_of_order[:3])} draws random numbers for several records at a time,"
                " in no certain order, so that no run is repeated or resumed exactly; leave out"
                " num_parallel_calls, or draw with tf.random.stateless_*",
                stacklevel=2,
            )

    def session_is_created(self, session: Any) -> None:
        """Restore the state, before the user's hooks see the session."""
        assert self._random is not None
        prefix, counts = self._pending or (None, {})
        if prefix is not None:
            try:
                self._saver.restore(session, prefix)
            except (tf.errors.OpError, ValueError) as error:
                reason = str(error).split("\n", maxsplit=1)[0]
                raise CheckpointError(
                    f"the checkpoint does not fit the trial's graph: {reason}; name a checkpoint of"
                    " this model"
                ) from error
        if self._old is not None:
            self._take(session, self._old)
        self._random.begin(session, counts)
        if self._context.backend is not None:
            session.run(self._broadcast)
        if prefix is not None:
            self._waiting.load(session, Path(prefix).parent)

    def start_from(self, prefix: str) -> None:
        """Take the variables of a checkpoint of Determined when a session is first needed."""
        self._old = prefix
        if self._session is not None:
            with self.graph.as_default():
                self.session_is_created(self.session)

    def _take(self, session: Any, prefix: str) -> None:
        """Assign variables by name, but not the step.

        The graph is complete by now, so that a second saver could not be made.
        Raises CheckpointError if weights are missing.
        """
        reader = tf.train.load_checkpoint(prefix)
        held, step = reader.get_variable_to_shape_map(), v1.train.get_global_step()
        for variable in v1.global_variables():
            if variable is step:
                continue
            name, shape, part = _saved_as(variable)
            if held.get(name) == shape:
                initializer = variable.initializer
                session.run(initializer, {initializer.inputs[1]: reader.get_tensor(name)[part]})
            elif variable in v1.trainable_variables():
                found = f"has the shape {held[name]}" if name in held else "is missing"
                raise CheckpointError(
                    f"the checkpoint does not fit the trial's graph: {name}, of the shape"
                    f" {shape}, {found} there; name a checkpoint of this model"
                )

    def restore(self, prefix: str, counts: Mapping[str, int]) -> None:
        """Restore variables, and the counts of random ops, from a checkpoint.

        The files are read when a session is first needed.
        """
        self._pending = (prefix, counts)
        if self._session is not None:
            with self.graph.as_default():
                self.session_is_created(self.session)

    def save(self, directory: Path, position: int) -> str:
        """Write the variables, and return the path by which TensorFlow finds them."""
        session = self.session
        with self.graph.as_default():
            prefix: str = self._saver.save(
                session, str(directory / PREFIX), global_step=position, write_meta_graph=False
            )
        return prefix

    def save_waiting(self, path: Path) -> None:
        """Write the gradients that wait for their step on each rank. Every rank must call it."""
        self._waiting.save(self.session, path)

    def unreduced(self) -> dict[str, Any]:
        """Return the variables that no gradient trains, such as BatchNorm's statistics.

        Gradients that wait are left out.
        """
        return self.session.run(self._unreduced)  # type: ignore[no-any-return]

    def set_unreduced(self, values: Mapping[str, Any]) -> None:
        """Set some of these variables."""
        for name, value in values.items():
            initializer = self._unreduced[name].initializer
            self.session.run(initializer, {initializer.inputs[1]: value})

    def trained(self) -> list[Any]:
        """Return the values of the variables that gradients train."""
        with self.graph.as_default():
            return self.session.run(v1.trainable_variables())  # type: ignore[no-any-return]

    def random_state(self) -> dict[str, int]:
        """Return how often each random op has run."""
        session = self.session
        assert self._random is not None
        return self._random.state(session)

    # Steps

    def steps(
        self, first: int, summarise: Callable[[bytes, int], None] | None
    ) -> Callable[[int], dict[str, Any]]:
        """Return a function that trains the batch of a number and returns its metrics.

        `first` is the first number. `summarise` gets the merged summaries every
        `save_summary_steps` batches. Without hooks, TensorFlow's own compiled call is used.
        """
        monitored = self._monitored()
        self.batches.start(self.session, first)
        fetches = (self._spec.train_op, self.metrics)
        every = (
            self._parts.config.save_summary_steps
            if summarise and self._summaries is not None
            else 0
        )
        if self.hooks:
            plain = partial(monitored.run, fetches)
            full = partial(monitored.run, (*fetches, self._summaries)) if every else plain
        else:
            plain = self.session.make_callable(fetches)
            full = self.session.make_callable((*fetches, self._summaries)) if every else plain

        def step(number: int) -> dict[str, Any]:
            try:
                if every and number % every == 0:
                    _, metrics, summaries = full()
                    summarise(summaries, number)  # type: ignore[misc]
                else:
                    _, metrics = plain()
            except (tf.errors.OutOfRangeError, StopIteration) as error:
                raise TrialError(
                    f"training ended by itself at batch {number}, by {type(error).__name__} of an"
                    " input or a hook; to end a trial early, call request_stop() of the run"
                    " context, or context.set_stop_requested(True)"
                ) from error
            except tf.errors.OpError as error:
                context, ranks = self._context, self._context.distributed
                known = context.backend.failure if context.backend is not None else None
                raise known or lost(
                    error, ranks.rank, ranks.size, "when gradients were reduced"
                ) from error
            return metrics  # type: ignore[no-any-return]

        return step

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has requested a stop."""
        return bool(self.hooks) and self._session is not None and self._session.should_stop()

    def close(self) -> None:
        """End the hooks and the session."""
        session, self._session = self._session, None
        if session is not None:
            with self.graph.as_default():
                session.close()


class _Created(v1.train.SessionRunHook):  # type: ignore[misc]
    """The first hook: it restores the state before the user's hooks see the session."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._training.session_is_created(session)


class _Complete(v1.train.SessionRunHook):  # type: ignore[misc]
    """The last hook: its `begin` runs after all others have added to the graph."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def begin(self) -> None:
        self._training.graph_is_complete()


def _seed(run: RunInfo) -> str:
    return f"{run.seed}/{run.distributed.rank}"


def _saved_as(variable: Any) -> tuple[str, list[int], Any]:
    """Return the name and shape under which TensorFlow saves a variable, and which part it is.

    Estimators of TensorFlow divide their variables, and a checkpoint holds all parts as one.
    """
    info = variable._get_save_slice_info()
    if info is None:
        return variable.op.name, variable.shape.as_list(), ...
    part = tuple(
        slice(at, at + size) for at, size in zip(info.var_offset, info.var_shape, strict=True)
    )
    return info.full_name, list(info.full_shape), part


def _scalars(graph: Any) -> dict[str, Any]:
    """Return the values of all scalar summaries by their tags."""
    found = {}
    for op in graph.get_operations():
        if op.type == "ScalarSummary" and op._get_control_flow_context() is None:
            tag = tf.get_static_value(op.inputs[0])
            if tag is not None and op.inputs[1].shape.rank == 0:
                found[tag.item().decode()] = op.inputs[1]
    return found


def read_before_updates(tensors: Iterable[Any], train_op: Any) -> None:
    """Make a step update variables only after the tensors have read them.

    TensorFlow reads and updates in any order, so that summaries of weights would differ from run to
    run. A read that depends on an update stays behind it.
    """
    updates: dict[Any, list[Any]] = {}
    for op in _ancestors([_op(train_op)]):
        for handle in _updated(op):
            updates.setdefault(handle, []).append(op)
    for read in _ancestors(_op(tensor) for tensor in tensors if tensor is not None):
        if read.type != "ReadVariableOp" or read._get_control_flow_context() is not None:
            continue
        for update in updates.get(read.inputs[0].op, ()):
            if update not in _ancestors([read]):
                update._add_control_input(read)


def _updated(op: Any) -> Iterator[Any]:
    """Yield the handles of the variables that an op may update."""
    if (
        op.type.startswith(("Assign", "ResourceApply", "ResourceScatter", "ResourceSparse"))
        or op.type in _CALLS
    ):
        yield from (tensor.op for tensor in op.inputs if tensor.dtype == tf.resource)


_CALLS = ("If", "While", "Case", "PartitionedCall", "StatefulPartitionedCall")


def _op(value: Any) -> Any:
    return getattr(value, "op", value)


def _ancestors(ops: Iterable[Any]) -> set[Any]:
    """Return these ops and all ops that they depend on."""
    found: set[Any] = set()
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return found
