/** documents1.json and examples1.json: bytes, digests, hashes and trees. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fromHex, toHex, toUtf8 } from "../src/bytes.js";
import type { DocumentType } from "../src/document.js";
import { ad, beat } from "../src/documents/ad.js";
import { body, committee, inventory } from "../src/documents/committee.js";
import * as job from "../src/documents/job.js";
import { manifest } from "../src/documents/manifest.js";
import { plan } from "../src/documents/plan.js";
import { snapshot } from "../src/documents/snapshot.js";
import * as work from "../src/documents/work.js";
import { NodewireError } from "../src/errors.js";
import { isSigned } from "../src/events/event.js";
import { blobHash, sha256, taggedHash } from "../src/hash.js";
import { formatJson, parseJson } from "../src/json.js";
import * as merkle from "../src/merkle.js";
import { pack, unpack } from "../src/msgpack.js";
import type { Value } from "../src/value.js";
import { at, list, text, vectors } from "./vectors.js";

const documents = vectors("documents1.json");
const examples = vectors("examples1.json");

const TYPES: Record<string, DocumentType<any>> = {
  Ad: ad,
  Beat: beat,
  Body: body,
  Closing: work.closing,
  Committee: committee,
  Inventory: inventory,
  Manifest: manifest,
  Plan: plan,
  Receipt: work.receipt,
  Verdict: work.verdict,
};

list(at(documents, "canonical")).forEach((one, n) =>
  test(`canonical bytes ${n}`, () => {
    const bytes = fromHex(text(one.get("packed")));
    assert.equal(toHex(pack(at(one, "document"))), toHex(bytes));
    assert.deepEqual(unpack(bytes), unpack(pack(at(one, "document"))));
    assert.equal(formatJson(unpack(bytes)), formatJson(at(one, "document")));
  }),
);

test("bytes that are not canonical are refused", () => {
  const bad = {
    "an integer that is too long": "cc7f",
    "a negative integer that is too long": "d0ff",
    "a positive integer as a signed one": "d001",
    "a string that is too long": "d90161",
    "a list that is too long": "dc000101",
    "keys out of order": "82a16201a16101",
    "a key twice": "82a16101a16101",
    "a key that is no string": "810101",
    "a float": "cb3ff0000000000000",
    "an extension": "d40000",
    "bytes behind the end": "c0c0",
    "an end that is too early": "a3616",
    "a length without bytes for it": "ddffffffff",
    "a string that is not UTF-8": "a1ff",
    "more than 32 containers": `${"91".repeat(33)}c0`,
  };
  for (const [what, hex] of Object.entries(bad)) {
    const bytes = fromHex(hex.length % 2 ? `${hex}0` .slice(0, -2) : hex);
    assert.throws(() => unpack(bytes), NodewireError, what);
  }
  assert.doesNotThrow(() => unpack(fromHex(`${"91".repeat(32)}c0`)));
  assert.throws(() => pack(1.5), NodewireError);
  assert.throws(() => pack(1n << 64n), NodewireError);
  assert.throws(() => pack("\ud800"), NodewireError);
});

test("JSON that no document is, is refused", () => {
  for (const bad of ["", "{", "[1,]", '{"a":1,}', "01", "+1", ".5", "1.", "nul", "'a'", '"\ud800"', '"\\ud800"', "[1] 2", "NaN"])
    assert.throws(() => parseJson(bad), NodewireError, bad);
  assert.equal(parseJson("2100000000000000000"), 2_100_000_000_000_000_000n);
  assert.equal(parseJson("1.0"), 1);
});

for (const one of list(at(documents, "documents"))) {
  test(`document ${text(one.get("name"))}`, () => {
    const type = TYPES[text(one.get("type"))]!;
    const document = at(one, "document");
    const typed = type.parse(document);
    const bytes = fromHex(text(one.get("packed")));
    assert.equal(toHex(type.pack(typed)), toHex(bytes));
    assert.equal(type.digest(typed), text(one.get("digest")));
    assert.equal(toHex(taggedHash(text(one.get("tag")), bytes)), text(one.get("digest")));
    assert.deepEqual(type.unpack(bytes), typed);
    assert.deepEqual(type.parseJson(type.json(typed)), typed);
    refusesMutants(type, document);
  });
}

/** A closed document: one field more, one less that has no default, another version, and no map are refused. */
function refusesMutants(type: DocumentType<any>, document: Value): void {
  const fields = document as Map<string, Value>;
  const more = new Map([...fields, ["beside", null]]);
  assert.throws(() => type.parse(more), NodewireError);
  for (const version of [2n, "1", true, null]) {
    assert.throws(
      () => type.parse(new Map([...fields, ["v", version]])),
      (error) => error instanceof NodewireError && error.code === "bad-version",
    );
  }
  assert.throws(() => type.parse([...fields.values()]), NodewireError);
  for (const name of fields.keys()) {
    const wrong = new Map([...fields, [name, 1.5]]);
    assert.throws(() => type.parse(wrong), NodewireError, name);
  }
}

