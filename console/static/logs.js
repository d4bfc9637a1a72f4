// A log that follows: pieces as they are printed, one stream at a time, searched where they stand. Text only, never HTML.
"use strict";

const MOST_PIECES = 2000;
const NEAR_PX = 40;

const log = document.querySelector("[data-log]");
const said = document.querySelector("[data-log-said]");
const search = document.querySelector("[data-log-search]");
const pause = document.querySelector("[data-log-pause]");
let isPaused = false;
let waiting = [];
let lastWho = null;
let stream = null;

function tell(words) {
  if (said) said.textContent = words;
}

function isAtEnd() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
}

// One piece: a new one where another rank prints, else more of the last one's text.
function add({ who, text }) {
  let piece = log.lastElementChild;
  if (!piece || who !== lastWho) {
    piece = document.createElement("div");
    piece.className = "log-piece";
    const head = document.createElement("span");
    head.className = "log-who";
    head.textContent = who;
    piece.append(head, document.createElement("pre"));
    log.append(piece);
    lastWho = who;
  }
  const body = piece.querySelector("pre");
  body.dataset.text = (body.dataset.text ?? body.textContent) + text;
  show(piece);
  while (log.childElementCount > MOST_PIECES) log.firstElementChild.remove();
}

// With a search: the lines that have it, each mark where it stands; without: all of it.
function show(piece) {
  const body = piece.querySelector("pre");
  const text = body.dataset.text ?? body.textContent;
  const wanted = search?.value.trim().toLowerCase() ?? "";
  if (!wanted) {
    body.textContent = text;
    piece.hidden = false;
    return 0;
  }
  body.dataset.text = text;
  const lines = text.split("\n").filter((line) => line.toLowerCase().includes(wanted));
  body.replaceChildren(...lines.flatMap((line) => [...marked(line, wanted), "\n"]));
  piece.hidden = !lines.length;
  return lines.length;
}

function marked(line, wanted) {
  const parts = [];
  const low = line.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    const mark = document.createElement("mark");
    mark.textContent = line.slice(at, at + wanted.length);
    parts.push(line.slice(from, at), mark);
    from = at + wanted.length;
  }
  return [...parts, line.slice(from)];
}

function showAll() {
  let found = 0;
  for (const piece of log.children) found += show(piece);
  if (search.value.trim()) tell(found === 1 ? "1 line" : `${found} lines`);
  else tell(state());
}

function state() {
  if (isPaused) return waiting.length ? `paused; ${waiting.length} more` : "paused";
  return stream ? "live" : "the end of it";
}

function take(piece) {
  if (isPaused) {
    waiting.push(piece);
    if (waiting.length > MOST_PIECES) waiting.shift();
    tell(state());
    return;
  }
  const follows = isAtEnd();
  add(piece);
  if (follows) log.scrollTop = log.scrollHeight;
}

function follow() {
  const after = Number(log.dataset.after);
  stream = new EventSource(`${log.dataset.follow}&after=${after}`);
  stream.addEventListener("log", (event) => take(JSON.parse(event.data)));
  stream.addEventListener("end", () => {
    stream.close();
    stream = null;
    tell(state());
  });
  stream.addEventListener("open", () => tell(state()));
  stream.addEventListener("error", () => { if (stream) tell("the stream is interrupted; trying again"); });
  addEventListener("pagehide", () => stream?.close());
}

if (log) {
  for (const each of document.querySelectorAll("[data-needs-script]")) each.hidden = false;
  lastWho = log.lastElementChild?.querySelector(".log-who")?.textContent ?? null;
  log.scrollTop = log.scrollHeight;
  search?.addEventListener("input", showAll);
  pause?.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Continue" : "Pause";
    if (!isPaused) {
      for (const piece of waiting) add(piece);
      waiting = [];
      log.scrollTop = log.scrollHeight;
    }
    tell(state());
  });
  document.querySelector("[data-log-choice]")?.addEventListener("change", (event) => event.target.form.requestSubmit());
  if (!("over" in log.dataset)) follow();
  else tell("the end of it");
}
