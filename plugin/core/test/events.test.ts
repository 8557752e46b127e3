/** Signed events of the vectors: each is its author's, is read, and is built anew as it was. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { measurementsOf, parseAd } from "../src/events/catalog.js";
import * as catalog from "../src/events/catalog.js";
import { eventId, eventOf, type EventTemplate, type NostrEvent, verifyEvent } from "../src/events/event.js";
import * as job from "../src/events/job.js";
import * as nutzaps from "../src/events/nutzaps.js";
import * as rounds from "../src/events/rounds.js";
import * as work from "../src/events/work.js";
import { sampleKey } from "../src/documents/work.js";
import { NodewireError } from "../src/errors.js";
import type { Value } from "../src/value.js";
import { at, text, vectors } from "./vectors.js";

const documents = vectors("documents1.json");
const examples = vectors("examples1.json");
const event = (name: string): NostrEvent => eventOf(at(documents, "events", name));
const example = (name: string): NostrEvent => eventOf(at(examples, name));
const committee = catalog.parseCommittee(event("committee"));

/** By name, the event, and the same read and built anew. */
const CASES: Record<string, readonly [NostrEvent, (event: NostrEvent) => EventTemplate]> = {
  manifest: [
    event("manifest"),
    (one) => {
      const read = catalog.parseManifest(one);
      return catalog.buildManifest(read.manifest!, read.servers, one.created_at).event;
    },
  ],
  committee: [event("committee"), (one) => catalog.buildCommittee(catalog.parseCommittee(one), one.created_at)],
  ad: [event("ad"), (one) => catalog.buildAd(catalog.parseAd(one), one.created_at)],
  beat: [event("beat"), (one) => catalog.buildBeat(catalog.parseBeat(one), committee, one.created_at)],
  bond: [example("bond"), (one) => catalog.buildBond(catalog.parseBond(one), one.created_at)],
  splice: [example("splice"), (one) => catalog.buildSpliceAd(catalog.parseSpliceAd(one), one.created_at)],
  certificate: [
    event("certificate"),
    (one) => rounds.buildCertificate(rounds.parseCertificate(one), one.created_at),
  ],
  "partial.1": [event("partial.1"), partial],
  "partial.2": [event("partial.2"), partial],
  "partial.3": [event("partial.3"), partial],
  vote: [
    rounds.parseCertificate(event("certificate")).votes[0]!,
    (one) => rounds.buildVote(rounds.parseSaid(one) as rounds.Said & { type: "vote" }, one.created_at),
  ],
  request: [event("request"), (one) => job.buildRequest(job.parseRequest(one), one.created_at)],
  payment_required: [
    example("payment_required"),
    (one) => job.buildFeedback(job.parseFeedback(one), one.created_at),
  ],
  error: [example("error"), (one) => job.buildFeedback(job.parseFeedback(one), one.created_at)],
  result: [example("result"), (one) => job.buildResult(job.parseResult(one), one.created_at)],
  complaint: [
    example("complaint"),
    (one) => {
      const read = work.parseComplaint(one);
      assert.equal(read.key, text(at(examples, "complaint_case")));
      return work.buildComplaint(read.committee, read.claim, one.created_at);
    },
  ],
  sampled: [example("sampled"), (one) => work.buildSampled(work.parseSampled(one), one.created_at)],
  nutzap: [example("nutzap"), (one) => nutzaps.buildNutzap(nutzaps.parseNutzap(one), one.created_at)],
  nutzap_info: [
    example("nutzap_info"),
    (one) => nutzaps.buildNutzapInfo(nutzaps.parseNutzapInfo(one), one.created_at),
  ],
  wire_auth: [example("wire_auth"), (one) => work.buildLinkAuth(work.parseLinkAuth(one), one.created_at)],
  splice_request: [
    example("splice_request"),
    (one) => work.buildSpliceRequest(work.parseSpliceRequest(one), one.created_at),
  ],
};

/** Tags that a reader does without, or that are not always there. */
const UNCHECKED: Record<string, string[]> = {
  manifest: ["k", "blob", "mode", "server"],
  committee: ["d", "p"],
  request: ["relays", "nonce"],
  payment_required: ["close"],
  result: ["encrypted", "root"],
  splice_request: ["room"],
  nutzap: ["salt"],
  nutzap_info: ["relay"],
};

function partial(one: NostrEvent): EventTemplate {
  return rounds.buildPartial(rounds.parsePartial(one), one.created_at);
}

