/**
 * What is committed to, sampled, judged and paid: nips/17-commitments.md, nips/18-samples.md, nips/09-bonds.md,
 * nips/25-receipts.md.
 */

import { document } from "../document.js";
import { digest } from "../hash.js";
import { leaf, root } from "../merkle.js";
import { pack } from "../msgpack.js";
import { toHex } from "../bytes.js";
import {
  below,
  bool,
  checked,
  count,
  epoch,
  fault,
  hex32,
  hex32Or,
  leftOut,
  list,
  msat,
  name,
  nullable,
  object,
  oneOf,
  pair,
  type Place,
  refuseTwice,
  refuseUnsorted,
  type Typed,
  version,
  withDefault,
} from "../schema.js";

const chunkRoot = object({ request: hex32, task: name, chunk: count, attempt: count, root: hex32 });

export type ChunkRoot = Typed<typeof chunkRoot>;

const commitmentFields = object({ v: version, committee: hex32, epoch, chunks: list(chunkRoot, 16_384, 1) });

export type Commitment = Typed<typeof commitmentFields>;

const padded = (number: bigint): string => number.toString().padStart(20, "0");

export const commitment = document(
  checked(commitmentFields, (typed, at) => {
    refuseUnsorted(
      // names end below every digit and letter by a space: a name sorts before those that begin with it
      typed.chunks.map((one) => `${one.request} ${one.task} ${padded(one.chunk)} ${padded(one.attempt)}`),
      below(at, "chunks"),
    );
    if (typed.chunks.some((one) => one.attempt !== 0n)) throw fault(below(at, "chunks"), "has an attempt other than 0");
  }),
  { what: "commitment", code: "bad-event", mostBytes: 8 << 20 },
);

/** The leaf of a chunk, over its task's root. */
export function chunkLeaf(of: ChunkRoot): Uint8Array {
  return leaf(pack([of.request, of.task, of.chunk, of.attempt, of.root]));
}

/** The Merkle root over chunk leaves: a commitment's `x`, and a claim over the roots of a provider's tasks. */
export function claimRoot(chunks: readonly ChunkRoot[]): string {
  return toHex(root(chunks.map(chunkLeaf)));
}

/** The name of a sample, and of the case about it. */
export function sampleKey(of: { provider: string; request: string; task: string; chunk: bigint; attempt: bigint }): string {
  return digest("nodewire/sample/1", [of.provider, of.request, of.task, of.chunk, of.attempt]);
}

/** The name of the case about a claim that was never committed to. */
export function complaintCase(provider: string, request: string, claim: string): string {
  return digest("nodewire/complaint/1", [provider, request, claim]);
}

const sample = object({
  provider: hex32,
  request: hex32,
  task: name,
  chunk: count,
  attempt: count,
  root: hex32,
  verifiers: list(hex32, 3),
});

const sampledFields = object({
  v: version,
  committee: hex32,
  epoch,
  certificate: hex32,
  request: hex32,
  samples: list(sample, 256, 1),
});

export type JobSamples = Typed<typeof sampledFields>;
export const sampled = document(sampledFields, { what: "sampled", code: "bad-event", mostBytes: 60_000 });

const verdictFields = object({
  v: version,
  committee: hex32,
  epoch,
  request: hex32,
  task: name,
  chunk: count,
  attempt: count,
  provider: hex32,
  root: hex32,
  outcome: oneOf("pass", "fail", "withheld", "unsure"),
  culprit: withDefault(hex32Or(""), ""),
  verifiers: withDefault(list(pair(hex32, bool), 3), []),
  accomplices: withDefault(list(hex32, 3), []),
  equivocated: withDefault(nullable(pair(name, count)), null),
  claimed: withDefault(hex32Or(""), ""),
  claimed_msat: withDefault(msat, 0n),
  price_msat: withDefault(msat, 0n),
});

export type Verdict = Typed<typeof verdictFields>;

