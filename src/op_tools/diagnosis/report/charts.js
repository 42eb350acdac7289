// Drawings: the timeline on a canvas, lines and the roofline as SVG.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...inside) {
  const svg = ["svg", "g", "path", "line", "circle", "text", "rect", "title", "polyline"].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  for (const part of inside.flat(Infinity)) if (part !== null && part !== undefined) node.append(part);
  return node;
}

const tip = {
  show(text, event) {
    const node = document.getElementById("tip");
    node.textContent = text;
    node.hidden = false;
    const { width, height } = node.getBoundingClientRect();
    node.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    node.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  if (size >= 1e30) return "∞";
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

// The tools do not record how small the error of a correct result is.
function errorText(data, i) {
  const value = data.columns.error[i];
  return value < 0 ? "" : value === 0 && data.columns.state[i] === 1 && data.head.unit === "error / tolerance" ? "≤ 1" : short(value);
}

function bytesText(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at++; }
  return `${count >= 100 || at === 0 ? count.toFixed(0) : count.toFixed(1)} ${units[at]}`;
}

function timeText(us) {
  if (us >= 1e6) return `${(us / 1e6).toPrecision(3)} s`;
  return us >= 1e3 ? `${(us / 1e3).toPrecision(3)} ms` : `${short(us)} µs`;
}

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

// The timeline: lanes of slices sorted by their starts; slices that share a pixel are drawn once.
class Timeline {
  constructor(data, canvas, choose) {
    Object.assign(this, { data, canvas, choose });
    this.lanes = this.build();
    this.end = Math.max(1, ...this.lanes.map((lane) => lane.end));
    this.view = [0, this.end];
    this.hits = null;
    this.listen();
  }

  build() {
    const { columns, head, count } = this.data;
    const lanes = [];
    const depth = columns.module_depth.reduce((a, b) => Math.max(a, b), -1);
    for (let d = 0; d <= Math.min(depth, 7); d++) {
      const rows = [];
      for (let i = 0; i < columns.module_depth.length; i++) if (columns.module_depth[i] === d) rows.push(i);
      lanes.push(this.lane(d ? "" : t("modules"), rows, columns.module_start, columns.module_took, 15, true));
    }
    const words = head.texts.direction, found = new Map();
    for (let i = 0; i < count; i++) {
      if (columns.start[i] < 0) continue;
      const key = [columns.run[i], columns.rank[i], words[columns.direction[i]]].join("|");
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(i);
    }
    const ranks = new Set(columns.rank).size > 1;
    const order = [...found.keys()].map((key) => key.split("|")).sort((a, b) => a[0] - b[0] || a[1] - b[1] || (a[2] < b[2] ? 1 : -1));
    for (const [run, rank, direction] of order) {
      const name = [head.runs.length ? "AB"[run] : "", ranks ? `${t("rank")} ${rank}` : "", t(direction)].filter(Boolean).join(" ");
      const rows = found.get([run, rank, direction].join("|"));
      lanes.push({ ...this.lane(name, rows, columns.start, columns.took, 30, false), direction });
    }
    return lanes;
  }

  lane(name, rows, starts, tooks, height, modules) {
    if (rows.some((i, at) => at && starts[rows[at - 1]] > starts[i])) rows.sort((a, b) => starts[a] - starts[b]);
    let end = 0;
    for (const i of rows) end = Math.max(end, starts[i] + tooks[i]);
    return { name, rows: Uint32Array.from(rows), starts, tooks, height, modules, end };
  }

  first(lane, time) {
    let low = 0, high = lane.rows.length;
    while (low < high) {
      const mid = (low + high) >> 1, i = lane.rows[mid];
      if (lane.starts[i] + lane.tooks[i] < time) low = mid + 1; else high = mid;
    }
    return low;
  }

  height() { return this.lanes.reduce((sum, lane) => sum + lane.height + (lane.modules ? 2 : 9), 26); }

  draw() {
    const ratio = devicePixelRatio || 1, width = this.canvas.clientWidth || 900, height = this.height();
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio; this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.left = 16 + Math.max(58, ...this.lanes.map((lane) => lane.name.length * (language === "zh" ? 12 : 6.6)));
    const tone = { forward: colour("forward"), backward: colour("backward"), modules: colour("modules"),
                   bad: colour("bad"), soft: colour("soft"), line: colour("line"), ink: colour("ink"), card: colour("card") };
    this.ruler(pen, width, height, tone);
    let top = 24;
    for (const lane of this.lanes) {
      lane.top = top;
      pen.fillStyle = tone.soft; pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
      if (lane.name) pen.fillText(lane.name, 0, top + lane.height / 2);
      this.slices(pen, lane, width, tone);
      top += lane.height + (lane.modules ? 2 : 9);
    }
  }

  ruler(pen, width, height, tone) {
    const [from, to] = this.view, span = to - from;
    const step = niceStep(span / Math.max(2, (width - this.left) / 120));
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "top";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = this.x(at, width);
      pen.strokeStyle = tone.line; pen.beginPath(); pen.moveTo(x + .5, 16); pen.lineTo(x + .5, height); pen.stroke();
      const text = this.data.head.clock === "calls" ? `${t("call")} ${Math.round(at)}` : timeText(at);
      pen.fillStyle = tone.soft;
      if (x + 4 + pen.measureText(text).width < width) pen.fillText(text, x + 4, 2);
    }
  }

  slices(pen, lane, width, tone) {
    const { columns, head } = this.data, states = columns.state;
    const texts = lane.modules ? head.texts.module_name : head.texts.op;
    const codes = lane.modules ? columns.module_name : columns.op;
    const plain = lane.modules ? tone.modules : lane.direction === "backward" ? tone.backward : tone.forward;
    let drawn = -1, drawnBad = false;
    pen.save(); pen.beginPath(); pen.rect(this.left, 0, width - this.left, 1e5); pen.clip();
    for (let at = this.first(lane, this.view[0]); at < lane.rows.length; at++) {
      const i = lane.rows[at], start = lane.starts[i];
      if (start > this.view[1]) break;
      const x = this.x(start, width), wide = this.x(start + lane.tooks[i], width) - x;
      const bad = !lane.modules && (states[i] === 2 || states[i] === 3);
      if (wide < 1 && Math.floor(x) === drawn && (!bad || drawnBad)) continue;
      drawn = Math.floor(x); drawnBad = bad;
      const faded = this.hits && !lane.modules && !this.hits[i];
      pen.globalAlpha = faded ? .15 : 1;
      pen.fillStyle = bad ? tone.bad : plain;
      pen.fillRect(x, lane.top, Math.max(1, wide - (wide > 3 ? .6 : 0)), lane.height);
      if (wide > 34 && !faded) this.label(pen, texts[codes[i]], x, lane, wide, lane.modules ? tone.ink : tone.card);
    }
    pen.restore();
  }

  label(pen, text, x, lane, wide, tone) {
    const words = text.split(".");
    const shown = lane.modules ? text : words[0] === "aten" ? words[1] : words[words.length - 1];
    pen.fillStyle = tone; pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
    const most = Math.floor((wide - 6) / 6.2), start = Math.max(x, this.left);
    pen.fillText(shown.length > most ? `${shown.slice(0, Math.max(1, most - 1))}…` : shown, start + 3, lane.top + lane.height / 2 + .5);
  }

  x(time, width) { return this.left + (time - this.view[0]) / (this.view[1] - this.view[0]) * (width - this.left); }
  time(x) { return this.view[0] + (x - this.left) / (this.canvas.clientWidth - this.left) * (this.view[1] - this.view[0]); }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const lane = this.lanes.find((one) => y >= one.top && y < one.top + one.height);
    if (!lane || x < this.left) return null;
    const time = this.time(x), slack = (this.view[1] - this.view[0]) / this.canvas.clientWidth;
    const from = this.first(lane, time - slack);
    for (let at = from; at < Math.min(lane.rows.length, from + 50); at++) {
      const i = lane.rows[at];
      if (lane.starts[i] - slack <= time && time <= lane.starts[i] + lane.tooks[i] + slack) return { lane, i };
    }
    return null;
  }

  zoom(factor, around) {
    const [from, to] = this.view;
    const span = Math.min(this.end, Math.max(this.end / 1e7, (to - from) * factor));
    const part = (around - from) / (to - from);
    this.pan(around - part * span, span);
  }

  pan(from, span) {
    from = Math.max(0, Math.min(from, this.end - span));
    this.view = [from, from + span];
    this.draw();
  }

  listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX) && !event.altKey && !this.focused) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : .8, this.time(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("focus", () => { this.focused = true; });
    canvas.addEventListener("blur", () => { this.focused = false; });
    canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, view: [...this.view], moved: false }; canvas.setPointerCapture(event.pointerId); canvas.focus({ preventScroll: true }); });
    canvas.addEventListener("pointermove", (event) => {
      if (held) {
        const by = (event.clientX - held.x) / (canvas.clientWidth - this.left) * (held.view[1] - held.view[0]);
        held.moved ||= Math.abs(event.clientX - held.x) > 3;
        if (held.moved) this.pan(held.view[0] - by, held.view[1] - held.view[0]);
        return;
      }
      const found = this.at(event);
      if (found) tip.show(this.describe(found), event); else tip.hide();
    });
    canvas.addEventListener("pointerup", (event) => {
      const found = held && !held.moved ? this.at(event) : null;
      held = null;
      if (found && !found.lane.modules) this.choose(found.i);
    });
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("dblclick", () => { this.view = [0, this.end]; this.draw(); });
    canvas.addEventListener("keydown", (event) => {
      const [from, to] = this.view, span = to - from;
      const keys = { ArrowLeft: () => this.pan(from - span / 5, span), ArrowRight: () => this.pan(from + span / 5, span),
                     a: () => this.pan(from - span / 5, span), d: () => this.pan(from + span / 5, span),
                     w: () => this.zoom(.7, (from + to) / 2), s: () => this.zoom(1.4, (from + to) / 2),
                     "+": () => this.zoom(.7, (from + to) / 2), "=": () => this.zoom(.7, (from + to) / 2),
                     "-": () => this.zoom(1.4, (from + to) / 2), Escape: () => this.pan(0, this.end) };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }

  describe({ lane, i }) {
    const { data } = this;
    const took = data.head.clock === "calls" ? "" : `\n${timeText(lane.tooks[i])}`;
    if (lane.modules) return data.head.texts.module_name[data.columns.module_name[i]] + took;
    const lines = [data.text("op", i), [data.text("direction", i), `step ${data.columns.step[i]}`, data.text("module", i)].filter(Boolean).join(" · ")];
    lines.push([data.text("dtype", i), data.text("shape", i), data.text("site", i)].filter(Boolean).join(" "));
    if (data.columns.error[i] >= 0) lines.push(`${t(data.head.unit)}: ${errorText(data, i)}`);
    if (data.text("note", i)) lines.push(data.text("note", i));
    return lines.filter(Boolean).join("\n") + took;
  }
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough || 1)), part = rough / power;
  return (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10) * power;
}

