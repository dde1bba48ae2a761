"""What the processes of a test run: files of a user's own."""

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
