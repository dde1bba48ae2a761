"""Exports of a plan: flat numbers for experiment trackers, and a graph for Model Explorer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.collectives import wire_bytes
from shardalg.costs.step_time import timed
from shardalg.costs.walk import sent_bytes, walk
from shardalg.files import write_whole
from shardalg.graph.modules import modules
from shardalg.palette import PAPER, VERMILION
from shardalg.sizes.amounts import number
from shardalg.spmd.instruction import Collective
from shardalg.tables import bytes_text, seconds_text

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.graph.ir import Graph
    from shardalg.spmd.program import SpmdProgram

SCHEMA = "graph_builder.py and node_data_builder.py of google-ai-edge/model-explorer, 0649ae0c"
"""Files that define the JSON of Model Explorer, with their commit; the JSON has no version."""


def flat_numbers(cost: Cost, program: SpmdProgram, graph: Graph) -> dict[str, float]:
    """Return the main figures of a plan by name, as plain numbers with units in their names.

    Experiment trackers log such a dict. Amounts are per device and step.

    Args:
      cost: the plan's cost on a chip. Named sizes have the numbers at which the plan was made.
    """
    at = cost.at_hints
    found: dict[str, Any] = {
        "step_time_s": at.step_time_s,
        "compute_s": at.compute_s,
        "communication_s": at.communication_s,
        "flops_utilization": at.flops_utilization,
        "wire_bytes_per_step": at.wire_bytes,
        "peak_memory_bytes": at.peak_memory_bytes,
        "memory_capacity_bytes": at.hardware.hbm_bytes,
        "fits": int(bool(at.fits)),
        "devices": program.mesh.size,
        "operators": len(graph.nodes),
        "collectives": sum(item.count for item in at.items if item.is_communication),
    }
    # `/` groups the figures in the pages of most trackers.
    for name, size in at.hints.memory.by_class.items():
        found[f"memory/{name}_bytes"] = size
    for item in at.items:
        if item.is_communication:
            key = f"wire/{','.join(item.axes)}_bytes_per_step"
            found[key] = found.get(key, 0) + item.wire_bytes
    if at.analysis:
        for name, seconds in at.limits.seconds.items():
            found[f"time/{name.replace(' ', '_')}_s"] = seconds
    return {name: number(value) for name, value in found.items()}


def model_explorer(
    program: SpmdProgram, graph: Graph, hardware: Hardware | Topology, *, label: str
) -> dict[str, Any]:
    """Return a program as a graph of Model Explorer, with seconds and bytes per instruction.

    "graph" is a graph collection, which Model Explorer opens as a JSON file. "seconds" and
    "wire_bytes" are node data for it. All amounts are per step and device.

    Args:
      label: the name of the graph.
    """
    # Seconds of each instruction by its `id`; one in a loop is priced once per pass of the loop.
    seconds: dict[int, float] = {}
    for each in timed(program, graph, hardware):
        key = id(each.step.instruction)
        seconds[key] = seconds.get(key, 0.0) + float(each.seconds * each.step.count)
    of_node = modules(graph)
    makers = {local: f"argument {n}" for n, local in enumerate(program.block.arguments)}
    makers |= {local: f"constant {n}" for n, (local, _) in enumerate(program.constants)}
    # `makers` has the name of the node that makes each local value. Arguments and constants have
    # nodes of their own, an instruction has its number in the program.
    nodes: list[dict[str, Any]] = []
    for local, name in makers.items():
        held = program.locals[local]
        facts = {"block": f"{held.dtype}{list(held.shape)}", "sharding": held.sharding.text()}
        nodes.append(_node(name, name, "arguments and constants", facts))
    times: dict[str, Any] = {}
    sent: dict[str, Any] = {}
    steps = [*walk(program)]
    # Numbers first: the body of a loop comes before the loop, whose values it may read.
    for place, step in enumerate(steps):
        makers |= dict.fromkeys(step.instruction.results, f"{place}")
    for place, step in enumerate(steps):
        instruction, name = step.instruction, f"{place}"
        origin = graph.nodes[instruction.node] if instruction.node is not None else None
        attributes = instruction.attributes
        moves = isinstance(attributes, Collective)
        kind = attributes.sent_as if isinstance(attributes, Collective) else ""
        time_s = seconds.get(id(instruction), 0.0)
        times[name] = {"value": time_s}
        facts = {"seconds per step": seconds_text(time_s), "executions": f"{number(step.count)}"}
        if moves:
            moved = wire_bytes(instruction.attributes, sent_bytes(program, instruction))
            sent[name] = {"value": float(step.count * moved)}
            facts["bytes sent per step"] = bytes_text(sent[name]["value"])
        if origin is not None:
            facts["source"] = f"{origin.source}"
        # Model Explorer groups nodes by the path of their module.
        space = of_node[instruction.node] if instruction.node is not None else ""
        label_of = kind or (origin.signature.primitive if origin else type(attributes).__name__)
        node = _node(name, label_of, space, facts)
        node["incomingEdges"] = [
            {"sourceNodeId": makers[local], "targetNodeInputId": f"{at}"}
            for at, local in enumerate(instruction.operands)
            if local in makers and makers[local] != name
        ]
        nodes.append(node)
    whole = {
        "id": label,
        "nodes": nodes,
        "groupNodeAttributes": {"": {"program": label, "schema": SCHEMA}},
    }
    data = {
        name: {label: {"results": results, "gradient": _GRADIENT}}
        for name, results in (("seconds", times), ("wire_bytes", sent))
    }
    return {"graph": {"label": label, "graphs": [whole]}, **data}


_GRADIENT = [{"stop": 0, "bgColor": PAPER}, {"stop": 1, "bgColor": VERMILION}]
"""Colours of node data: white for the least value, and vermilion for the largest."""


def _node(name: str, label: str, space: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return a node of a graph of Model Explorer.

    Args:
      space: names of the groups around the node, separated by `/`.
      facts: texts by name, which are displayed if the node is selected.
    """
    attributes = [{"key": key, "value": value} for key, value in facts.items()]
    return {"id": name, "label": label, "namespace": space, "attrs": attributes}


def write_model_explorer(found: Mapping[str, Any], path: Path) -> None:
    """Write the graph to a JSON file, and each kind of node data to a file beside it."""
    # The graph comes last, so that its node data exist as soon as it does.
    for name in ("seconds", "wire_bytes"):
        write_whole(path.with_name(f"{path.stem}.{name}.json"), json.dumps(found[name]) + "\n")
    write_whole(path, json.dumps(found["graph"]) + "\n")
