/** JSON of documents: integers of 64 bits stay exact; a number with a fraction, an exponent or more bits is a float. */

import { compareUtf8, toUtf8 } from "./bytes.js";
import { NodewireError } from "./errors.js";
import { isList, isMap, MAX_DEPTH, type Value } from "./value.js";

/** A JSON text as a value; of a name that stands twice in a map the last counts. Raises bad-input: not JSON, too deep. */
export function parseJson(text: string, field = "content"): Value {
  const reader = new Reader(text, field);
  const value = reader.value(0);
  reader.end();
  return value;
}

/** JSON without spaces. Maps keep their order, or have their keys sorted by UTF-8 bytes. */
export function formatJson(value: Value, order: "sorted" | "kept" = "sorted"): string {
  if (value === null || typeof value === "boolean" || typeof value === "bigint") return String(value);
  if (typeof value === "number") return formatFloat(value);
  if (typeof value === "string") {
    toUtf8(value);
    return JSON.stringify(value);
  }
  if (isList(value)) return `[${value.map((one) => formatJson(one, order)).join(",")}]`;
  if (isMap(value)) {
    const names = [...value.keys()];
    if (order === "sorted") names.sort(compareUtf8);
    return `{${names.map((name) => `${formatJson(name)}:${formatJson(value.get(name)!, order)}`).join(",")}}`;
  }
  throw new NodewireError("bad-input", "content", "JSON holds no bytes");
}

/** The shortest digits that are read as the same float: with a fraction from 10^-5 to 10^16, else with an exponent. */
function formatFloat(value: number): string {
  if (!Number.isFinite(value)) throw new NodewireError("bad-input", "content", "JSON holds finite numbers only");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-5 || size >= 1e16)) return value.toExponential();
  const text = Object.is(value, -0) ? "-0" : String(value);
  return text.includes(".") ? text : `${text}.0`;
}

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORDS: readonly (readonly [string, Value])[] = [
  ["null", null],
  ["true", true],
  ["false", false],
];
const MAX_DIGITS = 20;
const LEAST = -(1n << 63n);
const MOST = (1n << 64n) - 1n;

class Reader {
  private at = 0;

  constructor(
    private readonly text: string,
    private readonly field: string,
  ) {}

  value(depth: number): Value {
    if (depth > MAX_DEPTH) throw this.fault(`is nested more than ${MAX_DEPTH} deep`);
    this.take(SPACE);
    switch (this.text[this.at]) {
      case "{":
        return this.map(depth);
      case "[":
        return this.list(depth);
      case '"':
        return this.string();
    }
    for (const [word, value] of WORDS) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return value;
      }
    }
    return this.number();
  }

  end(): void {
    this.take(SPACE);
    if (this.at !== this.text.length) throw this.fault("has more behind its JSON");
  }

  private map(depth: number): Value {
    const map = new Map<string, Value>();
    this.items("{", "}", () => {
      this.take(SPACE);
      const name = this.string();
      this.take(SPACE);
      this.expect(":");
      map.set(name, this.value(depth + 1));
    });
    return map;
  }

  private list(depth: number): Value {
    const list: Value[] = [];
    this.items("[", "]", () => list.push(this.value(depth + 1)));
    return list;
  }

  private items(open: string, close: string, item: () => void): void {
    this.expect(open);
    this.take(SPACE);
    if (this.text[this.at] === close) {
      this.at++;
      return;
    }
    for (;;) {
      item();
      this.take(SPACE);
      if (this.text[this.at] !== ",") break;
      this.at++;
    }
    this.expect(close);
  }

  private string(): string {
    const text = this.take(STRING);
    if (!text) throw this.fault("is not JSON");
    const value = JSON.parse(text[0]) as string;
    toUtf8(value, this.field);
    return value;
  }

  private number(): Value {
    const found = this.take(NUMBER);
    if (!found) throw this.fault("is not JSON");
    if (found[1] === undefined && found[2] === undefined && found[0].length <= MAX_DIGITS) {
      const integer = BigInt(found[0]);
      if (integer >= LEAST && integer <= MOST) return integer;
    }
    const value = Number(found[0]);
    if (!Number.isFinite(value)) throw this.fault("has a number that is not finite");
    return value;
  }

  private expect(sign: string): void {
    if (this.text[this.at] !== sign) throw this.fault("is not JSON");
    this.at++;
  }

  private take(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  private fault(reason: string): NodewireError {
    return new NodewireError("bad-input", this.field, `${reason} (at character ${this.at})`);
  }
}
