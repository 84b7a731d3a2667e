"use strict";
(() => {
  const data = JSON.parse(document.getElementById("graph-data").textContent);
  const svg = document.getElementById("htg");
  const field = (name) => document.getElementById("f-" + name);
  const make = (tag, attributes, text) => {
    const node = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const kind = (gain, n) => (n === 0 ? "none" : gain > 0.0704 ? "good" : gain < -0.0704 ? "bad" : "none");
  const factor = (log2) => (2 ** log2).toFixed(2) + "×";

  function summed() {
    const family = field("family").value, device = field("device").value;
    const edges = new Map(), nodes = new Map();
    for (const edge of data.edges) {
      if ((family && edge.family !== family) || (device && edge.device !== device)) continue;
      add(edges, edge.origin + "\u0000" + edge.target, edge);
      add(nodes, edge.target, edge);
    }
    return { edges, nodes };
  }
  function add(map, key, edge) {
    const cell = map.get(key) || { origin: edge.origin, target: edge.target, n: 0, failures: 0, sum: 0, weight: 0 };
    cell.n += edge.n; cell.failures += edge.failures; cell.sum += edge.gain * edge.weight; cell.weight += edge.weight;
    map.set(key, cell);
  }

  function draw() {
    svg.replaceChildren();
    const { edges, nodes } = summed();
    const least = Number(field("min").value);
    const place = new Map(data.nodes.map((node) => [node.id, node]));
    const shown = [...edges.values()].filter((edge) => edge.n >= least && place.has(edge.origin) && place.has(edge.target));
    const most = Math.max(1, ...shown.map((edge) => edge.n));
    const biggest = Math.max(1, ...[...nodes.values()].map((cell) => cell.n));
    const smallest = Math.min(5, data.largest / 2);
    const radius = (id) => (id === "start" ? 9 : smallest + (data.largest - smallest) * Math.sqrt((nodes.get(id)?.n || 0) / biggest));
    const defs = make("defs", {});
    for (const name of ["good", "bad", "none"]) {
      const marker = make("marker", { id: "tip-" + name, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9,
        orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" });
      marker.append(make("path", { d: "M0,1 L8,4 L0,7 Z", class: "tip " + name }));
      defs.append(marker);
    }
    svg.append(defs);
    shown.sort((a, b) => a.n - b.n);
    for (const edge of shown) svg.append(arrow(edge, place, radius, most));
    for (const node of data.nodes) svg.append(circle(node, nodes.get(node.id), radius(node.id)));
    let steps = 0;
    for (const edge of edges.values()) steps += edge.n;
    document.getElementById("graph-count").textContent = `${shown.length} of ${edges.size} arrows, ${steps} measured steps`;
  }

  function arrow(edge, place, radius, most) {
    const from = place.get(edge.origin), to = place.get(edge.target);
    const gain = edge.weight ? edge.sum / edge.weight : 0, name = kind(gain, edge.n);
    const path = make("path", { class: "flow " + name, d: curve(from, to, radius(from.id), radius(to.id)),
      "stroke-width": (0.8 + 5.2 * Math.sqrt(edge.n / most)).toFixed(1), "marker-end": `url(#tip-${name})`,
      "data-from": from.id, "data-to": to.id });
    path.append(make("title", {}, `${from.name} → ${to.name}\n${edge.n} timed, mean ${factor(gain)}; ${edge.failures} failed`));
    return path;
  }
  function curve(from, to, startRadius, endRadius) {
    const middle = data.middle;
    if (from === to) {
      const dx = from.x - middle, dy = from.y - middle, length = Math.hypot(dx, dy) || 1;
      const ux = dx / length, uy = dy / length, r = startRadius, reach = r + 26;
      const a = [from.x + (ux * 0.6 - uy * 0.8) * r, from.y + (uy * 0.6 + ux * 0.8) * r];
      const b = [from.x + (ux * 0.6 + uy * 0.8) * (r + 3), from.y + (uy * 0.6 - ux * 0.8) * (r + 3)];
      return `M${a} C${[from.x + (ux - uy * 0.7) * reach, from.y + (uy + ux * 0.7) * reach]} ` +
        `${[from.x + (ux + uy * 0.7) * reach, from.y + (uy - ux * 0.7) * reach]} ${b}`;
    }
    const dx = to.x - from.x, dy = to.y - from.y, length = Math.hypot(dx, dy);
    const bend = from.id === "start" ? 0 : 0.16 * length;
    const cx = (from.x + to.x) / 2 - (dy / length) * bend, cy = (from.y + to.y) / 2 + (dx / length) * bend;
    const end = Math.hypot(to.x - cx, to.y - cy) || 1, begin = Math.hypot(cx - from.x, cy - from.y) || 1;
    const a = [from.x + ((cx - from.x) / begin) * startRadius, from.y + ((cy - from.y) / begin) * startRadius];
    const b = [to.x - ((to.x - cx) / end) * (endRadius + 4), to.y - ((to.y - cy) / end) * (endRadius + 4)];
    return `M${a.map((v) => v.toFixed(1))} Q${cx.toFixed(1)},${cy.toFixed(1)} ${b.map((v) => v.toFixed(1))}`;
  }
  function circle(node, cell, r) {
    const gain = cell && cell.weight ? cell.sum / cell.weight : 0;
    const group = make("g", { class: "node " + (node.id === "start" ? "origin" : kind(gain, cell ? cell.n : 0)), tabindex: 0 });
    group.append(make("circle", { cx: node.x, cy: node.y, r: r.toFixed(1) }));
    const facts = cell ? `${cell.n} timed · ${factor(gain)}` : "";
    const place = { x: node.label_x, y: node.label_y, "text-anchor": node.anchor };
    if (node.spoke) {
      place.transform = `rotate(${node.turn} ${node.label_x} ${node.label_y})`;
      place["dominant-baseline"] = "central";
    }
    const label = make("text", place);
    label.append(make("tspan", { class: "strong" }, node.name));
    if (node.spoke && cell) label.append(make("tspan", { dx: 5 }, `${cell.n} · ${factor(gain)}`));
    group.append(label);
    if (facts && !node.spoke) group.append(make("text", { x: node.label_x, y: node.label_y + 14, "text-anchor": node.anchor }, facts));
    if (cell) group.append(make("title", {}, `${node.name}\n${cell.n} timed, mean ${factor(gain)}; ${cell.failures} failed`));
    const focus = (on) => {
      for (const path of svg.querySelectorAll(".flow"))
        path.classList.toggle("dim", on && path.dataset.from !== node.id && path.dataset.to !== node.id);
    };
    group.addEventListener("mouseenter", () => focus(true));
    group.addEventListener("mouseleave", () => focus(false));
    group.addEventListener("focus", () => focus(true));
    group.addEventListener("blur", () => focus(false));
    return group;
  }

  const find = document.getElementById("find"), show = document.getElementById("show");
  const strategies = [...document.querySelectorAll("details.strategy")];
  function search() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const item of strategies) {
      item._text ??= item.textContent.toLowerCase();
      const fits = (!show.value || item.dataset.kind.split(" ").includes(show.value)) && words.every((word) => item._text.includes(word));
      item.hidden = !fits;
      count += fits;
    }
    for (const group of document.querySelectorAll("details.direction")) {
      const left = group.querySelectorAll("details.strategy:not([hidden])").length;
      group.querySelector(".count").textContent = left;
      group.hidden = left === 0;
      if (words.length || show.value) group.open = left > 0 && count <= 80;
    }
    document.getElementById("found").textContent = `${count} of ${strategies.length}`;
  }
  let pending;
  find.addEventListener("input", () => { clearTimeout(pending); pending = setTimeout(search, 120); });
  show.addEventListener("change", search);
  for (const name of ["family", "device", "min"]) field(name).addEventListener("change", draw);
  draw();
  search();
})();
