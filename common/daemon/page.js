"use strict";
const $ = (id) => document.getElementById(id);

/* An element with attributes and children. Names from peers are children, so they are text and never HTML. */
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* Asks for a token, which is kept until this tab is closed. */
function askToken(why) {
  if ($("token")) return;
  const input = make("input", {id: "token", type: "password", autocomplete: "off", required: ""});
  const form = make("form", {id: "login"}, make("label", {}, `Token (${why})`, input), make("button", {}, "Use this token"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", input.value.trim());
    form.remove();
    update();
  });
  document.querySelector("main").prepend(form);
}

async function get(path, body) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, {signal: AbortSignal.timeout(5000), headers: token ? {Authorization: `Bearer ${token}`} : {},
    ...(body && {method: "POST", body: JSON.stringify(body)})});
  const told = await answer.json();
  /* a refusal of an earlier token is late */
  const isRefused = answer.status === 401 || answer.status === 403;
  if (isRefused && token === sessionStorage.getItem("token")) askToken(told.error);
  if (!answer.ok) throw new Error(told.error || answer.statusText);
  return told;
}

const count = (n) => (n > 0 && n < 10 && n % 1 ? n.toFixed(1) : Math.round(n).toLocaleString("en"));
const percent = (part) => (part === null ? "\u2013" : (100 * part).toFixed(1) + " %");

/* The number in the largest unit in which it is at least 1. */
function scaled(n, units, step) {
  let i = 0;
  for (; n >= step && i < units.length - 1; i++) n /= step;
  return (i === 0 || n >= 100 ? count(n) : n.toFixed(1)) + " " + units[i];
}
const bytes = (n) => scaled(n, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);

function span(ms) {
  if (ms < 10000) return (ms / 1000).toFixed(1) + " s";
  if (ms < 120000) return Math.round(ms / 1000) + " s";
  if (ms < 7200000) return Math.round(ms / 60000) + " min";
  return ms < 172800000 ? Math.round(ms / 3600000) + " h" : Math.round(ms / 86400000) + " d";
}

function bar(part) {
  const inner = make("span");
  inner.style.width = `${100 * Math.min(1, part || 0)}%`;
  return make("span", {class: "bar", "aria-hidden": "true"}, inner);
}

/* Shows rows of cells; a cell is [text or node, class, value to sort by]. A heading with a button sorts. */
function fill(table, rows, empty) {
  const heads = [...table.tHead.rows[0].cells];
  const by = heads.findIndex((th) => th.hasAttribute("aria-sort"));
  const value = (cells) => (cells[by].length > 2 ? cells[by][2] : cells[by][0]);
  const sign = by >= 0 && heads[by].getAttribute("aria-sort") === "descending" ? -1 : 1;
  if (by >= 0) rows.sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  const shown = rows.map((cells) => make("tr", {}, ...cells.map(([what, name]) => make("td", name ? {class: name} : {}, what))));
  if (!rows.length && empty) shown.push(make("tr", {}, make("td", {colspan: heads.length, class: "dim"}, empty)));
  table.tBodies[0].replaceChildren(...shown);
}

document.addEventListener("click", (event) => {
  const th = event.target.closest("th");
  if (!th || !event.target.closest("button")) return;
  const was = th.getAttribute("aria-sort");
  for (const other of th.parentNode.cells) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", was === "descending" ? "ascending" : was === "ascending" ? "descending" : th.className === "n" ? "descending" : "ascending");
  update();
});
