"use strict";
// Whatever comes from the broker is shown by text nodes and attributes that cannot run: names and records may be hostile.

const POLL_MS = 2000;
const SAMPLES_MAX = 150;
const SVG = "http://www.w3.org/2000/svg";
const main = document.getElementById("main");
const samples = [];
let cluster = null;
let shown = 0;

// -- making nodes -----------------------------------------------------------------------------------

function add(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, does] of Object.entries(value)) node.addEventListener(event, does);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}
const h = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => add(document.createElementNS(SVG, tag), attributes, children);

function table(columns, rows, none) {
  if (!rows.length) return h("p", { class: "quiet" }, none || "None.");
  const kind = (column) => (column.n ? { class: "n" } : column.class ? { class: column.class } : {});
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((c) => h("th", c.n ? { class: "n" } : {}, c.title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((c) => h("td", kind(c), c.show(row))))))));
}
const tile = (name, value, kind) => h("div", { class: "tile " + (kind || "") }, name, h("b", {}, value));
const link = (text, ...parts) => h("a", { href: "#/" + parts.map(encodeURIComponent).join("/") }, text);

// -- words for numbers ------------------------------------------------------------------------------

const number = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en"));
function size(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
}
const brief = (n) => (n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : n >= 1e4 ? (n / 1e3).toFixed(1) + " k"
  : n >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toFixed(n < 1 ? 2 : 1));
// A producer may write any number of 64 bits for a time.
const time = (ms) => (!(ms >= 0) ? "–" : !(ms <= 8.64e15) ? ms + " ms"
  : new Date(ms).toISOString().replace("T", " ").replace("Z", ""));
const some = (n, kind) => (n ? h("span", { class: kind }, number(n)) : "0");

// -- asking -----------------------------------------------------------------------------------------

class LoginNeeded extends Error {
  constructor(content) { super(content.error); this.mechanisms = content.mechanisms; }
}
class Refused extends Error {}

async function read(answer) {
  const content = await answer.json();
  if (answer.status === 401) throw new LoginNeeded(content);
  if (answer.status === 403) throw new Refused(content.error);
  if (!answer.ok) throw new Error(content.error || answer.statusText);
  return content;
}
const ask = async (view, query) => read(await fetch("api/" + view + (query ? "?" + new URLSearchParams(query) : "")));
const post = async (path, content) => read(await fetch("api/" + path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content),
}));
// What ACLs keep from this user is missing from a page that shows more than that.
const allowed = (asked, instead) => asked.catch((error) => { if (error instanceof Refused) return instead; throw error; });

function trouble(error) {
  const place = document.getElementById("trouble");
  place.hidden = !error;
  place.textContent = !error ? "" : error instanceof TypeError ? "The broker does not answer." : error.message;
}

// -- charts -----------------------------------------------------------------------------------------

function rates(of) {
  const found = [];
  for (let i = 1; i < samples.length; i += 1) {
    const seconds = (samples[i].now_ms - samples[i - 1].now_ms) / 1000;
    found.push(seconds > 0 ? of(samples[i - 1], samples[i], seconds) : 0);
  }
  return found;
}
const rate = (read) => rates((a, b, seconds) => Math.max(0, read(b) - read(a)) / seconds);
const request = (sample, name) => sample.requests[name] || { count: 0, seconds: 0, p99_ms: 0 };
const mean = (name) => rates((a, b) => {
  const count = request(b, name).count - request(a, name).count;
  return count > 0 ? (1000 * (request(b, name).seconds - request(a, name).seconds)) / count : null;
});
const topics = (sample, name) => sample.topics["kafka_server_brokertopicmetrics_" + name] || 0;

