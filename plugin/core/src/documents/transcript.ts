/** Transcripts of trainings (nips/36-training-transcripts.md): what was signed, what counted, and what came of it. */

import { document } from "../document.js";
import { digest } from "../hash.js";
import {
  count,
  hex32,
  hex64,
  integer,
  label,
  leftOut,
  list,
  mapOf,
  msat,
  nullable,
  object,
  text,
  type Typed,
  version,
  withDefault,
} from "../schema.js";
import { isMap } from "../value.js";
import { integerOf } from "./families.js";
import { inner } from "./training.js";

const MOST_BYTES = 1 << 28;
/** The transcript's bytes bound them alone. */
const MANY = MOST_BYTES;
const round = integer(0n, 999_999n);
const index = integer(0n, 4095n);
const event = text(MOST_BYTES);
const events = list(event, MANY);
const eventsOrNone = withDefault(events, []);
const hex32OrNull = withDefault(nullable(hex32), null);

const NO_SIGNATURE = "0".repeat(128);

const payment = object({ request: hex32, provider: hex32, part: integerOf(0n, 1n), amount_msat: msat });

const weighed = object({
  request: hex32,
  provider: hex32,
  index,
  round,
  steps: integer(1n, 100_000n),
  weight: count,
});

const made = object({ round, before: hex32, after: hex32, loss: count, results: list(weighed, 8192, 1) });

const undone = object({
  failed: list(object({ request: hex32, provider: hex32 }), 65_536, 1),
  rounds: list(made, 65_536, 1),
});

const keys = object({
  request: hex32,
  provider: hex32,
  theta_key: hex32,
  theta_sha256: hex32,
  shard_key: hex32,
  shard_sha256: hex32,
  start_key: hex32OrNull,
  carried: hex32OrNull,
});

const bought = object({
  requests: list(event, MANY, 1),
  results: eventsOrNone,
  payments: withDefault(list(payment, MANY), []),
});

const opened = object({ results: mapOf(hex32, inner), answers: mapOf(hex32, inner), shards: list(keys, MANY) });

const transcriptFields = object({
  v: version,
  customer: hex32,
  job: hex32,
  salt: hex32,
  recipe: inner,
  shards: integer(1n, 4096n),
  network: withDefault(label, ""),
  requests: events,
  results: events,
  closes: eventsOrNone,
  asks: eventsOrNone,
  answers: eventsOrNone,
  receipts: eventsOrNone,
  payments: withDefault(list(payment, MANY), []),
  rounds: list(made, MANY, 1),
  undone: withDefault(list(undone, MANY), []),
  weights: hex32,
  bought: leftOut(nullable(bought), null),
  opened: withDefault(nullable(opened), null),
  sig: withDefault(hex64, NO_SIGNATURE),
});

export type Transcript = Typed<typeof transcriptFields>;
export const transcript = document(transcriptFields, { what: "transcript", mostBytes: MOST_BYTES });

/** What the customer signs: all but `opened` and `sig`, and `undone` unless it is empty. */
export function transcriptHash(of: Transcript): string {
  const said = transcript.write(of);
  if (!isMap(said)) throw new TypeError("a transcript is a map");
  const left = new Set(["opened", "sig", ...(of.undone.length === 0 ? ["undone"] : [])]);
  return digest("nodewire/transcript/1", new Map([...said].filter(([name]) => !left.has(name))));
}