test("tagged hashes", () => {
  for (const one of list(at(documents, "tagged_hash")))
    assert.equal(toHex(taggedHash(text(one.get("tag")), fromHex(text(one.get("data"))))), text(one.get("hash")));
});

test("a snapshot", () => {
  const bytes = fromHex(text(at(documents, "snapshot", "packed")));
  assert.equal(blobHash(bytes), text(at(documents, "snapshot", "sha256")));
  assert.equal(toHex(snapshot.pack(snapshot.unpack(bytes))), toHex(bytes));
});

test("roots of certified commitments", () => {
  for (const one of list(at(documents, "certified_root"))) {
    const ids = [...(at(one, "ids") as string[])].sort();
    assert.equal(toHex(merkle.root(ids.map((id) => merkle.leaf(fromHex(id))))), text(one.get("root")));
  }
});

test("a claim and its leaves", () => {
  const claim = at(documents, "claim");
  const roots = at(claim, "roots") as unknown as Value[];
  const chunks = roots.map((one) => Object.fromEntries(one as Map<string, Value>) as unknown as work.ChunkRoot);
  assert.deepEqual(chunks.map((one) => toHex(work.chunkLeaf(one))), at(claim, "leaves"));
  assert.equal(work.claimRoot(chunks), text(at(claim, "root")));
});

test("a commitment, its root and its proofs", () => {
  const said = at(documents, "commitment");
  const typed = work.commitment.parse(at(said, "document"));
  assert.equal(toHex(work.commitment.pack(typed)), text(at(said, "packed")));
  assert.equal(work.claimRoot(typed.chunks), text(at(said, "root")));
  const leaves = typed.chunks.map(work.chunkLeaf);
  leaves.forEach((leaf, index) => {
    const siblings = merkle.proof(leaves, index);
    assert.deepEqual(siblings.map(toHex), at(said, "proofs", String(index)));
    const of = { leaf, index, count: leaves.length, root: fromHex(text(at(said, "root"))) };
    assert.ok(merkle.proves(siblings, of));
    assert.ok(!merkle.proves(siblings, { ...of, index: (index + 1) % leaves.length }));
    assert.ok(!merkle.proves([...siblings, leaf], of));
  });
});

test("a chunk's root over its salted leaves", () => {
  const chunk = at(documents, "chunk_root");
  const get = (name: string): string => text(at(chunk, name));
  const leaves = list(at(chunk, "frames")).map((frame, index) => {
    const tensors = (at(frame, "tensors") as Value[]).map((one, n) => {
      const [dtype, shape, raw] = one as [string, Value, string];
      return [dtype, shape, sha256(fromHex(raw)), fromHex(at(frame, "sketches", String(n)) as string)];
    });
    const data = pack([get("request"), frame.get("edge")!, frame.get("seq")!, tensors]);
    assert.equal(toHex(data), frame.get("leaf_data"));
    const salt = merkle.salt(fromHex(get("secret")), index);
    assert.equal(toHex(salt), frame.get("salt"));
    assert.equal(toHex(merkle.leaf(data, salt)), frame.get("leaf"));
    return merkle.leaf(data, salt);
  });
  const named = [get("author"), get("request"), get("task"), at(chunk, "chunk"), at(chunk, "attempt"), merkle.root(leaves)];
  assert.equal(toHex(taggedHash("nodewire/work/1", pack(named))), get("root"));
});

