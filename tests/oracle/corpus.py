"""Load the recorded programs and the answers of XLA (README.md beside this file has the schema)."""

import functools
import importlib.util
import json
from collections import defaultdict
from pathlib import Path

from shardalg.lower.xla_dump.hlo_collectives import sliced_wire_bytes
from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule, parse_leaves

HERE = Path(__file__).parent
COMPILERS = ("cpu_gspmd", "cpu_shardy", "tpu_gspmd", "tpu_shardy", "gpu_gspmd", "gpu_shardy")


def names(*topics):
    """Return the programs of these topics in alphabetical order; all without a topic.

    >>> names("ffn", "stack")
    ['ffn_attempt1_fwd', 'ffn_attempt2_grad', 'ffn_final_fwd', 'scan_layers', 'scan_layers_remat']
    """
    index = json.loads((HERE / "index.json").read_text())
    return sorted(name for topic in topics or index for name in index[topic])


def gradients():
    """Gradients of the programs that had none, and a loop that adds gradients up: CPU alone.

    >>> gradients()[:2]
    ['accumulation_loop', 'einsum_moe_grad']
    """
    return sorted(path.stem for path in (HERE / "gradients").glob("*.py"))


def _file(name, ending):
    """Return a file of a program, in its folder."""
    folder = "gradients" if name in gradients() else "cases"
    return HERE / folder / f"{name}.{ending}"


def topic(name):
    """Return the topic of a program.

    >>> topic("ffn_final_fwd")
    'ffn'
    """
    index = json.loads((HERE / "index.json").read_text()) | {"gradient": gradients()}
    return next(topic for topic, names in index.items() if name in names)


@functools.cache
def facts(name):
    """Return XLA's facts about the program; tests share them and must not change them.

    >>> facts("ffn_final_fwd")["cpu_gspmd"]["spmd"]["summary"]["all-gather[y]"]
    [1, 1024, 4096, 3072]
    """
    return json.loads(_file(name, "json").read_text())


@functools.cache
def program(name):
    """Return the module of a program (MESH, SMALL, BIG, make); this starts jax."""
    spec = importlib.util.spec_from_file_location(f"case_{name}", _file(name, "py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def completed(name, compiler="cpu_gspmd"):
    """One mapping per HLO instruction that carries a sharding after completion.

    >>> completed("ffn_final_fwd")[0]["name"], completed("ffn_final_fwd")[0]["spec"]
    ('x.1', [['x'], [], ['y']])
    """
    table = facts(name)[compiler]["completed"]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def module(name, compiler="cpu_gspmd"):
    """Return the completed program as an `HloModule`; values without sharding are left out.

    >>> module("ffn_final_fwd").computations["ENTRY"]["x.1"].attributes["sharding"]
    '{devices=[2,1,4]<=[8]}'
    """
    return module_of(completed(name, compiler))


def module_of(rows):
    """Return an `HloModule` of recorded rows; the last computation is the entry."""
    entry, computations = rows[-1]["computation"], defaultdict(dict)
    for row in rows:
        place = "ENTRY" if row["computation"] == entry else row["computation"]
        computations[place][row["name"]] = _instruction(row, place)
    roots = {place: list(here.values())[-1] for place, here in computations.items()}
    return HloModule(dict(computations), roots, "ENTRY")


def _instruction(row, place):
    attributes = dict(row.get("attributes") or {}, sharding=row["sharding"])
    attributes["metadata"] = f'op_name="{row["op_name"] or ""}"'
    leaves = tuple(leaf for text in row["shape"] for leaf in parse_leaves(text))
    operands = tuple(row.get("operands") or ())
    literal = attributes.get("number", "0")
    return HloInstruction(row["name"], row["op"], leaves, operands, attributes, place, literal)


def ring_bytes(collective):
    """Return a device's bytes per execution; sliced results count as reduce-scattered.

    >>> ar = {"kind": "all-reduce", "operand_bytes": 64, "group_size": 4, "wire_bytes": 96}
    >>> ring_bytes(ar), ring_bytes(ar | {"sliced_by": 4.0}), ring_bytes(ar | {"sliced_by": 2.0})
    (96, 48, 64)
    """
    if collective.get("sliced_by", 1) <= 1:
        return collective["wire_bytes"]
    sizes = (collective[name] for name in ("operand_bytes", "group_size", "sliced_by"))
    return sliced_wire_bytes(*sizes)


def wire_bytes(name, compiler="cpu_gspmd"):
    """Bytes that a device sends in a whole step, right after partitioning.

    >>> wire_bytes("ffn_final_fwd")
    7168
    """
    spmd = facts(name)[compiler].get("spmd", {"collectives": ()})
    return sum(ring_bytes(c) * c["mult"] for c in spmd["collectives"])


def xla_failures():
    """Return the programs that XLA partitions wrongly or aborts on."""
    return json.loads((HERE / "xla_failures.json").read_text())["programs"]
