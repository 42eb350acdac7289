// The sections of the page, each only where there is something to show.

const COLUMNS = [
  ["run", "run", "run"], ["op", "operator", "text"], ["part", "part", "text"], ["state", "state", "state"], ["error", "error / tolerance", "number"], ["ms", "ms", "number"],
  ["direction", "direction", "text"], ["step", "step", "number"], ["rank", "rank", "number"], ["module", "module", "text"], ["dtype", "type", "text"], ["shape", "shape", "text"], ["high", "largest value", "largest"], ["site", "line", "site"],
];
function section(id, title, hint, ...inside) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), hint ? make("p", { class: "hint" }, hint) : null, ...inside);
}

function legend(pairs) {
  return make("div", { class: "legend" }, pairs.map(([tone, text]) => make("span", {}, make("i", { style: `background:${tone}` }), text)));
}

function scrollBox(label, height, ...inside) {
  return make("div", { class: "scroll", style: `max-height:${height}px`, tabindex: 0, role: "region", "aria-label": label }, inside);
}

function baseName(site) {
  const [, file, line] = /^(.*):(\d+)$/.exec(site) || [, site, ""];
  return line ? `${file.split("/").pop()}:${line}` : site;
}

function siteButton(data, site) {
  if (!site) return "";
  if (!data.head.code[site]) return make("span", { class: "mono", title: site }, baseName(site));
  return make("button", { class: "link", type: "button", title: site, onclick: (event) => { event.stopPropagation(); showCode(data, site); } }, baseName(site));
}

function showCode(data, site) {
  const { file, first, lines } = data.head.code[site];
  const at = Number(site.split(":").pop());
  const body = make("pre", {}, lines.map((text, i) => {
    const number = make("span", {}, `${String(first + i).padStart(5)}  `);
    return first + i === at ? make("b", {}, number, text || " ") : [number, `${text}\n`];
  }));
  const dialog = document.getElementById("code");
  const open = make("a", { href: `vscode://file/${encodeURI(file)}:${at}` }, t("open in an editor"));
  dialog.replaceChildren(make("div", {}, make("strong", { class: "mono" }, `${file}:${at}`), " · ", open, " ",
    make("button", { type: "button", onclick: () => dialog.close(), style: "float:right" }, t("Close")), body));
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
  dialog.showModal();
}

function copyButton(text) {
  const button = make("button", { type: "button", class: "copy", "aria-label": t("Copy the command"), onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch {
      const field = make("textarea", { style: "position:fixed;opacity:0" });
      field.value = text; document.body.append(field); field.select(); document.execCommand("copy"); field.remove();
    }
    button.textContent = t("copied"); setTimeout(() => { button.textContent = t("copy"); }, 1500);
  } }, t("copy"));
  return button;
}

// A command, or a file to send: only a command has a button.
function command(text) { return make("span", { class: "command" }, make("code", {}, text), copyButton(text)); }

