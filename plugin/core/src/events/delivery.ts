/** Results of trainings: 6840 and 6841 of rounds, 6842 of outer steps (nips/32 and nips/35). */

import type { Blob } from "../documents/manifest.js";
import { NodewireError } from "../errors.js";
import type { EventTemplate, NostrEvent } from "./event.js";
import { inlineOf, inlineTags } from "./inline.js";
import * as tags from "./tags.js";
import { DILOCO_ROUND, FEDAVG_ROUND, OUTER_STEP } from "./training.js";

const RESULT_OF = 2000;
const MOST_MSAT = 2_100_000_000_000_000_000n;
const MOST_COUNT = (1n << 53n) - 1n;

interface Answer {
  readonly id: string;
  readonly provider: string;
  readonly request: string;
  readonly customer: string;
  /** `x`: what the provider has committed to. */
  readonly commitment: string;
  /** The claim of the balance. */
  readonly amountMsat: bigint;
  /** NIP-44 ciphertext for the customer. */
  readonly content: string;
}

/** Of a round; its content opens to `delivered`. */
export interface Delivery extends Answer {
  /** Of the request. */
  readonly kind: number;
  readonly blob: Blob;
  /** The ciphertext, where it stands in the event. */
  readonly inline: Uint8Array | null;
}

/** Of an outer step; its content opens to `outerDelivered`. */
export interface StepDelivery extends Answer {
  readonly theta: Blob;
  readonly momenta: Blob | null;
}

/** Raises bad-event, bad-tag, bad-hash, too-large. */
export function parseDelivery(event: NostrEvent): Delivery {
  const kind = event.kind + RESULT_OF;
  if (kind !== FEDAVG_ROUND && kind !== DILOCO_ROUND)
    throw new NodewireError("bad-event", "kind", `is ${event.kind}, not that of a round's result`);
  const [blob, ...more] = blobsOf(event);
  if (!blob || more.length > 0) throw tags.badTag("i", "does not stand once");
  return { kind, blob, inline: inlineOf(event, blob), ...answerOf(event) };
}

export function buildDelivery(of: Omit<Delivery, "id" | "provider">, createdAt: number): EventTemplate {
  const kind = of.kind - RESULT_OF;
  return { kind, created_at: createdAt, tags: answerTags(of, [of.blob], of.inline), content: of.content };
}

export function parseStepDelivery(event: NostrEvent): StepDelivery {
  tags.checkKind(event, OUTER_STEP - RESULT_OF);
  const [theta, momenta, ...more] = blobsOf(event);
  if (!theta || more.length > 0) throw tags.badTag("i", "stands for theta, and for momenta at most");
  return { theta, momenta: momenta ?? null, ...answerOf(event) };
}

export function buildStepDelivery(of: Omit<StepDelivery, "id" | "provider">, createdAt: number): EventTemplate {
  const blobs = [of.theta, ...(of.momenta ? [of.momenta] : [])];
  return { kind: OUTER_STEP - RESULT_OF, created_at: createdAt, tags: answerTags(of, blobs, null), content: of.content };
}

function blobsOf(event: EventTemplate): Blob[] {
  return tags.rows(event, "i").map((row) => {
    if (row.length !== 4 || row[2] !== "blob") throw tags.badTag("i", "is not [i, hash, blob, bytes]");
    return { sha256: tags.isHex32("i", row[1]), bytes: tags.number("i", row[3], MOST_COUNT) };
  });
}

function answerOf(event: NostrEvent): Answer {
  return {
    id: event.id,
    provider: event.pubkey,
    request: tags.hex32(event, "e"),
    customer: tags.hex32(event, "p"),
    commitment: tags.hex32(event, "x"),
    amountMsat: tags.number("amount", tags.one(event, "amount"), MOST_MSAT),
    content: event.content,
  };
}

function answerTags(
  of: Omit<Answer, "id" | "provider">,
  blobs: readonly Blob[],
  inline: Uint8Array | null,
): string[][] {
  return [
    ["e", of.request],
    ["p", of.customer],
    ["x", of.commitment],
    ...blobs.map((one) => ["i", one.sha256, "blob", String(one.bytes)]),
    ["amount", String(of.amountMsat)],
    ["encrypted"],
    ...inlineTags(inline),
  ];
}
