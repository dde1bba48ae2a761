"""Roles of arguments that nobody gave, where the function makes them certain.

- An array of integers that is not among the next values of the function is data (tokens, labels).
- In a training step, an array with a gradient or a next value is a parameter if the forward or the
  backward pass reads it, and optimizer state if only the update does. Of the arrays that stay as
  they are, those with the batch dimension are data, and those with a dimension of trained
  parameters are parameters, too (frozen weights below an adapter).
- In a function without a backward pass, an array with the batch dimension of certain data is data,
  and the other floats that products combine with data are parameters.
- A function without integers whose arguments are one array and trees: the array is data.

Random keys and single numbers have no role.
"""

from __future__ import annotations

import re
from collections import defaultdict

from shardalg.errors import RoleError
from shardalg.graph.ir import Graph, once_per_graph
from shardalg.graph.ops.roles import DATA, OPTIMIZER_STATE, PARAMETERS
from shardalg.graph.weights import dependencies, reachable, words
from shardalg.plan.strategies.derive.dimension_classes import dimension_classes

_KEY_SHAPES = ((2,), (4,))


@once_per_graph
def next_values(graph: Graph) -> dict[int, int]:
    """Return, per position of a result, the position of the argument whose next value it is.

    The types are equal, and the paths have the longest common ending of all arguments. A gradient
    counts as well. Without a common ending, the type decides if one argument alone has it and the
    result depends on it.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 4), (8, 4)))
    >>> step = lambda p, x: ({"w": p["w"] - jax.grad(lambda w: (x @ w).sum())(p["w"])}, x.sum())
    >>> next_values(trace(step, {"w": w}, x))
    {0: 0}
    """
    # Most results end with the last word of their argument, so that few pairs are compared.
    by_word: dict[object, list[int]] = defaultdict(list)
    by_type: dict[object, list[int]] = defaultdict(list)
    paths = [(root, *below) for root, below in map(words, graph.argument_paths)]
    for position, value in enumerate(graph.arguments):
        by_type[graph.values[value].type].append(position)
        by_word[graph.values[value].type, paths[position][-1]].append(position)
    position_by_path = {path: position for position, path in enumerate(graph.argument_paths)}
    found: dict[int, int] = {}
    for position, value in enumerate(graph.results):
        path, kind = graph.result_paths[position], graph.values[value].type
        # A result that the trace itself has named "next <path of its argument>".
        if path.startswith("next ") and path[5:] in position_by_path:
            found[position] = position_by_path[path[5:]]
            continue
        root, below = words(path)
        same_word_arguments = by_word.get((kind, (root, *below)[-1]), [])
        if not same_word_arguments:
            same_type_arguments = by_type.get(kind, [])
            # A single number without a common path (a loss) is no next value of another number.
            if (
                len(same_type_arguments) == 1
                and kind.shape
                and _follows(graph, position, same_type_arguments[0])
            ):
                found[position] = same_type_arguments[0]
            continue
        common_words = {
            argument: _common(paths[argument], (root, *below)) for argument in same_word_arguments
        }
        longest = max(common_words.values())
        ties = [argument for argument in same_word_arguments if common_words[argument] == longest]
        # Parameters and moments can have equal paths: then the order of their trees decides.
        best = ties[0] if len(ties) == 1 else _in_order(graph, position, ties)
        # A position in a list says little: `result[1]` may be anything of the type of `params[1]`.
        is_named = any(not word.isdigit() for word in paths[best][-longest:])
        if is_named or _follows(graph, position, best):
            found[position] = best
    return found


