"""Pipelines as plain JAX: a shifting buffer with a stage dimension (GSPMD, arXiv:2105.04663, 3.3).

All stages run one function on other weights, so that the pipeline is a tensor program: every value
gets a leading stage dimension, `jax.vmap` applies the function to all stages at once, and in each
iteration the buffer of activations shifts by one stage. Partitioned on the stage dimension, the
shift is one collective permute, and nothing else moves between stages:

    feed  (L, M, ...)   the microbatches, on the first stage; zeros elsewhere
    state (L, ...)      the result of each stage in the last iteration
    done  (L, M, ...)   the last M activations that each stage made, one slot per microbatch

    for t in range(R * M + L - 1):      # stage s: microbatch (t - s) % M, round (t - s) // M
        x = shift(state)                # from the stage before
        x[0] = feed[0, t] if t < M else last of done[:, t % M]
        state = vmap(stage)(weights of the round, x)
        done[:, (t - L + 1) % M] = state

With R = 1 this is GPipe. With R > 1 the layers go round the stages R times (circular schedule): the
shift is a rotation, and a microbatch that came out of the last stage waits there, in its slot of
`done`, until its next round begins. Microbatches enter the first stage before the loop, and results
leave the last stage after it, once. Only the stage and the microbatch dimension are specified, the
latter as not partitioned; all other dimensions are open, for data and in-layer parallelism.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardalg.costs.pipelines.loops import SHIFTED
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.errors import PipelineError
from shardalg.graph.annotate import annotate_dims
from shardalg.graph.evaluate import is_key
from shardalg.graph.tracing.written import rotated

Array = jax.Array
Tree = Any
StageFn = Callable[[Tree, Tree], Tree]

LAYER_INPUT = "pipeline_layer_input"
REMAT = ("none", "layer", "stage")
"""A stage keeps for its backward pass: everything, the inputs of its layers, or its own input."""


@dataclass(frozen=True)
class Pipeline:
    """A pipelined stack of layers, called as `y = pipe(weights, x)`; `pipeline` builds one.

    Attributes:
      stage_fn: one layer, `(weights of a layer, microbatch) -> microbatch`.
      schedule: the numbers of stages, microbatches and rounds.
      axis: the mesh axis of the stages; None leaves it to completion.
      remat: the part that the backward pass computes again: "none", "layer" or "stage".
      stream_io: True if each stage holds M / L microbatches; otherwise each has slots for all M.
    """

    stage_fn: StageFn
    schedule: Schedule
    axis: str | None = "L"
    remat: str = "none"
    stream_io: bool = False

    def __post_init__(self) -> None:
        """Raise PipelineError for an argument of another type, or uneven streamed microbatches."""
        if not callable(self.stage_fn):
            raise PipelineError(
                f"stage_fn is a {type(self.stage_fn).__name__}, {self.stage_fn!r:.80}, no "
                "function: pass the function of one layer, (weights, x) -> x."
            )
        if not isinstance(self.axis, str | None):
            raise PipelineError(
                f"axis is {self.axis!r}: give the name of the mesh axis of the stages, such as "
                "'L', or None."
            )
        if self.remat not in REMAT:
            raise PipelineError(f"remat must be one of {REMAT}, got {self.remat!r}.")
        # This call raises if the stages do not divide the microbatches.
        if self.stream_io:
            self.schedule.microbatches_per_stage()

    def stack(self, layers: Tree) -> Tree:
        """Return weights of all layers, (layers, ...), in the pipeline's order: (stages, ...).

        In round r, stage s runs n consecutive layers, from layer `(r * stages + s) * n`. The second
        dimension of the result has the n layers of round 0, then those of round 1, and so on.

        Raises:
          PipelineError: stages times rounds do not divide the layers, or the arrays have different
            numbers of layers.

        >>> pipe = pipeline(lambda w, x: x * w, stages=2, microbatches=2, rounds=2)
        >>> pipe.stack(jnp.arange(8)).tolist()
        [[0, 1, 4, 5], [2, 3, 6, 7]]
        """
        _check_layers(layers, dims=1)
        stages, rounds = self.schedule.stages, self.schedule.rounds

        def stacked(leaf: Array) -> Array:
            """Return one weight of all layers, (layers, ...), in the pipeline's order."""
            count = self.schedule.layers_per_round(leaf.shape[0])
            # Layer (r * stages + s) * count + i is layer i of stage s in round r: the order of the
            # layers has rounds as its major dimension, the result has stages.
            leaf = leaf.reshape(rounds, stages, count, *leaf.shape[1:]).swapaxes(0, 1)
            return leaf.reshape(stages, rounds * count, *leaf.shape[3:])

        return jax.tree.map(stacked, layers)

    def unstack(self, weights: Tree) -> Tree:
        """Return the weights of all layers in their order, (layers, ...): the inverse of `stack`.

        >>> pipe = pipeline(lambda w, x: x * w, stages=2, microbatches=2, rounds=2)
        >>> pipe.unstack(pipe.stack(jnp.arange(8))).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]

        Raises:
          PipelineError: the weights have not the shape that `stack` gives.
        """
        self._check_stacked(weights)
        stages, rounds = self.schedule.stages, self.schedule.rounds

        def unstacked(leaf: Array) -> Array:
            count = leaf.shape[1] // rounds
            leaf = leaf.reshape(stages, rounds, count, *leaf.shape[2:]).swapaxes(0, 1)
            return leaf.reshape(stages * rounds * count, *leaf.shape[3:])

        return jax.tree.map(unstacked, weights)

    def __call__(self, weights: Tree, x: Tree) -> Tree:
        """Apply the layers to a batch; the result equals applying one layer after the other.

        A scan runs all stages at once. In each iteration every stage applies its layers to one
        microbatch, and the results move on to the next stage.

        Args:
          weights: as `stack` gives them, (stages, layers per stage, ...) per leaf.
          x: per leaf (batch, ...). Microbatch m has the samples m, m + microbatches, ...: a batch
            that is partitioned stays so, and no sample moves to another device.

        Raises:
          PipelineError: the weights have not the shape that `stack` gives, the microbatches do not
            divide the batch, or the stage function changes the shape or type of its input.
        """
        self._check(weights, x)
        # Slots are padded with zeros, and an array of random keys has no zero: its words have.
        if any(map(is_key, jax.tree.leaves(x))):
            return _on_words(self, weights, x)
        feed = jax.tree.map(self._input_slots, x)
        weights = jax.tree.map(self._by_stage, weights)
        state = jax.tree.map(lambda leaf: self._by_stage(jnp.zeros_like(leaf[:, 0])), feed)
        # A single streamed round needs no store, because a finished microbatch leaves at once.
        done = None
        if self._stores:
            slots = (self.schedule.stages, self.schedule.microbatches)
            done = jax.tree.map(
                lambda leaf: self._slots(jnp.zeros((*slots, *leaf.shape[1:]), leaf.dtype)), state
            )
        if not self.stream_io:
            step = partial(self._iteration, weights, feed)
            (_, done), _ = lax.scan(step, (state, done), self._times)
            # Taken here, after the loop, the results leave the last stage once; in the loop they
            # would leave it once per iteration.
            return jax.tree.map(lambda leaf: _in_order(leaf[-1]), done)

        # One array of slots has the inputs that still have to enter and the results that have left:
        # together they are never more than M microbatches, so no stage needs slots for all of them.
        def streamed(carry: tuple[Tree, Tree], t: Array) -> tuple[tuple[Tree, Tree], None]:
            """Run iteration `t` of the pipeline, and move the input slots on; return (carry, None).

            The carry is ((state, done), slots). `state` has the activations of every stage. `done`
            has the microbatches that finished a round. `slots` has the microbatches that have not
            entered yet, and the results.
            """
            (state, done), io = carry
            (state, done), _ = self._iteration(weights, io, (state, done), t)

            # Column t moves up by one stage towards stage 0, where microbatches enter. The place
            # that becomes free on the last stage takes the microbatch that leaves now.
            def moved_up(io: Array, state: Array) -> Array:
                """Return the slots `io` with the column of iteration t moved up by one stage."""
                stage = lax.broadcasted_iota(jnp.int32, state.shape, 0)
                column = jnp.pad(self._fresh(t, io), [(0, 1), *[(0, 0)] * (state.ndim - 1)])[1:]
                is_last = stage == self.schedule.stages - 1
                column = self._by_stage(jnp.where(is_last, state, column))
                return self._put(t % io.shape[1], io, column)

            return ((state, done), jax.tree.map(moved_up, io, state)), None

        (_, io), _ = lax.scan(streamed, ((state, done), feed), self._times)
        return jax.tree.map(self._left, io)

    @property
    def _times(self) -> Array:
        return jnp.arange(self.schedule.iterations)

    @property
    def _stores(self) -> bool:
        """True if results of the stages are stored, for the next round or until they leave."""
        return self.schedule.rounds > 1 or not self.stream_io

    def _iteration(
        self, weights: Tree, feed: Tree, carry: tuple[Tree, Tree], t: Array
    ) -> tuple[tuple[Tree, Tree], None]:
        """Return the carry (state, done) after iteration `t`, and None, for `lax.scan`.

        Args:
          feed: the microbatches, on the first stage.
          carry: `state`, the result of each stage in the last iteration; and `done`, the last
            results of each stage, one slot per microbatch.
        """
        state, done = carry
        stages, batches = self.schedule.stages, self.schedule.microbatches
        x = jax.tree.map(partial(self._shifted, t), feed, state, done if self._stores else state)
        stage = jnp.arange(stages)
        # Stage s starts s iterations late; clipping covers the bubbles, whose results are never
        # read.
        turn = jnp.clip((t - stage) // batches, 0, self.schedule.rounds - 1)
        state = jax.tree.map(self._by_stage, jax.vmap(self._stage)(weights, x, turn))
        # All stages write the slot of the microbatch that the last stage finishes, because only the
        # last stage's results are read; it entered stages - 1 iterations before.
        slot = (t - (stages - 1)) % batches
        if self._stores:
            done = jax.tree.map(partial(self._put, slot), done, state)
        return (state, done), None

    def _put(self, slot: Array, store: Array, results: Array) -> Array:
        """Write each stage's result, (stages, ...), into one slot of the store."""
        return self._slots(lax.dynamic_update_index_in_dim(store, results, slot, 1))

    def _fresh(self, t: Array, feed: Array) -> Array:
        """Return one slot of every stage: the one that has, on stage 0, the input of iteration `t`.

        Args:
          feed: all slots, with the shape (stages, slots, ...); the result has no dimension of
            slots.
        """
        count = feed.shape[1]
        slot = t % count if self.stream_io else jnp.minimum(t, count - 1)
        return lax.dynamic_index_in_dim(feed, slot, 1, keepdims=False)

    def _shifted(self, t: Array, feed: Array, state: Array, done: Array) -> Array:
        """Return each stage's input: a new microbatch, or the previous stage's result."""
        stages, batches = self.schedule.stages, self.schedule.microbatches
        stage = lax.broadcasted_iota(jnp.int32, state.shape, 0)
        fresh = self._fresh(t, feed)
        if self.schedule.rounds == 1:
            # A pad and a slice along the stages are one permute between neighbours (GSPMD, section
            # 3.3).
            shifted = jnp.pad(state, [(1, 0), *[(0, 0)] * (state.ndim - 1)])[:-1]
            return self._by_stage(jnp.where(stage == 0, fresh, shifted), SHIFTED)
        # With more microbatches than stages, stage 0 is still busy with other microbatches of this
        # round: a finished microbatch waits in its slot for the next round.
        waited = lax.dynamic_index_in_dim(done, t % batches, 1, keepdims=False)
        turned = rotated(jnp.where(stage == stages - 1, waited, state), 1)
        return self._by_stage(jnp.where((stage == 0) & (t < batches), fresh, turned), SHIFTED)

    def _stage(self, weights: Tree, x: Tree, turn: Array) -> Tree:
        """Return the activations `x` after the layers of one stage in round `turn`."""
        rounds = self.schedule.rounds

        def run(weights: Tree, x: Tree, turn: Array) -> Tree:
            """Return the activations after the layers that the stage has in round `turn`."""

            def of_round(leaf: Array) -> Array:
                """Return the weights of the layers in this round, from those of all rounds."""
                # With one round the leaf has no other layers, so a slice would only add an
                # operator.
                count = leaf.shape[0] // rounds
                return lax.dynamic_slice_in_dim(leaf, turn * count, count) if rounds > 1 else leaf

            def layer(x: Tree, weights: Tree) -> tuple[Tree, None]:
                x = jax.tree.map(partial(checkpoint_name, name=LAYER_INPUT), x)
                return _again(self.stage_fn, self.remat == "layer")(weights, x), None

            layers = jax.tree.map(of_round, weights)
            # A scan of one iteration would only add a region to the traced program.
            if len(jax.tree.leaves(layers)[0]) == 1:
                return layer(x, jax.tree.map(lambda leaf: leaf[0], layers))[0]
            return lax.scan(layer, x, layers)[0]

        if self.remat == "layer" and rounds > 1:
            # Otherwise the slice of the weights that each iteration reads would be a residual of
            # the loop: a copy of the round's weights per iteration.
            policy = jax.checkpoint_policies.save_only_these_names(LAYER_INPUT)
            return jax.checkpoint(run, policy=policy)(weights, x, turn)
        # Otherwise a checkpoint of the whole stage is enough, or none; `_again` adds it.
        return _again(run, self.remat == "stage")(weights, x, turn)

    def _input_slots(self, leaf: Array) -> Array:
        """Split (batch, ...) into microbatches: (stages, slots, batch / microbatches, ...).

        A stage has one slot per microbatch, zeros except on the first stage. With `stream_io` a
        stage has microbatches / stages slots, and every slot has a microbatch.
        """
        stages, batches = self.schedule.stages, self.schedule.microbatches
        # Strided microbatches keep a partitioned batch in place: each device has rows of all of
        # them.
        strided = leaf.reshape(leaf.shape[0] // batches, batches, *leaf.shape[1:]).swapaxes(0, 1)
        if self.stream_io:
            shape = (stages, self.schedule.microbatches_per_stage(), *strided.shape[1:])
            return self._slots(strided.reshape(shape))
        return self._slots(jnp.pad(strided[None], [(0, stages - 1), *[(0, 0)] * strided.ndim]))

    def _left(self, io: Array) -> Array:
        """Return the finished batch, (batch, ...), in the order of its samples.

        It is used with `stream_io`, where the slots of the inputs take the results.

        Args:
          io: the slots after the loop, which hold the results, with the shape
            (stages, microbatches / stages, samples of a microbatch, ...).
        """
        # Microbatch m entered in iteration m, and its result left in iteration m + stages - 1. Each
        # iteration writes the next slot, so the results are stages - 1 slots behind the inputs. The
        # roll moves them to the slots of their inputs.
        slots = jnp.roll(self._slots(io), 1 - self.schedule.stages, 1)
        return _in_order(slots.reshape(self.schedule.microbatches, *slots.shape[2:]))

    def _by_stage(self, leaf: Array, name: str | None = None) -> Array:
        """Return an array, (stages, ...), annotated as sharded along the axis of the stages."""
        stage: dict[int, str | None] = {} if self.axis is None else {0: self.axis}
        return annotate_dims(leaf, stage, name) if stage or name else leaf

    def _slots(self, leaf: Array) -> Array:
        """Return an array, (stages, slots, ...), annotated as sharded by stage, not by slot."""
        stage = {} if self.axis is None else {0: self.axis}
        return annotate_dims(leaf, {**stage, 1: None})

    def _check(self, weights: Tree, x: Tree) -> None:
        """Raise unless weights and batch fit the schedule, and a layer keeps shapes and types."""
        self._check_stacked(weights)
        if not jax.tree.leaves(x):
            raise PipelineError(f"x is {x!r:.80}, without an array: pass a batch, (batch, ...).")
        # `microbatch_size` raises if the microbatches do not divide the batch.
        for leaf in jax.tree.leaves(x):
            self.schedule.microbatch_size(samples(leaf))
        self._check_stage(weights, x)

    def _check_stacked(self, weights: Tree) -> None:
        """Raise unless the weights have the shape that `stack` gives: (stages, layers, ...)."""
        schedule = self.schedule
        for leaf in jax.tree.leaves(weights):
            if jnp.ndim(leaf) < 2 or leaf.shape[0] != schedule.stages:
                raise PipelineError(
                    f"the weights have a leaf of shape {jnp.shape(leaf)}, a pipeline of "
                    f"{schedule.stages} stages takes ({schedule.stages}, layers per stage, ...): "
                    "pass pipe.stack(weights of all layers)."
                )
            # This call raises if the rounds do not divide the layers of a stage.
            schedule.layers_per_round(leaf.shape[1] * schedule.stages)
        _check_layers(weights, dims=2)

    def _check_stage(self, weights: Tree, x: Tree) -> None:
        """Raise unless a layer returns a microbatch with the shapes and types of its input."""

        def one(leaf: Array) -> Array:
            return leaf[: leaf.shape[0] // self.schedule.microbatches]

        def layer(leaf: Array) -> Array:
            return leaf[0, 0]

        # JAX makes 32-bit arrays of numpy's 64-bit ones: types are compared after this change.
        taken = jax.eval_shape(lambda x: jax.tree.map(one, x), x)
        # Shapes alone decide, so that no layer runs here.
        first = jax.eval_shape(lambda weights: jax.tree.map(layer, weights), weights)
        result = jax.eval_shape(self.stage_fn, first, taken)
        if _types(result) != _types(taken):
            raise PipelineError(
                f"a stage takes {_types(taken)} and makes {_types(result)}: what one stage makes "
                "is what the next one takes, so shapes and types must be the same. Cast inside the "
                "stage, or move what changes them before or after the pipeline."
            )


def _check_layers(weights: Tree, *, dims: int) -> None:
    """Raise unless all arrays have equal numbers of layers: the product of `dims` leading sizes.

    `dims` is 1 for weights in the order of the layers, and 2 for stacked ones, (stages, layers,
    ...).
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(weights)
    shapes = {f"weights{jax.tree_util.keystr(path)}": jnp.shape(leaf) for path, leaf in leaves}
    # An array with too few dimensions has no dimension of layers.
    if not shapes or min(map(len, shapes.values())) < dims:
        what = next((f"{n} is a number" for n, s in shapes.items() if len(s) < dims), "none is one")
        raise PipelineError(
            f"weights are arrays of all layers, (layers, ...), and {what}: give every array one "
            "entry per layer, such as jnp.stack makes of a list."
        )
    counts = {name: math.prod(shape[:dims]) for name, shape in shapes.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise PipelineError(
            f"the weights are of different numbers of layers: {found:.200}. Give every array one "
            "entry per layer; what all layers share, stage_fn may close over."
        )


def _on_words(pipe: Pipeline, weights: Tree, x: Tree) -> Tree:
    """Return `pipe(weights, x)` for a batch with random keys.

    Inside the pipeline the keys are arrays of integers (their words), which can be padded with
    zeros; each stage makes keys of them again.
    """
    leaves: list[Any] = jax.tree.leaves(x)
    tree: Any = jax.tree.structure(x)
    key_kinds = [jax.random.key_impl(leaf) if is_key(leaf) else None for leaf in leaves]

    def each(x: Tree, turned: Callable[[Array, Any], Array]) -> Tree:
        """Return `x` with its leaves of keys (or of their words) changed by `turned`."""
        pairs = zip(jax.tree.leaves(x), key_kinds, strict=True)
        return tree.unflatten(
            [leaf if kind is None else turned(leaf, kind) for leaf, kind in pairs]
        )

    def words(x: Tree) -> Tree:
        return each(x, lambda leaf, _: jax.random.key_data(leaf))

    def keys(x: Tree) -> Tree:
        return each(x, lambda leaf, kind: jax.random.wrap_key_data(leaf, impl=kind))

    def stage(weights: Tree, x: Tree) -> Tree:
        return words(pipe.stage_fn(weights, keys(x)))

    return keys(replace(pipe, stage_fn=stage)(weights, words(x)))


def samples(leaf: Any) -> int:
    """Return the number of samples of a batch's leaf.

    Raises:
      PipelineError: the leaf is no array, or has no dimension.
    """
    if not hasattr(leaf, "dtype") or not jnp.ndim(leaf):
        raise PipelineError(
            f"a batch has a leaf {leaf!r:.80}, which is no array of samples: pass arrays, "
            "(batch, ...)."
        )
    return int(leaf.shape[0])


def whole(number: Any) -> Any:
    """Convert an integer of numpy to one of Python; other values are returned unchanged."""
    try:
        return number if isinstance(number, bool) else operator.index(number)
    except TypeError:
        return number


def _again(run: Callable[..., Tree], recomputed: bool) -> Callable[..., Tree]:
    return jax.checkpoint(run) if recomputed else run


def _types(tree: Tree) -> str:
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)
    return str(shapes)


def _in_order(leaf: Array) -> Array:
    """Return (batch, ...) from (microbatches, samples of each, ...): `_input_slots` reversed."""
    # Sample i is entry i // M of microbatch i % M, so entries are the major dimension again.
    strided = leaf.swapaxes(0, 1)
    return strided.reshape(strided.shape[0] * strided.shape[1], *strided.shape[2:])


def pipeline(
    stage_fn: StageFn,
    *,
    stages: int,
    microbatches: int,
    rounds: int = 1,
    axis: str | None = "L",
    remat: str = "none",
    stream_io: bool = False,
) -> Pipeline:
    """Return a pipeline of equal layers: a function in plain JAX, planned like any other.

    The code before and after the pipeline (embedding, subsampling, softmax) is ordinary code around
    the call. It may use the axis of the stages for data parallelism, for example.

    Args:
      stage_fn: one layer, `(weights, x) -> x`, of a microbatch; `x` is an array or a pytree.
      stages: partitions of the layers; `rounds` above 1 is the circular schedule, in which the
        layers go round the stages that often, for fewer bubbles: `(stages - 1) / (rounds *
        microbatches + stages - 1)` of the iterations.
      microbatches: parts of the batch that follow one another through the stages.
      axis: the mesh axis that partitions the stages; None leaves it to completion.
      remat: the part that the backward pass computes again: "none", each "layer" from its input, or
        the whole "stage" from its input.
      stream_io: True if each stage holds M / L of the microbatches before and after the pipeline,
        instead of slots for all M. This costs one more permute of a microbatch per iteration.

    Raises:
      PipelineError: numbers below 1, fewer microbatches than stages in more than one round, no
        function, an unknown `remat`, or stages that do not divide streamed microbatches.

    >>> from jax.sharding import PartitionSpec as P
    >>> import shardalg as sa
    >>> def layer(w, x):
    ...     return x + jnp.tanh(x @ w)
    >>> pipe = sa.pipeline(layer, stages=2, microbatches=4)
    >>> w, x = jnp.ones((6, 8, 8)), jnp.ones((16, 8))
    >>> w = pipe.stack(w)
    >>> w.shape
    (2, 3, 8, 8)
    >>> mesh = sa.Mesh({"L": 2, "X": 2})
    >>> plan = sa.plan(pipe, w, x, mesh=mesh, in_shardings=(P("L"), P("X")))
    >>> table = plan.collectives()
    >>> table[table["executions"] > 1][["kind", "mesh_axes", "executions"]].values.tolist()
    [['collective_permute', 'L', 5]]

    Source: GSPMD (arXiv:2105.04663) section 3.3.
    """
    schedule = Schedule(whole(stages), whole(microbatches), whole(rounds))
    return Pipeline(stage_fn, schedule, axis, remat, stream_io)
