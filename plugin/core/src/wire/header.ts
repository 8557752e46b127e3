/** Headers of DATA and CREDIT (nips/21-links.md): what a frame of tensors is, and how much may come. */

import { fromHex, toHex } from "../bytes.js";
import { tensorKey } from "../documents/job.js";
import { NodewireError } from "../errors.js";
import { pack, unpack } from "../msgpack.js";
import { isList, isMap, type Value } from "../value.js";
import { MOST_HEADER_BYTES } from "./head.js";

export const MOST_FRAME_BYTES = 256 * 2 ** 20;

const MOST_EDGE = 64;
const MOST_TENSORS = 64;
const MOST_META = 64;
const MOST_RANK = 8;
const MOST_DIMENSION = 1n << 40n;
const MOST_ATTEMPT = 1n << 16n;
const MOST_SEQ = 1n << 53n;
const MOST_LIMIT = 1n << 63n;
const SCALE_CODES = 32n;

/** Bytes of an item by dtype. mxint8 has codes of one byte, and a scale for 32 of them. */
const ITEM: Readonly<Record<string, bigint>> = {
  float32: 4n,
  bfloat16: 2n,
  float16: 2n,
  int64: 8n,
  int32: 4n,
  uint8: 1n,
  bool: 1n,
  mxint8: 1n,
};

export interface Tensor {
  readonly dtype: string;
  readonly shape: readonly bigint[];
}

export interface DataHeader {
  /** The request's id in hex. */
  readonly job: string;
  readonly edge: string;
  /** Always 0: a frame with another does not count. */
  readonly attempt: bigint;
  readonly seq: bigint;
  /** 16 bytes. */
  readonly key: Uint8Array;
  readonly tensors: readonly Tensor[];
  readonly meta: ReadonlyMap<string, Value>;
}

export interface Credit {
  readonly job: string;
  readonly edge: string;
  readonly attempt: bigint;
  readonly limit: bigint;
}

const refused = (field: string, reason: string): NodewireError => new NodewireError("bad-frame", field, reason);

/** Bytes of a tensor. Raises bad-frame: an unknown dtype, or a shape out of bounds. */
export function tensorBytes({ dtype, shape }: Tensor): bigint {
  const item = Object.hasOwn(ITEM, dtype) ? ITEM[dtype] : undefined;
  if (item === undefined) throw refused("dtype", `is none of ${Object.keys(ITEM).join(", ")}`);
  if (shape.length > MOST_RANK) throw refused("shape", `has more than ${MOST_RANK} dimensions`);
  if (shape.some((one) => one < 0n || one >= MOST_DIMENSION)) throw refused("shape", "has a dimension out of range");
  const numbers = shape.reduce((all, one) => all * one, 1n);
  if (dtype !== "mxint8") return item * numbers;
  const width = shape.at(-1) ?? 1n;
  return width === 0n ? 0n : (numbers / width) * ((width + SCALE_CODES - 1n) / SCALE_CODES + width);
}

/** Bytes of all tensors. Raises bad-frame, too-large. */
export function frameBytes(tensors: readonly Tensor[]): number {
  const bytes = tensors.reduce((all, one) => all + tensorBytes(one), 0n);
  if (bytes > BigInt(MOST_FRAME_BYTES)) throw new NodewireError("too-large", "frame", `has ${bytes} bytes of tensors`);
  return Number(bytes);
}

/** What a frame costs of its edge's limit (nips/22-flow-and-control.md). */
export function frameCost(header: DataHeader): number {
  return frameBytes(header.tensors) + 1024 + 1024 * header.tensors.length + 256 * header.meta.size;
}

/** Whether the frame has attempt 0, and the name that everybody knows in advance. */
export function isKeyed(header: DataHeader): boolean {
  return header.attempt === 0n && toHex(header.key) === toHex(tensorKey(header.job, header.edge, 0n, header.seq));
}

