/** Bytes, hex and UTF-8. A text that has no UTF-8 is refused: it would get another text's hash. */

import { bytesToHex, concatBytes, hexToBytes } from "@noble/hashes/utils.js";
import { NodewireError } from "./errors.js";

declare const TextDecoder: new (label: string, options: { fatal: boolean; ignoreBOM: boolean }) => {
  decode(bytes: Uint8Array): string;
};
declare const TextEncoder: new () => { encode(text: string): Uint8Array };

const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

export const concat = concatBytes;
export const toHex = bytesToHex;
export const fromHex = hexToBytes;

export function toUtf8(text: string, field = "text"): Uint8Array {
  if (LONE_SURROGATE.test(text)) throw new NodewireError("bad-input", field, "holds half of a surrogate pair");
  return new TextEncoder().encode(text);
}

export function fromUtf8(bytes: Uint8Array, field = "text"): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new NodewireError("bad-input", field, "is not UTF-8");
  }
}

/** The number as `size` bytes, the highest first. */
export function bigEndian(number: bigint, size: number): Uint8Array {
  const bytes = new Uint8Array(size);
  for (let at = size - 1, left = number; at >= 0; at--, left >>= 8n) bytes[at] = Number(left & 0xffn);
  return bytes;
}

export function toNumber(bytes: Uint8Array): bigint {
  return bytes.length === 0 ? 0n : BigInt(`0x${bytesToHex(bytes)}`);
}

export function compareBytes(a: Uint8Array, b: Uint8Array): number {
  for (let at = 0; at < Math.min(a.length, b.length); at++) {
    const difference = a[at]! - b[at]!;
    if (difference !== 0) return difference;
  }
  return a.length - b.length;
}

/** Strings in the order of their UTF-8 bytes, which is that of their code points. */
export function compareUtf8(a: string, b: string): number {
  return compareBytes(toUtf8(a), toUtf8(b));
}
