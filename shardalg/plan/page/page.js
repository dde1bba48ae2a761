// The mesh as a grid: positions of devices row by row.
const axes = data.mesh.axes, size = axes.reduce((n, axis) => n * axis[1], 1);
const at = (digit, place) => Math.floor(place / digit[0]) % digit[1];
const block = (digits, place) => digits.reduce((n, digit) => n * digit[1] + at(digit, place), 0);
const device = place => data.mesh.ids ? data.mesh.ids[place] : place;
const grid = (() => {
  const split = [];
  for (let s = 1; s < axes.length; s++) {
    const columns = axes.slice(s).reduce((n, axis) => n * axis[1], 1);
    split.push({s, columns, rows: size / columns});
  }
  const shape = split.sort((a, b) => Math.abs(Math.log(a.rows / a.columns))
    - Math.abs(Math.log(b.rows / b.columns)))[0] || {s: 0, columns: size, rows: 1};
  const names = part => part.map(axis => `${axis[0]}=${axis[1]}`).join(", ");
  let across = names(axes.slice(shape.s)), down = names(axes.slice(0, shape.s));
  let columns = shape.columns, rows = shape.rows, turned = false;
  if (rows > columns) {
    [columns, rows, across, down, turned] = [rows, columns, down, across, true];
  }
  // A mesh of one axis is wrapped into lines of 16.
  if (rows === 1 && columns > 16) { rows = Math.ceil(columns / 16); columns = 16; }
  const place = (row, column) => turned ? column * rows + row : row * columns + column;
  return {columns, rows, across, down, place};
})();
const cells = [], labels = [];
let chosen = 0, painted = null;
function drawMesh() {
  const cell = Math.max(5, Math.min(36, Math.floor(430 / grid.columns),
    Math.floor(300 / grid.rows)));
  const left = grid.down ? 18 : 2, top = 18;
  const width = left + cell * grid.columns + 2, height = top + cell * grid.rows + 2;
  const svg = draw("svg", {viewBox: `0 0 ${Math.max(width, 200)} ${height}`,
    width: Math.max(width, 200), tabindex: 0, role: "application",
    "aria-label": "Devices of the mesh: arrow keys choose a device"});
  svg.append(draw("text", {x: left, y: 12, class: "axisname", fill: "currentColor"},
    `${grid.across} →`));
  if (grid.down)
    svg.append(draw("text", {x: -top, y: 12, transform: "rotate(-90)", "text-anchor": "end",
      class: "axisname", fill: "currentColor"}, `← ${grid.down}`));
  for (let row = 0; row < grid.rows; row++)
    for (let column = 0; column < grid.columns; column++) {
      const place = grid.place(row, column);
      if (place >= size) continue;
      const [x, y] = [left + column * cell, top + row * cell];
      cells[place] = draw("rect", {x, y, width: cell - 1, height: cell - 1, rx: cell > 12 ? 3 : 0});
      cells[place].dataset.place = place;
      svg.append(cells[place]);
      if (cell >= 20) {
        labels[place] = draw("text", {x: x + cell / 2 - 0.5, y: y + cell / 2 + 3.5,
          "text-anchor": "middle", fill: "#111", "pointer-events": "none"});
        svg.append(labels[place]);
      }
    }
  svg.addEventListener("click", event => {
    const hit = event.target.closest("rect");
    if (hit) { chosen = Number(hit.dataset.place); paint(painted); }
  });
  svg.addEventListener("keydown", event => {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
    const move = step[event.key];
    if (!move) return;
    event.preventDefault();
    for (let row = 0; row < grid.rows; row++)
      for (let column = 0; column < grid.columns; column++)
        if (grid.place(row, column) === chosen) {
          const next = grid.place(Math.min(grid.rows - 1, Math.max(0, row + move[0])),
            Math.min(grid.columns - 1, Math.max(0, column + move[1])));
          if (next < size) chosen = next;
          return paint(painted);
        }
  });
  find(".drawing").append(svg);
}
const coordinates = place => {
  let rest = place;
  return axes.map(axis => axis).reverse().map(([name, count]) => {
    const here = rest % count;
    rest = Math.floor(rest / count);
    return `${name}=${here}`;
  }).reverse().join(", ");
};
// `what` is null, {digits, title} of a collective, or {layout, title} of a value.
function paint(what) {
  painted = what;
  const key = place => {
    if (!what) return 0;
    if (what.digits)
      return what.digits.reduce((rest, digit) => rest - digit[0] * at(digit, rest), place);
    const layout = data.layouts[what.layout];
    return [...layout.dims, layout.parts].map(digits => block(digits, place)).join();
  };
  const keys = [], number = new Map();
  for (let place = 0; place < size; place++) {
    keys[place] = key(place);
    if (!number.has(keys[place])) number.set(keys[place], number.size);
  }
  const same = [];
  for (let place = 0; place < size; place++) {
    const group = number.get(keys[place]), mine = keys[place] === keys[chosen];
    if (mine) same.push(device(place));
    const cell = cells[place];
    cell.setAttribute("fill", what ? colour(group) : "#c9d3de");
    cell.setAttribute("stroke", place === chosen ? "var(--pick-line)" : mine && what ? "currentColor" : "none");
    cell.setAttribute("stroke-width", place === chosen ? 3 : 2);
    if (labels[place]) labels[place].textContent = what ? group : device(place);
  }
  cells[chosen].parentNode.append(cells[chosen]);
  if (labels[chosen]) cells[chosen].parentNode.append(labels[chosen]);
  const others = same.length > 8 ? `${same.slice(0, 8).join(", ")}, ...` : same.join(", ");
  const where = `Device ${device(chosen)} (${coordinates(chosen)})`;
  let title = `Mesh of ${size.toLocaleString("en")} devices`, said = `${where}.`;
  if (what && what.digits) {
    title = what.title;
    said = `${number.size.toLocaleString("en")} groups, a colour and number each. ${where} is in `
      + `group ${number.get(keys[chosen])} with ${same.length - 1} others: devices ${others}.`;
  } else if (what) {
    const layout = data.layouts[what.layout];
    title = what.title;
    const range = layout.dims.map((digits, dim) => {
      const start = block(digits, chosen) * layout.shard[dim];
      return `${Math.min(start, layout.shape[dim])}:`
        + `${Math.min(start + layout.shard[dim], layout.shape[dim])}`;
    });
    const held = layout.shape.length ? `elements [${range.join(", ")}]` : "the number";
    const sum = layout.parts.length ? "a partial sum of " : "";
    said = `${number.size.toLocaleString("en")} different blocks, a colour and number each. `
      + `${where} holds ${sum}${held}`
      + (same.length > 1 ? `, as do ${same.length - 1} others: devices ${others}.` : ", alone.");
  }
  find(".meshtitle").textContent = title;
  find(".meshsaid").textContent = said;
}

