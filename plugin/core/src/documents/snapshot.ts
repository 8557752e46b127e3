/** Snapshots: the live nodes that a certified body names (nips/07-snapshots.md). */

import { document } from "../document.js";
import { judged } from "./committee.js";
import {
  below,
  bool,
  checked,
  count,
  epoch,
  hex32,
  integer,
  label,
  list,
  msat,
  name,
  nullable,
  object,
  ppm,
  refuseUnsorted,
  text,
  triple,
  type Typed,
  version,
  withDefault,
} from "../schema.js";

const REACH = 10_000_000n;
export const coordinates = triple(integer(-REACH, REACH), integer(-REACH, REACH), integer(0n, REACH));
export const rttUs = nullable(integer(1n, REACH));
export const offer = object({ task: name, price_msat: msat, us_per_position: integer(1n, 1n << 40n) });

const held = object({ manifest: hex32, free: integer(0n, 4096n), tasks: list(offer, 1024) });
const seen = object({ observer: hex32, epoch, rtt_us: rttUs });

export const node = object({
  pubkey: hex32,
  beat: hex32,
  ad: hex32,
  held: list(held, 16),
  bond_msat: msat,
  region: label,
  load_ppm: ppm,
  coordinates,
  epochs: count,
  passed: withDefault(count, 0n),
  withheld: withDefault(count, 0n),
  seen: withDefault(list(seen, 8), []),
  is_placed: withDefault(bool, false),
});

const account = object({ pubkey: hex32, passed: count, withheld: count });

const fields = object({
  v: version,
  committee: hex32,
  epoch,
  nodes: list(node, 4096),
  events: list(text(65_536), 16_384),
  judged: withDefault(list(judged, 1024), []),
  absent: withDefault(list(account, 4096), []),
});

export type Node = Typed<typeof node>;
export type Snapshot = Typed<typeof fields>;

export const snapshot = document(
  checked(fields, (typed, at) => {
    refuseUnsorted(
      typed.nodes.map((one) => one.pubkey),
      below(at, "nodes"),
    );
    refuseUnsorted(
      typed.absent.map((one) => one.pubkey),
      below(at, "absent"),
    );
  }),
  { what: "snapshot", mostBytes: 96 << 20 },
);