/** Raises bad-frame with the field that is wrong; too-large. */
export function parseDataHeader(bytes: Uint8Array): DataHeader {
  const [job, edge, attempt, seq, key, tensors, meta] = fieldsOf(bytes, 7);
  const place = placeOf(job!, edge!, attempt!);
  if (typeof seq !== "bigint" || seq < 0n || seq >= MOST_SEQ) throw refused("seq", "is not from 0 to 2^53 - 1");
  if (!(key instanceof Uint8Array) || key.length !== 16) throw refused("key", "is not 16 bytes");
  if (tensors === undefined || !isList(tensors)) throw refused("tensors", "are no list");
  if (tensors.length > MOST_TENSORS) throw refused("tensors", `are more than ${MOST_TENSORS}`);
  const found = tensors.map(tensorOf);
  frameBytes(found);
  return { ...place, seq, key, tensors: found, meta: metaOf(meta!) };
}

export function packDataHeader({ job, edge, attempt, seq, key, tensors, meta }: DataHeader): Uint8Array {
  const fields = [fromHex(job), edge, attempt, seq, key, tensors.map((one) => [one.dtype, one.shape]), meta];
  const bytes = limited(pack(fields));
  parseDataHeader(bytes);
  return bytes;
}

export function parseCredit(bytes: Uint8Array): Credit {
  const [job, edge, attempt, limit] = fieldsOf(bytes, 4);
  const place = placeOf(job!, edge!, attempt!);
  if (typeof limit !== "bigint" || limit < 0n || limit >= MOST_LIMIT) throw refused("limit", "is not from 0 to 2^63 - 1");
  return { ...place, limit };
}

export function packCredit({ job, edge, attempt, limit }: Credit): Uint8Array {
  const bytes = limited(pack([fromHex(job), edge, attempt, limit]));
  parseCredit(bytes);
  return bytes;
}

function limited(bytes: Uint8Array): Uint8Array {
  if (bytes.length > MOST_HEADER_BYTES) throw new NodewireError("too-large", "header", `has ${bytes.length} bytes`);
  return bytes;
}

function fieldsOf(bytes: Uint8Array, count: number): readonly Value[] {
  let fields: Value;
  try {
    fields = unpack(limited(bytes), "header", "any");
  } catch (error) {
    if (error instanceof NodewireError && error.code === "bad-input") throw refused("header", error.reason);
    throw error;
  }
  if (!isList(fields) || fields.length !== count) throw refused("header", `is no list of ${count}`);
  return fields;
}

function placeOf(job: Value, edge: Value, attempt: Value): { job: string; edge: string; attempt: bigint } {
  if (!(job instanceof Uint8Array) || job.length !== 32) throw refused("job", "is not 32 bytes");
  if (typeof edge !== "string" || edge === "" || [...edge].length > MOST_EDGE)
    throw refused("edge", `does not have 1 to ${MOST_EDGE} characters`);
  if (typeof attempt !== "bigint" || attempt < 0n || attempt >= MOST_ATTEMPT)
    throw refused("attempt", "is not from 0 to 65535");
  return { job: toHex(job), edge, attempt };
}

function tensorOf(value: Value): Tensor {
  if (!isList(value) || value.length !== 2) throw refused("tensors", "have one that is not [dtype, shape]");
  const [dtype, shape] = value as readonly [Value, Value];
  if (typeof dtype !== "string") throw refused("dtype", "is no string");
  if (!isList(shape) || !shape.every((one) => typeof one === "bigint")) throw refused("shape", "is no list of integers");
  return { dtype, shape };
}

function metaOf(value: Value): ReadonlyMap<string, Value> {
  if (!isMap(value)) throw refused("meta", "is no map");
  if (value.size > MOST_META) throw refused("meta", `has more than ${MOST_META} entries`);
  for (const one of value.values()) {
    if (isList(one) || isMap(one)) throw refused("meta", "has a list or a map");
  }
  return value;
}