function save(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csvButton(name, header, rows) {
  return make("button", { type: "button", class: "csv", "aria-label": t("Save as CSV"), onclick: () => save(`${name}.csv`, csvText(header, rows())) }, t("CSV"));
}

// The header: the verdict, and how the run was made.

const LABELS = { status: "exit code" };
const ABOUT = ["command", "device", "vendor", "torch", "python", "deeplink", "host", "date", "duration", "status"];

function provenance(data) {
  const { head } = data, runs = head.runs.length ? head.runs : [head.about];
  const names = ABOUT.filter((name) => runs.some((run) => run[name]));
  const value = (run, name) => (!run[name] ? t("not recorded") : name === "command" ? command(run[name]) : run[name]);
  if (!names.length) return [make("p", { class: "hint" }, head.devices.join(" · ") || `${t("device")}: ${t("not recorded")}`)];
  if (head.runs.length) return [make("table", { class: "about" }, make("thead", {}, make("tr", {}, make("th", {}), runs.map((run) => make("th", { scope: "col" }, run.name)))),
    make("tbody", {}, names.map((name) => make("tr", {}, make("th", { scope: "row" }, t(LABELS[name] || name)), runs.map((run) => make("td", {}, value(run, name)))))))];
  return [make("dl", { class: "about" }, names.map((name) => make("div", { class: name }, make("dt", {}, t(LABELS[name] || name)), make("dd", {}, value(head.about, name)))))];
}

function figures(data) {
  const { head, columns, count } = data;
  const wrong = countState(columns, 2), broken = countState(columns, 3);
  const cases = head.cells.filter((cell) => cell.grade).reduce((sum, cell) => sum + cell.count, 0);
  const cells = cases ? [[cases.toLocaleString("en"), "cases"], [new Set(head.cells.map((cell) => cell.op)).size, "operators"]] : [];
  if (count && !cases) cells.push([count.toLocaleString("en"), "calls and results"]);
  if (head.operators.length && !cases) cells.push([head.operators.length, "operators"]);
  if (!head.runs.length) {
    const whole = head.groups.reduce((sum, g) => sum + g.ms, 0) || head.operators.reduce((sum, o) => sum + o.ms, 0);
    if (whole) cells.push([`${short(whole)} ms`, "device time"]);
  }
  if (columns.error.some((v) => v >= 0) || wrong) cells.push([wrong.toLocaleString("en"), "wrong", wrong ? "bad" : ""]);
  if (broken) cells.push([broken.toLocaleString("en"), "not finite", "bad"]);
  const steps = head.charts.filter((c) => c.kind === "steps" && c.title === "Loss").map((c) => c.labels.length)[0] || new Set(columns.step).size;
  if (steps > 1) cells.push([steps, "steps"]);
  return make("div", { class: "figures" }, cells.map(([value, text, kind]) => make("div", { class: `figure ${kind || ""}` }, make("b", {}, String(value)), make("span", {}, t(text)))));
}

function countState(columns, state) { let n = 0; for (const s of columns.state) if (s === state) n++; return n; }

const WORDS = { bad: "problem", warn: "warning", good: "OK", info: "info" };

function findings(data) {
  const field = (name, ...inside) => [make("dt", {}, t(name)), make("dd", {}, inside)];
  return make("ul", { class: "findings", id: "findings" }, data.head.findings.map((f) => make("li", { class: `finding ${f.level}` },
    make("div", { class: "kind" }, (data.head.runs.length ? `${"AB"[f.run]} · ` : "") + t(WORDS[f.level])), make("h2", {}, sentence(f.title)),
    make("dl", { class: "fields" },
      f.site || f.where ? field("Where", siteButton(data, f.site), f.site && f.where ? " · " : "", sentence(f.where)) : null,
      f.lines.length ? field("Evidence", f.lines.map((line) => make("p", {}, sentence(line)))) : null,
      f.workaround ? field("Workaround", command(f.workaround)) : null, f.next ? field("Next", command(f.next)) : null))));
}

function sortable(columns, rows, firstColumn, down = true) {
  let by = firstColumn, falling = down;
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

function operatorColumn(search, name = "operator") {
  return { name: t(name), kind: "name", value: (r) => r.op, show: (r) => make("button", { class: "link", type: "button", onclick: () => search(`op="${r.op}"`) }, r.op) };
}

function errorCell(data, r) { return r.worst < 0 ? "" : r.worst === 0 && !r.wrong && data.head.unit === "error / tolerance" ? "≤ 1" : short(r.worst); }

function wrongTag(count) { return count ? make("span", { class: "tag wrong" }, count.toLocaleString("en")) : "0"; }

function operators(data, search) {
  const rows = data.head.operators;
  if (data.head.pairs.length) return pairs(data, search);
  if (!rows.length) return null;
  const has = (key, least) => rows.some((row) => row[key] > least);
  const columns = [operatorColumn(search), { name: t("calls"), kind: "num", value: (r) => r.calls || r.timed, show: (r) => (r.calls || r.timed).toLocaleString("en") }];
  const judged = has("worst", -1);
  if (judged) columns.push({ name: t("wrong"), kind: "num", value: (r) => r.wrong, show: (r) => wrongTag(r.wrong) },
    { name: t(data.head.unit), kind: "num", value: (r) => r.worst, show: (r) => errorCell(data, r) });
  if (has("nonfinite", 0)) columns.push({ name: t("not finite"), kind: "num", value: (r) => r.nonfinite, show: (r) => String(r.nonfinite || "") });
  if (has("ms", 0)) columns.push({ name: t("total ms"), kind: "num", value: (r) => r.ms, show: (r) => short(r.ms) },
    { name: t("share"), kind: "num", value: (r) => r.share, show: (r) => [`${(r.share * 100).toFixed(1)} %`, make("span", { class: "meter" }, make("i", { style: `width:${r.share * 100}%` }))] },
    { name: t("mean ms"), kind: "num", value: (r) => r.ms / (r.timed || 1), show: (r) => (r.timed ? short(r.ms / r.timed) : "") });
  if (has("bytes", 0)) columns.push({ name: t("results"), kind: "num", value: (r) => r.bytes, show: (r) => bytesText(r.bytes) });
  columns.push({ name: t("modules"), kind: "num", value: (r) => r.modules, show: (r) => String(r.modules) });
  const at = judged ? -1 : columns.findIndex((c) => c.name === t("total ms"));
  const text = judged ? "The most wrong, then the slowest. A column's name sorts by it; an operator's shows its calls." : "The slowest first. A column's name sorts by it; an operator's shows its calls.";
  const keys = ["op", "calls", "wrong", "nonfinite", "worst", "ms", "share", "bytes", "modules"];
  return section("operators", t("Operators, the worst first"), t(text), make("div", { class: "bar" }, csvButton("operators", keys, () => rows.map((row) => keys.map((key) => row[key])))), scrollBox(t("operators"), 420, sortable(columns, rows, at)));
}

// The operators of two runs, with the values of both beside each other.
function pairs(data, search) {
  const rows = data.head.pairs, keys = ["calls", "wrong", "worst", "ms"];
  const get = (row, run, key) => { const side = row[run]; return side ? (key === "calls" ? side.calls || side.timed : side[key]) : -1; };
  const used = keys.filter((key) => rows.some((row) => ["A", "B"].some((run) => get(row, run, key) > (key === "worst" ? -1 : 0))));
  const titles = { calls: "calls", wrong: "wrong", worst: data.head.unit, ms: "total ms" };
  const columns = [operatorColumn(search)];
  for (const key of used) for (const run of ["A", "B"]) if (rows.some((row) => get(row, run, key) > (key === "worst" ? -1 : 0)) || key === "wrong") columns.push({ name: `${t(titles[key])} ${run}`, kind: "num", value: (r) => get(r, run, key),
    show: (r) => { const value = get(r, run, key); return value < 0 || (key === "ms" && !value) ? "–" : key === "wrong" ? wrongTag(value) : key === "worst" ? errorCell(data, r[run]) : key === "calls" ? value.toLocaleString("en") : short(value); } });
  if (used.includes("ms")) columns.push({ name: "B / A", kind: "num", value: (r) => get(r, "B", "ms") / get(r, "A", "ms") || 0, show: (r) => (get(r, "A", "ms") > 0 && get(r, "B", "ms") > 0 ? short(get(r, "B", "ms") / get(r, "A", "ms")) : "") });
  const header = ["op", ...used.flatMap((key) => [`${key}_A`, `${key}_B`])];
  const lines = () => rows.map((row) => [row.op, ...used.flatMap((key) => ["A", "B"].map((run) => (row[run] ? get(row, run, key) : "")))]);
  return section("operators", t("Operators of both runs"), null, make("div", { class: "bar" }, csvButton("operators", header, lines)), scrollBox(t("operators"), 460, sortable(columns, rows, -1)));
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
    const kind = c.wrong && c.known >= c.wrong ? "k" : c.wrong || c.grade === "F" ? "b" : c.grade === "B" ? "w" : judged ? "g" : "";
    const text = c.grade ? `${c.grade}${c.note ? "*" : ""}${c.worst > .01 ? ` ${short(c.worst)}` : ""}` : c.wrong ? `✗ ${short(c.worst)}` : judged ? `✓${c.worst > 0 ? ` ${short(c.worst)}` : ""}` : String(c.count);
    return make("td", { class: kind, title: [`${c.op} ${c.dtype}: ${c.count}, ${t("wrong")}: ${c.wrong}`, c.note].filter(Boolean).join("; ") }, text);
  };
  const table = make("table", { class: "matrix" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, t("operator")), types.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, order.map(([op, row]) => make("tr", {}, make("td", { class: "name" }, make("button", { class: "link", type: "button", onclick: () => search(`op="${op}"`) }, op)), types.map((name) => cell(row[name]))))));
  const graded = cells.some((c) => c.grade);
  const hint = graded ? "Grades of the conformance suite, and the worst error as a multiple of the tolerance."
    : cells.some((c) => c.worst >= 0) ? "✓ right, ✗ wrong; the number is the worst error as a multiple of the tolerance." : "How many calls; nothing was judged.";
  const known = cells.some((c) => c.wrong && c.known >= c.wrong) ? ` ${t("Blue: every wrong case is a known gap of the vendor.")}` : "";
  const keys = ["op", "dtype", "count", "wrong", "known", "grade", "worst", "note"];
  return section("matrix", t("Operators by type"), t(hint) + known, make("div", { class: "bar" }, csvButton("operators_by_type", keys, () => cells.map((c) => keys.map((key) => c[key])))), scrollBox(t("Operators by type"), 480, table));
}

