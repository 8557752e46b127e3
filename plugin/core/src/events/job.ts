/**
 * A job's events: requests 8843, feedback 7000, results 6843, receipts and closings 8856 (nips/11-job-requests.md,
 * nips/15-feedback.md, nips/25-receipts.md).
 */

import { type Plan, plan, providersOf } from "../documents/plan.js";
import { type Closing, closing, type Receipt, receipt } from "../documents/work.js";
import { NodewireError } from "../errors.js";
import { formatJson } from "../json.js";
import { count, name as nameForm, object, pair, text, type Typed, version, withDefault } from "../schema.js";
import { document } from "../document.js";
import { isList, type Value } from "../value.js";
import { eventOf, type EventTemplate, eventValue, type NostrEvent } from "./event.js";
import { INFERENCE } from "./catalog.js";
import * as tags from "./tags.js";

export const REQUEST = INFERENCE;
export const FEEDBACK = 7000;
export const RESULT = REQUEST - 2000;
export const RECEIPT = 8856;

const MOST_PARTIALS = 64;
const MOST_RELAYS = 8;
const MOST_TEXT = 200;
const MOST_WORK = 20n;
const MOST_MSAT = 2_100_000_000_000_000_000n;
const MOST_COUNT = (1n << 53n) - 1n;

export interface Request {
  readonly plan: Plan;
  /** Events of partials, by their form alone: whoever combines them verifies them. */
  readonly partials: readonly NostrEvent[];
  /** `38840:<author>:<name>`. */
  readonly manifest: string;
  /** The certificate's event, and a relay that has it or "". */
  readonly certificate: readonly [id: string, relay: string];
  /** The seal of the tickets. */
  readonly ticket: string;
  readonly relays: readonly string[];
  readonly salt: string | null;
  /** NIP-13's nonce and committed target, where the request has work. */
  readonly work: readonly [nonce: string, target: string] | null;
}

const ADDRESS = /^38840:[0-9a-f]{64}:[a-z0-9][a-z0-9._-]{0,63}$/;

/** The request in a verified event: its tags agree with its plan, and the plan's customer is the author. */
export function parseRequest(event: NostrEvent): Request {
  tags.checkKind(event, REQUEST);
  const content = tags.contentOf(event, ["v", "plan", "partials"]);
  const planned = plan.parse(content.get("plan")!);
  const partials = content.get("partials")!;
  if (!isList(partials) || partials.length > MOST_PARTIALS)
    throw new NodewireError("bad-event", "partials", `are no list of at most ${MOST_PARTIALS}`);
  if (planned.customer !== event.pubkey)
    throw new NodewireError("bad-event", "content.plan.customer", "is not the request's author");
  const address = tags.one(event, "a");
  if (!ADDRESS.test(address)) throw tags.badTag("a", "is not 38840:<author>:<name>");
  tags.agree("x", tags.hex32(event, "x"), planned.manifest);
  tags.agree("snapshot", tags.hex32(event, "snapshot"), planned.snapshot);
  tags.agree("committee", tags.hex32(event, "committee"), planned.committee);
  const bid = tags.number("bid", tags.one(event, "bid"), MOST_MSAT);
  if (bid !== planned.terms.max_total_msat) throw tags.badTag("bid", "does not agree with the plan");
  const cited = tags.optionalRow(event, "e");
  if (!cited || cited[3] !== "certificate") throw tags.badTag("e", "does not cite a certificate");
  const named = new Set(tags.values(event, "p"));
  const providers = providersOf(planned);
  if (named.size !== providers.length || !providers.every((one) => named.has(one)))
    throw tags.badTag("p", "are not the plan's providers");
  const relays = (tags.rows(event, "relays")[0] ?? []).slice(1);
  if (relays.length > MOST_RELAYS) throw tags.badTag("relays", `are more than ${MOST_RELAYS}`);
  const nonce = tags.optionalRow(event, "nonce");
  return {
    plan: planned,
    partials: partials.map(eventOf),
    manifest: address,
    certificate: [tags.isHex32("e", cited[1]), cited[2]!],
    ticket: tags.hex32(event, "ticket"),
    relays,
    salt: tags.optionalRow(event, "salt")?.[1] ?? null,
    work: nonce ? [nonce[1] ?? "", nonce[2] ?? ""] : null,
  };
}

