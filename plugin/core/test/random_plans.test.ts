/** Random plans that nodewire made (tests/interop/random_plans.py), planned again byte for byte. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { assign } from "../src/assign.js";
import { toHex } from "../src/bytes.js";
import { body, committee } from "../src/documents/committee.js";
import { manifest } from "../src/documents/manifest.js";
import { deadlineEpoch, plan, terms } from "../src/documents/plan.js";
import { snapshot } from "../src/documents/snapshot.js";
import { NodewireError } from "../src/errors.js";
import { blobHash } from "../src/hash.js";
import { parseJson } from "../src/json.js";
import type { Value, ValueMap } from "../src/value.js";
import { at, list, text } from "./vectors.js";

const file = process.env["NODEWIRE_RANDOM_PLANS"];
const skip = file ? false : "make interop writes them, and names their file in NODEWIRE_RANDOM_PLANS";

test("every random plan is nodewire's, or its error", { skip }, (context) => {
  const lines = readFileSync(file!, "utf-8").trimEnd().split("\n");
  let plans = 0;
  lines.forEach((line, n) => {
    const one = parseJson(line) as ValueMap;
    try {
      plans += Number(check(one));
    } catch (error) {
      throw new Error(`case ${n}`, { cause: error });
    }
  });
  context.diagnostic(`${lines.length} cases, of them ${plans} plans`);
  assert.ok(plans >= lines.length / 3, `only ${plans} of ${lines.length} cases are plans`);
});

/** Whether it is a plan. */
function check(one: ValueMap): boolean {
  const of = committee.parse(at(one, "committee"));
  const certified = body.parse(at(one, "body"));
  const found = snapshot.parse(at(one, "snapshot"));
  assert.equal(blobHash(snapshot.pack(found)), certified.snapshot);
  assert.deepEqual(snapshot.unpack(snapshot.pack(found)), found);
  const planning = () =>
    assign({
      manifest: manifest.parse(at(one, "manifest")),
      snapshot: found,
      body: certified,
      beacon: text(one.get("beacon")),
      committee: of,
      terms: terms.parse(at(one, "terms")),
      customer: text(one.get("customer")),
      k: Number(one.get("k")),
      busy: list(at(one, "busy")).map((cited) => ({ id: text(cited.get("id")), provider: text(cited.get("provider")) })),
    });
  const error = one.get("error");
  if (error !== undefined) {
    assert.throws(planning, (raised) => {
      assert.ok(raised instanceof NodewireError, String(raised));
      assert.deepEqual([raised.code, raised.field], [at(error, "code"), at(error, "field")]);
      return true;
    });
    return false;
  }
  const made = planning();
  assert.equal(toHex(plan.pack(made)), text(one.get("packed")));
  assert.equal(plan.digest(made), text(one.get("digest")));
  for (const pair of at(one, "deadlines") as readonly (readonly Value[])[])
    assert.equal(deadlineEpoch(made, of, pair[0] as bigint), pair[1]);
  return true;
}
