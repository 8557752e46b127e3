/**
 * What nodes of a job tell each other besides events: tickets, closes, statements, wants and offers
 * (nips/14-tickets.md, nips/16-payment.md, nips/20-sent-and-pulls.md, nips/24-reach.md), and swarms' files
 * (nips/38-swarms.md).
 */

import { toHex, toUtf8 } from "../bytes.js";
import { document, type DocumentType } from "../document.js";
import { digest, taggedHash } from "../hash.js";
import { formatJson } from "../json.js";
import { pack } from "../msgpack.js";
import {
  below,
  bool,
  checked,
  count,
  fault,
  hex32,
  hex64,
  integer,
  leftOut,
  list,
  mapOf,
  name,
  nullable,
  object,
  oneOf,
  pair,
  pattern,
  type Schema,
  triple,
  type Typed,
  text,
  version,
  withDefault,
} from "../schema.js";
import { isMap, type Value } from "../value.js";

const any: Schema<Value> = { read: (value) => value, write: (typed) => typed };

/** The one document that may hold floats: JSON only, and without canonical bytes. */
const ticketFields = object({
  v: version,
  request: hex32,
  params: withDefault(mapOf(text(64), any, 32), new Map()),
  salt: hex32,
  inputs: list(triple(name, count, hex32), 256),
});

export type Ticket = Typed<typeof ticketFields>;

export const ticket = document(ticketFields, { what: "ticket", mostBytes: 16 * 1024 });

/** The seal that a request says before its tickets are known. */
export function ticketSeal(of: Ticket): string {
  const said = ticket.write(of);
  if (!isMap(said)) throw new TypeError("a ticket is a map");
  const sealed = new Map([...said].filter(([name]) => name !== "request"));
  return toHex(taggedHash("nodewire/ticket/1", toUtf8(formatJson(sealed))));
}

/** A tensor of a frame: its dtype, its shape, and the SHA-256 of its raw bytes. */
export interface TensorHash {
  readonly dtype: string;
  readonly shape: readonly bigint[];
  readonly sha256: Uint8Array;
}

const tensorsOf = (tensors: readonly TensorHash[]): Value => tensors.map((one) => [one.dtype, one.shape, one.sha256]);

/** The hash by which a ticket names a frame that the customer sends. */
export function inputHash(edge: string, seq: bigint, tensors: readonly TensorHash[]): string {
  return digest("nodewire/input/1", [edge, seq, tensorsOf(tensors)]);
}

/** A frame's name, which everybody knows in advance: 16 bytes (nips/21-links.md). */
export function tensorKey(request: string, edge: string, attempt: bigint, seq: bigint): Uint8Array {
  return taggedHash("nodewire/tensor/1", pack([request, edge, attempt, seq])).slice(0, 16);
}

const closeFields = object({
  v: version,
  request: hex32,
  attempt: count,
  chunk: count,
  units: count,
  end: bool,
  positions: leftOut(nullable(integer(1n, 4096n)), null),
  sig: hex64,
});

export type Close = Typed<typeof closeFields>;

export const close = document(closeFields, { what: "close", code: "bad-frame", mostBytes: 1024 });

const sentFields = object({
  v: version,
  request: hex32,
  task: name,
  edge: name,
  chunk: count,
  attempt: count,
  frames: hex32,
  signer: hex32,
  sig: hex64,
});

export type FrameStatement = Typed<typeof sentFields>;
export const sent = document(sentFields, { what: "sent", code: "bad-frame", mostBytes: 1024 });

export interface SentFrame {
  readonly seq: bigint;
  readonly tensors: readonly TensorHash[];
  readonly meta: ReadonlyMap<string, Value>;
}

/** The hash of the frames of an edge in a chunk. */
export function framesHash(frames: readonly SentFrame[]): string {
  return digest(
    "nodewire/sent-frames/1",
    frames.map((one) => [one.seq, tensorsOf(one.tensors), one.meta]),
  );
}

/** The bytes that a close or a statement is signed over, and their hash. */
export function signedHash<T>(type: DocumentType<T>, typed: T): { packed: Uint8Array; hash: string } {
  const said = type.write(typed);
  if (!isMap(said)) throw new TypeError("a signed document is a map");
  const packed = pack(new Map([...said].filter(([name]) => name !== "sig")));
  return { packed, hash: toHex(taggedHash(`nodewire/${type.what}/1`, packed)) };
}

const wantFields = object({
  v: version,
  what: oneOf("frames", "opening", "ticket", "sent"),
  request: hex32,
  task: name,
  edges: withDefault(list(name, 64), []),
  attempt: count,
  first: count,
  last: count,
  epoch: withDefault(count, 0n),
});

export type Want = Typed<typeof wantFields>;

export const want = document(
  checked(wantFields, (typed, at) => {
    if (typed.first > typed.last) throw fault(below(at, "last"), "is below first");
  }),
  { what: "want", mostBytes: 8 * 1024 },
);

/** The id of the job by which something kept is shown; keys in hex, the nonce 16 bytes. */
export function pullJob(of: Want, puller: string, holder: string, nonce: Uint8Array): string {
  return digest("nodewire/pull/1", [want.write(of), puller, holder, nonce]);
}

const IP_PORT = /^(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}$/;
const SPLICE = /^splice:[0-9a-f]{64}@(?:\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9.-]{1,253}):[0-9]{1,5}$/;

const offerFields = object({
  v: version,
  type: oneOf("offer", "answer"),
  session: hex32,
  room: hex32,
  splice: pattern(SPLICE, "splice:<public key>@host:port"),
  places: list(pattern(IP_PORT, "ip:port"), 4),
  splice_ms: integer(0n, 60_000n),
  expires_s: count,
});

export type Meeting = Typed<typeof offerFields>;
export const meeting = document(offerFields, { what: "offer", mostBytes: 2048 });

const layers = pair(count, count);

const swarmFields = object({
  v: version,
  name,
  manifest: withDefault(nullable(hex32), null),
  context: withDefault(nullable(integer(2n, 1n << 24n)), null),
  slots: withDefault(integer(1n, 64n), 4n),
  dtype: withDefault(nullable(oneOf("float32", "bfloat16")), null),
  lookahead: withDefault(integer(1n, 256n), 1n),
  driver: hex32,
  nodes: list(object({ public: hex32, layers: withDefault(nullable(layers), null) }), 64, 1),
});

export type Swarm = Typed<typeof swarmFields>;

export const swarm = document(swarmFields, { what: "swarm", tag: "nodewire/swarm/1", mostBytes: 16 * 1024 });

const rollCallFields = object({ v: version, swarm: hex32, manifest: hex32 });
export const rollCall = document(rollCallFields, { what: "roll call", mostBytes: 4096 });