export function buildRequest(of: Request, createdAt: number): EventTemplate {
  const { terms, manifest, snapshot, committee } = of.plan;
  const cited = [
    ["a", of.manifest],
    ["x", manifest],
    ["e", ...of.certificate, "certificate"],
    ["snapshot", snapshot],
    ["committee", committee],
    ["bid", String(terms.max_total_msat)],
    ["ticket", of.ticket],
    ["relays", ...of.relays],
    ...providersOf(of.plan).map((one) => ["p", one]),
    ...(of.salt === null ? [] : [["salt", of.salt]]),
    ...(of.work === null ? [] : [["nonce", ...of.work]]),
  ];
  const content = new Map<string, Value>([
    ["v", 1n],
    ["plan", plan.write(of.plan)],
    ["partials", of.partials.map(eventValue)],
  ]);
  return { kind: REQUEST, created_at: createdAt, tags: cited, content: formatJson(content, "kept") };
}

export const STATUSES = ["processing", "payment-required", "success", "busy", "error", "partial"] as const;
export type Status = (typeof STATUSES)[number];

/** A provider's claim: that its part of a chunk is done, what it computed, and what it costs. */
export interface Claim {
  readonly amountMsat: bigint;
  readonly chunk: bigint;
  readonly attempt: bigint;
  readonly units: bigint;
  readonly root: string;
  /** Of the units of chunk 0, how many had been found and not computed. */
  readonly cached: bigint;
  /** The driver's close that it rests on. */
  readonly close: { readonly sig: string; readonly end: boolean; readonly positions: bigint } | null;
}

export interface Feedback {
  readonly id: string;
  readonly provider: string;
  readonly request: string;
  readonly customer: string;
  readonly kind: number;
  readonly status: Status;
  /** Of an error its code. */
  readonly text: string;
  /** Of `payment-required`. */
  readonly claim: Claim | null;
  /** Of an error: the edge that is meant, the neighbour that ended the job, the work that is asked. */
  readonly edge: string | null;
  readonly by: string | null;
  readonly work: bigint | null;
  /** Of an error, for the customer: NIP-44 ciphertext of a `Reason`, or empty. */
  readonly content: string;
}

export function parseFeedback(event: NostrEvent): Feedback {
  tags.checkKind(event, FEEDBACK);
  const row = tags.optionalRow(event, "status");
  const status = row?.[1] as Status;
  const said = row?.[2] ?? "";
  if (!STATUSES.includes(status)) throw tags.badTag("status", `is none of ${STATUSES.join(", ")}`);
  const isError = status === "error";
  const edge = isError ? tags.optionalRow(event, "edge")?.[1] : undefined;
  const by = isError ? tags.optionalRow(event, "by") : undefined;
  const work = isError ? tags.optionalRow(event, "work") : undefined;
  return {
    id: event.id,
    provider: event.pubkey,
    request: tags.hex32(event, "e"),
    customer: tags.hex32(event, "p"),
    kind: Number(tags.number("k", tags.one(event, "k"), 65_535n)),
    status,
    text: [...said].slice(0, MOST_TEXT).join(""),
    claim: status === "payment-required" ? claimOf(event) : null,
    edge: edge ?? null,
    by: by ? tags.isHex32("by", by[1]) : null,
    work: work ? tags.number("work", work[1], MOST_WORK) : null,
    content: event.content,
  };
}

function claimOf(event: NostrEvent): Claim {
  const row = tags.optionalRow(event, "chunk");
  if (row?.length !== 5) throw tags.badTag("chunk", "is not [chunk, number, attempt, units, root]");
  const [chunk, attempt, units] = row.slice(1, 4).map((one) => tags.number("chunk", one, MOST_COUNT));
  const cached = tags.optionalRow(event, "cached");
  const found = cached ? tags.number("cached", cached[1], units!) : 0n;
  if (cached && (found === 0n || chunk !== 0n)) throw tags.badTag("cached", "is of chunk 0, from 1 to its units");
  const closed = tags.optionalRow(event, "close");
  return {
    amountMsat: tags.number("amount", tags.one(event, "amount"), MOST_MSAT),
    chunk: chunk!,
    attempt: attempt!,
    units: units!,
    root: tags.isHex32("chunk", row[4]),
    cached: found,
    close: closed ? closeOf(closed) : null,
  };
}

function closeOf(row: string[]): Claim["close"] {
  const [, sig, end, positions] = row;
  if (row.length !== 4 || !/^[0-9a-f]{128}$/.test(sig!) || !["0", "1"].includes(end!))
    throw tags.badTag("close", "is not [close, signature, 1 or 0, positions]");
  return { sig: sig!, end: end === "1", positions: tags.number("close", positions, MOST_COUNT) };
}

