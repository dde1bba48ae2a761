"""Scans: layouts pass the border, and a carry has one layout."""

from shardalg.planner.propagate import propagate
from tests.propagate.small import Builder, annotations, axes, layout


def layers():
    """carry = carry @ w[i], stacked outputs too."""
    b = Builder()
    h, w = b.argument(8, 16), b.argument(3, 16, 16)

    def body(b, consts, carries, slices):
        made = b.dot(carries[0], slices[0])
        return [made], [made]

    results, stacks, carries, made = b.scan([h], body, xs=[w])
    return b, (h, w), (results[0], stacks[0], carries[0], made[0])


def test_a_carry_and_a_stack_take_the_layout_of_the_initial_value():
    b, _, (result, stack, carry, made) = layers()
    graph = b.graph(result, stack)
    done = propagate(graph, annotations(graph, given={0: layout((8, 16), "x")}))
    assert {axes(done.shardings[v]) for v in (result, carry, made)} == {(("x",), ())}
    assert axes(done.shardings[stack]) == ((), ("x",), ())


def test_slices_take_all_but_the_leading_dimension():
    b, (h, _), (result, stack, carry, made) = layers()
    graph = b.graph(result, stack)
    done = propagate(graph, annotations(graph, given={1: layout((3, 16, 16), "x", None, "y")}))
    assert axes(done.shardings[made]) == ((), ("y",))
    assert axes(done.shardings[carry]) == ((), ("y",))
    assert axes(done.shardings[stack]) == ((), (), ("y",))
    assert axes(done.shardings[h]) == ((), ("y",))
    assert done.reasons[stack].role == "stack"


def test_stacks_ask_backward_only_from_the_second_level_on():
    b, _, (result, stack, _, made) = layers()
    graph = b.graph(result, stack)
    done = propagate(graph, annotations(graph, wanted={1: layout((3, 8, 16), None, "x", None)}))
    assert axes(done.shardings[made]) == (("x",), ())
    assert done.reasons[made].level == 1


def test_where_initial_value_and_body_disagree_the_carry_still_has_one_layout():
    b = Builder()
    h = b.argument(8, 8)

    def body(b, consts, carries, slices):
        turned = b.node("transpose", (carries[0],), (8, 8), permutation=(1, 0))
        return [turned], []

    (result,), _, (carry,), (made,) = b.scan([h], body)
    graph = b.graph(result)
    done = propagate(graph, annotations(graph, given={0: layout((8, 8), "x")}))
    assert axes(done.shardings[made]) == axes(done.shardings[carry]) == axes(done.shardings[result])
    assert any(c.value in (carry, made) for c in done.conflicts)


def test_a_constant_of_a_loop_reaches_its_body_and_back():
    b = Builder()
    h, w = b.argument(8, 16), b.argument(8, 16)
    seen = []

    def body(b, consts, carries, slices):
        seen.extend(consts)
        return [b.add(carries[0], consts[0])], []

    (result,), *_ = b.scan([h], body, consts=[w])
    graph = b.graph(result)
    done = propagate(graph, annotations(graph, given={0: layout((8, 16), None, "y")}))
    assert axes(done.shardings[seen[0]]) == axes(done.shardings[w]) == ((), ("y",))
