/** mxint8, as tensors travel on narrowed edges (nips/12-narrowed-edges.md). */

import { NodewireError } from "../errors.js";
import { tensorBytes } from "./header.js";

const BLOCK = 32;
const BIAS = 133;

/** The numbers of a tensor's bytes, row by row. Raises bad-frame: the bytes are not those of the shape. */
export function readMxint8(bytes: Uint8Array, shape: readonly bigint[]): Float32Array[] {
  if (BigInt(bytes.length) !== tensorBytes({ dtype: "mxint8", shape }))
    throw new NodewireError("bad-frame", "tensors", "have bytes that are not those of their shape");
  const width = Number(shape.at(-1) ?? 1n);
  const scales = Math.ceil(width / BLOCK);
  const rowBytes = scales + width;
  const rows = rowBytes === 0 ? 0 : bytes.length / rowBytes;
  return Array.from({ length: rows }, (_, row) => {
    const at = row * rowBytes;
    const codes = new Int8Array(bytes.slice(at + scales, at + rowBytes).buffer);
    return Float32Array.from(codes, (code, n) => {
      const scale = bytes[at + Math.floor(n / BLOCK)]!;
      return scale === 0 ? 0 : code * 2 ** (scale - BIAS);
    });
  });
}
