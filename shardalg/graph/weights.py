"""Recognition of the arguments that are weights, and the modules of arguments.

A graph does not say which arguments are weights. A weight is an argument whose gradient or update
is a result. In a function without a backward pass, the largest tree of floating-point arrays has
the weights. The module of a weight follows from the words of its path.

This module also computes direct and transitive dependencies between the values of a graph.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shardalg.graph.ir import Graph, ValueType, once_per_graph


def dependencies(graph: Graph, *, carried: bool = True) -> list[list[int]]:
    """Return, per value, the indices of the values that are computed directly from it.

    An operand of a loop or branch leads to the argument of the body, and a result of the body leads
    to the result of the loop or branch.

    Args:
      carried: whether a carry's result in one iteration leads to its argument in the next one.
    """
    edges: list[list[int]] = [[] for _ in graph.values]
    for node in graph.nodes:
        if node.primitive == "optimization_barrier":  # each result is its own operand
            for value, result in zip(node.operands, node.results, strict=True):
                edges[value].append(result)
            continue
        # The values of a call are connected through its bodies, by the region arguments below.
        for value in node.operands if not node.bodies else ():
            edges[value].extend(node.results)
    for tie in graph.region_arguments:
        if carried or tie.kind != "carry":
            edges[tie.source].append(tie.target)
    return edges


def reachable(edges: list[list[int]], start: Iterable[int]) -> bytearray:
    """Return, per value, 1 if it is in `start` or computed from a value of `start`, else 0.

    Args:
      edges: per value, the values that are computed directly from it.
      start: value indices.

    >>> list(reachable([[1], [2], [], [2]], [1]))
    [0, 1, 1, 0]
    """
    is_reached = bytearray(len(edges))
    stack = list(start)
    for value in stack:
        is_reached[value] = 1
    while stack:
        for target in edges[stack.pop()]:
            if not is_reached[target]:
                is_reached[target] = 1
                stack.append(target)
    return is_reached


# Names of trees that are left out of a module's path, because they do not name a part of the model.
WRAPPERS = frozenset({"state", "params", "variables", "weights"})

_STEP = re.compile(r"\.([^.\[]+)|\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]|\[([^\]]*)\]")


@lru_cache(maxsize=1 << 16)
def words(path: str) -> tuple[str, tuple[str, ...]]:
    """Return the argument's name and the keys, attributes and indices that follow in a path.

    Args:
      path: the path of a leaf of the arguments, as JAX prints it.

    >>> words("params['layers'][3]['up']"), words("model.mlp.kernel"), words("x")
    (('params', ('layers', '3', 'up')), ('model', ('mlp', 'kernel')), ('x', ()))
    >>> words("p['net/~/linear']['w']")
    ('p', ('net', 'linear', 'w'))
    """
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    steps = (_step(*match) for match in _STEP.findall(path[len(root) :]))
    parts = (part for step in steps for part in step.split("/"))
    return root, tuple(part for part in parts if part not in ("", "~"))


def _step(attribute: str, quoted: str, other: str) -> str:
    """Return the word of one step of a path, from the groups of `_STEP`, of which one is not empty.

    Args:
      attribute: the name in `.name`.
      quoted: the quoted key in `['key']`.
      other: the text in any other brackets, such as the index in `[3]`.
    """
    if quoted:
        return str(ast.literal_eval(quoted))
    flat = re.fullmatch(r"<flat index (\d+)>", other)
    return attribute or (flat[1] if flat else other)


def unwrapped(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a path without leading names of trees, such as "params" (`WRAPPERS`).

    >>> unwrapped(("params", "mlp", "up"))
    ('mlp', 'up')
    """
    start = 0
    while start < len(steps) and steps[start] in WRAPPERS:
        start += 1
    return tuple(steps[start:])


def endings(steps: Sequence[str]) -> Iterable[str]:
    """Return every ending of a path of these words, the longest first.

    >>> list(endings(("net", "mlp", "up")))
    ['net/mlp/up', 'mlp/up', 'up']
    """
    return ("/".join(steps[start:]) for start in range(len(steps)))


