/** Reals of recipes (nips/30-training-recipes.md): a float64 as the shortest decimal that reads back as it. */

import { fault, type Schema } from "../schema.js";

const MOST_CHARACTERS = 32;
const MOST_SIZE = 1e12;

/** From 10^-4 to below 10^16 in size with a fraction, else with an exponent of two digits at least. */
export function formatReal(value: number): string {
  if (Object.is(value, -0)) return "-0.0";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-4 && size < 1e16)) {
    const text = String(value);
    return text.includes(".") ? text : `${text}.0`;
  }
  const [digits, exponent] = value.toExponential().split("e") as [string, string];
  return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** A real from `least` to `most`, without `least` itself where it is open below. */
export function real(least: number, most: number, end: "closed" | "open" = "closed"): Schema<string> {
  return {
    read(text, at) {
      if (typeof text !== "string" || text.length > MOST_CHARACTERS) throw fault(at, "is no real");
      const value = Number(text);
      if (!Number.isFinite(value) || Math.abs(value) > MOST_SIZE || formatReal(value) !== text)
        throw fault(at, "is not the shortest decimal of a float64 up to 10^12");
      if (value < least || value > most || (end === "open" && value === least))
        throw fault(at, `is not ${end === "open" ? "above" : "from"} ${least} to ${most}`);
      return text;
    },
    write: (typed) => typed,
  };
}
