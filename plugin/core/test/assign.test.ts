/** `assign/2`: every committed plan byte for byte, and every committed error by code and field. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { toHex } from "../src/bytes.js";
import { plan } from "../src/documents/plan.js";
import { NodewireError } from "../src/errors.js";
import { formatJson } from "../src/json.js";
import { at, list, text, vectors } from "./vectors.js";
import { planned } from "./planned.js";

const cases = list(vectors("assign2.json"));

test("the vectors are there", () => assert.ok(cases.length >= 23));

for (const one of cases) {
  test(`assign/2: ${text(one.get("name"))}`, () => {
    const error = one.get("error");
    if (error !== undefined) {
      assert.throws(
        () => planned(one),
        (raised) => {
          assert.ok(raised instanceof NodewireError);
          assert.deepEqual([raised.code, raised.field], [at(error, "code"), at(error, "field")]);
          return true;
        },
      );
      return;
    }
    const made = planned(one);
    assert.equal(formatJson(plan.write(made)), formatJson(at(one, "plan")));
    assert.equal(toHex(plan.pack(made)), text(one.get("packed")));
    assert.equal(plan.digest(made), text(one.get("digest")));
    assert.deepEqual(plan.parse(at(one, "plan")), made);
  });
}
