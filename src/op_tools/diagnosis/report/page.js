// The sections of the page, each only where there is something to show.

const COLUMNS = [
  ["op", "operator", "minmax(210px, 2.2fr)", "text"], ["part", "part", "minmax(70px, .7fr)", "text"],
  ["state", "state", "92px", "state"], ["error", "error / allowed", "112px", "number"], ["ms", "ms", "74px", "number"],
  ["direction", "direction", "84px", "text"], ["step", "step", "54px", "number"], ["module", "module", "minmax(110px, 1.2fr)", "text"],
  ["dtype", "type", "80px", "text"], ["shape", "shape", "minmax(90px, 1fr)", "text"], ["high", "largest", "74px", "largest"],
  ["site", "line", "minmax(140px, 1fr)", "site"],
];
const LINE = 28;

function section(id, title, hint, ...inside) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), hint ? make("p", { class: "hint" }, hint) : null, ...inside);
}

function legend(pairs) {
  return make("div", { class: "legend" }, pairs.map(([tone, text]) => make("span", {}, make("i", { style: `background:${tone}` }), text)));
}

function siteButton(data, site) {
  if (!site) return "";
  const [, file, line] = /^(.*):(\d+)$/.exec(site) || [, site, ""];
  const text = `${file.split("/").pop()}:${line}`;
  if (!data.head.code[site]) return make("span", { class: "mono", title: site }, text);
  return make("button", { class: "link", type: "button", title: site, onclick: (event) => { event.stopPropagation(); showCode(data, site); } }, text);
}

function showCode(data, site) {
  const { file, first, lines } = data.head.code[site];
  const at = Number(site.split(":").pop());
  const body = make("pre", {}, lines.map((text, i) => {
    const number = make("span", {}, `${String(first + i).padStart(5)}  `);
    return first + i === at ? make("b", {}, number, text || " ") : [number, `${text}\n`];
  }));
  const dialog = document.getElementById("code");
  const open = make("a", { href: `vscode://file/${encodeURI(file)}:${at}` }, "open in an editor");
  dialog.replaceChildren(make("div", {}, make("strong", { class: "mono" }, `${file}:${at}`), " · ", open, " ",
    make("button", { type: "button", onclick: () => dialog.close(), style: "float:right" }, "Close"), body));
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
  dialog.showModal();
}

function figures(data) {
  const { head, columns, count } = data;
  const wrong = countState(columns, 2), broken = countState(columns, 3);
  const whole = head.groups.reduce((sum, g) => sum + g.ms, 0) || head.operators.reduce((sum, o) => sum + o.ms, 0);
  const cells = [[count.toLocaleString("en"), "calls and results"], [head.operators.length, "operators"]];
  if (columns.error.some((v) => v >= 0) || wrong) cells.push([wrong, "wrong", wrong ? "bad" : ""]);
  if (broken) cells.push([broken, "not finite"]);
  if (whole) cells.push([`${short(whole)} ms`, "device time"]);
  const steps = new Set(columns.step).size;
  if (steps > 1) cells.push([steps, "steps"]);
  return make("div", { class: "figures" }, cells.map(([value, text, kind]) => make("div", { class: `figure ${kind || ""}` }, make("b", {}, String(value)), make("span", {}, text))));
}

function countState(columns, state) { let n = 0; for (const s of columns.state) if (s === state) n++; return n; }

const WORDS = { bad: "problem", warn: "warning", good: "OK", info: "info" };

function findings(data) {
  return make("ul", { class: "findings", id: "findings" }, data.head.findings.map((f) => make("li", { class: `finding ${f.level}` },
    make("div", { class: "kind" }, WORDS[f.level]), make("h2", {}, f.title), f.lines.map((line) => make("p", {}, line)),
    f.site ? make("p", {}, siteButton(data, f.site)) : null, f.command ? make("code", {}, f.command) : null)));
}

