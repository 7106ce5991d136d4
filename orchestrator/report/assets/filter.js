// Filters of the table: words, and conditions such as fid<5 or acceptance.neighbourhood=additive on any column. Their
// grammar is that of the commands, in patterns made by Python (orchestrator/front/query.py).
import { DATA, vanillaOf } from "./data.js";

const RELATIONS = { "≤": "<=", "≥": ">=" };
const ORDER = { "<": (v, w) => v < w, ">": (v, w) => v > w, "<=": (v, w) => v <= w, ">=": (v, w) => v >= w };
const READ = {
  text: (value) => value.toLowerCase(),
  numbers: (value) => (value.trim() ? Number(value) : NaN),
  "true or false": (value) => ({ __proto__: null, true: true, false: false })[value.toLowerCase()],
};
const VALUE_NOUNS = { text: "a text", numbers: "a number", "true or false": "true or false" };

export class FilterError extends Error {}

// A function that reads queries. columns: by key, with `kind`, `part` and value(trial). patterns: `word`, for one part
// of a query, `bound`, for a limit relative to vanilla, and `heading`, for what the table shows in place of a key;
// headings: the keys of these.
// It returns the test of a trial. `or` separates alternatives; of one of them all words and conditions must pass, with
// `and` between them or without it. It throws FilterError for what cannot be read, an unknown key or a value that does
// not suit it.
export function queryReader(columns, patterns, headings) {
  const word = new RegExp(patterns.word, "g"),
    heading = new RegExp(patterns.heading, "g"),
    bound = new RegExp(`^(?:${patterns.bound})$`);
  const read = (found) => {
    const { name: key, relation, value } = found,
      plain = RELATIONS[relation] ?? relation;
    if (found.flag) return condition(columns, found.flag, "=", [found.without ? "false" : "true"]);
    if (found.word) return wordTest(columns, found.word);
    if (found.listed)
      return condition(columns, found.listed, found.not ? "!=" : "=", (found.values ?? "").split(","), "in");
    if (columns.get(key)?.part === "metric" && /vanilla|[-+*]$/.test(value))
      return limit(columns.get(key), plain, value, value.match(bound)?.groups);
    return condition(columns, key, plain, [value ?? ""], relation);
  };
  return (query) => {
    const alternatives = [[]];
    for (const match of query.replace(heading, (text) => headings[text]).matchAll(word)) {
      if (match[0] === "or") alternatives.push([]);
      else if (match[0] !== "and") alternatives.at(-1).push(read(match.groups));
    }
    const given = alternatives.filter((tests) => tests.length);
    return (trial) => !given.length || given.some((tests) => tests.every((test) => test(trial)));
  };
}
// The test of whether a trial's texts have a word that is not part of a condition.
function wordTest(columns, word) {
  const flags = [...columns.values()].filter(({ kind }) => kind === "true or false").map(({ key }) => key);
  if (word === "not") throw new FilterError(`not: write it before ${flags.join(", ")}, or KEY!=VALUE`);
  if (/^[-+*]+$/.test(word))
    throw new FilterError(`${word}: a number or vanilla is missing before or after it; write it like fid<=1.2*vanilla`);
  if (/[=<>≤≥]/.test(word) || (word.endsWith("!") && columns.has(word.slice(0, -1))))
    throw new FilterError(`${word}: write KEY<=VALUE, such as fid<5`);
  return (trial) => texts(trial).includes(word.toLowerCase());
}
const texts = ({ number, title, description, groups, state, cause }) =>
  [`#${number}`, title, description, ...Object.values(groups), state, cause ?? ""].join(" ").toLowerCase();

// A limit relative to the vanilla of each trial's own sweep, such as fid<=1.2*vanilla. found: its parts, if it is one.
function limit({ key, value }, relation, text, found) {
  const { before, after, sign, offset } = found ?? {},
    factor = Number(before ?? after ?? 1),
    shift = Number(offset ?? 0) * (sign === "-" ? -1 : 1);
  if (!found || (before && after) || factor === 0)
    throw new FilterError(`${key}: cannot read ${text}; write it like ${key}<=1.2*vanilla or ${key}<=vanilla+0.5`);
  if (relation !== "<=" && relation !== ">=")
    throw new FilterError(`${key} is compared with vanilla by <= or >=, got ${relation}`);
  const base = (trial) => vanillaOf(trial) && value(vanillaOf(trial));
  if (!DATA.trials.some((trial) => Number.isFinite(base(trial))))
    throw new FilterError(`${key}: vanilla's value was not measured; give a number instead`);
  if (factor !== 1 && !shift && DATA.trials.every((trial) => !base(trial)))
    throw new FilterError(`vanilla's ${key} is 0, and so is every multiple of it; write ${key}${relation}vanilla+X`);
  return (trial) =>
    value(trial) !== null &&
    Number.isFinite(base(trial)) &&
    ORDER[relation](value(trial), factor * base(trial) + shift);
}
// given: values as they are written. sign: what precedes them in the query.
function condition(columns, key, relation, given, sign = relation) {
  const column = columns.get(key);
  if (!column) throw new FilterError(`no column ${key}; the nearest one is ${nearestKey(columns, key)}`);
  const { kind, value } = column,
    values = given.map(unquoted);
  if (ORDER[relation] && kind === "text") throw new FilterError(`${key} holds text, which has no order; use = or !=`);
  if (values.includes(null)) throw new FilterError(`${key}: ${VALUE_NOUNS[kind]} is missing after ${sign}`);
  const wanted = values.map((text) => (text === "null" ? null : READ[kind](text)));
  if (wanted.some((entry) => entry === undefined || Number.isNaN(entry)))
    throw new FilterError(`${key} holds ${kind}, got ${given.join(",")}`);
  const plain = (trial) =>
    kind === "text" && value(trial) !== null ? String(value(trial)).toLowerCase() : value(trial);
  if (ORDER[relation]) return (trial) => plain(trial) !== null && ORDER[relation](plain(trial), wanted[0]);
  return (trial) => wanted.includes(plain(trial)) === (relation !== "!=");
}
// A value without spaces and quotes around it; null if it is missing.
function unquoted(given) {
  const value = given.trim(),
    quote = value.match(/^["']/)?.[0];
  if (!quote) return value || null;
  if (value.length < 2 || !value.endsWith(quote)) throw new FilterError(`${value}: the closing ${quote} is missing`);
  return value.slice(1, -1);
}
// The key that shares the most pairs of letters with a word; first, one that ends with it.
function nearestKey(columns, word) {
  const pairs = (text) => new Set(Array.from(text.slice(1), (letter, i) => text[i] + letter)),
    shared = (key) => [...pairs(word)].filter((pair) => pairs(key).has(pair)).length,
    likeness = (key) => (key.endsWith(`.${word}`) ? 1 : (2 * shared(key)) / (key.length + word.length));
  return [...columns.keys()].reduce((best, key) => (likeness(key) > likeness(best) ? key : best));
}
