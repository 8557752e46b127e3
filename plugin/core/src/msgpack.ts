/** Canonical msgpack (nips/01-documents.md): one encoding of a value, and a reader that refuses every other. */

import { bigEndian, compareBytes, concat, fromUtf8, toNumber, toUtf8 } from "./bytes.js";
import { NodewireError } from "./errors.js";
import { isList, isMap, MAX_DEPTH, type Value } from "./value.js";

const LEAST = -(1n << 63n);
const MOST = (1n << 64n) - 1n;

/** The value's bytes. Raises bad-input: a float, an integer of more than 64 bits, or more than 32 deep. */
export function pack(value: Value): Uint8Array {
  const parts: Uint8Array[] = [];
  write(value, parts, 0);
  return concat(...parts);
}

/**
 * The value of canonical bytes. Raises bad-input for every other. In `any` form keys stand in any order, and lengths and
 * integers may be longer than they need; of a key that stands twice the last counts.
 */
export function unpack(bytes: Uint8Array, field = "blob", form: "canonical" | "any" = "canonical"): Value {
  const reader = new Reader(bytes, field, form === "canonical");
  const value = reader.value(0);
  reader.end();
  return value;
}

function write(value: Value, parts: Uint8Array[], depth: number): void {
  if (depth > MAX_DEPTH) throw new NodewireError("too-large", "document", `is nested more than ${MAX_DEPTH} deep`);
  if (value === null) parts.push(Uint8Array.of(0xc0));
  else if (typeof value === "boolean") parts.push(Uint8Array.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "bigint") parts.push(integer(value));
  else if (typeof value === "string") {
    const text = toUtf8(value, "document");
    const short = text.length < 32 ? Uint8Array.of(0xa0 | text.length) : undefined;
    parts.push(short ?? sized(text.length, [0xd9, 0xda, 0xdb]), text);
  } else if (value instanceof Uint8Array) parts.push(sized(value.length, [0xc4, 0xc5, 0xc6]), value);
  else if (isList(value)) {
    parts.push(value.length < 16 ? Uint8Array.of(0x90 | value.length) : sized(value.length, [null, 0xdc, 0xdd]));
    for (const one of value) write(one, parts, depth + 1);
  } else if (isMap(value)) {
    parts.push(value.size < 16 ? Uint8Array.of(0x80 | value.size) : sized(value.size, [null, 0xde, 0xdf]));
    const keys = [...value.keys()].map((key) => [toUtf8(key, "document"), key] as const);
    keys.sort(([a], [b]) => compareBytes(a, b));
    for (const [, key] of keys) {
      write(key, parts, depth + 1);
      write(value.get(key)!, parts, depth + 1);
    }
  } else throw new NodewireError("bad-input", "document", "holds a float, which has no canonical bytes");
}

function integer(value: bigint): Uint8Array {
  if (value < LEAST || value > MOST) throw new NodewireError("bad-input", "document", "holds more than 64 bits");
  if (value >= 0n) {
    if (value < 0x80n) return Uint8Array.of(Number(value));
    if (value <= 0xffn) return headed(0xcc, value, 1);
    if (value <= 0xffffn) return headed(0xcd, value, 2);
    if (value <= 0xffffffffn) return headed(0xce, value, 4);
    return headed(0xcf, value, 8);
  }
  if (value >= -32n) return Uint8Array.of(Number(value + 256n));
  if (value >= -0x80n) return headed(0xd0, value, 1);
  if (value >= -0x8000n) return headed(0xd1, value, 2);
  if (value >= -0x80000000n) return headed(0xd2, value, 4);
  return headed(0xd3, value, 8);
}

function headed(head: number, value: bigint, size: number): Uint8Array {
  return concat(Uint8Array.of(head), bigEndian(BigInt.asUintN(8 * size, value), size));
}

/** The head of a string, bytes or a container, in the first of three widths (1, 2, 4 bytes) that fits. */
function sized(length: number, heads: readonly [number | null, number, number]): Uint8Array {
  if (heads[0] !== null && length <= 0xff) return headed(heads[0], BigInt(length), 1);
  if (length <= 0xffff) return headed(heads[1], BigInt(length), 2);
  return headed(heads[2], BigInt(length), 4);
}

