/** Blobs on strangers' servers, each under a key of its own (nips/34-training-rounds.md, Encrypted blobs). */

import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { bigEndian, concat } from "../bytes.js";
import { NodewireError } from "../errors.js";

const SEGMENT = 1 << 20;
const TAG = 16;
const MOST_SEGMENTS = 2 ** 32;

/** How many bytes so many bytes of plaintext have as a ciphertext. */
export function ciphertextBytes(plain: number): number {
  return plain + TAG * Math.max(1, Math.ceil(plain / SEGMENT));
}

export function encryptBlob(plain: Uint8Array, key: Uint8Array): Uint8Array {
  return concat(...inSegments(plain, SEGMENT, key, (cipher, bytes) => cipher.encrypt(bytes)));
}

/** Raises bad-ciphertext: another key, a segment that was changed, moved or cut off. */
export function decryptBlob(ciphertext: Uint8Array, key: Uint8Array): Uint8Array {
  return concat(
    ...inSegments(ciphertext, SEGMENT + TAG, key, (cipher, bytes, number) => {
      try {
        return cipher.decrypt(bytes);
      } catch {
        throw new NodewireError("bad-ciphertext", `segment ${number}`, "is not under this key, or not in its place");
      }
    }),
  );
}

type Cipher = ReturnType<typeof chacha20poly1305>;

function inSegments(
  bytes: Uint8Array,
  size: number,
  key: Uint8Array,
  made: (cipher: Cipher, segment: Uint8Array, number: number) => Uint8Array,
): Uint8Array[] {
  if (key.length !== 32) throw new NodewireError("bad-input", "key", "of a blob has 32 bytes");
  const count = Math.max(1, Math.ceil(bytes.length / size));
  if (count > MOST_SEGMENTS) throw new NodewireError("too-large", "blob", `has more than ${MOST_SEGMENTS} segments`);
  return Array.from({ length: count }, (_, n) => {
    const isLast = n === count - 1;
    const nonce = concat(new Uint8Array(7), bigEndian(BigInt(n), 4), Uint8Array.of(isLast ? 1 : 0));
    return made(chacha20poly1305(key, nonce), bytes.subarray(n * size, (n + 1) * size), n);
  });
}
