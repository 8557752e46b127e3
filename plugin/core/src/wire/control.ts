/** Control documents (nips/22-flow-and-control.md): what nodes of a job tell each other beside tensors. */

import { NodewireError } from "../errors.js";
import { pack, unpack } from "../msgpack.js";
import { isList, isMap, type Value, type ValueMap } from "../value.js";
import { MOST_DOCUMENT_BYTES } from "./head.js";

const MOST_VALUES = 2048;

/** Its type, and all of the document; of a type that a reader does not know it is passed over. */
export interface Control {
  readonly t: string;
  readonly document: ValueMap;
}

const refused = (reason: string): NodewireError => new NodewireError("bad-frame", "document", reason);

/** Raises bad-frame: not canonical, or no map with a string `t`; too-large. */
export function parseControl(bytes: Uint8Array): Control {
  if (bytes.length > MOST_DOCUMENT_BYTES) throw new NodewireError("too-large", "document", `has ${bytes.length} bytes`);
  return controlOf(read(bytes));
}

/** Raises as `parseControl`. */
export function packControl(document: ValueMap): Uint8Array {
  controlOf(document);
  const bytes = pack(document);
  if (bytes.length > MOST_DOCUMENT_BYTES) throw new NodewireError("too-large", "document", `has ${bytes.length} bytes`);
  return bytes;
}

function read(bytes: Uint8Array): Value {
  try {
    return unpack(bytes, "document");
  } catch (error) {
    if (error instanceof NodewireError && error.code === "bad-input") throw refused(error.reason);
    throw error;
  }
}

function controlOf(value: Value): Control {
  const t = isMap(value) ? value.get("t") : undefined;
  if (!isMap(value) || typeof t !== "string") throw refused("is no map with a string `t`");
  if (values(value) > MOST_VALUES) throw new NodewireError("too-large", "document", `has more than ${MOST_VALUES} values`);
  return { t, document: value };
}

/** Each list and map is one, and each item of a list and each entry of a map one more. */
function values(value: Value): number {
  const inner = isList(value) ? value : isMap(value) ? [...value.values()] : undefined;
  return inner ? inner.reduce<number>((all, one) => all + values(one), 1 + inner.length) : 0;
}
