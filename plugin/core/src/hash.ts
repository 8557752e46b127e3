/** Hashes (nips/01-documents.md): tagged hashes, digests of documents, and blobs' plain SHA-256. */

import { sha256 as sha } from "@noble/hashes/sha2.js";
import { concat, toHex, toUtf8 } from "./bytes.js";
import { pack } from "./msgpack.js";
import type { Value } from "./value.js";

export const sha256 = (bytes: Uint8Array): Uint8Array => sha(bytes);

/** H(tag, bytes). */
export function taggedHash(tag: string, ...bytes: Uint8Array[]): Uint8Array {
  const tagged = sha(toUtf8(tag));
  return sha(concat(tagged, tagged, ...bytes));
}

/** The tagged hash of the value's canonical bytes, as 64 lowercase hex digits. */
export function digest(tag: string, value: Value): string {
  return toHex(taggedHash(tag, pack(value)));
}

/** The plain SHA-256 by which a blob is cited. */
export function blobHash(bytes: Uint8Array): string {
  return toHex(sha(bytes));
}