function chart(title, words, lines) {
  const wide = 440, high = 130, left = 66, low = 112;
  const most = Math.max(...lines.flatMap((line) => line.values), 0), top = most || 1;
  const x = (i) => left + ((SAMPLES_MAX - 1 - i) / (SAMPLES_MAX - 1)) * (wide - left - 6);
  const y = (v) => low - (v / top) * (low - 12);
  const grid = (most ? [0, 0.5, 1] : [0]).map((part) => [
    s("line", { class: "grid", x1: left, x2: wide - 6, y1: y(part * top), y2: y(part * top) }),
    s("text", { x: left - 6, y: y(part * top) + 4, "text-anchor": "end" }, words(part * top)),
  ]);
  const traces = lines.map((line, at) => {
    const from = line.values.length - 1;
    const points = line.values.flatMap((v, i) => (v === null ? [] : [x(from - i).toFixed(1) + "," + y(v).toFixed(1)]));
    return s("polyline", { class: "trace c" + at, points: points.join(" ") });
  });
  const minutes = Math.round(((SAMPLES_MAX - 1) * POLL_MS) / 60000);
  return h("div", { class: "chart" }, h("h3", {}, title),
    s("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title }, grid.flat(), traces,
      s("text", { x: left, y: high - 4 }, minutes + " min ago"),
      s("text", { x: wide - 6, y: high - 4, "text-anchor": "end" }, "now")),
    h("div", { class: "legend" }, lines.map((line, at) => h("span", {}, h("i", { class: "c" + at }),
      line.name + " " + ((line.values.at(-1) ?? null) === null ? "–" : words(line.values.at(-1)))))));
}

function charts() {
  if (!samples.length) return h("p", { class: "quiet" }, "ACLs do not let you see this broker's metrics.");
  const perSecond = (n) => brief(n) + "/s", ms = (n) => brief(n) + " ms", bytes = (n) => size(n) + "/s";
  return h("div", { class: "charts" },
    chart("Records from producers", perSecond, [
      { name: "records", values: rate((a) => topics(a, "messagesin_total")) }]),
    chart("Bytes of records", bytes, [
      { name: "in", values: rate((a) => topics(a, "bytesin_total")) },
      { name: "out", values: rate((a) => topics(a, "bytesout_total")) }]),
    chart("Requests", perSecond, [
      { name: "Produce", values: rate((a) => request(a, "Produce").count) },
      { name: "Fetch", values: rate((a) => request(a, "FetchConsumer").count) }]),
    chart("Latency of Produce", ms, [
      { name: "mean", values: mean("Produce") },
      { name: "p99 of ten minutes", values: samples.slice(1).map((a) => request(a, "Produce").p99_ms) }]));
}

// -- the way of a partition -------------------------------------------------------------------------

function picture(p) {
  const wide = 1000, left = 70, right = 20, start = p.log_start_offset;
  const span = Math.max(1, p.log_end_offset - start);
  const x = (offset) => left + (Math.min(Math.max(offset - start, 0), span) / span) * (wide - left - right);
  const bar = (kind, from, to, y, words) => s("rect", {
    class: kind, x: x(from) + 0.5, y, height: 26, width: Math.max(1.5, x(to) - x(from) - 1), rx: 2,
  }, s("title", {}, words));
  const rail = (name, y) => [
    s("text", { class: "name", x: 8, y: y + 17 }, name),
    s("rect", { class: "rail", x: left, y: y + 11, width: wide - left - right, height: 3 }),
  ];
  const words = (from, to) => number(from) + " to " + number(to);
  const marks = [["log start", start], ["local start", p.local_log_start_offset], ["last stable", p.last_stable_offset],
    ["high watermark", p.high_watermark], ["log end", p.log_end_offset]];
  const lines = marks.map(([name, offset], i) => {
    const at = x(offset), y = 134 + 17 * i, flip = at > wide * 0.75;
    return [
      s("line", { class: "mark", x1: at, x2: at, y1: 12, y2: y }),
      s("text", { x: flip ? at - 5 : at + 5, y, "text-anchor": flip ? "end" : "start" }, name + " " + number(offset)),
    ];
  });
  return h("div", { class: "picture" },
    s("svg", { viewBox: `0 0 ${wide} 220`, role: "img", "aria-label": "Where the partition's offsets are" },
      rail("lake", 20), rail("local", 72),
      p.lake.map(([from, to]) => bar("lake", from, to + 1, 20, "in the lake: " + words(from, to))),
      p.gaps.map(([from, to]) => bar("gap", from, to + 1, 20, "missing in the store: " + words(from, to))),
      p.segments.map((g) => bar(g.is_active ? "local active" : "local", g.base_offset, g.next_offset, 72,
        words(g.base_offset, g.next_offset - 1) + ", " + size(g.size_bytes) + (g.is_active ? ", active" : ""))),
      lines.flat()),
    h("div", { class: "legend" },
      h("span", {}, h("i", { class: "lake" }), "in the lake"), h("span", {}, h("i", { class: "gap" }), "missing"),
      h("span", {}, h("i", { class: "local" }), "local segments (the active one paler)")));
}

