/** Ads and beats of providers, and ads of splices (nips/04-ads.md, nips/05-beats.md, nips/24-reach.md). */

import { document } from "../document.js";
import {
  below,
  checked,
  count,
  epoch,
  fault,
  hex32,
  integer,
  label,
  leftOut,
  list,
  mapOf,
  msat,
  name,
  nullable,
  object,
  pattern,
  ppm,
  refuseTwice,
  refuseUnsorted,
  relayUrl,
  type Schema,
  type Typed,
  version,
  webUrl,
  withDefault,
} from "../schema.js";
import { coordinates, offer, rttUs } from "./snapshot.js";

const HOST = String.raw`(?:\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9.-]{1,253})`;
const ADDRESS = new RegExp(String.raw`^(?:splice:[0-9a-f]{64}@)?${HOST}:([0-9]{1,5})$`);
const HOST_PORT = new RegExp(String.raw`^${HOST}:([0-9]{1,5})$`);

const withPort = (form: RegExp, what: string): Schema<string> =>
  checked(pattern(form, what), (typed, at) => {
    const port = Number(form.exec(typed)![1]);
    if (port < 1 || port > 65_535) throw fault(at, "has a port that is not from 1 to 65535");
  });

const address = withPort(ADDRESS, "host:port or splice:<public key>@host:port");
const hostPort = withPort(HOST_PORT, "host:port");

const urlOrNone: Schema<string> = {
  read: (value, at) => (value === "" ? "" : webUrl.read(value, at)),
  write: (typed) => typed,
};

const adFields = object({
  v: version,
  name,
  manifests: list(object({ manifest: hex32, tasks: list(offer, 1024, 1), slots: integer(1n, 4096n) }), 16, 1),
  wire: withDefault(list(address, 8), []),
  lnurl: withDefault(urlOrNone, ""),
  pow_bits: withDefault(integer(0n, 64n), 0n),
  memory_bytes: withDefault(count, 0n),
  hardware: withDefault(label, ""),
  region: withDefault(label, ""),
  relays: withDefault(list(relayUrl, 16), []),
  committees: withDefault(list(hex32, 16), []),
  bond_msat: withDefault(msat, 0n),
  bond: withDefault(nullable(hex32), null),
  lookahead: leftOut(integer(1n, 256n), 1n),
  cached_ppm: leftOut(integer(1n, 1_000_000n), 1_000_000n),
  credit: leftOut(nullable(object({ first_msat: msat, most_msat: msat, unit_msat: integer(1n, 1_000n) })), null),
});

export type Ad = Typed<typeof adFields>;

export const ad = document(
  checked(adFields, (typed, at) => {
    const place = below(at, "manifests");
    refuseTwice(
      typed.manifests.map((one) => one.manifest),
      place,
    );
    typed.manifests.forEach((one, n) =>
      refuseTwice(
        one.tasks.map((task) => task.task),
        below(below(place, n), "tasks"),
      ),
    );
    if (typed.manifests.reduce((all, one) => all + one.tasks.length, 0) > 1024)
      throw fault(place, "names more than 1024 tasks in all");
  }),
  { what: "ad", tag: "nodewire/ad/1", code: "bad-event", mostBytes: 32 * 1024 },
);

const beatFields = object({
  v: version,
  committee: hex32,
  last: hex32,
  epoch,
  ad: hex32,
  load_ppm: ppm,
  free: mapOf(hex32, integer(0n, 4096n), 16),
  coordinates,
  observed: leftOut(list(object({ node: hex32, rtt_us: rttUs }), 8), []),
});

export type Beat = Typed<typeof beatFields>;

export const beat = document(
  checked(beatFields, (typed, at) =>
    refuseUnsorted(
      typed.observed.map((one) => one.node),
      below(at, "observed"),
    ),
  ),
  { what: "beat", tag: "nodewire/beat/1", code: "bad-event", mostBytes: 3072 },
);

const spliceFields = object({
  v: version,
  name,
  at: list(hostPort, 4, 1),
  bytes_per_s: integer(1n, 1n << 40n),
  most_bytes: count,
  region: withDefault(label, ""),
});

export type SpliceAd = Typed<typeof spliceFields>;

export const spliceAd = document(spliceFields, { what: "splice", code: "bad-event", mostBytes: 4096 });
