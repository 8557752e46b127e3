/** The committed vectors, with every integer exact. */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseJson } from "../src/json.js";
import { isMap, type Value, type ValueMap } from "../src/value.js";

const ROOT = new URL("../../../../", import.meta.url);

export function read(path: string): Value {
  return parseJson(readFileSync(fileURLToPath(new URL(path, ROOT)), "utf-8"), path);
}

export function vectors(file: string): Value {
  return read(`tests/vectors/${file}`);
}

export function at(value: Value, ...path: string[]): Value {
  let found = value;
  for (const name of path) {
    const inner = isMap(found) ? found.get(name) : Array.isArray(found) ? (found as Value[])[Number(name)] : undefined;
    if (inner === undefined) throw new Error(`no ${name} of ${path.join("/")}`);
    found = inner;
  }
  return found;
}

export const list = (value: Value): readonly ValueMap[] => value as readonly ValueMap[];
export const text = (value: Value | undefined): string => value as string;
