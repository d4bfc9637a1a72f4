// Line and bar charts with marks, of any page: the element says where its data is, the data says what to draw.
//
//   <div data-charts="URL"></div>, the document there:
//   {charts: [{title, unit, note, x: "step" | "time" | "rank", is_bars, lines: [{name, points: [[x, y]], is_past}],
//              marks: [{at, words, kind: "change" | "bad" | "saved", label}], range: [from, until], is_stacked,
//              bounds: [least y, greatest y]}], refresh_s}
//   A line that ``is_before`` is the earlier period of the line ``of``, drawn at the times of now: faint, and dashed.
//   ``tone`` of a line: one of our own colours. Of a stacked chart the lines are areas on each other, except for one that ``is_over`` them.
//   or, of one GPU: {series: [{name, unit, points}], marks: [{at, words}], range: [from, until]}, a chart each over time.
//
// Each chart has its numbers as a table too, for screen readers and for who copies them.
"use strict";

const ROWS = 40;
const boxes = [...document.querySelectorAll("[data-charts]")];
const drawn = new Map();   // element → {chart, spec}

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- received data

function chartsOf(answer) {
  if (answer.charts) return answer.charts;
  return (answer.series ?? []).map((one) => ({
    title: one.name.charAt(0).toUpperCase() + one.name.slice(1), unit: one.unit ?? "", x: "time", lines: [{ name: one.name, points: one.points }], range: answer.range,
    marks: (answer.marks ?? []).map((mark) => ({ ...mark, kind: "bad", label: `✕ ${mark.words.split(":")[0]}` })),
  }));
}

async function load(box) {
  const answer = await fetch(box.dataset.charts, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`it came with ${answer.status}`);
  const told = await answer.json();
  const charts = chartsOf(told);
  if (charts.every((spec) => spec.lines.every((line) => !line.points.length))) {
    saying(box, "Nothing to draw yet", "As soon as there are numbers, they are drawn here.");
  } else {
    draw(box, charts);
  }
  if (told.refresh_s) setTimeout(() => attempt(box), told.refresh_s * 1000);
}

function attempt(box) {
  if (document.hidden) {
    document.addEventListener("visibilitychange", () => attempt(box), { once: true });
    return;
  }
  load(box).catch((fault) => {
    if (!box.childElementCount) saying(box, "The charts did not come", `${fault.message}; trying again.`);
    setTimeout(() => attempt(box), 10000);
  });
}

function saying(box, title, words) {
  const empty = document.createElement("div");
  empty.className = "empty";
  for (const [text, name] of [[title, "empty-title"], [words, ""]]) {
    const line = document.createElement("p");
    line.className = name;
    line.textContent = text;
    empty.append(line);
  }
  box.replaceChildren(empty);
}

// ---- what is shown

function draw(box, charts) {
  box.querySelector(".empty")?.remove();
  charts.filter((spec) => spec.lines.some((line) => line.points.length)).forEach((spec, place) => {
    const name = `${spec.title}|${spec.x}`;
    let figure = [...box.children].find((each) => each.dataset.name === name);
    if (!figure) {
      figure = makeFigure(spec, name);
    }
    if (box.children[place] !== figure) box.insertBefore(figure, box.children[place] ?? null);
    const canvas = figure.querySelector(".chart");
    figure.querySelector("[data-note]").textContent = spec.note ?? "";
    canvas.setAttribute("aria-label", inWords(spec));
    fillTable(figure.querySelector("table"), spec);
    if (!window.echarts) {
      canvas.hidden = true;
      figure.querySelector("details").open = true;
      return;
    }
    const known = drawn.get(canvas);
    const chart = known?.chart ?? window.echarts.init(canvas, null, { renderer: "canvas" });
    drawn.set(canvas, { chart, spec });
    chart.setOption(optionOf(spec), { notMerge: true });
    if (!known) new ResizeObserver(() => chart.resize()).observe(canvas);
  });
  box.dataset.ready = "";
}

function makeFigure(spec, name) {
  const figure = document.createElement("figure");
  figure.className = "chart-box";
  figure.dataset.name = name;
  const title = document.createElement("h3");
  title.textContent = spec.unit ? `${spec.title} (${spec.unit})` : spec.title;
  const canvas = document.createElement("div");
  canvas.className = "chart chart--low";
  canvas.setAttribute("role", "img");
  const numbers = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "as a table";
  numbers.append(summary, document.createElement("table"));
  const note = document.createElement("p");
  note.className = "quiet";
  note.dataset.note = "";
  figure.append(title, note, canvas, numbers);
  return figure;
}

