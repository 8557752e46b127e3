/** Committees and what oracles say (nips/03-committees.md, nips/06-oracle-rounds.md). */

import { document } from "../document.js";
import { isOnOnePolynomial } from "../beacon.js";
import {
  below,
  bool,
  checked,
  count,
  epoch,
  fault,
  hex32,
  integer,
  leftOut,
  list,
  msat,
  name,
  object,
  oneOf,
  point,
  ppm,
  type Place,
  refuseTwice,
  refuseUnsorted,
  relayUrl,
  type Typed,
  version,
  webUrl,
  withDefault,
} from "../schema.js";

const oracle = object({ pubkey: hex32, share_index: integer(1n, 31n), share_public: point });

const committeeFields = object({
  v: version,
  name,
  oracles: list(oracle, 31, 1),
  f: integer(0n, 10n),
  genesis_s: count,
  epoch_ms: integer(100n, 3_600_000n),
  skew_ms: integer(10n, 600_000n),
  beat_ms: integer(50n, 600_000n),
  fee_ppm: withDefault(ppm, 0n),
  vrf_public: point,
  relays: withDefault(list(relayUrl, 16), []),
  blobs: withDefault(list(webUrl, 16), []),
  min_us_per_position: withDefault(integer(1n, 1n << 40n), 100n),
  bond_unit_msat: withDefault(integer(1n, 2_100_000_000_000_000_000n), 1_000_000n),
  bond_holders: withDefault(list(hex32, 16), []),
  verify_rate_ppm: withDefault(ppm, 0n),
  verify_share_ppm: withDefault(ppm, 0n),
  stake: leftOut(integer(0n, 1_000_000n), 100n),
});

export type Committee = Typed<typeof committeeFields>;

export const committee = document(checked(committeeFields, checkCommittee), {
  what: "committee",
  tag: "nodewire/committee/1",
  code: "bad-quorum",
  mostBytes: 32 * 1024,
});

function checkCommittee(typed: Committee, at: Place): void {
  const { oracles, f } = typed;
  if (BigInt(oracles.length) !== 3n * f + 1n) throw fault(below(at, "f"), `does not fit ${oracles.length} oracles: n = 3f + 1`);
  refuseTwice(
    oracles.map((one) => one.pubkey),
    below(at, "oracles"),
  );
  if (oracles.some((one, n) => one.share_index !== BigInt(n + 1)))
    throw fault(below(at, "oracles"), "has share_index other than 1 to n in order");
  if (5n * typed.skew_ms > typed.epoch_ms) throw fault(below(at, "skew_ms"), "is above a fifth of epoch_ms");
  const shares = oracles.map((one) => one.share_public);
  if (!isOnOnePolynomial(shares, typed.vrf_public, Number(2n * f)))
    throw fault(below(at, "vrf_public"), "is not what the public shares give");
}

/** When epoch e closes, in ms. */
export function closeMs(of: Committee, epoch: bigint): bigint {
  return of.genesis_s * 1000n + (epoch + 1n) * of.epoch_ms;
}

const outcome = oneOf("pass", "unsure", "withheld");
export const judged = object({ epoch, sample: hex32, provider: hex32, outcome, price_msat: withDefault(msat, 0n) });
type Judged = Typed<typeof judged>;

/** The order of `judged`: by epoch, sample, provider, outcome, price_msat. */
function judgedKey(one: Judged): string {
  const number = (value: bigint): string => value.toString().padStart(20, "0");
  return `${number(one.epoch)} ${one.sample} ${one.provider} ${one.outcome.padEnd(8)} ${number(one.price_msat)}`;
}

const inventoryFields = object({
  v: version,
  committee: hex32,
  epoch,
  beats: list(hex32, 8192),
  commitments: list(hex32, 4096),
  judged: withDefault(list(judged, 1024), []),
  bonded: leftOut(list(hex32, 8192), []),
});

export type Inventory = Typed<typeof inventoryFields>;

export const inventory = document(
  checked(inventoryFields, (typed, at) => {
    refuseUnsorted(typed.beats, below(at, "beats"));
    refuseUnsorted(typed.commitments, below(at, "commitments"));
    refuseUnsorted(typed.judged.map(judgedKey), below(at, "judged"));
    refuseUnsorted(typed.bonded, below(at, "bonded"));
    refuseTwice([...typed.beats, ...typed.bonded], below(at, "bonded"));
    if (typed.beats.length + typed.bonded.length > 8192) throw fault(below(at, "bonded"), "and beats are more than 8192");
  }),
  { what: "inventory", tag: "nodewire/inventory/1", code: "bad-event", mostBytes: 1 << 20 },
);

const bodyFields = object({
  v: version,
  committee: hex32,
  epoch,
  snapshot: hex32,
  commitments: hex32,
  inventories: list(hex32, 31, 1),
  previous: hex32,
  is_crowded: leftOut(bool, false),
});

export type Body = Typed<typeof bodyFields>;

export const body = document(
  checked(bodyFields, (typed, at) => refuseUnsorted(typed.inventories, below(at, "inventories"))),
  { what: "body", tag: "nodewire/body/1", code: "bad-quorum", mostBytes: 16 * 1024 },
);

const partialFields = object({ v: version, index: integer(1n, 31n), gamma: point, c: hex32, s: hex32 });

export type Partial = Typed<typeof partialFields>;

export const partial = document(partialFields, { what: "partial", code: "bad-event", mostBytes: 1024 });
