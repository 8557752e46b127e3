/** speculation1.json: what guesses become, what is refused, what is claimed and what stays uncomputed; and mxint8. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fromHex } from "../src/bytes.js";
import { NodewireError } from "../src/errors.js";
import { parseJson } from "../src/json.js";
import type { Value, ValueMap } from "../src/value.js";
import { type Guess, History, type PlainRow, readMxint8, uncomputed } from "../src/wire/index.js";
import { at, list, text, vectors } from "./vectors.js";

const speculation = vectors("speculation1.json");
const number = (value: Value | undefined): number => Number(value as bigint);
const numbers = (value: Value | undefined): number[] => (value as bigint[]).map(Number);

const begun = (one: ValueMap): History<number> =>
  new History({
    prompt: number(one.get("prompt")),
    chunk: number(one.get("chunk")),
    lookahead: number(one.get("lookahead")),
  });

function guess(of: Value): Guess<number> {
  const said = of as ValueMap;
  const [seq, pos, chunk, epoch] = ["seq", "pos", "chunk", "epoch"].map((name) => number(said.get(name)));
  return {
    ...{ seq: seq!, pos: pos!, chunk: chunk!, epoch: epoch!, rows: numbers(said.get("rows")) },
    ...(said.has("parents") ? { parents: numbers(said.get("parents")) } : {}),
    ...(said.has("keep") ? { keep: numbers(said.get("keep")) } : {}),
  };
}

function step(history: History<number>, of: ValueMap): PlainRow<number>[] {
  if (of.has("close")) {
    const positions = of.get("positions");
    return history.close(number(of.get("close")), positions === undefined ? undefined : number(positions));
  }
  history.take(guess(of.get("frame")!));
  return [];
}

for (const one of list(at(speculation, "history"))) {
  test(`history: ${text(one.get("rule"))}`, () => {
    const history = begun(one);
    const steps = list(one.get("steps")!);
    const plain: PlainRow<number>[] = [];
    let refused: string | null = null;
    steps.forEach((of, n) => {
      try {
        plain.push(...step(history, of));
      } catch (error) {
        assert.ok(error instanceof NodewireError && error.code === "bad-frame", String(error));
        assert.equal(n, steps.length - 1);
        refused = error.field;
      }
    });
    assert.equal(refused, one.get("refused"));
    const wanted = list(one.get("plain")!).map((row) => Object.fromEntries([...row].map(([k, v]) => [k, number(v)])));
    assert.deepEqual(plain, wanted);
  });
}

for (const one of list(at(speculation, "claims"))) {
  test(`claims: ${text(one.get("rule"))}`, () => {
    const history = begun(one);
    for (const of of list(one.get("steps")!)) step(history, of);
    assert.deepEqual(history.claims(), numbers(one.get("claims")));
  });
}

for (const one of list(at(speculation, "void"))) {
  test(`void: ${text(one.get("rule"))}`, () => {
    const waiting = list(one.get("waiting")!).map((of) => ({
      seq: number(of.get("seq")),
      pos: number(of.get("pos")),
      epoch: number(of.get("epoch")),
      keep: of.get("keep") as boolean,
    }));
    assert.deepEqual(uncomputed(waiting), numbers(one.get("uncomputed")));
  });
}

const file = process.env["NODEWIRE_RANDOM_GUESSES"];
const skip = file ? false : "make interop writes them, and names their file in NODEWIRE_RANDOM_GUESSES";

test("random guesses become what nodewire makes of them", { skip }, (context) => {
  const lines = readFileSync(file!, "utf-8").trimEnd().split("\n");
  let whole = 0;
  lines.forEach((line, n) => {
    const one = parseJson(line) as ValueMap;
    const steps = list(one.get("steps")!);
    const history = begun(one);
    const plain: PlainRow<number>[] = [];
    const isRefused = one.get("refused") === true;
    steps.forEach((of, at) => {
      if (isRefused && at === steps.length - 1) assert.throws(() => step(history, of), NodewireError, `case ${n}`);
      else plain.push(...step(history, of));
    });
    const wanted = list(one.get("plain")!).map((row) => ["seq", "pos", "chunk", "row"].map((name) => number(row.get(name))));
    assert.deepEqual(
      plain.map((row) => [row.seq, row.pos, row.chunk, row.row]),
      wanted,
      `case ${n}`,
    );
    if (!isRefused) assert.deepEqual(history.claims(), numbers(one.get("claims")), `case ${n}`);
    whole += Number(!isRefused);
  });
  context.diagnostic(`${lines.length} edges, of them ${whole} without a fault`);
  assert.ok(whole > lines.length / 10 && whole < lines.length * 0.9, `${whole} of ${lines.length} are without a fault`);
});

test("the numbers of mxint8", () => {
  const of = at(vectors("examples1.json"), "mxint8");
  const shape = at(of, "shape") as bigint[];
  const rows = readMxint8(fromHex(text(at(of, "sent"))), shape);
  assert.deepEqual(
    rows.map((row) => [...row]),
    at(of, "numbers"),
  );
  assert.throws(() => readMxint8(new Uint8Array(4), shape), /bad-frame: tensors/);
  assert.deepEqual(readMxint8(new Uint8Array(0), [3n, 0n]), []);
  const wide = readMxint8(Uint8Array.of(133, 134, ...Array(32).fill(1), 3), [33n]);
  assert.deepEqual([wide[0]![31], wide[0]![32]], [1, 6]);
});
