"""Small programs written by hand, as the partitioner would: known bytes, flops and lives."""

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region, Signature, Value, ValueType
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import AllGather, Apply, Loop, ReduceScatter
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

MESH = Mesh({"X": 2, "Y": 4})
B, M, H = 8, 16, 64
MATMUL = (("dimension_numbers", (((1,), (0,)), ((), ()))),)


def ffn_graph(dtype="float32", trip_count=1):
    """y = max(x @ w_in, 0) @ w_out."""
    shapes = {"x": (B, M), "w_in": (M, H), "w_out": (H, M), "h": (B, H), "r": (B, H), "y": (B, M)}
    types = {name: ValueType(shape, dtype) for name, shape in shapes.items()}
    types["zero"] = ValueType((), dtype)
    order = ("x", "w_in", "w_out", "zero", "h", "r", "y")
    kinds = ("argument", "argument", "argument", "constant", "node", "node", "node")
    named = enumerate(zip(order, kinds, strict=True))
    values = tuple(Value(i, types[n], k, n) for i, (n, k) in named)

    def node(i, primitive, operands, result, params=()):
        signature = Signature(
            primitive, params, tuple(values[v].type for v in operands), (values[result].type,)
        )
        return Node(i, signature, operands, (result,), f"ffn.py:{i + 1}")

    nodes = (
        node(0, "dot_general", (0, 1), 4, MATMUL),
        node(1, "max", (4, 3), 5),
        node(2, "dot_general", (5, 2), 6, MATMUL),
    )
    root = Region(0, "root", None, None, (0, 1, 2), (6,), (0, 1, 2), trip_count)
    return Graph(
        values, nodes, (root,), (), (0, 1, 2), (6,), ("x", "w_in", "w_out"), ("y",),
        constants=((3, 0.0),),
    )  # fmt: skip


def sharded(shape, *axes, unreduced=""):
    digits = tuple(MESH.digits(a) for a in axes)
    return Sharding(MESH, shape, digits, unreduced=MESH.digits(unreduced))


class Builder:
    """Locals and instructions, numbered as they come."""

    def __init__(self, dtype="float32"):
        self.locals, self.instructions, self.dtype = [], [], dtype

    def local(self, sharding, origin=None):
        self.locals.append(
            Local(len(self.locals), sharding.shard_shape, self.dtype, sharding, origin)
        )
        return len(self.locals) - 1

    def step(self, attributes, operands, sharding, **rest):
        origin = rest.pop("origin", None)
        result = self.local(sharding, origin)
        rest = {"node": None, **rest}
        self.instructions.append(Instruction(attributes, operands, (result,), **rest))
        return result


def ffn_program(dtype="float32"):
    """Return the feed-forward layer, finalized: x [X, Y], w_in [X, Y], w_out [Y, X], y [X, Y]."""
    b, X, Y = Builder(dtype), MESH.digits("X"), MESH.digits("Y")
    x = b.local(sharded((B, M), "X", "Y"), 0)
    w_in = b.local(sharded((M, H), "X", "Y"), 1)
    w_out = b.local(sharded((H, M), "Y", "X"), 2)
    zero = b.local(sharded(()), 3)
    move = {"phase": "forward"}
    xg = b.step(AllGather(1, Y), (x,), sharded((B, M), "X", ""), node=0, origin=0,
                role="activation", **move)  # fmt: skip
    wg = b.step(AllGather(0, X), (w_in,), sharded((M, H), "", "Y"), node=0, origin=1,
                role="weight", **move)  # fmt: skip
    h = b.step(Apply("dot_general", loops=(("m", X), ("n", Y))), (xg, wg),
               sharded((B, H), "X", "Y"), node=0, origin=4)  # fmt: skip
    r = b.step(Apply("max", loops=(("d0", X), ("d1", Y))), (h, zero), sharded((B, H), "X", "Y"),
               node=1, origin=5)  # fmt: skip
    og = b.step(AllGather(1, X), (w_out,), sharded((H, M), "Y", ""), node=2, origin=2,
                role="weight", **move)  # fmt: skip
    part = b.step(Apply("dot_general", loops=(("m", X), ("k", Y))), (r, og),
                  sharded((B, M), "X", "", unreduced="Y"), node=2, origin=6)  # fmt: skip
    y = b.step(ReduceScatter(1, Y), (part,), sharded((B, M), "X", "Y"), node=2, origin=6,
               role="activation", **move)  # fmt: skip
    held = tuple(b.locals)
    block = Block((x, w_in, w_out), tuple(b.instructions), (y,))
    arguments = tuple(held[i].sharding for i in block.arguments)
    return SpmdProgram(MESH, held, block, arguments, (held[y].sharding,), ((zero, 3),))


def loop_program(length=5):
    """x -> x, five times: each turn gathers x along Y, adds a slice of xs, and drops the rest."""
    b, Y = Builder(), MESH.digits("Y")
    carry0 = b.local(sharded((B, M), "X", "Y"), 0)
    xs = b.local(sharded((length, B, M), "", "X", "Y"))
    carry = b.local(sharded((B, M), "X", "Y"))
    turn = b.local(sharded((B, M), "X", "Y"))
    whole = b.step(AllGather(1, Y), (carry,), sharded((B, M), "X", ""), role="activation")
    back = b.step(ReduceScatter(1, Y), (whole,), sharded((B, M), "X", "Y"), role="activation")
    new = b.step(Apply("add"), (back, turn), sharded((B, M), "X", "Y"))
    body = Block((carry, turn), tuple(b.instructions), (new,))
    b.instructions = []
    out = b.step(Loop(body, 0, 1, length, False), (carry0, xs), sharded((B, M), "X", "Y"))
    held = tuple(b.locals)
    block = Block((carry0, xs), tuple(b.instructions), (out,))
    arguments = tuple(held[i].sharding for i in block.arguments)
    return SpmdProgram(MESH, held, block, arguments, (held[out].sharding,))