function worst(row) { return Math.max(...Object.values(row).map((c) => (c.wrong > c.known ? 1e6 : 0) + c.worst)); }

function charts(data, kind, id, title) {
  const found = data.head.charts.filter((c) => c.kind === kind && c.labels.length);
  return found.length ? section(id, found.length === 1 ? t(found[0].title) : t(title), null, found.map((chart) => drawing(chart, found.length > 1)).flat()) : null;
}

function drawing(chart, titled) {
  let log = chart.log || spread(chart.series.flatMap((s) => s.values)) > 1e3;
  const box = make("input", { type: "checkbox", "aria-label": t("log axis"), onchange: () => { log = box.checked; place.replaceChildren(lineChart(chart, log)); } });
  box.checked = log;
  const place = make("div", { class: "chart" }, lineChart(chart, log));
  return [titled ? make("h3", {}, t(chart.title)) : null, make("p", { class: "hint" }, t("{0} along the bottom; {1}.", t(chart.axis), t(chart.unit))),
    make("div", { class: "bar" }, legend(chart.series.map((s, i) => [TONES[i % TONES.length], seriesName(s.name)])), make("label", {}, box, ` ${t("log axis")}`)), place];
}

function seriesName(name) { const [, run, rest] = /^([AB]: )?(.*)$/.exec(name); return (run || "") + t(rest); }

