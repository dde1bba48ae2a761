// Helpers of all pages: `view` is the element of the page, `data` its data.
const find = name => view.querySelector(name), all = name => [...view.querySelectorAll(name)];
const make = (tag, options, ...children) => {
  const {style, data: fields, ...rest} = options || {}, made = document.createElement(tag);
  for (const [name, value] of Object.entries(rest))
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  if (style) made.style.cssText = style;
  made.append(...children.filter(child => child !== null && child !== ""));
  return made;
};
const scaled = (value, units, base) => {
  let at = 0;
  while (at < units.length - 1 && value >= base) { value /= base; at += 1; }
  return `${Number(value.toPrecision(3))} ${units[at]}`;
};
const bytes = value => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"], 1000);
const seconds = value => value >= 1 ? `${Number(value.toPrecision(3))} s`
  : scaled(value * 1e9, ["ns", "µs", "ms"], 1000);
const kindColour = kind => PALETTE.kinds[kind] || PALETTE.other;
const series = number => `var(--s${number % 6})`;
const count = value => Number(value).toLocaleString("en");
const colour = number => `hsl(${(205 + number * 137.508) % 360} 62% ${number % 2 ? 70 : 82}%)`;

const holder = document.createElement("div");
holder.innerHTML = "<svg></svg>";
const SVG = holder.firstChild.namespaceURI;
const draw = (tag, fields, text) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(fields)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

// One box of text follows the pointer or the focus.
const tip = (lines, at) => {
  const box = find(".tip");
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map((text, n) => make(n ? "div" : "b", {text})));
  const frame = view.getBoundingClientRect(), own = box.getBoundingClientRect();
  const left = Math.min(at.x - frame.left + 14, frame.width - own.width - 8);
  const below = at.y - frame.top + 14, above = at.y - frame.top - own.height - 10;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${at.y + own.height + 24 > window.innerHeight && above > 0 ? above : below}px`;
};
