/**
 * What everybody reads before a job: manifests 38840, committees 38841, ads 31990, beats 11998 and bond statements 8858
 * (nips/02-manifests.md to nips/05-beats.md, nips/09-bonds.md, nips/24-reach.md).
 */

import { toUtf8 } from "../bytes.js";
import { NodewireError } from "../errors.js";
import { blobHash } from "../hash.js";
import { type Ad, ad, type Beat, beat, type SpliceAd, spliceAd } from "../documents/ad.js";
import { closeMs, type Committee, committee } from "../documents/committee.js";
import { type Manifest, manifest } from "../documents/manifest.js";
import { eventJson, type EventTemplate, type NostrEvent } from "./event.js";
import * as tags from "./tags.js";

export const MANIFEST = 38_840;
export const COMMITTEE = 38_841;
export const AD = 31_990;
export const BEAT = 11_998;
export const BOND = 8858;
export const INFERENCE = 8843;
export const SPLICE_REQUEST = 28_844;

const MOST_INLINE_BYTES = 48_000;
const MOST_SERVERS = 8;
const MOST_BEAT_BYTES = 4096;

export interface ManifestEvent {
  readonly name: string;
  readonly digest: string;
  readonly servers: readonly string[];
  /** The SHA-256 by which its bytes are a blob; null where the event does not say it. */
  readonly blob: string | null;
  /** Null if it is a blob, to be read by `readManifestBlob`. */
  readonly manifest: Manifest | null;
}

/** Raises bad-event, bad-tag, bad-hash, bad-manifest, bad-version, too-large. */
export function parseManifest(event: NostrEvent): ManifestEvent {
  tags.checkKind(event, MANIFEST);
  const said: ManifestEvent = {
    name: tags.one(event, "d"),
    digest: tags.hex32(event, "x"),
    servers: tags.values(event, "server").slice(0, MOST_SERVERS),
    blob: event.content === "" || tags.values(event, "blob").length > 0 ? tags.hex32(event, "blob") : null,
    manifest: null,
  };
  if (event.content === "") return said;
  return withManifest(said, manifest.parseJson(event.content));
}

/** With the blob that the event cites. Raises bad-hash, or as `parseManifest`. */
export function readManifestBlob(said: ManifestEvent, blob: Uint8Array): ManifestEvent {
  if (blobHash(blob) !== said.blob) throw new NodewireError("bad-hash", "blob", "is not the manifest's");
  return withManifest(said, manifest.unpack(blob));
}

function withManifest(said: ManifestEvent, found: Manifest): ManifestEvent {
  tags.agree("d", said.name, found.name);
  if (manifest.digest(found) !== said.digest) throw new NodewireError("bad-hash", "x", "is not the manifest's digest");
  return { ...said, manifest: found };
}

/** The event, and the blob that must be stored before it is published. */
export function buildManifest(
  of: Manifest,
  servers: readonly string[],
  createdAt: number,
): { event: EventTemplate; blob: Uint8Array } {
  const blob = manifest.pack(of);
  const json = manifest.json(of);
  const content = toUtf8(json).length > MOST_INLINE_BYTES ? "" : json;
  const cited = [
    ["d", of.name],
    ["k", String(INFERENCE)],
    ["x", manifest.digest(of)],
    ["blob", blobHash(blob)],
    ["mode", of.mode],
    ...servers.map((server) => ["server", server]),
  ];
  return { event: { kind: MANIFEST, created_at: createdAt, tags: cited, content }, blob };
}

export function parseCommittee(event: NostrEvent): Committee {
  tags.checkKind(event, COMMITTEE);
  const found = committee.parseJson(event.content);
  if (tags.hex32(event, "x") !== committee.digest(found))
    throw new NodewireError("bad-hash", "x", "is not the committee's digest");
  return found;
}

export function buildCommittee(of: Committee, createdAt: number): EventTemplate {
  const cited = [["d", of.name], ["x", committee.digest(of)], ...of.oracles.map((one) => ["p", one.pubkey])];
  return { kind: COMMITTEE, created_at: createdAt, tags: cited, content: committee.json(of) };
}