// Where values lie between two edges of a drawing, straight or by powers of ten.
function scale(values, log, from, to, floor = null) {
  const kept = values.filter((v) => v !== null && Number.isFinite(v) && (!log || v > 0));
  let low = Infinity, high = -Infinity;
  for (const v of kept) { low = Math.min(low, v); high = Math.max(high, v); }
  if (!kept.length) [low, high] = log ? [1e-3, 1] : [0, 1];
  if (log) {
    low = Math.floor(Math.log10(low)); high = Math.ceil(Math.log10(high));
    if (low === high) { low -= 1; high += 1; }
  } else { low = floor === null ? low : Math.min(floor, low); if (low === high) high = low + 1; const room = (high - low) * .06; high += room; if (low !== 0) low -= room; }
  const place = (v) => from + ((log ? Math.log10(v) : v) - low) / (high - low) * (to - from);
  const ticks = [];
  if (log) { const step = Math.max(1, Math.ceil((high - low) / 7)); for (let p = low; p <= high; p += step) ticks.push(10 ** p); }
  else { const step = niceStep((high - low) / 5); for (let v = Math.ceil(low / step) * step; v <= high; v += step) ticks.push(v); }
  return { place, ticks };
}

function tickText(value, log) { return log && (value < 1e-2 || value >= 1e4) ? `1e${Math.round(Math.log10(value))}` : short(value); }

