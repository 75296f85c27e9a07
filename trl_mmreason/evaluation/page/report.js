"use strict";

// ------------------------------------------------------------------------------------------------------------ curves

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const STEPS = [1, 2, 5, 10, 20, 50].flatMap((one, _, all) => [0, 2, 4, 6].map((power) => one * 10 ** power)).sort((a, b) => a - b);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function draw(figure) {
  const plot = JSON.parse(figure.dataset.plot);
  const colours = Number(figure.dataset.colours);
  const last = plot.xs.length - 1;
  const number = (value) => value == null ? "–" : plot.share ? `${(100 * value).toFixed(1)} %` : String(Number(value.toPrecision(3)));

  // Of one line: its own series, and behind it companions that the legend does not name.
  const data = [plot.xs], bands = [];
  const series = [{ label: plot.x, value: (_, x) => x == null ? "" : String(x) }];
  for (const line of plot.lines) {
    const stroke = colour(`series-${line.colour % colours}`);
    const describe = (_, value, __, at) => at == null ? ""
      : line.logged && line.logged[at] !== value ? `${number(line.logged[at])}, mean ${number(value)}`
      : line.low ? `${number(value)} [${number(line.low[at])}, ${number(line.high[at])}]`
      : number(value);
    const add = (values, settings) => data.push(values) && series.push({ spanGaps: true, stroke, ...settings }) - 1;
    const companion = (values, width) => add(values, { class: "companion", width, stroke: `${stroke}70`, points: { show: false } });
    add(line.points, { label: line.label, width: 2.2, dash: DASHES[line.dash % DASHES.length], value: describe, points: { show: last < 12 } });
    if (line.logged) companion(line.logged, 1);
    if (line.low) bands.push({ series: [companion(line.high, 0), companion(line.low, 0)], fill: `${stroke}28` });
  }

  const isCompanion = (k) => series[k].class === "companion";
  const axis = {
    stroke: () => colour("quiet"), font: "12px system-ui, sans-serif",
    grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false },
  };
  const tick = (value) => value == null ? "" : plot.share ? `${Number((100 * value).toFixed(1))} %` : String(Number(value.toPrecision(6)));
  const range = (_, low, high) => {
    if (low == null) return [0, 1];
    const [bottom, top] = low === high ? [low - .5, high + .5] : uPlot.rangeNum(low, high, .1, true);
    return plot.share ? [Math.max(bottom, 0), Math.min(top, 1)] : [bottom, top];
  };
  return new uPlot({
    width: figure.clientWidth, height: 210, bands, series,
    scales: {
      x: { time: false, ...(plot.log && { distr: 3, log: plot.log }) },
      y: { range },
    },
    axes: [
      { ...axis, size: 28, ...(plot.log ? { values: (_, all) => all.map((x) => x ?? "") } : plot.xs.every(Number.isInteger) && { incrs: STEPS }) },
      { ...axis, size: (_, texts) => 12 + 7 * Math.max(...(texts ?? [""]).map((text) => text.length)), values: (_, all) => all.map(tick) },
    ],
    cursor: {
      y: false,
      sync: { key: plot.x, scales: ["x", null] },
      points: { size: (_, k) => isCompanion(k) ? 0 : 8, width: 0 },
    },
    legend: { markers: { dash: (_, k) => series[k].dash?.length ? "dashed" : "solid", width: 3 } },
    hooks: {
      // without a cursor the legend shows the end; hiding a line hides its companions
      setCursor: [(chart) => chart.cursor.idx == null && chart.setLegend({ idx: last }, false)],
      ready: [(chart) => chart.setLegend({ idx: last }, false)],
      setSeries: [(chart, k, { show }) => {
        if (show == null || isCompanion(k)) return;
        for (let next = k + 1; next < series.length && isCompanion(next); next += 1) chart.setSeries(next, { show });
      }],
    },
  }, data, figure);
}

const charts = new Map();

function drawAll() {
  for (const figure of document.querySelectorAll(".plot")) {
    charts.get(figure)?.destroy();
    charts.set(figure, draw(figure));
  }
}

if (document.querySelector(".plot")) {
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () => charts.forEach((chart, figure) => chart.setSize({ width: figure.clientWidth, height: 210 })));
}

// ------------------------------------------------------------------------------------------------------ trajectories

