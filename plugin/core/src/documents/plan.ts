/** Plans and terms (nips/11-job-requests.md). */

import { document } from "../document.js";
import { NodewireError } from "../errors.js";
import type { Committee } from "./committee.js";
import { CUSTOMER, type Manifest } from "./manifest.js";
import {
  below,
  checked,
  count,
  epoch,
  fault,
  hex32,
  hex32Or,
  integer,
  label,
  leftOut,
  list,
  mapOf,
  msat,
  name,
  object,
  oneOf,
  type Place,
  ppm,
  refuseTwice,
  type Typed,
  version,
  withDefault,
} from "../schema.js";

export const LOCAL = "local";

const termsFields = object({
  max_chunk_msat: msat,
  max_total_msat: msat,
  trusted: withDefault(list(hex32, 64), []),
  excluded: withDefault(list(hex32, 64), []),
  regions: withDefault(list(label, 16), []),
  driver: withDefault(oneOf("provider", LOCAL, "ends"), "provider"),
  ends: leftOut(list(hex32, 64), []),
  verify: withDefault(oneOf("none", "sampled"), "none"),
  codecs: leftOut(mapOf(name, oneOf("bf16", "int8"), 8192), new Map()),
  lookahead: leftOut(integer(1n, 256n), 1n),
});

export type Terms = Typed<typeof termsFields>;

export const terms = document(termsFields, { what: "terms", code: "bad-plan", mostBytes: 65_536 });

const assignment = object({ task: name, provider: hex32Or(LOCAL), price_msat: msat });
const verification = object({ policy: oneOf("none", "sampled"), rate_ppm: ppm, share_ppm: ppm });

const planFields = object({
  v: version,
  algorithm: withDefault(oneOf("assign/2", "file/1"), "assign/2"),
  manifest: hex32,
  committee: hex32,
  epoch,
  snapshot: hex32,
  certificate: hex32,
  beacon: hex32,
  customer: hex32,
  k: integer(0n, 7n),
  busy: withDefault(list(hex32, 8), []),
  terms,
  tasks: list(assignment, 1024, 1),
  chunk_msat: msat,
  first_result_ms: count,
  next_result_ms: count,
  verification,
});

export type Plan = Typed<typeof planFields>;

export const plan = document(checked(planFields, check), {
  what: "plan",
  tag: "nodewire/plan/1",
  code: "bad-plan",
  mostBytes: 65_536,
});

function check(typed: Plan, at: Place): void {
  refuseTwice(
    typed.tasks.map((one) => one.task),
    below(at, "tasks"),
  );
  const sum = typed.tasks.reduce((all, one) => all + one.price_msat, 0n);
  if (sum !== typed.chunk_msat) throw fault(below(at, "chunk_msat"), `is not the sum of the prices, ${sum}`);
}

/** The plan's providers, each once, in the tasks' order. */
export function providersOf(typed: Plan): string[] {
  return [...new Set(typed.tasks.map((one) => one.provider))].filter((one) => one !== LOCAL);
}

/** The last epoch whose certificate makes a root of this chunk final. */
export function deadlineEpoch(typed: Plan, of: Committee, chunk: bigint): bigint {
  const waits =
    60_000n +
    (1n + BigInt(providersOf(typed).length)) * typed.first_result_ms +
    chunk * (512n * typed.next_result_ms + 30_000n);
  const epochs = 12n + (waits + of.epoch_ms - 1n) / of.epoch_ms;
  return typed.epoch + (epochs < 4096n ? epochs : 4096n);
}

/** Raises bad-plan if the terms narrow an edge that may not be narrowed, or for nothing (nips/12-narrowed-edges.md). */
export function checkCodecs(codecs: Terms["codecs"], of: Manifest): void {
  const refused = (reason: string): NodewireError => new NodewireError("bad-plan", "terms.codecs", reason);
  for (const [name, codec] of codecs) {
    const edge = of.edges.find((one) => one.name === name);
    if (!edge) throw refused(`${name} is no edge of the manifest`);
    const isInner = edge.source !== CUSTOMER && edge.target !== CUSTOMER;
    if (!isInner || edge.exact) throw refused(`${name} may not be narrowed`);
    if (!edge.tensors.some((one) => NARROWED[codec].includes(one.dtype)))
      throw refused(`${name} has no tensor that ${codec} changes`);
  }
}

const NARROWED: Record<"bf16" | "int8", readonly string[]> = {
  bf16: ["float32"],
  int8: ["float32", "float16", "bfloat16"],
};