const WIDE = 1180;

// Lines over shared labels. Zero lies at the foot of a log axis; NaN and Inf are marked; the
// tolerance of the chart is a dashed line.
function lineChart(chart, log) {
  const high = 270, left = 58, right = 12, top = 14, bottom = 26;
  const all = chart.series.flatMap((s) => s.values);
  const y = scale(chart.tolerance ? [...all, chart.tolerance, ...(log ? [chart.tolerance / 10] : [])] : all, log, high - bottom, top, 0);
  const count = chart.labels.length;
  const x = (i) => left + (count > 1 ? i / (count - 1) : .5) * (WIDE - left - right);
  const place = (v) => (log && v <= 0 ? high - bottom : y.place(v));
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${high}`, role: "img", "aria-label": `${t(chart.title)}: ${chart.series.map((s) => t(s.name)).join(", ")}` });
  for (const tick of y.ticks) {
    const at = y.place(tick);
    svg.append(make("line", { class: "grid", x1: left, x2: WIDE - right, y1: at, y2: at }), make("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, tickText(tick, log)));
  }
  const few = chart.labels.some((label) => label.length > 12) ? [0, .25, .5, .75, 1] : [0, .125, .25, .375, .5, .625, .75, .875, 1];
  for (const i of new Set(few.map((part) => Math.round(part * (count - 1))))) {
    const label = chart.labels[i].length > 26 ? `${chart.labels[i].slice(0, 25)}…` : chart.labels[i];
    svg.append(make("text", { x: x(i), y: high - 6, "text-anchor": i === 0 ? "start" : i === count - 1 ? "end" : "middle" }, label));
  }
  if (chart.tolerance) {
    const at = y.place(chart.tolerance);
    svg.append(make("line", { class: "limit", x1: left, x2: WIDE - right, y1: at, y2: at }), make("text", { class: "limit", x: WIDE - right, y: at - 5, "text-anchor": "end" }, t("tolerance")));
  }
  chart.series.forEach((series, number) => {
    const tone = TONES[number % TONES.length];
    let path = "", last = -9;
    const points = [], dense = series.values.filter((v) => v !== null).length > count / 3;
    series.values.forEach((value, i) => {
      if (value === null) return;
      const px = x(i), py = place(value), joined = last === i - 1 || !dense;
      path += `${last >= 0 && joined ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`;
      last = i;
      if (count <= 160) points.push(make("circle", { cx: px, cy: py, r: 2.6, fill: tone }));
    });
    svg.append(make("path", { d: path, fill: "none", stroke: tone, "stroke-width": number === 1 ? 3 : 1.8, "stroke-dasharray": number > 1 ? "6 4" : null, "stroke-linejoin": "round" }), ...points);
    for (const [i, word] of series.marks.slice(0, 60)) {
      svg.append(make("line", { class: "broken", x1: x(i), x2: x(i), y1: top, y2: high - bottom }), make("text", { class: "broken", x: x(i), y: top - 3, "text-anchor": i > count * .95 ? "end" : "middle" }, word));
    }
  });
  const mark = make("line", { class: "axis", y1: top, y2: high - bottom, x1: 0, x2: 0, "stroke-dasharray": "3 3", visibility: "hidden" });
  svg.append(mark);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * WIDE;
    const i = Math.max(0, Math.min(count - 1, Math.round((at - left) / (WIDE - left - right) * (count - 1))));
    mark.setAttribute("x1", x(i)); mark.setAttribute("x2", x(i)); mark.setAttribute("visibility", "visible");
    const text = (s) => s.marks.find(([place]) => place === i)?.[1] ?? (s.values[i] === null ? null : `${short(s.values[i])} ${t(chart.unit)}`);
    const lines = chart.series.filter((s) => text(s) !== null).map((s) => `${t(s.name)}: ${text(s)}`);
    tip.show([chart.labels[i], ...lines].join("\n"), event);
  });
  svg.addEventListener("pointerleave", () => { tip.hide(); mark.setAttribute("visibility", "hidden"); });
  return svg;
}

// Layers of a sum along the calls: `layers` is a list of [name, cumulated values].
function areaChart(title, layers, labels) {
  const high = 240, left = 70, right = 12, top = 10, bottom = 26, count = labels.length;
  const sums = labels.map((_, i) => layers.reduce((sum, [, values]) => sum + values[i], 0));
  const y = scale(sums, false, high - bottom, top, 0);
  const x = (i) => left + (count > 1 ? i / (count - 1) : .5) * (WIDE - left - right);
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${high}`, role: "img", "aria-label": title });
  for (const tick of y.ticks) svg.append(make("line", { class: "grid", x1: left, x2: WIDE - right, y1: y.place(tick), y2: y.place(tick) }), make("text", { x: left - 8, y: y.place(tick) + 4, "text-anchor": "end" }, bytesText(tick)));
  const below = new Float64Array(count);
  layers.forEach(([, values], number) => {
    const down = [...below.keys()].map((i) => `${x(i).toFixed(1)} ${y.place(below[i]).toFixed(1)}`).reverse();
    for (let i = 0; i < count; i++) below[i] += values[i];
    const up = [...below.keys()].map((i) => `${x(i).toFixed(1)} ${y.place(below[i]).toFixed(1)}`);
    svg.append(make("path", { d: `M${up.join("L")}L${down.join("L")}Z`, fill: AREAS[number % AREAS.length], "fill-opacity": .75 }));
  });
  for (const part of [0, .5, 1]) { const i = Math.round(part * (count - 1)); svg.append(make("text", { x: x(i), y: high - 6, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, labels[i])); }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * WIDE;
    const i = Math.max(0, Math.min(count - 1, Math.round((at - left) / (WIDE - left - right) * (count - 1))));
    tip.show([labels[i], ...layers.map(([name, values]) => `${name}: ${bytesText(values[i])}`).reverse(), `${t("in all")}: ${bytesText(sums[i])}`].join("\n"), event);
  });
  svg.addEventListener("pointerleave", () => tip.hide());
  return svg;
}