function memory(data) {
  const lines = charts(data, "memory", "memory", "Memory");
  const along = memoryTimeline(data);
  if (!along) return lines;
  const hint = t("Bytes of the results of one step, added up call by call. What the program keeps is less.");
  const rows = data.head.results, most = rows.length ? rows[0].bytes : 1;
  const columns = [{ name: t("module"), kind: "name", value: (r) => r.module, show: (r) => r.module || t("(outside of modules)") },
    { name: t("results in a step"), kind: "num", value: (r) => r.bytes, show: (r) => [bytesText(r.bytes), make("span", { class: "meter" }, make("i", { style: `width:${r.bytes / most * 100}%` }))] }];
  const node = section("results", t("Memory of results, by module"), hint, ...along, rows.length ? scrollBox(t("Memory"), 260, sortable(columns, rows, 1)) : null);
  return lines ? [lines, node] : node;
}

function errors(data, search) {
  const graded = data.head.cells.some((cell) => cell.grade); // of a suite: only failures are rows
  const bars = !graded && data.head.unit === "error / tolerance" ? histogram(data.columns, search) : null;
  return bars ? section("errors", t("Distribution of the errors"), t("How many results have an error of each size, as multiples of the tolerance. A bar shows them."), bars) : null;
}

function timelineSection(data, choose) {
  if (!data.head.clock || !data.columns.start.some((v) => v >= 0)) return null;
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": t("Timeline") });
  const timeline = new Timeline(data, canvas, choose);
  const hints = { us: "As it was measured.", calls: "One call after the other: there was no clock.", "ms in order": "Calls one after the other, as long as they took; a trace (--trace) shows when they ran." };
  const button = (text, label, action) => make("button", { type: "button", "aria-label": label, onclick: action }, text);
  const middle = () => (timeline.view[0] + timeline.view[1]) / 2;
  const tools = make("div", { class: "bar" }, button("−", t("Zoom out"), () => timeline.zoom(1.6, middle())), button("+", t("Zoom in"), () => timeline.zoom(.6, middle())), button(t("All"), t("Show all"), () => timeline.pan(0, timeline.end)),
    legend([["var(--forward)", t("forward")], ["var(--backward)", t("backward")], ["var(--bad)", t("wrong or not finite")], ["var(--modules)", t("modules")]]));
  const node = section("timeline", t("Timeline"), `${t(hints[data.head.clock])} ${t("Drag to move, Ctrl and the wheel to zoom, a click shows the call.")}`, tools, canvas);
  return { node, timeline };
}

