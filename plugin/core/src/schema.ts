/** Types of fields (nips/01-documents.md): each reads a value into a typed one, names what is wrong, and writes it back. */

import { toUtf8 } from "./bytes.js";
import { type Code, NodewireError } from "./errors.js";
import { isList, isMap, type Value, type ValueMap } from "./value.js";

/** Where a reader is: the field's path, and the code of what is wrong there. */
export interface Place {
  readonly path: string;
  readonly code: Code;
}

export interface Schema<T> {
  read(value: Value, at: Place): T;
  write(typed: T): Value;
}

export type Typed<S> = S extends Schema<infer T> ? T : never;

export function fault(at: Place, reason: string, code: Code = at.code): NodewireError {
  return new NodewireError(code, at.path || "document", reason);
}

export function below(at: Place, name: string | number): Place {
  return { code: at.code, path: at.path ? `${at.path}.${name}` : String(name) };
}

const same = (typed: unknown): Value => typed as Value;

export function integer(least: bigint, most: bigint): Schema<bigint> {
  return {
    read(value, at) {
      if (typeof value !== "bigint") throw fault(at, "is no integer");
      if (value < least || value > most) throw fault(at, `is not from ${least} to ${most}`);
      return value;
    },
    write: same,
  };
}

/** A string of `least` to `most` characters (code points). */
export function text(most: number, least = 0): Schema<string> {
  return {
    read(value, at) {
      if (typeof value !== "string") throw fault(at, "is no string");
      const length = value.length <= most ? value.length : [...value].length;
      if (length > most || (least > 0 && value.length < least))
        throw fault(at, `does not have ${least} to ${most} characters`);
      return value;
    },
    write: same,
  };
}

export function pattern(form: RegExp, what: string): Schema<string> {
  return {
    read(value, at) {
      if (typeof value !== "string" || !form.test(value)) throw fault(at, `is not ${what}`);
      return value;
    },
    write: same,
  };
}

export const hex32 = pattern(/^[0-9a-f]{64}$/, "64 lowercase hex digits");
export const hex64 = pattern(/^[0-9a-f]{128}$/, "128 lowercase hex digits");
export const point = pattern(/^0[23][0-9a-f]{64}$/, "a compressed point in 66 lowercase hex digits");
export const name = pattern(/^[a-z0-9][a-z0-9._-]{0,63}$/, "a name");
export const relayUrl = pattern(/^wss?:\/\/[!-~]{1,248}$/, "a URL of a relay");
export const webUrl = pattern(/^https?:\/\/[!-~]{1,248}$/, "an http(s) URL");
export const label = text(128);
export const count = integer(0n, (1n << 53n) - 1n);
export const msat = integer(0n, 2_100_000_000_000_000_000n);
export const ppm = integer(0n, 1_000_000n);
export const epoch = integer(0n, 1n << 40n);
export const positions = integer(1n, 1n << 40n);

export const bool: Schema<boolean> = {
  read(value, at) {
    if (typeof value !== "boolean") throw fault(at, "is neither true nor false");
    return value;
  },
  write: same,
};

export function oneOf<const T extends string>(...words: readonly T[]): Schema<T> {
  return {
    read(value, at) {
      if (!(words as readonly Value[]).includes(value)) throw fault(at, `is none of ${words.join(", ")}`);
      return value as T;
    },
    write: same,
  };
}

/** Exactly this integer. */
export function constant(number: bigint): Schema<bigint> {
  return {
    read(value, at) {
      if (value !== number) throw fault(at, `is not ${number}`);
      return number;
    },
    write: same,
  };
}

export const version: Schema<bigint> = {
  read(value, at) {
    if (value !== 1n) throw fault(at, "is a version that this software does not speak: it speaks 1", "bad-version");
    return value;
  },
  write: same,
};

export function nullable<T>(schema: Schema<T>): Schema<T | null> {
  return {
    read: (value, at) => (value === null ? null : schema.read(value, at)),
    write: (typed) => (typed === null ? null : schema.write(typed)),
  };
}

export function either<A, B>(first: Schema<A>, second: Schema<B>, isFirst: (typed: A | B) => typed is A): Schema<A | B> {
  return {
    read(value, at) {
      try {
        return first.read(value, at);
      } catch (error) {
        if (!(error instanceof NodewireError)) throw error;
        return second.read(value, at);
      }
    },
    write: (typed) => (isFirst(typed) ? first.write(typed) : second.write(typed)),
  };
}

/** A hex string, or one word in its place. */
export function hex32Or<const W extends string>(word: W): Schema<string> {
  return {
    read: (value, at) => (value === word ? word : hex32.read(value, at)),
    write: same,
  };
}

export function list<T>(item: Schema<T>, most: number, least = 0): Schema<T[]> {
  return {
    read(value, at) {
      if (!isList(value)) throw fault(at, "is no list");
      if (value.length > most) throw fault(at, `has more than ${most} items`, "too-large");
      if (value.length < least) throw fault(at, `has fewer than ${least} items`);
      return value.map((one, n) => item.read(one, below(at, n)));
    },
    write: (typed) => typed.map((one) => item.write(one)),
  };
}