// ---- texts and numbers

const sayNumber = (value) => (value === null || value === undefined ? "–"
  : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4))));
const isOfDays = (spec) => spec.range && spec.range[1] - spec.range[0] >= 86_400_000;
const sayTime = (spec, x) => (isOfDays(spec) ? new Date(x).toISOString().slice(0, 16).replace("T", " ") : new Date(x).toISOString().slice(11, 19));
const sayX = (spec, x) => (spec.x === "time" ? sayTime(spec, x) : `${spec.x} ${x.toLocaleString("en")}`);

function inWords(spec) {
  const parts = spec.lines.filter((line) => line.points.length).map((line) => {
    const values = line.points.map((point) => point[1]);
    const [first, last] = [line.points[0], line.points.at(-1)];
    return `${line.name}: from ${sayNumber(first[1])} at ${sayX(spec, first[0])} to ${sayNumber(last[1])} at ${sayX(spec, last[0])}, `
      + `between ${sayNumber(Math.min(...values))} and ${sayNumber(Math.max(...values))}`;
  });
  const bad = spec.marks.filter((mark) => mark.kind !== "saved").map((mark) => `${mark.words} (${sayX(spec, mark.at)})`);
  return `${spec.title}. ${parts.join("; ")}.${bad.length ? ` Marks: ${bad.slice(0, 6).join("; ")}.` : ""}`;
}

