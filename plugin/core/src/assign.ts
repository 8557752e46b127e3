/** `assign/2` (nips/08-assignment.md): which provider computes which task, derived and not chosen. No I/O, no clock. */

import { bigEndian, fromHex, toNumber } from "./bytes.js";
import { type Body, body as bodyType, type Committee, committee as committeeType } from "./documents/committee.js";
import { CUSTOMER, type Edge, innerEdges, type Manifest, manifest as manifestType } from "./documents/manifest.js";
import { checkCodecs, LOCAL, type Plan, type Terms } from "./documents/plan.js";
import type { Node, Snapshot } from "./documents/snapshot.js";
import { NodewireError } from "./errors.js";
import { taggedHash } from "./hash.js";

const MOST_UNITS = 1000n;
const MOST_CANDIDATES = 8;
const MOST_REFUSALS = 8;
const HEX32 = /^[0-9a-f]{64}$/;
const UNPLACED_LINK_US = 50_000n;
const MOST_WAIT_MS = 600_000n;

/** A feedback `busy` that a plan cites: its event's id, and its author. */
export interface Busy {
  readonly id: string;
  readonly provider: string;
}

export interface AssignInput {
  readonly manifest: Manifest;
  /** The one that `body` certifies by its SHA-256, which the caller has checked. */
  readonly snapshot: Pick<Snapshot, "committee" | "epoch" | "nodes">;
  readonly body: Body;
  readonly beacon: string;
  readonly committee: Committee;
  readonly terms: Terms;
  readonly customer: string;
  readonly k: number;
  readonly busy: readonly Busy[];
}

interface Offer {
  readonly node: Node;
  readonly price: bigint;
  readonly us: bigint;
  readonly isBonded: boolean;
  readonly weight: bigint;
}

/** A task of the plan: whom it may go to, or that it is the customer's. */
interface Part {
  readonly task: string;
  readonly isLocal: boolean;
  readonly offers: readonly Offer[];
}

/** Raises bad-input, bad-plan, no-provider (of a task), over-budget (of a limit of the terms), in this order. */
export function assign(input: AssignInput): Plan {
  const { manifest, body, committee, terms } = input;
  checkInput(input);
  checkCodecs(terms.codecs, manifest);
  const digest = manifestType.digest(manifest);
  if (terms.verify === "sampled" && answersTokens(manifest))
    throw new NodewireError("bad-plan", "terms.verify", "cannot be `sampled` where a ring answers tokens");
  const parts = partsOf(input, digest);
  const seed = taggedHash(
    "nodewire/assign/2",
    fromHex(input.beacon),
    fromHex(digest),
    fromHex(input.customer),
    Uint8Array.of(input.k),
  );
  const open = openTask(parts, input, seed);
  const candidates = parts.map((part, i) => (part.isLocal ? [] : draw(part.offers, i, i === open, seed)));
  const placed = place(input, parts, candidates);
  const chunkMsat = sum(placed.map((one) => one?.price ?? 0n));
  if (chunkMsat > terms.max_total_msat)
    throw new NodewireError("over-budget", "max_total_msat", `is below the price of one chunk, ${chunkMsat}`);
  return {
    v: 1n,
    algorithm: "assign/2",
    manifest: digest,
    committee: committeeType.digest(committee),
    epoch: body.epoch,
    snapshot: body.snapshot,
    certificate: bodyType.digest(body),
    beacon: input.beacon,
    customer: input.customer,
    k: BigInt(input.k),
    busy: input.busy.map((one) => one.id),
    terms,
    tasks: parts.map((part, i) => ({
      task: part.task,
      provider: placed[i]?.node.pubkey ?? LOCAL,
      price_msat: placed[i]?.price ?? 0n,
    })),
    chunk_msat: chunkMsat,
    ...deadlines(manifest, parts, placed),
    verification:
      terms.verify === "sampled"
        ? { policy: "sampled", rate_ppm: committee.verify_rate_ppm, share_ppm: committee.verify_share_ppm }
        : { policy: "none", rate_ppm: 0n, share_ppm: 0n },
  };
}

function checkInput({ snapshot, body, committee, k, busy, beacon, customer }: AssignInput): void {
  const refused = (field: string, reason: string): NodewireError => new NodewireError("bad-input", field, reason);
  const digest = committeeType.digest(committee);
  if (snapshot.committee !== digest || body.committee !== digest || snapshot.epoch !== body.epoch)
    throw refused("snapshot", "is not of this committee and epoch");
  if (busy.length > MOST_REFUSALS) throw refused("busy", `are more than ${MOST_REFUSALS}`);
  if (!Number.isInteger(k) || k < 0 || k > MOST_REFUSALS - 1) throw refused("k", "is no number from 0 to 7");
  if (!HEX32.test(beacon)) throw refused("beacon", "is not 64 lowercase hex digits");
  if (!HEX32.test(customer)) throw refused("customer", "is not 64 lowercase hex digits");
}

