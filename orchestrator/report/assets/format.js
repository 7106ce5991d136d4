// Numbers and words as texts.
export const capitalised = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
export const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1).trimEnd()}…` : text);
export const plural = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
// A share of draws, of which not even all make certain.
export const percent = (share) => `${share > 0.99 ? ">99" : share < 0.01 ? "<1" : Math.round(100 * share)} %`;
// By their options: making a format costs far more than using it.
const formats = new Map();
function formatOf(digits) {
  const key = JSON.stringify(digits);
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en", digits));
  return formats.get(key);
}
export const significant = (value, digits) => formatOf({ maximumSignificantDigits: digits }).format(value);
export const formatTick = (value) => significant(Number(value.toPrecision(3)), 3);
// The decimals that show a size with so many digits.
export const decimals = (size, digits) =>
  size > 0 ? Math.max(0, Math.min(8, digits - 1 - Math.floor(Math.log10(size) + 1e-9))) : 0;

export function formatNumber(value, places) {
  if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-6))
    return value.toExponential(2).replace("-", "−");
  const digits = { minimumFractionDigits: places, maximumFractionDigits: places };
  return formatOf(digits).format(value).replace("-", "−");
}
// A value to the second digit of its error, or with four digits if it has no error; and the error (null: none).
export function parts([value, error]) {
  const places = error > 0 ? decimals(error, 2) : Number.isInteger(value) ? 0 : decimals(Math.abs(value), 4);
  return [formatNumber(value, places), error > 0 ? formatNumber(error, places) : null];
}
export function formatMeasured(measured) {
  if (!measured) return "–";
  const [value, error] = parts(measured);
  return error === null ? value : `${value} ± ${error}`;
}
export function duration(seconds) {
  if (seconds < 90) return `${formatNumber(seconds, seconds < 10 ? 1 : 0)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${formatNumber(seconds / 3600, 1)} h`;
}
