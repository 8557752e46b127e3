/** Merkle trees (nips/01-documents.md). */

import { bigEndian, concat, toHex } from "./bytes.js";
import { NodewireError } from "./errors.js";
import { taggedHash } from "./hash.js";

export const MAX_LEAVES = 2 ** 20;
const EMPTY = new Uint8Array();

/** Of data, under a salt of 32 bytes or none. */
export function leaf(data: Uint8Array, salt: Uint8Array = EMPTY): Uint8Array {
  if (salt.length !== 0 && salt.length !== 32) throw new NodewireError("bad-input", "salt", "has 32 bytes or none");
  return taggedHash("nodewire/leaf/1", salt, data);
}

/** Of leaf `index` under the tree's secret of 32 bytes. */
export function salt(secret: Uint8Array, index: number): Uint8Array {
  if (secret.length !== 32) throw new NodewireError("bad-input", "secret", "has 32 bytes");
  return taggedHash("nodewire/salt/1", secret, bigEndian(BigInt(index), 8));
}

export function root(leaves: readonly Uint8Array[]): Uint8Array {
  const top = levels(leaves).at(-1)?.[0] ?? EMPTY;
  return rooted(leaves.length, top);
}

/** The siblings of a leaf from the bottom up. */
export function proof(leaves: readonly Uint8Array[], index: number): Uint8Array[] {
  if (!Number.isInteger(index) || index < 0 || index >= leaves.length)
    throw new NodewireError("bad-input", "index", `is none of the ${leaves.length} leaves`);
  const siblings: Uint8Array[] = [];
  let at = index;
  for (const level of levels(leaves)) {
    const sibling = level[at ^ 1];
    if (sibling) siblings.push(sibling);
    at >>= 1;
  }
  return siblings;
}

/** Whether the siblings lead from this leaf to the root of a tree of `count` leaves. */
export function proves(
  siblings: readonly Uint8Array[],
  of: { leaf: Uint8Array; index: number; count: number; root: Uint8Array },
): boolean {
  const { index, count } = of;
  if (!Number.isInteger(index) || !Number.isInteger(count) || index < 0 || index >= count || count > MAX_LEAVES)
    return false;
  let hash = of.leaf;
  let used = 0;
  for (let at = index, width = count; width > 1; at >>= 1, width = (width + 1) >> 1) {
    if ((at ^ 1) >= width) continue;
    const sibling = siblings[used++];
    if (!sibling) return false;
    hash = at % 2 === 0 ? node(hash, sibling) : node(sibling, hash);
  }
  return used === siblings.length && toHex(rooted(count, hash)) === toHex(of.root);
}

function node(left: Uint8Array, right: Uint8Array): Uint8Array {
  return taggedHash("nodewire/node/1", concat(left, right));
}

function rooted(count: number, top: Uint8Array): Uint8Array {
  return taggedHash("nodewire/root/1", bigEndian(BigInt(count), 8), top);
}

/** The leaves, and all levels above them; an odd node moves up unchanged. */
function levels(leaves: readonly Uint8Array[]): (readonly Uint8Array[])[] {
  if (leaves.length > MAX_LEAVES)
    throw new NodewireError("too-large", "leaves", `are more than ${MAX_LEAVES}`);
  const all: (readonly Uint8Array[])[] = [leaves];
  let level = leaves;
  while (level.length > 1) {
    const below = level;
    level = Array.from({ length: (below.length + 1) >> 1 }, (_, n) => {
      const right = below[2 * n + 1];
      return right ? node(below[2 * n]!, right) : below[2 * n]!;
    });
    all.push(level);
  }
  return all;
}