function bytesText(field, as) {
  if (field === null) return h("span", { class: "quiet" }, "null");
  let text = field.text;
  if (as === "hex" && !field.hex) {
    text = Array.from(new TextEncoder().encode(text), (b) => b.toString(16).padStart(2, "0")).join("");
  }
  const whole = field.hex ? field.text.length / 2 : new TextEncoder().encode(field.text).length;
  const more = whole < field.size ? h("span", { class: "quiet" }, ` … ${number(field.size)} bytes in all`) : null;
  return h("span", { class: "bytes" }, field.hex ? h("span", { class: "quiet" }, "0x") : null, text, more);
}

function messages(topic, partition) {
  const input = (name, rest) => h("input", { name, ...rest });
  const place = h("div", {});
  const from = h("select", { name: "from" }, ["newest", "offset", "time"].map((w) => h("option", { value: w }, w)));
  const as = h("select", { name: "as" }, ["text", "hex"].map((w) => h("option", { value: w }, w)));
  const at = input("at", { placeholder: "offset, or 2026-01-31 12:00" });
  const limit = input("limit", { type: "number", min: 1, max: 500, value: 50 });
  let next = null;
  async function load(offset) {
    const query = { topic, partition, limit: limit.value || 50 };
    if (offset !== null) query.offset = offset;
    else if (from.value === "offset") query.offset = at.value;
    else if (from.value === "time") {
      const text = at.value.trim();
      const ms = /^\d+$/.test(text) ? Number(text) : Date.parse(text.replace(" ", "T") + (/[zZ+]/.test(text) ? "" : "Z"));
      if (Number.isNaN(ms)) throw new Error("A time looks like 2026-01-31 12:00 (UTC), or is in ms since 1970.");
      query.timestamp = ms;
    }
    const found = await ask("records", query);
    next = found.next_offset;
    place.replaceChildren(
      h("p", { class: "quiet" }, `${number(found.records.length)} records from offset ${number(found.offset)} on; `
        + `readable are ${number(found.log_start_offset)} to ${number(found.last_stable_offset - 1)}. Times are UTC.`),
      table([
        { title: "Offset", n: true, show: (r) => number(r.offset) },
        { title: "Time", show: (r) => (r.left_out ? "" : time(r.timestamp)) },
        { title: "Key", class: "mono", show: (r) => (r.left_out ? "" : bytesText(r.key, as.value)) },
        { title: "Value", class: "mono", show: (r) => (r.left_out ? h("span", { class: "warn" }, "left out: " + r.left_out)
          : bytesText(r.value, as.value)) },
        { title: "Headers", class: "mono", show: (r) => [
          (r.headers || []).map((header) => h("div", {}, bytesText(header.name, as.value), ": ", bytesText(header.value, as.value))),
          r.headers_left_out ? h("div", { class: "quiet" }, `… and ${number(r.headers_left_out)} more headers`) : null].flat() },
      ], found.records, "No records there."));
  }
  const go = (offset) => load(offset).then(() => trouble(null), failed);
  const form = h("form", { on: { submit: (event) => { event.preventDefault(); go(null); } } },
    h("label", {}, "From", from), h("label", {}, "At", at), h("label", {}, "Records", limit),
    h("label", {}, "Bytes as", as), h("button", { id: "read" }, "Read"),
    h("button", { type: "button", on: { click: () => go(next) } }, "Next"));
  go(null);
  return h("section", { id: "messages" }, h("h2", {}, "Records"), form, place);
}

