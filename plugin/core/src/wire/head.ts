/** The 16 bytes that every frame starts with, and what each type of frame may have (nips/21-links.md). */

import { bigEndian, concat, toNumber } from "../bytes.js";
import { NodewireError } from "../errors.js";

export const DATA = 1;
export const MORE = 2;
export const CONTROL = 3;
export const CREDIT = 4;
export const PING = 5;
export const PONG = 6;
export const FILLER = 7;

export const WIRE_VERSION = 1;
export const HEAD_BYTES = 16;
export const SEGMENT_BYTES = 262_144;
export const MOST_HEADER_BYTES = 4096;
export const MOST_DOCUMENT_BYTES = 65_536;
export const MOST_FILLER_BYTES = 131_072;

export interface Head {
  readonly type: number;
  readonly stream: number;
  readonly headerBytes: number;
  readonly payloadBytes: number;
}

/** By type, the most bytes of a header and of a payload. */
const MOST: ReadonlyMap<number, readonly [header: number, payload: number]> = new Map([
  [DATA, [MOST_HEADER_BYTES, SEGMENT_BYTES]],
  [MORE, [0, SEGMENT_BYTES]],
  [CONTROL, [0, MOST_DOCUMENT_BYTES]],
  [CREDIT, [MOST_HEADER_BYTES, 0]],
  [PING, [0, 0]],
  [PONG, [0, 0]],
  [FILLER, [0, MOST_FILLER_BYTES]],
]);

/** Raises bad-version, bad-frame (of an unknown type), too-large. */
export function parseHead(bytes: Uint8Array): Head {
  if (bytes.length !== HEAD_BYTES) throw new NodewireError("bad-frame", "frame", `does not start with ${HEAD_BYTES} bytes`);
  const [version, type] = bytes as unknown as [number, number];
  if (version !== WIRE_VERSION) throw new NodewireError("bad-version", "frame", `is of version ${version}, not ${WIRE_VERSION}`);
  const most = MOST.get(type);
  if (!most) throw new NodewireError("bad-frame", "type", `is ${type}, which is none`);
  return {
    type,
    stream: Number(toNumber(bytes.subarray(2, 4))),
    headerBytes: bounded("header", toNumber(bytes.subarray(4, 8)), most[0]),
    payloadBytes: bounded("payload", toNumber(bytes.subarray(8, 16)), most[1]),
  };
}

/** A whole frame. Raises as `parseHead`. */
export function frame(type: number, stream: number, header: Uint8Array, payload: Uint8Array): Uint8Array {
  if (!Number.isInteger(stream) || stream < 0 || stream > 0xffff)
    throw new NodewireError("bad-input", "stream", "is not from 0 to 65535");
  const head = concat(
    Uint8Array.of(WIRE_VERSION, type),
    bigEndian(BigInt(stream), 2),
    bigEndian(BigInt(header.length), 4),
    bigEndian(BigInt(payload.length), 8),
  );
  parseHead(head);
  return concat(head, header, payload);
}

function bounded(field: string, bytes: bigint, most: number): number {
  if (bytes > BigInt(most)) throw new NodewireError("too-large", field, `has ${bytes} bytes, above ${most}`);
  return Number(bytes);
}