/** Raises as `parseManifest`. Measurements are in `measurementsOf`. */
export function parseAd(event: NostrEvent): Ad {
  tags.checkKind(event, AD);
  const found = ad.parseJson(event.content);
  tags.agree("d", tags.one(event, "d"), found.name);
  if (!tags.values(event, "k").includes(String(INFERENCE))) throw tags.badTag("k", `does not name ${INFERENCE}`);
  const cited = tags.values(event, "x");
  if (cited.length !== found.manifests.length || !found.manifests.every((one, n) => one.manifest === cited[n]))
    throw tags.badTag("x", "are not the document's manifests in their order");
  return found;
}

export function buildAd(of: Ad, createdAt: number, measured: readonly (readonly string[])[] = []): EventTemplate {
  const cited = [
    ["d", of.name],
    ["k", String(INFERENCE)],
    ...of.manifests.map((one) => ["x", one.manifest]),
    ...measured.map((tag) => [...tag]),
  ];
  return { kind: AD, created_at: createdAt, tags: cited, content: ad.json(of) };
}

/** What a provider says that it measured. These are claims: nobody certifies them. */
export interface Measurements {
  readonly profiledAt?: bigint;
  readonly rates: ReadonlyMap<string, { flopsPerS: bigint; bytesPerS: bigint }>;
  readonly fit?: { callUs: bigint; slower: bigint; within: bigint };
  readonly tasks: readonly {
    manifest: string;
    task: string;
    peakBytes: bigint;
    us: bigint;
    positions: bigint;
    usTogether: bigint;
  }[];
}

const MOST_COUNT = (1n << 53n) - 1n;
const MOST_US = 1n << 40n;
const MOST_RATE = 10n ** 18n;
const MOST_FACTOR = 10n ** 7n;

/** Tags of another form are passed over, and so is what follows the first so many of a name. */
export function measurementsOf(event: NostrEvent, of: Ad): Measurements {
  const read = <T>(name: string, most: number, form: (row: string[]) => T | undefined): T[] =>
    tags
      .rows(event, name)
      .slice(0, most)
      .flatMap((row) => {
        const found = form(row);
        return found === undefined ? [] : [found];
      });
  const [profiledAt] = read("profiled", 1, (row) => (row.length === 2 ? decimal(row[1], 0n, MOST_COUNT) : undefined));
  const rates = new Map<string, { flopsPerS: bigint; bytesPerS: bigint }>();
  for (const [dtype, rate] of read("rate", 3, rateOf)) if (!rates.has(dtype)) rates.set(dtype, rate);
  const [fit] = read("fit", 1, fitOf);
  const tasks = new Map<string, Measurements["tasks"][number]>();
  for (const one of read("measured", 64, (row) => taskOf(row, of))) {
    const key = `${one.manifest} ${one.task}`;
    if (!tasks.has(key)) tasks.set(key, one);
  }
  return {
    ...(profiledAt === undefined ? {} : { profiledAt }),
    rates,
    ...(fit === undefined ? {} : { fit }),
    tasks: [...tasks.values()],
  };
}

function decimal(text: string | undefined, least: bigint, most: bigint): bigint | undefined {
  if (text === undefined || !/^[0-9]{1,19}$/.test(text)) return undefined;
  const number = BigInt(text);
  return number < least || number > most ? undefined : number;
}

function rateOf(row: string[]): [string, { flopsPerS: bigint; bytesPerS: bigint }] | undefined {
  const flopsPerS = decimal(row[2], 1n, MOST_RATE);
  const bytesPerS = decimal(row[3], 1n, MOST_RATE);
  if (row.length !== 4 || !["float32", "bfloat16", "float16"].includes(row[1]!)) return undefined;
  if (flopsPerS === undefined || bytesPerS === undefined) return undefined;
  return [row[1]!, { flopsPerS, bytesPerS }];
}

