// Modules: a tree coloured by error, and a heat map of modules by steps, ranks and runs.

const OUTSIDE = "";

// What is known of the rows of one module, or of all modules inside it.
function tally() { return { calls: 0, wrong: 0, nonfinite: 0, forward: -1, backward: -1, bad: { forward: 0, backward: 0 }, ms: 0, bytes: 0 }; }

function add(into, columns, i, backward) {
  into.calls++;
  const side = backward ? "backward" : "forward";
  if (columns.state[i] === 2) { into.wrong++; into.bad[side]++; }
  if (columns.state[i] === 3) into.nonfinite++;
  if (columns.error[i] > into[side]) into[side] = columns.error[i];
  if (columns.ms[i] > 0) into.ms += columns.ms[i];
  into.bytes += columns.bytes[i];
}

function moduleTree(data) {
  const { columns, head, count } = data, codes = columns.module, names = head.texts.module || [];
  const back = head.texts.direction?.indexOf("backward") ?? -1;
  const node = (path, name) => ({ path, name, children: new Map(), sum: tally(), runs: [tally(), tally()] });
  const root = node(null, "");
  const chains = names.map((path) => {
    const chain = [root];
    const parts = path === OUTSIDE ? [OUTSIDE] : path.split(".");
    parts.forEach((name, at) => {
      const last = chain[chain.length - 1];
      if (!last.children.has(name)) last.children.set(name, node(parts.slice(0, at + 1).join("."), name));
      chain.push(last.children.get(name));
    });
    return chain;
  });
  for (let i = 0; i < count; i++) {
    for (const each of chains[codes[i]]) {
      add(each.sum, columns, i, columns.direction[i] === back);
      if (head.runs.length) add(each.runs[columns.run[i]], columns, i, columns.direction[i] === back);
    }
  }
  return root;
}

// The colour of an error: green within the tolerance, deeper red for each power of ten above it.
function errorStyle(error, wrong = error > 1, judged = true) {
  if (error < 0 || (!wrong && !judged)) return "";
  if (!wrong) return `background:color-mix(in srgb, var(--good) ${(12 + 14 * Math.min(1, error)).toFixed(0)}%, transparent)`;
  return `background:color-mix(in srgb, var(--bad) ${Math.min(78, 28 + 10 * Math.max(0, Math.log10(error))).toFixed(0)}%, transparent)`;
}

function amountStyle(part) { return `background:color-mix(in srgb, var(--forward) ${(6 + 70 * part).toFixed(0)}%, transparent)`; }

function treeSection(data, state, search) {
  const root = moduleTree(data);
  const paths = [...root.children.values()];
  if (!paths.length || (paths.length === 1 && paths[0].path === OUTSIDE)) return null;
  const { sum } = root, judged = sum.forward >= 0 || sum.backward >= 0, two = data.head.runs.length > 0;
  const columns = [], tolerant = data.head.unit === "error / tolerance";
  const error = (s, side) => (s[side] < 0 ? "" : s[side] === 0 && !s.bad[side] && tolerant ? "≤ 1" : short(s[side]));
  const column = (name, show, style) => {
    if (!two) columns.push([t(name), (node) => show(node.sum), style ? (node) => style(node.sum) : null]);
    else for (const run of [0, 1]) columns.push([`${t(name)} ${"AB"[run]}`, (node) => show(node.runs[run]), style ? (node) => style(node.runs[run]) : null]);
  };
  column("calls", (s) => (s.calls ? s.calls.toLocaleString("en") : ""));
  if (judged) for (const side of ["forward", "backward"]) if (sum[side] >= 0) column(`error ${side}`, (s) => error(s, side), (s) => errorStyle(s[side], s.bad[side] > 0, tolerant));
  if (judged) column("wrong", (s) => (s.wrong ? s.wrong.toLocaleString("en") : ""));
  if (sum.nonfinite) column("not finite", (s) => (s.nonfinite ? s.nonfinite.toLocaleString("en") : ""), (s) => (s.nonfinite ? errorStyle(1e4) : ""));
  if (sum.ms > 0) column("total ms", (s) => (s.ms ? short(s.ms) : ""), (s) => amountStyle(s.ms / sum.ms));
  if (sum.bytes > 0 && !two) column("results", (s) => bytesText(s.bytes));
  const shown = columns.filter(([, show]) => show(root) !== "");
  const open = new Set(state.open ? state.open.split(",") : first(root));
  const body = make("tbody");
  const row = (node, depth) => {
    const inner = node.children.size > 0, opened = open.has(node.path);
    const toggle = inner ? make("button", { type: "button", class: "toggle", "aria-expanded": String(opened), "aria-label": node.path, onclick: () => { if (opened) open.delete(node.path); else open.add(node.path); keep(); } }, opened ? "▾" : "▸") : make("span", { class: "toggle" });
    const label = make("button", { class: "link", type: "button", title: node.path, onclick: () => search(node.path === OUTSIDE ? 'module=""' : `in:${node.path}`) }, node.path === OUTSIDE ? t("(outside of modules)") : node.name);
    return [make("tr", {}, make("td", { class: "name", style: `padding-left:${10 + depth * 18}px` }, toggle, label), shown.map(([, show, style]) => make("td", { class: "num", style: style ? style(node) : null }, show(node)))),
      ...(opened ? [...node.children.values()].flatMap((child) => row(child, depth + 1)) : [])];
  };
  const fill = () => body.replaceChildren(...paths.flatMap((node) => row(node, 0)));
  const keep = () => { state.set("open", [...open].join(",")); fill(); };
  const every = (node) => [...node.children.values()].flatMap((child) => (child.children.size ? [child.path, ...every(child)] : []));
  fill();
  const bar = make("div", { class: "bar" }, make("button", { type: "button", onclick: () => { every(root).forEach((path) => open.add(path)); keep(); } }, t("Expand all")), make("button", { type: "button", onclick: () => { open.clear(); open.add("-"); keep(); } }, t("Collapse")));
  const hint = judged ? "The worst error of each module and of those inside it. A name shows the calls." : "Calls of each module and of those inside it. A name shows the calls.";
  const table = make("table", { class: "tree" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, t("module")), shown.map(([name]) => make("th", { scope: "col", class: "num" }, name)))), body);
  return section("modules", t("Modules"), t(hint), bar, scrollBox(t("Modules"), 480, table));
}

