"""Random contractions run on CPU devices, in processes that may end: `make fuzz-contractions`.

A check that fails inside XLA's compiler ends the process. So a child runs the programs and says
which one comes next; its parent counts the children that end, and starts another one behind it.
"""

import json
import math
import random
import subprocess
import sys

DEVICES = 8
GROUP = 10
"""So many programs are compiled as one."""
MESHES = (
    {"X": 2, "Y": 2, "Z": 2}, {"X": 4, "Y": 2}, {"X": 2, "Y": 2}, {"X": 8}, {"X": 3, "Y": 2},
)  # fmt: skip
LABELS = "abcdefgh"


def draw(seed, mesh):
    """Operands, layouts and the function of one program, as plain words."""
    rng = random.Random(seed)
    sizes = {label: rng.choice((1, 2, 3, 4, 4, 5, 7, 8)) for label in LABELS}
    if rng.random() < 0.4:
        return experts(rng, sizes, mesh)
    first = rng.sample(LABELS, rng.randint(1, 4))
    terms, steps, current = [first], [], first
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        batch = rng.sample(current, min(len(current), rng.choice((0, 1, 1, 2))))
        rest = [x for x in current if x not in batch]
        summed = rng.sample(rest, min(len(rest), rng.choice((0, 1, 1, 1, 2))))
        fresh = rng.sample([x for x in LABELS if x not in current], rng.randint(0, 2))
        other = batch + summed + fresh
        rng.shuffle(other)
        out = [x for x in current + fresh if x not in summed]
        rng.shuffle(out)
        if not other or len(out) > 5:
            continue
        swapped = rng.random() < 0.3
        steps.append(
            (current, other, out, swapped, rng.choice(("", "", "tanh", "transpose", "split")))
        )
        terms.append(other)
        current = out
    if not steps:
        return draw(f"{seed}+", mesh)
    layouts = [layout(rng, len(term), mesh) for term in terms]
    return {
        "sizes": sizes, "terms": terms, "steps": steps, "layouts": layouts,
        "inner": layout(rng, len(current), mesh), "result": layout(rng, len(current), mesh),
        "gradient": rng.random() < 0.6 and rng.randrange(len(terms)),
        "dtype": rng.choice(("float32",) * 6 + ("bfloat16", "int32", "complex64", "float16")),
        "seed": rng.randrange(1 << 30),
    }  # fmt: skip


def experts(rng, sizes, mesh):
    """Return the gradient of weights with a batch dimension, over an often sharded dimension.

    A partial sum of a product with batch dimensions is transposed, which once ended the process.
    """
    # A sum of few terms is no library call, and a small result is scattered, not the operands.
    devices = math.prod(mesh.values())
    sizes |= {"a": devices * rng.choice((1, 1, 2)), "b": devices * rng.choice((1, 2, 2, 3, 4))}
    sizes |= {label: rng.choice((2, 3, 4)) for label in "cde"}
    left, right, out = (
        rng.choice(forms) for forms in (("abc", "abcd", "bac"), ("ace", "aec"), ("abe", "bae"))
    )
    if "d" in left:
        out = out.replace("b", "bd")
    right = right if "c" in left else right.replace("c", "d")
    axis = rng.choice(sorted(mesh))
    first, weights = layout(rng, len(left), {axis: 2}), layout(rng, len(right), mesh)
    if rng.random() < 0.7:
        first = [None] * len(left)
    if rng.random() < 0.5:
        weights = [tuple(mesh) if label == "a" else None for label in right]
    others = [a for a in mesh if not any(a in (e or ()) for e in first)]
    first[left.index("b")] = (*(first[left.index("b")] or ()), *others) or None
    return {
        "sizes": sizes, "terms": [list(left), list(right)],
        "steps": [(left, right, out, rng.random() < 0.3, rng.choice(("", "tanh")))],
        "layouts": [first, weights], "inner": [None] * len(out), "result": [None] * len(out),
        "gradient": 1, "dtype": "float32", "seed": rng.randrange(1 << 30),
    }  # fmt: skip


def layout(rng, rank, mesh):
    """Draw an entry per dimension; each axis is on one of them or nowhere."""
    entries = [[] for _ in range(rank)]
    for axis in rng.sample(sorted(mesh), len(mesh)):
        if entries and rng.random() < 0.7:
            rng.choice(entries).append(axis)
    return [tuple(entry) or None for entry in entries]


