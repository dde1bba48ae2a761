// The living report: sliders change the point, and everything below is computed again.
const part = name => find(`[data-part="${name}"]`);
const run = formulas(data.program), plans = data.plans, sizes = data.sizes;
const single = plans.length === 1, LARGEST = Number.MAX_SAFE_INTEGER;
const state = {point: {...data.hints}, chip: 0, overlap: null, plan: 0, what: "time",
  x: sizes[0].name, y: (sizes.find(one => one.axis) || sizes[sizes.length - 1]).name};
if (state.y === state.x && sizes.length > 1) state.y = sizes[1].name;
const overlaps = chip => Object.keys(data.overlaps).filter(name =>
  plans.every(plan => name in plan.on[chip].time));
state.overlap = overlaps(0)[0];

// Sizes that a slider visits: four steps per power of two, and all sizes up to 8.
const steps = new Map(sizes.map(({name, hint, axis}) => {
  const low = axis ? 1 : Math.max(1, Math.floor(hint / 64)), high = Math.max(hint * 64, 64);
  const found = new Set([hint]);
  for (let p = 1; p <= high; p *= 2)
    for (const n of p < 4 ? [p] : [p, 5 * p / 4, 3 * p / 2, 7 * p / 4])
      if (n >= low && n <= high) found.add(n);
  for (let n = hint; n >= low && Number.isInteger(n); n /= 2) found.add(n);
  for (let n = hint; n <= high; n *= 2) found.add(n);
  if (low <= 3 && high >= 3) found.add(3);
  return [name, [...found].filter(Number.isInteger).sort((a, b) => a - b)];
}));
const whole = ([n, d]) => d === 1n ? n.toLocaleString("en")
  : run.double([n, d]).toLocaleString("en", {maximumFractionDigits: 3});

// The guards of a plan that fail at a point, and whether the plan is certainly another one.
function guards(number, chip, point, quick) {
  const {facts, own, calls, used} = data.asked[number][chip], truth = [], known = [];
  const holds = i => truth[i] === undefined
    ? truth[i] = run.holds(facts[i], point, quick) : truth[i];
  const same = c => known[c] === undefined
    ? known[c] = (calls[c].f.every(holds) && calls[c].u.every(same)) || calls[c].a.some(set => set.every(holds))
    : known[c];
  const failing = new Set(own.filter(i => !holds(i))), differs = failing.size > 0;
  const add = c => {
    calls[c].f.forEach(i => { if (!holds(i)) failing.add(i); });
    calls[c].u.forEach(inner => { if (!same(inner)) add(inner); });
  };
  used.forEach(c => { if (!same(c)) add(c); });
  return {failing: [...failing], differs};
}
// The exact answer of each plan at a point; `failing` has the numbers of the guards that fail.
function evaluate(point, chip = state.chip, overlap = state.overlap) {
  const exact = run.exact(point), quick = run.quick(point);
  return plans.map((plan, number) => {
    const on = plan.on[chip], {failing, differs} = guards(number, chip, point, quick);
    const time = run.double(exact(on.time[overlap])), peak = exact(on.peak);
    return {
      number, time, peak, wire: exact(on.wire), compute: run.double(exact(on.compute)),
      sent: Object.entries(on.sent).map(([axes, root]) => [axes, exact(root)]),
      devices: exact(on.devices), failing, holds: !failing.length,
      differs, fits: run.double(peak) <= data.chips[chip].hbm,
    };
  });
}
// The same in double precision, for charts.
function sketch(point) {
  const quick = run.quick(point);
  return plans.map((plan, number) => {
    const on = plan.on[state.chip], found = guards(number, state.chip, point, quick);
    const peak = quick(on.peak)[0];
    return {time: quick(on.time[state.overlap])[0], compute: quick(on.compute)[0], peak,
      sent: quick(on.wire)[0], fits: peak <= data.chips[state.chip].hbm,
      failing: found.failing.length ? found.failing[0] : -1, differs: found.differs};
  });
}
view.evaluate = (point, chip, overlap) => evaluate(point, chip, overlap).map(one => ({
  ...one, peak: one.peak.map(String), wire: one.wire.map(String), devices: one.devices.map(String),
  sent: one.sent.map(([axes, value]) => [axes, value.map(String)])}));
view.sketch = sketch;

const QUANTITIES = {
  time: {name: "step time", text: seconds}, peak: {name: "peak memory", text: bytes},
  sent: {name: "bytes sent per device", text: bytes},
};
const reason = (number, at) => {
  const [text, decides, source] = data.asked[number][state.chip].reasons[at];
  return {text, decides, source};
};
const best = found => found.filter(one => one.failing.length === 0 && one.fits)
  .sort((a, b) => a.time - b.time)[0];