def _follows(graph: Graph, position: int, argument: int) -> bool:
    """Return whether a result is computed in the backward pass or from an argument."""
    value = graph.results[position]
    producer = graph.producer[value]
    if producer is not None and graph.nodes[producer].phase == "backward":
        return True
    return bool(reachable(dependencies(graph), [graph.arguments[argument]])[value])


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Return the number of last words that both paths have in common."""
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return count


def _in_order(graph: Graph, position: int, arguments: list[int]) -> int:
    """Return the argument that belongs to a result by the order of their trees.

    A step returns (params, momentum) in the order in which it takes them. So the result of tree 1
    belongs to the second one of `arguments`.

    Args:
      position: the position of the result.
      arguments: positions of the arguments whose paths end like the path of the result.
    """
    path = words(graph.result_paths[position])[1]
    # `(params, momentum)` go in and out in one order: the trees' first words number the results.
    numbers = [int(word) for word in path if re.fullmatch(r"\d+", word)][:1]
    ordered = sorted(arguments)
    return ordered[min(numbers[0], len(ordered) - 1)] if numbers else ordered[0]


def deduced_roles(
    graph: Graph, given: tuple[str | None, ...]
) -> tuple[tuple[str | None, ...], frozenset[int]]:
    """Return the role of each argument, and the positions of those that were deduced.

    A role is "parameters", "optimizer_state" or "data"; None if it is not certain, or if the
    argument can have none, such as a random key.

    Args:
      given: the roles that the user gave; None where the user gave none.

    Raises:
      RoleError: nothing says which arguments are parameters or data.
    """
    found: list[str | None] = list(given)
    missing = [p for p, role in enumerate(given) if role is None and _has_role(graph, p)]
    if not missing:
        return given, frozenset()
    _fill(graph, found, missing)
    deduced = frozenset(position for position in missing if found[position] is not None)
    # Without any parameters or data, a recipe would shard nothing.
    if PARAMETERS not in found and DATA not in found:
        names = ", ".join(graph.argument_paths[position] for position in missing[:6])
        raise RoleError(
            f"the roles of {names} are not given, and the function does not make them certain. "
            'Pass roles=, for example roles=("parameters", "data"), one per argument.'
        )
    return tuple(found), deduced


def _type(graph: Graph, position: int) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of an argument."""
    kind = graph.values[graph.arguments[position]].type
    return kind.shape, kind.dtype


def _has_role(graph: Graph, position: int) -> bool:
    """Return whether an argument can have a role: it is no random key and no single number."""
    shape, dtype = _type(graph, position)
    is_key = "key" in dtype or (dtype == "uint32" and shape in _KEY_SHAPES)
    return bool(shape) and not is_key


def _is_float(graph: Graph, position: int) -> bool:
    return _type(graph, position)[1].startswith(("float", "bfloat", "complex"))


def _fill(graph: Graph, found: list[str | None], open_: list[int]) -> None:
    """Write into `found` the roles that follow with certainty from the graph.

    Args:
      found: the role of each argument, or None; changed in place.
      open_: positions of the arguments without a role.
    """
    # The arguments whose new value is a result of the step.
    updated = set(next_values(graph).values())
    # A loss has no gradient by integers or booleans, so they are no parameters. A state of
    # integers, such as a counter, is updated.
    for position in open_:
        if not _is_float(graph, position) and position not in updated:
            found[position] = DATA
    has_backward = any(node.phase == "backward" for node in graph.nodes)
    waiting = [position for position in open_ if found[position] is None]
    # A training step: it has a backward pass, and returns new values of its arguments.
    if has_backward and updated:
        for position in waiting:
            if position in updated:
                # The forward pass reads parameters. Optimizer state is read by the update alone.
                is_early = _is_read_early(graph, position) and _is_float(graph, position)
                found[position] = PARAMETERS if is_early else OPTIMIZER_STATE
        unchanged = [p for p in waiting if p not in updated and graph.users[graph.arguments[p]]]
        _fill_unchanged(graph, found, unchanged)
        # No operator shows the role of an unread array: its tree does, if that has only one.
        roots = [words(path)[0] for path in graph.argument_paths]
        for position in waiting:
            tree = {r for r, root in zip(found, roots, strict=True) if root == roots[position]}
            if found[position] is None and len(tree - {None}) == 1:
                found[position] = (tree - {None}).pop()
        return
    _fill_forward(graph, found, waiting)


