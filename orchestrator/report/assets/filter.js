// Filters of the table: words, and conditions such as fid<5 or acceptance.neighbourhood=additive on any key or metric.
// A column has text, numbers, or true and false (flag).
const COLUMNS = [
  { key: "number", name: "#", value: (trial) => trial.number },
  ...(several ? [{ key: "sweep", name: "sweep", text: true, value: (trial) => DATA.sweeps[trial.sweep].name }] : []),
  { key: "setting", name: "setting", text: true, value: (trial) => (trial.label || trial.description).toLowerCase() },
  ...["acceptance", "tree", "drafter"].map((key) => ({
    key,
    name: key,
    text: true,
    value: (trial) => trial.groups[key],
  })),
  ...[...new Set([DATA.axes.x, DATA.axes.y, ...DATA.axes.names])].filter(Boolean).map((metric) => ({
    key: metric,
    name: metricTitle(metric),
    metric,
    value: (trial) => (trial.state === "complete" ? (trial.metrics[metric]?.[0] ?? null) : null),
  })),
  ...DATA.keys.map((key, i) => ({
    key,
    name: key,
    config: true,
    text: DATA.trials.some((trial) => typeof trial.flat[i] === "string"),
    flag: DATA.trials.some((trial) => typeof trial.flat[i] === "boolean"),
    value: (trial) => trial.flat[i],
  })),
  { key: "label", name: "label", text: true, value: (trial) => trial.label || null },
  { key: "state", name: "state", text: true, value: (trial) => trial.state },
  ...["lossless", "feasible"].map((key) => ({ key, name: key, flag: true, value: (trial) => trial[key] })),
  { key: "front", name: "front", flag: true, value: (trial) => scene.front.includes(trial) },
  { key: "images", name: "images", value: (trial) => trial.images },
  { key: "seconds", name: "time", value: (trial) => trial.seconds },
];
const columnOf = new Map(COLUMNS.map((column) => [column.key, column]));
const NUMBER = String.raw`[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?`,
  BOUND = String.raw`(?:${NUMBER}\s*\*\s*)?vanilla(?:\s*\*\s*${NUMBER})?(?:\s*[-+]\s*${NUMBER})?`; // as constraints.py
const FLAGS = COLUMNS.filter((column) => column.flag).map(({ key }) => key.replaceAll(".", String.raw`\.`));
const KEY = String.raw`[^\s=!<>≤≥]+`,
  QUOTED = String.raw`"[^"]*"|'[^']*'`,
  NOT_AND = String.raw`(?!and(?!\S))`,
  LIST = String.raw`${NOT_AND}(?:(?:${QUOTED}|[^\s,]+)?\s*,\s*${NOT_AND})*(?:${QUOTED}|[^\s,]+)?`;
// A flag; a key with `in` and its values; a key with a relation and its value; a word. Values may be missing.
const WORD = new RegExp(
  String.raw`(?<!\S)(not\s+)?(${FLAGS.join("|")})(?!\S)(?!\s*[=!<>≤≥])(?!\s+(?:not\s+)?in(?!\S))` +
    String.raw`|(${KEY})\s+(not\s+)?in(?!\S)(?:\s+(${LIST}))?` +
    String.raw`|(${KEY})\s*(<=|>=|==|!=|=|<|>|≤|≥)(?![=<>≤≥])` +
    String.raw`(?:\s*(${QUOTED}|${BOUND}(?!\S)|${NOT_AND}[^\s=<>≤≥]\S*))?|(\S+)`,
  "g",
);
const READ = {
  text: (value) => value.toLowerCase(),
  numbers: (value) => (value.trim() ? Number(value) : NaN),
  "true or false": (value) => ({ __proto__: null, true: true, false: false })[value.toLowerCase()],
};
const VALUE_NOUNS = { text: "a text", numbers: "a number", "true or false": "true or false" };
const ORDER = { "<": (v, w) => v < w, ">": (v, w) => v > w, "<=": (v, w) => v <= w, ">=": (v, w) => v >= w };

