/** A case of assign2.json, planned: its documents are read as strangers' are. */

import { assign } from "../src/assign.js";
import { body, committee } from "../src/documents/committee.js";
import { manifest } from "../src/documents/manifest.js";
import { type Plan, terms } from "../src/documents/plan.js";
import { node } from "../src/documents/snapshot.js";
import { list as listOf } from "../src/schema.js";
import type { ValueMap } from "../src/value.js";
import { at, list, text } from "./vectors.js";

export function planned(one: ValueMap): Plan {
  const certified = body.parse(at(one, "body"));
  const nodes = listOf(node, 4096).read(at(one, "nodes"), { path: "nodes", code: "bad-input" });
  return assign({
    manifest: manifest.parse(at(one, "manifest")),
    snapshot: { committee: certified.committee, epoch: certified.epoch, nodes },
    body: certified,
    beacon: text(one.get("beacon")),
    committee: committee.parse(at(one, "committee")),
    terms: terms.parse(at(one, "terms")),
    customer: text(one.get("customer")),
    k: Number(one.get("k")),
    busy: list(at(one, "busy")).map((cited) => ({
      id: text(cited.get("id")),
      provider: text(cited.get("provider")),
    })),
  });
}
