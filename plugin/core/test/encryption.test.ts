/** nip44.vectors.json and nip59.example.json, and encrypted blobs. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { schnorr } from "@noble/curves/secp256k1.js";
import { fromHex, toHex, toUtf8 } from "../src/bytes.js";
import { ciphertextBytes, decryptBlob, encryptBlob } from "../src/encryption/blob.js";
import { conversationKey, decrypt, encrypt, messageKeys, paddedLength } from "../src/encryption/nip44.js";
import { unwrap, wrap } from "../src/encryption/wrap.js";
import { type Code, NodewireError } from "../src/errors.js";
import { eventOf, signEvent } from "../src/events/event.js";
import { blobHash } from "../src/hash.js";
import type { Value } from "../src/value.js";
import { at, list, text, vectors } from "./vectors.js";

const nip44 = at(vectors("nip44.vectors.json"), "v2");
const hex = (value: Value | undefined): Uint8Array => fromHex(text(value));

function refused(action: () => unknown, ...codes: Code[]): void {
  assert.throws(action, (error) => error instanceof NodewireError && (codes.length === 0 || codes.includes(error.code)));
}

test("NIP-44: keys of conversations", () => {
  const valid = list(at(nip44, "valid", "get_conversation_key"));
  assert.equal(valid.length, 35);
  for (const one of valid)
    assert.equal(toHex(conversationKey(hex(one.get("sec1")), text(one.get("pub2")))), one.get("conversation_key"));
  for (const one of list(at(nip44, "invalid", "get_conversation_key")))
    refused(() => conversationKey(hex(one.get("sec1")), text(one.get("pub2"))), "bad-input");
});

test("NIP-44: keys of messages", () => {
  const conversation = hex(at(nip44, "valid", "get_message_keys", "conversation_key"));
  for (const one of list(at(nip44, "valid", "get_message_keys", "keys"))) {
    const keys = messageKeys(conversation, hex(one.get("nonce")));
    assert.equal(toHex(keys.chachaKey), one.get("chacha_key"));
    assert.equal(toHex(keys.chachaNonce), one.get("chacha_nonce"));
    assert.equal(toHex(keys.hmacKey), one.get("hmac_key"));
  }
});

test("NIP-44: lengths", () => {
  for (const pair of at(nip44, "valid", "calc_padded_len") as unknown as [bigint, bigint][])
    assert.equal(paddedLength(Number(pair[0])), Number(pair[1]));
  for (const length of at(nip44, "invalid", "encrypt_msg_lengths") as bigint[])
    refused(() => encrypt("x".repeat(Number(length)), new Uint8Array(32)), "too-large");
});

test("NIP-44: encrypted and decrypted", () => {
  for (const one of list(at(nip44, "valid", "encrypt_decrypt"))) {
    const conversation = hex(one.get("conversation_key"));
    const pub2 = toHex(schnorr.getPublicKey(hex(one.get("sec2"))));
    assert.equal(toHex(conversationKey(hex(one.get("sec1")), pub2)), toHex(conversation));
    assert.equal(encrypt(text(one.get("plaintext")), conversation, hex(one.get("nonce"))), one.get("payload"));
    assert.equal(decrypt(text(one.get("payload")), conversation), one.get("plaintext"));
  }
});

test("NIP-44: long messages", () => {
  for (const one of list(at(nip44, "valid", "encrypt_decrypt_long_msg"))) {
    const plaintext = text(one.get("pattern")).repeat(Number(one.get("repeat")));
    assert.equal(blobHash(toUtf8(plaintext)), one.get("plaintext_sha256"));
    const payload = encrypt(plaintext, hex(one.get("conversation_key")), hex(one.get("nonce")));
    assert.equal(blobHash(toUtf8(payload)), one.get("payload_sha256"));
    assert.equal(decrypt(payload, hex(one.get("conversation_key"))), plaintext);
  }
});

test("NIP-44: payloads that are refused", () => {
  const invalid = list(at(nip44, "invalid", "decrypt"));
  assert.equal(invalid.length, 12);
  for (const one of invalid)
    refused(() => decrypt(text(one.get("payload")), hex(one.get("conversation_key"))), "bad-ciphertext", "bad-version");
});

test("NIP-44: no byte of a payload can be another", () => {
  const key = new Uint8Array(32).fill(7);
  const payload = encrypt("nodewire", key);
  assert.notEqual(encrypt("nodewire", key), payload, "a nonce was used twice");
  for (let n = 0; n < payload.length; n += 5) {
    const other = payload[n] === "A" ? "B" : "A";
    refused(() => decrypt(payload.slice(0, n) + other + payload.slice(n + 1), key));
  }
});

const example = vectors("nip59.example.json");
const reader = hex(at(example, "recipient_secret"));

test("NIP-59's example is opened by whom it is for alone", () => {
  const event = eventOf(at(example, "wrap"));
  const rumor = unwrap(event, reader, 1059);
  assert.equal(rumor.id, at(example, "rumor", "id"));
  assert.equal(rumor.content, at(example, "rumor", "content"));
  assert.equal(rumor.pubkey, toHex(schnorr.getPublicKey(hex(at(example, "author_secret")))));
  refused(() => unwrap(event, hex(at(example, "author_secret")), 1059), "bad-ciphertext");
  refused(() => unwrap(event, reader), "bad-event");
});

test("a wrap is its author's, and no seal of another's rumor", () => {
  const [author, other] = [new Uint8Array(32).fill(1), new Uint8Array(32).fill(2)];
  const to = toHex(schnorr.getPublicKey(reader));
  const rumor = { kind: 28_841, created_at: 1_800_000_000, tags: [], content: "{}" };
  const event = wrap(rumor, author, to, 1_800_000_000, [["expiration", "1800000060"]]);
  assert.deepEqual(event.tags, [["p", to], ["expiration", "1800000060"]]);
  const { id: _, pubkey, ...said } = unwrap(event, reader);
  assert.deepEqual(said, rumor);
  assert.equal(pubkey, toHex(schnorr.getPublicKey(author)));
  const forged = (sealed: string, signer: Uint8Array): (() => unknown) => {
    const seal = signEvent(signer, { kind: 13, created_at: 1, tags: [], content: encrypt(sealed, conversationKey(signer, to)) });
    const content = encrypt(JSON.stringify(seal), conversationKey(other, to));
    return () => unwrap(signEvent(other, { kind: 21_059, created_at: 1, tags: [], content }), reader);
  };
  const whole = JSON.stringify(unwrap(event, reader));
  assert.doesNotThrow(forged(whole, author));
  refused(forged(whole, other), "bad-event");
  refused(forged(whole.replace("28841", "28843"), author), "bad-event");
  refused(forged("{", author), "bad-event");
  refused(() => wrap({ ...rumor, content: "x".repeat(28_672) }, author, to, 1), "too-large");
});

test("encrypted blobs", () => {
  const key = new Uint8Array(32).fill(9);
  for (const size of [0, 1, 1 << 20, (1 << 20) + 1, 3 << 20]) {
    const plain = Uint8Array.from({ length: size }, (_, n) => (n * 31) >> 3);
    const sent = encryptBlob(plain, key);
    assert.equal(sent.length, ciphertextBytes(size));
    assert.equal(blobHash(decryptBlob(sent, key)), blobHash(plain));
    refused(() => decryptBlob(sent, new Uint8Array(32)), "bad-ciphertext");
    refused(() => decryptBlob(sent.subarray(0, -1), key), "bad-ciphertext");
  }
  const sent = encryptBlob(new Uint8Array(3 << 20), key);
  const segment = (1 << 20) + 16;
  refused(() => decryptBlob(sent.subarray(0, 2 * segment), key), "bad-ciphertext");
  refused(() => decryptBlob(sent.subarray(segment), key), "bad-ciphertext");
  refused(() => decryptBlob(sent, new Uint8Array(31)), "bad-input");
});
