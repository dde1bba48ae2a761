"""Our completion of a recorded program beside XLA's."""

import jax
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.trace import trace
from shardalg.ops.normalise import normalise
from shardalg.propagate import Options, Strategy, propagate, resolve
from tests.propagate.align import align, text
from tests.propagate.small import axes


def complete(case, given=None, wanted=None, policy="gspmd"):
    """The program `case` with its own annotations, or with argument specs `given`."""
    function, arguments, own = case.make(**case.SMALL)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments.values()]
    graph = normalise(trace(function, *types, mesh_shape=case.MESH))
    if given is None:
        given, wanted = tuple(spec for _, _, spec in arguments.values()), own
    return propagate(graph, resolve(graph, Strategy(Mesh(case.MESH), given, wanted)), Options(policy=policy))


def compare(done, rows, ends):
    """(name, our axes, XLA's) of every value that no annotation fixes and that the HLO shows."""
    return [*_inside(done, rows), *_results(done, ends)]


def _inside(done, rows):
    graph, given = done.graph, done.annotations
    pairs = zip(graph.sites, given.sites, strict=True)
    demanded = {site.node: text(axes(s)) for site, s in pairs if s and not s.unspecified_dims}
    found = [(value, spec) for value, _, spec in align(graph, rows, demanded)]
    entry = rows[-1]["computation"]
    numbers = {
        int(row["attributes"]["number"]): row["spec"]
        for row in rows
        if row["op"] == "parameter" and row["computation"] == entry
    }
    for number, value in enumerate(graph.arguments):
        if numbers.get(number) is not None:
            found.append((value, tuple(map(tuple, numbers[number]))))
    for value, spec in found:
        fixed = value in done.fixed and not done.shardings[value].unspecified_dims
        if graph.values[value].type.shape and not fixed:
            yield graph.values[value].name, axes(done.shardings[value]), spec


def _results(done, ends):
    for written, annotated, ours in zip(ends, done.annotations.results, done.results, strict=False):
        if annotated is None:
            spec = eval(written, {"P": PartitionSpec, "PartitionSpec": PartitionSpec})
            yield "result", axes(ours), axes(Sharding.from_spec(spec, done.mesh, ours.shape))
