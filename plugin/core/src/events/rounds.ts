/**
 * What oracles say (8850), partials of beacons (8851), certificates (8852) and faults (8853): nips/03-committees.md,
 * nips/06-oracle-rounds.md, nips/09-bonds.md.
 */

import { combine, verifyPartial } from "../beacon.js";
import { fromHex, toUtf8 } from "../bytes.js";
import {
  type Body,
  body,
  type Committee,
  committee,
  type Inventory,
  inventory,
  type Partial,
  partial,
} from "../documents/committee.js";
import { type Verdict, verdict, verdictKey } from "../documents/work.js";
import { NodewireError } from "../errors.js";
import { blobHash } from "../hash.js";
import { formatJson } from "../json.js";
import { isList, type Value } from "../value.js";
import { eventOf, type EventTemplate, eventValue, type NostrEvent, verifyEvent } from "./event.js";
import * as tags from "./tags.js";

export const SAID = 8850;
export const PARTIAL = 8851;
export const CERTIFICATE = 8852;
export const EVIDENCE = 8853;

export const MOST_INLINE_BYTES = 4096;
const MOST_SUPPLIED = 64;
const MOST_VOTES = 31;

interface By {
  readonly id: string;
  readonly oracle: string;
  readonly committee: string;
}

export type Said =
  | (By & { readonly type: "inventory"; epoch: bigint; x: string; blob: string | null; inventory: Inventory | null })
  | (By & { readonly type: "proposal"; epoch: bigint; x: string; body: Body })
  | (By & { readonly type: "vote"; topic: string; x: string })
  | (By & { readonly type: "supply"; epoch: bigint; events: NostrEvent[] });

/** What a verified event says. Raises bad-event, bad-tag, bad-hash, bad-quorum, bad-version, too-large. */
export function parseSaid(event: NostrEvent): Said {
  tags.checkKind(event, SAID);
  const type = tags.one(event, "t");
  const by = { id: event.id, oracle: event.pubkey, committee: tags.hex32(event, "c") };
  if (type === "supply") return { ...by, type, epoch: tags.epochOf(event), events: supplied(event) };
  const x = tags.hex32(event, "x");
  if (type === "vote") {
    const topic = tags.one(event, "n");
    if (event.content !== "") throw new NodewireError("bad-event", "content", "of a vote is empty");
    if (topic === "" || topic.length > 128) throw new NodewireError("bad-event", "n", "has 1 to 128 characters");
    return { ...by, type, topic, x };
  }
  const epoch = tags.epochOf(event);
  if (type === "proposal") {
    const found = body.parseJson(event.content);
    checkCited(found, { ...by, epoch, x }, body.digest(found));
    return { ...by, type, epoch, x, body: found };
  }
  if (type === "inventory") {
    if (event.content === "") return { ...by, type, epoch, x, blob: tags.hex32(event, "blob"), inventory: null };
    const found = inventory.parseJson(event.content);
    checkCited(found, { ...by, epoch, x }, inventory.digest(found));
    return { ...by, type, epoch, x, blob: null, inventory: found };
  }
  throw tags.badTag("t", "is none of inventory, proposal, vote, supply");
}

function supplied(event: NostrEvent): NostrEvent[] {
  const found = tags.jsonOf(event);
  if (!isList(found) || found.length > MOST_SUPPLIED)
    throw new NodewireError("bad-event", "content", `is no list of at most ${MOST_SUPPLIED}`);
  return found.map((one) => {
    const read = eventOf(one);
    verifyEvent(read);
    return read;
  });
}

function checkCited(
  found: { committee: string; epoch: bigint },
  cited: { committee: string; epoch: bigint; x: string },
  digest: string,
): void {
  if (found.committee !== cited.committee || found.epoch !== cited.epoch)
    throw tags.badTag("n", "or c does not agree with the document");
  if (digest !== cited.x) throw new NodewireError("bad-hash", "x", "is not the document's digest");
}

/** With the blob that an inventory's event cites. */
export function readInventoryBlob(said: Said & { type: "inventory" }, blob: Uint8Array): Said & { type: "inventory" } {
  if (blobHash(blob) !== said.blob) throw new NodewireError("bad-hash", "blob", "is not the inventory's");
  const found = inventory.unpack(blob);
  checkCited(found, said, inventory.digest(found));
  return { ...said, inventory: found };
}

const topicTags = (type: string, by: string, topic: string, x: string): string[][] => [
  ["t", type],
  ["c", by],
  ["n", topic],
  ["x", x],
];