class Reader {
  private at = 0;

  constructor(
    private readonly bytes: Uint8Array,
    private readonly field: string,
    private readonly isCanonical: boolean,
  ) {}

  value(depth: number): Value {
    if (depth > MAX_DEPTH) throw this.fault(`is nested more than ${MAX_DEPTH} deep`);
    const head = this.number(1);
    if (head < 0x80) return BigInt(head);
    if (head < 0x90) return this.map(head & 0x0f, depth);
    if (head < 0xa0) return this.list(head & 0x0f, depth);
    if (head < 0xc0) return this.text(head & 0x1f);
    if (head >= 0xe0) return BigInt(head - 256);
    switch (head) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
        return this.take(this.length(1, 0));
      case 0xc5:
        return this.take(this.length(2, 0x100));
      case 0xc6:
        return this.take(this.length(4, 0x10000));
      case 0xcc:
        return this.unsigned(1, 0x80n);
      case 0xcd:
        return this.unsigned(2, 0x100n);
      case 0xce:
        return this.unsigned(4, 0x10000n);
      case 0xcf:
        return this.unsigned(8, 0x100000000n);
      case 0xd0:
        return this.negative(1, -32n);
      case 0xd1:
        return this.negative(2, -0x80n);
      case 0xd2:
        return this.negative(4, -0x8000n);
      case 0xd3:
        return this.negative(8, -0x80000000n);
      case 0xd9:
        return this.text(this.length(1, 32));
      case 0xda:
        return this.text(this.length(2, 0x100));
      case 0xdb:
        return this.text(this.length(4, 0x10000));
      case 0xdc:
        return this.list(this.length(2, 16), depth);
      case 0xdd:
        return this.list(this.length(4, 0x10000), depth);
      case 0xde:
        return this.map(this.length(2, 16), depth);
      case 0xdf:
        return this.map(this.length(4, 0x10000), depth);
    }
    throw this.fault(`has the type 0x${head.toString(16)}, which no document has`);
  }

  end(): void {
    if (this.at !== this.bytes.length) throw this.fault("has more behind its document");
  }

  private map(count: number, depth: number): Value {
    this.fits(2 * count);
    const map = new Map<string, Value>();
    let before: Uint8Array | undefined;
    for (let n = 0; n < count; n++) {
      const start = this.at;
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw this.fault("has a key that is no string");
      const bytes = toUtf8(key, this.field);
      if (this.isCanonical && before && compareBytes(before, bytes) >= 0) {
        this.at = start;
        throw this.fault("has keys out of order");
      }
      before = bytes;
      map.set(key, this.value(depth + 1));
    }
    return map;
  }

  private list(count: number, depth: number): Value {
    this.fits(count);
    const list: Value[] = [];
    for (let n = 0; n < count; n++) list.push(this.value(depth + 1));
    return list;
  }

  private text(length: number): string {
    return fromUtf8(this.take(length), this.field);
  }

  private unsigned(size: number, least: bigint): bigint {
    const value = toNumber(this.take(size));
    if (this.isCanonical && value < least) throw this.fault("has an integer that is not in its shortest form");
    return value;
  }

  private negative(size: number, below: bigint): bigint {
    const value = BigInt.asIntN(8 * size, toNumber(this.take(size)));
    if (this.isCanonical && value >= below) throw this.fault("has an integer that is not in its shortest form");
    return value;
  }

  private length(size: number, least: number): number {
    const length = this.number(size);
    if (this.isCanonical && length < least) throw this.fault("has a length that is not in its shortest form");
    return length;
  }

  private number(size: number): number {
    return Number(toNumber(this.take(size)));
  }

  private take(length: number): Uint8Array {
    this.fits(length);
    this.at += length;
    return this.bytes.slice(this.at - length, this.at);
  }

  /** A length is believed only as far as there are bytes for it. */
  private fits(least: number): void {
    if (least > this.bytes.length - this.at) throw this.fault("ends too early");
  }

  private fault(reason: string): NodewireError {
    return new NodewireError("bad-input", this.field, `${reason} (at byte ${this.at})`);
  }
}