for (const [name, [signed, again]] of Object.entries(CASES)) {
  test(`event ${name}`, () => {
    verifyEvent(signed);
    assert.equal(eventId(signed.pubkey, again(signed)), signed.id, "built anew it is another event");
    refused(() => verifyEvent({ ...signed, created_at: signed.created_at + 1 }), "bad-signature");
    refused(() => verifyEvent({ ...signed, sig: `${signed.sig.slice(0, -1)}${signed.sig.endsWith("0") ? 1 : 0}` }), "bad-signature");
    refused(() => again({ ...signed, kind: signed.kind + 1 }), "bad-event");
    for (const [tag] of signed.tags) {
      if (UNCHECKED[name]?.includes(tag!)) continue;
      refused(() => again({ ...signed, tags: signed.tags.filter(([name]) => name !== tag) }), "bad-tag", `without ${tag}`);
    }
  });
}

function refused(action: () => void, code: string, message = code): void {
  assert.throws(action, (error) => error instanceof NodewireError && error.code === code, message);
}

test("every event of the vectors that is no training's is a case", () => {
  const training = ["delivery", "outer", "round", "round_close", "snapshots_asked", "trainer"];
  const isEvent = (value: Value): boolean => value instanceof Map && value.has("sig") && value.has("pubkey");
  const there = [...(at(documents, "events") as Map<string, Value>), ...(examples as Map<string, Value>)];
  const names = there.flatMap(([name, value]) => (isEvent(value) && !training.includes(name) ? [name] : []));
  assert.deepEqual(names.sort(), Object.keys(CASES).filter((name) => name !== "vote").sort());
});

test("a nutzap is its author's, is taken by whoever lists its mint, and has one payment hash", () => {
  const [signed, info] = [example("nutzap"), nutzaps.parseNutzapInfo(example("nutzap_info"))];
  const nutzap = nutzaps.parseNutzap(signed);
  const provider = example("nutzap_info").pubkey;
  nutzaps.checkNutzap(nutzap, provider, info);
  assert.equal(nutzaps.isBound(nutzap, signed.pubkey), true);
  assert.equal(nutzaps.isBound({ ...nutzap, salt: null }, signed.pubkey), false);
  refused(() => nutzaps.isBound(nutzap, provider), "bad-tag");
  refused(() => nutzaps.checkNutzap(nutzap, signed.pubkey, info), "bad-tag");
  refused(() => nutzaps.checkNutzap(nutzap, provider, { ...info, lockKey: provider }), "bad-tag");
  refused(() => nutzaps.checkNutzap(nutzap, provider, { ...info, mints: [["https://mint.example", "usd"]] }), "bad-tag");
  const payment = nutzaps.nutzapPayment(nutzap);
  assert.equal(payment.payment_hash, text(at(examples, "nutzap_payment", "payment_hash")));
  assert.equal(payment.preimage, text(at(examples, "nutzap_payment", "preimage")));
  const [proof, ...others] = signed.tags.map((tag) => [...tag]);
  const changed = (from: string, to: string): NostrEvent => ({ ...signed, tags: [["proof", proof![1]!.replace(from, to)], ...others] });
  refused(() => nutzaps.parseNutzap(changed("SIG_INPUTS", "SIG_ALL")), "bad-tag");
  refused(() => nutzaps.parseNutzap(changed('"amount":1', '"amount":0')), "bad-tag");
  refused(() => nutzaps.parseNutzap(changed("P2PK", "HTLC")), "bad-tag");
  refused(() => nutzaps.parseNutzap({ ...signed, tags: [...signed.tags, signed.tags[0]!] }), "bad-tag");
});

test("the certificate is its committee's, and its partials make the request's beacon", () => {
  const certificate = rounds.parseCertificate(event("certificate"));
  rounds.checkCertificate(certificate, committee);
  refused(() => rounds.checkCertificate({ ...certificate, votes: certificate.votes.slice(1) }, committee), "bad-quorum");
  const request = job.parseRequest(event("request"));
  assert.equal(rounds.beaconOf(request.partials, certificate.of, committee), request.plan.beacon);
  refused(() => rounds.beaconOf(request.partials.slice(1), certificate.of, committee), "no-quorum");
});

test("a request by another than its plan's customer is refused", () => {
  const request = event("request");
  refused(() => job.parseRequest({ ...request, pubkey: "11".repeat(32) }), "bad-event");
});

test("a sample's name, and an ad's tags", () => {
  assert.equal(event("ad").tags.length, 3);
  const [sample] = work.parseSampled(example("sampled")).samples;
  assert.equal(sampleKey(sample!), text(at(examples, "sample_key")));
});

test("measurements beside an ad", () => {
  const ad = event("ad");
  const measured = at(examples, "measured") as string[][];
  const of = { ...ad, tags: [...ad.tags, ...measured] };
  const found = measurementsOf(of, parseAd(of));
  assert.equal(found.profiledAt, 1_800_000_020n);
  assert.deepEqual(found.rates.get("float32"), { flopsPerS: 90_000_000_000n, bytesPerS: 12_000_000_000n });
  assert.deepEqual(found.fit, { callUs: 140n, slower: 3000n, within: 1250n });
  assert.deepEqual(found.tasks, [], "the ad offers no stage.0");
});
