/**
 * Commitments 8854, complaints 8853, samples 8844 (nips/17-commitments.md, nips/18-samples.md), and what
 * proves a key to a link or a splice: 28842, 28844 (nips/21-links.md, nips/24-reach.md).
 */

import { toUtf8 } from "../bytes.js";
import {
  claimRoot,
  type Commitment,
  commitment,
  complaintCase,
  type JobSamples,
  sampled,
} from "../documents/work.js";
import { NodewireError } from "../errors.js";
import { blobHash } from "../hash.js";
import { formatJson } from "../json.js";
import { isList, type Value } from "../value.js";
import { SPLICE_REQUEST } from "./catalog.js";
import { eventOf, type EventTemplate, eventValue, type NostrEvent, verifyEvent } from "./event.js";
import { type Feedback, parseFeedback } from "./job.js";
import { EVIDENCE, MOST_INLINE_BYTES } from "./rounds.js";
import * as tags from "./tags.js";

export const COMMITMENT = 8854;
export const SAMPLED = 8844;
export const LINK_AUTH = 28_842;

const MOST_REQUESTS = 256;

export interface CommitmentEvent {
  readonly id: string;
  readonly provider: string;
  readonly committee: string;
  readonly epoch: bigint;
  readonly root: string;
  readonly blob: string | null;
  /** Null if it is a blob, to be read by `readCommitmentBlob`. */
  readonly commitment: Commitment | null;
}

export function parseCommitment(event: NostrEvent): CommitmentEvent {
  tags.checkKind(event, COMMITMENT);
  const said = {
    id: event.id,
    provider: event.pubkey,
    committee: tags.hex32(event, "c"),
    epoch: tags.epochOf(event),
    root: tags.hex32(event, "x"),
  };
  if (event.content === "") return { ...said, blob: tags.hex32(event, "blob"), commitment: null };
  return withCommitment({ ...said, blob: null, commitment: null }, commitment.parseJson(event.content));
}

export function readCommitmentBlob(said: CommitmentEvent, blob: Uint8Array): CommitmentEvent {
  if (blobHash(blob) !== said.blob) throw new NodewireError("bad-hash", "blob", "is not the commitment's");
  return withCommitment(said, commitment.unpack(blob));
}

function withCommitment(said: CommitmentEvent, found: Commitment): CommitmentEvent {
  if (found.committee !== said.committee || found.epoch !== said.epoch)
    throw tags.badTag("n", "or c does not agree with the document");
  if (claimRoot(found.chunks) !== said.root) throw new NodewireError("bad-hash", "x", "is not the root over the chunks");
  return { ...said, commitment: found };
}

export function buildCommitment(
  of: Commitment,
  createdAt: number,
  expiresAt?: number,
): { event: EventTemplate; blob: Uint8Array | null } {
  const content = commitment.json(of);
  const fits = toUtf8(content).length <= MOST_INLINE_BYTES;
  const blob = fits ? null : commitment.pack(of);
  const requests = [...new Set(of.chunks.map((one) => one.request))].slice(0, MOST_REQUESTS);
  const cited = [
    ["c", of.committee],
    ["n", tags.epochTopic(of.epoch)],
    ["x", claimRoot(of.chunks)],
    ...requests.map((one) => ["e", one]),
    ...tags.expires(expiresAt),
    ...(blob ? [["blob", blobHash(blob)]] : []),
  ];
  return { event: { kind: COMMITMENT, created_at: createdAt, tags: cited, content: fits ? content : "" }, blob };
}

export interface Complaint {
  readonly committee: string;
  readonly claim: NostrEvent;
  readonly said: Feedback;
  /** The name of the case. */
  readonly key: string;
}

/** The complaint in a verified event; the claim's signature is checked here. */
export function parseComplaint(event: NostrEvent): Complaint {
  tags.checkKind(event, EVIDENCE);
  const sent = tags.contentOf(event, ["v", "events"]).get("events")!;
  if (!isList(sent) || sent.length !== 1) throw new NodewireError("bad-event", "events", "are not one claim");
  const claim = eventOf(sent[0]!);
  const said = parseFeedback(claim);
  if (said.claim === null) throw new NodewireError("bad-event", "events", "hold no claim");
  tags.agree("p", tags.hex32(event, "p"), said.provider);
  tags.agree("e", tags.hex32(event, "e"), said.request);
  if (said.customer !== event.pubkey) throw tags.badTag("p", "of the claim is not who complains");
  verifyEvent(claim);
  const key = complaintCase(said.provider, said.request, claim.id);
  return { committee: tags.hex32(event, "c"), claim, said, key };
}