/** The event, and the blob to store before it is published, if it does not fit. */
export function buildInventory(
  of: Inventory,
  createdAt: number,
  expiresAt?: number,
): { event: EventTemplate; blob: Uint8Array | null } {
  const cited = topicTags("inventory", of.committee, tags.epochTopic(of.epoch), inventory.digest(of));
  const content = inventory.json(of);
  const fits = toUtf8(content).length <= MOST_INLINE_BYTES;
  const blob = fits ? null : inventory.pack(of);
  const all = [...cited, ...tags.expires(expiresAt), ...(blob ? [["blob", blobHash(blob)]] : [])];
  return { event: { kind: SAID, created_at: createdAt, tags: all, content: fits ? content : "" }, blob };
}

export function buildProposal(of: Body, createdAt: number, expiresAt?: number): EventTemplate {
  const cited = topicTags("proposal", of.committee, tags.epochTopic(of.epoch), body.digest(of));
  const all = [...cited, ...tags.expires(expiresAt), ...of.inventories.map((id) => ["e", id])];
  return { kind: SAID, created_at: createdAt, tags: all, content: body.json(of) };
}

export function buildVote(
  of: { committee: string; topic: string; x: string },
  createdAt: number,
  expiresAt?: number,
): EventTemplate {
  const all = [...topicTags("vote", of.committee, of.topic, of.x), ...tags.expires(expiresAt)];
  return { kind: SAID, created_at: createdAt, tags: all, content: "" };
}

export interface PartialEvent extends By {
  readonly epoch: bigint;
  /** The digest of the body that it is over. */
  readonly x: string;
  readonly partial: Partial;
}

export function parsePartial(event: NostrEvent): PartialEvent {
  tags.checkKind(event, PARTIAL);
  return {
    id: event.id,
    oracle: event.pubkey,
    committee: tags.hex32(event, "c"),
    epoch: tags.epochOf(event),
    x: tags.hex32(event, "x"),
    partial: partial.parseJson(event.content),
  };
}

export function buildPartial(of: Omit<PartialEvent, keyof By> & { committee: string }, createdAt: number): EventTemplate {
  const cited = [
    ["c", of.committee],
    ["n", tags.epochTopic(of.epoch)],
    ["x", of.x],
  ];
  return { kind: PARTIAL, created_at: createdAt, tags: cited, content: partial.json(of.partial) };
}

/**
 * The beacon of a certified body, from signed partials. Those by others than the committee's oracles, over another body
 * or without a proof that holds count for nothing. Raises bad-signature, bad-event, bad-tag; no-quorum: fewer than 2f+1.
 */
export function beaconOf(events: readonly NostrEvent[], certified: Body, by: Committee): string {
  const digest = body.digest(certified);
  const valid = new Map<bigint, Partial>();
  for (const event of events) {
    verifyEvent(event);
    const said = parsePartial(event);
    const { index } = said.partial;
    const oracle = by.oracles.find((one) => one.share_index === index);
    const isOurs = said.committee === certified.committee && said.x === digest && oracle?.pubkey === said.oracle;
    if (isOurs && !valid.has(index) && holds(digest, oracle!.share_public, said.partial)) valid.set(index, said.partial);
    if (valid.size === quorumOf(by)) break;
  }
  return combine([...valid.values()], quorumOf(by));
}

function holds(digest: string, sharePublic: string, said: Partial): boolean {
  try {
    verifyPartial(fromHex(digest), sharePublic, said);
    return true;
  } catch (error) {
    if (error instanceof NodewireError) return false;
    throw error;
  }
}

const quorumOf = (by: Committee): number => Number(2n * by.f + 1n);

/** A body, or a verdict, with the votes for it. Only `checkCertificate` says that they certify it. */
export interface Certificate<T> {
  readonly of: T;
  readonly votes: readonly NostrEvent[];
}

/** Raises bad-event, bad-tag, bad-quorum, bad-version. Votes are neither verified nor counted. */
export function parseCertificate(event: NostrEvent): Certificate<Body> {
  const { of, votes, x } = certificateOf(event, "body", (value) => body.parse(value));
  if (tags.hex32(event, "c") !== of.committee || tags.epochOf(event) !== of.epoch || x !== body.digest(of))
    throw tags.badTag("x", "names another body");
  return { of, votes };
}

export function parseVerdict(event: NostrEvent): Certificate<Verdict> {
  const { of, votes, x } = certificateOf(event, "verdict", (value) => verdict.parse(value));
  const topic = tags.one(event, "n");
  if (tags.hex32(event, "c") !== of.committee || topic !== `verdict/${verdictKey(of)}` || x !== verdict.digest(of))
    throw tags.badTag("x", "names another verdict");
  return { of, votes };
}

