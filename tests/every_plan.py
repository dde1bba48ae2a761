"""Every plan that explanations are asked of: the models under their strategies, and the oracle's.

Each is a name and a function that plans it, so that a test plans what it looks at.
"""

from functools import partial

import jax

import shardalg as sa
from shardalg.lab import complaints, foreign, weight_update
from shardalg.lab import table1_strategies as table1
from shardalg.models import training
from shardalg.models.transformer import Config
from tests.oracle import corpus

MESH = sa.Mesh({"X": 2, "Y": 4})
SIZES = {"B": 4, "S": 4, "M": 16, "H": 16, "N": 4, "D": 2, "V": 16, "dtype": "float32"}
STEPS = {
    "unrolled": Config(**SIZES),
    "scanned": Config(**SIZES, scan=True),
    "remat": Config(**SIZES, scan=True, remat=True),
}
POLICIES = ("paper", "shardy", "cost")


def part_of_transformer(strategy, part, config, policy):
    chosen = training.part(part)
    return sa.plan(
        chosen.function(config),
        *chosen.arguments(config),
        strategy=table1.STRATEGIES[strategy](MESH, config, part),
        roles=chosen.roles(),
        donate_argnums=chosen.donate_argnums(),
        options=sa.Options(policy=policy),
    )


def updated(level, optimizer, policy):
    config = Config(B=8, S=4, M=16, H=32, N=4, D=4, V=16, L=1, dtype="float32")
    return sa.plan(
        weight_update.function(config, optimizer),
        *weight_update.arguments(config, optimizer),
        strategy=weight_update.strategy(level, sa.Mesh({"X": 4}), config, optimizer),
        roles=weight_update.ROLES,
        donate_argnums=weight_update.DONATED,
        options=sa.Options(policy=policy),
    )


def complained(name, policy, *, remedied=False):
    one = complaints.COMPLAINTS[name]
    one = one.remedied if remedied else one
    options = sa.Options(policy=policy)
    return sa.plan(one.function, *one.arguments, strategy=one.strategy, options=options)


def foreign_step(policy):
    made = foreign.build()
    return sa.plan(
        made.step,
        *made.arguments,
        mesh=MESH,
        in_shardings=made.in_shardings,
        out_shardings=made.out_shardings,
        roles=foreign.ROLES,
        donate_argnums=foreign.DONATED,
        options=sa.Options(policy=policy),
    )


def of_oracle(name, policy):
    case = corpus.program(name)
    function, arguments, wanted = case.make(**case.SMALL)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments.values()]
    return sa.plan(
        function,
        *types,
        mesh=sa.Mesh(case.MESH),
        in_shardings=tuple(spec for _, _, spec in arguments.values()),
        out_shardings=wanted,
        options=sa.Options(policy=policy),
    )


def models(policy="paper"):
    """Name to plan, of every model and strategy."""
    found = {}
    for strategy in table1.STRATEGIES:
        for part in training.PARTS:
            for form, config in STEPS.items():
                if form == "unrolled" or part == "train_step":
                    one = partial(part_of_transformer, strategy, part, config, policy)
                    found[f"{strategy}, {part}, {form}"] = one
    for optimizer in weight_update.OPTIMIZERS:
        for level in weight_update.LEVELS:
            found[f"{optimizer}, level {level}"] = partial(updated, level, optimizer, policy)
    for name, one in complaints.COMPLAINTS.items():
        found[name] = partial(complained, name, policy)
        if one.has_remedy:
            found[f"{name}, remedied"] = partial(complained, name, policy, remedied=True)
    found["foreign step"] = partial(foreign_step, policy)
    return found


def oracle(policy="paper"):
    """Name to plan, of every recorded program."""
    return {name: partial(of_oracle, name, policy) for name in corpus.names()}