function setSize(name, value) {
  const number = Number(value);
  if (!Number.isInteger(number) || number < 1 || number > LARGEST) {
    part("valid").className = "banner bad";
    part("valid").textContent = `${name} = ${value}: give a whole number from 1 to `
      + `${count(LARGEST)}. The numbers below are those of the last point.`;
    return;
  }
  state.point[name] = number;
  redraw();
}
const option = (value, text, chosen) => {
  const made = make("option", {value, text});
  made.selected = chosen;
  return made;
};
const chooser = (label, name, options, chosen, change) => {
  const list = make("select", {"aria-label": label, "data-choice": name},
    ...options.map(([value, text]) => option(value, text, value === chosen)));
  list.addEventListener("change", () => change(list.value));
  return list;
};
function controls() {
  const box = part("sizes");
  box.replaceChildren(...sizes.map(({name, hint, axis}) => {
    const values = steps.get(name);
    const slide = make("input", {type: "range", min: 0, max: values.length - 1, step: 1,
      "data-slide": name, "aria-label": `${name}, slider`});
    const typed = make("input", {type: "number", min: 1, step: 1, "data-size": name,
      "aria-label": `${name}, number`});
    slide.addEventListener("input", () => setSize(name, values[slide.value]));
    typed.addEventListener("change", () => setSize(name, typed.value));
    return make("label", {}, make("span", {}, make("b", {text: name}),
      `${axis ? " (mesh axis)" : ""}, planned at ${count(hint)}`),
      make("span", {class: "pair"}, slide, typed));
  }), make("label", {}, make("b", {text: "Chip"}), chooser("chip", "chip",
    data.chips.map((chip, i) => [String(i), chip.name]), String(state.chip), value => {
      state.chip = Number(value);
      if (!overlaps(state.chip).includes(state.overlap)) state.overlap = overlaps(state.chip)[0];
      controls();
      redraw();
    })),
  make("label", {title: data.schedules}, make("b", {text: "Overlap of communication"}),
    chooser("overlap", "overlap", overlaps(state.chip).map(name => [name, data.overlaps[name]]),
      state.overlap, value => { state.overlap = value; redraw(); })));
}
function show() {
  for (const {name} of sizes) {
    const value = state.point[name], values = steps.get(name);
    find(`[data-size="${CSS.escape(name)}"]`).value = value;
    const near = values.reduce((a, b) => Math.abs(Math.log(b / value))
      < Math.abs(Math.log(a / value)) ? b : a);
    const slide = find(`[data-slide="${CSS.escape(name)}"]`);
    slide.value = values.indexOf(near);
    slide.setAttribute("aria-valuetext", value);
  }
}
function validity(one) {
  const box = part("valid"), name = plans[one.number].name;
  box.className = `banner ${one.holds ? "good" : "bad"}`;
  box.classList.toggle("bad", one.differs);
  if (one.holds) {
    box.textContent = `The plan${single ? "" : ` “${name}”`} holds at these sizes: all `
      + `${one.total} recorded conditions have the same answers, so the numbers are exact results `
      + "of its formulas.";
    return;
  }
  const where = Object.entries(state.point).map(([n, v]) => `${n}=${v}`).join(", ");
  const rows = one.failing.slice(0, 6).map(at => {
    const {text, decides, source} = reason(one.number, at);
    return make("li", {}, make("code", {text}), ` is false here; it decides: ${decides}`,
      source ? ` (${source})` : "", ".");
  });
  box.replaceChildren(make("b", {text: one.differs
    ? "The plan is another one at these sizes. " : "The plan may be another one at these sizes. "}),
  `The numbers are grey: they are those of the planned decisions. Plan again with `,
  make("code", {text: `plan.at(${where})`}), ".", make("ul", {class: "small"}, ...rows),
  one.failing.length > 6 ? make("span", {class: "small",
    text: `and ${one.failing.length - 6} more conditions.`}) : null);
}
const figure = (title, big, note, ...rest) => make("section", {class: "card"},
  make("header", {}, make("h2", {text: title})),
  make("div", {class: "big"}, big, " ", make("small", {text: note})), ...rest);