function sortable(columns, rows, first, down = true) {
  let by = first, falling = down;
  const body = make("tbody"), headRow = make("tr");
  const fill = () => {
    const ordered = by < 0 ? rows : [...rows].sort((a, b) => { const x = columns[by].value(a), y = columns[by].value(b); return (x < y ? -1 : x > y ? 1 : 0) * (falling ? -1 : 1); });
    body.replaceChildren(...ordered.map((row) => make("tr", {}, columns.map((c) => make("td", { class: c.kind || "" }, c.show(row))))));
    headRow.replaceChildren(...columns.map((c, i) => make("th", { scope: "col", class: c.kind === "num" ? "num" : "", "aria-sort": i === by ? (falling ? "descending" : "ascending") : null },
      make("button", { type: "button", onclick: () => { falling = i === by ? !falling : c.kind === "num"; by = i; fill(); } }, c.name + (i === by ? (falling ? " ↓" : " ↑") : "")))));
  };
  fill();
  return make("table", {}, make("thead", {}, headRow), body);
}

function operators(data, search) {
  const rows = data.head.operators;
  if (!rows.length) return null;
  const has = (key, least) => rows.some((row) => row[key] > least);
  const columns = [{ name: "operator", kind: "name", value: (r) => r.op, show: (r) => make("button", { class: "link", type: "button", onclick: () => search(`op=${r.op}`) }, r.op) },
    { name: "calls", kind: "num", value: (r) => r.calls || r.timed, show: (r) => (r.calls || r.timed).toLocaleString("en") }];
  if (has("worst", -1)) columns.push({ name: "wrong", kind: "num", value: (r) => r.wrong, show: (r) => (r.wrong ? make("span", { class: "tag wrong" }, String(r.wrong)) : "0") },
    { name: "worst error / allowed", kind: "num", value: (r) => r.worst, show: (r) => (r.worst < 0 ? "" : short(r.worst)) });
  if (has("nonfinite", 0)) columns.push({ name: "not finite", kind: "num", value: (r) => r.nonfinite, show: (r) => String(r.nonfinite || "") });
  if (has("ms", 0)) columns.push({ name: "total ms", kind: "num", value: (r) => r.ms, show: (r) => short(r.ms) },
    { name: "share", kind: "num", value: (r) => r.share, show: (r) => [`${(r.share * 100).toFixed(1)} %`, make("span", { class: "meter" }, make("i", { style: `width:${r.share * 100}%` }))] },
    { name: "mean ms", kind: "num", value: (r) => r.ms / (r.timed || 1), show: (r) => (r.timed ? short(r.ms / r.timed) : "") });
  if (has("bytes", 0)) columns.push({ name: "results", kind: "num", value: (r) => r.bytes, show: (r) => bytesText(r.bytes) });
  columns.push({ name: "modules", kind: "num", value: (r) => r.modules, show: (r) => String(r.modules) });
  const at = columns.findIndex((c) => c.name === "wrong") < 0 ? columns.findIndex((c) => c.name === "total ms") : -1;
  const box = make("div", { class: "scroll", style: "max-height:420px", tabindex: 0, role: "region", "aria-label": "Operators" }, sortable(columns, rows, at));
  return section("operators", "Worst operators first", at < 0 ? "The most wrong, then the slowest. A column's name sorts by it; an operator's shows its calls." : "The slowest first. A column's name sorts by it; an operator's shows its calls.", box);
}

function matrix(data, search) {
  const cells = data.head.cells;
  if (!cells.length) return null;
  const types = [...new Set(cells.map((c) => c.dtype))].sort();
  const rows = new Map();
  for (const c of cells) { if (!rows.has(c.op)) rows.set(c.op, {}); rows.get(c.op)[c.dtype] = c; }
  const order = [...rows.entries()].sort((a, b) => worst(b[1]) - worst(a[1]) || (a[0] < b[0] ? -1 : 1));
  const cell = (c) => {
    if (!c) return make("td");
    const judged = c.grade || c.worst >= 0;
    const kind = c.wrong || c.grade === "F" ? "b" : c.grade === "B" ? "w" : judged ? "g" : "";
    const text = c.grade ? `${c.grade}${c.worst > .01 ? ` ${short(c.worst)}` : ""}` : c.wrong ? `✗ ${short(c.worst)}` : judged ? `✓ ${short(c.worst)}` : String(c.count);
    return make("td", { class: kind, title: `${c.op} ${c.dtype}: ${c.count} cases, ${c.wrong} wrong` }, text);
  };
  const table = make("table", { class: "matrix" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "operator"), types.map((t) => make("th", { scope: "col" }, t)))),
    make("tbody", {}, order.map(([op, row]) => make("tr", {}, make("td", { class: "name" }, make("button", { class: "link", type: "button", onclick: () => search(`op=${op}`) }, op)), types.map((t) => cell(row[t]))))));
  const hint = cells.some((c) => c.grade) ? "Grades of the conformance suite, and the worst error as a multiple of what is allowed."
    : cells.some((c) => c.worst >= 0) ? "✓ right, ✗ wrong; the number is the worst error as a multiple of what is allowed." : "How many calls; nothing was judged.";
  return section("matrix", "Operators by type", hint, make("div", { class: "scroll", style: "max-height:420px", tabindex: 0, role: "region", "aria-label": "Operators by type" }, table));
}

