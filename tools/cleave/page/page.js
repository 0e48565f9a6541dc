"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

/// An element with a class and text, or children.
function make(tag, name, content) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (Array.isArray(content)) e.append(...content);
  else if (content !== undefined) e.textContent = content;
  return e;
}
function seconds(s) {
  const a = Math.abs(s);
  return a < 1e-3 ? (s * 1e6).toFixed(1) + " us" : a < 1 ? (s * 1e3).toFixed(a < 0.1 ? 2 : 1) + " ms" : s.toFixed(2) + " s";
}
const signed = (s) => (Math.abs(s) < 5e-11 ? "0" : (s > 0 ? "+" : "-") + seconds(Math.abs(s)));
function bytes(b) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  for (; Math.abs(b) >= 1024 && u < 4; ++u) b /= 1024;
  return (u ? b.toFixed(1) : b) + " " + units[u];
}
const sum = (list) => list.reduce((a, b) => a + b, 0);
const base = (path) => path.split("/").pop();
/// Buttons of which one is pressed.
function choice(into, names, chosen, act) {
  const buttons = names.map((name, i) => {
    const b = make("button", "", name);
    b.type = "button";
    b.onclick = () => { buttons.forEach((x) => x.setAttribute("aria-pressed", x === b)); act(i); };
    b.setAttribute("aria-pressed", i === chosen);
    return b;
  });
  into.append(...buttons);
  act(chosen);
}

// The figures.
at("title").textContent = data.title;
at("verdicts").textContent = data.verdicts.join("\n");
data.table.forEach((cells, i) => {
  at("figures").append(make("tr", "", cells.map((c, k) => {
    const cell = make(i ? "td" : "th", i && c.startsWith("  ") && !k ? "part" : "", c.trim());
    return cell;
  })));
});

