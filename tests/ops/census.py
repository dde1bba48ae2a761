"""Prints the names of all primitives of the installed jax: its modules loaded, its objects asked.

`python -m tests.ops.census`, in a process of its own: loading all of jax leaves traces.
"""

import gc
import importlib
import json
import pkgutil
import warnings

from jax.extend.core import Primitive

# jax's own tests, and languages for kernels, whose primitives stand in no program of jax.lax.
SKIPPED = ("test", "pallas", "mosaic", "tpu_custom", "cloud", "debugger")


def load(package):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not any(word in module.name for word in SKIPPED):
            importlib.import_module(f"{package}.{module.name}")


def primitives():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in ("jax._src", "jax._src.lax", "jax._src.cudnn", "jax._src.random"):
            load(package)
    return sorted({o.name for o in gc.get_objects() if isinstance(o, Primitive)})


if __name__ == "__main__":
    print(json.dumps(primitives()))
