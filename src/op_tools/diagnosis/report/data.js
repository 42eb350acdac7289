"use strict";
// What the page holds: the description in JSON, and columns of numbers packed in binary.

const KINDS = { u1: Uint8Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
                f4: Float32Array, f8: Float64Array };

async function unpack(base64) {
  const text = atob(base64), raw = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) raw[i] = text.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function load(headText, blobText) {
  const head = JSON.parse(headText);
  const bytes = await unpack(blobText.trim());
  const columns = {};
  for (const { name, type, at, count } of head.columns) {
    columns[name] = new KINDS[type](bytes, at, count);
  }
  const count = columns.op ? columns.op.length : 0;
  const text = (name, i) => head.texts[name][columns[name][i]];
  return { head, columns, count, text };
}

// Rows that a search lets through: words, all of which must be in the row, and field:word,
// step:3, ms>1, error>=1, in:blocks.0 (a module and those inside it), op="a b", -word.
function parseQuery(query) {
  const tests = [];
  for (const given of query.match(/(?:[^\s"]+|"[^"]*"?)+/g) || []) {
    const word = given.replaceAll('"', "");
    const not = word.startsWith("-") && word.length > 1;
    const bare = not ? word.slice(1) : word;
    const match = /^(op|in|module|site|dtype|shape|part|direction|note|state|step|rank|run|ms|error|bytes|norm|high|low)(:|>=|<=|>|<|=)(.*)$/i.exec(bare);
    tests.push(match ? { not, field: match[1].toLowerCase(), how: match[2], value: match[3].toLowerCase() }
                     : { not, field: "", how: ":", value: bare.toLowerCase() });
  }
  return tests;
}

const SEARCHED = ["op", "module", "site", "dtype", "shape", "part", "direction", "note"];

function matches(data, query) {
  const { head, columns, count } = data;
  const keep = new Uint8Array(count).fill(1);
  for (const test of parseQuery(query)) {
    const pass = test.field === "" ? anyText(data, test.value) : oneField(head, columns, test);
    for (let i = 0; i < count; i++) if (pass(i) === test.not) keep[i] = 0;
  }
  const found = new Uint32Array(count);
  let n = 0;
  for (let i = 0; i < count; i++) if (keep[i]) found[n++] = i;
  return found.subarray(0, n);
}

// A text column is tested once for each of its different values.
function anyText({ head, columns }, value) {
  const hits = SEARCHED.map((name) => [columns[name], head.texts[name].map((t) => t.toLowerCase().includes(value))]);
  return (i) => hits.some(([codes, hit]) => hit[codes[i]]);
}

function oneField(head, columns, { field, how, value }) {
  if (field === "in") {
    const inside = head.texts.module.map((t) => { const name = t.toLowerCase(); return name === value || name.startsWith(`${value}.`); });
    return (i) => inside[columns.module[i]];
  }
  const codes = columns[field];
  if (field === "run") return (i) => codes[i] === (value === "b" ? 1 : 0);
  if (field === "state") {
    const hit = head.states.map((t) => t.includes(value));
    return (i) => hit[codes[i]];
  }
  if (head.texts[field]) {
    const hit = head.texts[field].map((t) => (how === "=" ? t.toLowerCase() === value : t.toLowerCase().includes(value)));
    return (i) => hit[codes[i]];
  }
  const wanted = Number(value);
  const compare = { ":": (v) => v === wanted, "=": (v) => v === wanted, ">": (v) => v > wanted,
                    "<": (v) => v < wanted, ">=": (v) => v >= wanted, "<=": (v) => v <= wanted }[how];
  return (i) => compare(codes[i]);
}

function sorted(data, rows, field, down) {
  const codes = data.columns[field];
  const words = data.head.texts[field];
  let key = codes;
  if (words) {
    const rank = new Uint32Array(words.length);
    words.map((word, i) => [word, i]).sort((a, b) => (a[0] < b[0] ? -1 : 1)).forEach(([, i], at) => { rank[i] = at; });
    key = { at: (i) => rank[codes[i]] };
  }
  const value = words ? key.at : (i) => (Number.isNaN(codes[i]) ? -Infinity : codes[i]);
  return Uint32Array.from(rows).sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)) || a - b);
}


// Rows as CSV: a header, and a line for each row; texts with commas or quotes are quoted.
function csvText(header, rows) {
  const quoted = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  return [header, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

if (typeof module !== "undefined") module.exports = { load, matches, sorted, parseQuery, csvText };