function fitOf(row: string[]): Measurements["fit"] | undefined {
  const callUs = decimal(row[1], 0n, MOST_US);
  const slower = decimal(row[2], 1n, MOST_FACTOR);
  const within = decimal(row[3], 1000n, MOST_FACTOR);
  if (row.length !== 4 || callUs === undefined || slower === undefined || within === undefined) return undefined;
  return { callUs, slower, within };
}

function taskOf(row: string[], of: Ad): Measurements["tasks"][number] | undefined {
  const [, x, task = "", peak, us, positions, together] = row;
  const offered = of.manifests[Number(decimal(x, 0n, 15n) ?? 16n)];
  if (row.length !== 7 || !offered?.tasks.some((one) => one.task === task)) return undefined;
  const found = {
    peakBytes: decimal(peak, 0n, MOST_COUNT),
    us: decimal(us, 1n, MOST_US),
    positions: decimal(positions, 1n, 1n << 20n),
    usTogether: decimal(together, 1n, MOST_US),
  };
  if (Object.values(found).some((one) => one === undefined)) return undefined;
  const said = found as { [K in keyof typeof found]: bigint };
  if (said.positions === 1n && said.us !== said.usTogether) return undefined;
  return { manifest: offered.manifest, task, ...said };
}

export function parseSpliceAd(event: NostrEvent): SpliceAd {
  tags.checkKind(event, AD);
  const found = spliceAd.parseJson(event.content);
  tags.agree("d", tags.one(event, "d"), found.name);
  if (tags.one(event, "k") !== String(SPLICE_REQUEST)) throw tags.badTag("k", `is not ${SPLICE_REQUEST}`);
  return found;
}

export function buildSpliceAd(of: SpliceAd, createdAt: number): EventTemplate {
  const cited = [
    ["d", of.name],
    ["k", String(SPLICE_REQUEST)],
  ];
  return { kind: AD, created_at: createdAt, tags: cited, content: spliceAd.json(of) };
}

export function parseBeat(event: NostrEvent): Beat {
  tags.checkKind(event, BEAT);
  if (toUtf8(eventJson(event)).length > MOST_BEAT_BYTES)
    throw new NodewireError("too-large", "beat", `has more than ${MOST_BEAT_BYTES} bytes as an event`);
  const found = beat.parseJson(event.content);
  tags.agree("c", tags.hex32(event, "c"), found.committee);
  if (found.observed.some((one) => one.node === event.pubkey))
    throw new NodewireError("bad-event", "observed", "says something about its own node");
  tags.one(event, "expiration");
  return found;
}

/** `created_at` rises by one with every beat. */
export function buildBeat(of: Beat, by: Committee, createdAt: number): EventTemplate {
  const cited = [
    ["c", of.committee],
    ["expiration", String(beatExpires(by, of.epoch))],
  ];
  return { kind: BEAT, created_at: createdAt, tags: cited, content: beat.json(of) };
}

/** L: for how many epochs a beat counts. */
export function liveEpochs(of: Committee): bigint {
  return (3n * of.beat_ms + of.epoch_ms - 1n) / of.epoch_ms;
}

function beatExpires(of: Committee, epoch: bigint): bigint {
  return (closeMs(of, epoch + liveEpochs(of) + 1n) + 999n) / 1000n;
}

/** A holder's word on what is left of a provider's bond. */
export interface BondStatement {
  readonly holder: string;
  readonly provider: string;
  readonly amountMsat: bigint;
  readonly expiresAt: bigint;
}

export function parseBond(event: NostrEvent): BondStatement {
  tags.checkKind(event, BOND);
  return {
    holder: event.pubkey,
    provider: tags.hex32(event, "p"),
    amountMsat: tags.number("amount", tags.one(event, "amount"), 2_100_000_000_000_000_000n),
    expiresAt: tags.number("expiration", tags.one(event, "expiration"), MOST_COUNT),
  };
}

export function buildBond(of: Omit<BondStatement, "holder">, createdAt: number): EventTemplate {
  const cited = [
    ["p", of.provider],
    ["amount", String(of.amountMsat)],
    ["expiration", String(of.expiresAt)],
  ];
  return { kind: BOND, created_at: createdAt, tags: cited, content: "" };
}