// The selection: a line or a module, and in it a collective or a value.
const inside = module => {
  const found = new Set([module]);
  data.modules.forEach((one, i) => { if (found.has(one.parent)) found.add(i); });
  return found;
};
// At first the slowest collective is shown, so that the mesh has an example.
const first = data.collectives.length ? "c0" : null;
let now = {kind: null, number: null, show: null};
function matches(row) {
  if (now.kind === "line") return row.line === now.number;
  return inside(now.number).has(row.module);
}
const values = data.values.map(([line, module, name, n, type, layout, why], id) =>
  ({id, line, module, name, n, type, layout, why}));
const times = n => n > 1 ? ` and ${n - 1} more like it` : "";
function collectiveItem(one, id) {
  const picked = now.show === `c${id}`;
  const item = make("button", {class: "item", type: "button", "aria-pressed": picked,
    "data-show": `c${id}`},
    make("span", {class: "top"}, make("span", {}, make("span", {class: "chip",
      style: `background:${kindColour(one.kind)}`, text: one.kind}), ` along ${one.axes}`),
      make("span", {class: "num", text: `${bytes(one.b)}, ${seconds(one.s)}`})),
    make("div", {class: "small"}, make("code", {text: one.name}), times(one.n)));
  if (!picked) return item;
  const side = (name, layout, why) => make("p", {class: "small"}, make("b", {text: `${name} `}),
    make("code", {text: data.layouts[layout].text}), ` ${why}`);
  const box = make("div", {}, item);
  box.append(make("p", {class: "small", text: `${one.phase || "forward"} pass: ${bytes(one.each)} per `
    + `execution, ${(one.n * one.runs).toLocaleString("en")} executions per step. Why: ${one.why}.`}),
    side("Has", one.has, `— ${one.hasWhy}.`), side("Needs", one.needs, `— ${one.needsWhy}.`));
  if (one.causes.length)
    box.append(make("p", {class: "small"}, make("b", {text: "Caused by: "}), one.causes.join(", ")));
  box.append(make("p", {class: "note small"}, one.tried ? one.tried
    : "To plan the changes that would remove it, call ",
    one.tried ? null : make("code", {text: `print(plan.explain(${one.first}))`})));
  return box;
}
function valueItem(one) {
  const picked = now.show === `v${one.id}`;
  return make("button", {class: "item", type: "button", "aria-pressed": picked,
    "data-show": `v${one.id}`},
    make("span", {class: "top"}, make("code", {text: one.name}),
      make("code", {class: "num", text: data.layouts[one.layout].text})),
    make("div", {class: "small faint", text: `${one.type}${times(one.n)}`}),
    picked ? make("div", {class: "small", text: `Why: ${one.why}`}) : null);
}
const whole = new Set();
function section(title, items, most, name) {
  const box = make("div", {}, make("h3", {text: `${title} (${items.length})`}));
  const open = whole.has(name) || items.length <= most + 2;
  box.append(...(open ? items : items.slice(0, most)).map(each => each()));
  if (!open) box.append(make("div", {class: "tools"}, make("button", {type: "button",
    "data-all": name, text: `Show all ${items.length}`})));
  return box;
}
const remedy = one => make("div", {class: "note small"}, make("b", {text: one.where ?
  `${one.op} at ${one.where}: ` : `${one.op}: `}), one.warning, one.remedy ? `. ${one.remedy}` : "");