function worst(row) { return Math.max(...Object.values(row).map((c) => (c.wrong ? 1e6 : 0) + c.worst)); }

function charts(data, kind, id, title) {
  const found = data.head.charts.filter((c) => c.kind === kind && c.labels.length);
  if (!found.length) return null;
  return section(id, found.length === 1 ? found[0].title : title, null, found.map((chart) => [
    found.length > 1 ? make("h3", {}, chart.title) : null,
    make("p", { class: "hint" }, `${chart.axis} along the bottom; ${chart.unit}.`),
    legend(chart.series.map((s, i) => [TONES[i % TONES.length], s.name])), lineChart(chart)]).flat());
}

function memory(data) {
  const lines = charts(data, "memory", "memory", "Memory");
  const rows = data.head.results;
  if (lines || !rows.length) return lines;
  const most = rows[0].bytes;
  const columns = [{ name: "module", kind: "name", value: (r) => r.module, show: (r) => r.module || "(outside of modules)" },
    { name: "results in a step", kind: "num", value: (r) => r.bytes, show: (r) => [bytesText(r.bytes), make("span", { class: "meter" }, make("i", { style: `width:${r.bytes / most * 100}%` }))] }];
  return section("memory", "Memory of results, by module", "Bytes that a step's calls return, as their shapes tell; what is kept is less.", make("div", { class: "scroll", style: "max-height:300px", tabindex: 0, role: "region", "aria-label": "Memory" }, sortable(columns, rows, 1)));
}

function timelineSection(data, choose) {
  if (!data.head.clock || !data.columns.start.some((v) => v >= 0)) return null;
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": "Timeline of the calls; the table below has the same calls" });
  const timeline = new Timeline(data, canvas, choose);
  const hints = { us: "As it was measured.", calls: "One call after the other: there was no clock.", "ms in order": "Calls one after the other, as long as they took; a trace (--trace) shows when they ran." };
  const button = (text, label, action) => make("button", { type: "button", "aria-label": label, onclick: action }, text);
  const middle = () => (timeline.view[0] + timeline.view[1]) / 2;
  const tools = make("div", { class: "bar" }, button("−", "Zoom out", () => timeline.zoom(1.6, middle())), button("+", "Zoom in", () => timeline.zoom(.6, middle())), button("All", "Show all", () => timeline.pan(0, timeline.end)),
    legend([["var(--forward)", "forward"], ["var(--backward)", "backward"], ["var(--bad)", "wrong or not finite"], ["var(--modules)", "modules"]]));
  const node = section("timeline", "Timeline", `${hints[data.head.clock]} Drag to move, Ctrl and the wheel to zoom, a click shows the call.`, tools, canvas);
  return { node, timeline };
}

// The table of calls holds only the rows that are in sight.
class Calls {
  constructor(data, changed) {
    Object.assign(this, { data, changed, rows: null, by: "", down: true, chosen: -1 });
    this.shown = COLUMNS.filter(([name, , , kind]) => kind === "state" || this.used(name, kind));
    this.grid = this.shown.map((c) => c[2]).join(" ");
    this.input = make("input", { type: "search", placeholder: "Filter: linear backward step:3 ms>0.5 state:wrong -embedding", "aria-label": "Filter the calls", oninput: () => this.search() });
    this.count = make("span", { class: "count", role: "status" });
    this.head = make("div", { class: "head", role: "row", style: `grid-template-columns:${this.grid}` });
    this.space = make("div", { style: "position:relative", role: "rowgroup" });
    this.box = make("div", { class: "virtual", tabindex: 0, role: "table", "aria-label": "Calls", onscroll: () => this.draw() }, this.head, this.space);
    this.node = section("calls", "Calls", null, make("div", { class: "bar" }, this.input, ...this.chips(), this.count), this.box);
    this.search();
  }

