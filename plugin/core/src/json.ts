/** JSON of documents: integers of any size stay exact. */

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

/** A float keeps a fraction or an exponent, so that it is read as a float again. */
function formatFloat(value: number): string {
  if (!Number.isFinite(value)) throw new NodewireError("bad-input", "content", "JSON holds finite numbers only");
  const text = Object.is(value, -0) ? "-0" : String(value);
  return /[.e]/.test(text) ? text : `${text}.0`;
}

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORDS: readonly (readonly [string, Value])[] = [
  ["null", null],
  ["true", true],
  ["false", false],
];
const MAX_DIGITS = 40;

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
    if (found[1] === undefined && found[2] === undefined) {
      if (found[0].length > MAX_DIGITS) throw this.fault("has an integer of more than 64 bits");
      return BigInt(found[0]);
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