// The lake may be away, or slow: the rest of the page does not wait for it.
function commits(topic) {
  const shown = (rows) => table([
    { title: "Version", n: true, show: (c) => number(c.version) },
    { title: "Time (UTC)", show: (c) => (c.timestamp === null ? "–" : time(c.timestamp)) },
    { title: "Operation", show: (c) => c.operation || "–" },
    { title: "Rows", n: true, show: (c) => number(c.rows) },
    { title: "Files added", n: true, show: (c) => number(c.files_added) },
    { title: "Bytes added", n: true, show: (c) => (c.files_added ? size(c.bytes_added) : "–") },
    { title: "Files removed", n: true, show: (c) => number(c.files_removed) },
    { title: "Parameters", class: "mono", show: (c) => Object.entries(c.parameters || {})
      .map(([key, value]) => `${key}=${value}`).join("\n") || "–" },
  ], rows, "There is no table yet: it begins with the first segment that is copied.");
  const place = h("div", {}, h("p", { class: "quiet" }, "…"));
  ask("history", { topic }).then((rows) => place.replaceChildren(shown(rows)), (error) => {
    if (error instanceof LoginNeeded) failed(error);
    else place.replaceChildren(h("p", { class: "warn" }, error.message));
  });
  return place;
}

// -- pages ------------------------------------------------------------------------------------------

const settingsTable = (rows) => table([
  { title: "Setting", class: "mono", show: (r) => h("span", { title: r.says || "" }, r.name) },
  { title: "Value", class: "wide", show: (r) => (r.is_secret ? "(secret)" : r.value === null ? "–" : r.value) },
  { title: "Origin", show: (r) => r.origin.toLowerCase().replaceAll("_", " ") },
  { title: "At run time", show: (r) => (r.is_read_only ? "fixed" : "changeable") },
], rows);

const quiet = (...words) => h("p", { class: "quiet" }, ...words);
// What a broker shows of others' replicas would be a guess.
const here = (what) => quiet(`${what} are those of this broker's replicas (broker ${cluster.node_id}); – is not known here.`);

const given = (row) => row.origin !== "DEFAULT";

function settings(rows) {
  return [h("h2", {}, "Settings that were given"), settingsTable(rows.filter(given)),
    h("h2", {}, "Settings at their defaults"), settingsTable(rows.filter((row) => !given(row)))];
}