  used(name, kind) {
    const { columns, head } = this.data;
    if (kind === "text" || kind === "site") return head.texts[name].some(Boolean);
    return columns[name].some((v) => (name === "step" ? v > 0 : name === "high" ? !Number.isNaN(v) : v >= 0));
  }

  chips() {
    const chip = (text, query) => make("button", { type: "button", onclick: () => this.set(query) }, text);
    const { columns } = this.data, found = [chip("All", "")];
    if (countState(columns, 2)) found.push(chip("Wrong", "state:wrong"));
    if (countState(columns, 3)) found.push(chip("Not finite", "state:nonfinite"));
    if (this.data.head.texts.direction.includes("backward")) found.push(chip("Backward", "direction:backward"));
    return found;
  }

  set(query) { this.input.value = query; this.search(); this.node.scrollIntoView(); }

  search() {
    this.rows = matches(this.data, this.input.value);
    if (this.by) this.rows = sorted(this.data, this.rows, this.by, this.down);
    this.count.textContent = `${this.rows.length.toLocaleString("en")} of ${this.data.count.toLocaleString("en")}`;
    this.space.style.height = `${this.rows.length * LINE}px`;
    this.box.scrollTop = 0;
    this.drawHead();
    this.draw();
    const all = !this.input.value.trim();
    const hits = all ? null : new Uint8Array(this.data.count);
    if (hits) for (const i of this.rows) hits[i] = 1;
    this.changed(hits);
  }

  sort(name, kind) {
    this.down = this.by === name ? !this.down : kind !== "text" && kind !== "site";
    this.by = name;
    this.search();
  }

  drawHead() {
    this.head.replaceChildren(...this.shown.map(([name, title, , kind]) => make("div", { role: "columnheader", class: kind === "number" || kind === "largest" ? "num" : "", "aria-sort": name === this.by ? (this.down ? "descending" : "ascending") : null },
      make("button", { type: "button", onclick: () => this.sort(name, kind) }, title + (name === this.by ? (this.down ? " ↓" : " ↑") : "")))));
  }

  draw() {
    const from = Math.max(0, Math.floor(this.box.scrollTop / LINE) - 4);
    const to = Math.min(this.rows.length, from + Math.ceil((this.box.clientHeight || 600) / LINE) + 8);
    const made = [];
    for (let at = from; at < to; at++) made.push(this.row(this.rows[at], at));
    this.space.replaceChildren(...made);
  }

  row(i, at) {
    const { data } = this;
    const cells = this.shown.map(([name, , , kind]) => make("div", { role: "cell", class: kind === "number" || kind === "largest" ? "num" : name === "op" ? "mono" : "", title: kind === "text" ? data.text(name, i) : null }, this.cell(name, kind, i)));
    return make("div", { class: `row ${i === this.chosen ? "chosen" : ""}`, role: "row", "aria-rowindex": at + 1, style: `top:${at * LINE}px;grid-template-columns:${this.grid}`, title: data.text("note", i) || null }, cells);
  }

  cell(name, kind, i) {
    const { data } = this, value = data.columns[name][i];
    if (kind === "state") { const word = data.head.states[value]; return make("span", { class: `tag ${word}` }, word === "unknown" ? "–" : word === "nonfinite" ? "not finite" : word); }
    if (kind === "site") return siteButton(data, data.text(name, i));
    if (kind === "text") return data.text(name, i);
    if (kind === "largest") { const low = data.columns.low[i]; return Number.isNaN(value) ? "" : short(Math.max(Math.abs(value), Math.abs(low))); }
    return name !== "step" && value < 0 ? "" : name === "step" ? String(value) : short(value);
  }

  choose(i) {
    this.chosen = i;
    if (this.input.value) { this.input.value = ""; this.search(); }
    const at = this.rows.indexOf(i);
    this.node.scrollIntoView();
    this.box.scrollTop = Math.max(0, at * LINE - 120);
    this.draw();
  }
}

