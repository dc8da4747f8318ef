// Draws lists of boxes and arrows (class "flow"). dagre chooses the places of the boxes, the rows that
// they stand in, and a place in each row for every arrow that passes it. An arrow goes straight down
// through a row, so that it keeps clear of the row's boxes, and turns between rows.
(() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const GAPS = { nodesep: 16, edgesep: 10, ranksep: 30, marginx: 4, marginy: 4 };
  const LINE = 15, SIDE = 7, INSIDE = 8, HEAD = 6;
  // Boxes of one picture that are placed while the page loads: 600 take about a second (Chromium 1.1 s
  // for 355 of 26 kernels and for 621 of 54, 2026-11-28).
  const AT_ONCE = 600;

  const pen = document.createElement('canvas').getContext('2d');
  const element = (name, attributes, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes))
      if (value !== '' && value !== undefined) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const tip = (text) => (text ? [element('title', {}, text)] : []);
  const n = (value) => Math.round(value * 10) / 10;

  // --- places ---------------------------------------------------------------------------------

  const box = (li) => {
    const lines = [...li.children].filter((e) => e.matches('span, b'));
    const list = li.querySelector(':scope > ul');
    const wide = Math.max(0, ...lines.map((e) => pen.measureText(e.textContent).width));
    const made = { li, lines, width: wide + 2 * SIDE, height: lines.length * LINE + 10 };
    made.top = made.height;
    if (list) {
      made.inside = place(list);
      made.width = Math.max(made.width, made.inside.width + 2 * INSIDE);
      made.height += made.inside.height + INSIDE;
    }
    return made;
  };

  const place = (list) => {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ ...GAPS });
    const boxes = [...list.children].map(box);
    for (const b of boxes) graph.setNode(b.li.dataset.box, b);
    for (const b of boxes) for (const a of JSON.parse(b.li.dataset.arrows || '[]')) {
      const width = a.label ? pen.measureText(a.label).width + 6 : 0;
      const size = { width, height: a.label ? LINE : 0, labelpos: 'c' };
      graph.setEdge(a.from, b.li.dataset.box, { ...a, ...size });
    }
    dagre.layout(graph);
    const arrows = graph.edges().map((e) => graph.edge(e));
    const halves = rows(boxes, arrows);
    for (const e of graph.edges()) {
      const arrow = graph.edge(e);
      arrow.path = route(graph.node(e.v), graph.node(e.w), arrow.points, halves);
      arrow.ends = [e.v, e.w];
    }
    const xs = arrows.flatMap((a) => a.path.map(([x]) => x));
    const left = Math.min(0, ...xs.map((x) => x - GAPS.marginx));
    const right = Math.max(graph.graph().width, ...xs.map((x) => x + GAPS.marginx));
    return { boxes, arrows, left, width: right - left, height: graph.graph().height };
  };

  // Half of the height of each row, by its middle.
  const rows = (boxes, arrows) => {
    const halves = new Map();
    for (const b of [...boxes, ...arrows.filter((a) => a.label)])
      halves.set(n(b.y), Math.max(halves.get(n(b.y)) || 0, b.height / 2));
    return halves;
  };

  // The points of an arrow: it turns between the first and the second, is straight to the third, ..
  const route = (from, to, points, halves) => {
    const own = points.slice(1, -1);
    const over = (b, x) => Math.max(b.x - b.width / 2 + SIDE, Math.min(b.x + b.width / 2 - SIDE, x));
    const half = (y) => halves.get(n(y)) || 0;
    const first = over(from, own[0].x), last = over(to, own.at(-1).x);
    const path = [[first, from.y + from.height / 2], [first, from.y + half(from.y)]];
    for (const p of own) path.push([p.x, p.y - half(p.y)], [p.x, p.y + half(p.y)]);
    path.push([last, to.y - half(to.y)], [last, to.y - to.height / 2]);
    return path;
  };

  // --- the picture ----------------------------------------------------------------------------

  const along = (path, x, y) => {
    const at = path.map(([a, b]) => [n(a + x), n(b + y)]);
    let drawn = `M${at[0]}`;
    for (let k = 1; k < at.length; k++) {
      const [a, b] = at[k - 1], [c, d] = at[k], half = n((b + d) / 2);
      drawn += a === c ? `L${c} ${d}` : `C${a} ${half} ${c} ${half} ${c} ${d}`;
    }
    return drawn;
  };

  const drawArrow = (into, arrow, x, y) => {
    const [a, b] = arrow.path.at(-1), end = [n(a + x), n(b + y)];
    const marks = { 'data-t': arrow.marks };
    const line = element('path', { d: along(arrow.path, x, y), class: 'edge', ...marks });
    line.dataset.from = arrow.ends[0];
    line.dataset.to = arrow.ends[1];
    line.append(...tip(arrow.tip));
    const head = `${end} ${end[0] - 3},${end[1] - HEAD} ${end[0] + 3},${end[1] - HEAD}`;
    into.append(line, element('polygon', { points: head, class: 'tip' }));
    if (!arrow.label) return;
    const { width, height } = arrow;
    const left = n(arrow.x + x - width / 2), top = n(arrow.y + y - height / 2);
    into.append(element('rect', { x: left, y: top, width, height, class: 'blank' }));
    into.append(element('text', { x: left + 3, y: top + 11, class: 'weak' }, arrow.label));
  };

  const drawBox = (into, b, x, y) => {
    const left = n(b.x + x - b.width / 2), top = n(b.y + y - b.height / 2);
    const group = element('g', { 'data-t': b.li.dataset.t });
    const size = { x: left, y: top, width: n(b.width), height: n(b.height), rx: 3 };
    const shape = element('rect', { ...size, class: b.li.dataset.kind });
    shape.dataset.box = b.li.dataset.box;
    shape.append(...tip(b.li.title));
    group.append(shape);
    b.lines.forEach((line, k) => {
      const bold = line.matches('b') || b.inside ? { 'font-weight': 'bold' } : {};
      const at = { x: left + SIDE, y: top + 16 + LINE * k };
      group.append(element('text', { ...at, ...bold }, line.textContent));
    });
    into.append(group);
    if (b.inside) draw(into, b.inside, left + (b.width - b.inside.width) / 2, top + b.top);
  };

  const draw = (into, placed, x, y) => {
    for (const a of placed.arrows) drawArrow(into, a, x - placed.left, y);
    for (const b of placed.boxes) drawBox(into, b, x - placed.left, y);
  };

  const picture = (flow) => {
    pen.font = getComputedStyle(flow).font;
    const placed = place(flow.querySelector(':scope > ul'));
    const [width, height] = [Math.ceil(placed.width), Math.ceil(placed.height)];
    const drawn = element('svg', { width, height, viewBox: `0 0 ${width} ${height}` });
    draw(drawn, placed, 0, 0);
    flow.replaceChildren(drawn);
    // A picture wider than the page begins at its first box.
    const first = placed.boxes.reduce((a, b) => (b.y - b.height / 2 < a.y - a.height / 2 ? b : a));
    flow.scrollLeft = first.x - first.width / 2 - placed.left - GAPS.marginx;
  };

  for (const flow of document.querySelectorAll('.flow')) {
    const count = flow.querySelectorAll('li').length;
    if (count <= AT_ONCE) {
      picture(flow);
      continue;
    }
    const button = document.createElement('button');
    button.textContent = `Draw these ${count} boxes, which may take a while`;
    button.addEventListener('click', () => picture(flow));
    flow.prepend(button);
  }
})();