export function buildComplaint(committee: string, claim: NostrEvent, createdAt: number): EventTemplate {
  const said = parseFeedback(claim);
  const content = new Map<string, Value>([
    ["v", 1n],
    ["events", [eventValue(claim)]],
  ]);
  const cited = [
    ["p", said.provider],
    ["c", committee],
    ["e", said.request],
  ];
  return { kind: EVIDENCE, created_at: createdAt, tags: cited, content: formatJson(content) };
}

export function parseSampled(event: NostrEvent): JobSamples {
  tags.checkKind(event, SAMPLED);
  const found = sampled.parseJson(event.content);
  tags.agree("c", tags.hex32(event, "c"), found.committee);
  if (tags.epochOf(event) !== found.epoch) throw tags.badTag("n", "does not agree with the document");
  tags.agree("e", tags.hex32(event, "e"), found.request);
  if (found.samples.some((one) => one.request !== found.request))
    throw new NodewireError("bad-event", "samples", "have one of another request");
  const sorted = (all: string[][]): string => JSON.stringify(all.map((tag) => JSON.stringify(tag)).sort());
  if (sorted(event.tags) !== sorted(buildSampled(found, event.created_at).tags))
    throw tags.badTag("p", "and the others are not just these tags: c, n, e, and each verifier");
  return found;
}

const verifiersOf = (of: JobSamples): string[] => [...new Set(of.samples.flatMap((one) => one.verifiers))];

export function buildSampled(of: JobSamples, createdAt: number): EventTemplate {
  const cited = [
    ["c", of.committee],
    ["n", tags.epochTopic(of.epoch)],
    ["e", of.request],
    ...verifiersOf(of).map((one) => ["p", one]),
  ];
  return { kind: SAMPLED, created_at: createdAt, tags: cited, content: sampled.json(of) };
}

/** A dialler's word that a connection is its own: to the listener, over this certificate (its SHA-256). */
export function parseLinkAuth(event: NostrEvent): { dialler: string; listener: string; certificate: string } {
  tags.checkKind(event, LINK_AUTH);
  checkVersion(event);
  return { dialler: event.pubkey, listener: tags.hex32(event, "p"), certificate: tags.hex32(event, "cert") };
}

export function buildLinkAuth(of: { listener: string; certificate: string }, createdAt: number): EventTemplate {
  const cited = [
    ["p", of.listener],
    ["cert", of.certificate],
    ["v", "1"],
  ];
  return { kind: LINK_AUTH, created_at: createdAt, tags: cited, content: "" };
}

function checkVersion(event: EventTemplate): void {
  if (tags.one(event, "v") !== "1") throw new NodewireError("bad-version", "v", "is not 1");
}

/** What an end asks a splice for: a room to meet in, a dial of one of its ports, or where it comes from. */
export interface SpliceRequest {
  readonly splice: string;
  readonly salt: string;
  readonly room: string | null;
  readonly dial: bigint | null;
}

export function parseSpliceRequest(event: NostrEvent): SpliceRequest {
  tags.checkKind(event, SPLICE_REQUEST);
  checkVersion(event);
  const room = tags.optionalRow(event, "room");
  const dial = tags.optionalRow(event, "dial");
  if (room && dial) throw tags.badTag("dial", "stands beside room");
  const port = dial ? tags.number("dial", dial[1], 65_535n) : null;
  if (port !== null && (port < 1024n || dial![1] !== String(port)))
    throw tags.badTag("dial", "is no port from 1024 to 65535");
  return {
    splice: tags.hex32(event, "p"),
    salt: tags.one(event, "salt"),
    room: room ? tags.isHex32("room", room[1]) : null,
    dial: port,
  };
}

export function buildSpliceRequest(of: SpliceRequest, createdAt: number): EventTemplate {
  const cited = [
    ["p", of.splice],
    ...(of.room === null ? [] : [["room", of.room]]),
    ...(of.dial === null ? [] : [["dial", String(of.dial)]]),
    ["salt", of.salt],
    ["v", "1"],
  ];
  return { kind: SPLICE_REQUEST, created_at: createdAt, tags: cited, content: "" };
}
