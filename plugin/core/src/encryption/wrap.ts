/** Rumors in gift wraps (NIP-59), as tickets and offers to meet travel (nips/14-tickets.md, nips/24-reach.md). */

import { schnorr } from "@noble/curves/secp256k1.js";
import { toHex, toUtf8 } from "../bytes.js";
import { NodewireError } from "../errors.js";
import { eventId, eventOf, type EventTemplate, eventValue, type NostrEvent, signEvent, verifyEvent } from "../events/event.js";
import * as tags from "../events/tags.js";
import { formatJson, parseJson } from "../json.js";
import { isMap } from "../value.js";
import { conversationKey, decrypt, encrypt } from "./nip44.js";

export const SEAL = 13;
/** The ephemeral gift wrap, which no relay stores. */
export const WRAP = 21_059;

const MOST_RUMOR_BYTES = 28_672;
const NO_SIGNATURE = "0".repeat(128);

/** An event that nobody signed, and whose author its seal proves. */
export type Rumor = Omit<NostrEvent, "sig">;

/** The wrap for a reader (its public key in hex), under a key that is made for it alone; `extra` are further tags. */
export function wrap(
  rumor: EventTemplate,
  secretKey: Uint8Array,
  reader: string,
  createdAt: number,
  extra: readonly (readonly string[])[] = [],
): NostrEvent {
  const pubkey = toHex(schnorr.getPublicKey(secretKey));
  const json = rumorJson({ ...rumor, pubkey, id: eventId(pubkey, rumor) });
  const seal = signEvent(secretKey, template(SEAL, createdAt, [], encrypt(json, conversationKey(secretKey, reader))));
  const once = schnorr.utils.randomSecretKey();
  const content = encrypt(formatJson(eventValue(seal), "kept"), conversationKey(once, reader));
  return signEvent(once, template(WRAP, createdAt, [["p", reader], ...extra.map((tag) => [...tag])], content));
}

/**
 * The rumor in a wrap, whose own signature says nothing and is not looked at. Raises bad-event: the seal or the rumor
 * is no event, or not of one author; bad-signature: the seal is not its author's; bad-ciphertext; too-large.
 */
export function unwrap(event: NostrEvent, secretKey: Uint8Array, kind = WRAP): Rumor {
  tags.checkKind(event, kind);
  const seal = eventOf(read(decrypt(event.content, conversationOf(secretKey, event.pubkey)), "seal"));
  tags.checkKind(seal, SEAL);
  verifyEvent(seal);
  const rumor = rumorOf(decrypt(seal.content, conversationOf(secretKey, seal.pubkey)));
  if (rumor.pubkey !== seal.pubkey) throw new NodewireError("bad-event", "rumor.pubkey", "is not the seal's author");
  return rumor;
}

/** A stranger's key that is no key is a fault of its event. */
function conversationOf(secretKey: Uint8Array, author: string): Uint8Array {
  try {
    return conversationKey(secretKey, author);
  } catch (error) {
    if (error instanceof NodewireError) throw new NodewireError("bad-event", "pubkey", "is no public key");
    throw error;
  }
}

function rumorOf(json: string): Rumor {
  if (toUtf8(json, "rumor").length > MOST_RUMOR_BYTES)
    throw new NodewireError("too-large", "rumor", `has more than ${MOST_RUMOR_BYTES} bytes`);
  const value = read(json, "rumor");
  if (!isMap(value)) throw new NodewireError("bad-event", "rumor", "is no map");
  const { sig: _, ...rumor } = eventOf(new Map([...value, ["sig", NO_SIGNATURE]]));
  if (eventId(rumor.pubkey, rumor) !== rumor.id) throw new NodewireError("bad-event", "rumor.id", "is not the rumor's");
  return rumor;
}

function rumorJson(rumor: Rumor): string {
  const value = eventValue({ ...rumor, sig: NO_SIGNATURE }) as ReadonlyMap<string, never>;
  const json = formatJson(new Map([...value].filter(([name]) => name !== "sig")), "kept");
  if (toUtf8(json).length > MOST_RUMOR_BYTES)
    throw new NodewireError("too-large", "rumor", `has more than ${MOST_RUMOR_BYTES} bytes`);
  return json;
}

function read(json: string, field: string): ReturnType<typeof parseJson> {
  try {
    return parseJson(json, field);
  } catch (error) {
    if (error instanceof NodewireError && error.code === "bad-input")
      throw new NodewireError("bad-event", field, error.reason);
    throw error;
  }
}

const template = (kind: number, created_at: number, tags: string[][], content: string): EventTemplate => ({
  kind,
  created_at,
  tags,
  content,
});