function fillTable(table, spec) {
  const cell = (kind, text) => Object.assign(document.createElement(kind), { textContent: text });
  const head = document.createElement("tr");
  head.append(cell("th", spec.x), ...spec.lines.map((line) => cell("th", line.name)));
  const columns = spec.lines.map((line) => new Map(line.points));
  const all = [...new Set(spec.lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  const stride = Math.max(1, Math.ceil(all.length / ROWS));
  const rows = all.filter((_, place) => place % stride === 0 || place === all.length - 1).map((x) => {
    const row = document.createElement("tr");
    row.append(cell("td", spec.x === "time" ? sayX(spec, x) : x.toLocaleString("en")),
      ...columns.map((column) => cell("td", sayNumber(column.get(x)))));
    return row;
  });
  const body = document.createElement("tbody");
  body.append(...rows);
  const top = document.createElement("thead");
  top.append(head);
  table.replaceChildren(top, body);
}

// ---- in ECharts' words

const MARKS = {
  change: { line: "dashed", colour: "--accent" },
  bad: { line: "solid", colour: "--bad" },
  saved: { line: null, colour: "--ink-3" },
};

function optionOf(spec) {
  const ink = token("--ink-3");
  const isBars = spec.is_bars ?? false;
  const lines = spec.lines.filter((line) => line.points.length);
  const font = getComputedStyle(document.body).fontFamily;
  return {
    animation: false,
    useUTC: true,
    textStyle: { fontFamily: font },
    grid: { left: 46, right: 26, top: lines.length > 1 ? 30 : 16, bottom: 24 },
    legend: lines.length > 1 ? { type: "scroll", top: 0, left: 40, right: 0, pageIconSize: 9, pageTextStyle: { color: ink }, itemHeight: 8, textStyle: { color: token("--ink-2"), fontSize: 11 }, itemWidth: 22 } : undefined,
    tooltip: {
      trigger: "axis", renderMode: "richText", confine: true, backgroundColor: token("--ink"), borderWidth: 0, padding: [6, 9],
      textStyle: { color: token("--ground"), fontSize: 11, fontFamily: font },
      formatter: (points) => tip(spec, points),
    },
    xAxis: {
      type: isBars ? "category" : spec.x === "time" ? "time" : "value", min: isBars ? undefined : spec.range?.[0] ?? "dataMin", max: isBars ? undefined : spec.range?.[1] ?? "dataMax",
      data: isBars ? lines[0]?.points.map((point) => point[0]) : undefined,
      axisLine: { lineStyle: { color: token("--line-strong") } }, splitLine: { show: false },
      axisLabel: { color: ink, fontSize: 11, hideOverlap: true },
    },
    yAxis: {
      type: "value", scale: !isBars && !spec.is_stacked, min: spec.bounds?.[0], max: spec.bounds?.[1], interval: spec.bounds ? (spec.bounds[1] - spec.bounds[0]) / 4 : undefined, splitNumber: 3, splitLine: { lineStyle: { color: token("--line") } },
      axisLabel: { color: ink, fontSize: 11, formatter: sayNumber },
    },
    series: lines.map((line, place) => (isBars ? bars(line, place) : seriesOf(spec, line, place, place === lines.length - 1))),
  };
}

const HUES = ["--accent", "--good", "--warn", "--calm", "--bad", "--ink-2"];
const STROKES = ["solid", [5, 3], [2, 2]];

// Lines of equal rank differ by colour and by stroke, and each says its name at its end.
function strokeOf(spec, line, place) {
  if (line.is_before) return { ...strokeOf(spec, {}, ownPlace(spec, line.of)), width: 1.1, type: [3, 4], opacity: 0.55 };
  if (line.tone) return { colour: token(`--${line.tone}`), width: line.is_over ? 1.8 : 1, type: line.is_over ? [5, 3] : "solid" };
  if (line.is_past !== undefined || spec.lines.length === 1) {
    return { colour: token(line.is_past ? "--ink-3" : "--accent"), width: line.is_past ? 1.2 : 1.8, type: line.is_past ? [4, 3] : "solid" };
  }
  return { colour: token(HUES[place % HUES.length]), width: 1.4, type: STROKES[Math.floor(place / 2) % STROKES.length] };
}

function ownPlace(spec, name) {
  return Math.max(0, spec.lines.filter((line) => line.points.length && !line.is_before).findIndex((line) => line.name === name));
}

function seriesOf(spec, line, place, carriesMarks) {
  const { colour, width, type, opacity = 1 } = strokeOf(spec, line, line.is_before ? place : ownPlace(spec, line.name));
  return {
    name: line.name, type: "line", data: line.points, symbol: line.points.length < 2 ? "circle" : "none", symbolSize: 5, color: colour,
    lineStyle: { color: colour, width, type, opacity },
    ...(spec.is_stacked && !line.is_over ? { stack: "all", areaStyle: { color: colour, opacity: 0.35 } } : {}),
    ...(carriesMarks ? { markLine: across(spec), markPoint: along(spec) } : {}),
  };
}

function bars(line, place) {
  return {
    name: line.name, type: "bar", data: line.points.map((point) => point[1]), barMaxWidth: 28,
    itemStyle: { color: token(HUES[place % HUES.length]), borderRadius: [3, 3, 0, 0] },
  };
}

// Attempts and what must not be used: lines across, each with its own stroke and a sign on top.
function across(spec) {
  const marks = spec.marks.filter((mark) => MARKS[mark.kind]?.line);
  return {
    silent: true, symbol: "none",
    data: marks.map((mark) => ({
      xAxis: mark.at,
      lineStyle: { color: token(MARKS[mark.kind].colour), type: MARKS[mark.kind].line, width: 1 },
      label: { show: true, formatter: mark.label ?? "✕", color: token(MARKS[mark.kind].colour), fontSize: 10, distance: 2 },
    })),
  };
}

// Checkpoints that are kept: small triangles along the foot.
function along(spec) {
  const marks = spec.marks.filter((mark) => mark.kind === "saved");
  const values = spec.lines.flatMap((line) => line.points.map((point) => point[1]));
  const foot = Math.min(...values);
  return {
    silent: true, symbol: "triangle", symbolSize: 6, itemStyle: { color: token("--ink-3") }, label: { show: false },
    data: marks.map((mark) => ({ coord: [mark.at, foot] })),
  };
}

function tip(spec, points) {
  if (!points.length) return "";
  const x = points[0].axisValue;
  const lines = points.map((point) => `${point.seriesName}: ${sayNumber(Array.isArray(point.data) ? point.data[1] : point.data)} ${spec.unit}`.trim());
  const width = spec.x === "time" && spec.range ? (spec.range[1] - spec.range[0]) / 100 : 0;
  const near = spec.x === "rank" ? [] : spec.marks.filter((mark) => Math.abs(mark.at - Number(x)) <= width).slice(0, 5).map((mark) => mark.words);
  return [sayX(spec, spec.x === "rank" ? Number(x) : x), ...lines, ...near].join("\n");
}

document.addEventListener("muster:theme", () => {
  for (const { chart, spec } of drawn.values()) chart.setOption(optionOf(spec), { notMerge: true });
});

for (const box of boxes) attempt(box);
