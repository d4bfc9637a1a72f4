// The map of the fleet: columns of bytes, painted on one canvas, kept current by the cells that change.
"use strict";

const NONE = 255;
const IS_CORDONED = 1, IS_LOST = 2;
const SIZES = [40, 34, 28, 22, 18, 14, 11, 9, 7, 6, 5, 4];
const ROOM_PX = 560;      // the height that the whole map should fit in, where it can
const NODES_A_COLUMN = 16; // of a rack that has more, or of nodes without a rack
const NAMED_NODES = 400;
const MOST_LABEL_PX = 96;
const LABELLED_PX = 22;    // from this size on a cell says its value, a node its name

const GLYPHS = { HEALTHY: "dot", PROBATION: "half", UNPROVEN: "ring", SUSPECT: "triangle", QUARANTINED: "cross", REPAIR: "diamond", RETIRED: "dash" };
const TONES = { HEALTHY: "good", PROBATION: "calm", UNPROVEN: "quiet", SUSPECT: "warn", QUARANTINED: "bad", REPAIR: "busy", RETIRED: "quiet" };

const box = document.querySelector("[data-map]");
const canvas = document.querySelector("[data-map-canvas]");
const tip = document.querySelector("[data-map-tip]");
const said = document.querySelector("[data-map-said]");
const legend = document.querySelector("[data-map-legend]");
const age = document.querySelector("[data-map-age]");
const pen = canvas.getContext("2d");

let fleet = null;   // head, columns, and where each node's cells begin
let places = null;  // x and y of each cell, and the size of all
let mode = "standing";
let cursor = -1;
let colours = null;
let heard = Date.now();
let stream = null;
let hasBeenOpen = false;
let fault = "";

// ---- data over the wire

function decode(buffer) {
  const text = new TextDecoder();
  if (text.decode(new Uint8Array(buffer, 0, 4)) !== "MAP1") throw new Error("not a map");
  const length = new DataView(buffer).getUint32(4, true);
  const head = JSON.parse(text.decode(new Uint8Array(buffer, 8, length)));
  const bytes = new Uint8Array(buffer, 8 + length);
  const count = bytes.length / head.columns.length;
  const cells = Object.fromEntries(head.columns.map((name, row) => [name, bytes.slice(row * count, (row + 1) * count)]));
  const owner = new Uint32Array(count);
  let first = 0;
  const nodes = head.nodes.map(([name, rack, size, contact, isCordoned], number) => {
    owner.fill(number, first, first + size);
    const node = { name, rack, size, contact, isCordoned, first };
    first += size;
    return node;
  });
  return { ...head, nodes, cells, owner, count };
}

async function load() {
  const answer = await fetch(box.dataset.map, { headers: { Accept: "application/octet-stream" } });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  fleet = decode(await answer.arrayBuffer());
  layOut();
  paintAll();
  tellLegend();
  tellCounts();
  tellSize();
  follow();
  box.dataset.ready = String(fleet.count);
}

function start() {
  load().then(() => { fault = ""; }, (reason) => {
    fault = `the map did not come (${reason.message}): trying again`;
    setTimeout(start, 3000);
  }).then(tellAge);
}

function follow() {
  stream?.close();
  stream = new EventSource(`${box.dataset.mapStream}?mark=${encodeURIComponent(fleet.mark)}`);
  stream.addEventListener("open", () => { heard = Date.now(); hasBeenOpen = true; tellAge(); });
  stream.addEventListener("anew", () => { stream.close(); start(); });
  stream.addEventListener("cells", (event) => { heard = Date.now(); apply(JSON.parse(event.data)); });
}

function apply({ n, nodes, cells }) {
  const raw = Uint8Array.from(atob(cells), (letter) => letter.charCodeAt(0));
  const indexes = new Uint32Array(raw.buffer.slice(0, 4 * n));
  fleet.columns.forEach((name, row) => {
    const column = fleet.cells[name];
    for (let i = 0; i < n; i++) column[indexes[i]] = raw[4 * n + row * n + i];
  });
  for (const [number, contact, isCordoned] of nodes) Object.assign(fleet.nodes[number], { contact, isCordoned });
  if (nodes.length) paintAll();
  else for (const index of indexes) paintCell(index);
  if (cursor >= 0) paintCursor();
  tellCounts();
}

