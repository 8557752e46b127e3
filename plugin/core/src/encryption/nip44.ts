/** NIP-44, version 2: what one key says to another, encrypted and padded. ChaCha20, HMAC and HKDF are @noble's. */

import { chacha20 } from "@noble/ciphers/chacha.js";
import { secp256k1 } from "@noble/curves/secp256k1.js";
import { expand, extract } from "@noble/hashes/hkdf.js";
import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { randomBytes } from "@noble/hashes/utils.js";
import { base64 } from "@scure/base";
import { bigEndian, concat, fromHex, fromUtf8, toNumber, toUtf8 } from "../bytes.js";
import { NodewireError } from "../errors.js";

const VERSION = 2;
const LEAST_PLAIN = 1;
const MOST_PLAIN = 65_535;
const LEAST_PAYLOAD = 132;
const MOST_PAYLOAD = 87_472;
const LEAST_PADDED = 32;
const NONCE = 32;
const MAC = 32;

export interface MessageKeys {
  readonly chachaKey: Uint8Array;
  readonly chachaNonce: Uint8Array;
  readonly hmacKey: Uint8Array;
}

const refused = (field: string, reason: string): NodewireError => new NodewireError("bad-ciphertext", field, reason);

/** The key of two keys' conversation: of one's secret (32 bytes) and the other's public key in hex, the same for both. */
export function conversationKey(secretKey: Uint8Array, publicKey: string): Uint8Array {
  let shared: Uint8Array;
  try {
    shared = secp256k1.getSharedSecret(secretKey, fromHex(`02${publicKey}`));
  } catch {
    throw new NodewireError("bad-input", "key", "is no secret key, or no public key");
  }
  return extract(sha256, shared.subarray(1, 33), toUtf8("nip44-v2"));
}

/** The keys of one message, under its nonce of 32 bytes. */
export function messageKeys(conversation: Uint8Array, nonce: Uint8Array): MessageKeys {
  if (conversation.length !== 32) throw new NodewireError("bad-input", "key", "of a conversation has 32 bytes");
  if (nonce.length !== NONCE) throw new NodewireError("bad-input", "nonce", `has ${NONCE} bytes`);
  const keys = expand(sha256, conversation, nonce, 76);
  return { chachaKey: keys.subarray(0, 32), chachaNonce: keys.subarray(32, 44), hmacKey: keys.subarray(44, 76) };
}

/** How many bytes so many bytes of plaintext are padded to. */
export function paddedLength(length: number): number {
  if (length <= LEAST_PADDED) return LEAST_PADDED;
  const power = 2 ** (32 - Math.clz32(length - 1));
  const piece = power <= 256 ? 32 : power / 8;
  return piece * (Math.floor((length - 1) / piece) + 1);
}

/** The payload in base64. A nonce must never be used twice with a conversation: hand one in for vectors alone. */
export function encrypt(plaintext: string, conversation: Uint8Array, nonce: Uint8Array = randomBytes(NONCE)): string {
  const keys = messageKeys(conversation, nonce);
  const plain = toUtf8(plaintext, "plaintext");
  if (plain.length < LEAST_PLAIN || plain.length > MOST_PLAIN)
    throw new NodewireError("too-large", "plaintext", `does not have ${LEAST_PLAIN} to ${MOST_PLAIN} bytes`);
  const padded = new Uint8Array(2 + paddedLength(plain.length));
  padded.set(bigEndian(BigInt(plain.length), 2));
  padded.set(plain, 2);
  const ciphertext = chacha20(keys.chachaKey, keys.chachaNonce, padded);
  const mac = hmac(sha256, keys.hmacKey, concat(nonce, ciphertext));
  return base64.encode(concat(Uint8Array.of(VERSION), nonce, ciphertext, mac));
}

/** The plaintext. Raises bad-version, bad-ciphertext, before a byte is decrypted whose MAC is not right. */
export function decrypt(payload: string, conversation: Uint8Array): string {
  const bytes = decoded(payload);
  const nonce = bytes.subarray(1, 1 + NONCE);
  const ciphertext = bytes.subarray(1 + NONCE, -MAC);
  const keys = messageKeys(conversation, nonce);
  if (!isSame(hmac(sha256, keys.hmacKey, concat(nonce, ciphertext)), bytes.subarray(-MAC)))
    throw refused("mac", "is not that of the conversation's key");
  const padded = chacha20(keys.chachaKey, keys.chachaNonce, ciphertext);
  const length = Number(toNumber(padded.subarray(0, 2)));
  if (length < LEAST_PLAIN || padded.length !== 2 + paddedLength(length))
    throw refused("padding", "does not fit the plaintext's length");
  if (padded.subarray(2 + length).some((byte) => byte !== 0)) throw refused("padding", "is not zero");
  try {
    return fromUtf8(padded.subarray(2, 2 + length), "plaintext");
  } catch {
    throw refused("plaintext", "is not UTF-8");
  }
}

function decoded(payload: string): Uint8Array {
  if (payload.startsWith("#")) throw new NodewireError("bad-version", "payload", "is of a version of NIP-44 other than 2");
  if (payload.length < LEAST_PAYLOAD || payload.length > MOST_PAYLOAD)
    throw refused("payload", `does not have ${LEAST_PAYLOAD} to ${MOST_PAYLOAD} characters`);
  let bytes: Uint8Array;
  try {
    bytes = base64.decode(payload);
  } catch {
    throw refused("payload", "is not base64");
  }
  if (bytes[0] !== VERSION)
    throw new NodewireError("bad-version", "payload", "is of a version of NIP-44 other than 2");
  return bytes;
}

/** In a time that does not depend on where they differ. */
function isSame(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.reduce((all, byte, at) => all | (byte ^ other[at]!), 0) === 0;
}
