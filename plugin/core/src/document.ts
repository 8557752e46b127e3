/** Documents: read from JSON or canonical msgpack within their limit, written back, and named by their digest. */

import { toUtf8 } from "./bytes.js";
import { type Code, NodewireError } from "./errors.js";
import { digest } from "./hash.js";
import { formatJson, parseJson } from "./json.js";
import { pack, unpack } from "./msgpack.js";
import { type Schema, type Typed } from "./schema.js";
import type { Value } from "./value.js";

export interface DocumentType<T> extends Schema<T> {
  readonly what: string;
  /** Raises the document's code, with the field; bad-version; too-large. */
  parse(value: Value): T;
  parseJson(json: string): T;
  unpack(bytes: Uint8Array): T;
  /** Sorted by key, without spaces. */
  json(typed: T): string;
  pack(typed: T): Uint8Array;
  /** Of the document under its type's tag. Raises where a type has none. */
  digest(typed: T): string;
}

export interface DocumentOptions {
  readonly what: string;
  readonly tag?: string;
  readonly code?: Code;
  readonly mostBytes: number;
}

export function document<S extends Schema<any>>(schema: S, options: DocumentOptions): DocumentType<Typed<S>> {
  const { what, tag, code = "bad-input", mostBytes } = options;
  const place = { path: "", code };
  const limited = (bytes: number): void => {
    if (bytes > mostBytes) throw new NodewireError("too-large", what, `has ${bytes} bytes, above ${mostBytes}`);
  };
  const form = <V>(read: () => V): V => {
    try {
      return read();
    } catch (error) {
      if (error instanceof NodewireError && error.code === "bad-input")
        throw new NodewireError(code, what, error.reason);
      throw error;
    }
  };
  return {
    what,
    read: (value, at) => schema.read(value, at),
    write: (typed) => schema.write(typed),
    parse: (value) => schema.read(value, place),
    parseJson(json) {
      limited(json.length);
      limited(form(() => toUtf8(json)).length);
      return schema.read(form(() => parseJson(json, what)), place);
    },
    unpack(bytes) {
      limited(bytes.length);
      return schema.read(form(() => unpack(bytes, what)), place);
    },
    json: (typed) => formatJson(schema.write(typed)),
    pack: (typed) => pack(schema.write(typed)),
    digest(typed) {
      if (tag === undefined) throw new NodewireError("unsupported", what, "has no digest");
      return digest(tag, schema.write(typed));
    },
  };
}