// The table of calls holds only the rows that are in sight.
class Calls {
  constructor(data, state, changed) {
    Object.assign(this, { data, state, changed, rows: null, by: state.sort.replace("-", ""), down: state.sort.startsWith("-"), chosen: -1, line: 28 });
    this.shown = COLUMNS.filter(([name, , kind]) => kind === "state" || this.used(name, kind));
    this.input = make("input", { type: "search", placeholder: t("Filter: linear backward step:3 ms>0.5 state:wrong in:blocks.0 -embedding"), "aria-label": t("Filter the calls"), oninput: () => this.search() });
    this.input.value = state.q;
    this.count = make("span", { class: "count", role: "status" });
    this.head = make("div", { class: "head", role: "row" });
    this.space = make("div", { style: "position:relative", role: "rowgroup" });
    this.box = make("div", { class: "virtual", tabindex: 0, role: "table", "aria-label": t("Calls"), onscroll: () => this.draw() }, this.head, this.space);
    const csv = csvButton("calls", this.shown.map(([name]) => name), () => [...this.rows].map((i) => this.shown.map(([name, , kind]) => this.plain(name, kind, i))));
    this.node = section("calls", t("Calls"), null, make("div", { class: "bar" }, this.input, ...this.chips(), csv, this.count), this.box);
  }

  used(name, kind) {
    const { columns, head } = this.data;
    if (kind === "run") return head.runs.length > 0;
    if (kind === "text" || kind === "site") return head.texts[name].some(Boolean);
    return columns[name].some((v) => (name === "step" || name === "rank" ? v > 0 : name === "high" ? !Number.isNaN(v) : v >= 0));
  }

  chips() {
    const chip = (text, query) => make("button", { type: "button", onclick: () => this.set(query) }, t(text));
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
    this.count.textContent = t("{0} of {1}", this.rows.length.toLocaleString("en"), this.data.count.toLocaleString("en"));
    this.box.scrollTop = 0;
    this.state.set("q", this.input.value.trim());
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
    this.state.set("sort", (this.down ? "-" : "") + name);
    this.search();
  }

