/** speculation1.json: what guesses become, what is refused, what is claimed and what stays uncomputed; and mxint8. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fromHex } from "../src/bytes.js";
import { NodewireError } from "../src/errors.js";
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
