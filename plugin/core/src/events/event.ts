/** Nostr's events (NIP-01): their form, id and signature. Numbers are what clients of Nostr have: no bigints here. */

import { schnorr } from "@noble/curves/secp256k1.js";
import { fromHex, toHex, toUtf8 } from "../bytes.js";
import { NodewireError } from "../errors.js";
import { sha256 } from "../hash.js";
import { formatJson, parseJson } from "../json.js";
import { isList, isMap, type Value } from "../value.js";

const MAX_EVENT_BYTES = 65_536;
const MAX_TAGS = 2_000;

/** An event before it is signed: what a browser's signer (NIP-07) takes. */
export interface EventTemplate {
  kind: number;
  created_at: number;
  tags: string[][];
  content: string;
}

export interface NostrEvent extends EventTemplate {
  id: string;
  pubkey: string;
  sig: string;
}

/** The bytes whose SHA-256 is the id, and which are the event's blob. */
export function hashedBytes(pubkey: string, event: EventTemplate): Uint8Array {
  return toUtf8(JSON.stringify([0, pubkey, event.created_at, event.kind, event.tags, event.content]), "event");
}

export function eventId(pubkey: string, event: EventTemplate): string {
  return toHex(sha256(hashedBytes(pubkey, event)));
}

/** A signed event, without auxiliary randomness: the same event has one signature. For keys that a page holds itself. */
export function signEvent(secretKey: Uint8Array, event: EventTemplate): NostrEvent {
  const pubkey = toHex(schnorr.getPublicKey(secretKey));
  const id = eventId(pubkey, event);
  return { ...event, id, pubkey, sig: toHex(schnorr.sign(fromHex(id), secretKey, new Uint8Array(32))) };
}

/** Raises bad-signature: the id is not the hash, or the signature not the author's. */
export function verifyEvent(event: NostrEvent): void {
  if (eventId(event.pubkey, event) !== event.id) throw new NodewireError("bad-signature", "id", "is not the event's");
  if (!isSigned(event.id, event.pubkey, event.sig))
    throw new NodewireError("bad-signature", "sig", "is not the author's");
}

/** Whether the key has signed the hash (BIP-340); all in hex. */
export function isSigned(hash: string, pubkey: string, sig: string): boolean {
  try {
    return schnorr.verify(fromHex(sig), fromHex(hash), fromHex(pubkey));
  } catch {
    return false;
  }
}

/** The event in a JSON text, neither id nor signature checked. Raises too-large, bad-event. */
export function parseEvent(json: string): NostrEvent {
  if (json.length > MAX_EVENT_BYTES || toUtf8(json, "event").length > MAX_EVENT_BYTES)
    throw new NodewireError("too-large", "event", `has more than ${MAX_EVENT_BYTES} bytes`);
  try {
    return eventOf(parseJson(json, "event"));
  } catch (error) {
    if (error instanceof NodewireError && error.code === "bad-input")
      throw new NodewireError("bad-event", error.field, error.reason);
    throw error;
  }
}

/** The event in a decoded value, neither id nor signature checked. Fields that NIP-01 does not know are passed over. */
export function eventOf(value: Value): NostrEvent {
  const refused = (field: string, reason: string): NodewireError => new NodewireError("bad-event", field, reason);
  if (!isMap(value)) throw refused("event", "is no map");
  const hex = (field: string, digits: number): string => {
    const text = value.get(field);
    if (typeof text !== "string" || text.length !== digits || !/^[0-9a-f]*$/.test(text))
      throw refused(field, `is not ${digits} lowercase hex digits`);
    return text;
  };
  const number = (field: string, most: bigint): number => {
    const found = value.get(field);
    if (typeof found !== "bigint" || found < 0n || found > most) throw refused(field, `is not from 0 to ${most}`);
    return Number(found);
  };
  const tags = value.get("tags");
  const content = value.get("content");
  if (typeof content !== "string") throw refused("content", "is no string");
  if (tags === undefined || !isList(tags)) throw refused("tags", "is no list");
  if (tags.length > MAX_TAGS) throw new NodewireError("too-large", "tags", `are more than ${MAX_TAGS}`);
  for (const tag of tags) {
    if (!isList(tag) || tag.length === 0 || !tag.every((one) => typeof one === "string"))
      throw refused("tags", "has one that is no list of strings, or empty");
  }
  return {
    id: hex("id", 64),
    pubkey: hex("pubkey", 64),
    sig: hex("sig", 128),
    created_at: number("created_at", (1n << 53n) - 1n),
    kind: number("kind", 65_535n),
    tags: tags as string[][],
    content,
  };
}

/** The event as a value, for documents that hold events. */
export function eventValue(event: NostrEvent): Value {
  return new Map<string, Value>([
    ["id", event.id],
    ["pubkey", event.pubkey],
    ["created_at", BigInt(event.created_at)],
    ["kind", BigInt(event.kind)],
    ["tags", event.tags],
    ["content", event.content],
    ["sig", event.sig],
  ]);
}

/** Its JSON in NIP-01's order of fields, without spaces. */
export function eventJson(event: NostrEvent): string {
  return formatJson(eventValue(event), "kept");
}
