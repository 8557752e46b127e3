/** dvrf1.json: points, partials and beacons. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type BeaconPartial, combine, hashToPoint, isOnOnePolynomial, verifyPartial } from "../src/beacon.js";
import { fromHex, toHex } from "../src/bytes.js";
import { NodewireError } from "../src/errors.js";
import type { Value } from "../src/value.js";
import { at, list, text, vectors } from "./vectors.js";

list(vectors("dvrf1.json")).forEach((one, n) =>
  test(`beacon ${n}`, () => {
    const alpha = fromHex(text(one.get("alpha")));
    const partials = list(at(one, "partials")).map(
      (partial) => Object.fromEntries(partial as Map<string, Value>) as unknown as BeaconPartial,
    );
    const publics = list(at(one, "shares")).map((share) => text(share.get("public")));
    const threshold = Number(one.get("t"));
    assert.equal(toHex(hashToPoint(alpha)), text(one.get("h")));
    for (const partial of partials) {
      const share = publics[Number(partial.index) - 1]!;
      verifyPartial(alpha, share, partial);
      const other = { ...partial, s: partial.c };
      assert.throws(() => verifyPartial(alpha, share, other), NodewireError);
      assert.throws(() => verifyPartial(alpha, share, { ...partial, c: "00".repeat(32) }), NodewireError);
    }
    assert.equal(combine(partials, threshold), text(one.get("beacon")));
    assert.equal(combine([...partials].reverse(), threshold), text(one.get("beacon")));
    assert.throws(() => combine(partials.slice(0, threshold - 1), threshold), NodewireError);
    assert.ok(isOnOnePolynomial(publics, text(one.get("group")), threshold - 1));
    if (publics.length > 1) assert.ok(!isOnOnePolynomial([...publics].reverse(), text(one.get("group")), threshold - 1));
  }),
);