def numbered(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a path with each list's name and position joined, as in Flax.

    >>> numbered(("layers", "3", "mlp"))
    ('layers_3', 'mlp')
    """
    joined: list[str] = []
    for step in steps:
        if step.isdigit() and joined:
            joined[-1] += f"_{step}"
        else:
            joined.append(step)
    return tuple(joined)


def by_ending(modules: Iterable[str]) -> dict[str, str]:
    """Return, for every ending of a module's path, the shortest path that has this ending.

    >>> by_ending(["net/layers_0/up"])["layers_0/up"]
    'net/layers_0/up'
    """
    path_of: dict[str, str] = {}
    # The shortest path first, because `setdefault` keeps the first module of an ending.
    for module in sorted(modules, key=lambda m: (m.count("/"), m)):
        for ending in endings(module.split("/")):
            path_of.setdefault(ending, module)
    return path_of


def common(modules: Iterable[str]) -> str:
    """Return the longest path that all of these modules begin with.

    >>> common(["layers/0/up", "layers/1/up"]), common(["head"]), common(["head", "embed"])
    ('layers', 'head', '')
    """
    module_steps = [module.split("/") for module in modules]
    shared_steps: list[str] = []
    for steps in zip(*module_steps, strict=False):
        if len(set(steps)) > 1:
            break
        shared_steps.append(steps[0])
    return "/".join(shared_steps)


@dataclass(frozen=True)
class ArgumentModules:
    """The modules that arguments and results of a graph belong to.

    Attributes:
      weights: the module of each argument that is a weight, by value index.
      others: the module of each other argument, or "".
      results: for each result that is a weight's gradient or next value, the weight's module.
      late: per value, 1 if it is computed in the backward pass or from a value of it, else 0.
      given: per value, 1 if it is or depends on an argument that is no weight, else 0.
    """

    weights: Mapping[int, str]
    others: Mapping[int, str]
    results: Mapping[int, str]
    late: bytearray
    given: bytearray


@dataclass(frozen=True)
class _Leaf:
    """A leaf of the function's arguments.

    Attributes:
      value: its value index.
      root: the name of the parameter, such as `params`.
      words: the keys, attributes and indices of its path below the parameter.
      type: its shape and dtype.
    """

    value: int
    root: str
    words: tuple[str, ...]
    type: ValueType

    @property
    def is_float(self) -> bool:
        """True if the argument has a floating-point or complex type, and so can have a gradient."""
        return self.type.dtype.startswith(("float", "bfloat", "complex"))


@once_per_graph
def argument_modules(graph: Graph) -> ArgumentModules:
    """Return the modules of all arguments, and of the results that are gradients of weights.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 4), (8, 4)))
    >>> loss = lambda p, batch: ((batch["x"] @ p["head"]) ** 2).sum()
    >>> found = argument_modules(trace(jax.grad(loss), {"head": w}, {"x": x}))
    >>> found.weights, found.others, set(found.results.values())
    ({0: 'head'}, {1: 'batch'}, {'head'})
    """
    leaves = [
        _Leaf(value, root, unwrapped(below), graph.values[value].type)
        for value, path in zip(graph.arguments, graph.argument_paths, strict=True)
        for root, below in (words(path),)
    ]
    # `is_late` marks the values that depend on the backward pass, such as updates.
    edges = dependencies(graph)
    backward = [v for node in graph.nodes if node.phase == "backward" for v in node.results]
    is_late = reachable(edges, backward)
    # An argument that only the update reads, such as an optimizer's state, is no weight.
    read_leaves = [leaf for leaf in leaves if _is_read_early(graph, leaf.value)]
    # `matched` has, for each gradient or next value among the results, its argument.
    matched = _matched(graph, leaves, [leaf for leaf in read_leaves if leaf.is_float], is_late)
    trained = set(matched.values()) | _updated(graph, read_leaves, is_late)
    roots = _roots(read_leaves, {leaf.root for leaf in read_leaves if leaf.value in trained})
    # An array that is an argument by itself is a weight only if it is trained. Integers of rank 0,
    # such as a number of steps, are no weights.
    weights = [
        leaf
        for leaf in read_leaves
        if leaf.root in roots
        and (leaf.words or leaf.value in trained)
        and (leaf.is_float or leaf.type.shape)
    ]
    names = _names(weights, leaves)
    # The user's named scopes win over the path of the weight if their endings match, because the
    # nodes in such a scope have its name already, and belong to the weight's module.
    scope_of_ending = by_ending({node.module for node in graph.nodes if node.module})
    scoped = {
        leaf.value: _scoped(leaf.words, scope_of_ending) or names[leaf.value] for leaf in weights
    }
    others = _others(leaves, scoped, scope_of_ending, {leaf.value for leaf in read_leaves})
    # The last entry marks the values that depend on an argument that is no weight.
    return ArgumentModules(
        scoped,
        others,
        {result: scoped[arg] for result, arg in matched.items() if arg in scoped},
        is_late,
        reachable(edges, others),
    )


def _is_read_early(graph: Graph, argument: int) -> bool:
    """Return whether the forward or the backward pass reads an argument, also inside of bodies.

    An argument that only the update reads, such as optimizer state, is no weight.
    """
    # A call has one phase, but its body may have nodes of several phases. So nodes in bodies
    # decide.
    values_to_visit, visited = [argument], {argument}
    while values_to_visit:
        value = values_to_visit.pop()
        readers = [graph.nodes[n] for n in graph.users[value]]
        if any(node.phase != "update" and not node.bodies for node in readers):
            return True
        calls = {node.index for node in readers if node.bodies}
        # Follow the value into the bodies of these calls, where it has another index.
        body_arguments = [tie.target for tie in _entries(graph).get(value, ()) if tie.call in calls]
        values_to_visit += [v for v in body_arguments if v not in visited]
        visited.update(body_arguments)
    return False


@once_per_graph
def _entries(graph: Graph) -> dict[int, list]:
    """Return, by value index, the region arguments whose source is the value, except carries.

    They connect an operand of a call with an argument of its body, or a body's result with a result
    of the call.
    """
    entries = defaultdict(list)
    for tie in graph.region_arguments:
        if tie.kind != "carry":
            entries[tie.source].append(tie)
    return dict(entries)


def _matched(
    graph: Graph, leaves: list[_Leaf], read: list[_Leaf], late: bytearray
) -> dict[int, int]:
    """Return, for each result that is an argument's gradient or next value, the argument.

    Keys and values are value indices. The result's path ends with the words of the argument, and
    the types are equal. If several arguments match (`encoder['w']`, `decoder['w']`), their name
    decides. Otherwise their order decides, if there is one result for each (the `argnums` of
    `jax.grad`).
    """
    by_path = dict(zip(graph.argument_paths, leaves, strict=True))
    arguments: dict[tuple, list[_Leaf]] = defaultdict(list)
    for leaf in read:
        arguments[leaf.words, leaf.type].append(leaf)
    results: dict[tuple, list[tuple[int, tuple[str, ...]]]] = defaultdict(list)
    argument_of: dict[int, int] = {}
    for value, path in zip(graph.results, graph.result_paths, strict=True):
        # The paths of values that a function changes in place begin with "next".
        if path.startswith("next ") and path[5:] in by_path:
            argument_of[value] = by_path[path[5:]].value
            continue
        if not late[value]:
            continue
        # The longest ending of the path wins. The empty ending matches every array that is an
        # argument by itself, so it counts only for a path of at most one word.
        _, below = words(path)
        keys = ((below[start:], graph.values[value].type) for start in range(len(below) + 1))
        key = next((key for key in keys if key in arguments and (key[0] or len(below) < 2)), None)
        if key is not None:
            results[key].append((value, below))
    for key, results_of_key in results.items():
        argument_of |= _paired(arguments[key], results_of_key)
    return argument_of


def _paired(arguments: list[_Leaf], results: list[tuple[int, tuple[str, ...]]]) -> dict[int, int]:
    """Return the argument of each result, among arguments and results with equal words and types.

    An argument is chosen if its tree's name is in the result's path, or if it is the only one. If
    there are as many results as arguments, they are paired in order. Otherwise return nothing.

    Args:
      results: pairs of a value index and the words of the result's path.
    """
    argument_of = {}
    for value, below in results:
        in_tree = [leaf for leaf in arguments if leaf.root in below]
        if len(in_tree) == 1:
            argument_of[value] = in_tree[0].value
    if argument_of:
        return argument_of
    if len(arguments) == 1:
        return {value: arguments[0].value for value, _ in results}
    if len(arguments) == len(results):
        return {value: leaf.value for (value, _), leaf in zip(results, arguments, strict=True)}
    return {}


def _updated(graph: Graph, read: list[_Leaf], late: bytearray) -> set[int]:
    """Return the arguments in `read` that an update combines with a value of the backward pass.

    The update's result must have the shape of the argument.

    Args:
      late: per value, 1 if it depends on the backward pass.
    """
    types = {leaf.value: leaf.type for leaf in read}
    updated = set()
    for node in graph.nodes:
        if node.phase != "update" or node.bodies or not any(late[v] for v in node.operands):
            continue
        result_shapes = {graph.values[v].type.shape for v in node.results}
        updated |= {v for v in node.operands if v in types and types[v].shape in result_shapes}
    return updated


def _roots(read: list[_Leaf], trained: set[str]) -> set[str]:
    """Return the names of the trees that contain weights.

    These are the trained trees, and trees with at least half as many leaves as the largest tree.
    The latter are frozen weights, or the weights of a function without a backward pass. If there
    are trained trees, another tree needs at least 3 leaves, so that a pair of data arrays is not
    taken for frozen weights.

    Args:
      read: the arguments that the forward or the backward pass reads.
      trained: the names of trees with an argument whose gradient or update was found.
    """
    # Only leaves below the root count, so that a single array is no tree of weights.
    sizes = Counter(leaf.root for leaf in read if leaf.words and leaf.is_float)
    most = max(sizes.values(), default=0)
    least = max(3, most / 2) if trained else most / 2
    return trained | {root for root, size in sizes.items() if size >= least}


def _names(weights: list[_Leaf], leaves: list[_Leaf]) -> dict[int, str]:
    """Return the module of every weight, by value index: the words of its path, joined by "/".

    The last word, which names the weight inside of its module, is usually left out:

        p['mlp']['up']             mlp           a weight of the module `mlp`
        p['head']                  head          a single word is a module itself
        p['layers'][0], [1]        layers/0      arrays of equal rank in a list: a module each
        p['out'][0], [1]           out           a matrix and a vector: one module, weight and bias
        p[0]['up']                 p/0           a list: the tree's name comes first
        p['mlp']['up'], q['mlp']['up']           p/mlp and q/mlp: two trees have this module

    Args:
      weights: the arguments that are weights.
      leaves: all arguments; the ranks of the arrays in a list decide whether these are modules.
    """
    ranks_in: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for leaf in leaves:
        ranks_in[leaf.root, leaf.words[:-1]].append(len(leaf.type.shape))
    # The words of each module, without the name of its tree.
    short: dict[int, tuple[str, ...]] = {}
    for leaf in weights:
        ranks = ranks_in[leaf.root, leaf.words[:-1]]
        is_in_list = bool(leaf.words) and leaf.words[-1].isdigit()
        is_module = is_in_list and len(ranks) > 1 and len(set(ranks)) == 1
        short[leaf.value] = leaf.words if is_module or len(leaf.words) < 2 else leaf.words[:-1]
    # If two trees have a module of the same name, the names of all their modules begin with the
    # tree's name: otherwise equal modules could not be told apart.
    trees_with: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for leaf in weights:
        trees_with[short[leaf.value]].add(leaf.root)
    ambiguous = {tree for trees in trees_with.values() if len(trees) > 1 for tree in trees}
    names: dict[int, str] = {}
    for leaf in weights:
        module = short[leaf.value]
        # A number or nothing at all, as for a list or a single array, is no name either.
        has_no_name = not module or module[0].isdigit()
        needs_tree = has_no_name or leaf.root in ambiguous
        names[leaf.value] = "/".join((leaf.root, *module) if needs_tree else module)
    return names


def _scoped(steps: tuple[str, ...], known: Mapping[str, str]) -> str:
    """Return the user's named scopes that match the longest ending of a weight's module, or "".

    Args:
      steps: the words of the weight's path.
      known: for each ending of a named scope in the function, the scope's full path.
    """
    owner = numbered(steps)[:-1]
    return next((known[ending] for ending in endings(owner) if ending in known), "")


def _others(
    leaves: list[_Leaf], modules: Mapping[int, str], known: Mapping[str, str], read: set[int]
) -> dict[int, str]:
    """Return the module of each argument that is not a weight, by its value.

    The first of these that exists: the module of a weight whose path ends the argument's path (an
    optimizer's moment); the module of a weight in the same folder of the tree; the scope of the
    user's code with that path (`known`); the argument's own tree, as `batch` of `batch['tokens']`.

    Args:
      leaves: all arguments.
      modules: the module of each weight, by its value.
      known: for each ending of a named scope in the function, the scope's full path.
      read: the arguments that the forward or the backward pass reads.
    """
    weights = [leaf for leaf in leaves if leaf.value in modules]
    # A moment's path ends with the whole path of its weight. Other state, such as a scale, is only
    # in the same folder of the tree.
    weight_paths = {"/".join(leaf.words): modules[leaf.value] for leaf in weights if leaf.words}
    weight_folders = {
        "/".join(leaf.words[:-1]): modules[leaf.value] for leaf in weights if leaf.words[1:]
    }
    module_of = {}
    for leaf in leaves:
        if leaf.value in modules:
            continue
        # Arguments of the forward pass are data: `batch['w']` is no moment of `params['w']`.
        state = () if leaf.value in read else leaf.words
        of_weight = (weight_paths[e] for e in endings(state) if e in weight_paths)
        of_module = (weight_folders[e] for e in endings(leaf.words[:-1]) if e in weight_folders)
        own_path = unwrapped((leaf.root, *leaf.words)[:-1]) if leaf.words else ()
        module_of[leaf.value] = (
            next(of_weight, "")
            or next(of_module, "")
            or _scoped((leaf.root, *leaf.words), known)
            or "/".join(own_path)
        )
    return module_of
