// Strategies as points of time and memory; the chosen one has a card with its causes of time.
const part = name => find(`[data-part="${name}"]`);
// A strategy is on the Pareto front if no other one needs less time and no more memory, or
// less memory and no more time.
data.rows.forEach((row, id) => {
  row.id = id;
  row.front = !data.rows.some(one => (one.s < row.s && one.b <= row.b) || (one.s <= row.s && one.b < row.b));
});
let chosen = data.rows[0];
const summary = row => [row.name, row.mesh, `${seconds(row.s)} per step`, `${bytes(row.b)}`
  + (row.most ? ` of ${bytes(row.most)}` : ""), row.fits ? "" : "does not fit",
  row.front ? "on the Pareto front" : ""].filter(Boolean);
function visible() {
  const words = part("filter").value.toLowerCase();
  return data.rows.filter(row => (!part("fits").checked || row.fits) && (!part("front").checked || row.front)
    && `${row.name} ${row.mesh}`.toLowerCase().includes(words));
}
function detail() {
  const box = part("detail"), row = chosen;
  if (!row) { box.replaceChildren(make("p", {text: "No strategy has a plan."})); return; }
  const total = row.causes.reduce((sum, one) => sum + one[1], 0) || 1;
  box.replaceChildren(make("h2", {text: row.name}), make("p", {class: "small", text: row.mesh}),
    make("div", {class: "big"}, seconds(row.s), " ", make("small", {text: "per step"})),
    make("div", {class: "stack"}, ...row.causes.map(([, time, fill]) =>
      make("i", {style: `width:${100 * time / total}%;background:${fill}`}))),
    make("div", {class: "key"}, ...row.causes.flatMap(([name, time, fill]) => [
      make("i", {style: `background:${fill}`}), make("span", {text: name}),
      make("b", {text: seconds(time)}), make("span", {text: `${Math.round(100 * time / total)}%`})])),
    make("p", {text: `Peak memory ${bytes(row.b)}${row.most ? ` of ${bytes(row.most)}` : ""}`
      + `${row.fits ? "" : ": does not fit"}.`}),
    row.most ? make("div", {class: "meter"}, make("i", {class: row.fits ? "" : "over",
      style: `width:${Math.min(100, 100 * row.b / row.most)}%`})) : "");
}
function paint() {
  const rows = visible();
  part("count").textContent = `${count(rows.length)} of ${count(data.rows.length)} strategies`;
  const point = row => ({x: row.b, y: row.s, id: row.id, lines: summary(row), refused: !row.fits,
    front: row.front, faint: false, pick: () => { chosen = row; detail(); paint(); }});
  const most = Math.max(0, ...data.rows.map(row => row.most));
  const near = most && most < 20 * Math.max(...data.rows.map(row => row.b));
  chart(part("scatter"), {label: "step time against peak memory", height: 340,
    empty: "No strategy passes the filters.",
    x: {name: "peak memory of a device", text: bytes, isLog: false, limits: near ? [most] : []},
    y: {name: "step time", text: seconds, isLog: false},
    series: [{colour: "var(--s0)", points: rows.map(point)}],
    marks: near ? [{x: most, text: "memory of a device", colour: PALETTE.refused, dash: "1 0"}] : []});
  const dot = chosen && part("scatter").querySelector(`[data-at="${chosen.id}"]`);
  if (dot) { dot.setAttribute("stroke", "var(--pick-line)"); dot.setAttribute("stroke-width", 2); }
  part("legend").replaceChildren(legend([["var(--s0)", "fits; ringed: on the Pareto front"],
    ["var(--faint)", "✕ does not fit"]]));
}
["filter", "fits", "front"].forEach(name => part(name).addEventListener("input", paint));
detail();
paint();
redrawn(paint);
