/** Frames of links: nips/21's own, the names of the vectors, bounds, and bytes however they are cut. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { concat, fromHex, toHex } from "../src/bytes.js";
import { type Code, NodewireError } from "../src/errors.js";
import { blobHash } from "../src/hash.js";
import { formatJson, parseJson } from "../src/json.js";
import { pack } from "../src/msgpack.js";
import type { Value, ValueMap } from "../src/value.js";
import * as wire from "../src/wire/index.js";
import { at, list, text, vectors } from "./vectors.js";

const JOB = "16df1c42df18d5197a218c4e5eab39362629e949ea8fd9b5c3fda7c2276e6dab";
const KEY = "4f4dff90944b2aef1cf008aceb25e5cb";
const BY_THE_BOOK =
  "01010003" + "000000630000000000000008" + `97c420${JOB}a868696464656e2e300001c410${KEY}` +
  "9192a7666c6f6174333293010102" + "83a3706f7305a56368756e6b01a6746f6b656e7301" + "0000803f00000040";

const read = (bytes: Uint8Array, options?: wire.FrameReaderOptions): wire.Message[] => [...new wire.FrameReader(options).read(bytes)];

function refused(action: () => unknown, code: Code, field: string): void {
  assert.throws(action, (error) => {
    assert.ok(error instanceof NodewireError, String(error));
    assert.deepEqual([error.code, error.field], [code, field]);
    return true;
  });
}

const header = (changed: Partial<wire.DataHeader> = {}): wire.DataHeader => ({
  job: JOB,
  edge: "hidden.0",
  attempt: 0n,
  seq: 1n,
  key: fromHex(KEY),
  tensors: [{ dtype: "float32", shape: [1n, 1n, 2n] }],
  meta: new Map([["pos", 5n]]),
  ...changed,
});

test("the frame of the document is read", () => {
  const [found, ...more] = read(fromHex(BY_THE_BOOK));
  assert.deepEqual(more, []);
  assert.ok(found?.type === "data");
  assert.deepEqual(found.header, header({ meta: new Map([["pos", 5n], ["chunk", 1n], ["tokens", 1n]]) }));
  assert.ok(wire.isKeyed(found.header));
  assert.ok(!wire.isKeyed({ ...found.header, attempt: 1n }));
  assert.ok(!wire.isKeyed({ ...found.header, seq: 2n }));
  assert.deepEqual([...new Float32Array(found.tensors!.slice().buffer)], [1, 2]);
  assert.equal(wire.frameCost(found.header), 8 + 1024 + 1024 + 3 * 256);
});

test("frames have the names of the vectors", () => {
  for (const one of list(at(vectors("documents1.json"), "tensor_key"))) {
    const [job, edge, seq] = [text(one.get("request")), text(one.get("edge")), one.get("seq") as bigint];
    const named = wire.isKeyed(header({ job, edge, seq, key: fromHex(text(one.get("key"))) }));
    assert.equal(named, one.get("attempt") === 0n);
  }
});

test("the frame of narrowed numbers has the size of its vector", () => {
  const of = at(vectors("examples1.json"), "mxint8");
  const shape = at(of, "shape") as bigint[];
  assert.equal(wire.tensorBytes({ dtype: "mxint8", shape }), BigInt(text(at(of, "sent")).length / 2));
  assert.equal(wire.tensorBytes({ dtype: "mxint8", shape: [] }), 2n);
  assert.equal(wire.tensorBytes({ dtype: "mxint8", shape: [2n, 33n] }), 70n);
  assert.equal(wire.tensorBytes({ dtype: "mxint8", shape: [2n, 0n] }), 0n);
});

test("what is written is read back however it is cut", () => {
  const size = 2 * wire.SEGMENT_BYTES + 5;
  const tensors = Uint8Array.from({ length: size }, (_, n) => (n * 31) >> 5);
  const sent = header({ tensors: [{ dtype: "uint8", shape: [BigInt(size)] }] });
  const segments = wire.data(9, sent, tensors);
  assert.equal(segments.length, 3);
  const empty = header({ tensors: [], meta: new Map() });
  const said = new Map<string, Value>([["t", "cancel"], ["job", JOB]]);
  const bytes = concat(
    segments[0]!,
    wire.ping(7),
    segments[1]!,
    wire.control(said),
    ...wire.data(0, empty, new Uint8Array()),
    wire.credit({ job: JOB, edge: "hidden.0", attempt: 0n, limit: 1n << 40n }),
    wire.filler(100),
    segments[2]!,
    wire.pong(0xffff),
  );
  for (const cut of [1, 15, 17, 4096, bytes.length]) {
    const reader = new wire.FrameReader();
    const found: wire.Message[] = [];
    for (let n = 0; n < bytes.length; n += cut) found.push(...reader.read(bytes.subarray(n, n + cut)));
    assert.deepEqual(found.map((one) => one.type), ["ping", "control", "data", "credit", "filler", "data", "pong"]);
    const whole = found[5]! as wire.Message & { type: "data" };
    assert.deepEqual(whole.header, sent);
    assert.equal(blobHash(whole.tensors!), blobHash(tensors));
    if (cut === 1) break;
  }
  assert.equal(read(concat(...segments), { admits: () => false }).length, 1);
  const [passed] = read(concat(...segments), { admits: (_, most) => most < size });
  assert.ok(passed?.type === "data" && passed.tensors === null);
});

test("a head out of bounds is refused before its bytes are read", () => {
  const head = (type: number, headerBytes: number, payloadBytes: bigint, version = 1): Uint8Array =>
    fromHex(
      `0${version}0${type}0000${headerBytes.toString(16).padStart(8, "0")}${payloadBytes.toString(16).padStart(16, "0")}`,
    );
  const cases: [Code, string, Uint8Array][] = [
    ["bad-version", "frame", head(5, 0, 0n, 2)],
    ["bad-frame", "type", head(0, 0, 0n)],
    ["bad-frame", "type", head(8, 0, 0n)],
    ["too-large", "header", head(1, 4097, 0n)],
    ["too-large", "header", head(7, 1, 0n)],
    ["too-large", "payload", head(1, 9, 262_145n)],
    ["too-large", "payload", head(2, 0, (1n << 64n) - 1n)],
    ["too-large", "payload", head(3, 0, 65_537n)],
    ["too-large", "payload", head(4, 9, 1n)],
    ["too-large", "payload", head(5, 0, 1n)],
    ["too-large", "payload", head(7, 0, 131_073n)],
    ["bad-frame", "header", head(1, 0, 0n)],
    ["bad-frame", "stream", head(2, 0, 1n)],
    ["bad-frame", "document", head(3, 0, 0n)],
  ];
  for (const [code, field, bytes] of cases) refused(() => read(bytes), code, field);
});

test("a header that lies is refused by its field", () => {
  const fields = new Map<string, Value>([
    ["job", fromHex(JOB)],
    ["edge", "e"],
    ["attempt", 0n],
    ["seq", 0n],
    ["key", new Uint8Array(16)],
    ["tensors", [["uint8", [2n]]]],
    ["meta", new Map()],
  ]);
  const packed = (name: string, value: Value): Uint8Array => pack([...new Map([...fields, [name, value]]).values()]);
  const cases: [Code, string, string, Value][] = [
    ["bad-frame", "job", "job", new Uint8Array(31)],
    ["bad-frame", "job", "job", JOB],
    ["bad-frame", "edge", "edge", ""],
    ["bad-frame", "edge", "edge", "e".repeat(65)],
    ["bad-frame", "attempt", "attempt", 1n << 16n],
    ["bad-frame", "attempt", "attempt", false],
    ["bad-frame", "seq", "seq", 1n << 53n],
    ["bad-frame", "seq", "seq", -1n],
    ["bad-frame", "key", "key", new Uint8Array(15)],
    ["bad-frame", "tensors", "tensors", new Map()],
    ["bad-frame", "tensors", "tensors", Array(65).fill(["uint8", [0n]])],
    ["bad-frame", "tensors", "tensors", [["uint8"]]],
    ["bad-frame", "dtype", "tensors", [["float64", [1n]]]],
    ["bad-frame", "dtype", "tensors", [["constructor", [1n]]]],
    ["bad-frame", "shape", "tensors", [["uint8", Array(9).fill(1n)]]],
    ["bad-frame", "shape", "tensors", [["uint8", [1n << 40n]]]],
    ["bad-frame", "shape", "tensors", [["uint8", [-1n]]]],
    ["bad-frame", "shape", "tensors", [["uint8", [true]]]],
    ["too-large", "frame", "tensors", [["uint8", [(1n << 28n) + 1n]]]],
    ["too-large", "frame", "tensors", [["int64", Array(8).fill((1n << 40n) - 1n)]]],
    ["bad-frame", "meta", "meta", []],
    ["bad-frame", "meta", "meta", new Map([["a", [] as Value]])],
    ["bad-frame", "meta", "meta", new Map(Array.from({ length: 65 }, (_, n) => [String(n), 0n] as const))],
  ];
  for (const [code, field, name, value] of cases) refused(() => wire.parseDataHeader(packed(name, value)), code, field);
  const good = packed("seq", 0n);
  refused(() => wire.parseDataHeader(concat(good, Uint8Array.of(0xc0))), "bad-frame", "header");
  refused(() => wire.parseCredit(pack([fromHex(JOB), "e", 0n, 1n << 63n])), "bad-frame", "limit");
});

test("segments are whole, and frames take turns on their streams", () => {
  const size = wire.SEGMENT_BYTES + 1;
  const sent = header({ tensors: [{ dtype: "uint8", shape: [BigInt(size)] }] });
  const begun = (stream: number): Uint8Array => wire.data(stream, sent, new Uint8Array(size))[0]!;
  refused(() => read(concat(begun(1), begun(1))), "bad-frame", "stream");
  const more = (bytes: number): Uint8Array => concat(begun(1), fromHex(`01020001${"0".repeat(8)}${bytes.toString(16).padStart(16, "0")}`));
  refused(() => read(more(0)), "bad-frame", "payload");
  refused(() => read(more(2)), "bad-frame", "payload");
  const many = Array.from({ length: 65 }, (_, n) => begun(n));
  assert.doesNotThrow(() => read(concat(...many.slice(1))));
  refused(() => read(concat(...many)), "too-large", "stream");
  const reader = new wire.FrameReader();
  assert.equal(reader.read(concat(wire.ping(1), more(2))).next().value?.type, "ping");
  refused(() => [...reader.read(more(2))], "bad-frame", "payload");
  refused(() => [...reader.read(wire.ping(1))], "bad-frame", "payload");
});

test("a stranger is read to its budget", () => {
  const reader = new wire.FrameReader({ budget: 100 });
  assert.equal([...reader.read(wire.filler(60))].length, 1);
  const another = new wire.FrameReader({ budget: 100 });
  refused(() => [...another.read(concat(wire.filler(60), wire.filler(9)))], "too-large", "frame");
  reader.unlimited();
  assert.equal([...reader.read(wire.filler(60))].length, 1);
});

test("control documents are canonical and small", () => {
  const said = (entries: readonly (readonly [string, Value])[]): Uint8Array => pack(new Map(entries));
  refused(() => wire.parseControl(fromHex("82a174a178a16101")), "bad-frame", "document");
  for (const bad of [said([["a", 1n]]), said([["t", 1n]]), pack([]), new Uint8Array(), fromHex("81a174cb3ff0000000000000")])
    refused(() => wire.parseControl(bad), "bad-frame", "document");
  const counted = (items: number): Uint8Array => said([["a", Array(items).fill(1n)], ["t", "x"]]);
  assert.equal(wire.parseControl(counted(2044)).t, "x");
  refused(() => wire.parseControl(counted(2045)), "too-large", "document");
  refused(() => wire.control(new Map([["t", "x"], ["a", new Uint8Array(65_536)]] as [string, Value][])), "too-large", "document");
});

const file = process.env["NODEWIRE_RANDOM_FRAMES"];
const skip = file ? false : "make interop writes them, and names their file in NODEWIRE_RANDOM_FRAMES";

test("random bytes of links are read or refused as nodewire does", { skip }, (context) => {
  const lines = readFileSync(file!, "utf-8").trimEnd().split("\n");
  let whole = 0;
  lines.forEach((line, n) => {
    const one = parseJson(line) as ValueMap;
    const { said, error } = heard(fromHex(text(one.get("bytes"))));
    assert.equal(formatJson(said), formatJson(one.get("said")!), `case ${n}`);
    const wanted = one.get("error");
    // of two faults in one frame a reader names either
    if (!error || wanted === null || ![error.code, wanted].includes("too-large"))
      assert.equal(error?.code ?? null, wanted, `case ${n}: ${error}`);
    whole += Number(!error);
  });
  context.diagnostic(`${lines.length} links, of them ${whole} without a fault`);
  assert.ok(whole > lines.length / 5 && whole < lines.length * 0.8, `${whole} of ${lines.length} are without a fault`);
});

function heard(bytes: Uint8Array): { said: Value[]; error: NodewireError | undefined } {
  const said: Value[] = [];
  const reader = new wire.FrameReader({ admits: () => true });
  try {
    for (const one of reader.read(bytes)) if (one.type !== "filler") said.push(told(one));
  } catch (error) {
    if (!(error instanceof NodewireError)) throw error;
    return { said, error };
  }
  return { said, error: undefined };
}

function told(one: Exclude<wire.Message, { type: "filler" }>): Value {
  if (one.type === "control") return ["control", blobHash(pack(one.document))];
  if (one.type === "credit") return ["credit", one.job, one.edge, one.attempt, one.limit];
  if (one.type !== "data") return [one.type, BigInt(one.tag)];
  const { job, edge, attempt, seq, key, tensors, meta } = one.header;
  const shapes = tensors.map((tensor) => [tensor.dtype, tensor.shape]);
  return ["data", job, edge, attempt, seq, toHex(key), shapes, blobHash(pack(meta)), blobHash(one.tensors!)];
}