/** Steps 1 to 3. */
function partsOf(input: AssignInput, digest: string): Part[] {
  const { manifest, terms } = input;
  const ends = endsOf(manifest);
  const local = new Set(
    terms.driver === "ends" ? ends : terms.driver === LOCAL ? [manifest.tasks[0]!.name] : [],
  );
  if (local.size === manifest.tasks.length)
    throw new NodewireError("no-provider", "driver", "all tasks are the customer's own: nothing is left to buy");
  const kept = input.snapshot.nodes.filter((node) => isKept(node, input, digest));
  return manifest.tasks.map(({ name }) => {
    if (local.has(name)) return { task: name, isLocal: true, offers: [] };
    const only = ends.has(name) && terms.ends.length > 0 ? new Set(terms.ends) : undefined;
    const offers = kept
      .filter((node) => !only || only.has(node.pubkey))
      .flatMap((node) => offersOf(node, name, digest, input));
    if (offers.length === 0) throw new NodewireError("no-provider", name, "is served by nobody under these terms");
    return { task: name, isLocal: false, offers };
  });
}

function isKept(node: Node, input: AssignInput, digest: string): boolean {
  const { terms, busy } = input;
  return (
    heldOf(node, digest) !== undefined &&
    !terms.excluded.includes(node.pubkey) &&
    !busy.some((one) => one.provider === node.pubkey) &&
    (terms.trusted.length === 0 || terms.trusted.includes(node.pubkey)) &&
    (terms.regions.length === 0 || terms.regions.includes(node.region))
  );
}

function heldOf(node: Node, digest: string): Node["held"][number] | undefined {
  return node.held.find((held) => held.manifest === digest && held.free > 0n);
}

function offersOf(node: Node, task: string, digest: string, input: AssignInput): Offer[] {
  const offered = heldOf(node, digest)?.tasks.find((one) => one.task === task);
  if (!offered || offered.price_msat > input.terms.max_chunk_msat) return [];
  const { price_msat: price, us_per_position: us } = offered;
  return [{ node, price, us, isBonded: isBonded(node, input), weight: weight(node, price, us, input.committee) }];
}

/** The first task, and those beside it where the manifest generates, those beside the customer where it does not. */
export function endsOf(manifest: Manifest): Set<string> {
  const first = manifest.tasks[0]!.name;
  const end = manifest.mode === "generate" ? first : CUSTOMER;
  const beside = manifest.edges.flatMap((edge) =>
    edge.source === end ? [edge.target] : edge.target === end ? [edge.source] : [],
  );
  const ends = new Set([first, ...beside]);
  ends.delete(CUSTOMER);
  return ends;
}

function isBonded(node: Node, { committee }: AssignInput): boolean {
  return node.bond_msat >= committee.bond_unit_msat;
}

/** How likely an offer is drawn. */
export function weight(node: Node, price: bigint, us: bigint, committee: Committee): bigint {
  const units = least(most(node.bond_msat / committee.bond_unit_msat, 1n), MOST_UNITS);
  const speed = most(1_000_000n / us, 1n);
  const idle = 16n - (node.load_ppm * 8n) / 1_000_000n;
  const known = 4n + bitLength(least(node.epochs, 4095n));
  const passes = least(bitLength(points(node.passed) / most(price, 1n)), 8n);
  const repute = (10_000_000n + committee.verify_share_ppm * passes) >> least(points(node.withheld), 4n);
  return units * speed * idle * known * repute;
}

const points = (account: bigint): bigint => (account + 4095n) / 4096n;

/** Step 4: which part may go to an unbonded node, if any. */
function openTask(parts: readonly Part[], input: AssignInput, seed: Uint8Array): number | undefined {
  const q = toNumber(taggedHash("nodewire/quota/2", seed));
  if (q % 20n !== 0n) return undefined;
  const leftOut = new Set([...input.terms.excluded, ...input.busy.map((one) => one.provider)]);
  if (input.snapshot.nodes.some((node) => leftOut.has(node.pubkey) && !isBonded(node, input))) return undefined;
  const contested = parts.flatMap((part, i) =>
    part.offers.some((one) => one.isBonded) && part.offers.some((one) => !one.isBonded) ? [i] : [],
  );
  return contested.length === 0 ? undefined : contested[Number((q / 20n) % BigInt(contested.length))];
}