export function buildFeedback(of: Omit<Feedback, "id" | "provider">, createdAt: number): EventTemplate {
  const { claim } = of;
  const cited = [
    ["e", of.request],
    ["p", of.customer],
    ["k", String(of.kind)],
    ["status", of.status, of.text],
    ...(claim ? claimTags(claim) : []),
    ...(of.edge === null ? [] : [["edge", of.edge]]),
    ...(of.by === null ? [] : [["by", of.by]]),
    ...(of.work === null ? [] : [["work", String(of.work)]]),
  ];
  return { kind: FEEDBACK, created_at: createdAt, tags: cited, content: of.content };
}

function claimTags({ amountMsat, chunk, attempt, units, root, cached, close }: Claim): string[][] {
  return [
    ["amount", String(amountMsat)],
    ["chunk", String(chunk), String(attempt), String(units), root],
    ...(cached === 0n ? [] : [["cached", String(cached)]]),
    ...(close ? [["close", close.sig, close.end ? "1" : "0", String(close.positions)]] : []),
  ];
}

const reasonFields = object({ v: version, field: text(64), reason: withDefault(text(200), "") });
export type Reason = Typed<typeof reasonFields>;
/** What a provider tells its customer alone of an error, in the plain text of a feedback's content. */
export const reason = document(reasonFields, { what: "reason", code: "bad-event", mostBytes: 4096 });

const doneFields = object({ v: version, frames: count, compute_us: pair(count, count) });
export type Done = Typed<typeof doneFields>;
/** What a provider tells its customer alone of a job that is done, in the plain text of a result's content. */
export const done = document(doneFields, { what: "result", code: "bad-event", mostBytes: 1024 });

export interface Result {
  readonly id: string;
  readonly provider: string;
  readonly request: string;
  readonly customer: string;
  readonly roots: readonly { task: string; chunk: bigint; attempt: bigint; root: string }[];
  /** NIP-44 ciphertext of `done` for the customer. */
  readonly content: string;
}

export function parseResult(event: NostrEvent): Result {
  tags.checkKind(event, RESULT);
  return {
    id: event.id,
    provider: event.pubkey,
    request: tags.hex32(event, "e"),
    customer: tags.hex32(event, "p"),
    roots: tags.rows(event, "root").map((row) => {
      const [, task, chunk, attempt, root] = row;
      if (row.length !== 5) throw tags.badTag("root", "is not [root, task, chunk, attempt, root]");
      return {
        task: nameForm.read(task!, { path: "root", code: "bad-tag" }),
        chunk: tags.number("root", chunk, MOST_COUNT),
        attempt: tags.number("root", attempt, MOST_COUNT),
        root: tags.isHex32("root", root),
      };
    }),
    content: event.content,
  };
}

export function buildResult(of: Omit<Result, "id" | "provider">, createdAt: number): EventTemplate {
  const cited = [
    ["e", of.request],
    ["p", of.customer],
    ["encrypted"],
    ...of.roots.map((one) => ["root", one.task, String(one.chunk), String(one.attempt), one.root]),
  ];
  return { kind: RESULT, created_at: createdAt, tags: cited, content: of.content };
}

/** A receipt, or the closing of one. */
export type ReceiptEvent = { type: "receipt"; of: Receipt } | { type: "closing"; of: Closing };

export function parseReceipt(event: NostrEvent): ReceiptEvent {
  tags.checkKind(event, RECEIPT);
  const isClosing = tags.rows(event, "receipt").length > 0;
  const found: ReceiptEvent = isClosing
    ? { type: "closing", of: closing.parseJson(event.content) }
    : { type: "receipt", of: receipt.parseJson(event.content) };
  tags.agree("e", tags.one(event, "e"), found.of.request);
  tags.agree("p", tags.one(event, "p"), found.of.provider);
  tags.agree("plan", tags.one(event, "plan"), found.of.plan);
  if (found.type === "closing") tags.agree("receipt", tags.one(event, "receipt"), found.of.receipt);
  return found;
}

export function buildReceipt(of: ReceiptEvent, createdAt: number): EventTemplate {
  const cited = [
    ["e", of.of.request],
    ["p", of.of.provider],
    ["plan", of.of.plan],
    ...(of.type === "closing" ? [["receipt", of.of.receipt]] : []),
  ];
  const content = of.type === "closing" ? closing.json(of.of) : receipt.json(of.of);
  return { kind: RECEIPT, created_at: createdAt, tags: cited, content };
}

