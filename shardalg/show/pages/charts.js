// Charts: lines or points over two scales, and maps of cells. All react to pointer and keyboard.
const power = value => Math.floor(Math.log10(value) + 1e-9);
const scale = (values, isLog, from, to) => {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (!isLog) low = Math.min(0, low);
  if (low === high) { low = isLog ? low / 2 : low; high = high ? high * (isLog ? 2 : 1) : 1; }
  const of = value => isLog ? Math.log(value) : value;
  const at = value => from + (of(value) - of(low)) / (of(high) - of(low)) * (to - from);
  const ticks = [];
  if (isLog) {
    const steps = Math.log10(high / low) > 3 ? [1] : Math.log10(high / low) > 1 ? [1, 3] : [1, 2, 5];
    for (let p = power(low); p <= power(high) + 1; p++)
      for (const m of steps) {
        const tick = Number(`${m}e${p}`);
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    if (ticks.length < 2) ticks.splice(0, ticks.length, low, high);
    while (ticks.length > 8) ticks.splice(0, ticks.length, ...ticks.filter((_, i) => i % 2 === 0));
  } else {
    const unit = 10 ** power(high - low);
    const step = [0.1, 0.2, 0.5, 1, 2].map(m => m * unit).find(s => (high - low) / s <= 6);
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high * 1.0001; tick += step)
      ticks.push(Number(tick.toPrecision(6)));
  }
  return {at, ticks, low, high};
};
// A drawing that keeps the letters' size: its width follows its box.
const canvas = (box, height, label) => {
  const width = Math.max(260, Math.round(box.clientWidth || 560));
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label});
  box.replaceChildren(svg);
  return {svg, width};
};
function chart(box, spec) {
  // spec: {label, x, y, height, series, limits, marks}. A scale is {name, text, isLog}; a series is
  // {name, colour, points, line}; a point is {x, y, lines, faint, pick, refused, front}.
  const height = spec.height || 300, {svg, width} = canvas(box, height, spec.label);
  const left = 68, right = 14, top = 14, bottom = 40;
  const points = spec.series.flatMap(one => one.points);
  if (!points.length) {
    svg.append(draw("text", {x: 10, y: 24, class: "soft"}, spec.empty || "No points."));
    return;
  }
  const limits = spec.limits || [];
  const most = Math.max(...points.map(p => p.y));
  const near = limits.filter(one => one.value <= most * 20);
  const x = scale([...points.map(p => p.x), ...(spec.x.limits || [])], spec.x.isLog, left + 6, width - right - 6);
  const y = scale([...points.map(p => p.y), ...near.map(one => one.value)], spec.y.isLog,
    height - bottom - 4, top + 6);
  for (const tick of y.ticks) {
    const at = y.at(tick);
    svg.append(draw("line", {x1: left, x2: width - right, y1: at, y2: at, class: "grid"}),
      draw("text", {x: left - 6, y: at + 4, "text-anchor": "end"}, spec.y.text(tick)));
  }
  let last = -Infinity;
  for (const tick of x.ticks) {
    const at = x.at(tick), text = spec.x.text(tick);
    if (at - last < 7 * text.length + 8) continue;
    last = at;
    svg.append(draw("line", {x1: at, x2: at, y1: height - bottom, y2: height - bottom + 4,
      stroke: "var(--faint)"}),
      draw("text", {x: Math.min(at, width - right - 3 * text.length), y: height - bottom + 17,
        "text-anchor": "middle"}, text));
  }
  svg.append(draw("line", {x1: left, x2: width - right, y1: height - bottom, y2: height - bottom,
    stroke: "var(--faint)"}),
    draw("text", {x: (left + width) / 2, y: height - 6, "text-anchor": "middle", class: "soft"},
      spec.x.name),
    draw("text", {x: -(top + height - bottom) / 2, y: 11, transform: "rotate(-90)",
      "text-anchor": "middle", class: "soft"}, spec.y.name));
  for (const one of near) {
    const at = y.at(one.value);
    svg.append(draw("line", {x1: left, x2: width - right, y1: at, y2: at, stroke: PALETTE.refused,
      "stroke-width": 2}), draw("text", {x: width - right - 2, y: at < top + 20 ? at + 14 : at - 5,
      "text-anchor": "end"}, one.text));
  }
  for (const one of spec.marks || []) {
    if (one.x < x.low || one.x > x.high) continue;
    const at = x.at(one.x);
    svg.append(draw("line", {x1: at, x2: at, y1: top, y2: height - bottom,
      stroke: one.colour || "var(--ink)", "stroke-dasharray": one.dash || "4 3"}));
    if (one.text) svg.append(draw("text", {x: at > width / 2 ? at - 4 : at + 4, y: top + 10,
      "text-anchor": at > width / 2 ? "end" : "start"}, one.text));
  }
  for (const one of spec.series) {
    const places = one.points.map(p => [x.at(p.x), y.at(p.y)]);
    if (one.line)
      for (let i = 1; i < places.length; i++) {
        const faint = one.points[i].faint || one.points[i - 1].faint;
        svg.append(draw("line", {x1: places[i - 1][0], y1: places[i - 1][1], x2: places[i][0],
          y2: places[i][1], stroke: faint ? "var(--line)" : one.colour,
          "stroke-width": faint ? 1.5 : 2.5}));
      }
    one.points.forEach((p, i) => {
      const size = one.line ? 2.5 : p.front ? 6 : 5;
      const dot = p.refused ? draw("path", {d: `M${places[i][0] - 4} ${places[i][1] - 4}l8 8m0 -8l-8 8`,
        stroke: "var(--faint)", "stroke-width": 2, fill: "none"})
        : draw("circle", {cx: places[i][0], cy: places[i][1], r: size,
          fill: p.faint ? "var(--line)" : one.colour, stroke: p.front ? "var(--ink)" : "none",
          "stroke-width": 1.5});
      if (p.lines) {
        const hit = draw("circle", {cx: places[i][0], cy: places[i][1], r: one.line ? 7 : 9,
          fill: "transparent", "data-at": p.id === undefined ? i : p.id,
          role: p.pick ? "button" : "img", "aria-label": p.lines.join(", ")});
        if (!one.line) hit.setAttribute("tabindex", 0);
        const show = () => {
          const own = hit.getBoundingClientRect();
          tip(p.lines, {x: own.x + own.width / 2, y: own.y + own.height / 2});
        };
        hit.addEventListener("pointerenter", show);
        hit.addEventListener("focus", show);
        hit.addEventListener("pointerleave", () => tip(null));
        hit.addEventListener("blur", () => tip(null));
        if (p.pick) {
          hit.addEventListener("click", p.pick);
          hit.addEventListener("keydown", event => {
            if (event.key === "Enter" || event.key === " ") { event.preventDefault(); p.pick(); }
          });
        }
        svg.append(dot, hit);
      } else svg.append(dot);
    });
  }
}
function cellMap(box, spec) {
  // spec: {label, xs, ys, x, y, cell, here, pick}: `cell(i, j)` is {fill, lines, mark}.
  const {xs, ys} = spec, left = 68, bottom = 40, top = 6;
  const row = Math.max(8, Math.min(24, Math.floor(300 / ys.length))), inside = row * ys.length;
  const {svg, width} = canvas(box, inside + top + bottom, spec.label);
  const cell = (width - left - 10) / xs.length, rects = [];
  let at = spec.here;
  xs.forEach((xValue, i) => ys.forEach((yValue, j) => {
    const found = spec.cell(i, j), place = {x: left + i * cell, y: top + (ys.length - 1 - j) * row};
    const rect = draw("rect", {...place, width: cell + 0.3, height: row + 0.3, fill: found.fill});
    rect.dataset.at = `${i},${j}`;
    rects[i * ys.length + j] = {rect, found, place};
    svg.append(rect);
    if (found.mark) svg.append(draw("text", {x: place.x + cell / 2, y: place.y + row / 2 + 4,
      "text-anchor": "middle", "pointer-events": "none", style: "fill:#22262b"}, found.mark));
  }));
  const every = (n, room, size) => Math.max(1, Math.ceil(n * size / room));
  const stepX = every(xs.length, width - left, 58), stepY = every(ys.length, inside, 15);
  xs.forEach((value, i) => { if (i % stepX === 0) svg.append(draw("text", {x: left + (i + 0.5) * cell,
    y: top + inside + 16, "text-anchor": "middle"}, spec.x.text(value))); });
  ys.forEach((value, j) => { if (j % stepY === 0) svg.append(draw("text", {x: left - 6,
    y: top + (ys.length - 0.5 - j) * row + 4, "text-anchor": "end"}, spec.y.text(value))); });
  svg.append(draw("text", {x: (left + width) / 2, y: top + inside + 34, "text-anchor": "middle",
    class: "soft"}, spec.x.name), draw("text", {x: -(top + inside / 2), y: 11, class: "soft",
    transform: "rotate(-90)", "text-anchor": "middle"}, spec.y.name));
  const frame = draw("rect", {fill: "none", stroke: "var(--ink)", "stroke-width": 2.5,
    width: cell, height: row, "pointer-events": "none"});
  const move = ([i, j]) => {
    const one = rects[i * ys.length + j];
    if (!one) return;
    at = [i, j];
    frame.setAttribute("x", one.place.x);
    frame.setAttribute("y", one.place.y);
    svg.append(frame);
  };
  if (at) move(at);
  const show = (i, j) => {
    const {rect, found} = rects[i * ys.length + j], own = rect.getBoundingClientRect();
    tip(found.lines, {x: own.x + own.width / 2, y: own.y + own.height / 2});
  };
  svg.setAttribute("tabindex", 0);
  svg.addEventListener("pointermove", event => {
    const hit = event.target.closest("rect[data-at]");
    if (hit) show(...hit.dataset.at.split(",").map(Number));
  });
  svg.addEventListener("pointerleave", () => tip(null));
  svg.addEventListener("blur", () => tip(null));
  svg.addEventListener("click", event => {
    const hit = event.target.closest("rect[data-at]");
    if (hit && spec.pick) spec.pick(...hit.dataset.at.split(",").map(Number));
  });
  svg.addEventListener("keydown", event => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}[event.key];
    if (event.key === "Enter" && at && spec.pick) { event.preventDefault(); spec.pick(...at); }
    if (!step) return;
    event.preventDefault();
    const [i, j] = at || [0, 0];
    move([Math.max(0, Math.min(xs.length - 1, i + step[0])),
      Math.max(0, Math.min(ys.length - 1, j + step[1]))]);
    show(...at);
  });
}
const legend = entries => make("div", {class: "legend small"}, ...entries.map(([fill, text]) =>
  make("span", {}, make("i", {style: `background:${fill}`}), text)));
// Charts are drawn again when the window changes its width.
const redrawn = drawing => {
  let timer = null;
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(drawing, 120); });
  window.addEventListener("beforeprint", drawing);
};