/** Step 5: up to 8 candidates in the order of their draws. */
function draw(offers: readonly Offer[], task: number, isOpen: boolean, seed: Uint8Array): Offer[] {
  const bonded = offers.filter((one) => one.isBonded);
  const unbonded = offers.filter((one) => !one.isBonded);
  const pool = bonded.length > 0 ? bonded : unbonded;
  const drawn: Offer[] = [];
  for (let j = 0; j < MOST_CANDIDATES; j++) {
    const from = isOpen && j === 0 ? unbonded : pool;
    if (from.length === 0) break;
    const h = toNumber(
      taggedHash("nodewire/draw/2", seed, bigEndian(BigInt(task), 4), bigEndian(BigInt(j), 4)),
    );
    const lot = h % sum(from.map((one) => one.weight));
    let running = 0n;
    const at = from.findIndex((one) => (running += one.weight) > lot);
    drawn.push(...from.splice(at, 1));
  }
  return drawn;
}

/** Step 6: for each part the offer that it goes to; undefined where it is the customer's. */
function place(
  { manifest, terms }: AssignInput,
  parts: readonly Part[],
  candidates: readonly (readonly Offer[])[],
): (Offer | undefined)[] {
  const number = new Map(parts.map((part, i) => [part.task, i]));
  const edges = innerEdges(manifest);
  const cheapest = candidates.map((some) => (some.length === 0 ? 0n : some.map((one) => one.price).reduce(least)));
  const placed: (Offer | undefined)[] = [];
  let left = terms.max_chunk_msat;
  parts.forEach((part, i) => {
    if (part.isLocal) {
      placed.push(undefined);
      return;
    }
    const later = sum(cheapest.slice(i + 1));
    const mine = edges.filter((edge) => edge.source === part.task || edge.target === part.task);
    const priced = candidates[i]!.filter((one) => one.price + later <= left).map((offer) => ({
      offer,
      cost: offer.us + sum(mine.map((edge) => crossing(edge, offer, placed[number.get(other(edge, part.task))!]))),
    }));
    if (priced.length === 0)
      throw new NodewireError("over-budget", "max_chunk_msat", `is too little where ${part.task} is placed`);
    const bound = 5n * priced.map((one) => one.cost).reduce(least);
    const { offer } = priced.find((one) => 4n * one.cost <= bound)!;
    left -= offer.price;
    placed.push(offer);
  });
  return placed;
}

function other(edge: Edge, task: string): string {
  return edge.source === task ? edge.target : edge.source;
}

/** What an edge costs between two offers' nodes, in us per position; nothing within one, nor to the customer. */
function crossing(edge: Edge, one: Offer | undefined, another: Offer | undefined): bigint {
  if (!one || !another || one.node.pubkey === another.node.pubkey) return 0n;
  return link(one.node, another.node) + (edge.bytes_per_position * 1000n) / 12_500n;
}

/** One way between two nodes, in us. */
function link(one: Node, another: Node): bigint {
  if (!one.is_placed || !another.is_placed) return UNPLACED_LINK_US;
  const [x, y, height] = one.coordinates;
  const [u, v, other] = another.coordinates;
  return (isqrt((x - u) ** 2n + (y - v) ** 2n) + height + other) / 2n;
}

/** Step 7. */
function deadlines(
  manifest: Manifest,
  parts: readonly Part[],
  placed: readonly (Offer | undefined)[],
): Pick<Plan, "first_result_ms" | "next_result_ms"> {
  const number = new Map(parts.map((part, i) => [part.task, i]));
  const computed = sum(placed.map((one) => one?.us ?? 0n));
  const at = (task: string): Offer | undefined => placed[number.get(task)!];
  const turn = computed + sum(innerEdges(manifest).map((edge) => crossing(edge, at(edge.source), at(edge.target))));
  const next = least(2000n + (turn * 8n) / 1000n, MOST_WAIT_MS);
  const prompt = (computed * most(manifest.context, 1n)) / 1000n;
  return { next_result_ms: next, first_result_ms: least(5000n + next + prompt, MOST_WAIT_MS) };
}

/** Whether a ring's last stage answers tokens, which nobody can compare as rows (step 8). */
function answersTokens(manifest: Manifest): boolean {
  const first = manifest.tasks[0]!.name;
  return (
    manifest.mode === "generate" &&
    manifest.edges.some(
      (edge) => edge.back && edge.target === first && edge.tensors.some((one) => INTEGERS.has(one.dtype)),
    )
  );
}

const INTEGERS: ReadonlySet<string> = new Set(["int64", "int32", "uint8"]);

/** The integer square root: the greatest r with r * r <= n. */
export function isqrt(n: bigint): bigint {
  if (n < 2n) return n;
  let r = 1n << ((bitLength(n) + 1n) >> 1n);
  for (;;) {
    const next = (r + n / r) >> 1n;
    if (next >= r) return r;
    r = next;
  }
}

function bitLength(n: bigint): bigint {
  return n === 0n ? 0n : BigInt(n.toString(2).length);
}

const least = (a: bigint, b: bigint): bigint => (a < b ? a : b);
const most = (a: bigint, b: bigint): bigint => (a > b ? a : b);
const sum = (numbers: readonly bigint[]): bigint => numbers.reduce((all, one) => all + one, 0n);