export const verdict = document(checked(verdictFields, checkVerdict), {
  what: "verdict",
  tag: "nodewire/verdict/1",
  code: "bad-quorum",
  mostBytes: 4096,
});

function checkVerdict(typed: Verdict, at: Place): void {
  const { outcome, culprit, provider, verifiers, accomplices, equivocated, claimed } = typed;
  const refused = (field: string, reason: string): Error => fault(below(at, field), reason);
  const disagreed = new Set(verifiers.filter(([, agrees]) => !agrees).map(([key]) => key));
  refuseTwice(
    verifiers.map(([key]) => key),
    below(at, "verifiers"),
  );
  if (verifiers.some(([key]) => key === provider)) throw refused("verifiers", "names the provider");
  if (outcome === "fail" && culprit !== provider) throw refused("culprit", "is not the provider whose work fails");
  if (outcome === "pass" && culprit !== "" && !disagreed.has(culprit))
    throw refused("culprit", "is no verifier that disagreed");
  refuseTwice(accomplices, below(at, "accomplices"));
  if (accomplices.length > 0 && (outcome !== "fail" || !accomplices.every((one) => disagreed.has(one))))
    throw refused("accomplices", "are no verifiers that disagreed with a fail");
  if (equivocated !== null) {
    if (outcome !== "unsure" || culprit === "" || culprit === provider)
      throw refused("equivocated", "convicts the producer of an input, by `unsure`");
    if (verifiers.length > 0) throw refused("verifiers", "cannot agree on work whose input is not known");
    if (equivocated[1] > typed.chunk) throw refused("equivocated", "is of a chunk after the sample's");
  } else if ((outcome === "withheld" || outcome === "unsure") && culprit !== "")
    throw refused("culprit", "is convicted in doubt");
  if ((claimed === "") !== (typed.claimed_msat === 0n)) throw refused("claimed_msat", "and claimed go together");
  if (typed.price_msat !== 0n && outcome !== "pass") throw refused("price_msat", "stands in a pass only");
  if (claimed !== "" && (outcome !== "withheld" || verifiers.length > 0))
    throw refused("claimed", "stands in a `withheld` without verifiers only");
}

/** The name of the case that a verdict decides. */
export function verdictKey(of: Verdict): string {
  return of.claimed === "" ? sampleKey(of) : complaintCase(of.provider, of.request, of.claimed);
}

const paid = object({
  chunk: count,
  attempt: count,
  units: count,
  root: hex32,
  feedback: hex32,
  amount_msat: msat,
  fee_msat: msat,
  payment_hash: nullable(hex32),
  zap_receipt: nullable(hex32),
  cached: leftOut(count, 0n),
});

const receiptFields = object({
  v: version,
  request: hex32,
  plan: hex32,
  provider: hex32,
  chunks: list(paid, 128),
  codecs: leftOut(list(oneOf("bf16", "int8"), 2), []),
});

export type Receipt = Typed<typeof receiptFields>;

export const receipt = document(receiptFields, {
  what: "receipt",
  tag: "nodewire/receipt/1",
  code: "bad-event",
  mostBytes: 60_000,
});

const final = object({ chunk: count, attempt: count, commitment: hex32, epoch, certificate: hex32 });

const closingFields = object({
  v: version,
  receipt: hex32,
  request: hex32,
  plan: hex32,
  provider: hex32,
  final: list(final, 128),
  uncertified: list(pair(count, count), 128),
});

export type Closing = Typed<typeof closingFields>;

export const closing = document(
  checked(closingFields, (typed, at) =>
    refuseTwice(
      [
        ...typed.final.map((one) => `${one.chunk}/${one.attempt}`),
        ...typed.uncertified.map(([chunk, attempt]) => `${chunk}/${attempt}`),
      ],
      below(at, "final"),
    ),
  ),
  { what: "closing", tag: "nodewire/closing/1", code: "bad-event", mostBytes: 60_000 },
);
