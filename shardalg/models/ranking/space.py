"""The candidates for a number of devices: meshes, strategies, batches and further choices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import permutations, product
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.models.dense import DenseTransformer
from shardalg.models.dense_strategies import LAYOUTS, SLICE
from shardalg.models.ranking.candidate import PIPELINED, Candidate
from shardalg.models.training import OPTIMIZERS
from shardalg.models.transformer import REMAT

STRATEGIES = (*LAYOUTS, PIPELINED)
CHOICES = ("strategy", "batch", "microbatches", "rounds", "remat", "optimizer", "order")
"""The names of the choices; a user may give a list of values for each."""
ORDERS = ("given", "all")
_KNOWN: Mapping[str, tuple[Any, ...]] = {
    "strategy": STRATEGIES,
    "order": ORDERS,
    "remat": (False, *REMAT),
    "optimizer": tuple(OPTIMIZERS),
}
"""Values of the choices that have names; all others are numbers."""
_PER_STAGE = (1, 2, 4)
"""The default numbers of microbatches of a pipeline, per stage."""


def chosen(
    model: DenseTransformer, choices: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[Any, ...]]:
    """Return the values to try for each name in `CHOICES`.

    A name that `choices` lacks has the model's own value, all strategies, or one round.

    Raises:
      StrategyError: an unknown choice or value, or values that are no list or an empty list.
    """
    for name, values in choices.items():
        if name not in CHOICES:
            raise StrategyError(f"choice {name!r}: write one of {', '.join(CHOICES)}.")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise StrategyError(f"choices of {name} are {values!r}: give a list of at least one.")
        for value in values:
            _check(name, value)
    # The microbatches of pipelines depend on their stages, so their default is chosen later.
    defaults: dict[str, Sequence[Any]] = {
        "strategy": STRATEGIES,
        "batch": (model.batch,),
        "microbatches": (),
        "rounds": (1,),
        "remat": (model.remat,),
        "optimizer": (model.optimizer,),
        "order": ORDERS[:1],
    }
    return {
        name: tuple(dict.fromkeys(values_to_try))
        for name, values_to_try in {**defaults, **choices}.items()
    }


def _check(name: str, value: Any) -> None:
    """Raise a `StrategyError` if the choice with this name cannot have this value."""
    known = _KNOWN.get(name)
    if known is None and (type(value) is not int or value < 1):
        raise StrategyError(f"{name} {value!r}: write whole numbers of at least 1.")
    if known is not None and value not in known:
        raise StrategyError(f"{name} {value!r}: write one of {', '.join(map(str, known))}.")


Refused = tuple[str, str]
"""A rejected candidate and the reason."""


def candidates(
    model: DenseTransformer, devices: int, slices: int, choices: Mapping[str, tuple[Any, ...]]
) -> Iterator[Candidate | Refused]:
    """Yield a candidate for each combination of choices on each mesh of the strategy.

    A combination with which no model can be built is yielded as a pair of its text and the error.
    """
    names = ("batch", "remat", "optimizer", "rounds")
    # Candidates of equal choices share one model object, which `grouped` then hashes once.
    model_with = lru_cache(maxsize=None)(partial(_model, model))
    for strategy in choices["strategy"]:
        laid = meshes(strategy, devices, slices, model.layers)
        for mesh in ordered(laid) if "all" in choices["order"] else laid:
            parts = _microbatches(model, mesh, strategy, choices["microbatches"])
            for values in product(parts, *(choices[name] for name in names)):
                microbatches, batch, remat, optimizer, rounds = values
                # Only a pipeline has rounds, so other strategies have one candidate for all.
                if rounds > 1 and strategy != PIPELINED:
                    continue
                found = model_with(batch, microbatches, remat, optimizer)
                if isinstance(found, str):
                    yield f"{strategy} {mesh!r} batch {batch}", found
                else:
                    yield Candidate(found, mesh, strategy, rounds)


def _model(
    model: DenseTransformer, batch: int, microbatches: int, remat: Any, optimizer: str
) -> DenseTransformer | str:
    """Return the model with these choices, or the text of the error if they are not valid."""
    changed = {"batch": batch, "microbatches": microbatches, "remat": remat}
    try:
        return replace(model, **changed, optimizer=optimizer)
    except StrategyError as error:
        return str(error)


def grouped(found: Iterable[Candidate | Refused]) -> tuple[Candidate | Refused, ...]:
    """Return all refused candidates, then all others, with equal train steps next to each other.

    Of candidates whose programs differ only in axis names, only the first one is returned.
    """
    steps: dict[object, dict[object, Candidate]] = {}
    numbers: dict[object, int] = {}
    # Each model object is hashed once and then found by its id. The entry keeps the object alive,
    # because Python may give the id of a deleted object to a new one.
    known: dict[int, tuple[DenseTransformer, int]] = {}
    refused = []
    for one in found:
        if isinstance(one, Candidate):
            model, *schedule = one.step
            if id(model) not in known:
                known[id(model)] = model, numbers.setdefault(model, len(numbers))
            _, number = known[id(model)]
            steps.setdefault((number, *schedule), {}).setdefault(one.structure, one)
        else:
            refused.append(one)
    return (*refused, *(one for group in steps.values() for one in group.values()))


def _microbatches(
    model: DenseTransformer, mesh: Mesh, strategy: str, requested: Sequence[int]
) -> Sequence[int]:
    """Return the numbers of microbatches to try: `requested`, or if empty the default numbers."""
    if requested:
        return requested
    if strategy != PIPELINED:
        return (model.microbatches,)
    return tuple(mesh.shape["L"] * n for n in _PER_STAGE)


def meshes(strategy: str, devices: int, slices: int, layers: int) -> Iterator[Mesh]:
    """Yield the meshes of `devices` devices for a strategy; axes of size 1 are left out.

    "fsdp" and "fsdp_tensor" replicate weights along slices. Pipeline stages divide the layers.

    >>> [dict(mesh.shape) for mesh in meshes("finalized", 4, 1, 2)]
    [{'Y': 4}, {'X': 2, 'Y': 2}, {'X': 4}]
    >>> [dict(mesh.shape) for mesh in meshes("pipelined", 4, 1, 2)]
    [{'L': 2, 'Y': 2}, {'L': 2, 'X': 2}]
    """
    if strategy == PIPELINED:
        for stages in _divisors(devices):
            # A pipeline of one stage is the plain model, which "finalized" has already.
            if stages > 1 and layers % stages == 0:
                for x in _divisors(devices // stages):
                    yield _mesh({"L": stages, "X": x, "Y": devices // stages // x})
    elif strategy == "finalized":
        yield from (_mesh({"X": x, "Y": devices // x}) for x in _divisors(devices))
    elif strategy in ("fsdp", "fsdp_tensor"):
        within = devices // slices
        # Slices are one axis, and the devices of a slice are divided between the two others.
        for tensor in _divisors(within) if strategy == "fsdp_tensor" else (1,):
            # Without a tensor axis both strategies are one, so only "fsdp" yields this mesh.
            if tensor > 1 or strategy == "fsdp":
                yield _mesh({SLICE: slices, "fsdp": within // tensor, "tensor": tensor})
    else:
        raise StrategyError(f"strategy {strategy!r} is laid on no meshes: write here on which.")


def ordered(laid: Iterable[Mesh]) -> Iterator[Mesh]:
    """Yield each mesh with its axes in every order, which decides which axes connect neighbours.

    The axis of the slices stays first, so that no other axis crosses the network between slices.

    >>> [dict(mesh.shape) for mesh in ordered([Mesh({"L": 2, "Y": 4})])]
    [{'L': 2, 'Y': 4}, {'Y': 4, 'L': 2}]
    """
    for mesh in laid:
        outer = [axis for axis in mesh.axes if axis[0] == SLICE]
        for inner in permutations([axis for axis in mesh.axes if axis[0] != SLICE]):
            yield Mesh(dict([*outer, *inner]))


def _mesh(sizes: Mapping[str, int]) -> Mesh:
    """Return the mesh without axes of size 1, or with one axis of size 1 if no other is left."""
    used = {name: size for name, size in sizes.items() if size > 1}
    return Mesh(used or {next(n for n in sizes if n != SLICE): 1})


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
