"""SPMD programs written by hand, instruction by instruction, beside what they should compute."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region, Signature, Value, ValueType
from shardalg.spmd import instructions as p
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.local import Local, Start
from shardalg.spmd.program import SpmdProgram


class Builder:
    """Adds locals and instructions; `dims` are tuples of axis names per dimension."""

    def __init__(self, mesh):
        self.mesh = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        self.locals, self.values, self.nodes, self.bindings = [], [], [], []
        self.blocks = [[]]
        self.arguments, self.constants, self.data = [], [], []

    def digits(self, names):
        return self.mesh.digits(names)

    def sharding(self, shape, dims, unreduced=""):
        layout = tuple(self.digits(names) for names in dims)
        return Sharding(self.mesh, shape, layout, unreduced=self.digits(unreduced))

    def local(self, sharding, dtype="float32", *, shape=None, origin=True):
        index = len(self.locals)
        shape = sharding.shard_shape if shape is None else shape
        value = None
        if origin:
            value = len(self.values)
            kind = ValueType(sharding.shape, dtype)
            self.values.append(Value(value, kind, "node", f"value{value}"))
        self.locals.append(Local(index, shape, dtype, sharding, value))
        return index

    def argument(self, shape, dims, dtype="float32"):
        index = self.local(self.sharding(shape, dims), dtype)
        self.arguments.append(index)
        return index

    def constant(self, array, dims):
        index = self.local(self.sharding(array.shape, dims), array.dtype.name)
        self.constants.append((index, self.locals[index].origin))
        self.data.append((self.locals[index].origin, array))
        return index

    def add(self, attributes, operands, sharding, dtype=None, *, shape=None, origin=True):
        dtype = dtype or self.locals[operands[0]].dtype
        index = self.local(sharding, dtype, shape=shape, origin=origin)
        step = Instruction(attributes, tuple(operands), (index,), None)
        self.blocks[-1].append(step)
        return index

    def apply(
        self, function, operands, sharding, dtype=None, *, shape=None, params=(), origin=True
    ):
        """Apply `function`, which must be one primitive, to the operands' local shapes."""
        structs = [
            jax.ShapeDtypeStruct(self.locals[o].shape, self.locals[o].dtype) for o in operands
        ]
        (equation,) = jax.make_jaxpr(function)(*structs).eqns
        dtype = dtype or equation.outvars[0].aval.dtype.name
        index = self.local(sharding, dtype, shape=shape, origin=origin)
        node = len(self.nodes)
        origin = self.locals[index].origin
        results = () if origin is None else (origin,)
        signature = Signature(equation.primitive.name, (), (), ())
        self.nodes.append(Node(node, signature, (), results))
        self.bindings.append((equation.primitive, dict(equation.params)))
        attributes = p.Apply(equation.primitive.name, params)
        self.blocks[-1].append(Instruction(attributes, tuple(operands), (index,), node))
        return index

    def program(self, *results):
        block = Block(tuple(self.arguments), tuple(self.blocks[-1]), results)
        program = SpmdProgram(
            self.mesh,
            tuple(self.locals),
            block,
            tuple(self.locals[a].sharding for a in self.arguments),
            tuple(self.locals[r].sharding for r in results),
            tuple(self.constants),
        )
        origins = [self.locals[a].origin for a in self.arguments]
        graph = Graph(
            tuple(self.values),
            tuple(self.nodes),
            (Region(0, "root", None, None, (), (), (), 1),),
            (),
            tuple(origins),
            tuple(self.locals[r].origin for r in results),
            tuple(f"argument{i}" for i in range(len(origins))),
            tuple(f"result{i}" for i in range(len(results))),
            constants=tuple(self.data),
            bindings=tuple(self.bindings),
        )
        return program, graph


def dot(a, b):
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())))