  // Columns as wide as their longest text; where that is too wide, texts take two lines.
  layout() {
    const pen = document.createElement("canvas").getContext("2d");
    const mono = "12.5px ui-monospace, \"SF Mono\", \"Cascadia Mono\", Menlo, Consolas, monospace", sans = "13px system-ui, sans-serif";
    const wide = (text, font) => { pen.font = font; return pen.measureText(text).width; };
    const longest = (texts, font) => [...texts].sort((a, b) => b.length - a.length).slice(0, 12).reduce((most, text) => Math.max(most, wide(text, font)), 0);
    const room = 18, { data } = this, words = (text) => text.split(/[ /]+/);
    const found = this.shown.map(([name, , kind]) => {
      const title = Math.max(...words(this.title(name)).map((word) => wide(`${word} ↓`, `600 ${sans}`)));
      if (kind === "text" || kind === "site") {
        const texts = name === "direction" ? data.head.texts[name].map(t) : kind === "site" ? data.head.texts[name].map(baseName) : data.head.texts[name];
        const whole = longest(texts, name === "op" || kind === "site" ? mono : sans);
        return { whole: Math.max(title, whole), least: Math.max(title, kind === "site" || name === "direction" ? whole : Math.min(whole, whole / 2 + 26)) };
      }
      const texts = kind === "state" ? data.head.states.map((word) => `    ${stateWord(word)}`) : kind === "run" ? ["A"] : name === "step" || name === "rank" ? ["12345"] : ["123,456", "-1.2e-10"];
      const whole = Math.max(title, longest(texts, sans));
      return { whole, least: whole };
    });
    const box = (this.box.clientWidth || 1180) - (room + 1) * found.length;
    const sum = (key) => found.reduce((total, one) => total + one[key], 0);
    const spare = sum("whole") - sum("least");
    const part = sum("whole") <= box ? 1 : spare > 0 ? Math.max(0, (box - sum("least")) / spare) : 0;
    const widths = found.map(({ whole, least }) => Math.max(Math.ceil(least), Math.floor(least + (whole - least) * part)) + room);
    const all = widths.reduce((total, width) => total + width, 0);
    this.line = part < 1 ? 44 : 28;
    this.box.classList.toggle("tall", part < 1);
    const grows = this.shown.map(([name, , kind]) => kind === "text" && name !== "direction");
    this.grid = widths.map((width, at) => (grows[at] ? `minmax(${width}px, ${width}fr)` : `${width}px`)).join(" ");
    for (const node of [this.head, this.space]) node.style.minWidth = all > (this.box.clientWidth || 1180) ? `${all}px` : "";
  }

  title(name) { return t(name === "error" ? this.data.head.unit : COLUMNS.find((column) => column[0] === name)[1]); }

  drawHead() {
    this.layout();
    this.head.style.gridTemplateColumns = this.grid;
    this.space.style.height = `${this.rows.length * this.line}px`;
    this.box.style.maxHeight = `${Math.max(3, this.data.count) * this.line + 56}px`;
    this.head.replaceChildren(...this.shown.map(([name, , kind]) => make("div", { role: "columnheader", class: kind === "number" || kind === "largest" ? "num" : "", "aria-sort": name === this.by ? (this.down ? "descending" : "ascending") : null },
      make("button", { type: "button", onclick: () => this.sort(name, kind) }, this.title(name) + (name === this.by ? (this.down ? " ↓" : " ↑") : "")))));
  }

  draw() {
    const from = Math.max(0, Math.floor(this.box.scrollTop / this.line) - 4);
    const to = Math.min(this.rows.length, from + Math.ceil((this.box.clientHeight || 600) / this.line) + 8);
    const made = [];
    for (let at = from; at < to; at++) made.push(this.row(this.rows[at], at));
    this.space.replaceChildren(...made);
  }

  row(i, at) {
    const { data } = this;
    const cells = this.shown.map(([name, , kind]) => make("div", { role: "cell", class: kind === "number" || kind === "largest" ? "num" : name === "op" ? "mono" : "", title: kind === "text" ? data.text(name, i) : null }, make("span", {}, this.cell(name, kind, i))));
    return make("div", { class: `row ${i === this.chosen ? "chosen" : ""}`, role: "row", "aria-rowindex": at + 1, style: `top:${at * this.line}px;height:${this.line}px;grid-template-columns:${this.grid}`, title: data.text("note", i) || null, onclick: () => { this.chosen = i; this.draw(); } }, cells);
  }

  cell(name, kind, i) {
    const { data } = this, value = data.columns[name][i];
    if (kind === "state") { const word = data.head.states[value]; return make("span", { class: `tag ${word}` }, stateWord(word)); }
    if (kind === "site") return siteButton(data, data.text(name, i));
    if (kind === "text") return name === "direction" ? t(data.text(name, i)) : data.text(name, i);
    return this.plain(name, kind, i);
  }