function details() {
  const box = find(".detail");
  box.replaceChildren();
  const notes = data.remedies.filter(one => now.kind === null || (now.kind === "line"
    ? one.line === now.number : values.some(v => v.line === one.line && matches(v))));
  if (now.kind === null) {
    box.append(make("p", {text: "Choose a line or a module: its collectives, the shardings of its "
      + "values, their reasons and remedies are shown here and on the mesh."}));
    if (data.collectives.length)
      box.append(section("Collectives, the slowest first",
        data.collectives.map((one, id) => () => collectiveItem(one, id)), 5, "c"));
    else box.append(make("p", {text: "The program has no collectives."}));
  } else {
    const group = data[now.kind === "line" ? "lines" : "modules"][now.number];
    const own = make("div", {}, make("h2", {text: group.name}));
    if (group.text) own.append(make("p", {}, make("code", {text: group.text})));
    own.append(make("p", {text: `${seconds(group.s + group.x)} per step: ${seconds(group.s)} compute, `
      + `${seconds(group.x)} waiting for communication. Sends ${bytes(group.b)} in `
      + `${group.n.toLocaleString("en")} collectives. At the memory peak its values hold `
      + `${bytes(group.m)}.`}));
    box.append(own);
  }
  if (notes.length) box.append(section("Warnings and remedies",
    notes.map(one => () => remedy(one)), 5, "w"));
  if (now.kind === null) return;
  const moved = data.collectives.map((one, id) => ({...one, id})).filter(matches);
  if (moved.length) box.append(section("Collectives",
    moved.map(one => () => collectiveItem(one, one.id)), 8, "c"));
  const held = values.filter(matches);
  if (held.length) box.append(section("Values", held.map(one => () => valueItem(one)), 12, "v"));
}
function show() {
  const id = now.show ? Number(now.show.slice(1)) : -1;
  if (now.show && now.show[0] === "c") {
    const one = data.collectives[id];
    paint({digits: one.digits, title: `${one.kind} along ${one.axes}: groups of devices`});
  } else if (now.show) {
    const one = values[id];
    paint({layout: one.layout, title: `${one.name}: ${data.layouts[one.layout].text}`});
  } else paint(null);
  details();
}
function choose(kind, number, part, keep) {
  now = {kind, number, show: part || null};
  if (kind !== null && !part) {
    const first = data.collectives.findIndex(matches);
    const value = values.find(one => matches(one) && data.layouts[one.layout].split)
      || values.find(matches);
    now.show = first >= 0 ? `c${first}` : value ? `v${value.id}` : null;
  }
  const touched = new Set();
  if (kind !== null) [...values, ...data.collectives].filter(matches).forEach(row => {
    touched.add(kind === "line" ? `module:${row.module}` : `line:${row.line}`);
  });
  all("[data-pick]").forEach(row => {
    row.setAttribute("aria-pressed", row.dataset.pick === `${kind}:${number}`);
    row.classList.toggle("related", touched.has(row.dataset.pick));
  });
  show();
  if (!keep) link();
}
const LISTS = {line: "lines", module: "modules"};
function link() {
  if (!data.linked) return;
  const part = now.kind === null ? "" : `${now.kind}=`
    + encodeURIComponent(data[LISTS[now.kind]][now.number].name);
  const hash = part + (now.show && (part || now.show !== first) ? `${part ? "&" : ""}show=${now.show}` : "");
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}
function follow() {
  const given = new URLSearchParams(location.hash.slice(1)), part = given.get("show");
  const known = part && (part[0] === "c" ? data.collectives : values)[Number(part.slice(1))];
  for (const kind of ["line", "module"])
    if (given.has(kind)) {
      const number = data[LISTS[kind]].findIndex(one => one.name === given.get(kind));
      if (number >= 0) {
        choose(kind, number, known ? part : null, true);
        const row = find(`[data-pick="${kind}:${number}"]`);
        if (row) row.scrollIntoView({block: "nearest"});
        return;
      }
    }
  choose(null, null, known ? part : first, true);
}

