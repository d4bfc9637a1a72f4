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

// Light or dark: the browser's wish, until a person chooses; the server then draws it so from the first byte.
function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  document.cookie = `muster-theme=${root.dataset.theme}; path=/console; max-age=31536000; samesite=lax; secure`;
  document.dispatchEvent(new Event("muster:theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("muster:theme")));

// Times say how long ago, and go on saying it.
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

// One click handler for what pages mark.
document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard.writeText(copy.dataset.copy).then(() => say("Copied"), () => say("The browser does not let this page copy"));
    return;
  }
  const opens = event.target.closest("[data-opens]");
  if (opens) {
    document.getElementById(opens.dataset.opens).showModal();
    return;
  }
  if (event.target.closest("[data-closes]")) {
    event.target.closest("dialog").close();
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

// One stream a page says when something that it shows has changed; its parts then ask again.
const lively = [...document.querySelectorAll("[data-live]")];
if (lively.length) {
  const about = [...new Set(lively.flatMap((part) => part.dataset.live.split(",")))].join(",");
  const stream = new EventSource(`/console/live?about=${encodeURIComponent(about)}`);
  stream.addEventListener("changed", () => document.body.dispatchEvent(new Event("muster:changed")));
  addEventListener("pagehide", () => stream.close());
}

// A change that was done says so once.
const here = new URL(location.href);
if (here.searchParams.has("done")) {
  say(here.searchParams.get("done"));
  here.searchParams.delete("done");
  history.replaceState(null, "", here);
}