  plain(name, kind, i) {
    const { data } = this, value = data.columns[name][i];
    if (kind === "run") return "AB"[value];
    if (kind === "state") return data.head.states[value];
    if (kind === "text" || kind === "site") return data.text(name, i);
    if (kind === "largest") { const low = data.columns.low[i]; return Number.isNaN(value) ? (data.columns.state[i] === 3 ? "NaN" : "") : short(Math.max(Math.abs(value), Math.abs(low))); }
    if (name === "error") return errorText(data, i);
    return name === "step" || name === "rank" ? String(value) : value < 0 ? "" : short(value);
  }

  move(by) {
    const at = Math.max(0, Math.min(this.rows.length - 1, (this.chosen < 0 ? -1 : this.rows.indexOf(this.chosen)) + by));
    this.show(this.rows[at]);
  }

  choose(i) {
    if (this.input.value) { this.input.value = ""; this.search(); }
    this.node.scrollIntoView();
    this.show(i);
  }

  show(i) {
    this.chosen = i;
    this.box.scrollTop = Math.max(0, this.rows.indexOf(i) * this.line - 120);
    this.draw();
  }
}

function stateWord(word) { return word === "unknown" ? "–" : t(word === "nonfinite" ? "not finite" : word); }

function plainTable(table, at) {
  const rows = table.rows.map((row) => make("tr", {}, row.map((cell) => make("td", { class: typeof cell === "number" ? "num" : "" }, typeof cell === "number" ? short(cell) : String(cell ?? "")))));
  const bar = make("div", { class: "bar" }, csvButton(table.title.replaceAll(/\W+/g, "_").toLowerCase(), table.columns, () => table.rows.map((row) => row.map((cell) => cell ?? ""))));
  return section(`table-${at}`, sentence(table.title), null, bar, scrollBox(sentence(table.title), 420, make("table", {}, make("thead", {}, make("tr", {}, table.columns.map((c) => make("th", { scope: "col" }, t(c))))), make("tbody", {}, rows))));
}

function roofSection(data, search) {
  const made = roofline(data.head.groups, (op) => search(`op="${op}"`));
  if (!made) return null;
  const hint = t("The dashed roof is the best of this run: {0} GFLOP/s, {1} GB/s; what lies far below it is held by something else. A dot's size is its time.", short(made.peak), short(made.stream));
  return section("roofline", t("Roofline"), hint, legend([["var(--forward)", t("forward")], ["var(--backward)", t("backward")]]), made.svg);
}

function sources(data) {
  const { head } = data;
  const list = head.sources.map(([file, what]) => make("li", {}, make("span", { class: "mono" }, file), ` · ${what}`));
  list.push(...head.notes.map((text) => make("li", {}, text)));
  const problems = head.problems.map((text) => make("li", { class: "finding warn" }, text));
  return section("sources", t("Files of this page"), null, problems.length ? make("ul", { class: "findings" }, problems) : null, make("ul", {}, list),
    make("footer", {}, `deeplink ${head.version}, ${head.made}. ${t("Self-contained page.")} ${t("Keys: / filter, j k next and previous call, w a s d timeline.")}`));
}

function navigation(main) {
  const links = [...main.querySelectorAll("section")].map((node) => make("li", {}, make("a", { href: `#${node.id}`, onclick: (event) => { event.preventDefault(); node.scrollIntoView(); } }, node.id === "sources" ? t("Sources") : node.querySelector("h2").textContent)));
  document.getElementById("nav").replaceChildren(make("ul", {}, links));
  const marks = new Map(links.map((item) => [item.firstChild.getAttribute("href").slice(1), item.firstChild]));
  const inSight = new Set();
  const seen = new IntersectionObserver((entries) => {
    for (const e of entries) if (e.isIntersecting) inSight.add(e.target.id); else inSight.delete(e.target.id);
    const here = [...marks.keys()].find((id) => inSight.has(id));
    for (const [id, mark] of marks) mark.classList.toggle("here", id === here);
  }, { rootMargin: "-20% 0px -70% 0px" });
  main.querySelectorAll("section").forEach((node) => seen.observe(node));
}

