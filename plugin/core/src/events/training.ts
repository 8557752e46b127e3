/**
 * What a customer and its trainers publish before a round: ads 31990, requests of rounds 8840 and 8841, and of outer
 * steps 8842 (nips/32-training-outer-steps.md, nips/34-training-rounds.md).
 */

import {
  type OuterStep,
  outerStep,
  type Round,
  type Trainer,
  trainer,
  trainingRound,
} from "../documents/training.js";
import { AD } from "./catalog.js";
import type { EventTemplate, NostrEvent } from "./event.js";
import { inlineOf, inlineTags } from "./inline.js";
import * as tags from "./tags.js";

export const FEDAVG_ROUND = 8840;
export const DILOCO_ROUND = 8841;
export const OUTER_STEP = 8842;

const OUTPUT = "application/safetensors";
const MOST_RELAYS = 8;
const MOST_TIME = (1n << 53n) - 1n;

export interface TrainerAd {
  readonly trainer: Trainer;
  /** Until when it stands, in unix seconds; null until it is replaced. */
  readonly expiresAt: bigint | null;
}

/** Raises bad-event, bad-tag, bad-version, too-large, as all that follow. */
export function parseTrainer(event: NostrEvent): TrainerAd {
  tags.checkKind(event, AD);
  const found = trainer.parseJson(event.content);
  tags.agree("d", tags.one(event, "d"), found.name);
  const kinds = tags.values(event, "k");
  if (kinds.join() !== found.kinds.join()) throw tags.badTag("k", "are not the document's kinds in their order");
  if (!tags.values(event, "t").includes("federated")) throw tags.badTag("t", "does not name federated");
  const expires = tags.optionalRow(event, "expiration");
  return { trainer: found, expiresAt: expires ? tags.number("expiration", expires[1], MOST_TIME) : null };
}

export function buildTrainer(of: TrainerAd, createdAt: number): EventTemplate {
  const cited = [
    ["d", of.trainer.name],
    ...of.trainer.kinds.map((kind) => ["k", String(kind)]),
    ["t", "federated"],
    ...(of.expiresAt === null ? [] : [["expiration", String(of.expiresAt)]]),
  ];
  return { kind: AD, created_at: createdAt, tags: cited, content: trainer.json(of.trainer) };
}

/** What the requests of trainings have beside their documents. */
interface Asked {
  readonly relays: readonly string[];
  /** NIP-13's nonce and committed target, where the request has work. */
  readonly work: readonly [nonce: string, target: string] | null;
}

export interface RoundRequest extends Asked {
  readonly kind: typeof FEDAVG_ROUND | typeof DILOCO_ROUND;
  readonly round: Round;
  /** A relay that has `previous`. */
  readonly previousRelay: string;
  /** The ciphertext of the weights, where it stands in the event. */
  readonly inline: Uint8Array | null;
}

export function parseRound(event: NostrEvent): RoundRequest {
  if (event.kind !== DILOCO_ROUND) tags.checkKind(event, FEDAVG_ROUND);
  const round = trainingRound.parseJson(event.content);
  const { theta, previous, shards } = round;
  inputsOf(event, "blob", [theta.sha256]);
  const [before] = inputsOf(event, "job", previous === null ? [] : [previous]);
  checkBid(
    event,
    shards.reduce((all, one) => all + one.price_msat, 0n),
  );
  checkProviders(
    event,
    shards.map((one) => one.provider),
  );
  return {
    kind: event.kind as RoundRequest["kind"],
    round,
    previousRelay: before?.[3] ?? "",
    inline: inlineOf(event, theta),
    ...askedOf(event),
  };
}

export function buildRound(of: RoundRequest, createdAt: number): EventTemplate {
  const { theta, previous, shards, round } = of.round;
  const cited = [
    ["i", theta.sha256, "blob"],
    ...(previous === null ? [] : [["i", previous, "job", of.previousRelay]]),
    ...askedTags(
      of,
      round,
      shards.reduce((all, one) => all + one.price_msat, 0n),
      shards.map((one) => one.provider),
    ),
    ...inlineTags(of.inline),
    ...workTags(of),
  ];
  return { kind: of.kind, created_at: createdAt, tags: cited, content: trainingRound.json(of.round) };
}

export interface StepRequest extends Asked {
  readonly step: OuterStep;
  /** By input, a relay that has its result. */
  readonly inputRelays: readonly string[];
}

export function parseStep(event: NostrEvent): StepRequest {
  tags.checkKind(event, OUTER_STEP);
  const step = outerStep.parseJson(event.content);
  inputsOf(event, "blob", [step.theta.sha256, ...(step.momenta ? [step.momenta.sha256] : [])]);
  const results = inputsOf(
    event,
    "job",
    step.inputs.map((one) => one.result),
  );
  checkBid(event, step.price_msat);
  checkProviders(event, [step.provider]);
  return { step, inputRelays: results.map((row) => row[3] ?? ""), ...askedOf(event) };
}

export function buildStep(of: StepRequest, createdAt: number): EventTemplate {
  const { theta, momenta, inputs, round, price_msat: price, provider } = of.step;
  const cited = [
    ["i", theta.sha256, "blob"],
    ...(momenta ? [["i", momenta.sha256, "blob"]] : []),
    ...inputs.map((one, n) => ["i", one.result, "job", of.inputRelays[n] ?? ""]),
    ...askedTags(of, round, price, [provider]),
    ...workTags(of),
  ];
  return { kind: OUTER_STEP, created_at: createdAt, tags: cited, content: outerStep.json(of.step) };
}

/** The inputs of a type, which are those that the document cites, in its order. */
function inputsOf(event: EventTemplate, type: "blob" | "job", cited: readonly string[]): string[][] {
  const rows = tags.rows(event, "i").filter((row) => row[2] === type);
  if (rows.length !== cited.length || !cited.every((one, n) => rows[n]![1] === one))
    throw tags.badTag("i", `of type ${type} is not what the document cites`);
  return rows;
}

function checkBid(event: EventTemplate, price: bigint): void {
  if (tags.one(event, "bid") !== String(price)) throw tags.badTag("bid", "is not the sum of the prices");
}

function checkProviders(event: EventTemplate, providers: readonly string[]): void {
  const named = tags.values(event, "p");
  if (named.length !== providers.length || !providers.every((one, n) => one === named[n]))
    throw tags.badTag("p", "are not the document's providers in their order");
}

function askedOf(event: EventTemplate): Asked {
  const relays = (tags.optionalRow(event, "relays") ?? []).slice(1);
  if (relays.length > MOST_RELAYS) throw tags.badTag("relays", `are more than ${MOST_RELAYS}`);
  const nonce = tags.optionalRow(event, "nonce");
  return { relays, work: nonce ? [nonce[1] ?? "", nonce[2] ?? ""] : null };
}

function askedTags(of: Asked, round: bigint, price: bigint, providers: readonly string[]): string[][] {
  return [
    ["output", OUTPUT],
    ["bid", String(price)],
    ["t", "federated"],
    ["param", "round", String(round)],
    ["relays", ...of.relays],
    ["encrypted"],
    ...providers.map((one) => ["p", one]),
  ];
}

const workTags = ({ work }: Asked): string[][] => (work ? [["nonce", ...work]] : []);