def program(words, mesh):
    """Return the function of one program."""
    import jax
    import jax.numpy as jnp

    import shardalg as sa

    def forward(*operands):
        value = operands[0]
        for nth, (left, right, out, swapped, after) in enumerate(words["steps"]):
            pair, names = (value, operands[nth + 1]), (left, right)
            if swapped:
                pair, names = pair[::-1], names[::-1]
            value = jnp.einsum(f"{''.join(names[0])},{''.join(names[1])}->{''.join(out)}", *pair)
            if after == "tanh" and value.dtype.kind == "f":
                value = jnp.tanh(value)
            if after == "transpose":
                value = value.T.T if nth % 2 else value * 2
            if after == "split" and nth == len(words["steps"]) - 1:
                value = sa.mesh_split(value, mesh, indices(words["inner"], mesh))
        return value

    which = words["gradient"]
    if which is False or words["dtype"] in ("int32", "complex64"):
        return forward, words["result"]
    loss = lambda *operands: (forward(*operands).astype("float32") ** 2).sum()  # noqa: E731
    return jax.grad(loss, which), words["layouts"][which]


def indices(entries, mesh):
    """Return a sharding for `mesh_split`: axis numbers, -1 for none."""
    names = list(mesh.axis_names)
    return [tuple(names.index(x) for x in entry) if entry else -1 for entry in entries]


def checked(seed, numbers):
    """Return the fault of programs on one mesh that are compiled together, or None.

    All are compiled. One group in ten also runs, and its results are compared with one device.
    """
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import shardalg as sa
    from shardalg.plan.running import bound, executable

    axes = random.Random(f"{seed}/{numbers[0] // GROUP}").choice(MESHES)
    mesh = sa.Mesh(axes)
    drawn = [draw(f"{seed}/{number}", axes) for number in numbers]
    functions, results, arguments = [], [], []
    for words in drawn:
        rng = np.random.default_rng(words["seed"])
        shapes = [[words["sizes"][x] for x in term] for term in words["terms"]]
        held = [rng.integers(-2, 3, shape).astype("float32") for shape in shapes]
        arguments.append([x.astype(jax.numpy.dtype(words["dtype"])) for x in held])
        function, result = program(words, mesh)
        functions.append(function)
        results.append(P(*result))

    def every(operands):
        return [function(*each) for function, each in zip(functions, operands, strict=True)]

    specs = [[P(*entries) for entries in words["layouts"]] for words in drawn]
    plan = sa.plan(every, arguments, mesh=mesh, in_shardings=(specs,), out_shardings=results)
    if len(numbers) > 1 and numbers[0] // GROUP % 10:
        assert executable(plan, bound(plan, None, None), None).compiled  # proofs take longer
        return None
    made, want = plan.lower()(arguments), jax.jit(every)(arguments)
    for number, words, a, b in zip(numbers, drawn, made, want, strict=True):
        a, b = (np.asarray(x).astype("complex128") for x in (a, b))
        scale = max(1.0, np.abs(b).max(initial=0))
        error = np.abs(a - b).max(initial=0) / scale
        limit = 2e-5 if words["dtype"] in ("float32", "int32", "complex64") else 5e-2
        if not error <= limit:
            return f"{seed}/{number} differs from one device by {error:.2g} of {scale:.3g}"
    return None


def child(seed, first, count):
    """Run programs in groups; print the next one, and faults."""
    import shardalg as sa

    sa.host_devices(DEVICES)
    for start in range(first, first + count, GROUP if count > 1 else 1):
        numbers = range(start, min(start + GROUP, first + count))
        say(next=start)
        try:
            fault = checked(seed, numbers)
        except Exception as error:  # the parent reports it
            fault = f"{type(error).__name__}: {error}"[:400]
        if fault:
            say(fault=fault)
    say(next=None)


def say(**words):
    print(json.dumps(words), flush=True)


def asked(seed, first, count):
    """Return a child's output, its status, and the fault that its compiler names."""
    command = [sys.executable, "-m", "tests.lower.contractions", "child"]
    done = subprocess.run([*command, seed, str(first), str(count)], capture_output=True, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not said:
        raise RuntimeError(done.stderr[-2000:])
    why = [line for line in done.stderr.splitlines() if "Check failed" in line]
    return said, done.returncode, (why or [done.stderr[-300:]])[0]


def run(seed, count, show=print):
    """Run programs in child processes; return the aborted ones, and faults."""
    aborted, faults, first = [], [], 0
    while first < count:
        until = min(count, first + 20 * GROUP)
        said, status, why = asked(seed, first, until - first)
        faults += [line["fault"] for line in said if "fault" in line]
        reached = [line["next"] for line in said if "next" in line][-1]
        if reached is None:
            first = until
            continue
        first = min(reached + GROUP, count)
        alone = [n for n in range(reached, first) if asked(seed, n, 1)[0][-1]["next"] is not None]
        aborted += alone or [reached]
        show(f"{seed}/{alone or reached} ended the process with status {status}: {why}")
    return aborted, faults


def main():
    if sys.argv[1] == "child":
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    count, seed = int(sys.argv[1]), sys.argv[2]
    print(f"{count} contractions, seed {seed}", flush=True)
    aborted, faults = run(seed, count)
    print("\n".join(faults))
    print(f"{count} contractions: {len(aborted)} ended the process, {len(faults)} faults")
    return bool(aborted or faults)


if __name__ == "__main__":
    raise SystemExit(main())
