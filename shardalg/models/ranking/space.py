"""The candidates: meshes, strategies, batches and further choices for so many devices."""

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
# The choices; each has a list of values.
CHOICES = ("strategy", "batch", "microbatches", "rounds", "remat", "optimizer", "order")
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
    """Return all lists of choices; defaults are the model's own values, all strategies, one round.

    Raises:
      StrategyError: an unknown choice or value, no list, an empty one.
    """
    for name, values in choices.items():
        if name not in CHOICES:
            raise StrategyError(f"choice {name!r}: write one of {', '.join(CHOICES)}.")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise StrategyError(f"choices of {name} are {values!r}: give a list of at least one.")
        for value in values:
            _check(name, value)
    start: dict[str, Sequence[Any]] = {
        "strategy": STRATEGIES,
        "batch": (model.batch,),
        "microbatches": (),
        "rounds": (1,),
        "remat": (model.remat,),
        "optimizer": (model.optimizer,),
        "order": ORDERS[:1],
    }
    return {name: tuple(dict.fromkeys(given)) for name, given in {**start, **choices}.items()}


def _check(name: str, value: Any) -> None:
    """Raise where a value is none that a choice has."""
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
    """Yield each combination of choices on each mesh of its strategy, or its text and an error.

    The pair of a text and an error stands for a model that cannot be built with these choices.
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
    """Return the model with these choices, one object for all meshes, or why there is none."""
    changed = {"batch": batch, "microbatches": microbatches, "remat": remat}
    try:
        return replace(model, **changed, optimizer=optimizer)
    except StrategyError as error:
        return str(error)


def grouped(found: Iterable[Candidate | Refused]) -> tuple[Candidate | Refused, ...]:
    """Yield candidates grouped by step, each program once, whatever the names of its axes."""
    steps: dict[object, dict[object, Candidate]] = {}
    numbers: dict[object, int] = {}  # of equal models, found by their hash once
    known: dict[int, tuple[DenseTransformer, int]] = {}  # the model is kept: its id stays its own
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
    """Return the numbers of microbatches to try: those requested, or the strategy's default."""
    if requested:
        return requested
    if strategy != PIPELINED:
        return (model.microbatches,)
    return tuple(mesh.shape["L"] * n for n in _PER_STAGE)


def meshes(strategy: str, devices: int, slices: int, layers: int) -> Iterator[Mesh]:
    """Meshes of so many devices that a strategy has a use for; axes of one device are left out.

    "fsdp" and "fsdp_tensor" repeat weights along slices. Stages divide the layers.

    >>> [dict(mesh.shape) for mesh in meshes("finalized", 4, 1, 2)]
    [{'Y': 4}, {'X': 2, 'Y': 2}, {'X': 4}]
    >>> [dict(mesh.shape) for mesh in meshes("pipelined", 4, 1, 2)]
    [{'L': 2, 'Y': 2}, {'L': 2, 'X': 2}]
    """
    if strategy == PIPELINED:
        for stages in _divisors(devices):
            # A single stage is the plain model, which "finalized" covers.
            if stages > 1 and layers % stages == 0:
                for x in _divisors(devices // stages):
                    yield _mesh({"L": stages, "X": x, "Y": devices // stages // x})
    elif strategy == "finalized":
        yield from (_mesh({"X": x, "Y": devices // x}) for x in _divisors(devices))
    elif strategy in ("fsdp", "fsdp_tensor"):
        within = devices // slices
        for tensor in _divisors(within) if strategy == "fsdp_tensor" else (1,):
            # "fsdp_tensor" with one tensor device would be "fsdp".
            if tensor > 1 or strategy == "fsdp":
                yield _mesh({SLICE: slices, "fsdp": within // tensor, "tensor": tensor})
    else:
        raise StrategyError(f"strategy {strategy!r} is laid on no meshes: write here on which.")


def ordered(laid: Iterable[Mesh]) -> Iterator[Mesh]:
    """Yield each mesh with its axes in every order; the order decides which axis has neighbours.

    Slices stay outermost: an axis within one does not reach across them.

    >>> [dict(mesh.shape) for mesh in ordered([Mesh({"L": 2, "Y": 4})])]
    [{'L': 2, 'Y': 4}, {'Y': 4, 'L': 2}]
    """
    for mesh in laid:
        outer = [axis for axis in mesh.axes if axis[0] == SLICE]
        for inner in permutations([axis for axis in mesh.axes if axis[0] != SLICE]):
            yield Mesh(dict([*outer, *inner]))


def _mesh(sizes: Mapping[str, int]) -> Mesh:
    used = {name: size for name, size in sizes.items() if size > 1}
    return Mesh(used or {next(n for n in sizes if n != SLICE): 1})


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
