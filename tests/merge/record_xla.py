"""`make xla-merges`: ask XLA's GSPMD propagation for merges; its answers are xla_merges.json.

Each pair of shardings stands on the two operands of one addition; the answer is the sharding that
the pass `sharding-propagation` puts on the addition, read from its dump. One process per number of
devices, since XLA fixes that when it starts.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ANSWERS = Path(__file__).with_name("xla_merges.json")
COUNTS = {4: 60, 6: 150, 8: 180, 12: 150, 16: 60}
MODES = ("iota", "permuted", "independent", "swapped")
DIM = 48


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, help="ask for this many devices, and print")
    parser.add_argument("--out", type=Path, default=ANSWERS)
    options = parser.parse_args()
    if options.devices:
        with tempfile.TemporaryDirectory() as folder:
            for pair in asked(options.devices, COUNTS[options.devices], folder):
                print(json.dumps(pair), flush=True)
        return
    pairs = []
    for devices in COUNTS:
        command = [sys.executable, "-m", "tests.merge.record_xla", "--devices", str(devices)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        pairs += [json.loads(line) for line in lines.splitlines()]
        print(f"{devices} devices: {len(pairs)} pairs in all", flush=True)
    from jaxlib import version

    content = {"command": "make xla-merges", "jaxlib": version.__version__, "dim": DIM}
    rows = ",\n".join(json.dumps(pair) for pair in pairs)
    head = json.dumps(content, indent=1)[:-2]
    options.out.write_text(f'{head},\n "pairs": [\n{rows}\n ]\n}}\n')


def asked(devices, count, folder):
    """Random pairs with XLA's answers."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_dump_to={folder}"
    os.environ["XLA_FLAGS"] = f"{flags} --xla_dump_hlo_pass_re=sharding-prop|spmd"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_use_shardy_partitioner", False)
    rng = random.Random(devices)
    for number in range(count):
        rank = rng.choice((2, 2, 3))
        first, second = pair_of(devices, rank, rng, number)
        answer = answered(first, second, rank, folder)
        yield {"rank": rank, "first": str(first), "second": str(second), "xla": answer}


def pair_of(devices, rank, rng, number):
    """Two shardings of one device order or of two; a third of all pairs merge to something new."""
    from shardalg import Sharding, merge

    while True:
        orders = orders_of(devices, rng.choice(MODES), rng)
        pair = [assignment(order, rank, rng) for order in orders]
        if any(sharding.is_replicated() for sharding in pair):
            continue
        rows = [Sharding.from_hlo(str(s), (DIM,) * rank) for s in pair]
        verdict = merge(*rows)
        new = bool(verdict) and verdict.sharding.parts not in (rows[0].parts, rows[1].parts)
        if number % 3 == 0 or (new if number % 3 == 1 else not verdict):
            return pair


def orders_of(devices, mode, rng):
    natural = list(range(devices))
    if mode == "iota":
        return natural, natural
    first = rng.sample(natural, devices)
    if mode == "permuted":
        return first, first
    if mode == "independent":
        return first, rng.sample(natural, devices)
    second = list(natural)
    i, j = rng.sample(natural, 2)
    second[i], second[j] = second[j], second[i]
    return natural, second


def assignment(order, rank, rng):
    """Draw a factorization of the devices, its factors on random dimensions or replicated."""
    import numpy as np
    from jax._src.lib import xla_client

    factors, left = [], len(order)
    while left > 1:
        factors.append(rng.choice([q for q in range(2, left + 1) if left % q == 0]))
        left //= factors[-1]
    places = [rng.randint(-1, rank - 1) for _ in factors]
    axes = [[k for k, place in enumerate(places) if place == dim] for dim in (*range(rank), -1)]
    for held in axes[:-1]:
        rng.shuffle(held)
    sizes = [int(np.prod([factors[k] for k in held])) for held in axes]
    array = np.array(order).reshape(factors).transpose([k for held in axes for k in held])
    proto = xla_client.OpSharding()
    proto.type = xla_client.OpSharding.Type.OTHER
    proto.replicate_on_last_tile_dim = sizes[-1] > 1
    proto.tile_assignment_dimensions = sizes if sizes[-1] > 1 else sizes[:-1]
    proto.tile_assignment_devices = [int(device) for device in array.flatten()]
    return xla_client.HloSharding.from_proto(proto)


def answered(first, second, rank, folder):
    """Return the sharding of the addition after propagation."""
    import jax
    import jax.numpy as jnp
    from jax._src.sharding_impls import GSPMDSharding

    devices = tuple(jax.devices())
    placed = [GSPMDSharding(devices, sharding) for sharding in (first, second)]

    def add(x, y):
        x, y = (jax.lax.with_sharding_constraint(v, s) for v, s in zip((x, y), placed, strict=True))
        return jnp.sin(x) + jnp.cos(y)

    value = jax.ShapeDtypeStruct((DIM,) * rank, jnp.float32)
    jax.jit(add).lower(value, value).compile()
    dumps = sorted(Path(folder).glob("*after_sharding-propagation*.txt"))
    (line,) = [row for row in dumps[-1].read_text().splitlines() if " add(" in row]
    found = re.search(r"sharding=(\{[^}]*\})", line)
    for each in Path(folder).iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    return found.group(1)


if __name__ == "__main__":
    main()