function certificateOf<T>(event: NostrEvent, field: string, read: (value: Value) => T) {
  tags.checkKind(event, CERTIFICATE);
  const content = tags.contentOf(event, ["v", field, "votes"]);
  const votes = content.get("votes")!;
  if (!isList(votes) || votes.length > MOST_VOTES)
    throw new NodewireError("bad-quorum", "votes", `are no list of at most ${MOST_VOTES}`);
  return { of: read(content.get(field)!), votes: votes.map(eventOf), x: tags.hex32(event, "x") };
}

export function buildCertificate(of: Certificate<Body>, createdAt: number, expiresAt?: number): EventTemplate {
  const cited = [
    ["c", of.of.committee],
    ["n", tags.epochTopic(of.of.epoch)],
    ["x", body.digest(of.of)],
    ...tags.expires(expiresAt),
  ];
  return { kind: CERTIFICATE, created_at: createdAt, tags: cited, content: proof("body", body.write(of.of), of.votes) };
}

function proof(field: string, said: Value, votes: readonly NostrEvent[]): string {
  return formatJson(
    new Map<string, Value>([
      ["v", 1n],
      [field, said],
      ["votes", votes.map(eventValue)],
    ]),
  );
}

/** Raises bad-quorum unless 2f+1 oracles of the committee have signed votes for the body, and nothing else is there. */
export function checkCertificate(of: Certificate<Body>, by: Committee): void {
  const quorum = quorumOf(by);
  if (of.of.committee !== committee.digest(by))
    throw new NodewireError("bad-quorum", "committee", "is another one's digest");
  if (of.of.inventories.length < quorum)
    throw new NodewireError("bad-quorum", "inventories", `are fewer than ${quorum}`);
  countVotes(of.votes, by, body.digest(of.of), [tags.epochTopic(of.of.epoch)]);
}

export function checkVerdict(of: Certificate<Verdict>, by: Committee): void {
  if (of.of.committee !== committee.digest(by))
    throw new NodewireError("bad-quorum", "committee", "is another one's digest");
  const topic = `verdict/${verdictKey(of.of)}`;
  countVotes(of.votes, by, verdict.digest(of.of), [topic, `${topic}/2`]);
}

function countVotes(votes: readonly NostrEvent[], by: Committee, x: string, topics: readonly string[]): void {
  const refused = (reason: string): NodewireError => new NodewireError("bad-quorum", "votes", reason);
  const digest = committee.digest(by);
  const said = votes.map((event) => {
    try {
      verifyEvent(event);
      return parseSaid(event);
    } catch (error) {
      if (!(error instanceof NodewireError)) throw error;
      throw refused("hold one that is malformed, or not its author's");
    }
  });
  const voters = new Set<string>();
  for (const vote of said) {
    if (vote.type !== "vote" || vote.committee !== digest || vote.x !== x) throw refused("hold one for something else");
    if (!topics.includes(vote.topic) || vote.topic !== (said[0] as { topic?: string }).topic)
      throw refused("are not all of one topic");
    if (!by.oracles.some((one) => one.pubkey === vote.oracle)) throw refused("hold an outsider's");
    voters.add(vote.oracle);
  }
  if (voters.size < quorumOf(by)) throw refused(`are of ${voters.size} oracles, too few`);
}

/** Two signed words of one oracle that contradict each other; both are verified. Raises as the others. */
export function parseFault(event: NostrEvent): { oracle: string; committee: string; events: [NostrEvent, NostrEvent] } {
  tags.checkKind(event, EVIDENCE);
  const sent = tags.contentOf(event, ["v", "events"]).get("events")!;
  if (!isList(sent) || sent.length !== 2) throw new NodewireError("bad-event", "events", "are not two");
  const [a, b] = sent.map(eventOf) as [NostrEvent, NostrEvent];
  for (const one of [a, b]) {
    tags.checkKind(one, SAID);
    verifyEvent(one);
  }
  const oracle = tags.hex32(event, "p");
  const by = tags.hex32(event, "c");
  const isOf = (one: NostrEvent): boolean => one.pubkey === oracle && tags.hex32(one, "c") === by;
  const isSame = ["t", "n"].every((name) => tags.one(a, name) === tags.one(b, name));
  if (!isOf(a) || !isOf(b) || !isSame || tags.one(a, "t") === "supply")
    throw new NodewireError("bad-event", "events", "are not two of one oracle about the same");
  if (tags.hex32(a, "x") === tags.hex32(b, "x")) throw new NodewireError("bad-event", "events", "do not contradict");
  return { oracle, committee: by, events: [a, b] };
}

