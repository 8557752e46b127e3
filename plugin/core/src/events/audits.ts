/** Closes of rounds 8859, and snapshots asked for 8844 and shown 6844 (nips/33-training-audits.md). */

import { type RoundClose, roundClose } from "../documents/training.js";
import { NodewireError } from "../errors.js";
import type { EventTemplate, NostrEvent } from "./event.js";
import * as tags from "./tags.js";
import { DILOCO_ROUND, FEDAVG_ROUND } from "./training.js";
import { SAMPLED } from "./work.js";

export const ROUND_CLOSE = 8859;
export const SNAPSHOTS_SHOWN = 6844;

const MOST_SNAPSHOTS = 128;
const LAST_SNAPSHOT = 384n;

export interface ClosedRound {
  readonly id: string;
  readonly customer: string;
  /** Of the round. */
  readonly kind: number;
  readonly close: RoundClose;
}

export function parseRoundClose(event: NostrEvent): ClosedRound {
  tags.checkKind(event, ROUND_CLOSE);
  const close = roundClose.parseJson(event.content);
  const isSame = (name: string, said: readonly string[]): void => {
    if (tags.values(event, name).join() !== ascending(said).join())
      throw tags.badTag(name, "are not the document's, ascending");
  };
  isSame(
    "e",
    close.results.map((one) => one.request),
  );
  isSame(
    "p",
    close.results.map((one) => one.provider),
  );
  return { id: event.id, customer: event.pubkey, kind: roundKind(event), close };
}

export function buildRoundClose(of: Omit<ClosedRound, "id" | "customer">, createdAt: number): EventTemplate {
  const { results } = of.close;
  const cited = [
    ...ascending(results.map((one) => one.request)).map((one) => ["e", one]),
    ...ascending(results.map((one) => one.provider)).map((one) => ["p", one]),
    ["k", String(of.kind)],
  ];
  return { kind: ROUND_CLOSE, created_at: createdAt, tags: cited, content: roundClose.json(of.close) };
}

const ascending = (said: readonly string[]): string[] => [...new Set(said)].sort();

function roundKind(event: EventTemplate): number {
  const kind = Number(tags.number("k", tags.one(event, "k"), 65_535n));
  if (kind !== FEDAVG_ROUND && kind !== DILOCO_ROUND) throw tags.badTag("k", "is no kind of a round");
  return kind;
}

/** A customer's question for the states at the ends of what was drawn. */
export interface SnapshotsAsked {
  readonly request: string;
  readonly provider: string;
  readonly kind: number;
  /** The close's event. */
  readonly close: string;
  readonly snapshots: readonly bigint[];
}

/** Whether an 8844 asks for snapshots, and is no sample. */
export function asksForSnapshots(event: EventTemplate): boolean {
  return event.kind === SAMPLED && tags.rows(event, "k").length > 0;
}

export function parseSnapshotsAsked(event: NostrEvent): SnapshotsAsked {
  tags.checkKind(event, SAMPLED);
  const row = tags.optionalRow(event, "snapshots");
  if (!row || row.length < 2) throw tags.badTag("snapshots", "names none");
  if (row.length > 1 + MOST_SNAPSHOTS) throw new NodewireError("too-large", "snapshots", `names more than ${MOST_SNAPSHOTS}`);
  const snapshots = row.slice(1).map((one) => tags.number("snapshots", one, LAST_SNAPSHOT));
  if (snapshots.some((one, n) => n > 0 && snapshots[n - 1]! >= one)) throw tags.badTag("snapshots", "are not ascending");
  return {
    request: tags.hex32(event, "e"),
    provider: tags.hex32(event, "p"),
    kind: roundKind(event),
    close: tags.hex32(event, "close"),
    snapshots,
  };
}

export function buildSnapshotsAsked(of: SnapshotsAsked, createdAt: number): EventTemplate {
  const cited = [
    ["e", of.request],
    ["p", of.provider],
    ["k", String(of.kind)],
    ["close", of.close],
    ["snapshots", ...of.snapshots.map(String)],
  ];
  return { kind: SAMPLED, created_at: createdAt, tags: cited, content: "" };
}

export interface SnapshotsShown {
  readonly request: string;
  readonly customer: string;
  readonly kind: number;
  /** NIP-44 ciphertext of `showing` for the customer. */
  readonly content: string;
}

export function parseSnapshotsShown(event: NostrEvent): SnapshotsShown {
  tags.checkKind(event, SNAPSHOTS_SHOWN);
  return {
    request: tags.hex32(event, "e"),
    customer: tags.hex32(event, "p"),
    kind: roundKind(event),
    content: event.content,
  };
}

export function buildSnapshotsShown(of: SnapshotsShown, createdAt: number): EventTemplate {
  const cited = [["e", of.request], ["p", of.customer], ["k", String(of.kind)], ["encrypted"]];
  return { kind: SNAPSHOTS_SHOWN, created_at: createdAt, tags: cited, content: of.content };
}