// How often each error occurs, by powers of ten; the bars on the right of the tolerance are wrong.
function histogram(columns, choose) {
  const counts = new Map();
  let zero = 0, judged = 0;
  for (const value of columns.error) {
    if (!(value >= 0)) continue;
    judged++;
    if (value === 0) { zero++; continue; }
    const power = Math.max(-6, Math.min(9, Math.floor(Math.log10(value))));
    counts.set(power, (counts.get(power) || 0) + 1);
  }
  if (judged < 2) return null;
  const powers = [...counts.keys()], low = Math.min(0, ...powers), top = Math.max(0, ...powers);
  const bins = [["≤ 1", zero, "error=0"]];
  for (let p = low; p <= top; p++) bins.push([`1e${p}`, counts.get(p) || 0, p === 9 ? "error>=1e9" : `error>=1e${p} error<1e${p + 1}`, p >= 0]);
  const most = Math.max(...bins.map((bin) => bin[1]));
  return make("div", { class: "bars" }, bins.map(([name, count, query, wrong]) => make("button", { type: "button", class: wrong ? "wrong" : "", title: `${count.toLocaleString("en")}: ${query}`, "aria-label": `${name}: ${count}`, onclick: () => choose(query) },
    make("span", { class: "number" }, count ? count.toLocaleString("en") : ""), make("i", { style: `height:${count ? Math.max(2, 90 * Math.log1p(count) / Math.log1p(most)) : 0}px` }), make("span", {}, name))));
}