// What is shown is in the address behind "#", so that a view can be linked to:
//   #type=wrong→right&category=dots&run=after&text=box&sort=advantage down&page=2      #trajectory=KEY
const PAGE = 10; // questions
const form = document.getElementById("filters");
const inputs = form ? [...form.elements].filter((element) => element.name) : [];
const list = document.getElementById("questions");
const lower = (element) => element.textContent.toLowerCase();
const cards = [...document.querySelectorAll(".question")].map((card) => ({
  card,
  about: lower(card.querySelector(".about")),
  place: card.querySelector(".trajectories"),
  answers: [...card.querySelectorAll(".trajectory")].map((article) => ({
    article,
    verdicts: article.dataset.type.split("→"),
    values: JSON.parse(article.dataset.values),
    texts: [...article.querySelectorAll(".answer-text")].map(lower),
  })),
}));

const FILTERS = {
  type: (wanted, _, { article, verdicts }) =>
    wanted === article.dataset.type || wanted === verdicts.at(-1) || (wanted === "changed" && verdicts[0] !== verdicts.at(-1)),
  change: (wanted, { card }) => wanted === "better or worse" ? card.dataset.change !== "" : card.dataset.change.split(" ").includes(wanted),
  run: (wanted, _, { article }) => wanted === article.dataset.run,
  step: (wanted, { card }) => wanted === card.dataset.step,
  category: (wanted, { card }) => wanted === card.dataset.category,
  text: (wanted, { about }, { texts }) => [about, ...texts].some((text) => text.includes(wanted.trim().toLowerCase())),
};

function show() {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const input of inputs) input.value = address.get(input.name) ?? "";
  const wanted = inputs.filter(({ name, value }) => value && name in FILTERS);
  const matches = (card, answer) => wanted.every(({ name, value }) => FILTERS[name](value, card, answer));

  let shown = 0, total = 0;
  for (const card of cards) {
    for (const answer of card.answers) answer.article.hidden = !matches(card, answer);
    card.matching = card.answers.filter(({ article }) => !article.hidden);
    shown += card.matching.length;
    total += card.answers.length;
  }
  const found = sorted(cards.filter(({ matching }) => matching.length), form.elements.sort.value);

  const linked = address.get("trajectory");
  const target = linked && cards.flatMap(({ answers }) => answers).find(({ article }) => article.dataset.key === linked)?.article;
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  const holder = found.findIndex(({ card }) => card.contains(target));
  const page = holder >= 0 ? Math.floor(holder / PAGE) + 1 : Math.min(Math.max(Number(address.get("page")) || 1, 1), pages);
  const onPage = new Set(found.slice((page - 1) * PAGE, page * PAGE));
  for (const each of cards) each.card.hidden = !onPage.has(each);

  form.querySelector("output").textContent = `${shown} of ${total} trajectories`;
  const turner = form.querySelector(".turner");
  turner.hidden = pages === 1;
  turner.querySelector("span").textContent = `page ${page} of ${pages}`;
  const [back, forth] = turner.querySelectorAll("button");
  [back.disabled, forth.disabled] = [page === 1, page === pages];
  [back.value, forth.value] = [page - 1, page + 1];

  for (const { answers } of cards) for (const { article } of answers) article.classList.toggle("linked", article === target);
  target?.scrollIntoView();
}

// By the largest ("… down") or the smallest ("… up") value in a card, and so within it; what has no value is last.
function sorted(found, order) {
  const [, name, direction] = order.match(/^(.*) (down|up)$/) ?? [];
  const sign = direction === "up" ? 1 : -1;
  const rank = ({ values }) => name in values ? sign * values[name] : Infinity;
  const by = (key) => (one, two) => { const [a, b] = [key(one), key(two)]; return a === b ? 0 : a - b; };
  for (const each of cards) each.place.append(...(name ? [...each.answers].sort(by(rank)) : each.answers).map(({ article }) => article));
  const inOrder = name ? [...found].sort(by(({ matching }) => Math.min(...matching.map(rank)))) : found;
  list.append(...inOrder.map(({ card }) => card));
  return inOrder;
}

function go(page) {
  const chosen = inputs.filter(({ value }) => value).map(({ name, value }) => [name, value]);
  history.replaceState(null, "", "#" + new URLSearchParams(page > 1 ? [...chosen, ["page", page]] : chosen));
  show();
}

if (form) {
  form.addEventListener("input", () => go(1));
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of form.querySelectorAll("button")) {
    button.addEventListener("click", () => { go(Number(button.value)); form.scrollIntoView(); });
  }
  addEventListener("hashchange", show);
  show();
}