function figures(one) {
  const chip = data.chips[state.chip], on = plans[one.number].on[state.chip];
  const waits = Math.max(0, one.time - one.compute), share = v => `${100 * v / one.time || 0}%`;
  const faint = one.holds ? "" : "opacity:.55";
  const peak = run.double(one.peak), used = peak / chip.hbm;
  const time = figure("Step time", seconds(one.time), `on ${chip.name}`,
    make("div", {class: "stack"},
      make("i", {style: `width:${share(one.compute)};background:${kindColour("compute")}`}),
      make("i", {style: `width:${share(waits)};background:${PALETTE.kinds.all_gather}`})),
    legend([[kindColour("compute"), `computation ${seconds(one.compute)}`],
      [PALETTE.kinds.all_gather, `exposed communication ${seconds(waits)}`]]), make("p", {class: "small faint", text: `${on.note[0]
      .toUpperCase()}${on.note.slice(1)}.`}));
  const memory = figure("Peak memory", bytes(peak), `of ${bytes(chip.hbm)}`,
    make("div", {class: "meter"}, make("i", {class: used > 1 ? "over" : "",
      style: `width:${Math.min(100, 100 * used)}%`})),
    make("p", {class: "small", text: `${whole(one.peak)} bytes: ${used > 1
      ? `does not fit, ${Number(used.toPrecision(3))} times the memory of a device`
      : `${(100 * used).toFixed(used < 0.1 ? 1 : 0)}% of a device`}.`}));
  const most = Math.max(1e-30, ...one.sent.map(([, value]) => run.double(value)));
  const sent = figure("Sent", bytes(run.double(one.wire)), "per device and step",
    ...one.sent.map(([axes, value]) => make("div", {class: "axis"},
      make("div", {}, make("span", {text: `along ${axes}`}),
        make("span", {class: "num", text: `${whole(value)} B`})),
      make("div", {class: "meter"}, make("i", {
        style: `width:${100 * run.double(value) / most}%`})))));
  const box = part("figures");
  box.replaceChildren(time, memory, sent);
  box.style.cssText = faint;
  part("devices").textContent = `${whole(one.devices)} devices, ${plans[one.number].mesh}`;
}
function table(found) {
  const box = part("plans");
  if (single) return;
  const rows = found.map(one => {
    const picked = make("button", {type: "button", "aria-pressed": one.number === state.plan,
      "data-plan": one.number}, make("i", {style: `background:${series(one.number)};display:`
      + "inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px"}),
    plans[one.number].name);
    picked.addEventListener("click", () => { state.plan = one.number; redraw(); });
    const state_ = one.holds ? one.fits ? "" : "does not fit"
      : `grey: ${reason(one.number, one.failing[0]).text} is false`;
    return make("tr", {class: one.holds && one.fits ? "" : "faint"},
      make("td", {class: "tools"}, picked), make("td", {class: "num", text: seconds(one.time)}),
      make("td", {class: "num", text: bytes(run.double(one.peak))}),
      make("td", {class: "num", text: bytes(run.double(one.wire))}),
      make("td", {class: "num", text: whole(one.devices)}), make("td", {text: state_}));
  });
  box.replaceChildren(make("table", {class: "plain"}, make("tr", {},
    ...["plan", "step time", "peak memory", "sent", "devices", "state"].map((text, i) =>
      make("th", {text, class: i && i < 5 ? "num" : ""}))), ...rows));
}
// The integers in (low, high] at which the sign of a difference is another one than before.
function change(low, high, sign) {
  const first = sign(low);
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (sign(middle) === first) low = middle; else high = middle;
  }
  return high;
}
const at = (name, value) => ({...state.point, [name]: value});
const exactTime = (number, point) => run.exact(point)(plans[number].on[state.chip].time[state.overlap]);
const order = (a, b) => { const d = a[0] * b[1] - b[0] * a[1]; return d > 0n ? 1 : d < 0n ? -1 : 0; };
// Crossovers along a size: where another plan becomes the faster one, and where memory is full.
function crossovers(name) {
  const values = steps.get(name), found = [];
  const scan = (sign, words) => {
    let before = sign(values[0]);
    for (let i = 1; i < values.length; i++) {
      const now = sign(values[i]);
      if (now !== before) {
        const size = change(values[i - 1], values[i], sign);
        found.push({x: size, words: words(size, sign(size))});
      }
      before = now;
    }
  };
  plans.forEach((plan, i) => plans.slice(i + 1).forEach((other, k) => {
    const j = i + 1 + k;
    scan(size => order(exactTime(i, at(name, size)), exactTime(j, at(name, size))),
      (size, sign) => sign === 0 ? `from ${name} = ${count(size)}, both take as long`
        : `from ${name} = ${count(size)}, “${(sign > 0 ? other : plan).name}” is faster than `
        + `“${(sign > 0 ? plan : other).name}”`);
  }));
  if (single) {
    const on = plans[0].on[state.chip];
    scan(size => {
      const [time, compute] = [on.time.none, on.compute].map(root => run.exact(at(name, size))(root));
      return order(time, [2n * compute[0], compute[1]]);
    }, (size, sign) => `from ${name} = ${count(size)}, ${sign > 0 ? "communication takes longer than "
      + "computation" : "computation takes longer than communication"}`);
  }
  plans.forEach((plan, i) => {
    const hbm = [BigInt(Math.floor(data.chips[state.chip].hbm)), 1n];
    scan(size => order(run.exact(at(name, size))(plan.on[state.chip].peak), hbm) > 0,
      (size, over) => `from ${name} = ${count(size)}, ${single ? "the plan" : `“${plan.name}”`} `
        + `${over ? "does not fit" : "fits"} a device`);
  });
  return found.sort((a, b) => a.x - b.x);
}
function winner(found, turns) {
  const first = best(found), box = part("winner");
  const other = found.filter(one => first && one !== first && one.holds && one.fits)
    .sort((a, b) => a.time - b.time)[0];
  const name = one => plans[one.number].name;
  const text = single ? `Along ${state.x}, with the other sizes as above:`
    : !first ? "At these sizes no plan is certain to hold and to fit a device."
    : `Fastest here: “${name(first)}” with ${seconds(first.time)}${!other ? ""
      : other.time < 1.005 * first.time ? `; “${name(other)}” takes as long`
      : `; “${name(other)}” takes ${Number((other.time / first.time).toPrecision(3))} times as long`}.`;
  const list = turns.slice(0, 6).map(one => make("li", {text: `${one.words}.`}));
  if (turns.length > 6) list.push(make("li", {text: `and ${turns.length - 6} more crossovers.`}));
  box.replaceChildren(make("b", {text}), turns.length ? make("ul", {class: "small"}, ...list)
    : make("span", {text: ` No crossover along ${state.x} in the range of its slider.`}));
  view.crossovers = turns;
}
function curve(turns) {
  const box = part("curve"), quantity = QUANTITIES[state.what];
  const head = make("header", {}, make("h2", {text: `${quantity.name} along ${state.x}`}),
    make("span", {class: "tools"},
      chooser("quantity of the curve", "what", Object.entries(QUANTITIES).map(([key, one]) =>
        [key, one.name]), state.what, value => { state.what = value; redraw(); }),
      chooser("size of the curve", "x", sizes.map(({name}) => [name, `along ${name}`]), state.x,
        value => { state.x = value; redraw(); })));
  const drawing = make("div", {class: "chart"});
  const values = steps.get(state.x), rows = values.map(value => sketch(at(state.x, value)));
  box.replaceChildren(head, drawing, legend([...plans.map((plan, i) => [series(i), plan.name]),
    ["var(--line)", "grey: a condition fails"]]));
  chart(drawing, {
    label: `${quantity.name} along ${state.x}`, height: 300,
    x: {name: state.x, text: count, isLog: true}, y: {name: quantity.name, text: quantity.text, isLog: true},
    series: plans.map((plan, i) => ({name: plan.name, colour: series(i), line: true,
      points: values.map((value, k) => {
        const one = rows[k][i], why = one.failing < 0 ? "" : reason(i, one.failing).text;
        return {x: value, y: Math.max(one[state.what], 1e-12), faint: one.failing >= 0, id: `${i}:${value}`,
          pick: () => setSize(state.x, value), lines: [`${state.x} = ${count(value)}`,
            `${plan.name}: ${quantity.text(one[state.what])}`, why && `grey: ${why} is false`,
            one.fits ? "" : "does not fit a device"].filter(Boolean)};
      })})),
    limits: state.what === "peak" ? [{value: data.chips[state.chip].hbm, text: "memory of a device"}] : [],
    marks: [{x: state.point[state.x], text: "now", dash: "1 0", colour: "var(--pick-line)"},
      ...turns.map(one => ({x: one.x, text: ""}))],
  });
}
function map() {
  const box = part("map");
  const thin = name => {
    const values = steps.get(name).filter(n => n === state.point[name] || Number.isInteger(Math.log2(n))
      || Number.isInteger(Math.log2(n / data.hints[name])));
    return [...new Set([...values, state.point[name]])].sort((a, b) => a - b);
  };
  const others = sizes.filter(({name}) => name !== state.x);
  if (!others.length) { box.hidden = true; return; }
  if (state.y === state.x) state.y = others[0].name;
  const xs = thin(state.x), ys = thin(state.y);
  const cells = xs.map(x => ys.map(y => sketch({...state.point, [state.x]: x, [state.y]: y})));
  const times = cells.flat().flatMap(row => row.filter(one => one.failing < 0 && one.fits)
    .map(one => Math.log(one.time)));
  const [low, high] = [Math.min(...times), Math.max(...times)];
  const drawing = make("div", {class: "chart"});
  const cell = (i, j) => {
    const row = cells[i][j], lines = [`${state.x} = ${count(xs[i])}, ${state.y} = ${count(ys[j])}`];
    const sure = row.map((one, number) => ({...one, number})).filter(one => one.failing < 0);
    const good = sure.filter(one => one.fits).sort((a, b) => a.time - b.time);
    row.forEach((one, number) => lines.push(`${single ? "" : `${plans[number].name}: `}`
      + `${seconds(one.time)}, ${bytes(one.peak)}${one.fits ? "" : ", does not fit"}`
      + (one.failing < 0 ? "" : `; grey: ${reason(number, one.failing).text} is false`)));
    if (good.length) {
      const share = high > low ? (Math.log(good[0].time) - low) / (high - low) : 0;
      return {lines, fill: single ? `color-mix(in srgb, ${PALETTE.blocks[0]} ${95 - 70 * share}%, var(--paper))`
        : series(good[0].number)};
    }
    if (sure.length) return {lines, fill: PALETTE.clash, mark: "✕"};
    return row.every(one => one.differs) ? {lines, fill: "var(--line)"} : {lines, fill: "var(--half)"};
  };
  box.hidden = false;
  box.replaceChildren(make("header", {}, make("h2", {text: single
    ? `Where the plan holds and fits: ${state.x} and ${state.y}`
    : `Fastest plan that fits: ${state.x} and ${state.y}`}),
    make("span", {class: "tools"}, chooser("second size of the map", "y",
      others.map(({name}) => [name, `and ${name}`]), state.y, value => { state.y = value; redraw(); }))),
    drawing,
    legend([...(single ? [[PALETTE.blocks[0], "holds and fits; a darker cell is faster"]]
      : plans.map((plan, i) => [series(i), plan.name])),
    [PALETTE.clash, "✕ does not fit"], ["var(--half)", "may be another plan"],
    ["var(--line)", "another plan"]]));
  cellMap(drawing, {label: `map of ${state.x} and ${state.y}`, xs, ys, cell,
    x: {name: state.x, text: count}, y: {name: state.y, text: count},
    here: [xs.indexOf(state.point[state.x]), ys.indexOf(state.point[state.y])],
    pick: (i, j) => { state.point[state.y] = ys[j]; setSize(state.x, xs[i]); }});
}
function texts() {
  part("formulas").replaceChildren(make("h2", {text: "Formulas and conditions"}), ...plans.map((plan, number) => {
    const {facts, reasons} = data.asked[number][state.chip];
    return make("details", {}, make("summary", {text: `${single ? "The plan" : `“${plan.name}”`}: `
      + `${facts.length} conditions, ${plan.formulas.length} formulas on ${data.chips[0].name}`}),
    make("div", {class: "scroll"}, make("table", {class: "plain"}, ...plan.formulas.map(([name, text]) =>
      make("tr", {}, make("td", {text: name}), make("td", {}, make("code", {text})))))),
    make("div", {class: "scroll"}, make("table", {class: "plain"}, make("tr", {},
      ...["condition", "decides", "source"].map(text => make("th", {text}))),
    ...reasons.map(([text, decides, source]) => make("tr", {}, make("td", {}, make("code", {text})),
      make("td", {text: decides}), make("td", {text: source})))))
    );
  }), make("p", {class: "small faint", text: data.schedules}));
}
function redraw() {
  try {
    const found = evaluate(state.point);
    found.forEach(one => { one.total = data.asked[one.number][state.chip].facts.length; });
    const turns = crossovers(state.x);
    show();
    validity(found[state.plan]);
    winner(found, turns);
    figures(found[state.plan]);
    table(found);
    curve(turns);
    map();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    part("valid").className = "banner bad";
    part("valid").textContent = `No numbers here: ${error.message}.`;
  }
}
find("[data-reset]").addEventListener("click", () => {
  state.point = {...data.hints};
  redraw();
});
controls();
texts();
redraw();
redrawn(redraw);
