"""Compare the lower bound of `plan.beside_jit()` with the bytes that XLA sends.

    python -m tests.xla.least 200 0     # random programs and their first seed, XLA asked live
    python -m tests.xla.least recorded  # the programs of tests/oracle, from their recorded answers

It ends with status 1 if XLA sends less than the bound for any program.
"""

import statistics
import sys

import jax

import shardalg as sa
from shardalg.graph.tracing.parts import installed_partitioner
from tests.oracle import beside_xla, corpus, farther, siblings


def recorded(names=None):
    """Yield (name, bound, bytes that XLA sends) of recorded programs, by default of all."""
    compiler = f"cpu_{installed_partitioner()}"
    for name in names or (*corpus.names(), *corpus.gradients()):
        module = corpus.program(name)
        function, arguments, results = module.make(**module.SMALL)
        types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments.values()]
        specs = tuple(spec for _, _, spec in arguments.values())
        plan = planned(module.MESH, function, types, specs, results)
        yield name, least(plan), float(corpus.wire_bytes(name, compiler))


def drawn(count, seed, templates=siblings.TEMPLATES | farther.TEMPLATES):
    """Yield the same for random programs, which XLA's partitioner compiles now."""
    for number, program in enumerate(siblings.programs(count, seed, templates)):
        told = beside_xla.ask(program, installed_partitioner())
        if number % beside_xla.KEPT == beside_xla.KEPT - 1:
            jax.clear_caches()  # the operating system limits the number of memory maps
        if told is not None:
            plan = planned(program.mesh, program.function, program.types, program.specs, None)
            yield program.name, least(plan), float(told.wire_bytes)


def planned(sizes, function, types, specs, results):
    """Return a plan with the user's annotations; open dimensions stay open here."""
    mesh = sa.Mesh(sizes)
    with jax.set_mesh(mesh.to_jax(jax.devices()[: mesh.size])):
        return sa.plan(function, *types, mesh=mesh, in_shardings=specs, out_shardings=results)


def least(plan):
    """Return the bound of a plan."""
    return float(plan.beside_jit()["wire_bytes"].iloc[1])


def violations(rows):
    """Programs of which XLA sends less than the bound."""
    return [row for row in rows if row[1] > row[2] * (1 + 1e-9)]


def summary(rows):
    """Return the tightness in words."""
    ratios = [bound / sent for _, bound, sent in rows if sent]
    below = sum(ratio < 0.5 for ratio in ratios)
    nothing = sum(not sent for _, _, sent in rows)
    return (
        f"{len(rows)} programs, {len(violations(rows))} of which XLA sends less; the bound is "
        f"{statistics.median(ratios):.3f} of XLA's bytes (median), below half for {below}; "
        f"{nothing} send nothing"
    )


def main(*arguments):
    """Print the bounds that are loose or broken, and the summary."""
    rows = list(recorded() if arguments == ("recorded",) else drawn(*map(int, arguments)))
    broken = violations(rows)
    for name, bound, sent in rows:
        if (name, bound, sent) in broken or bound < sent / 2:
            ratio = bound / sent if sent else float("inf")
            print(f"{name}: at least {bound:g}, XLA sends {sent:g} ({ratio:.3f})")
    print(summary(rows))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