function plainTable(table, at) {
  const rows = table.rows.map((row) => make("tr", {}, row.map((cell) => make("td", { class: typeof cell === "number" ? "num" : "" }, typeof cell === "number" ? short(cell) : String(cell ?? "")))));
  return section(`table-${at}`, table.title, null, make("div", { class: "scroll", style: "max-height:420px", tabindex: 0, role: "region", "aria-label": table.title }, make("table", {}, make("thead", {}, make("tr", {}, table.columns.map((c) => make("th", { scope: "col" }, c)))), make("tbody", {}, rows))));
}

function roofSection(data, search) {
  const made = roofline(data.head.groups, (op) => search(`op=${op}`));
  if (!made) return null;
  const hint = `The dashed roof is the best of this run: ${short(made.peak)} GFLOP/s, ${short(made.stream)} GB/s; what lies far below it is held by something else. A dot's size is its time.`;
  return section("roofline", "Roofline", hint, legend([["var(--forward)", "forward"], ["var(--backward)", "backward"]]), made.svg);
}

function sources(data) {
  const { head } = data;
  const list = head.sources.map(([file, what]) => make("li", {}, make("span", { class: "mono" }, file), ` · ${what}`));
  list.push(...head.notes.map((text) => make("li", {}, text)));
  const problems = head.problems.map((text) => make("li", { class: "finding warn" }, text));
  return section("sources", "What this page was made from", null, problems.length ? make("ul", { class: "findings" }, problems) : null, make("ul", {}, list), make("footer", {}, `deeplink ${head.version}, ${head.made}. Self-contained page.`));
}

function navigation(main) {
  const links = [...main.querySelectorAll("section")].map((node) => make("li", {}, make("a", { href: `#${node.id}` }, node.querySelector("h2").textContent.replace(/^What this page.*/, "Sources"))));
  document.getElementById("nav").replaceChildren(make("ul", {}, links));
  const marks = new Map(links.map((item) => [item.firstChild.getAttribute("href").slice(1), item.firstChild]));
  const seen = new IntersectionObserver((entries) => { for (const e of entries) marks.get(e.target.id)?.classList.toggle("here", e.isIntersecting); }, { rootMargin: "-20% 0px -70% 0px" });
  main.querySelectorAll("section").forEach((node) => seen.observe(node));
}

function theme(redraw) {
  const root = document.documentElement;
  const kept = (() => { try { return localStorage.getItem("deeplink-theme"); } catch { return null; } })();
  root.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme").onclick = () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("deeplink-theme", root.dataset.theme); } catch { /* a page without memory */ }
    redraw();
  };
}

async function start() {
  const begun = performance.now();
  const data = await load(document.getElementById("head").textContent, document.getElementById("blob").textContent);
  const main = document.getElementById("main");
  let line = null, calls = null;
  theme(() => line?.timeline.draw());
  line = timelineSection(data, (i) => calls?.choose(i));
  calls = data.count ? new Calls(data, (hits) => { if (line) { line.timeline.hits = hits; if (line.timeline.canvas.isConnected) line.timeline.draw(); } }) : null;
  const search = (query) => calls?.set(query);
  const sections = [operators(data, search), charts(data, "growth", "growth", "Along the network"), charts(data, "steps", "steps", "Steps"), matrix(data, search),
    roofSection(data, search), memory(data), ...data.head.tables.map(plainTable), calls?.node, sources(data)];
  document.getElementById("about").textContent = `${data.count.toLocaleString("en")} calls and results · ${data.head.made}`;
  main.replaceChildren(findings(data), figures(data), ...[line?.node, ...sections].filter(Boolean));
  line?.timeline.draw();
  calls?.draw();
  navigation(main);
  addEventListener("resize", () => { line?.timeline.draw(); calls?.draw(); });
  document.documentElement.dataset.ready = (performance.now() - begun).toFixed(0);
  document.documentElement.dataset.opened = performance.now().toFixed(0);
}

if (typeof document !== "undefined") {
  start().catch((error) => { document.getElementById("main").textContent = `This page could not be read: ${error.message}`; document.documentElement.dataset.failed = error.message; });
}
