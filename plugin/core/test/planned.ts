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
  return assign({
    manifest: manifest.parse(at(one, "manifest")),
    nodes: listOf(node, 4096).read(at(one, "nodes"), { path: "nodes", code: "bad-input" }),
    body: body.parse(at(one, "body")),
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
