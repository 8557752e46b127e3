/** Beacons: partials of oracles, and the random number that 2f+1 of them make (nips/03-committees.md). */

import { secp256k1 } from "@noble/curves/secp256k1.js";
import { concat, fromHex, toHex, toNumber } from "./bytes.js";
import { NodewireError } from "./errors.js";
import { taggedHash } from "./hash.js";

const Point = secp256k1.Point;
type CurvePoint = InstanceType<typeof Point>;
const N = Point.Fn.ORDER;

export interface BeaconPartial {
  readonly index: bigint;
  readonly gamma: string;
  readonly c: string;
  readonly s: string;
}

/** The point that all oracles multiply: of the certified body's digest. */
export function hashToPoint(alpha: Uint8Array): Uint8Array {
  for (let counter = 0; counter < 256; counter++) {
    const compressed = concat(
      Uint8Array.of(2),
      taggedHash("nodewire/dvrf/h2c/1", alpha, Uint8Array.of(counter)),
    );
    if (isPoint(compressed)) return compressed;
  }
  throw new NodewireError("error", "alpha", "gives no point");
}

/** Raises bad-signature unless the partial is of the oracle with this public share, over this body. */
export function verifyPartial(alpha: Uint8Array, sharePublic: string, partial: BeaconPartial): void {
  const refused = (field: string, reason: string): NodewireError => new NodewireError("bad-signature", field, reason);
  const c = toNumber(fromHex(partial.c));
  const s = toNumber(fromHex(partial.s));
  if (c <= 0n || c >= N) throw refused("c", "is no scalar");
  if (s <= 0n || s >= N) throw refused("s", "is no scalar");
  if (!isPoint(fromHex(partial.gamma))) throw refused("gamma", "is no point");
  const h = hashToPoint(alpha);
  const share = Point.fromHex(sharePublic);
  const gamma = Point.fromHex(partial.gamma);
  const a = Point.BASE.multiplyUnsafe(s).subtract(share.multiplyUnsafe(c));
  const b = Point.fromBytes(h).multiplyUnsafe(s).subtract(gamma.multiplyUnsafe(c));
  if (a.is0() || b.is0()) throw refused("s", "gives no point");
  const again = taggedHash("nodewire/dvrf/dleq/1", fromHex(sharePublic), h, fromHex(partial.gamma), a.toBytes(), b.toBytes());
  if (toNumber(again) % N !== c) throw refused("c", "does not follow from the partial");
}

/** The beacon of `threshold` valid partials by distinct oracles. Raises no-quorum if there are fewer. */
export function combine(partials: readonly BeaconPartial[], threshold: number): string {
  const distinct = [...new Map(partials.map((one) => [one.index, one])).values()];
  if (distinct.length < threshold)
    throw new NodewireError("no-quorum", "beacon", `partials are ${distinct.length} of ${threshold}`);
  const taken = distinct.slice(0, threshold);
  const indices = taken.map((one) => one.index);
  const gamma = sum(taken.map((one) => Point.fromHex(one.gamma).multiplyUnsafe(lagrange(indices, one.index, 0n))));
  return toHex(taggedHash("nodewire/beacon/1", gamma.toBytes()));
}

/** Whether the shares of oracles 1 to n lie on a polynomial of that degree whose value at 0 is `atZero`. */
export function isOnOnePolynomial(shares: readonly string[], atZero: string, degree: number): boolean {
  if (![...shares, atZero].every((one) => isPoint(fromHex(one)))) return false;
  const known = shares.slice(0, degree + 1).map((one) => Point.fromHex(one));
  const indices = known.map((_, n) => BigInt(n + 1));
  const at = (x: bigint): CurvePoint =>
    sum(known.map((one, n) => one.multiplyUnsafe(lagrange(indices, indices[n]!, x))));
  if (!at(0n).equals(Point.fromHex(atZero))) return false;
  return shares.slice(degree + 1).every((one, n) => at(BigInt(degree + 2 + n)).equals(Point.fromHex(one)));
}

/** The weight of oracle i's value for the polynomial's value at x. */
function lagrange(indices: readonly bigint[], i: bigint, x: bigint): bigint {
  const Fn = Point.Fn;
  return indices
    .filter((j) => j !== i)
    .reduce((all, j) => Fn.mul(all, Fn.mul(Fn.create(j - x), Fn.inv(Fn.create(j - i)))), 1n);
}

function sum(points: readonly CurvePoint[]): CurvePoint {
  return points.reduce((all, one) => all.add(one), Point.ZERO);
}

function isPoint(compressed: Uint8Array): boolean {
  try {
    Point.fromBytes(compressed).assertValidity();
    return true;
  } catch {
    return false;
  }
}
