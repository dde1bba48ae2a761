"""Which module each node belongs to, those that stand in none by what they read. No jax here."""

from __future__ import annotations

import re

from shardalg.graph.ir import Graph
from shardalg.graph.once import once_per_graph


@once_per_graph
def modules(graph: Graph) -> tuple[str, ...]:
    """Per node its module; of one outside of all, that of what it reads: an optimizer's, a loss'.

    First counts a result of a module, then an argument, whose path says its module.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> def loss(x):
    ...     with jax.named_scope("mlp"):
    ...         x = jax.numpy.sin(x)
    ...     return x.sum()
    >>> graph = trace(loss, jax.ShapeDtypeStruct((4,), "float32"))
    >>> [(node.primitive, module) for node, module in zip(graph.nodes, modules(graph))]
    [('sin', 'mlp'), ('reduce_sum', 'mlp')]
    """
    known = _by_ending({node.module for node in graph.nodes if node.module})
    paths = zip(graph.arguments, graph.argument_paths, strict=True)
    found = {value: _known(_owner(path), known) for value, path in paths}
    made: dict[int, str] = {}
    per_node = [""] * len(graph.nodes)
    outer = {tie.target: tie.source for tie in graph.region_arguments if tie.kind != "carry"}
    for node in graph.walk():
        operands = [_entered(value, outer, made, found) for value in node.operands]
        inside = [made[v] for v in operands if v in made]
        bodies = [per_node[n] for b in node.bodies for n in graph.regions[b].nodes if per_node[n]]
        module = node.module or _first(inside) or _first(bodies)
        module = module or _first([found.get(v, "") for v in operands])
        per_node[node.index] = module
        made |= dict.fromkeys(node.results, module)
    return tuple(per_node)


def _by_ending(known: set[str]) -> dict[str, str]:
    """The shortest module that ends so, for every ending of one."""
    found: dict[str, str] = {}
    for module in sorted(known, key=lambda m: (m.count("/"), m)):
        words = module.split("/")
        for start in range(len(words)):
            found.setdefault("/".join(words[start:]), module)
    return found


def _known(owner: str, known: dict[str, str]) -> str:
    """The module whose name ends as the owner's does, as far as possible; else the owner.

    >>> _known("state/mu/layers_0/up", _by_ending({"net/layers_0/up", "net/layers_1/up"}))
    'net/layers_0/up'
    """
    words = owner.split("/")
    endings = ("/".join(words[start:]) for start in range(len(words)))
    return next((known[ending] for ending in endings if ending in known), owner)


def _entered(value: int, outer: dict[int, int], made: dict[int, str], found: dict[int, str]) -> int:
    """A value as it stood outside of the bodies that it has entered."""
    while value not in made and value not in found and value in outer:
        value = outer[value]
    return value


def _first(modules: list[str]) -> str:
    return next((module for module in modules if module), "")


def _owner(path: str) -> str:
    """The module that a path of an argument says: all but its last step, wrappers left out.

    >>> [_owner(path) for path in ("params['layers'][3]['up']", "model.layers[3].mlp.up.kernel")]
    ['layers_3', 'model/layers_3/mlp/up']
    >>> _owner("x"), _owner("state.params['mlp']['up']['kernel']")
    ('', 'mlp/up')
    """
    steps = [a or b for a, b in re.findall(r"(\d+)(?=\])|([A-Za-z_][\w~/ -]*)", path)]
    words: list[str] = []
    for step in steps[:-1]:
        if step.isdigit() and words:
            words[-1] += f"_{step}"
        else:
            words.append(step)
    while words and words[0] in _WRAPPERS:
        del words[0]
    return "/".join(part for word in words for part in word.split("/") if part not in ("~", ""))


_WRAPPERS = frozenset({"state", "params", "variables", "weights"})