test("names of samples, cases and tensors", () => {
  const of = Object.fromEntries(at(documents, "sample_key", "of") as Map<string, Value>) as any;
  assert.equal(work.sampleKey(of), text(at(documents, "sample_key", "key")));
  for (const one of list(at(documents, "tensor_key"))) {
    const [edge, request] = [text(one.get("edge")), text(one.get("request"))];
    const key = job.tensorKey(request, edge, one.get("attempt") as bigint, one.get("seq") as bigint);
    assert.equal(toHex(key), text(one.get("key")));
  }
});

test("a close and a statement, and what they are signed over", () => {
  const close = job.close.parse(at(documents, "close", "document"));
  const signed = job.signedHash(job.close, close);
  assert.equal(toHex(signed.packed), text(at(documents, "close", "packed_without_sig")));
  assert.equal(signed.hash, text(at(documents, "close", "signed_hash")));
  assert.ok(isSigned(signed.hash, text(at(documents, "close", "driver")), close.sig));
  const sent = job.sent.parse(at(documents, "sent", "document"));
  const said = job.signedHash(job.sent, sent);
  assert.equal(toHex(said.packed), text(at(documents, "sent", "packed_without_sig")));
  assert.equal(said.hash, text(at(documents, "sent", "signed_hash")));
  assert.ok(isSigned(said.hash, sent.signer, sent.sig));
  const frames = list(at(documents, "sent", "frames")).map((one) => ({
    seq: one.get("seq") as bigint,
    meta: one.get("meta") as Map<string, Value>,
    tensors: tensorsOf(at(one, "tensors")),
  }));
  assert.equal(job.framesHash(frames), sent.frames);
});

const tensorsOf = (value: Value): job.TensorHash[] =>
  (value as Value[]).map((one) => {
    const [dtype, shape, raw] = one as [string, bigint[], string];
    return { dtype, shape, sha256: sha256(fromHex(raw)) };
  });

test("a ticket, its seal and its input", () => {
  const ticket = job.ticket.parse(at(examples, "ticket", "document"));
  assert.equal(job.ticketSeal(ticket), text(at(examples, "ticket", "seal")));
  const prompt = fromHex(text(at(examples, "ticket", "prompt")));
  const tensor = { dtype: "uint8", shape: [BigInt(prompt.length)], sha256: sha256(prompt) };
  assert.deepEqual(ticket.inputs, [["prompt", 0n, job.inputHash("prompt", 0n, [tensor])]]);
});

test("a want and its job", () => {
  const of = at(examples, "want");
  const want = job.want.parse(at(of, "document"));
  const nonce = fromHex(text(at(of, "nonce")));
  assert.equal(job.pullJob(want, text(at(of, "puller")), text(at(of, "holder")), nonce), text(at(of, "job")));
});

test("an offer to meet", () => {
  const offer = job.meeting.parse(at(examples, "offer"));
  assert.equal(job.meeting.json(offer), formatJson(at(examples, "offer")));
});

test("a swarm's document and its digest", () => {
  const swarm = job.swarm.parse(at(examples, "swarm", "document"));
  assert.equal(job.swarm.digest(swarm), text(at(examples, "swarm", "digest")));
  assert.equal(job.rollCall.parse(at(examples, "swarm", "roll_call")).swarm, job.swarm.digest(swarm));
});

test("UTF-8 orders keys as code points, not as UTF-16", () => {
  const value = new Map<string, Value>([
    ["\uffff", 1n],
    ["\u{10000}", 2n],
  ]);
  assert.equal(toHex(pack(value)), `82a3${toHex(toUtf8("\uffff"))}01a4${toHex(toUtf8("\u{10000}"))}02`);
  assert.equal(formatJson(value), '{"\uffff":1,"\u{10000}":2}');
});
