// Evaluation of a program of formulas (`FormulaProgram`) at one point, an object of sizes by name.
// `exact` uses fractions of integers of any length, `quick` double precision.
const formulas = program => {
  const steps = program.steps, needed = new Map();
  // The steps that a result depends on, in order.
  const needs = root => {
    if (!needed.has(root)) {
      const found = new Set([root]), left = [root];
      while (left.length) {
        const [what, ...operands] = steps[left.pop()];
        if (what !== "name" && what !== "number")
          operands.forEach(n => { if (!found.has(n)) { found.add(n); left.push(n); } });
      }
      needed.set(root, [...found].sort((a, b) => a - b));
    }
    return needed.get(root);
  };
  const gcd = (a, b) => { while (b) [a, b] = [b, a % b]; return a < 0n ? -a : a; };
  const ratio = (above, below) => {
    if (below === 0n) throw new RangeError("a formula divides by 0 at these sizes");
    if (below < 0n) [above, below] = [-above, -below];
    const shared = below === 1n ? 1n : gcd(above, below);
    return [above / shared, below / shared];
  };
  const less = (a, b) => a[0] * b[1] < b[0] * a[1];
  const exactly = {
    add: (a, b) => ratio(a[0] * b[1] + b[0] * a[1], a[1] * b[1]),
    multiply: (a, b) => ratio(a[0] * b[0], a[1] * b[1]),
    divide: (a, b) => ratio(a[0] * b[1], a[1] * b[0]),
    max: (a, b) => less(a, b) ? b : a,
    min: (a, b) => less(a, b) ? a : b,
    // Division of integers rounds towards zero, so only positive numbers are rounded up.
    ceil: ([n, d]) => [n / d + (n % d > 0n ? 1n : 0n), 1n],
  };
  const double = ([n, d]) => {
    // Both sides are cut to 1,000 bits if they are longer than a double can be.
    const long = Math.max(n.toString(16).length, d.toString(16).length) * 4 - 1000;
    return long > 0 ? Number(n >> BigInt(long)) / Number(d >> BigInt(long)) : Number(n) / Number(d);
  };
  const constants = steps.map(([what, n, d]) => what === "number" ? [BigInt(n), BigInt(d)] : null);
  const numbers = constants.map(value => value && double(value));
  const isWhole = constants.map(value => value !== null && value[1] === 1n
    && Number.isSafeInteger(Number(value[0])));
  // A function from the number of a step to its exact value [numerator, denominator].
  function exact(sizes) {
    const known = [];
    return root => {
      for (const at of needs(root)) {
        if (known[at]) continue;
        const [what, ...operands] = steps[at];
        known[at] = what === "number" ? constants[at]
          : what === "name" ? [BigInt(sizes[operands[0]]), 1n]
          : exactly[what](...operands.map(n => known[n]));
      }
      return known[root];
    };
  }
  // The same in doubles. `sure` is 2 for a whole number that is exact, 1 for a quotient of two such
  // numbers, which is whole exactly if the true quotient is, and 0 for other numbers.
  function quick(sizes) {
    const value = new Float64Array(steps.length), sure = new Int8Array(steps.length).fill(-1);
    return root => {
      for (const at of needs(root)) {
        if (sure[at] >= 0) continue;
        const [what, a, b] = steps[at];
        let x, level = 2;
        if (what === "number") { x = numbers[at]; level = isWhole[at] ? 2 : 0; }
        else if (what === "name") x = sizes[a];
        else if (what === "ceil") { x = Math.ceil(value[a]); level = sure[a] ? 2 : 0; }
        else {
          const [p, q] = [value[a], value[b]];
          x = what === "add" ? p + q : what === "multiply" ? p * q : what === "divide" ? p / q
            : what === "max" ? Math.max(p, q) : Math.min(p, q);
          level = sure[a] < 2 || sure[b] < 2 ? 0
            : what === "divide" && !Number.isInteger(x) ? 1 : 2;
        }
        value[at] = x;
        sure[at] = Number.isInteger(x) && !Number.isSafeInteger(x) ? 0 : level;
      }
      return [value[root], sure[root]];
    };
  }
  const RELATIONS = {
    "> 0": x => x > 0, ">= 0": x => x >= 0, "== 0": x => x == 0, "!= 0": x => x != 0,
  };
  // Whether a fact is true; where doubles could be wrong, it is computed exactly.
  function holds([root, relation], sizes, run) {
    const [value, sure] = run(root), divides = relation in RELATIONS ? 2 : 1;
    const whole = relation === "is whole";
    if (sure >= divides) return divides === 2 ? RELATIONS[relation](value)
      : Number.isInteger(value) === whole;
    const [n, d] = exact(sizes)(root);
    return divides === 2 ? RELATIONS[relation](n) : (d === 1n) === whole;
  }
  return {exact, quick, holds, double};
};
