/**
 * What customers and trainers say to each other (nips/32-training-outer-steps.md to nips/35-training-results.md): ads,
 * rounds, steps, tickets, deliveries, closes, and snapshots that are shown.
 */

import { document } from "../document.js";
import {
  below,
  bool,
  checked,
  count,
  fault,
  hex32,
  integer,
  label,
  list,
  msat,
  name,
  nullable,
  object,
  pair,
  ppm,
  type Place,
  relayUrl,
  refuseTwice,
  type Schema,
  type Typed,
  version,
  webUrl,
  withDefault,
} from "../schema.js";
import { isMap, type ValueMap } from "../value.js";
import { integerOf } from "./families.js";
import { blob } from "./manifest.js";

const KiB = 1024;
const round = integer(0n, 999_999n);
const index = integer(0n, 4095n);
const deadline = integer(1n, 31_536_000n);
const hex32OrNull = withDefault(nullable(hex32), null);
const blobOrNull = withDefault(nullable(blob), null);

const urlOrNone: Schema<string> = {
  read: (value, at) => (value === "" ? "" : webUrl.read(value, at)),
  write: (typed) => typed,
};

/** A document in another one, which is read by itself, with its own code. */
export const inner: Schema<ValueMap> = {
  read(value, at) {
    if (!isMap(value)) throw fault(at, "is no map");
    return value;
  },
  write: (typed) => typed,
};

const trainerFields = object({
  v: version,
  name,
  kinds: list(integerOf(8840n, 8841n, 8842n), 3, 1),
  families: list(name, 16, 1),
  msat_per_pflop: msat,
  least_msat: withDefault(msat, 0n),
  gflops: integer(1n, 1n << 40n),
  memory_bytes: count,
  most_bytes: count,
  concurrency: integer(1n, 4096n),
  deposit_ppm: withDefault(ppm, 0n),
  credit_msat: withDefault(msat, 0n),
  unit_msat: withDefault(integer(1n, 1_000n), 1n),
  lnurl: withDefault(urlOrNone, ""),
  pow_bits: withDefault(integer(0n, 64n), 0n),
  hardware: withDefault(label, ""),
  region: withDefault(label, ""),
  relays: withDefault(list(relayUrl, 16), []),
});

export type Trainer = Typed<typeof trainerFields>;
export const trainer = document(checked(trainerFields, checkTrainer), { what: "trainer", code: "bad-event", mostBytes: 16 * KiB });

function checkTrainer(typed: Trainer, at: Place): void {
  refuseTwice(typed.kinds.map(String), below(at, "kinds"));
  refuseTwice(typed.families, below(at, "families"));
  if (typed.lnurl === "" && (typed.msat_per_pflop > 0n || typed.least_msat > 0n))
    throw fault(below(at, "lnurl"), "is empty, though rounds have a price");
}

const assigned = object({
  index,
  provider: hex32,
  data: blob,
  steps: integer(1n, 1n << 24n),
  gflop: count,
  price_msat: msat,
  deposit_msat: msat,
  ticket: hex32,
});

const roundFields = object({
  v: version,
  job: hex32,
  round,
  seal: hex32,
  theta: blob,
  shards: list(assigned, 128, 1),
  start: blobOrNull,
  previous: hex32OrNull,
  deadline_s: deadline,
  inline: withDefault(integer(0n, 45_056n), 0n),
});

export type Round = Typed<typeof roundFields>;
export const trainingRound = document(checked(roundFields, checkRound), { what: "round", code: "bad-event", mostBytes: 56 * KiB });

function checkRound({ shards }: Round, at: Place): void {
  const place = below(at, "shards");
  if (shards.some((one, n) => n > 0 && shards[n - 1]!.index >= one.index)) throw fault(place, "are not of rising index");
  refuseTwice(
    shards.map((one) => one.provider),
    place,
  );
  if (shards.some((one) => one.deposit_msat > one.price_msat)) throw fault(place, "have a deposit above its price");
}

