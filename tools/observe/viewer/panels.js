// The bodies of panels: time series, stats, bars of states, heat maps. Data comes in, elements go out.
import {format, legend, ticks} from './units.js';

const COLORS = ['#73bf69', '#f2cc0c', '#8ab8ff', '#ff780a', '#f2495c', '#5794f2', '#b877d9', '#705da0', '#37872d',
  '#fade2a', '#447ebc', '#c15c17', '#890f02', '#0a437c', '#6d1f62'];
const NAMED = {green: '#73bf69', red: '#f2495c', 'dark-red': '#c4162a', yellow: '#fade2a', orange: '#ff9830',
  purple: '#b877d9', blue: '#5794f2'};
const LEFT = 62, BOTTOM = 18, TOP = 6, RIGHT = 6;

function element(name, attributes = {}, text = '') {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function html(name, className, text = '') {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

// Times along the bottom; returns the mapping of a time to a place.
function timeAxis(svg, range, width, height, left = LEFT) {
  const x = (time) => left + (time - range.start) / (range.end - range.start) * (width - left - RIGHT);
  for (let i = 0; i <= 4; i++) {
    const time = range.start + (range.end - range.start) * i / 4;
    const anchor = i === 0 ? 'start' : i === 4 ? 'end' : 'middle';
    svg.append(element('text', {x: x(time), y: height - 4, 'text-anchor': anchor}, clock(time)));
  }
  return x;
}

// Points of each series on the range's grid: stacked if asked for; null where nothing was measured.
function onGrid(series, range, stacked) {
  const count = Math.round((range.end - range.start) / range.step) + 1;
  const base = new Array(count).fill(0);
  return series.map(({values}) => {
    const line = new Array(count).fill(null);
    for (const [time, text] of values) {
      const value = Number(text);
      if (Number.isFinite(value)) line[Math.round((time - range.start) / range.step)] = value;
    }
    if (!stacked) return {low: null, high: line};
    const low = base.slice();
    line.forEach((value, i) => { base[i] += value ?? 0; });
    return {low, high: line.map((value, i) => (value === null ? null : low[i] + value))};
  });
}

function path(x, y, range, points) {
  let text = '', pen = 'M';
  points.forEach((value, i) => {
    if (value === null) { pen = 'M'; return; }
    text += `${pen}${x(range.start + i * range.step).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = 'L';
  });
  return text;
}

function area(x, y, range, low, high) {
  const known = high.map((value, i) => i).filter((i) => high[i] !== null);
  if (known.length === 0) return '';
  const point = (i, value) => `${x(range.start + i * range.step).toFixed(1)} ${y(value).toFixed(1)}`;
  return 'M' + known.map((i) => point(i, high[i])).join('L') + 'L' +
    known.reverse().map((i) => point(i, low[i])).join('L') + 'Z';
}

// What the panel's overrides say of a series: its color, and whether it stands in the legend.
function looks(panel, one, line, name, number) {
  const found = {color: COLORS[number % COLORS.length], listed: true};
  for (const {matcher, properties} of panel.fieldConfig.overrides) {
    const applies = matcher.id === 'byName' ? matcher.options === name :
      one.values.every(([, value]) => Number(value) === 0);  // byValue, allIsZero.
    if (!applies) continue;
    for (const {id, value} of properties) {
      if (id === 'color') found.color = NAMED[value.fixedColor];
      if (id === 'custom.hideFrom') found.listed = !value.legend;
    }
  }
  return found;
}

export function timeseries(panel, series, range, box) {
  const {unit, min = 0, max} = panel.fieldConfig.defaults;
  const stacked = panel.fieldConfig.defaults.custom.stacking.mode === 'normal';
  const lines = onGrid(series, range, stacked);
  const highest = Math.max(...lines.flatMap((line) => line.high.map((value) => value ?? 0)));
  const top = max ?? (highest > 0 ? highest * 1.08 : 1);
  const plot = html('div', 'plot');
  const names = html('div', 'legend');
  const styles = lines.map((line, i) => {
    const name = legend(series[i].template, series[i].metric);
    const style = looks(panel, series[i], line, name, i);
    const entry = html('span', '', name);
    const mark = html('i', '');
    mark.style.background = style.color;
    entry.prepend(mark);
    if (style.listed) names.append(entry);
    return style;
  });
  box.append(plot, names);  // The legend takes its room before the plot is measured.
  const {width, height} = plot.getBoundingClientRect();
  const svg = element('svg', {viewBox: `0 0 ${width} ${height}`});
  const y = (value) => height - BOTTOM - (value - min) / (top - min) * (height - BOTTOM - TOP);
  for (const tick of ticks(min, top, 4, unit)) {
    svg.append(element('line', {class: 'tick', x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick)}));
    svg.append(element('text', {x: LEFT - 6, y: y(tick) + 4, 'text-anchor': 'end'}, format(unit, tick)));
  }
  const x = timeAxis(svg, range, width, height);
  lines.forEach((line, i) => {
    const {color, listed} = styles[i];
    if (stacked && !listed) return;  // Zero on top of others would only change their color.
    if (stacked) {
      svg.append(element('path', {d: area(x, y, range, line.low, line.high), fill: color, 'fill-opacity': 0.3}));
    }
    svg.append(element('path', {d: path(x, y, range, line.high), fill: 'none', stroke: color, 'stroke-width': 1.3}));
  });
  plot.append(svg);
}

export function stat(panel, series, range, box) {
  const all = html('div', 'stats');
  for (const {template, metric, values} of series) {
    const one = html('div', '');
    one.append(html('b', '', format(panel.fieldConfig.defaults.unit, Number(values[values.length - 1][1]))),
               html('span', '', legend(template, metric)));
    all.append(one);
  }
  box.append(all);
}

// A bar for each series, in pieces of equal value, with the words of the panel's mappings.
export function stateTimeline(panel, series, range, box) {
  const words = panel.fieldConfig.defaults.mappings[0].options;
  const lines = onGrid(series, range, false).map((line) => line.high);
  const plot = html('div', 'plot');
  box.append(plot);
  const {width, height} = plot.getBoundingClientRect();
  const svg = element('svg', {viewBox: `0 0 ${width} ${height}`});
  const x = timeAxis(svg, range, width, height, 2 * LEFT);
  const rowHeight = (height - BOTTOM - TOP) / lines.length;
  lines.forEach((line, row) => {
    const top = TOP + row * rowHeight;
    svg.append(element('text', {x: 2 * LEFT - 6, y: top + rowHeight / 2 + 4, 'text-anchor': 'end'},
      legend(series[row].template, series[row].metric)));
    for (let from = 0, to; from < line.length; from = to) {
      for (to = from + 1; to < line.length && line[to] === line[from];) to++;
      if (line[from] === null) continue;
      const {text, color} = words[String(line[from])] ?? {text: String(line[from]), color: 'yellow'};
      const left = x(range.start + from * range.step);
      const right = Math.min(x(range.end), x(range.start + to * range.step));
      svg.append(element('rect', {x: left, y: top + 1, width: Math.max(1, right - left), height: rowHeight - 3,
                                  fill: NAMED[color], 'fill-opacity': 0.6}));
      if (right - left > 40) {
        const label = element('text', {x: (left + right) / 2, y: top + rowHeight / 2 + 4, 'text-anchor': 'middle',
                                       class: 'word'}, text);
        svg.append(label);
      }
    }
  });
  plot.append(svg);
}

// Series are cumulative buckets by `le`; a cell shows what lies between two bounds.
export function heatmap(panel, series, range, box) {
  const bound = (one) => (one.metric.le === '+Inf' ? Infinity : Number(one.metric.le));
  const sorted = series.slice().sort((a, b) => bound(a) - bound(b));
  const lines = onGrid(sorted, range, false).map((line) => line.high);
  const cells = lines.map((line, row) => line.map((value, i) =>
    Math.max(0, (value ?? 0) - (row > 0 ? lines[row - 1][i] ?? 0 : 0))));
  const used = cells.map((row, i) => i).filter((i) => cells[i].some((value) => value > 0));
  if (used.length === 0) return false;
  const first = Math.max(0, used[0] - 1), last = Math.min(cells.length - 1, used[used.length - 1] + 1);
  const highest = Math.max(...cells.flat());
  const plot = html('div', 'plot');
  box.append(plot);
  const {width, height} = plot.getBoundingClientRect();
  const svg = element('svg', {viewBox: `0 0 ${width} ${height}`});
  const x = timeAxis(svg, range, width, height);
  const rowHeight = (height - BOTTOM - TOP) / (last - first + 1);
  for (let row = first; row <= last; row++) {
    const top = height - BOTTOM - (row - first + 1) * rowHeight;
    const le = bound(sorted[row]);
    svg.append(element('text', {x: LEFT - 6, y: top + rowHeight / 2 + 4, 'text-anchor': 'end'},
      le === Infinity ? 'more' : '≤ ' + format(panel.options.yAxis.unit, le)));
    cells[row].forEach((value, i) => {
      if (value <= 0) return;
      const left = x(range.start + i * range.step);
      svg.append(element('rect', {x: left, y: top, width: Math.max(1, x(range.start + (i + 1) * range.step) - left),
        height: Math.max(1, rowHeight - 1), fill: '#5794f2', 'fill-opacity': 0.15 + 0.85 * value / highest}));
    });
  }
  plot.append(svg);
  return true;
}