// The modules that are open at first: those above the worst one, else the first two levels.
function first(root) {
  const worstOf = (sum) => Math.max(sum.forward, sum.backward, sum.nonfinite ? 1e9 : -1);
  const found = [];
  let node = root;
  while (node.children.size) {
    const order = [...node.children.values()].sort((a, b) => worstOf(b.sum) - worstOf(a.sum));
    node = order[0];
    if (!(worstOf(node.sum) > 1)) break;
    found.push(node.path);
  }
  return found.length ? found : [...root.children.values()].map((child) => child.path);
}

const HEAT_COLUMNS = 96, HEAT_ROWS = 40;

// A value for each module in each step of each rank and run.
function heatSection(data, state, search) {
  const { columns, head, count } = data;
  const several = { run: head.runs.length > 0, rank: new Set(columns.rank).size > 1 };
  const spots = new Map(), cells = new Map();
  const metrics = {};
  if (columns.error.some((v) => v >= 0)) metrics[data.head.unit] = (i) => (columns.error[i] >= 0 ? columns.error[i] : NaN);
  if (columns.ms.some((v) => v > 0)) metrics.ms = (i) => (columns.ms[i] > 0 ? columns.ms[i] : NaN);
  if (columns.high.some((v) => !Number.isNaN(v))) metrics["largest value"] = (i) => Math.max(Math.abs(columns.high[i]), Math.abs(columns.low[i]));
  const names = Object.keys(metrics);
  if (!names.length || !(head.texts.module || []).some(Boolean)) return null;
  const metric = names.includes(state.metric) ? state.metric : names[0];
  for (let i = 0; i < count; i++) {
    const value = metrics[metric](i), broken = columns.state[i] === 3;
    if (Number.isNaN(value) && !broken) continue;
    const spot = columns.run[i] * 2 ** 40 + columns.rank[i] * 2 ** 32 + columns.step[i];
    spots.set(spot, { run: columns.run[i], rank: columns.rank[i], step: columns.step[i] });
    const key = `${columns.module[i]}|${spot}`, known = cells.get(key) || { value: -1, broken: false, wrong: false };
    known.broken ||= broken;
    known.wrong ||= columns.state[i] === 2;
    if (value >= 0) known.value = metric === "ms" ? Math.max(0, known.value) + value : Math.max(known.value, value);
    cells.set(key, known);
  }
  if (spots.size < 2) return null;
  const order = [...spots.keys()].sort((a, b) => a - b);
  const stride = Math.ceil(order.length / HEAT_COLUMNS);
  const across = order.filter((_, at) => at % stride === 0);
  const rows = head.texts.module.map((name, code) => {
    const found = across.map((_, at) => order.slice(at * stride, at * stride + stride).map((spot) => cells.get(`${code}|${spot}`)).filter(Boolean)
      .reduce((a, b) => ({ value: Math.max(a.value, b.value), broken: a.broken || b.broken, wrong: a.wrong || b.wrong }), { value: -1, broken: false, wrong: false }));
    return { name, found, worst: Math.max(...found.map((cell) => (cell.broken ? 1e31 : cell.value))) };
  }).filter((row) => row.worst >= 0);
  const kept = new Set(rows.length <= HEAT_ROWS ? rows : [...rows].sort((a, b) => b.worst - a.worst).slice(0, HEAT_ROWS));
  const shown = rows.filter((row) => kept.has(row));
  const values = shown.flatMap((row) => row.found.map((cell) => cell.value)).filter((v) => v > 0);
  const low = Math.log10(values.reduce((a, b) => Math.min(a, b), Infinity)), most = Math.log10(values.reduce((a, b) => Math.max(a, b), 0));
  const tolerant = data.head.unit === "error / tolerance";
  const style = (cell) => {
    if (cell.broken) return "background:var(--bad);color:#fff";
    if (cell.value < 0) return null;
    if (metric === data.head.unit) return errorStyle(cell.value, cell.wrong, tolerant);
    return amountStyle(cell.value > 0 ? (Math.log10(cell.value) - low) / Math.max(1e-9, most - low) : 0);
  };
  const place = (spot) => [several.run ? "AB"[spot.run] : "", several.rank ? `${t("rank")} ${spot.rank}` : "", `${t("step")} ${spot.step}`].filter(Boolean).join(" ");
  const query = (row, spot) => [row.name ? `module=${row.name}` : 'module=""', `step=${spot.step}`, several.rank ? `rank=${spot.rank}` : "", several.run ? `run:${"ab"[spot.run]}` : ""].filter(Boolean).join(" ");
  const heading = across.map((key, at) => { const spot = spots.get(key), before = at ? spots.get(across[at - 1]) : null;
    const group = !before || before.run !== spot.run || before.rank !== spot.rank;
    return make("th", { scope: "col", title: place(spot), class: group && at ? "group" : "" }, across.length <= 32 || at % Math.ceil(across.length / 16) === 0 || group ? String(spot.step) : ""); });
  const body = shown.map((row) => make("tr", {}, make("th", { scope: "row", class: "name", title: row.name }, row.name || t("(outside of modules)")),
    row.found.map((cell, at) => { const spot = spots.get(across[at]);
      const said = cell.broken ? "NaN/Inf" : cell.value < 0 ? "" : short(cell.value);
      return make("td", { style: style(cell), title: said ? `${row.name || t("(outside of modules)")}, ${place(spot)}: ${said}` : null, onclick: said ? () => search(query(row, spot)) : null }, cell.broken ? "✗" : ""); })));
  const parts = [...new Set(across.map((key) => place({ ...spots.get(key), step: "…" })))];
  const groups = parts.length > 1 ? make("p", { class: "hint" }, parts.join(" | ")) : null;
  const choice = make("select", { "aria-label": t("Shown"), onchange: (event) => { state.set("metric", event.target.value); state.redraw(); } }, names.map((name) => make("option", { value: name, selected: name === metric ? "" : null }, t(name))));
  const tones = metric === data.head.unit ? legend([["color-mix(in srgb, var(--good) 26%, transparent)", t("within the tolerance")], ["color-mix(in srgb, var(--bad) 60%, transparent)", t("above the tolerance")], ["var(--bad)", `✗ ${t("not finite")}`]]) : legend([["var(--forward)", t(metric)], ["var(--bad)", `✗ ${t("not finite")}`]]);
  const rest = rows.length > shown.length ? make("p", { class: "hint" }, t("{0} more modules", rows.length - shown.length)) : null;
  return section("heat", t("Modules by step"), t("A cell is a module in a step; a click shows its calls."), make("div", { class: "bar" }, names.length > 1 ? choice : null, tones), groups,
    scrollBox(t("Modules by step"), 560, make("table", { class: "heat" }, make("thead", {}, make("tr", {}, make("th", {}), heading)), make("tbody", {}, body))), rest);
}