def _fill_unchanged(graph: Graph, found: list[str | None], waiting: list[int]) -> None:
    """Write the roles of floats that a training step reads and does not update.

    An array's first dimension over which no loop iterates decides; below it is "the dimension". Two
    dimensions are equal if operators connect them, such as the batch of inputs and of targets.
    - The array is data if the dimension is equal to the dimension of known data. It is also data if
      it has the size of that dimension, and no trained parameter has the dimension.
    - If no data is known, consider the arrays whose dimension no trained parameter has. If all of
      these have the same dimension, they are data.
    - The array is a (not trained) parameter if a trained parameter has the dimension.
    - Otherwise the role stays None.

    Args:
      found: per argument its role, or None; changed in place.
      waiting: positions of the arguments without a role.
    """
    classes = dimension_classes(graph)
    first, size = {}, {}
    for position, value in enumerate(graph.arguments):
        shape = graph.values[value].type.shape
        free_dims = [d for d in range(len(shape)) if not classes.is_iterated(value, d)]
        first[position] = classes.of(value)[free_dims[0]] if free_dims else None
        size[position] = shape[free_dims[0]] if free_dims else None
    trained = {
        name
        for position, value in enumerate(graph.arguments)
        if found[position] == PARAMETERS
        for name in classes.of(value)
    }
    data_positions = [position for position, role in enumerate(found) if role == DATA]
    data, sizes = {first[p] for p in data_positions}, {size[p] for p in data_positions}
    # Without certain data, inputs are recognised by a dimension that they share, as the batch.
    input_dims = {first[p] for p in waiting} - trained
    data |= input_dims if not data_positions and len(input_dims) == 1 else set()
    for position in waiting:
        name = first[position]
        if name in data or (name not in trained and size[position] in sizes):
            found[position] = DATA
        elif name in trained:
            found[position] = PARAMETERS


def _fill_forward(graph: Graph, found: list[str | None], waiting: list[int]) -> None:
    """Write into `found` the roles of a function without a backward pass.

    Nothing is written if neither known roles nor the form `f(params, x)` make them certain.

    Args:
      waiting: positions of the arguments without a role.
    """
    classes = dimension_classes(graph)
    data = [p for p, role in enumerate(found) if role == DATA]
    parameters = [p for p, role in enumerate(found) if role == PARAMETERS]
    # Data share their first dimension, the batch: other floats are parameters.
    if data:
        leading = {classes.of(graph.arguments[p])[0] for p in data}
        for position in waiting:
            names = classes.of(graph.arguments[position])
            if _is_float(graph, position):
                found[position] = DATA if names[0] in leading else PARAMETERS
        return
    # Only parameters are known: a user who gives their role leaves the data without one.
    if parameters:
        for position in waiting:
            found[position] = DATA
        return
    # As in `f(params, x)`: the only argument that is no tree is the data.
    roots = [words(graph.argument_paths[position]) for position in waiting]
    single = {p for p, (_, below) in zip(waiting, roots, strict=True) if not below}
    if len(single) == 1 and len(waiting) > 1:
        for position in waiting:
            found[position] = DATA if position in single else PARAMETERS


def _is_read_early(graph: Graph, position: int) -> bool:
    """Return whether the forward or the backward pass reads an argument.

    Readers inside of loops and branches count; those of the update do not.
    """
    # The names of a value inside of the regions that it enters. A carry is no such name: it has
    # another value in each iteration.
    entered: dict[int, list[int]] = defaultdict(list)
    for tie in graph.region_arguments:
        if tie.kind != "carry":
            entered[tie.source].append(tie.target)
    pending, seen = [graph.arguments[position]], set[int]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        # A loop itself does not read a value; the operators of its body do, under the value's name
        # inside of the body.
        readers = [graph.nodes[n] for n in graph.users[value]]
        if any(node.phase != "update" and not node.bodies for node in readers):
            return True
        pending += entered[value]
    return False