class FilterError extends Error {}
// Tests, one for each word and condition of a query; all must pass, with `and` between them or without it. Throws
// FilterError for what cannot be read, an unknown key or a value that does not suit it.
function readQuery(query) {
  return [...query.matchAll(WORD)]
    .filter(([text]) => text !== "and")
    .map(([text, without, flag, listed, not, values, key, relation, value, word]) => {
      if (flag) return condition(flag, "=", [without ? "false" : "true"]);
      if (word) return wordTest(word);
      if (listed) return condition(listed, not ? "!=" : "=", (values ?? "").split(","), "in");
      const plain = { "≤": "<=", "≥": ">=" }[relation] ?? relation;
      if (columnOf.get(key)?.metric && /vanilla|[-+*]$/.test(value)) return limit(key, plain, value);
      return condition(key, plain, [value ?? ""], relation);
    });
}
// The test of whether a trial's texts have a word that is not part of a condition.
function wordTest(word) {
  if (word === "not") throw new FilterError(`not: write it before ${FLAGS.join(", ")}, or KEY!=VALUE`);
  if (/^[-+*]+$/.test(word))
    throw new FilterError(`${word}: a number or vanilla is missing before or after it; write it like fid<=1.2*vanilla`);
  if (/[=<>≤≥]/.test(word) || (word.endsWith("!") && columnOf.has(word.slice(0, -1))))
    throw new FilterError(`${word}: write KEY<=VALUE, such as fid<5`);
  return (trial) => haystack(trial).includes(word.toLowerCase());
}
// A value without spaces and quotes around it; null if it is missing.
function unquoted(given) {
  const value = given.trim(),
    quote = value.match(/^["']/)?.[0];
  if (!quote) return value || null;
  if (value.length < 2 || !value.endsWith(quote)) throw new FilterError(`${value}: the closing ${quote} is missing`);
  return value.slice(1, -1);
}
// A limit relative to the vanilla of each trial's own sweep, such as fid<=1.2*vanilla (search_spaces/constraints.py).
function limit(key, relation, text) {
  const found = text.match(
    new RegExp(
      String.raw`^(?:(${NUMBER})\s*\*\s*)?vanilla(?:\s*\*\s*(${NUMBER}))?(?:\s*([-+])\s*(${NUMBER}))?$`,
    ),
  );
  const [, before, after, way, size] = found ?? [],
    factor = Number(before ?? after ?? 1),
    offset = Number(size ?? 0) * (way === "-" ? -1 : 1);
  if (!found || (before && after) || factor === 0)
    throw new FilterError(`${key}: cannot read ${text}; write it like ${key}<=1.2*vanilla or ${key}<=vanilla+0.5`);
  if (relation !== "<=" && relation !== ">=")
    throw new FilterError(`${key} is compared with vanilla by <= or >=, got ${relation}`);
  const { value } = columnOf.get(key),
    base = (trial) => vanillaOf(trial) && value(vanillaOf(trial));
  if (!DATA.trials.some((trial) => Number.isFinite(base(trial))))
    throw new FilterError(`${key}: vanilla's value was not measured; give a number instead`);
  if (factor !== 1 && !offset && DATA.trials.every((trial) => !base(trial)))
    throw new FilterError(`vanilla's ${key} is 0, and so is every multiple of it; write ${key}${relation}vanilla+X`);
  return (trial) =>
    value(trial) !== null &&
    Number.isFinite(base(trial)) &&
    ORDER[relation](value(trial), factor * base(trial) + offset);
}
// given: values as they are written. sign: what precedes them in the query.
function condition(key, relation, given, sign = relation) {
  const column = columnOf.get(key);
  if (!column) throw new FilterError(`${key}: unknown key; the nearest one is ${nearestKey(key)}`);
  if (ORDER[relation] && column.text) throw new FilterError(`${key} holds text, which has no order; use = or !=`);
  const kind = column.text ? "text" : column.flag ? "true or false" : "numbers",
    values = given.map(unquoted);
  if (values.includes(null)) throw new FilterError(`${key}: ${VALUE_NOUNS[kind]} is missing after ${sign}`);
  const wanted = values.map((value) => (value === "null" ? null : READ[kind](value)));
  if (wanted.some((value) => value === undefined || Number.isNaN(value)))
    throw new FilterError(`${key} holds ${kind}, got ${given.join(",")}`);
  const plain = (trial) => {
    const value = column.value(trial);
    return column.text && value !== null ? String(value).toLowerCase() : value;
  };
  if (ORDER[relation]) return (trial) => plain(trial) !== null && ORDER[relation](plain(trial), wanted[0]);
  return (trial) => wanted.includes(plain(trial)) === (relation !== "!=");
}
const haystack = (trial) =>
  [`#${trial.number}`, title(trial), trial.description, ...Object.values(trial.groups), trial.state, trial.cause ?? ""]
    .join(" ")
    .toLowerCase();

function nearestKey(key) {
  const away = (other) => (other.endsWith(`.${key}`) ? 0.5 : distance(key, other));
  return [...columnOf.keys()].reduce((best, other) => (away(other) < away(best) ? other : best));
}
// The number of single-character edits between two words.
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1)
      next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1])));
    row = next;
  }
  return row[b.length];
}
