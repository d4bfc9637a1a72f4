// What every page does by script; each page also works without it.
"use strict";

const root = document.documentElement;
const toast = document.querySelector("[data-toast]");
let toastTimer;

export function say(words) {
  toast.textContent = words;
  toast.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { toast.hidden = true; }, 2600);
}

// Light or dark: the browser's preference, until a person chooses; the server then renders it from the first byte.
function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  document.cookie = `muster-theme=${root.dataset.theme}; path=/console; max-age=31536000; samesite=lax; secure`;
  document.dispatchEvent(new Event("muster:theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("muster:theme")));

// Relative times are kept current.
function span(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

function tellTimes() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const seconds = (now - Date.parse(time.dateTime)) / 1000;
    time.textContent = seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  }
  for (const time of document.querySelectorAll("time[data-countdown]")) {
    const seconds = (Date.parse(time.dateTime) - now) / 1000;
    time.textContent = seconds > 0 ? `${span(seconds)} left` : "over";
  }
}
setInterval(tellTimes, 1000);

// One click handler for what pages mark. Dialogs open and close by the browser itself, where it knows how.
const knowsCommands = "commandForElement" in HTMLButtonElement.prototype;
document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard.writeText(copy.dataset.copy).then(() => say("Copied"), () => say("The browser does not let this page copy"));
    return;
  }
  const commands = event.target.closest("[commandfor]");
  if (commands && !knowsCommands) {
    const dialog = document.getElementById(commands.getAttribute("commandfor"));
    if (commands.getAttribute("command") === "close") dialog.close();
    else dialog.showModal();
    return;
  }
  const menu = event.target.closest("[data-menu]");
  if (menu) {
    const isOpen = document.getElementById("places").classList.toggle("is-open");
    menu.setAttribute("aria-expanded", String(isOpen));
  }
});

// What destroys waits for its name.
function weighTyped(field) {
  const button = field.form.querySelector("[data-needs-typed]");
  if (button) button.disabled = field.value.trim() !== field.dataset.mustEqual;
}
for (const field of document.querySelectorAll("[data-must-equal]")) weighTyped(field);
document.addEventListener("input", (event) => {
  if (event.target.matches("[data-must-equal]")) weighTyped(event.target);
});

// "/" goes to the search, as everywhere.
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, textarea, select, dialog")) {
    event.preventDefault();
    document.querySelector("[data-find]")?.focus();
  }
});

// HTMX: every change carries the session's token; a fault is shown where the answer would have stood.
document.addEventListener("htmx:configRequest", (event) => {
  const token = document.querySelector("meta[name=csrf]")?.content;
  if (token && event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = token;
});
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status >= 400 && event.detail.xhr.getResponseHeader("content-type")?.startsWith("text/html")) {
    event.detail.shouldSwap = true;
    event.detail.isError = false;
  }
});
document.addEventListener("htmx:afterSettle", tellTimes);

// A part that is drawn again keeps a person's state: an open dialog, the focus, the place in a list.
const isInUse = (part) => part.matches("[data-live]") && part.querySelector("dialog[open]") !== null;
const nameOf = (one) => one.getAttribute("href") ?? one.getAttribute("commandfor") ?? one.getAttribute("aria-label");
let kept = null;

document.addEventListener("htmx:beforeRequest", (event) => {
  if (isInUse(event.detail.elt)) event.preventDefault();
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const part = event.detail.target;
  if (isInUse(part)) event.detail.shouldSwap = false;
  const held = part.contains(document.activeElement) && document.activeElement !== part ? nameOf(document.activeElement) : null;
  kept = { held, tops: [...part.querySelectorAll(".table-wrap--tall")].map((one) => one.scrollTop) };
});
document.addEventListener("htmx:afterSwap", (event) => {
  const part = event.detail.target;
  labelCells(part);
  if (!kept) return;
  [...part.querySelectorAll(".table-wrap--tall")].forEach((one, place) => { one.scrollTop = kept.tops[place] ?? 0; });
  if (kept.held !== null) {
    [...part.querySelectorAll("a, button, [tabindex]")].find((one) => nameOf(one) === kept.held)?.focus({ preventScroll: true });
  }
  kept = null;
});
document.addEventListener("close", (event) => {  // what changed meanwhile is asked for now
  if (event.target.closest("[data-live]")) document.body.dispatchEvent(new Event("muster:changed"));
}, true);

// On a phone a table's rows are lists, each cell next to its column's name.
function labelCells(within) {
  for (const table of within.querySelectorAll(".table-wrap table:not(.jobs)")) {
    const names = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    for (const row of table.tBodies[0]?.rows ?? []) {
      let place = 0;
      [...row.cells].forEach((cell) => {
        if (names[place]) cell.dataset.label = names[place];
        place += cell.colSpan;
        cell.classList.toggle("is-blank", !cell.textContent.trim() && !cell.childElementCount);
      });
    }
    table.classList.add("is-labelled");
  }
}
labelCells(document);

// One stream a page says when something that it shows has changed; its parts then ask again.
const lively = [...document.querySelectorAll("[data-live]")];
if (lively.length) {
  const about = [...new Set(lively.flatMap((part) => part.dataset.live.split(",")))].join(",");
  const after = document.body.dataset.position;
  const stream = new EventSource(`/console/live?about=${encodeURIComponent(about)}&after=${after}`);
  stream.addEventListener("changed", () => document.body.dispatchEvent(new Event("muster:changed")));
  addEventListener("pagehide", () => stream.close());
}

// The message of a change that was done is shown once.
const here = new URL(location.href);
if (here.searchParams.has("done")) {
  say(here.searchParams.get("done"));
  here.searchParams.delete("done");
  history.replaceState(null, "", here);
}
