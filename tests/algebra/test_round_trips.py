"""Every sharding of small meshes through every notation, with XLA and Shardy as judges."""

import itertools
import math
from dataclasses import replace

import pytest
from jax._src.lib import xla_client

from shardalg.algebra.derived_layouts import mesh_split
from shardalg.algebra.digits import Digit
from shardalg.algebra.layout import spelled
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError

from .judges import agrees_with_xla, shardy_prints, xla_reads

SIZES = [
    (2,),
    (3,),
    (4,),
    (5,),
    (6,),
    (7,),
    (8,),
    (2, 2),
    (2, 3),
    (3, 2),
    (2, 4),
    (4, 2),
    (2, 2, 2),
]
SIZES += [(1, 4), (2, 1)]
PLACES = ("dim 0", "dim 1", "unreduced", "replicated", "manual", "nowhere")


def atoms(mesh):
    """Return the prime sub-axes of a mesh, major first."""
    below, found = mesh.size, []
    for _, size in mesh.axes:
        for p in (2, 2, 2, 3, 5, 7):
            if size % p == 0 and size > 1:
                below //= p
                size //= p
                found.append(Digit(below, p))
    return found


def placings(digits):
    """Yield every assignment of digits to dimensions, in every order within a dimension."""
    for places in itertools.product(PLACES, repeat=len(digits)):
        held = {
            place: [d for d, at in zip(digits, places, strict=True) if at == place]
            for place in PLACES
        }
        for first in itertools.permutations(held["dim 0"]):
            for second in itertools.permutations(held["dim 1"]):
                yield {**held, "dim 0": first, "dim 1": second}


def shardings(mesh, rank):
    """All of them over prime sub-axes; open dimensions and priorities vary along."""
    opened = itertools.cycle(
        itertools.chain.from_iterable(
            itertools.combinations(range(rank), n) for n in range(rank + 1)
        )
    )
    rounds = itertools.cycle([(0, 0), (0, 3), (1, 0)])
    for held in placings(atoms(mesh)):
        if rank < 2 and held["dim 1"]:
            continue
        dims = tuple(spelled(tuple(held[f"dim {i}"]), mesh) for i in range(rank))
        classes = {
            kind: spelled(tuple(held[kind]), mesh) for kind in ("unreduced", "replicated", "manual")
        }
        free = next(opened)
        wanted = next(rounds)[:rank]
        priorities = tuple(n if dims[i] or i in free else 0 for i, n in enumerate(wanted))
        yield Sharding(mesh, (8,) * rank, dims, free, **classes, priorities=priorities)


def meshes():
    for sizes in SIZES:
        axes = dict(zip("abc", sizes, strict=False))
        count = math.prod(sizes)
        yield Mesh(axes)
        yield Mesh(axes, [(5 * i + 1) % count for i in range(count)] if count % 5 else None)


CASES = [s for mesh in dict.fromkeys(meshes()) for rank in (1, 2) for s in shardings(mesh, rank)]


@pytest.fixture(params=[4, pytest.param(1, marks=pytest.mark.slow)], ids=["sample", "all"])
def cases(request):
    return CASES[:: request.param]


def without(sharding, *, replicated=False):
    """Return the sharding's text without these words."""
    held = {"unreduced": sharding.unreduced, "manual": sharding.manual}
    if replicated:
        held["replicated"] = sharding.replicated
    opened = sharding.unspecified_dims if replicated else ()
    return Sharding(sharding.mesh, sharding.shape, sharding.dims, opened, **held)


def test_our_own_text(cases):
    for made in cases:
        assert Sharding.parse(made.text(), made.shape, made.mesh) == made


@pytest.mark.sampled(1)
@pytest.mark.parametrize("version", [1, 2])
def test_hlo(cases, version):
    for number, made in enumerate(cases):
        text = made.to_hlo(version)
        assert Sharding.from_hlo(text, made.shape, made.mesh).key == without(made).key
        if "devices" in text and number % 5 == 0:
            alone = Sharding.from_hlo(text, made.shape)
            again = Sharding.from_hlo(alone.to_hlo(version), made.shape)
            assert alone == again


def test_hlo_named(cases):
    for made in cases:
        text = made.to_hlo(3)
        assert Sharding.parse(text, made.shape) == without(made, replicated=True)
        assert Sharding.from_hlo(text, made.shape, made.mesh) == without(made, replicated=True)


def test_shardy(cases):
    for made in cases:
        if made.manual:
            with pytest.raises(ShardingError, match="manual axes, which Shardy's sharding"):
                made.to_sdy()
            continue
        assert Sharding.parse(made.to_sdy(), made.shape, made.mesh) == made
        assert Sharding.parse(made.to_sdy(None), made.shape) == made


def test_mappings_of_mesh_split(cases):
    count = 0
    for made in cases:
        plain = replace(made, unreduced=(), replicated=(), manual=(), priorities=())
        try:
            mapping = made.dims_mapping
        except ShardingError:
            whole = set(made.mesh.digits(made.mesh.axis_names))
            assert any(d not in whole for digits in made.dims for d in digits)
            continue
        assert mesh_split(made.shape, made.mesh, mapping, made.unspecified_dims) == plain
        closed = replace(plain, unspecified_dims=())
        assert Sharding.parse(str(list(mapping)), made.shape, made.mesh) == closed
        count += 1
    assert count > len(cases) // 2


def test_specs(cases):
    """A spec has no word for sub-axes, manual axes, priorities, and open dimensions with axes."""
    count = 0
    for made in cases:
        whole = set(made.mesh.digits(made.mesh.axis_names))
        held = [d for digits in (*made.dims, made.unreduced, made.replicated) for d in digits]
        both = any(made.dims[i] for i in made.unspecified_dims)
        if set(held) <= whole and not (made.manual or made.priorities or both):
            spec = made.to_spec()
            assert Sharding.from_spec(spec, made.mesh, made.shape) == made
            assert Sharding.parse(repr(spec), made.shape, made.mesh) == made
            count += 1
    assert count > len(cases) // 10


def test_xla_reads_our_text_as_we_do(cases, show):
    """All three versions, every device of every tile, and the same text of version 2."""
    texts = {
        text: made for made in cases for text in (made.to_hlo(1), made.to_hlo(2), made.to_hlo(3))
    }
    answers = xla_reads(list(texts))
    for (text, made), answer in zip(texts.items(), answers, strict=True):
        assert answer is not None, text
        assert agrees_with_xla(without(made), answer), text
    show(f"{len(cases)} shardings, {len(texts)} HLO texts read by XLA as by us")


def test_xla_prints_our_text(cases):
    for made in cases:
        for text in (made.to_hlo(1), made.to_hlo(2)):
            assert str(xla_client.HloSharding.from_string(text)) == text


def test_shardy_prints_our_text(cases):
    for made in cases[::7]:
        if not made.manual:
            text = made.to_sdy()
            assert shardy_prints(text, made.mesh, len(made.shape)) == text
