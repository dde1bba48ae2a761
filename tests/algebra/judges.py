"""XLA's and Shardy's own readings of a text: references for our readers and printers.

XLA ends the process on some malformed texts, so it is only asked about texts that we accepted, and
about mutated ones in a process of its own.
"""

import json
import math
import subprocess
import sys
from functools import cache

from jax._src.interpreters.mlir import make_ir_context
from jax._src.lib.mlir import ir

from shardalg.algebra.digits import partition_id
from shardalg.algebra.notation.axis_lists import mesh_text

XLA = """
import json, sys
from jax._src.lib import xla_client
for line in sys.stdin:
    text = json.loads(line)
    print(json.dumps(text), end=" -> ", flush=True)
    try:
        found = xla_client.HloSharding.from_string(text).v3_to_v2_sharding()
    except Exception as error:
        print("refused", str(error).splitlines()[0])
        continue
    kinds = [kind.name.lower() for kind in found.subgroup_types()]
    kinds += ["replicated"] if found.replicate_on_last_tile_dim() else []
    tiled = found.is_tiled()
    print(json.dumps([
        str(found),
        found.tile_assignment_dimensions() if tiled else [],
        list(found.tile_assignment_devices()) if tiled else [],
        kinds,
    ]))
"""


def xla_reads(texts):
    """Per text what XLA reads, (text of version 2, extents, devices, kinds); None: it refuses."""
    lines = "\n".join(json.dumps(text) for text in texts)
    ran = subprocess.run(
        [sys.executable, "-c", XLA], input=lines, capture_output=True, text=True, check=False
    )
    answers = [line.split(" -> ", 1)[1] for line in ran.stdout.splitlines()]
    last = ran.stdout.splitlines()[-1:]
    assert ran.returncode == 0, f"XLA died of {last}: {ran.stderr[:300]}"
    assert len(answers) == len(texts)
    return [None if answer.startswith("refused") else json.loads(answer) for answer in answers]


def agrees_with_xla(sharding, answer):
    """Return True if XLA's tile array assigns every device as the sharding does."""
    text, extents, devices, kinds = answer
    if not extents:
        return text == sharding.to_hlo()
    held = {"manual": sharding.manual, "unreduced": sharding.unreduced}
    rank = len(extents) - len(kinds)
    rows = [*sharding.dims, *(held.get(kind) for kind in kinds)]
    absent = [kind for kind, digits in held.items() if kind not in kinds and digits]
    if rank != len(sharding.dims) or any(math.prod(d.size for d in held[k]) > 1 for k in absent):
        return False
    below = math.prod(extents)
    for extent, digits in zip(extents, rows, strict=True):
        below //= extent
        for place, device in enumerate(devices):
            number = place // below % extent
            position = sharding.mesh.position(device)
            if digits is not None and partition_id(digits, position) != number:
                return False
    return True


@cache
def _context():
    return make_ir_context()


def shardy_prints(text, mesh, rank, name="mesh"):
    """Return Shardy's verified text of a rank-`rank` tensor's sharding."""
    tensor = f"tensor<{'8x' * rank}f32>"
    module = f"""module {{
      sdy.mesh @{name or "mesh"} = <{mesh_text(mesh)}>
      func.func @f(%x: {tensor} {{sdy.sharding = {text}}}) {{ return }}
    }}"""
    with _context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        function = next(op for op in parsed.body.operations if op.operation.name == "func.func")
        return str(ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[0])["sdy.sharding"])