def array(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Each case: () -> (program, graph, arguments, expected results)


def matmul_all_reduce():
    """Contract along y: partial sums, then an all-reduce."""
    b = Builder({"x": 2, "y": 4})
    x, w = b.argument((8, 16), ("x", "y")), b.argument((16, 6), ("y", ""))
    partial = b.apply(dot, [x, w], b.sharding((8, 6), ("x", ""), "y"))
    y = b.add(p.AllReduce(b.digits("y")), [partial], b.sharding((8, 6), ("x", "")))
    args = array(8, 16), array(16, 6, seed=1)
    return *b.program(y), args, [args[0] @ args[1]]


def matmul_uneven():
    """Contract with 15 of 16 places used: both operands masked; 7 of 8 rows."""
    b = Builder({"x": 2, "y": 4})
    x, w = b.argument((7, 15), ("x", "y")), b.argument((15, 6), ("y", ""))
    x = b.add(p.Mask(1, b.digits("y"), 4, 15), [x], b.sharding((7, 15), ("x", "y")))
    w = b.add(p.Mask(0, b.digits("y"), 4, 15), [w], b.sharding((15, 6), ("y", "")))
    partial = b.apply(dot, [x, w], b.sharding((7, 6), ("x", ""), "y"))
    y = b.add(p.AllReduce(b.digits("y")), [partial], b.sharding((7, 6), ("x", "")))
    args = array(7, 15), array(15, 6, seed=1)
    return *b.program(y), args, [args[0] @ args[1]]


def gather_then_scatter():
    """All-gather along a minor dimension, matmul, reduce-scatter along the result's minor one."""
    b = Builder({"x": 2, "y": 4})
    x, w = b.argument((8, 16), ("x", "y")), b.argument((16, 16), ("x", "y"))
    x = b.add(p.AllGather(1, b.digits("y")), [x], b.sharding((8, 16), ("x", "")))
    x = b.add(p.AllGather(0, b.digits("x")), [x], b.sharding((8, 16), ("", "")))
    x = b.add(p.DynamicSlice(1, b.digits("x"), 8), [x], b.sharding((8, 16), ("", "x")))
    partial = b.apply(dot, [x, w], b.sharding((8, 16), ("", "y"), "x"))
    y = b.add(p.ReduceScatter(1, b.digits("x")), [partial], b.sharding((8, 16), ("", "yx")))
    args = array(8, 16), array(16, 16, seed=1)
    return *b.program(y), args, [args[0] @ args[1]]


def swaps(combine="max"):
    """All-to-all both ways, a permute of blocks, and a reduce-scatter by another combine."""
    b = Builder({"x": 2, "y": 4})
    x = b.argument((8, 16), ("x", "y"))
    x = b.add(p.AllToAll(0, 1, b.digits("y")), [x], b.sharding((8, 16), ("xy", "")))
    x = b.add(p.AllToAll(1, 0, b.digits("y")), [x], b.sharding((8, 16), ("x", "y")))
    pairs = tuple((i, i // 4 * 4 + (i + 1) % 4) for i in range(8))
    rolled = b.add(p.CollectivePermute(b.digits("y"), pairs), [x], b.sharding((8, 16), ("x", "y")))
    if combine is None:
        return *b.program(rolled), (array(8, 16),), [np.roll(array(8, 16), 4, 1)]
    whole = b.add(
        p.AllReduce(b.digits("y"), combine), [rolled], b.sharding((8, 4), ("x", "")), shape=(4, 4)
    )
    part = b.add(
        p.ReduceScatter(1, b.digits("y"), combine), [rolled], b.sharding((8, 4), ("x", "y"))
    )
    args = (array(8, 16),)
    fold = getattr(np, combine)(args[0].reshape(8, 4, 4), axis=1)
    return *b.program(rolled, whole, part), args, [np.roll(args[0], 4, 1), fold, fold]


def two_axes():
    """Two axes on one dimension, gathered together, sliced in the other order."""
    b = Builder({"x": 2, "y": 4})
    x = b.argument((16, 3), ("xy", ""))
    x = b.add(p.AllGather(0, b.digits("xy")), [x], b.sharding((16, 3), ("", "")))
    y = b.add(p.DynamicSlice(0, b.digits("yx"), 2), [x], b.sharding((16, 3), ("yx", "")))
    args = (array(16, 3),)
    return *b.program(y), args, [args[0]]


def sub_axis():
    """Half of an axis: x of 8 as 2 by 4, one part on each dimension."""
    from shardalg.algebra.digits import Digit

    b = Builder({"x": 8})
    major, minor = Digit(4, 2), Digit(1, 4)
    x = b.argument((8, 8), ("x", ""))
    split = Sharding(b.mesh, (8, 8), ((major,), (minor,)))
    moved = b.add(p.AllToAll(1, 0, (minor,)), [x], split)
    back = b.add(p.AllGather(1, (minor,)), [moved], Sharding(b.mesh, (8, 8), ((major,), ())))
    args = (array(8, 8),)
    return *b.program(moved, back), args, [args[0], args[0]]


def resized():
    """10 rows over 4: padded to 12, sliced, masked, added up."""
    b = Builder({"x": 4})
    x = b.argument((10, 2), ("", ""))
    wide = b.add(p.Resize(0, 12), [x], b.sharding((10, 2), ("", "")), shape=(12, 2), origin=False)
    own = b.add(p.DynamicSlice(0, b.digits("x"), 3), [wide], b.sharding((10, 2), ("x", "")))
    own = b.apply(jax.lax.exp, [own], b.sharding((10, 2), ("x", "")))
    own = b.add(p.Mask(0, b.digits("x"), 3, 10), [own], b.sharding((10, 2), ("x", "")))
    total = b.apply(
        lambda a: jax.lax.reduce_sum(a, (0,)),
        [own],
        b.sharding((2,), ("",), "x"),
    )
    total = b.add(p.AllReduce(b.digits("x")), [total], b.sharding((2,), ("",)))
    back = b.add(
        p.AllGather(0, b.digits("x")), [own], b.sharding((10, 2), ("", "")), shape=(12, 2),
        origin=False,
    )  # fmt: skip
    back = b.add(p.Resize(0, 10), [back], b.sharding((10, 2), ("", "")))
    args = (array(10, 2),)
    return *b.program(total, own, back), args, [np.exp(args[0]).sum(0), *[np.exp(args[0])] * 2]


def embedding(fill=float("nan")):
    """Rows of a table that is split over x with 3 rows each, looked up and added together."""
    b = Builder({"x": 4})
    table, ids = b.argument((11, 2), ("x", "")), b.argument((5, 1), ("", ""), "int32")
    local = b.add(p.Offset(b.digits("x"), -3, 0), [ids], b.sharding((5, 1), ("", "")), origin=False)
    numbers = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    rows = b.apply(
        lambda t, i: jax.lax.gather(t, i, numbers, (1, 2), mode="clip"),
        [table, local],
        b.sharding((5, 2), ("", ""), "x"),
        origin=False,
    )
    mask = p.MaskIndexed(((0, b.digits("x"), 3, 11),), (0,), fill)
    own = b.add(mask, [rows, local], b.sharding((5, 2), ("", ""), "x"))
    found = b.add(p.AllReduce(b.digits("x")), [own], b.sharding((5, 2), ("", "")))
    args = array(11, 2), np.array([[0], [10], [3], [11], [-1]], np.int32)
    inside = (args[1] >= 0) & (args[1] < 11)
    expected = np.where(inside, args[0][np.clip(args[1][:, 0], 0, 10)], 0 if fill is None else fill)
    return *b.program(found), args, [expected.astype(np.float32)]


def loop(*, reverse=False):
    """Return a scan with a constant, a carry, xs and ys; the body sums the carry over x."""
    b = Builder({"x": 4})
    w, c, xs = (
        b.argument((4,), ("x",)),
        b.argument((), ()),
        b.argument((3, 4), ("", "x")),
    )
    inner = [b.local(b.sharding(s, d)) for s, d in (((4,), ("x",)), ((), ()), ((4,), ("x",)))]
    b.blocks.append([])
    scaled = b.apply(jax.lax.mul, [inner[0], inner[2]], b.sharding((4,), ("x",)))
    partial = b.apply(
        lambda a: jax.lax.reduce_sum(a, (0,)),
        [scaled],
        b.sharding((), (), "x"),
    )
    total = b.add(p.AllReduce(b.digits("x")), [partial], b.sharding((), ()))
    carry = b.apply(jax.lax.add, [inner[1], total], b.sharding((), ()))
    body = Block(tuple(inner), tuple(b.blocks.pop()), (carry, scaled))
    results = b.local(b.sharding((), ())), b.local(b.sharding((3, 4), ("", "x")))
    b.blocks[-1].append(Instruction(p.Loop(body, 1, 1, 3, reverse), (w, c, xs), results, None))
    args = array(4), np.float32(2), array(3, 4, seed=1)
    expected = np.float32(2) + (args[0] * args[2]).sum()
    return *b.program(*results), args, [expected, args[0] * args[2]]


def first_member():
    """Add a bias on one member only; the constant is sharded."""
    b = Builder({"x": 4})
    x, bias = b.argument((8, 3), ("x", "")), b.argument((3,), ("",))
    c = b.constant(np.arange(8 * 3, dtype=np.float32).reshape(8, 3), ("x", ""))
    x = b.apply(jax.lax.add, [x, c], b.sharding((8, 3), ("x", "")))
    partial = b.apply(
        lambda a: jax.lax.reduce_sum(a, (0,)),
        [x],
        b.sharding((3,), ("",), "x"),
    )
    once = b.add(p.FirstMember(b.digits("x")), [bias], b.sharding((3,), ("",), "x"))
    both = b.apply(jax.lax.add, [partial, once], b.sharding((3,), ("",), "x"))
    y = b.add(p.AllReduce(b.digits("x")), [both], b.sharding((3,), ("",)))
    args = array(8, 3), array(3, seed=1)
    constant = np.arange(24, dtype=np.float32).reshape(8, 3)
    return *b.program(y), args, [(args[0] + constant).sum(0) + args[1]]


def bfloat16_bools():
    """Item types without a plain numpy name, and an `or` of booleans."""
    b = Builder({"x": 4})
    x = b.argument((6,), ("x",), "bfloat16")
    big = b.apply(jax.lax.gt, [x, x], b.sharding((6,), ("x",)), "bool")
    x = b.add(p.Mask(0, b.digits("x"), 2, 6, "max"), [x], b.sharding((6,), ("x",)))
    top = b.apply(
        lambda a: jax.lax.reduce_max(a, (0,)),
        [x],
        b.sharding((), (), "x"),
    )
    top = b.add(p.AllReduce(b.digits("x"), "max"), [top], b.sharding((), ()))
    big = b.add(p.Mask(0, b.digits("x"), 2, 6, "or"), [big], b.sharding((6,), ("x",)))
    some = b.apply(
        lambda a: jax.lax.reduce_or(a, (0,)),
        [big],
        b.sharding((), (), "x"),
    )
    some = b.add(p.AllReduce(b.digits("x"), "or"), [some], b.sharding((), ()))
    args = (np.asarray(jnp.arange(6, dtype=jnp.bfloat16) - 9),)
    return *b.program(top, some), args, [args[0].max(), np.bool_(False)]


def stencil(fill="sum"):
    """`y[i] = x[i-1] + x[i] + x[i+1]` of 10 elements over 4: neighbours' edges, sliced and masked.

    Outside the tensor stands 0, or the number that is the second argument.
    """
    from shardalg.algebra.affine import Index

    b = Builder({"x": 4})
    digits, split = b.digits("x"), b.sharding((10,), ("x",))
    x, outside = b.argument((10,), ("x",)), b.argument((), ())
    add = functools.partial(b.add, sharding=split, origin=False)
    left = add(p.Slice(0, 2, 1), [x], shape=(1,))
    left = add(p.CollectivePermute(digits, ((0, 1), (1, 2), (2, 3))), [left], shape=(1,))
    right = add(p.Slice(0, 0, 1), [x], shape=(1,))
    right = add(p.CollectivePermute(digits, ((1, 0), (2, 1), (3, 2))), [right], shape=(1,))
    wide = add(p.Concatenate(0), [left, x, right], shape=(5,))
    # as a longer buffer would be cut: the start of what is needed depends on the device
    wide = add(p.Concatenate(0), [wide, wide], shape=(10,))
    start = Start((Index.of("p") * 5) % 10, (("p", digits),))
    wide = add(p.SliceAt(0, start, 5), [wide], shape=(5,))
    start = Start(Index.of("p") * 3 - 1, (("p", digits),))
    given = [wide] if fill else [wide, outside]
    wide = add(p.MaskAt(0, start, 10, fill), given, shape=(5,))
    y = b.apply(lambda a: jax.lax.reduce_window_sum_p.bind(
        a, window_dimensions=(3,), window_strides=(1,), padding=((0, 0),), base_dilation=(1,),
        window_dilation=(1,)), [wide], split)  # fmt: skip
    args = array(10), np.float32(7)
    padded = np.pad(args[0], 1, constant_values=0 if fill else 7)
    return *b.program(y), args, [padded[:-2] + padded[1:-1] + padded[2:]]


CASES = {
    "stencil": stencil,
    "stencil_filled": lambda: stencil(None),
    "matmul_all_reduce": matmul_all_reduce,
    "matmul_uneven": matmul_uneven,
    "gather_then_scatter": gather_then_scatter,
    "swaps": lambda: swaps(None),
    "swaps_max": swaps,
    "swaps_sum": lambda: swaps("sum"),
    "swaps_min": lambda: swaps("min"),
    "two_axes": two_axes,
    "sub_axis": sub_axis,
    "resized": resized,
    "embedding_fill": embedding,
    "embedding": lambda: embedding(None),
    "loop": loop,
    "loop_reverse": lambda: loop(reverse=True),
    "first_member": first_member,
    "bfloat16_bools": bfloat16_bools,
}
