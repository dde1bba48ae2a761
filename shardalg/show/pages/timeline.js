// A timeline: all tracks share one axis of time, which is zoomed and moved.
const part = name => find(`[data-part="${name}"]`);
let isOverlapped = true;
const tracksOf = side => isOverlapped || !side.alone ? side.tracks : side.alone;
const ends = () => Math.max(1e-12, ...data.sides.flatMap(side => tracksOf(side).flatMap(track =>
  track.events.map(event => event[0] + event[1]))));
let range = [0, ends()];
const nice = (low, high) => {
  const unit = 10 ** Math.floor(Math.log10(high - low));
  const step = [0.1, 0.2, 0.5, 1, 2].map(m => m * unit).find(s => (high - low) / s <= 7);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) found.push(tick);
  return found;
};
function paint() {
  const box = part("tracks"), width = Math.max(260, Math.round(box.clientWidth));
  const left = width < 520 ? 8 : 128, row = 26, below = width < 520 ? 15 : 0;
  const rows = data.sides.flatMap(side => [{title: side.name}, ...tracksOf(side)]);
  const height = rows.reduce((sum, one) => sum + (one.title ? 24 : row + below), 0) + 28;
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "tracks of the step over time"});
  const at = time => left + (time - range[0]) / (range[1] - range[0]) * (width - left - 8);
  let y = 0;
  for (const tick of nice(...range)) {
    const x = at(tick);
    if (x < left || x > width - 8) continue;
    svg.append(draw("line", {x1: x, x2: x, y1: 0, y2: height - 22, class: "grid"}),
      draw("text", {x, y: height - 6, "text-anchor": x > width - 30 ? "end" : "middle"},
        tick ? seconds(tick) : "0"));
  }
  for (const one of rows) {
    if (one.title) {
      svg.append(draw("text", {x: 4, y: y + 16, style: "font-weight:600"},
        one.title.length > width / 7 ? `${one.title.slice(0, width / 7)}…` : one.title));
      y += 24;
      continue;
    }
    svg.append(draw("text", {x: below ? left : left - 6, y: y + (below ? 11 : 17),
      "text-anchor": below ? "start" : "end", class: "soft"}, one.name));
    y += below;
    // Events that are narrower than a pixel are joined with their neighbours of the same kind.
    let last = null;
    for (const [start, length, kind, text] of one.events) {
      const x = Math.max(left, at(start)), end = Math.min(width - 8, at(start + length));
      if (end <= left || x >= width - 8) continue;
      if (last && last.kind === kind && end - x < 1 && x - last.end < 1) {
        last.end = Math.max(last.end, end);
        last.rect.setAttribute("width", Math.max(1, last.end - last.x));
        continue;
      }
      const rect = draw("rect", {x, y: y + 2, width: Math.max(1, end - x), height: row - 4,
        fill: kindColour(kind)});
      rect.dataset.event = `${kind.replaceAll("_", " ")}: ${seconds(length)}\nfrom ${seconds(start)}`
        + (text ? `\n${text}` : "");
      svg.append(rect);
      if (end - x > 7 * kind.length + 8) svg.append(draw("text", {x: (x + end) / 2, y: y + 17,
        "text-anchor": "middle", style: "fill:#22262b", "pointer-events": "none"}, kind.replaceAll("_", " ")));
      last = {rect, kind, x, end};
    }
    y += row;
  }
  box.replaceChildren(svg);
}
function zoom(factor, middle) {
  const whole = ends();
  if (!factor) range = [0, whole];
  else {
    const length = Math.min(whole, Math.max(whole * 1e-5, (range[1] - range[0]) * factor));
    const around = middle === undefined ? (range[0] + range[1]) / 2 : middle;
    const share = (around - range[0]) / (range[1] - range[0]);
    const low = Math.max(0, Math.min(whole - length, around - share * length));
    range = [low, low + length];
  }
  paint();
}
const move = share => {
  const length = range[1] - range[0], whole = ends();
  const low = Math.max(0, Math.min(whole - length, range[0] + share * length));
  range = [low, low + length];
  paint();
};
const timeAt = event => {
  const box = part("tracks").getBoundingClientRect(), left = box.width < 520 ? 8 : 128;
  return range[0] + (event.clientX - box.left - left) / (box.width - left - 8) * (range[1] - range[0]);
};
function table() {
  const sums = new Map();
  data.sides.forEach((side, place) => tracksOf(side).forEach(track => {
    // Stages do the same work, so the first one is enough.
    if (/^stage [1-9]/.test(track.name)) return;
    track.events.forEach(([, length, kind]) => {
      const row = sums.get(kind) || data.sides.map(() => 0);
      row[place] += length;
      sums.set(kind, row);
    });
  }));
  const rows = [...sums].sort((a, b) => Math.max(...b[1]) - Math.max(...a[1]));
  const two = data.sides.length > 1, isRun = two && data.sides[1].name.startsWith("measured");
  const heads = two ? [...(isRun ? ["planned", "measured"] : ["above", "below"]), "difference", "ratio"] : ["time"];
  part("table").replaceChildren(make("table", {class: "plain"}, make("tr", {},
    make("th", {text: "kind"}), ...heads.map(text => make("th", {text, class: "num"}))),
  ...rows.map(([kind, [a, b]]) => make("tr", {"data-kind": kind}, make("td", {}, make("span", {class: "chip",
    style: `background:${kindColour(kind)}`, text: kind.replaceAll("_", " ")})),
  make("td", {class: "num", text: seconds(a)}), ...(two ? [make("td", {class: "num", text: seconds(b)}),
    make("td", {class: "num", text: `${b < a ? "−" : "+"}${seconds(Math.abs(b - a))}`}),
    make("td", {class: "num", text: a ? `${Number((b / a).toPrecision(3))}` : "–"})] : [])))));
  part("legend").replaceChildren(make("div", {class: "legend"}, ...rows.map(([kind]) =>
    make("span", {}, make("i", {style: `background:${kindColour(kind)}`}), kind.replaceAll("_", " ")))));
}
const box = part("tracks");
box.addEventListener("wheel", event => {
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
}, {passive: false});
let from = null;
box.addEventListener("pointerdown", event => { from = event.clientX; });
window.addEventListener("pointerup", () => { from = null; });
box.addEventListener("pointermove", event => {
  if (from !== null && event.buttons) {
    const share = (from - event.clientX) / box.clientWidth;
    from = event.clientX;
    return move(share);
  }
  const hit = event.target.closest && event.target.closest("[data-event]");
  tip(hit ? hit.dataset.event.split("\n") : null, {x: event.clientX, y: event.clientY});
});
box.addEventListener("pointerleave", () => tip(null));
box.addEventListener("keydown", event => {
  const act = {"+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => zoom(0),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2)}[event.key];
  if (act) { event.preventDefault(); act(); }
});
all("[data-zoom]").forEach(button => button.addEventListener("click", () => zoom(Number(button.dataset.zoom))));
if (data.sides[0].alone) {
  part("overlap").hidden = false;
  part("overlap").querySelector("input").addEventListener("change", event => {
    isOverlapped = event.target.checked;
    table();
    zoom(0);
  });
}
table();
paint();
window.addEventListener("resize", paint);
window.addEventListener("beforeprint", paint);