const pages = {
  async overview() {
    return [h("h1", {}, "Overview"),
      h("div", { class: "tiles" }, tile("Topics", number(cluster.topics)), tile("Partitions", number(cluster.partitions)),
        tile("Brokers", number(cluster.brokers.length)), tile("Controller", number(cluster.controller_id)),
        tile("Cluster id", cluster.cluster_id, "small")),
      h("h2", {}, "This broker, live"), charts(),
      h("h2", {}, "Brokers"),
      table([
        { title: "Id", show: (b) => b.id + (b.id === cluster.node_id ? " (this one)" : "") },
        { title: "Rack", show: (b) => b.rack || "–" },
        { title: "State", show: (b) => (b.is_fenced ? h("span", { class: "bad" }, "fenced")
          : b.is_stopping ? h("span", { class: "warn" }, "stopping") : "active") },
        { title: "Controller", show: (b) => (b.is_controller ? "yes" : "") },
        { title: "Listeners", class: "mono", show: (b) => b.endpoints.join("\n") },
      ], cluster.brokers)];
  },
  async topics() {
    return [h("h1", {}, "Topics"), here("Sizes"),
      table([
        { title: "Topic", class: "wide", show: (t) => [link(t.name, "topic", t.name),
          t.is_internal ? h("span", { class: "quiet" }, " internal") : null] },
        { title: "Partitions", n: true, show: (t) => number(t.partitions) },
        { title: "Replicas", n: true, show: (t) => number(t.replicas) },
        { title: "Under-replicated", n: true, show: (t) => some(t.under_replicated, "warn") },
        { title: "Offline", n: true, show: (t) => some(t.offline, "bad") },
        { title: "Local", n: true, show: (t) => size(t.local_bytes) },
        { title: "Log in the lake", n: true, show: (t) => size(t.lake_bytes) },
      ], await ask("topics"), "There are no topics yet.")];
  },
  async topic(name) {
    const topic = await ask("topic", { topic: name });
    return [h("h1", {}, topic.name), h("p", { class: "quiet" }, "Topic id ", h("code", {}, topic.id)),
      h("h2", {}, "Partitions"), here("Offsets and sizes"),
      table([
        { title: "Partition", show: (p) => link(String(p.partition), "partition", name, p.partition) },
        { title: "Leader", show: (p) => (p.leader < 0 ? h("span", { class: "bad" }, "none") : p.leader) },
        { title: "Preferred", show: (p) => h("span", p.leader !== p.preferred_leader ? { class: "warn" } : {}, p.preferred_leader) },
        { title: "Replicas", show: (p) => p.replicas.join(", ") },
        { title: "ISR", show: (p) => h("span", p.isr.length < p.replicas.length ? { class: "warn" } : {}, p.isr.join(", ")) },
        { title: "Log start", n: true, show: (p) => number(p.log_start_offset) },
        { title: "Last stable", n: true, show: (p) => number(p.last_stable_offset) },
        { title: "High watermark", n: true, show: (p) => number(p.high_watermark) },
        { title: "Log end", n: true, show: (p) => number(p.log_end_offset) },
        { title: "Local", n: true, show: (p) => size(p.local_bytes) },
        { title: "Log in the lake", n: true, show: (p) => size(p.lake_bytes) },
      ], topic.partitions),
      h("h2", {}, "History of its table"), commits(name),
      topic.settings === null ? h("p", { class: "quiet" }, "ACLs do not let you see its settings.") : settings(topic.settings)];
  },
  async partition(topic, partition) {
    const p = await ask("partition", { topic, partition });
    return [h("h1", {}, link(topic, "topic", topic), " / " + partition),
      h("div", { class: "tiles" }, tile("Leader", p.leader < 0 ? "none" : number(p.leader)), tile("ISR", p.isr.join(", ") || "–"),
        tile("Local", size(p.local_bytes)), tile("Segments", number(p.segment_count)),
        tile("Log in the lake", size(p.lake_bytes)), tile("Last tiered", p.highest_offset_in_remote_storage < 0 ? "–" : number(p.highest_offset_in_remote_storage))),
      here("Offsets, sizes and records"),
      h("h2", {}, "Where its offsets are"), picture(p),
      document.getElementById("messages") || messages(topic, partition)];
  },
  async groups() {
    return [h("h1", {}, "Groups"), quiet(`Groups that this broker (${cluster.node_id}) coordinates.`), here("Ends, which lag is counted to,"),
      table([
        { title: "Group", class: "wide", show: (g) => link(g.id, "group", g.id) },
        { title: "State", show: (g) => g.state }, { title: "Protocol", show: (g) => g.type },
        { title: "Partitions", n: true, show: (g) => number(g.partitions) },
        { title: "Lag", n: true, show: (g) => number(g.lag) },
        { title: "Of it in the lake", n: true, show: (g) => number(g.lag_in_lake) },
      ], await ask("groups"), "This broker coordinates no groups.")];
  },
  async group(id) {
    const group = await ask("group", { group: id });
    return [h("h1", {}, group.id), h("p", {}, group.state + ", " + group.type + " protocol"),
      h("h2", {}, "Offsets"), here("Ends"), table([
        { title: "Topic", class: "wide", show: (o) => link(o.topic, "topic", o.topic) },
        { title: "Partition", n: true, show: (o) => number(o.partition) },
        { title: "Committed", n: true, show: (o) => number(o.committed_offset) },
        { title: "End", n: true, show: (o) => number(o.end_offset) },
        { title: "Lag", n: true, show: (o) => number(o.lag) },
        { title: "Of it in the lake", n: true, show: (o) => number(o.lag_in_lake) },
      ], group.offsets, "No committed offsets."),
      h("h2", {}, "Members"), table([
        { title: "Client", class: "wide", show: (m) => m.client_id }, { title: "Host", show: (m) => m.host },
        { title: "Member id", class: "mono", show: (m) => m.id },
      ], group.members, "No members.")];
  },
  async settings() {
    return [h("h1", {}, "Settings of broker " + cluster.node_id), settings(await ask("settings"))];
  },
};
const live = new Set(["overview", "partition", "groups", "group", "topics"]);


