/* The interactive parts of a report. Text from the model only ever becomes text nodes: no markup is parsed. */
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const $ = (id) => document.getElementById(id);
  const make = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "class") node.className = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
    return node;
  };
  const number = (x) => {
    if (x === null || x === undefined) return "–";
    if (typeof x === "string") return x;
    if (x === 0) return "0";
    const size = Math.abs(x);
    return size >= 1e5 || size < 1e-3 ? x.toExponential(1) : String(+x.toPrecision(4));
  };
  const percent = (x) => (!x ? "0" : x < 0.001 ? "<0.1 %" : x > 0.999 && x < 1 ? ">99.9 %" : (100 * x).toFixed(1) + " %");
  const real = (x) => (x === "inf" ? Infinity : x === "-inf" ? -Infinity : x === "nan" ? NaN : x);
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // ---- theme ----
  const redraws = [];
  const redraw = () => redraws.forEach((draw) => draw());
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const themeButton = $("theme");
  const showTheme = () => { themeButton.textContent = isDark() ? "Light" : "Dark"; };
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("fp16conv-theme", root.dataset.theme); } catch { /* no storage: the choice lasts for this view */ }
    showTheme();
    redraw();
  });
  try {
    const kept = localStorage.getItem("fp16conv-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* no storage */ }
  showTheme();
  systemDark.addEventListener("change", () => { showTheme(); redraw(); });

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = $(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  const data = JSON.parse($("data").textContent);
  const plots = [];
  const plot = (host, build) => {
    let chart = null;
    const draw = () => {
      const width = host.clientWidth;
      if (!width) return;
      if (chart) chart.destroy();
      host.replaceChildren();
      const [options, series] = build(width);
      chart = new uPlot(options, series, host);
    };
    draw();
    const entry = { draw, host };
    plots.push(entry);
    return entry;
  };
  redraws.push(() => { plots.forEach((p) => p.host.isConnected && p.draw()); });
  let resizing = 0;
  let lastWidth = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === lastWidth) return;
    lastWidth = innerWidth;
    clearTimeout(resizing);
    resizing = setTimeout(redraw, 120);
  });
  const axis = (extra) => ({ stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") }, ...extra });
  // Errors and shares are drawn as their decimal logarithms on an even scale.
  const log = (x) => (x === null ? null : Math.log10(x));
  const unlog = (y) => (y === null || y === undefined ? y : 10 ** y);
  const powers = { size: 64, space: 26, incrs: [0.5, 1, 2, 5], values: (_, ticks) => ticks.map((t) => (10 ** t).toExponential(0)) };

  drawFrontier(data.frontier);
  drawGradients(data.gradients);
  if (!data.ops) {
    document.querySelectorAll(".needs-js[data-op]").forEach((slot) => slot.remove());
    return;
  }

  // ---- operators: columns of equal length, texts by index ----
  const ops = data.ops;
  const count = ops.label.length;
  const PRECISIONS = ["fp16", "mixed", "fp32", "other"];
  const PRECISION_NAMES = ["FP16", "mixed", "FP32", "no float"];
  const values = data.values;
  const typeOf = (i) => data.types[ops.type[i]];
  const blockOf = (i) => data.blocks[ops.block[i]];
  const reasonsOf = (i) => ops.reasons[i].map((r) => data.reasons[r]);
  const ruleOf = (i) => { const r = ops.reasons[i]; return r.length ? data.reasons[r[0]][0] : ""; };
  const overOutputs = (i, column, start, best) => ops.outputs[i].reduce((sum, v) => best(sum, real(column[v]) ?? start), start);
  const maxAbs = (i) => {
    let top = null;
    for (const v of ops.outputs[i]) {
      if (values.lo[v] === null) continue;
      top = Math.max(top ?? 0, Math.abs(real(values.lo[v])), Math.abs(real(values.hi[v])));
    }
    return top;
  };
  const tops = Array.from({ length: count }, (_, i) => maxAbs(i));
  const overflow = Array.from({ length: count }, (_, i) => overOutputs(i, values.over, 0, Math.max));
  const errors = ops.error.map(real);
  const added = ops.added.map(real);
  const chip = (p) => make("span", { class: "chip " + PRECISIONS[p] }, PRECISION_NAMES[p]);
  const finiteText = (x) => (x === null || x === undefined ? "–" : x === Infinity ? "inf" : number(x));
  const opButton = (i, text) => make("button", { class: "plain", type: "button", onclick: (event) => openDetail(i, event.currentTarget) }, text ?? ops.label[i]);

  // ---- legend and strip ----
  $("legend").append(...PRECISIONS.map((_, p) => chip(p)));
  const strip = $("strip");
  const drawStrip = () => {
    const scale = devicePixelRatio || 1;
    const width = Math.max(1, Math.round(strip.clientWidth * scale));
    const height = Math.round(60 * scale);
    strip.width = width;
    strip.height = height;
    const ink = strip.getContext("2d");
    const colors = PRECISIONS.map((p) => color("--" + p));
    // FP16 in the upper band, mixed in the middle, FP32 in the lower: the place says it, not only the colour.
    const bands = [[0, 0.38], [0.4, 0.2], [0.62, 0.38], [0.46, 0.08]];
    const columns = Math.min(width, count);
    for (let x = 0; x < columns; x += 1) {
      const from = Math.floor((x * count) / columns);
      const to = Math.max(from + 1, Math.floor(((x + 1) * count) / columns));
      const seen = [0, 0, 0, 0];
      for (let i = from; i < to; i += 1) seen[ops.precision[i]] += 1;
      const left = (x * width) / columns;
      const wide = Math.max(1, width / columns - (width / columns > 3 * scale ? scale : 0));
      seen.forEach((n, p) => {
        if (!n) return;
        ink.globalAlpha = 0.35 + 0.65 * (n / (to - from));
        ink.fillStyle = colors[p];
        ink.fillRect(left, bands[p][0] * height, wide, bands[p][1] * height);
      });
    }
  };
  drawStrip();
  redraws.push(drawStrip);
  strip.addEventListener("click", (event) => {
    const i = Math.min(count - 1, Math.floor((event.offsetX / strip.clientWidth) * count));
    openDetail(i, strip);
  });

  // ---- tree of blocks: children are made when a block is opened ----
  const FEW = 40; // leaves shown one by one; more are cut into ranges
  const worst = added.reduce((m, x) => (x !== null && Number.isFinite(x) ? Math.max(m, x) : m), 0);
  const paths = data.blocks.map((b) => (b === "" ? [] : b.split("\u0000")));
  const pathOf = (i) => paths[ops.block[i]];
  const groupBy = (ids, depth) => {
    const groups = new Map();
    const leaves = [];
    for (const i of ids) {
      const part = pathOf(i)[depth];
      if (part === undefined) leaves.push(i);
      else if (groups.has(part)) groups.get(part).push(i);
      else groups.set(part, [i]);
    }
    return [groups, leaves];
  };
  const stack = (ids, byError) => {
    const seen = [0, 0, 0, 0];
    for (const i of ids) seen[ops.precision[i]] += 1;
    const words = PRECISION_NAMES.map((n, p) => (seen[p] ? `${n} ${seen[p]}` : "")).filter(Boolean).join(" · ");
    const top = ids.reduce((m, i) => Math.max(m, added[i] ?? 0), 0);
    const bar = make("div", { class: "stack", role: "img", "aria-label": byError ? `error added ${finiteText(top)}` : words });
    if (byError) {
      const share = top === Infinity ? 1 : top > 0 && worst > 0 ? Math.max(0.02, 1 + Math.log10(top / worst) / 4) : 0;
      const part = make("span", { class: "seg err" });
      part.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
      bar.append(part);
    } else {
      seen.forEach((n, p) => {
        if (!n) return;
        const part = make("span", { class: "seg " + PRECISIONS[p] });
        part.style.flexGrow = n;
        bar.append(part);
      });
    }
    return [bar, words, top];
  };
  const row = (head, ids, byError) => {
    const [bar, words, top] = stack(ids, byError);
    const shown = data.measured ? finiteText(top) : "–";
    return make("div", { class: "node" }, head, bar, make("span", { class: "counts dim" }, words), make("span", { class: "num", title: "largest error added" }, shown));
  };
  const leafRow = (i, byError) => {
    const label = make("span", {}, opButton(i), make("span", { class: "dim" }, " " + typeOf(i)));
    return make("li", {}, row(label, [i], byError));
  };
  const blockRow = (name, ids, depth, byError, open) => {
    const children = make("ul", { hidden: true });
    const button = make("button", { class: "open", type: "button", "aria-expanded": "false" }, `${name} (${ids.length})`);
    const item = make("li", {}, row(button, ids, byError), children);
    const toggle = (show) => {
      if (show && !children.firstChild) children.append(...rows(ids, depth, byError));
      children.hidden = !show;
      button.setAttribute("aria-expanded", String(show));
    };
    button.addEventListener("click", () => toggle(children.hidden));
    if (open) toggle(true);
    return item;
  };
  const rows = (ids, depth, byError) => {
    const [groups, leaves] = groupBy(ids, depth);
    const items = [...groups].map(([name, members]) => {
      // A chain of blocks with one child each is one line.
      let deep = depth + 1;
      let title = name;
      for (;;) {
        const [inner, rest] = groupBy(members, deep);
        if (inner.size !== 1 || rest.length) break;
        title += "/" + inner.keys().next().value;
        deep += 1;
      }
      return [members[0], blockRow(title, members, deep, byError, false)];
    });
    if (groups.size && leaves.length > FEW / 4) {
      items.push([leaves[0], blockRow("outside of blocks", leaves, Infinity, byError, false)]);
    } else if (leaves.length > FEW) {
      const size = Math.max(FEW / 2, Math.ceil(leaves.length / FEW));
      for (let k = 0; k < leaves.length; k += size) {
        const part = leaves.slice(k, k + size);
        const title = `operators ${part[0] + 1} to ${part[part.length - 1] + 1}`;
        items.push([part[0], blockRow(title, part, depth, byError, false)]);
      }
    } else for (const i of leaves) items.push([i, leafRow(i, byError)]);
    items.sort((a, b) => a[0] - b[0]);
    return items.map(([, item]) => item);
  };
  const all = Array.from({ length: count }, (_, i) => i);
  const drawTree = () => {
    const byError = $("tree-by").value === "error";
    $("tree").replaceChildren(...rows(all, 0, byError));
  };
  $("tree-by").addEventListener("change", drawTree);
  if (!data.measured) $("tree-by").disabled = true;
  drawTree();

  // ---- error along depth ----
  const marked = (x) => x !== null && x !== undefined && !Number.isNaN(x);
  if (data.measured) {
    const finite = errors.map((x) => (marked(x) && Number.isFinite(x) && x > 0 ? x : null));
    const top = finite.reduce((m, x) => Math.max(m, x ?? 0), 0) || 1;
    const broken = errors.map((x) => (x === Infinity ? top * 3 : null));
    const culprits = added.map((x, i) => (marked(x) && x > 0 ? [x, i] : null)).filter(Boolean).sort((a, b) => b[0] - a[0]).slice(0, 10);
    const causes = new Set(culprits.map(([, i]) => i));
    const causing = finite.map((x, i) => (causes.has(i) ? x : null));
    plot($("depth"), (width) => [{
      width, height: 260, legend: { live: true },
      scales: { x: { time: false } },
      axes: [axis({ label: "operator, in file order", labelSize: 22 }), axis(powers)],
      series: [
        { label: "operator", value: (_, x) => (x === null || x === undefined ? "–" : `${x} ${ops.label[x - 1] ?? ""}`) },
        { label: "relative L2 error", stroke: color("--fp16"), width: 1, spanGaps: true, points: { show: false }, value: (_, y) => number(unlog(y)) },
        { label: "adds most", stroke: color("--fp32"), paths: () => null, points: { show: true, size: 9, fill: color("--bg"), width: 2 }, value: (_, y) => number(unlog(y)) },
        { label: "NaN or infinity", stroke: color("--bad"), paths: () => null, points: { show: true, size: 8, fill: color("--bad") }, value: (_, x) => (x === null || x === undefined ? "–" : "yes") },
      ],
      hooks: { ready: [(u) => u.over.addEventListener("click", () => { if (u.cursor.idx !== null) openDetail(u.cursor.idx, u.over); })] },
    }, [all.map((i) => i + 1), finite.map(log), causing.map(log), broken.map(log)]]);
    $("culprits").append(...culprits.map(([x, i]) => make("tr", {}, make("td", { class: "num" }, finiteText(x)), make("td", { class: "num" }, finiteText(errors[i])), make("td", { class: "name" }, opButton(i)), make("td", {}, typeOf(i)), make("td", {}, chip(ops.precision[i])))));
  }

  // ---- table: only the rows in view exist ----
  const ROW = 34;
  const COLUMNS = [
    { id: "id", title: "#", num: true, key: (i) => i, cell: (i) => String(i + 1) },
    { id: "op", title: "Operator", key: (i) => ops.label[i], cell: (i) => make("span", { class: "start", title: ops.label[i] }, make("bdi", {}, ops.label[i])) },
    { id: "type", title: "Type", key: typeOf, cell: (i) => typeOf(i) },
    { id: "prec", title: "Precision", key: (i) => ops.precision[i], cell: (i) => chip(ops.precision[i]) },
    { id: "rule", title: "Rule", key: ruleOf, cell: (i) => ruleOf(i) },
    { id: "max", title: "Max |x|", num: true, key: (i) => tops[i], cell: (i) => finiteText(tops[i]) },
    { id: "over", title: "Overflow", num: true, key: (i) => overflow[i], cell: (i) => percent(overflow[i]) },
    { id: "err", title: "Error", num: true, key: (i) => errors[i], cell: (i) => finiteText(errors[i]) },
    { id: "add", title: "Added", num: true, key: (i) => added[i], cell: (i) => finiteText(added[i]) },
  ];
  const head = $("grid-head");
  const body = $("grid-body");
  const space = $("grid-space");
  let order = all;
  let sort = { column: 0, down: false };
  let active = 0;
  let haystack = null;
  const buttons = COLUMNS.map((column, c) => {
    const button = make("button", { type: "button", onclick: () => {
      sort = { column: c, down: sort.column === c ? !sort.down : Boolean(column.num) && c > 0 };
      refresh();
    } }, column.title);
    head.append(make("div", { role: "columnheader", class: `c-${column.id}${column.num ? " num" : ""}`, "aria-sort": "none" }, button));
    return button;
  });
  const fill = (id, names, label) => {
    const select = $(id);
    select.append(make("option", { value: "" }, label), ...names.map(([value, name]) => make("option", { value }, name)));
    select.addEventListener("change", refresh);
  };
  const tally = (key) => {
    const seen = new Map();
    for (const i of all) { const k = key(i); if (k !== "") seen.set(k, (seen.get(k) ?? 0) + 1); }
    return [...seen].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  };
  fill("f-precision", PRECISIONS.map((p, n) => [p, PRECISION_NAMES[n]]), "all precisions");
  fill("f-type", tally(typeOf).map(([name, n]) => [name, `${name} (${n})`]), "all types");
  fill("f-rule", tally(ruleOf).map(([name, n]) => [name, `${name} (${n})`]), "all rules");
  fill("f-range", [["over", "overflow FP16"], ["sub", "subnormal in FP16"], ["zero", "become zero"], ["err", "NaN or infinity"]], "all ranges");
  let typing = 0;
  $("f-text").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(refresh, 60); });
  $("f-clear").addEventListener("click", () => {
    for (const id of ["f-text", "f-precision", "f-type", "f-rule", "f-range"]) $(id).value = "";
    refresh();
  });
  const compare = (a, b) => {
    if (a === b) return 0;
    const noA = a === null || a === undefined;
    const noB = b === null || b === undefined;
    if (noA || noB) return noA ? (noB ? 0 : 1) : -1; // the unknown goes last, whatever the direction
    return (a < b ? -1 : 1) * (sort.down ? -1 : 1);
  };
  function refresh() {
    const text = $("f-text").value.trim().toLowerCase();
    const precision = PRECISIONS.indexOf($("f-precision").value);
    const [type, rule, range] = ["f-type", "f-rule", "f-range"].map((id) => $(id).value);
    if (text && !haystack) {
      const sentences = data.reasons.map((r) => `${r[0]} ${r[1]}`.toLowerCase());
      haystack = all.map((i) => `${ops.label[i]} ${typeOf(i)} ${ops.reasons[i].map((r) => sentences[r]).join(" ")}`.toLowerCase());
    }
    const inRange = {
      over: (i) => overflow[i] > 0,
      sub: (i) => overOutputs(i, values.sub, 0, Math.max) > 0,
      zero: (i) => overOutputs(i, values.zero, 0, Math.max) > 0,
      err: (i) => errors[i] === Infinity,
    }[range];
    order = all.filter((i) => (precision < 0 || ops.precision[i] === precision) && (!type || typeOf(i) === type) && (!rule || ops.reasons[i].some((r) => data.reasons[r][0] === rule)) && (!inRange || inRange(i)) && (!text || haystack[i].includes(text)));
    if (sort.column !== 0 || sort.down) {
      const key = COLUMNS[sort.column].key;
      const keys = all.map(key);
      order.sort((a, b) => compare(keys[a], keys[b]) || a - b);
    }
    buttons.forEach((button, c) => {
      const on = c === sort.column;
      button.textContent = COLUMNS[c].title + (on ? (sort.down ? " ▾" : " ▴") : "");
      button.parentNode.setAttribute("aria-sort", on ? (sort.down ? "descending" : "ascending") : "none");
    });
    $("f-count").textContent = `${order.length} of ${count} operators`;
    $("grid").setAttribute("aria-rowcount", order.length + 1);
    space.style.height = `${order.length * ROW}px`;
    active = 0;
    body.scrollTop = 0;
    paint();
  }
  const rowOf = (n) => {
    const i = order[n];
    const line = make("div", { class: "row" + (n === active ? " active" : ""), role: "row", id: `row-${n}`, "aria-rowindex": n + 2, "aria-selected": String(n === active) },
      COLUMNS.map((column) => make("div", { role: "gridcell", class: `c-${column.id}${column.num ? " num" : ""}` }, column.cell(i))));
    line.style.transform = `translateY(${n * ROW}px)`;
    line.addEventListener("click", () => { active = n; paint(); openDetail(i, body); });
    return line;
  };
  let printing = 0;
  function paint() {
    const first = printing ? 0 : Math.max(0, Math.floor(body.scrollTop / ROW) - 6);
    const last = printing ? Math.min(order.length, printing) : Math.min(order.length, Math.ceil((body.scrollTop + body.clientHeight) / ROW) + 6);
    const lines = [];
    for (let n = first; n < last; n += 1) lines.push(rowOf(n));
    space.replaceChildren(...lines);
    if (order.length) body.setAttribute("aria-activedescendant", `row-${active}`);
    else body.removeAttribute("aria-activedescendant");
  }
  let pending = false;
  body.addEventListener("scroll", () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; paint(); });
  });
  body.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(body.clientHeight / ROW) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -order.length, End: order.length }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      active = Math.min(order.length - 1, Math.max(0, active + step));
      const y = active * ROW;
      if (y < body.scrollTop) body.scrollTop = y;
      else if (y + ROW > body.scrollTop + body.clientHeight) body.scrollTop = y + ROW - body.clientHeight;
      paint();
    } else if ((event.key === "Enter" || event.key === " ") && order.length) {
      event.preventDefault();
      openDetail(order[active], body);
    }
  });
  addEventListener("beforeprint", () => { printing = 300; paint(); });
  addEventListener("afterprint", () => { printing = 0; paint(); });
  redraws.push(paint);
  refresh();

  // Static text refers to operators and rules by data attributes.
  const byLabel = new Map();
  for (const i of all) if (!byLabel.has(ops.label[i])) byLabel.set(ops.label[i], i);
  for (const slot of document.querySelectorAll("[data-op]")) {
    const i = byLabel.get(slot.dataset.op);
    if (i !== undefined) slot.replaceChildren(opButton(i, slot.textContent));
  }
  for (const slot of document.querySelectorAll("[data-rule]")) {
    const rule = slot.dataset.rule;
    if (![...$("f-rule").options].some((o) => o.value === rule)) continue;
    slot.append(" ", make("button", { class: "plain", type: "button", onclick: () => {
      $("f-clear").click();
      $("f-rule").value = rule;
      refresh();
      $("operators").scrollIntoView();
    } }, "show"));
  }

  // ---- one operator ----
  const panel = $("detail");
  let opener = null;
  const closeDetail = () => {
    panel.hidden = true;
    if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  };
  addEventListener("keydown", (event) => { if (event.key === "Escape" && !panel.hidden) closeDetail(); });
  const pairs = (entries) => make("dl", {}, entries.filter(([, v]) => v !== "" && v !== null && v !== undefined).map(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]));
  const rules = new Map(data.rules.map((r) => [r[0], r]));
  function openDetail(i, from) {
    opener = from;
    const close = make("button", { type: "button", onclick: closeDetail, "aria-label": "Close details" }, "✕");
    const content = [
      make("div", { class: "headline" }, make("h2", { id: "detail-title" }, ops.label[i]), close),
      make("p", {}, chip(ops.precision[i]), " ", make("span", { class: "mono" }, typeOf(i))),
      pairs([
        ["Number", `${i + 1} of ${count}, in file order`],
        ["Block", blockOf(i).split("\u0000").join(" / ")],
        ["Scope", data.scopes[ops.scope[i]]],
        ["Source", ops.line ? ops.line[i] : ""],
        ["Verdict", data.verdicts[ops.verdict[i]]],
        ["MACs", ops.macs[i] === null ? "" : number(ops.macs[i])],
        ["Error, before", ops.before[i] === null ? "" : finiteText(real(ops.before[i]))],
        ["Error, after", errors[i] === null ? "" : finiteText(errors[i])],
        ["Error added", added[i] === null ? "" : finiteText(added[i])],
      ]),
      make("h3", {}, "Why"),
      ...(reasonsOf(i).length ? reasonsOf(i).map(reason) : [make("p", { class: "dim" }, "Nothing to decide: it has no FP32 tensors.")]),
      ...ops.outputs[i].flatMap(valueParts),
    ];
    panel.replaceChildren(...content);
    panel.hidden = false;
    panel.scrollTop = 0;
    for (const draw of panel.querySelectorAll(".plot")) drawHistogram(draw);
    close.focus({ preventScroll: true });
  }
  function reason([rule, text, authority]) {
    const note = rules.get(rule);
    const parts = [make("div", {}, text), make("div", { class: "dim" }, make("code", {}, rule), ` (${authority})`)];
    if (note) {
      const [, name, verdict, rationale, sources, file] = note;
      parts.push(make("details", {}, make("summary", {}, "The rule"), make("p", {}, make("b", {}, name), ` (${verdict})`), make("p", {}, rationale), make("ul", {}, sources.map((s) => make("li", { class: "mono" }, s))), make("p", { class: "dim mono" }, file)));
    }
    return make("div", { class: "reason" }, parts);
  }
  function valueParts(v) {
    const shape = values.shape[v];
    const parts = [make("h3", {}, "Output ", make("code", {}, values.name[v]))];
    parts.push(pairs([
      ["Type", `${data.dtypes[values.dtype[v]]}${shape === null ? "" : ` [${shape.join(", ")}]`}`],
      ["Known from", data.origins[values.origin[v]]],
      ["Range", values.lo[v] === null ? "not observed" : `${number(values.lo[v])} to ${number(values.hi[v])}`],
      ["For all inputs", values.bound[v] === null ? "" : `${number(values.bound[v][0])} to ${number(values.bound[v][1])} (proven)`],
      ["Smallest non-zero", number(values.min[v])],
      ["RMS", number(values.rms[v])],
      ["Beyond FP16", values.lo[v] === null ? "" : percent(values.over[v])],
      ["Subnormal", values.lo[v] === null ? "" : percent(values.sub[v])],
      ["Become zero", values.lo[v] === null ? "" : percent(values.zero[v])],
    ]));
    if (values.bins[v]) {
      const words = `Magnitudes by base-2 exponent. FP16 holds 2^-14 to 2^15 in full; ${percent(values.over[v])} overflow, ${percent(values.sub[v])} are subnormal, ${percent(values.zero[v])} become zero.`;
      const figure = make("figure", {}, make("div", { class: "plot", role: "img", "aria-label": words, "data-value": v }), make("figcaption", {}, words));
      parts.push(figure);
    }
    return parts;
  }
  function drawHistogram(host) {
    const v = Number(host.dataset.value);
    plot(host, (width) => histogram(width, values.first[v], values.bins[v]));
  }
  function histogram(width, first, bins) {
    const xs = [];
    const ys = [];
    const low = Math.min(first, -26) - 1;
    const high = Math.max(first + bins.length, 17);
    for (let e = low; e <= high; e += 1) {
      xs.push(e);
      const code = e >= first && e < first + bins.length ? data.alphabet.indexOf(bins[e - first]) : 0;
      ys.push(code > 0 ? data.floor * (1 - (code - 1) / (data.alphabet.length - 2)) : null);
    }
    return [{
      width, height: 190, legend: { live: true },
      scales: { x: { time: false, range: [low - 0.5, high + 0.5] }, y: { range: [data.floor, 0] } },
      axes: [axis({ values: (_, t) => t.map((e) => `2^${e}`), space: 44, incrs: [1, 2, 5, 10, 20] }), axis(powers)],
      series: [
        { label: "magnitude", value: (_, e) => (e === null || e === undefined ? "–" : `2^${e} to 2^${e + 1}`) },
        { label: "share", stroke: color("--fp16"), fill: color("--fp16"), paths: uPlot.paths.bars({ size: [0.86, 60] }), fillTo: data.floor, points: { show: false }, value: (_, y) => (y === null || y === undefined ? "0" : percent(unlog(y))) },
      ],
      hooks: { drawClear: [(u) => zones(u, low, high, false)], draw: [(u) => zones(u, low, high, true)] },
    }, [xs, ys]];
  }
  function zones(u, low, high, naming) {
    const ink = u.ctx;
    const scale = devicePixelRatio || 1;
    ink.save();
    ink.font = `${11 * scale}px system-ui, sans-serif`;
    ink.textAlign = "center";
    for (const [from, to, name, tint] of [[15.5, high + 0.5, "overflow", "--zone"], [-25.5, -14.5, "subnormal", "--zone2"], [low - 0.5, -25.5, "zero", "--zone"]]) {
      const left = u.valToPos(Math.max(from, low - 0.5), "x", true);
      const right = u.valToPos(Math.min(to, high + 0.5), "x", true);
      if (right <= left) continue;
      ink.fillStyle = color(naming ? "--text" : tint);
      if (!naming) ink.fillRect(left, u.bbox.top, right - left, u.bbox.height);
      else if (right - left > ink.measureText(name).width) ink.fillText(name, (left + right) / 2, u.bbox.top + 13 * scale);
    }
    ink.restore();
  }

  // ---- the frontier of a tuning ----
  function drawFrontier(points) {
    const host = $("frontier-plot");
    if (!host || !points || !points.length) return;
    const known = points.filter((p) => typeof p[1] === "number" && p[1] > 0).sort((a, b) => a[0] - b[0]);
    if (!known.length) return;
    plot(host, (width) => [{
      width, height: 260, legend: { live: true },
      scales: { x: { time: false } },
      axes: [axis({ label: "predicted time, ms", labelSize: 22 }), axis(powers)],
      series: [
        { label: "predicted ms", value: (_, x) => number(x) },
        { label: "relative L2 error", stroke: color("--fp16"), width: 1, points: { show: true, size: 7, fill: color("--bg") }, value: (_, y) => number(unlog(y)) },
        { label: "chosen", stroke: color("--fp32"), paths: () => null, points: { show: true, size: 13, width: 3, fill: color("--bg") }, value: (_, y) => (y === null || y === undefined ? "–" : "yes") },
      ],
    }, [known.map((p) => p[0] * 1e3), known.map((p) => log(p[1])), known.map((p) => (p[2] ? log(p[1]) : null))]]);
  }

  // ---- the gradients of a training: what FP16 sees of them at a loss scale ----
  function drawGradients(found) {
    const host = $("gradient-plot");
    if (!host || !found) return;
    const of = $("g-of");
    const scale = $("g-scale");
    found.label.forEach((label, i) => { if (found.bins[i]) of.append(make("option", { value: i }, label)); });
    if (!of.options.length) return;
    for (const [exponent, name] of new Map([[0, "1 (none)"], [found.scale, `2^${found.scale} (${found.open ? "recommended" : "overflows nothing"})`]])) {
      scale.append(make("option", { value: exponent }, name));
    }
    const worst = found.zero.reduce((best, x, i) => (found.bins[i] && x > found.zero[best] ? i : best), Number(of.value));
    of.value = String(worst);
    const entry = plot(host, (width) => histogram(width, found.first[of.value] + Number(scale.value), found.bins[of.value]));
    const show = () => {
      entry.draw();
      const words = `Magnitudes by base-2 exponent, times the loss scale, against what FP16 holds. At scale 1, ${percent(found.zero[of.value])} become zero.`;
      $("g-words").textContent = words;
      host.setAttribute("aria-label", `${of.selectedOptions[0].textContent}. ${words}`);
    };
    of.addEventListener("change", show);
    scale.addEventListener("change", show);
    show();
  }
  root.dataset.ready = "yes";
})();