// What a view of the page consists of; all of it is in the address, so that a link shows the view.
class State {
  constructor() {
    this.keys = ["lang", "theme", "q", "sort", "metric", "open"];
    const given = new URLSearchParams(location.hash.slice(1));
    for (const key of this.keys) this[key] = given.get(key) || "";
    this.lang ||= stored("deeplink-lang") || document.documentElement.dataset.language || (navigator.language.startsWith("zh") ? "zh" : "en");
    this.theme ||= stored("deeplink-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    this.redraw = () => {};
  }

  set(key, value) {
    this[key] = value;
    const own = this.given || (this.given = new Set([...new URLSearchParams(location.hash.slice(1)).keys()]));
    own.add(key);
    const found = new URLSearchParams(this.keys.filter((name) => own.has(name) && this[name]).map((name) => [name, this[name]]));
    history.replaceState(null, "", `#${found}`);
    if (key === "lang" || key === "theme") stored(`deeplink-${key}`, value);
  }
}

function stored(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch { return null; } // a page without memory
}

function draw(data, state) {
  language = state.lang;
  state.sort ||= data.columns.state.includes(2) ? "-error" : "";
  document.documentElement.lang = language;
  document.documentElement.dataset.theme = state.theme;
  const main = document.getElementById("main"), verdict = data.head.findings[0];
  let line = null, calls = null;
  line = timelineSection(data, (i) => calls?.choose(i));
  calls = data.count ? new Calls(data, state, (hits) => { if (line) { line.timeline.hits = hits; if (line.timeline.canvas.isConnected) line.timeline.draw(); } }) : null;
  const search = (query) => calls?.set(query);
  const graded = data.head.cells.some((cell) => cell.grade);
  const sections = [charts(data, "steps", "steps", "Steps"), graded ? null : operators(data, search), treeSection(data, state, search), heatSection(data, state, search), charts(data, "growth", "growth", "Along the network"), errors(data, search),
    matrix(data, search), roofSection(data, search), memory(data), ...data.head.tables.map(plainTable), calls?.node, sources(data)];
  document.getElementById("verdict").className = verdict.level;
  document.getElementById("verdict").textContent = sentence(verdict.title);
  document.getElementById("about").replaceChildren(...provenance(data));
  document.getElementById("lang").textContent = language === "zh" ? "EN" : "中文";
  main.replaceChildren(findings(data), figures(data), ...[line?.node, ...sections].flat().filter(Boolean));
  calls?.search();
  line?.timeline.draw();
  navigation(main);
  return { line, calls };
}

function keyboard(now) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("code").open) return;
    const { line, calls } = now();
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) { if (event.key === "Escape") event.target.blur(); return; }
    const keys = { "/": () => { calls?.node.scrollIntoView(); calls?.input.focus(); }, j: () => calls?.move(1), k: () => calls?.move(-1) };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    else if ("wasd".includes(event.key) && line && event.target !== line.timeline.canvas) line.timeline.canvas.dispatchEvent(new KeyboardEvent("keydown", { key: event.key }));
  });
}

async function start() {
  const begun = performance.now();
  const data = await load(document.getElementById("head").textContent, document.getElementById("blob").textContent);
  const state = new State();
  sentences = data.head.zh;
  let drawn = draw(data, state);
  state.redraw = () => { const at = scrollY; drawn = draw(data, state); scrollTo(0, at); };
  document.getElementById("theme").onclick = () => { state.set("theme", state.theme === "dark" ? "light" : "dark"); document.documentElement.dataset.theme = state.theme; drawn.line?.timeline.draw(); };
  document.getElementById("lang").onclick = () => { state.set("lang", state.lang === "zh" ? "en" : "zh"); state.redraw(); };
  keyboard(() => drawn);
  addEventListener("resize", () => { drawn.line?.timeline.draw(); if (drawn.calls) { drawn.calls.drawHead(); drawn.calls.draw(); } });
  document.documentElement.dataset.ready = (performance.now() - begun).toFixed(0);
  document.documentElement.dataset.opened = performance.now().toFixed(0);
}

if (typeof document !== "undefined") {
  start().catch((error) => { document.getElementById("main").textContent = t("This page could not be read: {0}", error.message); document.documentElement.dataset.failed = error.stack || error.message; });
}
