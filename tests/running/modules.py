"""Files of a user, for the processes of a test run."""

TRANSFORMER = '''
"""Steps of training a Transformer: the next parameters, their gradients, the loss."""
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
from shardalg.models import transformer
from shardalg.models.training import part

CONFIG = transformer.Config(B=4, S=4, M=8, H=16, N=4, D=4, V=8, L=1, dtype="float32")
WEIGHTS = {
    "w_q": P("X", "Y"), "w_k": P("X", "Y"), "w_v": P("X", "Y"), "w_o": P("Y", None, "X"),
    "w_in": P("X", "Y"), "w_out": P("Y", "X"),
}


def step(params, tokens, targets):
    loss, grads = jax.value_and_grad(partial(transformer.loss, CONFIG))(params, tokens, targets)
    return jax.tree.map(lambda p, g: p - 0.3 * g, params, grads), grads, loss


def args():
    params, _, tokens, targets = part("train_step").random_arguments(CONFIG)
    return params, tokens, targets


PARAMS = {"embedding": P("Y", "X"), "layers": (WEIGHTS,)}
in_shardings = (PARAMS, P("X"), P("X"))
out_shardings = (PARAMS, None, None)
'''

RESIDUAL = '''
"""Steps of training a residual network with batch normalisation, whose block lies on the devices in
another order than its stem, and whose images come in a third one."""
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
import shardalg as sa

KERNELS = {"stem": (3, 3, 3, 6), "block": (3, 3, 6, 6)}
NAMES = "NHWC", "HWIO", "NHWC"
MESH, TURNED, REVERSED = (
    sa.Mesh({"X": 2, "Y": 4}, device_ids=ids)
    for ids in (None, (0, 2, 4, 6, 1, 3, 5, 7), (7, 6, 5, 4, 3, 2, 1, 0))
)


def normed(x, scale, kept):
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    kept = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, kept, (mean, var))
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale, kept


def loss(params, kept, images, labels):
    x, new = images, {}
    for name in KERNELS:
        y = lax.conv_general_dilated(
            x, params[name]["kernel"], (1, 1), "SAME", dimension_numbers=NAMES
        )
        y, new[name] = normed(y, params[name]["scale"], kept[name])
        x = sa.annotate(jax.nn.relu(y) + (0 if name == "stem" else x), name)
    logits = jnp.einsum("bhwc,cn->bn", x, params["head"]) / 36
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -chosen.mean(), new


def step(state, images, labels):
    params, kept = state
    (value, kept), grads = jax.value_and_grad(loss, has_aux=True)(params, kept, images, labels)
    return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), kept), grads, value


def args():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape, scale=0.4).astype("float32")
    params = {n: {"kernel": draw(*s), "scale": 1 + draw(s[-1])} for n, s in KERNELS.items()}
    kept = {n: (np.zeros(s[-1], "float32"), np.ones(s[-1], "float32")) for n, s in KERNELS.items()}
    return ({**params, "head": draw(6, 5)}, kept), draw(6, 6, 6, 3), rng.integers(0, 5, 6, "int32")


IMAGES = P("X", "Y")
strategy = sa.Strategy(
    MESH,
    (P(), sa.Sharding.from_spec(IMAGES, REVERSED, (6, 6, 6, 3)), P("X")),
    (P(), P(), P()),
    sites={"stem": IMAGES, "block": sa.Sharding.from_spec(IMAGES, TURNED, (6, 6, 6, 6))},
)
'''

UNEVEN = '''
"""Uneven sizes; every array is given block by block, and none is ever whole."""
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P

SHAPES = (5, 7), (7, 11), (11, 3)
asked = []


def layer(x, w_in, w_out):
    return jnp.tanh(x @ w_in) @ w_out


def both(x, w_in, w_out):
    """The value, its gradients, and something to feed back."""
    value, back = jax.vjp(layer, x, w_in, w_out)
    return x + 0.1 * back(value)[0], value, back(value), (value ** 2).mean()


def args():
    return tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES)


def element(shape):
    def read(index):
        asked.append((index, shape))
        sizes = [range(i.start, i.stop) for i in index]
        rows, columns = np.meshgrid(*sizes, indexing="ij")
        return np.sin(rows * 3.0 + columns).astype("float32")
    return read


def arrays():
    return tuple(element(shape) for shape in SHAPES)


in_shardings = (P("X", "Y"), P("Y", "X"), P("X", "Y"))
'''

KILLED = '''
"""Process 1 is killed in the middle of the steps."""
import os, signal, threading
import jax, numpy as np
from jax.sharding import PartitionSpec as P


def add(x):
    return x + x.sum()


def args():
    if os.environ.get("JAX_PROCESS_ID") == "1":
        threading.Timer(4, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return np.ones(8, "float32")


in_shardings = (P("X"),)
'''

ELSEWHERE = '''
"""An array that lies on the devices of process 1 alone."""
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


def add(x):
    return x + x.sum()


def args():
    return jax.ShapeDtypeStruct((8,), "float32")


def arrays():
    there = Mesh([d for d in jax.devices() if d.process_index == 1], ("x",))
    whole = np.ones(8, "float32")
    target = NamedSharding(there, P("x"))
    blocks = [jax.device_put(whole, d) for d in target.addressable_devices]
    return jax.make_array_from_single_device_arrays((8,), target, blocks, dtype=whole.dtype)


in_shardings = (P("X"),)
'''
