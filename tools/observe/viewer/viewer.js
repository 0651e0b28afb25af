// Draws the dashboard that the address names: ?dashboard=NAME&minutes=N, and once=1 for a picture.
import {heatmap, stat, stateTimeline, timeseries} from './panels.js';

const UNIT_PX = 32;
const MIN_RATE_SECONDS = 15;
const KINDS = {timeseries, stat, heatmap, 'state-timeline': stateTimeline};
const address = new URLSearchParams(location.search);
const byId = (id) => document.getElementById(id);

async function ask(path, parameters) {
  const reply = await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const answer = await reply.json();
  if (answer.status !== 'success') throw new Error(answer.error);
  return answer.data;
}

async function scrapeSeconds() {
  const {yaml} = await ask('status/config', {});
  const match = /scrape_interval: (\d+)(m?s)/.exec(yaml);
  return match ? Number(match[1]) * (match[2] === 'ms' ? 1e-3 : 1) : 15;
}

// $__rate_interval as Grafana has it, and the variables' values; All is a match of anything.
function substitute(expression, range, values) {
  let text = expression.replaceAll('$__rate_interval', `${range.rate}s`);
  for (const [name, value] of Object.entries(values)) text = text.replaceAll(`$${name}`, value);
  return text;
}

async function seriesOf(panel, range, values) {
  const results = await Promise.all(panel.targets.map(async (target) => {
    const query = substitute(target.expr, range, values);
    const times = target.instant ? {time: range.end} : {start: range.start, end: range.end, step: range.step};
    const data = await ask(target.instant ? 'query' : 'query_range', {query, ...times});
    return data.result.map((one) => ({values: [one.value], ...one, template: target.legendFormat}));
  }));
  return results.flat();
}

function place(panel) {
  const section = document.createElement('section');
  const {x, y, w, h} = panel.gridPos;
  Object.assign(section.style, {left: `${x / 24 * 100}%`, width: `${w / 24 * 100}%`, top: `${y * UNIT_PX}px`,
                                height: `${h * UNIT_PX}px`});
  section.className = panel.type;
  section.dataset.title = panel.title;
  const box = document.createElement('div');
  const title = document.createElement('h2');
  title.textContent = panel.title + ' ';
  if (panel.description) {
    const help = document.createElement('span');
    help.className = 'help';
    help.textContent = 'i';
    help.title = panel.description;
    title.append(help);
  }
  box.append(title);
  section.append(box);
  return {section, box};
}

function say(section, box, state, text) {
  section.dataset.state = state;
  const message = document.createElement('div');
  message.className = `message ${state}`;
  message.textContent = text;
  box.append(message);
}

async function draw(panel, range, values) {
  const {section, box} = place(panel);
  byId('grid').append(section);
  if (panel.type === 'row') return section;
  try {
    if (!(panel.type in KINDS)) throw new Error(`panels of type "${panel.type}" are unknown to the viewer`);
    const series = await seriesOf(panel, range, values);
    if (series.length > 0 && KINDS[panel.type](panel, series, range, box) !== false) {
      section.dataset.state = 'drawn';
    } else {
      say(section, box, 'empty', 'No data');
    }
  } catch (error) {
    say(section, box, 'error', String(error));
  }
  return section;
}

async function choices(dashboard) {
  const values = {};
  for (const variable of dashboard.templating.list) {
    if (variable.type !== 'query') continue;
    const [, metric, label] = /label_values\((\w+), (\w+)\)/.exec(variable.definition);
    const found = await ask(`label/${label}/values`, {'match[]': metric});
    const select = document.createElement('select');
    select.append(new Option('All', '.*'), ...found.map((value) => new Option(value, value)));
    const wanted = address.get(`var-${variable.name}`);
    if (wanted && found.includes(wanted)) select.value = wanted;
    select.onchange = () => go({[`var-${variable.name}`]: select.value});
    const label_element = document.createElement('label');
    label_element.append(`${variable.label} `, select);
    byId('variables').append(label_element);
    values[variable.name] = select.value;
  }
  return values;
}

function go(changes) {
  for (const [key, value] of Object.entries(changes)) address.set(key, value);
  location.search = address.toString();
}

async function links(current) {
  for (const name of await (await fetch('dashboards/index.json')).json()) {
    const link = document.createElement('a');
    const there = new URLSearchParams(address);
    there.set('dashboard', name);
    link.href = `?${there}`;
    link.textContent = name.replace(/^baton-/, '');
    link.className = name === current ? 'current' : '';
    byId('dashboards').append(link);
  }
}

async function main() {
  const name = address.get('dashboard') ?? 'baton-overview';
  const minutes = byId('minutes');
  minutes.value = address.get('minutes') ?? '5';
  minutes.onchange = () => go({minutes: minutes.value});
  await links(name);
  const dashboard = await (await fetch(`dashboards/${encodeURIComponent(name)}.json`)).json();
  document.title = dashboard.title;
  byId('title').textContent = dashboard.title;
  const values = await choices(dashboard);
  const scrape = await scrapeSeconds();
  const step = Math.max(1, scrape, Math.ceil(Number(minutes.value) * 60 / 200));
  const bottom = Math.max(...dashboard.panels.map(({gridPos}) => gridPos.y + gridPos.h));
  byId('grid').style.height = `${bottom * UNIT_PX}px`;
  const refresh = async () => {
    const end = Math.floor(Date.now() / 1000 / step) * step;
    const range = {start: end - Number(minutes.value) * 60, end, step,
                   rate: Math.max(4 * scrape, step + scrape, MIN_RATE_SECONDS)};
    const old = [...byId('grid').children];
    await Promise.all(dashboard.panels.map((panel) => draw(panel, range, values)));
    old.forEach((section) => section.remove());
  };
  await refresh();
  document.body.dataset.state = 'done';
  if (!address.has('once')) setInterval(refresh, 5000);
}

main().catch((error) => {
  byId('title').textContent = String(error);
  document.body.dataset.state = 'error';
});