// The memory of the results of one step, added up call by call, by module.
function memoryTimeline(data) {
  const { columns, head, count } = data;
  const sizes = new Map();
  for (let i = 0; i < count; i++) if (columns.run[i] === 0) sizes.set(columns.step[i], (sizes.get(columns.step[i]) || 0) + columns.bytes[i]);
  const step = [...sizes.entries()].sort((a, b) => b[1] - a[1])[0];
  if (!step || !(step[1] > 0)) return null;
  const group = head.texts.module.map((name) => name.split(".").slice(0, 2).join(".") || t("(outside of modules)"));
  const rows = [], sums = new Map();
  for (let i = 0; i < count; i++) {
    if (columns.run[i] || columns.step[i] !== step[0] || !(columns.bytes[i] > 0)) continue;
    rows.push(i);
    sums.set(group[columns.module[i]], (sums.get(group[columns.module[i]]) || 0) + columns.bytes[i]);
  }
  if (rows.length < 3) return null;
  const largest = [...sizes.keys()].length && [...sums.entries()].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([name]) => name);
  const names = sums.size > 5 ? [...largest, t("other modules")] : [...sums.keys()];
  const points = Math.min(rows.length, 600), layers = names.map((name) => [name, new Float64Array(points)]);
  const now = new Float64Array(names.length);
  rows.forEach((i, at) => {
    const found = names.indexOf(group[columns.module[i]]);
    now[found < 0 ? names.length - 1 : found] += columns.bytes[i];
    const place = Math.min(points - 1, Math.floor(at * points / rows.length));
    layers.forEach(([, values], number) => { values[place] = now[number]; });
  });
  const labels = Array.from({ length: points }, (_, at) => `${t("call")} ${Math.floor(at * rows.length / points) + 1}`);
  return [legend(names.map((name, number) => [AREAS[number % AREAS.length], name])), areaChart(t("Memory of results, by module"), layers, labels)];
}