export function pair<A, B>(first: Schema<A>, second: Schema<B>): Schema<[A, B]> {
  return {
    read(value, at) {
      if (!isList(value) || value.length !== 2) throw fault(at, "is no list of 2");
      return [first.read(value[0]!, below(at, 0)), second.read(value[1]!, below(at, 1))];
    },
    write: ([a, b]) => [first.write(a), second.write(b)],
  };
}

export function triple<A, B, C>(a: Schema<A>, b: Schema<B>, c: Schema<C>): Schema<[A, B, C]> {
  return {
    read(value, at) {
      if (!isList(value) || value.length !== 3) throw fault(at, "is no list of 3");
      return [
        a.read(value[0]!, below(at, 0)),
        b.read(value[1]!, below(at, 1)),
        c.read(value[2]!, below(at, 2)),
      ];
    },
    write: (typed) => [a.write(typed[0]), b.write(typed[1]), c.write(typed[2])],
  };
}

export function mapOf<T>(key: Schema<string>, item: Schema<T>, most = Number.MAX_SAFE_INTEGER): Schema<Map<string, T>> {
  return {
    read(value, at) {
      if (!isMap(value)) throw fault(at, "is no map");
      if (value.size > most) throw fault(at, `has more than ${most} entries`, "too-large");
      const typed = new Map<string, T>();
      for (const [name, one] of value) typed.set(key.read(name, at), item.read(one, below(at, name)));
      return typed;
    },
    write: (typed) => new Map([...typed].map(([name, one]) => [name, item.write(one)])),
  };
}

/** A field with the value that it has where it is absent, and whether it is left out at that value. */
export interface Field<T> {
  readonly schema: Schema<T>;
  readonly absent: Value;
  readonly leftOut: boolean;
}

export function withDefault<T>(schema: Schema<T>, absent: Value): Field<T> {
  return { schema, absent, leftOut: false };
}

export function leftOut<T>(schema: Schema<T>, absent: Value): Field<T> {
  return { schema, absent, leftOut: true };
}

type Fields = Record<string, Schema<unknown> | Field<unknown>>;
type FieldType<F> = F extends Field<infer T> ? T : F extends Schema<infer T> ? T : never;
type ObjectOf<F> = { [K in keyof F]: FieldType<F[K]> };

/** A closed map: a field that it does not define is refused. */
export function object<const F extends Record<string, Schema<any> | Field<any>>>(fields: F): Schema<ObjectOf<F>> {
  const known = Object.entries(fields as Fields).map(([name, field]) => ({
    name,
    ...("schema" in field ? field : { schema: field, absent: undefined, leftOut: false }),
  }));
  const names = new Set(known.map((field) => field.name));
  return {
    read(value, at) {
      if (!isMap(value)) throw fault(at, "is no map");
      for (const name of value.keys()) if (!names.has(name)) throw fault(below(at, name), "is no field of version 1");
      const typed = known.map(({ name, schema, absent }) => {
        const given = value.has(name) ? value.get(name) : absent;
        if (given === undefined) throw fault(below(at, name), "is missing", schema === version ? "bad-version" : at.code);
        return [name, schema.read(given, below(at, name))] as const;
      });
      return Object.fromEntries(typed) as ObjectOf<F>;
    },
    write(typed) {
      const written = new Map<string, Value>();
      for (const { name, schema, absent, leftOut } of known) {
        const value = schema.write((typed as Record<string, unknown>)[name]);
        if (!leftOut || !isSame(value, absent)) written.set(name, value);
      }
      return written;
    },
  };
}

function isSame(value: Value, other: Value | undefined): boolean {
  if (other === undefined) return false;
  if (isList(value) && isList(other)) return value.length === 0 && other.length === 0;
  if (isMap(value) && isMap(other)) return value.size === 0 && other.size === 0;
  return value === other;
}

/** The same, and refused where `check` finds a contradiction. */
export function checked<T>(schema: Schema<T>, check: (typed: T, at: Place) => void): Schema<T> {
  return {
    read(value, at) {
      const typed = schema.read(value, at);
      check(typed, at);
      return typed;
    },
    write: (typed) => schema.write(typed),
  };
}

/** Raises if a key stands twice. */
export function refuseTwice(keys: readonly string[], at: Place): void {
  const met = new Set<string>();
  for (const key of keys) {
    if (met.has(key)) throw fault(at, `has ${key} twice`);
    met.add(key);
  }
}

/** Raises unless the keys rise, each once. */
export function refuseUnsorted(keys: readonly string[], at: Place): void {
  for (let n = 1; n < keys.length; n++) {
    if (keys[n - 1]! >= keys[n]!) throw fault(at, "is not sorted, or has an item twice");
  }
}

/** No more than so many bytes of UTF-8. */
export function refuseLarge(text: string, most: number, at: Place): void {
  if (text.length > most || toUtf8(text, at.path).length > most)
    throw fault(at, `has more than ${most} bytes`, "too-large");
}

export const map = (entries: Iterable<readonly [string, Value]>): ValueMap => new Map(entries);
