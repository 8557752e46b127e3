/**
 * What binds a training together (nips/32-training-outer-steps.md to nips/34-training-rounds.md): names, seals of tickets,
 * commitments of results, what is drawn of them, and what work costs.
 */

import { shake256 } from "@noble/hashes/sha3.js";
import { compareBytes, concat, fromHex, toUtf8 } from "../bytes.js";
import { NodewireError } from "../errors.js";
import { digest } from "../hash.js";
import { leaf, root } from "../merkle.js";
import { pack } from "../msgpack.js";
import { isMap, type Value } from "../value.js";
import type { Recipe } from "./recipe.js";
import { carries, takesOf } from "./takes.js";
import { type Delivered, type OuterDelivered, type OuterTicket, outerTicket, type RoundTicket, roundTicket } from "./training.js";

/** The digest of what is carried on where that is nothing. */
export const NOTHING = "0".repeat(64);

/** A training's name, the same in all its rounds. */
export function trainingJob(customer: string, salt: string): string {
  return digest("nodewire/training/1", [customer, salt]);
}

export function recipeSeal(recipeDigest: string, salt: string): string {
  return digest("nodewire/recipe-seal/1", [recipeDigest, salt]);
}

/** The seal that a request says before its tickets have its id. */
export function roundTicketSeal(of: RoundTicket): string {
  return digest("nodewire/round-ticket/1", withoutRequest(roundTicket.write(of)));
}

export function outerTicketSeal(of: OuterTicket): string {
  return digest("nodewire/outer-ticket/1", withoutRequest(outerTicket.write(of)));
}

function withoutRequest(said: Value): Value {
  if (!isMap(said)) throw new TypeError("a ticket is a map");
  return new Map([...said].filter(([name]) => name !== "request"));
}

/** `x` of a round's result. */
export function roundCommitment(of: Delivered, provider: string, request: string, round: bigint, index: bigint): string {
  const leaves = [...of.states, of.sha256, ...(of.carried === null ? [] : [of.carried])];
  const tree = root(leaves.map((one) => leaf(fromHex(one))));
  return digest("nodewire/round/1", [provider, request, round, index, tree]);
}

/** `x` of an outer step's result. */
export function stepCommitment(of: OuterDelivered, provider: string, request: string, round: bigint): string {
  return digest("nodewire/outer/1", [provider, request, round, of.root]);
}

/** The first `bytes` of what these values draw. */
export function stream(bytes: number, ...values: readonly Value[]): Uint8Array {
  return shake256(concat(toUtf8("nodewire/stream/1"), Uint8Array.of(0), pack(values)), { dkLen: bytes });
}

const MOST_ORDERED = 2 ** 20;

/** 0 to n - 1 in a drawn order: by their words of 8 bytes, little-endian, equal ones by number. */
export function order(n: number, ...values: readonly Value[]): number[] {
  if (n > MOST_ORDERED) throw new NodewireError("too-large", "order", `is of more than ${MOST_ORDERED}`);
  const drawn = stream(8 * n, ...values);
  const words = Array.from({ length: n }, (_, i) => drawn.slice(8 * i, 8 * i + 8).reverse());
  return [...words.keys()].sort((a, b) => compareBytes(words[a]!, words[b]!) || a - b);
}

const MOST_DRAWN = 64;

/** Segments of a result that are computed again, ascending: by the close's event and the result's commitment. */
export function drawnSegments(
  of: Recipe,
  steps: bigint,
  { close, commitment, doubted }: { close: string; commitment: string; doubted: boolean },
): number[] {
  const segments = Number((steps + of.audit.segment - 1n) / of.audit.segment);
  const share = Math.max(1, Math.floor(segments * Number(of.audit.fraction) * (doubted ? 4 : 1)));
  const most = carries(of) ? MOST_DRAWN - 2 : doubted ? MOST_DRAWN - 1 : MOST_DRAWN;
  const many = carries(of) && doubted ? most : Math.min(most, share);
  const drawn = new Set(order(segments, "segments", close, commitment).slice(0, many));
  if (doubted || carries(of)) drawn.add(segments - 1);
  return [...drawn].sort((a, b) => a - b);
}

/** Numbers of the snapshots that are asked for of drawn segments: of both ends, and of what was carried into the round. */
export function snapshotsOf(of: Recipe, steps: bigint, drawn: readonly number[]): number[] {
  const ends = new Set(drawn.flatMap((segment) => [segment - 1, segment]).filter((one) => one >= 0));
  if (carries(of)) ends.add(Number((steps + of.audit.segment - 1n) / of.audit.segment));
  return [...ends].sort((a, b) => a - b);
}

const ceil = (a: bigint, b: bigint): bigint => (a + b - 1n) / b;

/** What a round of so many steps is, in gflop. */
export function roundGflop(of: Recipe, steps: bigint): bigint {
  return ceil(steps * (takesOf(of).flopsPerRound / of.steps), 10n ** 9n);
}

/** What an outer step of so many inputs is, in gflop. */
export function stepGflop(of: Recipe, inputs: bigint): bigint {
  const rounds = BigInt(Math.ceil(Math.log2(Number(inputs))));
  const c = { clip: 4n, trimmed: 2n * rounds, median: 2n * rounds, krum: 3n * inputs, mean: 0n }[of.outer.aggregate];
  return ceil(takesOf(of).trained * (20n + inputs * (4n + c)), 10n ** 9n);
}

/** By a trainer's ad, in msat. */
export function priceOf(ad: { msat_per_pflop: bigint; least_msat: bigint; deposit_ppm: bigint }, gflop: bigint): {
  price: bigint;
  deposit: bigint;
} {
  const asked = ceil(gflop * ad.msat_per_pflop, 10n ** 6n);
  const price = asked > ad.least_msat ? asked : ad.least_msat;
  return { price, deposit: ceil(price * ad.deposit_ppm, 10n ** 6n) };
}
