// Values as Grafana writes them, for the units that our dashboards use; any other is an error.

function trim(value, digits = 3) {
  if (value === 0) return '0';
  const magnitude = Math.floor(Math.log10(Math.abs(value)));
  return String(Number(value.toFixed(Math.max(0, Math.min(6, digits - 1 - magnitude)))));
}

function scaled(value, steps) {
  for (const [limit, suffix] of steps) {
    if (Math.abs(value) >= limit) return trim(value / limit) + suffix;
  }
  const [limit, suffix] = steps[steps.length - 1];
  return value === 0 ? '0' + suffix : trim(value / limit) + suffix;
}

const SECONDS = [[86400, ' day'], [3600, ' hour'], [60, ' min'], [1, ' s'], [1e-3, ' ms'], [1e-6, ' µs']];
const COUNT = [[1e9, ' Bil'], [1e6, ' Mil'], [1e3, ' K'], [1, '']];
const bytes = (suffix) => [[1e9, ` GB${suffix}`], [1e6, ` MB${suffix}`], [1e3, ` kB${suffix}`], [1, ` B${suffix}`]];

const FORMATS = {
  short: (value) => scaled(value, COUNT),
  s: (value) => (value === 0 ? '0 s' : scaled(value, SECONDS)),
  percentunit: (value) => trim(value * 100) + '%',
  reqps: (value) => scaled(value, COUNT) + ' req/s',
  ops: (value) => scaled(value, COUNT) + ' ops/s',
  bytes: (value) => scaled(value, bytes('')),
  Bps: (value) => scaled(value, bytes('/s')),
};

export function format(unit, value) {
  if (!(unit in FORMATS)) throw new Error(`unit "${unit}" is unknown to the viewer`);
  return FORMATS[unit](value);
}

// The legend of a series by Grafana's template: "{{role}} p99".
export function legend(template, labels) {
  if (!template) return JSON.stringify(labels);
  return template.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '').trim();
}

// Round steps from 0 or `low` to `high`, about `count` of them; seconds step by 60 and not by 100.
export function ticks(low, high, count, unit) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  if (unit === 's' && rough > 10) step = [15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 86400].find((s) => s >= rough) ?? step;
  if (unit === 'short' && high > 1) step = Math.max(1, step);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high * 1.0001; value += step) found.push(value);
  return found;
}