// -- who looks --------------------------------------------------------------------------------------

function login(mechanisms) {
  clearInterval(polling);
  ++shown;
  cluster = null;
  samples.length = 0;
  document.body.classList.add("out");
  const byToken = mechanisms.includes("OAUTHBEARER"), byPassword = mechanisms.some((m) => m !== "OAUTHBEARER");
  const user = h("input", { name: "user", autocomplete: "username", required: !byToken });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: !byToken });
  const token = h("input", { name: "token", type: "password", autocomplete: "off", required: !byPassword });
  const button = h("button", { class: "main" }, "Log in");
  async function enter(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      await post("login", token.value ? { token: token.value.trim() } : { user: user.value, password: password.value });
      begin();
    } catch (error) {
      trouble(error);
      password.value = token.value = "";
    }
    button.disabled = false;
  }
  const what = [byPassword && "the name and password", byToken && "the token"].filter(Boolean).join(" or ");
  main.replaceChildren(h("form", { id: "login", on: { submit: enter } }, h("h1", {}, "Log in"),
    h("p", { class: "quiet" }, `With ${what} of a Kafka client (SASL).`),
    ...(byPassword ? [h("label", {}, "User", user), h("label", {}, "Password", password)] : []),
    ...(byToken ? [h("label", {}, "Token", token)] : []), button));
  (byPassword ? user : token).focus();
}

function whose() {
  const leave = () => post("logout", {}).then(begin, trouble);
  document.getElementById("whose").replaceChildren(
    `broker ${cluster.node_id} · version ${cluster.version}`,
    ...(cluster.user ? [" · " + cluster.user + " ", h("button", { id: "logout", on: { click: leave } }, "Log out")] : []));
}

// -- showing ----------------------------------------------------------------------------------------

function failed(error) {
  if (error instanceof LoginNeeded) login(error.mechanisms);
  else trouble(error);
}

async function show(isAgain) {
  const turn = ++shown;
  const [page, ...rest] = (location.hash || "#/overview").slice(2).split("/").map(decodeURIComponent);
  if (!isAgain) main.replaceChildren();
  try {
    const nodes = (await (pages[page] || pages.overview)(...rest)).flat();
    if (turn !== shown) return;
    main.replaceChildren(...nodes);
    trouble(null);
  } catch (error) {
    if (turn === shown) failed(error);
  }
  for (const each of document.querySelectorAll("nav a")) {
    const its = { topic: "topics", partition: "topics", group: "groups" }[page] || page;
    each.className = each.getAttribute("href") === "#/" + its ? "here" : "";
  }
}

async function poll() {
  if (document.hidden) return;
  try {
    const [sample, found] = await Promise.all([allowed(ask("metrics"), null), ask("cluster")]);
    if (sample) samples.push(sample);
    if (samples.length > SAMPLES_MAX) samples.shift();
    cluster = found;
    whose();
  } catch (error) {
    failed(error);
    return;
  }
  const page = (location.hash || "#/overview").slice(2).split("/")[0];
  const isReading = main.contains(document.activeElement) || String(getSelection());
  if (live.has(page) && !isReading) await show(true);
}

let polling = 0;
async function begin() {
  await poll();
  if (!cluster) return;
  document.body.classList.remove("out");
  clearInterval(polling);
  polling = setInterval(poll, POLL_MS);
  await show(false);
}

addEventListener("hashchange", () => { if (cluster) show(false); });
begin();