// Memory: the values alive at a point of the curve.
const curve = find(".curve"), memory = data.memory;
function alive(point, told) {
  point = Math.max(0, Math.min(memory.totals.length - 1, point));
  curve.setAttribute("aria-valuenow", point);
  const marker = find(".now") || curve.appendChild(make("div", {class: "mark now"}));
  marker.style.left = `${100 * (point + 0.5) / memory.totals.length}%`;
  const sums = new Map();
  memory.values.filter(v => v[3] <= point && point <= v[4]).forEach(([name, kind, held]) => {
    const key = `${kind} ${memory.alike[name]}`, one = sums.get(key) || [kind, name, 0, 0];
    one[2] += held;
    one[3] += 1;
    sums.set(key, one);
  });
  const rows = [...sums.values()].sort((a, b) => b[2] - a[2]), shown = rows.slice(0, 12);
  const rest = memory.totals[point] - shown.reduce((n, one) => n + one[2], 0);
  const list = find(".alive");
  list.replaceChildren();
  shown.forEach(([kind, name, held, n]) => list.append(
    make("i", {style: `background:${memory.colours[kind]}`, title: memory.classes[kind]}),
    make("code", {text: memory.names[name] + times(n),
      title: `${memory.names[name]}, ${memory.classes[kind]}`}),
    make("span", {class: "num", text: bytes(held)})));
  if (rest > 0) list.append(make("i"), make("span", {text: "smaller values"}),
    make("span", {class: "num", text: bytes(rest)}));
  find(".alivehere summary").textContent = `Values alive at ${point === memory.peak ? "the peak"
    : `this point${memory.phases[point] ? ` of the ${memory.phases[point]} pass` : ""}`}: `
    + bytes(memory.totals[point]);
  if (told) find(".alivehere").open = true;
  if (told) curve.setAttribute("aria-valuetext", bytes(memory.totals[point]));
}
curve.addEventListener("click", event => {
  const box = curve.getBoundingClientRect();
  alive(Math.floor((event.clientX - box.left) / box.width * memory.totals.length), true);
});
curve.addEventListener("keydown", event => {
  const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10}[event.key];
  const here = Number(curve.getAttribute("aria-valuenow"));
  if (event.key === "Home") alive(0, true);
  else if (event.key === "End") alive(memory.totals.length - 1, true);
  else if (event.key === "Enter") alive(here, true);
  else if (step) alive(here + step, true);
  else return;
  event.preventDefault();
});
view.addEventListener("click", event => {
  const row = event.target.closest("[data-pick]"), part = event.target.closest("[data-show]");
  const more = event.target.closest("[data-all]"), reset = event.target.closest("[data-reset]");
  if (row) {
    const [kind, number] = row.dataset.pick.split(":"), again = row.ariaPressed === "true";
    whole.clear();
    if (again) choose(null, null, first);
    else choose(kind, Number(number));
    // In a narrow window the details are below the lists.
    if (!again && view.clientWidth < 1000) find(".right").scrollIntoView({block: "start"});
  } else if (part) {
    now.show = part.dataset.show;
    show();
    link();
    const picked = find(`[data-show="${now.show}"]`);
    if (picked) picked.focus({preventScroll: true});
  } else if (more && find(".detail").contains(more)) {
    whole.add(more.dataset.all);
    details();
  } else if (reset) choose(null, null, first);
});
view.addEventListener("keydown", event => {
  if (event.key === "Escape") return choose(null, null, first);
  const row = event.target.closest("[data-pick]");
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!row || !step) return;
  const rows = [...row.closest(".list").querySelectorAll("[data-pick]")];
  const next = rows[rows.indexOf(row) + step];
  if (next) { event.preventDefault(); next.focus(); }
});
drawMesh();
if (data.linked) {
  follow();
  window.addEventListener("hashchange", follow);
} else choose(null, null, first, true);
alive(memory.peak);