// ---- where each cell stands

function blocks() {
  const found = [];
  for (const node of fleet.nodes) {
    const last = found.at(-1);
    if (last && last.rack === node.rack && last.nodes.length < NODES_A_COLUMN) last.nodes.push(node);
    else found.push({ rack: node.rack, isMore: last?.rack === node.rack, nodes: [node] });
  }
  return found;
}

// Room for the longest name and a sign of contact; 0 where nodes are so many that none is named.
function labelPx() {
  if (fleet.nodes.length > NAMED_NODES) return 0;
  pen.font = nodeFont();
  return Math.min(MOST_LABEL_PX, Math.ceil(Math.max(...fleet.nodes.map((node) => pen.measureText(`${node.name} ▲`).width)) + 10));
}

function measure(size, racks, width, named) {
  const isLabelled = size >= LABELLED_PX && named > 0;
  const label = isLabelled ? named : 0;
  const gap = isLabelled ? 18 : Math.max(3, Math.round(size * 0.8));
  const title = size >= 9 ? 16 : 0;
  let x = 0, y = 0, tallest = 0;
  const spots = [];
  for (const rack of racks) {
    const wide = label + Math.max(...rack.nodes.map((node) => node.size)) * size;
    const tall = title + rack.nodes.length * (isLabelled ? size + 4 : size);
    if (x > 0 && x + wide > width) { x = 0; y += tallest + gap; tallest = 0; }
    spots.push({ rack, x, y });
    x += wide + gap;
    tallest = Math.max(tallest, tall);
  }
  return { size, label, title, isLabelled, spots, height: y + tallest };
}