const roundTicketFields = object({
  v: version,
  request: hex32,
  index,
  salt: hex32,
  recipe: inner,
  theta_key: hex32,
  theta_sha256: hex32,
  shard_key: hex32,
  shard_sha256: hex32,
  start_key: hex32OrNull,
  carried: hex32OrNull,
});

export type RoundTicket = Typed<typeof roundTicketFields>;
export const roundTicket = document(roundTicketFields, { what: "ticket", mostBytes: 24 * KiB });

const input = object({ result: hex32, index, weight: integer(1n, (1n << 29n) - 1n), update: blob });

const stepFields = object({
  v: version,
  job: hex32,
  round,
  seal: hex32,
  provider: hex32,
  theta: blob,
  momenta: blobOrNull,
  inputs: list(input, 96, 1),
  gflop: count,
  price_msat: msat,
  deposit_msat: msat,
  ticket: hex32,
  deadline_s: deadline,
});

export type OuterStep = Typed<typeof stepFields>;
export const outerStep = document(checked(stepFields, checkStep), { what: "step", code: "bad-event", mostBytes: 40 * KiB });

function checkStep({ inputs, deposit_msat: deposit, price_msat: price }: OuterStep, at: Place): void {
  const place = below(at, "inputs");
  if (inputs.some((one, n) => n > 0 && inputs[n - 1]!.index > one.index)) throw fault(place, "are not in ascending order");
  refuseTwice(
    inputs.map((one) => one.result),
    place,
  );
  if (deposit > price) throw fault(below(at, "deposit_msat"), "is above the price");
}

const outerTicketFields = object({
  v: version,
  request: hex32,
  salt: hex32,
  recipe: inner,
  theta_key: hex32,
  theta_sha256: hex32,
  momenta_key: hex32OrNull,
  momenta_sha256: hex32OrNull,
  opens: list(pair(hex32, hex32), 96, 1),
});

export type OuterTicket = Typed<typeof outerTicketFields>;
export const outerTicket = document(outerTicketFields, { what: "ticket", mostBytes: 24 * KiB });

const outerDeliveredFields = object({
  v: version,
  theta_key: hex32,
  theta_sha256: hex32,
  momenta_key: hex32OrNull,
  momenta_sha256: hex32OrNull,
  root: hex32,
});

export type OuterDeliveryDetails = Typed<typeof outerDeliveredFields>;
export const outerDelivered = document(outerDeliveredFields, { what: "result", code: "bad-event", mostBytes: 4 * KiB });

const deliveredFields = object({
  v: version,
  key: hex32,
  sha256: hex32,
  bytes: count,
  samples: count,
  losses: list(count, 256),
  states: list(hex32, 384),
  carried: hex32OrNull,
});

export type DeliveryDetails = Typed<typeof deliveredFields>;
/** The plain text of a result's content. */
export const delivered = document(deliveredFields, { what: "result", code: "bad-event", mostBytes: 40 * KiB });

const progressFields = object({ v: version, step: count, loss: count });
export type Progress = Typed<typeof progressFields>;
/** The plain text of a `partial` feedback's content. */
export const progress = document(progressFields, { what: "progress", code: "bad-event", mostBytes: 1 * KiB });

const counted = object({
  request: hex32,
  provider: hex32,
  index,
  result: hex32,
  commitment: hex32,
  doubted: withDefault(bool, false),
});

const closeFields = object({
  v: version,
  job: hex32,
  round,
  nonce: hex32,
  results: list(counted, 96, 1),
  others: withDefault(list(hex32, 64), []),
});

export type RoundClose = Typed<typeof closeFields>;
export const roundClose = document(
  checked(closeFields, (typed, at) =>
    refuseTwice(
      typed.results.map((one) => `${one.request} ${one.provider}`),
      below(at, "results"),
    ),
  ),
  { what: "close", code: "bad-event", mostBytes: 56 * KiB },
);

const shown = object({ segment: integer(0n, 384n), blob, key: hex32, sha256: hex32 });
const showingFields = object({ v: version, shown: list(shown, 128, 1) });
export type AuditAnswer = Typed<typeof showingFields>;
/** The plain text of a 6844's content. */
export const showing = document(showingFields, { what: "showing", code: "bad-event", mostBytes: 40 * KiB });
