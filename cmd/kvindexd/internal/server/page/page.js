"use strict";

// The page of kvindexd. What comes from outside becomes text, never markup: only textContent,
// text nodes and properties are set. There is no request to anywhere else.

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

// set changes a text if it has changed, in the text node that is there.
function set(node, text) {
  text = String(text);
  if (!node.firstChild) node.append(document.createTextNode(text));
  else if (node.firstChild.data !== text) node.firstChild.data = text;
}

function make(name, text, attributes) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  return node;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${n < 10 && i ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

function span(ms) {
  if (ms < 0) return `-${span(-ms)}`;
  if (ms < 1000) return `${ms}\u00a0ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)}\u00a0s`;
  if (ms < 3600000) return `${Math.round(ms / 60000)}\u00a0min`;
  if (ms < 48 * 3600000) return `${Math.round(ms / 3600000)}\u00a0h`;
  return `${number.format(Math.round(ms / 86400000))}\u00a0d`;
}

const tiers = ["gpu", "cpu", "disk", "remote", "other"];
const byTier = (blocks) => tiers.filter((t) => blocks && blocks[t]).map((t) => `${t} ${number.format(blocks[t])}`).join(", ");
const sum = (blocks) => Object.values(blocks || {}).reduce((a, b) => a + b, 0);

// The picture: rows by their ids, each with its tr.
const pods = new Map();
let whole = null;
let stale = true; // the table has to be sorted and filtered

const columns = [
  { key: "pod", head: "Pod", of: (p) => p.pod },
  { key: "model", head: "Model", of: (p) => p.model },
  { key: "state", head: "State", of: (p) => p.state },
  { key: "why", head: "Why", of: (p) => p.why || "" },
  { key: "ranks", head: "Ranks", of: (p) => p.ranks, number: true },
  { key: "lag", head: "Lag", of: (p) => p.lag_ms, number: true, show: (p) => (p.messages ? span(p.lag_ms) : "–") },
  { key: "gpu", head: "GPU blocks", of: (p) => (p.blocks && p.blocks.gpu) || 0, number: true },
  { key: "lower", head: "Lower tiers", of: (p) => sum(p.blocks) - ((p.blocks && p.blocks.gpu) || 0), number: true, show: (p) => byTier({ ...p.blocks, gpu: 0 }) || "0" },
  { key: "lost", head: "Lost", of: (p) => p.lost || 0, number: true },
];
const sorting = { column: columns[0], down: false };
const body = $("pods").tBodies[0];

for (const c of columns) {
  const th = make("th", undefined, { scope: "col", class: c.key + (c.number ? " num" : "") });
  const button = make("button", c.head, { type: "button" });
  button.addEventListener("click", () => {
    sorting.down = sorting.column === c ? !sorting.down : Boolean(c.number);
    sorting.column = c;
    stale = true;
    draw();
  });
  th.append(button);
  $("pods").tHead.rows[0].append(th);
}

const blank = document.createElement("tr");
for (const c of columns) {
  const cell = c.key === "pod" ? make("th", undefined, { scope: "row" }) : document.createElement("td");
  cell.className = c.key + (c.number ? " num" : "");
  let at = cell;
  if (c.key === "pod") cell.append(at = make("a", undefined, { tabindex: "-1" }));
  if (["pod", "model", "why"].includes(c.key)) at.append(make("bdi"));
  blank.append(cell);
}

function fill(p) {
  const tr = p.tr;
  columns.forEach((c, i) => {
    const cell = tr.cells[i];
    if (c.key === "pod") {
      const link = cell.firstChild;
      if (!link.hash) {
        link.href = hashOf(p);
        link.title = p.pod;
      }
      set(link.firstChild, p.pod);
    } else if (c.key === "model" || c.key === "why") {
      set(cell.firstChild, c.of(p));
      if (cell.title !== c.of(p)) cell.title = c.of(p);
    }
    else {
      set(cell, c.show ? c.show(p) : c.number ? number.format(c.of(p)) : c.of(p));
      if (c.key === "state") cell.className = `state ${p.state}`;
    }
  });
}

const hashOf = (p) => `#pod?${new URLSearchParams({ pod: p.pod, model: p.model })}`;

// draw sorts and filters the table, and moves only the rows that are not in their places.
function draw() {
  if (!stale || $("view-fleet").hidden) return;
  stale = false;
  const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = $("state").value;
  const { column, down } = sorting;
  const order = [...pods.values()].filter((p) => (!state || p.state === state) && words.every((w) => p.words.includes(w)));
  const compare = (a, b) => {
    const x = column.of(a), y = column.of(b);
    const by = column.number ? x - y : x < y ? -1 : x > y ? 1 : 0;
    return (down ? -by : by) || (a.words < b.words ? -1 : a.words > b.words ? 1 : a.id - b.id);
  };
  order.sort(compare);
  const focused = document.activeElement;
  let at = body.firstChild;
  for (const p of order) {
    if (p.tr === at) at = at.nextSibling;
    else body.insertBefore(p.tr, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  reach();
  columns.forEach((c, i) => {
    const th = $("pods").tHead.rows[0].cells[i];
    if (c === column) th.setAttribute("aria-sort", down ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  });
  set($("shown"), order.length === pods.size ? `${number.format(pods.size)} pods` : `${number.format(order.length)} of ${number.format(pods.size)} pods`);
}

// reach lets Tab reach one row: the one that had the focus last, else the first one.
let reached = null;
let visited = null;
function reach() {
  const link = visited && visited.isConnected ? visited : body.querySelector("a");
  if (link === reached) return;
  if (reached) reached.tabIndex = -1;
  reached = link;
  if (link) link.tabIndex = 0;
}

body.addEventListener("focusin", (e) => {
  visited = e.target.closest("a");
  reach();
});
body.addEventListener("keydown", (e) => {
  const rows = body.rows;
  const at = e.target.closest("tr").sectionRowIndex;
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 20, PageUp: at - 20, Home: 0, End: rows.length - 1 }[e.key];
  if (to === undefined) return;
  e.preventDefault();
  rows[Math.max(0, Math.min(rows.length - 1, to))].querySelector("a").focus();
});

$("find").addEventListener("input", () => { stale = true; draw(); });
$("state").addEventListener("change", () => { stale = true; draw(); });
$("filter").addEventListener("submit", (e) => e.preventDefault());

// take takes a message of /v1/watch into the picture.
function take(m) {
  if (m.detail) return showPod(m.detail);
  if (m.reset) {
    pods.clear();
    stale = true;
  }
  for (const row of m.pods) {
    const old = pods.get(row.id);
    row.tr = old ? old.tr : blank.cloneNode(true);
    row.words = `${row.pod}\n${row.model}\n${row.source || ""}\n${row.why || ""}`.toLowerCase();
    pods.set(row.id, row);
    fill(row);
    stale = true;
  }
  for (const id of m.gone || []) {
    pods.delete(id);
    stale = true;
  }
  if (!m.whole) return; // the picture goes on
  showWhole(m.whole);
  draw();
}

// The whole. Rates are differences of what is counted.
const samples = [];
const choices = { states: "", models: "" };

function showWhole(w) {
  const at = Date.parse(w.now);
  const last = samples[samples.length - 1];
  if (last && (w.events < last.events || w.scores < last.scores || at <= last.at)) samples.length = 0; // kvindexd has restarted
  samples.push({ at, events: w.events, scores: w.scores, prompt: w.prompt_tokens, cached: w.cached_tokens });
  if (samples.length > 61) samples.shift();
  if (!whole && !$("model").value && w.model) $("model").value = w.model;
  whole = w;
  set($("problem"), w.failing ? `Not ready: ${Object.entries(w.failing).map(([name, why]) => `${name}: ${why}`).join("; ")}` : "");
  const states = {};
  const models = new Set();
  for (const p of pods.values()) {
    states[p.state] = (states[p.state] || 0) + 1;
    models.add(p.model);
  }
  const names = Object.keys(states).sort();
  set($("w-pods"), number.format(w.pods));
  set($("w-states"), names.map((s) => `${s} ${number.format(states[s])}`).join(", "));
  set($("w-blocks"), number.format(sum(w.blocks)));
  set($("w-tiers"), byTier(w.blocks));
  set($("w-bytes"), bytes(w.bytes));
  set($("w-budget"), w.budget ? `${(w.bytes / w.budget * 100).toFixed(1)} % of ${bytes(w.budget)}` : "no bound is known");
  rate("events");
  rate("scores");
  const first = samples[0], now = samples[samples.length - 1];
  const recent = now.prompt > first.prompt;
  const [cached, prompt] = recent ? [now.cached - first.cached, now.prompt - first.prompt] : [w.cached_tokens, w.prompt_tokens];
  set($("w-hits"), prompt ? `${(cached / prompt * 100).toFixed(1)} %` : "–");
  set($("w-hits-of"), prompt ? (recent ? "of the tokens scored in the last minute" : "of the tokens scored since the start") : "nothing was scored");
  options("states", $("state"), names, "all");
  options("models", $("models"), [...models].sort().slice(0, 100));
}

// options fills a list of choices, if they have changed.
function options(name, list, values, all) {
  const now = JSON.stringify(values);
  if (choices[name] === now) return;
  choices[name] = now;
  const chosen = list.value;
  if (chosen && !values.includes(chosen)) values = [...values, chosen];
  list.replaceChildren(...(all ? [make("option", all, { value: "" })] : []), ...values.map((v) => make("option", v, { value: v })));
  if (all) list.value = chosen;
}

function rate(name) {
  const rates = [];
  for (let i = 1; i < samples.length; i++) rates.push((samples[i][name] - samples[i - 1][name]) / (samples[i].at - samples[i - 1].at) * 1000);
  const last = rates[rates.length - 1];
  set($(`w-${name}`), last === undefined ? "–" : number.format(last < 10 ? Number(last.toFixed(1)) : Math.round(last)));
  const top = Math.max(1, ...rates);
  const from = 60 - rates.length;
  $(`s-${name}`).firstElementChild.setAttribute("points", rates.map((r, i) => `${from + i},${(15 - r / top * 14).toFixed(1)}`).join(" "));
}

// One pod.
let shownPod = null; // {pod, model}

// fillTable makes the body of a table have these texts, in the cells that are there.
function fillTable(table, lines, none) {
  if (!lines.length) lines = [[none]];
  while (table.rows.length > lines.length) table.lastChild.remove();
  lines.forEach((line, i) => {
    const tr = table.rows[i] || table.insertRow();
    while (tr.cells.length > line.length) tr.lastChild.remove();
    line.forEach((text, k) => set(tr.cells[k] || tr.insertCell(), text));
    tr.cells[0].colSpan = line.length === 1 ? 20 : 1;
  });
}

const time = (text) => (text ? new Date(text).toLocaleString() : "never");

function showPod(d) {
  if (!shownPod) return;
  const p = d.row;
  $("p-gone").hidden = Boolean(p);
  const facts = p ? [["Model", p.model], ["State", p.state], ["Why", p.why || "everything since its start is known"], ["Source", p.source || "its own events"], ["Blocks", byTier(p.blocks) || "none"], ["Lost messages", number.format(p.lost || 0)], ["Newest message", time(p.last_message)]] : [];
  const list = $("p-facts");
  while (list.childElementCount > 2 * facts.length) list.lastElementChild.remove();
  facts.forEach(([name, text], i) => {
    if (list.childElementCount <= 2 * i) list.append(make("dt"), make("dd"));
    set(list.children[2 * i], name);
    set(list.children[2 * i + 1], text);
  });
  fillTable($("p-ranks"), d.ranks.map((r) => [r.rank, r.state, byTier(r.blocks) || "none", number.format(r.messages), span(r.lag_ms), `${span(Math.floor(r.age_ms / 1000) * 1000)} ago`, number.format(r.evicted || 0)]), "No rank is known.");
  fillTable($("p-streams"), d.streams.map((s) => [
    s.stream || "without numbers", s.error ? `${s.link}: ${s.error}` : s.link || "–", s.state || "–", s.replay || "–", s.next, ...["Messages", "Missing", "Malformed", "Replayed", "Restarts"].map((k) => number.format(s.traffic[k])), time(s.last_message),
  ]), "No stream is known.");
  fillTable($("p-losses"), d.losses.map(({ noticed, loss }) => [time(noticed), loss.Cause, loss.Rank < 0 ? "–" : loss.Rank, whatOf(loss)]), "None is remembered.");
  $("p-cut").hidden = !d.cut;
}

function whatOf(l) {
  const says = [];
  if (l.Gap && l.Gap.Lost) says.push(`messages ${l.Gap.From} to ${l.Gap.To} are missing`);
  else if (l.Seq) says.push(`at message ${l.Seq}`);
  if (l.Replayed) says.push("the engine no longer had them");
  if (l.Err) says.push(l.Err);
  says.push(l.Kept ? "the blocks were kept" : l.Tiers ? "its lower tiers were forgotten" : "the blocks were forgotten");
  return says.join("; ");
}

// The score of a prompt.
const hints = {
  prompt: "as the client sends it",
  chat: 'JSON: a list of messages, such as [{"role": "user", "content": "Hello"}], or the body of a request',
  tokens: "numbers between blanks or commas",
};
const kind = () => document.querySelector("input[name=kind]:checked").value;
const hint = () => set($("text-hint"), hints[kind()]);
for (const radio of document.querySelectorAll("input[name=kind]")) radio.addEventListener("change", hint);
hint();

// requestOf returns the body for /v1/score, or throws what is wrong.
function requestOf(kind, model, adapter, text) {
  const q = {};
  if (model) q.model = model;
  if (adapter) q.adapter = adapter;
  if (kind === "prompt") {
    if (!text) throw new Error("text: it is empty");
    return { ...q, prompt: text };
  }
  if (kind === "tokens") {
    const words = text.split(/[\s,[\]]+/).filter(Boolean);
    const wrong = words.find((w) => !/^[0-9]{1,10}$/.test(w) || Number(w) > 0xffffffff);
    if (wrong !== undefined) throw new Error(`text: ${JSON.stringify(wrong.slice(0, 40))} is no token id`);
    if (!words.length) throw new Error("text: it has no token id");
    return { ...q, tokens: words.map(Number) };
  }
  let chat;
  try {
    chat = JSON.parse(text);
  } catch (err) {
    throw new Error(`text: not JSON: ${err.message}`);
  }
  if (Array.isArray(chat)) chat = { messages: chat };
  if (!chat || typeof chat !== "object" || !Array.isArray(chat.messages)) throw new Error("text: it has no messages");
  if (model && chat.model === undefined) chat.model = model; // an adapter is named by the model of the body
  return { ...q, body: chat, path: "/v1/chat/completions" };
}

async function post(path, value, signal) {
  let answer;
  try {
    answer = await fetch(path, { method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" }, signal });
  } catch (err) {
    throw err.name === "AbortError" ? err : new Error("kvindexd does not answer");
  }
  const text = await answer.text();
  if (answer.status === 401 && path !== "/login") askToken();
  let v = {};
  try {
    v = text ? JSON.parse(text) : {};
  } catch {
    throw new Error(`${answer.status}: the answer is no JSON`);
  }
  if (!answer.ok) throw new Error(v.error || `status ${answer.status}`);
  return v;
}

let asking = null; // AbortController of what is being asked
let shown = null; // {q, a, next}

$("ask").addEventListener("submit", async (e) => {
  e.preventDefault();
  if (asking) asking.abort();
  const control = asking = new AbortController();
  set($("ask-error"), "");
  set($("answer"), "");
  $("scores").replaceChildren();
  $("legend").hidden = $("more").hidden = true;
  try {
    const q = requestOf(kind(), $("model").value, $("adapter").value, $("text").value);
    const a = await post("/v1/score", q, control.signal);
    const n = a.pods.length;
    const note = a.unknown || a.degraded;
    set($("answer"), `${number.format(a.prompt_tokens)} tokens, ${number.format(n)} ${n === 1 ? "pod" : "pods"}, the best first${note ? `. ${note}` : ""}`);
    $("legend").hidden = !n;
    shown = { q, a, next: 0, control };
    showScores();
  } catch (err) {
    if (err.name !== "AbortError") set($("ask-error"), err.message);
  }
});
$("more").addEventListener("click", () => showScores(true));

const most = 20; // pods that are shown at a time

async function showScores(focus) {
  const { q, a, control } = shown;
  const some = a.pods.slice(shown.next, shown.next + most).map((p) => {
    const item = { p, li: scoreOf(p, a) };
    $("scores").append(item.li);
    return item;
  });
  shown.next += most;
  $("more").hidden = shown.next >= a.pods.length;
  if (focus && some.length) some[0].li.querySelector("h3").focus();
  const queue = some.slice();
  await Promise.all([0, 1, 2, 3].map(async () => {
    for (let item; (item = queue.shift()) && !control.signal.aborted;) await explain(item, q, control.signal);
  }));
}

function scoreOf(p, a) {
  const li = make("li", undefined, { "data-pod": p.pod });
  const title = make("h3", undefined, { tabindex: "-1" });
  title.append(make("bdi", p.pod), document.createTextNode(p.rank ? `, rank ${p.rank}` : ""), make("span", p.state, { class: `state ${p.state}` }));
  const bars = make("div", undefined, { class: "bars" });
  const total = a.prompt_tokens;
  const run = [];
  for (const t of tiers) for (let i = 0; i < ((p.tiers && p.tiers[t]) || 0); i++) run.push(t);
  bars.append(make("span", "held"), barOf(run, p.block_tokens, total));
  bars.append(make("span", "reused"), trackOf([["reuse", p.cached_tokens], ["load", p.loaded_tokens + p.fetched_tokens]], total, "would be reused"));
  bars.append(make("span", "predicted"), trackOf([["predict", p.predicted_tokens]], total, "are predicted to be reused"));
  li.append(title, bars);
  const beyond = [[p.loaded_tokens, "loaded"], [p.fetched_tokens, "fetched"]].filter(([n]) => n).map(([n, what]) => `, ${number.format(n)} ${what}`).join("");
  li.append(make("p", p.not_scorable ? "This chat cannot be scored for the pod." : `${number.format(p.cached_tokens)} of ${number.format(total)} tokens cached${beyond}, ${number.format(p.predicted_tokens)} predicted; ${p.matched_blocks ? `${number.format(p.matched_blocks)} blocks of ${p.block_tokens} tokens` : "no block"} held from the first on${p.upper_bound ? "; the engine may reuse less" : ""}.`));
  li.append(make("p", "…", { class: "why" }));
  return li;
}

// barOf draws the blocks of a prompt: held is the tier of each, "" for one that is not held.
function barOf(held, blockTokens, total) {
  const bar = make("div", undefined, { class: "bar held", role: "img" });
  const last = held.length - 1 - [...held].reverse().findIndex(Boolean);
  const end = held.some(Boolean) ? last : -1;
  const says = [];
  for (let from = 0; from < held.length;) {
    const tier = held[from] || (from < end ? "hole" : "none");
    let to = from + 1;
    while (to < held.length && (held[to] || (to < end ? "hole" : "none")) === tier) to++;
    bar.append(part(tier, (to - from) * blockTokens, total, { "data-blocks": to - from }));
    says.push(`blocks ${from} to ${to - 1} ${tier === "none" ? "not held" : tier === "hole" ? "are a hole" : `in ${tier}`}`);
    from = to;
  }
  bar.setAttribute("aria-label", says.join(", ") || "no block is held");
  return bar;
}

function trackOf(parts, total, what) {
  const bar = make("div", undefined, { class: "bar track", role: "img", "aria-label": `${number.format(parts.reduce((n, [, t]) => n + t, 0))} of ${number.format(total)} tokens ${what}` });
  for (const [tier, tokens] of parts) if (tokens) bar.append(part(tier, tokens, total, { "data-tokens": tokens }));
  return bar;
}

function part(tier, tokens, total, attributes) {
  const node = make("span", undefined, { "data-tier": tier, ...attributes });
  node.style.width = `${tokens / total * 100}%`;
  return node;
}

// explain asks why a score is what it is, and draws the blocks where they are.
async function explain({ p, li }, q, signal) {
  const why = li.querySelector(".why");
  try {
    const e = await post(`/v1/explain?${new URLSearchParams({ pod: p.pod })}`, q, signal);
    if (e.Held && (!p.matched_blocks || e.BlockTokens === p.block_tokens && e.Rank === p.rank)) li.querySelector(".held").replaceWith(barOf(e.Held, e.BlockTokens, e.Tokens.length));
    why.textContent = e.Why;
  } catch (err) {
    if (err.name === "AbortError") return;
    why.textContent = err.message;
  }
  li.dataset.done = "yes";
}

// The connection: server-sent events, read by fetch, because an EventSource hides what is wrong.
let connection = null; // AbortController
let lastID = "";
let heard = 0; // when the last message came
let live = false;
let logged = null; // resolves when there is a new token

function alive() {
  heard = Date.now();
  if (live) return;
  live = true;
  document.body.classList.remove("gone");
  $("link").className = "live";
  set($("link"), "live");
}

function gone(why) {
  live = false;
  document.body.classList.toggle("gone", heard > 0); // the last picture stays
  $("link").className = "gone";
  set($("link"), heard ? `No answer since ${clock.format(heard)}: ${why}` : why);
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function watch() {
  for (;;) {
    connection = new AbortController();
    let ends = "the connection was closed";
    try {
      const query = shownPod ? `?${new URLSearchParams(shownPod)}` : "";
      const answer = await fetch(`/v1/watch${query}`, { headers: lastID ? { "Last-Event-ID": lastID } : {}, signal: connection.signal, cache: "no-store" });
      $("logout").hidden = !answer.headers.has("Kvindexd-Login");
      if (answer.ok) await read(answer.body.getReader());
      else {
        ends = (await answer.json()).error || `status ${answer.status}`;
        if (answer.status === 400) lastID = ""; // it begins again
        if (answer.status === 401) {
          gone("a token is needed");
          await askToken();
          continue;
        }
      }
    } catch {
      const { reason } = connection.signal;
      if (reason === again) continue;
      ends = reason === silent ? "it is silent" : "it cannot be reached";
    }
    gone(ends);
    await pause(1000);
  }
}

// Reasons for which the page ends a connection.
const again = new Error("another pod is shown");
const silent = new Error("no message for 5 s");

setInterval(() => live && Date.now() - heard > 5000 && connection.abort(silent), 1000);

async function read(reader) {
  const decoder = new TextDecoder();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const messages = rest.split("\n\n");
    rest = messages.pop();
    for (const message of messages) {
      for (const line of message.split("\n")) {
        if (line.startsWith("data: ")) take(JSON.parse(line.slice(6)));
        else if (line.startsWith("id: ")) lastID = line.slice(4);
      }
      alive();
    }
  }
}

function askToken() {
  if (!logged) {
    logged = {};
    logged.promise = new Promise((done) => { logged.done = done; });
    view();
    $("token").focus();
  }
  return logged.promise;
}

$("login").addEventListener("submit", async (e) => {
  e.preventDefault();
  set($("login-error"), "");
  try {
    await post("/login", { token: $("token").value });
    $("token").value = "";
    const { done } = logged;
    logged = null;
    done();
    view();
  } catch (err) {
    set($("login-error"), err.message);
  }
});

// Log-out forgets the cookie, and all that was shown, in each tab.
const tabs = new BroadcastChannel("logout");
tabs.onmessage = () => location.reload();

$("logout").addEventListener("click", async () => {
  let why = "kvindexd does not answer";
  try {
    const answer = await fetch("/login", { method: "DELETE" });
    if (answer.ok || answer.status === 401) {
      tabs.postMessage("");
      location.reload();
      return;
    }
    why = `status ${answer.status}`;
  } catch { /* it does not answer */ }
  set($("problem"), `Not logged out: ${why}.`);
});

// view shows what the address says.
const titles = { fleet: "Fleet", pod: "Pod", score: "Score", login: "Log in" };

function view(moved) {
  const [, name, query] = /^#?([^?]*)\??(.*)$/s.exec(location.hash);
  let of = name || "fleet";
  const wrong = !["fleet", "pod", "score"].includes(of);
  if (wrong) of = "fleet";
  if (logged) of = "login";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== `view-${of}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${of}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (wrong) set($("problem"), `There is no view ${JSON.stringify(name.slice(0, 40))}: this is the fleet.`);
  let pod = null;
  if (of === "pod") {
    const values = new URLSearchParams(query);
    pod = { pod: values.get("pod") || "", model: values.get("model") || "" };
    set($("p-name"), pod.pod);
  }
  document.title = `${of === "pod" ? pod.pod.slice(0, 60) : titles[of]} – kvindexd`;
  const changed = JSON.stringify(pod) !== JSON.stringify(shownPod);
  shownPod = pod;
  if (changed && connection) {
    for (const id of ["p-ranks", "p-streams", "p-losses", "p-facts"]) $(id).replaceChildren();
    connection.abort(again);
  }
  stale = true;
  draw();
  if (moved) $(`${of}-title`).focus();
}
document.querySelector(".skip").addEventListener("click", (e) => {
  e.preventDefault();
  document.querySelector("main > section:not([hidden]) h2").focus();
});
window.addEventListener("hashchange", () => view(true));

view();
watch();