function layOut() {
  const racks = blocks();
  const width = Math.max(200, box.clientWidth - 2);
  const named = labelPx();
  let found = null;
  for (const size of SIZES) {
    found = measure(size, racks, width, named);
    const isWide = found.spots.some(({ rack }) => found.label + Math.max(...rack.nodes.map((node) => node.size)) * size > width);
    if (found.height <= ROOM_PX && !isWide) break;
  }
  const x = new Float32Array(fleet.count), y = new Float32Array(fleet.count);
  for (const spot of found.spots) {
    spot.rack.nodes.forEach((node, row) => {
      node.x = spot.x;
      node.y = spot.y + found.title + row * (found.isLabelled ? found.size + 4 : found.size);
      for (let i = 0; i < node.size; i++) {
        x[node.first + i] = spot.x + found.label + i * found.size;
        y[node.first + i] = node.y;
      }
    });
  }
  places = { ...found, x, y, width };
  const ratio = Math.min(devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round((found.height + 2) * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${found.height + 2}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
}

// ---- colour, always together with a shape, a number or a letter

const nodeFont = () => `500 12px ${getComputedStyle(document.documentElement).getPropertyValue("--sans")}`;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  colours = { ink: of("ink"), ink3: of("ink-3"), sheet: of("sheet"), sunken: of("sunken"), line: of("line-strong"), focus: of("focus"), accent: of("accent") };
  for (const tone of ["good", "calm", "busy", "warn", "bad", "quiet"]) colours[tone] = { full: of(tone), wash: of(`${tone}-wash`) };
  colours.isDark = of("ground").startsWith("#0");
  colours.sans = style.getPropertyValue("--sans");
}

function ramp(share, from, to) { // hue from one to the other, lightness by theme
  const hue = from + (to - from) * Math.min(1, Math.max(0, share));
  return colours.isDark ? painted(hue, 0.58, 0.52) : painted(hue, 0.62, 0.42);
}

// A colour and what is read on it, dark or light: equal lightness in HSL is not equally light.
function painted(hue, saturation, lightness) {
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    const value = lightness - saturation * Math.min(lightness, 1 - lightness) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const luminance = 0.2126 * part(0) + 0.7152 * part(8) + 0.0722 * part(4);
  return { fill: `hsl(${hue} ${saturation * 100}% ${lightness * 100}%)`, mark: luminance > 0.2 ? "#0f1015" : "#fff" };
}

function look(index) {
  const cells = fleet.cells;
  const standing = fleet.standings[cells.standing[index]];
  const isHeld = cells.tenant[index] !== 0;
  if (mode === "standing") {
    const tone = colours[TONES[standing]];
    const isSolid = isHeld || standing === "QUARANTINED";
    return { fill: isSolid ? tone.full : tone.wash, mark: isSolid ? colours.sheet : tone.full, glyph: GLYPHS[standing], edge: tone.full };
  }
  if (mode === "tenant") {
    const number = cells.tenant[index];
    if (!number) return { fill: colours.sunken, mark: colours.ink3, text: "", edge: colours.line };
    const name = number === NONE ? "?" : fleet.tenants[number - 1];
    return { ...painted((number * 137.5) % 360, 0.45, colours.isDark ? 0.42 : 0.46), text: name.slice(0, 2), edge: "transparent" };
  }
  const value = cells[mode][index];
  if (value === NONE) return { fill: colours.sunken, mark: colours.ink3, text: "–", edge: colours.line };
  if (mode === "utilisation") {
    const fill = `color-mix(in srgb, ${colours.accent} ${Math.round(10 + value * 0.9)}%, ${colours.sunken})`;
    const isFull = value >= 45;
    return { fill, mark: !isFull ? colours.ink : colours.isDark ? "#0f1015" : "#fff", text: String(value), edge: "transparent" };
  }
  const colour = mode === "score" ? ramp(value / 100, 355, 150) : ramp((value - 30) / 60, 215, 5);
  return { ...colour, text: String(value), edge: "transparent" };
}

function drawGlyph(glyph, x, y, size, colour, on = pen) {
  const mid = size / 2, r = size * 0.24;
  on.save();
  on.translate(x + mid, y + mid);
  on.fillStyle = on.strokeStyle = colour;
  on.lineWidth = Math.max(1, size * 0.09);
  on.beginPath();
  if (glyph === "cross") { on.moveTo(-r, -r); on.lineTo(r, r); on.moveTo(r, -r); on.lineTo(-r, r); on.stroke(); }
  else if (glyph === "triangle") { on.moveTo(0, -r); on.lineTo(r, r * 0.85); on.lineTo(-r, r * 0.85); on.fill(); }
  else if (glyph === "diamond") { on.moveTo(0, -r); on.lineTo(r, 0); on.lineTo(0, r); on.lineTo(-r, 0); on.fill(); }
  else if (glyph === "dash") { on.moveTo(-r, 0); on.lineTo(r, 0); on.stroke(); }
  else if (glyph === "dot") { on.arc(0, 0, r * 0.75, 0, 7); on.fill(); }
  else { on.arc(0, 0, r * 0.8, 0, 7); on.stroke(); if (glyph === "half") { on.beginPath(); on.arc(0, 0, r * 0.8, -1.571, 1.571); on.fill(); } }
  on.restore();
}

function paintCell(index) {
  const size = places.size, x = places.x[index], y = places.y[index];
  const inner = size >= 11 ? size - 2 : size >= 6 ? size - 1 : size - 0.6;
  const seen = look(index);
  pen.clearRect(x, y, size, size);
  pen.fillStyle = seen.fill;
  if (size >= 14) {
    pen.beginPath();
    pen.roundRect(x + 1, y + 1, inner - 1, inner - 1, Math.min(6, size * 0.18));
    pen.fill();
    if (seen.edge !== "transparent") { pen.strokeStyle = seen.edge; pen.globalAlpha = 0.45; pen.lineWidth = 1; pen.stroke(); pen.globalAlpha = 1; }
  } else pen.fillRect(x, y, inner, inner);
  if (mode === "standing" && (size >= 9 || seen.glyph === "cross" || seen.glyph === "triangle")) drawGlyph(seen.glyph, x, y, inner + 1, seen.mark);
  else if (seen.text && size >= LABELLED_PX) {
    pen.fillStyle = seen.mark;
    pen.font = `600 ${Math.round(size * 0.34)}px ${colours.sans}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(seen.text, x + inner / 2 + 0.5, y + inner / 2 + 1);
  }
  const flags = fleet.cells.flags[index];
  if (size >= 7 && (flags & (IS_CORDONED | IS_LOST) || fleet.nodes[fleet.owner[index]].isCordoned)) { // a bar: nothing new here
    pen.fillStyle = colours.ink;
    pen.fillRect(x + 1, y + inner - 2, inner - 1, 2);
  }
}

function paintAll() {
  readColours();
  pen.clearRect(0, 0, places.width, places.height + 2);
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  for (const { rack, x, y } of places.spots) {
    if (places.title && !rack.isMore) {
      pen.fillStyle = colours.ink3;
      pen.font = `550 11px ${colours.sans}`;
      pen.fillText(rack.rack || "no rack", x, y + 7, Math.max(24, rack.nodes[0].size * places.size + places.label));
    }
    if (places.isLabelled) for (const node of rack.nodes) {
      const contact = fleet.contacts[node.contact];
      pen.fillStyle = contact === "LIVE" ? colours.ink : contact === "SILENT" ? colours.warn.full : colours.bad.full;
      pen.font = nodeFont();
      pen.fillText(contact === "LIVE" ? node.name : `${node.name} ${contact === "SILENT" ? "▲" : "✕"}`, x, node.y + places.size / 2, places.label - 8);
    }
  }
  for (let index = 0; index < fleet.count; index++) paintCell(index);
  if (cursor >= 0) paintCursor();
}

function paintCursor() {
  pen.strokeStyle = colours.focus;
  pen.lineWidth = 2;
  pen.strokeRect(places.x[cursor] + 1, places.y[cursor] + 1, places.size - 2, places.size - 2);
}

// ---- words

function words(index) {
  const node = fleet.nodes[fleet.owner[index]];
  const cells = fleet.cells;
  const of = (name, unit) => (cells[name][index] === NONE ? "–" : `${cells[name][index]}${unit}`);
  const tenant = cells.tenant[index];
  const parts = [
    `${node.name}, GPU ${index - node.first}${node.rack ? `, ${node.rack}` : ""}`,
    fleet.standings[cells.standing[index]] + (cells.score[index] === NONE ? "" : `, score ${cells.score[index]}`),
    `utilisation ${of("utilisation", " %")}, ${of("temperature", " °C")}`,
    tenant === 0 ? "free" : tenant === NONE ? "held" : `held by ${fleet.tenants[tenant - 1]}`,
  ];
  if (cells.flags[index] & IS_CORDONED || node.isCordoned) parts.push("cordoned");
  if (cells.flags[index] & IS_LOST) parts.push("the driver has lost it");
  if (fleet.contacts[node.contact] !== "LIVE") parts.push(`its node is ${fleet.contacts[node.contact]}`);
  return parts;
}

function tellLegend() {
  const entries = {
    standing: [...fleet.standings.map((name) => [name.toLowerCase(), name]), ["solid: held by a job", null]],
    score: [["0 bad – 100 good; – not judged", null]],
    utilisation: [["the stronger, the busier: percent of the last interval", null]],
    temperature: [["°C, blue 30 – red 90", null]],
    tenant: [["each tenant its colour and first letters; hollow: free", null]],
  }[mode];
  legend.replaceChildren(...entries.map(([text, standing]) => {
    const part = document.createElement("span");
    if (standing) part.append(swatch(standing));
    part.append(text);
    return part;
  }), Object.assign(document.createElement("span"), { textContent: "▁ bar: cordoned" }));
}

function swatch(standing) {
  const small = document.createElement("canvas");
  small.width = small.height = 28;
  small.style.width = small.style.height = "14px";
  const other = small.getContext("2d");
  const tone = colours[TONES[standing]];
  other.fillStyle = standing === "QUARANTINED" ? tone.full : tone.wash;
  other.fillRect(0, 0, 28, 28);
  drawGlyph(GLYPHS[standing], 0, 0, 28, standing === "QUARANTINED" ? colours.sheet : tone.full, other);
  return small;
}

function tellCounts() {
  const counts = new Array(fleet.standings.length).fill(0);
  for (const number of fleet.cells.standing) counts[number]++;
  fleet.standings.forEach((name, number) => tellCount(`[data-count="${name}"]`, counts[number]));
  let cordoned = 0;
  fleet.cells.flags.forEach((flags, index) => { if (flags & IS_CORDONED || fleet.nodes[fleet.owner[index]].isCordoned) cordoned++; });
  tellCount("[data-count-cordoned]", cordoned);
}

function tellCount(selector, count) {
  const place = document.querySelector(selector);
  const text = count.toLocaleString("en");
  if (place && place.textContent !== text) {
    place.textContent = text;
    place.closest(".tile").classList.toggle("tile--none", count === 0);
  }
}

function tellSize() {
  const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
  document.querySelector("[data-map-total]").textContent = `${plural(fleet.count, "GPU")} on ${plural(fleet.nodes.length, "node")}`;
  box.querySelector(".empty")?.toggleAttribute("hidden", fleet.count > 0);
}

function tellAge() {
  const seconds = Math.round((Date.now() - heard) / 1000);
  const isOpen = stream?.readyState === EventSource.OPEN;
  age.textContent = fault || (isOpen ? (seconds < 5 ? "live" : `live, nothing changed for ${seconds} s`)
    : hasBeenOpen ? "not connected: trying again" : "connecting");
}
setInterval(tellAge, 1000);

// ---- pointer and keys

function cellAt(event) {
  if (!fleet) return -1;
  const area = canvas.getBoundingClientRect();
  const px = event.clientX - area.left, py = event.clientY - area.top;
  for (const node of fleet.nodes) {
    if (py < node.y || py >= node.y + places.size) continue;
    const column = Math.floor((px - node.x - places.label) / places.size);
    if (column >= 0 && column < node.size) return node.first + column;
  }
  return -1;
}

function showTip(index, x, y) {
  tip.replaceChildren(...words(index).map((line, number) => {
    const part = document.createElement(number ? "div" : "strong");
    part.textContent = line;
    return part;
  }));
  tip.hidden = false;
  tip.style.left = `${Math.min(x + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(y + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

function open(index) {
  const node = fleet.nodes[fleet.owner[index]];
  location.href = `/console/fleet/at/${encodeURIComponent(node.name)}/${index - node.first}`;
}

canvas.addEventListener("mousemove", (event) => {
  const index = cellAt(event);
  if (index < 0) tip.hidden = true;
  else showTip(index, event.clientX, event.clientY);
});
canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
canvas.addEventListener("click", (event) => {
  const index = cellAt(event);
  if (index >= 0) open(index);
});

function moveTo(index) {
  const before = cursor;
  cursor = Math.min(Math.max(index, 0), fleet.count - 1);
  if (before >= 0) paintCell(before);
  paintCursor();
  said.textContent = words(cursor).join(". ");
  const area = canvas.getBoundingClientRect();
  showTip(cursor, area.left + places.x[cursor], area.top + places.y[cursor]);
}

box.addEventListener("keydown", (event) => {
  if (!fleet?.count) return;
  const row = cursor < 0 ? 1 : fleet.nodes[fleet.owner[cursor]].size;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -fleet.count, End: fleet.count }[event.key];
  if (step !== undefined) { event.preventDefault(); moveTo(cursor < 0 ? 0 : cursor + step); }
  else if (event.key === "Enter" && cursor >= 0) open(cursor);
  else if (event.key === "Escape") tip.hidden = true;
});
box.addEventListener("blur", () => { tip.hidden = true; });

document.querySelector("[data-map-modes]").addEventListener("click", (event) => {
  const button = event.target.closest("[data-mode]");
  if (!button || !fleet) return;
  mode = button.dataset.mode;
  for (const each of document.querySelectorAll("[data-mode]")) each.setAttribute("aria-pressed", String(each === button));
  paintAll();
  tellLegend();
});

document.addEventListener("muster:theme", () => { if (fleet) { paintAll(); tellLegend(); } });
let resized;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { if (fleet) { layOut(); paintAll(); } }, 120); });
addEventListener("pagehide", () => stream?.close());

start();