// The timelines: for each rank its clock and its stream, and below them the memory of rank 0.
const kinds = ["GEMM", "attention", "elementwise", "optimizer", "copy", "collectives", "waiting"];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name.toLowerCase()).trim();
at("legend").append(...kinds.map((k) => {
  const e = make("span", "", k);
  e.style.setProperty("--of", "var(--" + k.toLowerCase() + ")");
  return e;
}));
const longest = Math.max(...data.plans.map((p) => p.timeline.us));
const clockHeight = 18, streamHeight = 9, rankGap = 6, memoryHeight = 90, top0 = 4, axisHeight = 20;
const hasStream = (events) => events.some((e) => e[4]);
function layoutOf(plan) {
  let y = top0;
  const rows = plan.timeline.ranks.map((events) => {
    const row = { clock: y, stream: hasStream(events) ? y + clockHeight + 1 : -1 };
    y += clockHeight + (row.stream < 0 ? 0 : streamHeight + 1) + rankGap;
    return row;
  });
  return { rows, memory: y, height: y + memoryHeight + axisHeight };
}
const most = Math.max(...data.plans.map((p) => p.memory.persistent + p.memory.arena), 1);
let zoom = 1;
const views = data.plans.map((plan) => {
  const view = { plan, layout: layoutOf(plan), canvas: make("canvas") };
  const names = make("div", "names"), scroll = make("div", "scroll", [view.canvas]);
  const name = (y, text) => { const s = make("span", "", text); s.style.top = y + "px"; names.append(s); };
  view.layout.rows.forEach((row, r) => name(row.clock, "rank " + r));
  name(view.layout.memory, "memory");
  name(view.layout.memory + 16, bytes(most));
  const left = plan.timeline.all_ranks - plan.timeline.ranks.length;
  at("timelines").append(
    make("h3", "", plan.name + " on " + plan.mesh + ": " + seconds(plan.timeline.us * 1e-6) + ", " + plan.how + (left ? "; " + left + " more ranks" : "")),
    make("div", "timeline", [names, scroll]));
  view.scroll = scroll;
  view.canvas.onmousemove = view.canvas.onclick = (m) => hover(view, m);
  view.canvas.onmouseleave = () => { at("tip").hidden = true; };
  return view;
});
function draw(view) {
  const { plan, layout, canvas } = view, t = plan.timeline;
  const width = Math.min(16000, Math.floor(view.scroll.clientWidth * zoom)), dpr = Math.min(window.devicePixelRatio || 1, 16000 / width);
  canvas.width = width * dpr;
  canvas.height = layout.height * dpr;
  canvas.style.width = width + "px";
  canvas.style.height = layout.height + "px";
  view.scale = width / longest;
  const g = canvas.getContext("2d"), k = view.scale;
  g.scale(dpr, dpr);
  const paint = Object.fromEntries(kinds.concat(["memory", "base", "line", "faint", "text"]).map((n) => [n, colour(n)]));
  const box = (x, y, w, h, c) => { g.fillStyle = c; g.fillRect(x, y, Math.max(w, 0.35), h); };
  t.ranks.forEach((events, r) => {
    for (const [step, begin, took, waiting, beside] of events) {
      const kind = t.kinds[t.steps[step][2]], row = layout.rows[r];
      if (beside) { box(begin * k, row.stream, took * k, streamHeight, paint.collectives); continue; }
      box(begin * k, row.clock, took * k, clockHeight, paint[kind] || paint.copy);
      if (waiting) box(begin * k, row.clock, waiting * k, clockHeight, paint.waiting);
    }
  });
  const floor = layout.memory + memoryHeight, high = (memoryHeight - 6) / most, m = plan.memory;
  m.points.forEach(([us, b], i) => {
    const end = i + 1 < m.points.length ? m.points[i + 1][0] : t.us;
    box(us * k, floor - (m.persistent + b) * high, (end - us) * k + 0.5, b * high, paint.memory);
  });
  box(0, floor - m.persistent * high, t.us * k, m.persistent * high, paint.base);
  g.fillStyle = paint.faint;
  g.font = "11px system-ui, sans-serif";
  // Ticks at 1, 2 or 5 times a power of ten, about one for each 110 pixels.
  const wanted = (110 / k) * 1e-6, power = 10 ** Math.floor(Math.log10(wanted));
  const tick = [1, 2, 5, 10].map((d) => d * power).find((d) => d >= wanted);
  for (let i = 0; i * tick * 1e6 * k < width - 30; ++i) {
    box(i * tick * 1e6 * k, floor, 1, 5, paint.faint);
    g.fillText(seconds(i * tick).replace(/\.?0+ /, " "), i * tick * 1e6 * k + 3, floor + 14);
  }
}
function hover(view, mouse) {
  const box = view.canvas.getBoundingClientRect(), t = view.plan.timeline, m = view.plan.memory;
  const x = mouse.clientX - box.left, y = mouse.clientY - box.top, us = x / view.scale, tip = at("tip");
  let text = "";
  view.layout.rows.forEach((row, r) => {
    const clock = y >= row.clock && y < row.clock + clockHeight, stream = row.stream >= 0 && y >= row.stream && y < row.stream + streamHeight + 2;
    if (!clock && !stream) return;
    let found = null, near = 2 / view.scale;
    for (const e of t.ranks[r]) {
      const far = us < e[1] ? e[1] - us : us > e[1] + e[2] ? us - e[1] - e[2] : 0;
      if (!!e[4] === stream && far < near) { found = e; near = Math.max(far, 1e-9); if (!far) break; }
    }
    if (!found) return;
    const [name, source, kind] = t.steps[found[0]];
    text = (t.names[name] || t.kinds[kind]) + "\n" + t.kinds[kind] + (t.sources[source] ? ", " + t.sources[source] : "") +
      "\nrank " + r + (stream ? ", on the stream" : "") + ", at " + seconds(found[1] * 1e-6) + ", takes " + seconds(found[2] * 1e-6) +
      (found[3] > 0.05 ? ", " + seconds(found[3] * 1e-6) + " waiting" : "");
  });
  if (y >= view.layout.memory && us <= t.us) {
    let b = 0;
    for (const p of m.points) { if (p[0] > us) break; b = p[1]; }
    text = "at " + seconds(us * 1e-6) + "\nparams, state, inputs: " + bytes(m.persistent) + "\narena in use: " + bytes(b) + " of " + bytes(m.arena);
  }
  tip.hidden = !text;
  tip.textContent = text;
  tip.style.left = Math.max(4, Math.min(mouse.pageX + 12, window.scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = mouse.pageY + 16 + "px";
}
const drawAll = () => views.forEach(draw);
choice(at("zooms"), ["1x", "2x", "4x", "8x", "16x"], 0, (i) => { zoom = 2 ** i; drawAll(); });
window.addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
at("timeline-note").textContent = "One scale for all plans. Of each rank: above what its clock goes by (pale: waiting for other ranks), below, thin, transfers on its stream. " +
  "Memory of rank 0: params, state and inputs, and above them what is in use of the arena.";

// Differences of two plans, line by line.
const seen = data.plans[0].seen;
const tone = (s) => (Math.abs(s) < 5e-11 ? "" : s > 0 ? "more" : "less");
function differenceTable(d) {
  const table = make("table", "lines");
  const header = ["", d.first, d.second, "difference", seen, "source"];
  table.append(make("tr", "", header.map((h, i) => make("th", i > 4 ? "left origin" : "", h))));
  const row = (what, a, b, dSeen, source, name) => {
    const cells = [make("td", name, what), make("td", name === "sum" ? "sum" : "", seconds(a)), make("td", name === "sum" ? "sum" : "", seconds(b)),
      make("td", tone(b - a) + (name === "sum" ? " sum" : ""), signed(b - a)), make("td", tone(dSeen) + (name === "sum" ? " sum" : ""), signed(dSeen)),
      make("td", "left origin" + (name === "sum" ? " sum" : ""), [make("code", "", source)])];
    table.append(make("tr", "", cells));
  };
  const side = (c) => (c.times ? bytes(c.ring_bytes) + " in " + c.times : "none");
  const total = (line, who) => line.compute[who].predicted_seconds + sum(line.collectives.map((c) => c[who].predicted_exposed_seconds));
  const whole = Math.max(...["first", "second"].map((who) => sum(d.lines.map((l) => total(l, who)))));
  const differs = (a, b) => Math.abs(a - b) > 1e-4 * whole;
  let rest = [0, 0, 0], left = 0, all = [0, 0, 0];
  for (const line of d.lines) {
    const a = total(line, "first"), b = total(line, "second"), s = line[seen + "_difference_seconds"];
    all = [all[0] + a, all[1] + b, all[2] + s];
    if (!differs(a, b)) { rest = [rest[0] + a, rest[1] + b, rest[2] + s]; ++left; continue; }
    row(line.line ? base(line.file) + ":" + line.line : "without a line", a, b, s, line.text, "");
    let parts = false;
    for (const c of line.collectives) {
      const x = c.first.predicted_exposed_seconds, y = c.second.predicted_exposed_seconds;
      const same = c.first.ring_bytes === c.second.ring_bytes && c.first.times === c.second.times;
      if (same && !differs(x, y)) continue;
      parts = true;
      row(c.kind + " over " + c.axes + ", " + c.phase + ": " + (same ? side(c.first) : side(c.first) + " \u2192 " + side(c.second)), x, y,
        c.second[seen + "_exposed_seconds"] - c.first[seen + "_exposed_seconds"], "", "part");
    }
    const x = line.compute.first.predicted_seconds, y = line.compute.second.predicted_seconds;
    if (parts && differs(x, y)) row("compute", x, y, line.compute.second[seen + "_seconds"] - line.compute.first[seen + "_seconds"], "", "part");
  }
  if (left) row(left + " more lines", rest[0], rest[1], rest[2], "", "");
  row("all lines", all[0], all[1], all[2], "", "sum");
  return table;
}
if (data.differences.length) {
  choice(at("pairs"), data.differences.map((d) => d.second + " against " + d.first), 0, (i) => {
    const d = data.differences[i], parts = [
      make("p", "note", "Times predicted on " + data.where + ", of the last rank, waiting included; " + seen + ": the difference of the means of all steps. Red costs, green saves."),
      make("div", "scroll", [differenceTable(d)])];
    if (d.arguments.length) {
      const table = make("table");
      table.append(make("tr", "", ["what lies elsewhere", d.first, d.second].map((h) => make("th", "left", h))));
      for (const a of d.arguments) table.append(make("tr", "", [a.name, a.first, a.second].map((c) => make("td", "left code", c))));
      parts.push(make("h3", "", "Params, state and inputs"), make("div", "scroll", [table]));
    }
    at("difference").replaceChildren(...parts);
  });
} else at("differing").remove();

// The text of the program: how the values of each line are split, and what it costs under a plan.
const predictedOf = (line) => line.compute.predicted_seconds + sum(line.collectives.map((c) => c.predicted_exposed_seconds));
const keyOf = (line) => line.file + ":" + line.line;
const mostLayouts = 4;
/// Layouts that the line has under no other plan stand out.
function layoutsOf(values, others) {
  const split = (v) => v.layout.includes(" by ") || v.layout.includes("partial");
  const sorted = values.filter(split).concat(values.filter((v) => !split(v)));
  const parts = sorted.slice(0, mostLayouts).map((v) => {
    const text = (v.name ? v.name + " " : "") + v.layout;
    return make("div", others.has(text) ? "" : "own", text);
  });
  if (sorted.length > mostLayouts) parts.push(make("div", "", sorted.length - mostLayouts + " more"));
  return parts;
}
choice(at("views"), data.plans.map((p) => p.name), 0, (i) => {
  const plan = data.plans[i], costs = new Map(plan.lines.map((l) => [keyOf(l), l]));
  const layouts = new Map(plan.shardings.map((l) => [keyOf(l), l.values]));
  const elsewhere = new Map();
  data.plans.forEach((other, k) => {
    if (k !== i) for (const l of other.shardings) {
      const set = elsewhere.get(keyOf(l)) || new Set();
      l.values.forEach((v) => set.add((v.name ? v.name + " " : "") + v.layout));
      elsewhere.set(keyOf(l), set);
    }
  });
  const highest = Math.max(...plan.lines.map(predictedOf), 1e-12), parts = [];
  for (const file of data.sources) {
    parts.push(make("div", "file", file.file));
    file.lines.forEach((text, n) => {
      const key = file.file + ":" + (n + 1), line = costs.get(key), values = layouts.get(key) || [];
      const row = make("div", "row" + (line || values.length ? " busy" : ""));
      row.append(make("span", "number code", n + 1), make("span", "text code", text || " "));
      const time = line ? predictedOf(line) : 0, bar = make("i"), turns = Math.max(1, ...values.map((v) => v.times));
      const cell = make("span", "time", line ? [bar, make("b", "", seconds(time))] : []);
      bar.style.width = (100 * time) / highest + "%";
      const margin = make("div", "margin", layoutsOf(values, data.plans.length > 1 ? elsewhere.get(key) || new Set() : { has: () => true }));
      if (line) {
        margin.append(...line.collectives.filter((c) => c.times).map((c) => make("div", "moves",
          c.kind + " over " + c.axes + ", " + c.phase + ": " + bytes(c.ring_bytes) + " in " + c.times + ", " + seconds(c.predicted_exposed_seconds))));
      }
      if (turns > 1) row.children[0].append(make("small", "", " \u00d7" + turns));
      if (line || values.length) row.append(cell, margin);
      parts.push(row);
    });
  }
  at("program").replaceChildren(...parts);
  at("program-note").textContent = "Under " + plan.name + " on " + plan.mesh + ": the time that a step spends for each line, predicted on " + data.where +
    ", forward, backward and optimizer together; how the line's values of the forward pass are split" +
    (data.plans.length > 1 ? " (bold: so under no other plan)" : "") +
    "; the collectives that it causes, what they move in a ring per rank and how long a rank stands still for them. \u00d7: in so many layers.";
});
