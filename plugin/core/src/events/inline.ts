/** Ciphertexts that stand in the event that cites them (nips/34-training-rounds.md, Encrypted blobs). */

import { base64 } from "@scure/base";
import type { Blob } from "../documents/manifest.js";
import { NodewireError } from "../errors.js";
import { blobHash } from "../hash.js";
import type { EventTemplate } from "./event.js";
import * as tags from "./tags.js";

export const MOST_INLINE = 45_056;
const MOST_TEXT = 4 * Math.ceil(MOST_INLINE / 3);

export function inlineTags(bytes: Uint8Array | null): string[][] {
  if (bytes && bytes.length > MOST_INLINE)
    throw new NodewireError("too-large", "inline", `has more than ${MOST_INLINE} bytes`);
  return bytes ? [["inline", base64.encode(bytes)]] : [];
}

/** Null if the event has none. Raises bad-tag: not base64; too-large; bad-hash: not the blob that the event cites. */
export function inlineOf(event: EventTemplate, cited: Blob): Uint8Array | null {
  const row = tags.optionalRow(event, "inline");
  if (!row) return null;
  const text = row[1] ?? "";
  if (text.length > MOST_TEXT) throw new NodewireError("too-large", "inline", `has more than ${MOST_INLINE} bytes`);
  let bytes: Uint8Array;
  try {
    bytes = base64.decode(text);
  } catch {
    throw tags.badTag("inline", "is not base64");
  }
  if (BigInt(bytes.length) !== cited.bytes || blobHash(bytes) !== cited.sha256)
    throw new NodewireError("bad-hash", "inline", "is not the blob that the event cites");
  return bytes;
}