const AREAS = ["#4477cc", "#d98324", "#3f9b6b", "#b65fa3", "#c9a227", "#7a8494"];
const TONES = ["var(--forward)", "var(--backward)", "var(--good)", "var(--violet)", "var(--soft)"];

function spread(values) {
  const kept = values.filter((v) => v !== null && v > 0);
  return kept.length ? Math.max(...kept) / Math.min(...kept) : 1;
}

function roofline(groups, choose) {
  const high = 340, left = 58, right = 14, top = 12, bottom = 34;
  const dots = groups.filter((g) => g.flops > 0 && g.bytes > 0 && g.p50 > 0)
    .map((g) => ({ g, x: g.flops / g.bytes, y: g.flops / g.p50 / 1e6, share: g.ms }));
  if (!dots.length) return null;
  const peak = Math.max(...dots.map((d) => d.y)), stream = Math.max(...groups.filter((g) => g.bytes > 0 && g.p50 > 0).map((g) => g.bytes / g.p50 / 1e6));
  const x = scale([...dots.map((d) => d.x), peak / stream], true, left, WIDE - right);
  const y = scale([...dots.map((d) => d.y), peak], true, high - bottom, top);
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${high}`, role: "img", "aria-label": `Roofline of ${dots.length} kinds of calls` });
  for (const tick of y.ticks) svg.append(make("line", { class: "grid", x1: left, x2: WIDE - right, y1: y.place(tick), y2: y.place(tick) }), make("text", { x: left - 8, y: y.place(tick) + 4, "text-anchor": "end" }, tickText(tick, true)));
  for (const tick of x.ticks) svg.append(make("line", { class: "grid", y1: top, y2: high - bottom, x1: x.place(tick), x2: x.place(tick) }), make("text", { x: x.place(tick), y: high - bottom + 16, "text-anchor": "middle" }, tickText(tick, true)));
  svg.append(make("text", { x: WIDE - right, y: high - 2, "text-anchor": "end" }, `${t("operations per byte")} →`), make("text", { x: left, y: high - 2 }, "GFLOP/s ↑"));
  const ridge = peak / stream, lowest = Math.min(...dots.map((d) => d.x), ridge) / 2;
  const clampX = (v) => Math.max(left, Math.min(WIDE - right, x.place(v))), clampY = (v) => Math.min(high - bottom, y.place(v));
  svg.append(make("path", { d: `M${clampX(lowest)} ${clampY(lowest * stream)}L${clampX(ridge)} ${y.place(peak)}L${WIDE - right} ${y.place(peak)}`, fill: "none", stroke: "var(--soft)", "stroke-width": 1.6, "stroke-dasharray": "5 4" }));
  const most = Math.max(...dots.map((d) => d.share));
  for (const { g, x: intensity, y: speed, share } of dots) {
    const dot = make("circle", { cx: x.place(intensity), cy: y.place(speed), r: 4 + 14 * Math.sqrt(share / most), fill: g.direction === "backward" ? "var(--backward)" : "var(--forward)", "fill-opacity": .55, stroke: "var(--card)" });
    dot.addEventListener("pointermove", (event) => tip.show(`${g.op}\n${g.shape}\n${g.module || "outside of modules"} · ${g.direction}\n${short(speed)} GFLOP/s, ${short(g.bytes / g.p50 / 1e6)} GB/s, ${short(g.ms)} ms in ${g.calls} calls`, event));
    dot.addEventListener("pointerleave", () => tip.hide());
    dot.addEventListener("click", () => choose(g.op));
    svg.append(dot);
  }
  return { svg, peak, stream };
}
