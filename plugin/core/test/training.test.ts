/** Trainings: the vectors' events, tickets and commitments, and random events read or refused as nodewire does. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { schnorr } from "@noble/curves/secp256k1.js";
import { toHex, toUtf8 } from "../src/bytes.js";
import * as commitments from "../src/documents/commitments.js";
import { recipe } from "../src/documents/recipe.js";
import { takesOf } from "../src/documents/takes.js";
import { ticket } from "../src/documents/job.js";
import { delivered, type OuterTicket, roundTicket } from "../src/documents/training.js";
import { conversationKey, decrypt, encrypt } from "../src/encryption/nip44.js";
import { wrap } from "../src/encryption/wrap.js";
import { NodewireError } from "../src/errors.js";
import * as audits from "../src/events/audits.js";
import * as delivery from "../src/events/delivery.js";
import { eventId, eventOf, type EventTemplate, type NostrEvent, signEvent, verifyEvent } from "../src/events/event.js";
import { done, reason } from "../src/events/job.js";
import { isFedstr, parseFedstr, parseFedstrResult } from "../src/events/fedstr.js";
import { type OpenedTicket, openTicket, wrapTicket } from "../src/events/tickets.js";
import * as training from "../src/events/training.js";
import { blobHash, taggedHash } from "../src/hash.js";
import { parseJson } from "../src/json.js";
import type { ValueMap } from "../src/value.js";
import { at, text, vectors } from "./vectors.js";

const examples = vectors("examples1.json");
const example = (name: string): NostrEvent => eventOf(at(examples, name));

/** By name, the event read and built anew. */
const CASES: Record<string, (event: NostrEvent) => EventTemplate> = {
  trainer: (one) => training.buildTrainer(training.parseTrainer(one), one.created_at),
  round: (one) => training.buildRound(training.parseRound(one), one.created_at),
  outer: (one) => training.buildStep(training.parseStep(one), one.created_at),
  delivery: (one) => delivery.buildDelivery(delivery.parseDelivery(one), one.created_at),
  round_close: (one) => audits.buildRoundClose(audits.parseRoundClose(one), one.created_at),
  snapshots_asked: (one) => audits.buildSnapshotsAsked(audits.parseSnapshotsAsked(one), one.created_at),
};

for (const [name, again] of Object.entries(CASES)) {
  test(`event ${name}`, () => {
    const signed = example(name);
    verifyEvent(signed);
    assert.equal(eventId(signed.pubkey, again(signed)), signed.id, "built anew it is another event");
    assert.throws(() => again({ ...signed, kind: signed.kind + 3 }), NodewireError);
  });
}

const customer = taggedHash("test/key", toUtf8("customer"));

test("every event of a training in the vectors is a case", () => {
  const kinds = new Set([6840, 6841, 6842, 8840, 8841, 8842, 8859]);
  const names = [...(examples as ValueMap)].flatMap(([name, value]) =>
    value instanceof Map && value.has("sig") && (kinds.has(Number(value.get("kind"))) || isTraining(value)) ? [name] : [],
  );
  assert.deepEqual(names.sort(), Object.keys(CASES).sort());
});

function isTraining(value: ValueMap): boolean {
  const tags = at(value, "tags") as string[][];
  return tags.some(([name, said]) => name === "k" && ["8840", "8841"].includes(said!));
}

test("the recipe of the vectors, its digest and its takes", () => {
  const read = recipe.parse(at(examples, "recipe", "document"));
  assert.equal(recipe.digest(read), text(at(examples, "recipe", "digest")));
  assert.deepEqual(recipe.unpack(recipe.pack(read)), read);
  const takes = takesOf(read);
  const numbers = 64n * 128n + 128n + 128n * 10n + 10n;
  assert.deepEqual([takes.parameters, takes.trained, takes.uploadBytes], [numbers, numbers, 4n * numbers]);
  assert.equal(takes.flopsPerRound, 12n * (32n * 3n * 2n * (64n * 128n + 128n * 10n) + 20n * numbers));
});

test("a ticket is its request's, and its recipe is under the request's seal", () => {
  const ticket = roundTicket.parse(at(examples, "round_ticket"));
  const { round } = training.parseRound(example("round"));
  const of = recipe.parse(ticket.recipe);
  assert.equal(commitments.roundTicketSeal(ticket), round.shards[0]!.ticket);
  assert.equal(commitments.roundTicketSeal({ ...ticket, request: "1".repeat(64) }), round.shards[0]!.ticket);
  assert.notEqual(commitments.roundTicketSeal({ ...ticket, index: 1n }), round.shards[0]!.ticket);
  assert.equal(commitments.recipeSeal(recipe.digest(of), ticket.salt), round.seal);
  assert.equal(commitments.trainingJob(example("round").pubkey, ticket.salt), round.job);
  const { price, deposit } = commitments.priceOf(training.parseTrainer(example("trainer")).trainer, 1n);
  assert.deepEqual([round.shards[0]!.gflop, commitments.roundGflop(of, round.shards[0]!.steps)], [1n, 1n]);
  assert.ok(price <= round.shards[0]!.price_msat && deposit <= round.shards[0]!.deposit_msat);
});

test("a result opens for its customer, and is what its provider has committed to", () => {
  const found = delivery.parseDelivery(example("delivery"));
  const read = delivered.parse(at(examples, "delivered"));
  const commitment = commitments.roundCommitment(read, found.provider, found.request, 0n, 0n);
  assert.equal(commitment, found.commitment);
  assert.notEqual(commitments.roundCommitment(read, found.customer, found.request, 0n, 0n), found.commitment);
  const counted = audits.parseRoundClose(example("round_close")).close.results[0]!;
  assert.deepEqual([counted.commitment, counted.result], [commitment, found.id]);
  assert.equal(toHex(schnorr.getPublicKey(customer)), found.customer);
  assert.deepEqual(delivered.parseJson(decrypt(found.content, conversationKey(customer, found.provider))), read);
});

test("what a customer alone reads is encrypted as the vectors are", () => {
  const cases = [
    ["delivery", "delivered", delivered],
    ["error", "error_said", reason],
    ["result", "result_said", done],
  ] as const;
  for (const [name, said, type] of cases) {
    const event = example(name);
    const conversation = conversationKey(customer, event.pubkey);
    const plain = decrypt(event.content, conversation);
    assert.deepEqual(type.parseJson(plain), type.parse(at(examples, said)));
    assert.equal(encrypt(plain, conversation, new Uint8Array(32).fill(7)), event.content);
  }
});

test("the snapshots asked for are those that the close draws", () => {
  const of = recipe.parse(at(examples, "recipe", "document"));
  const closed = audits.parseRoundClose(example("round_close"));
  const { commitment, doubted } = closed.close.results[0]!;
  const drawn = commitments.drawnSegments(of, of.steps, { close: closed.id, commitment, doubted });
  const asked = audits.parseSnapshotsAsked(example("snapshots_asked"));
  assert.equal(asked.close, closed.id);
  assert.ok(drawn.length === 1 && commitments.snapshotsOf(of, of.steps, drawn).every((one) => one <= 1));
  assert.deepEqual(commitments.snapshotsOf(of, 30n, [0, 2]), [0, 1, 2]);
  assert.ok(audits.asksForSnapshots(example("snapshots_asked")) && !audits.asksForSnapshots(example("sampled")));
});

test("what stands in an event is what it cites", () => {
  const asked = training.parseRound(example("round"));
  const inline = toUtf8("weights");
  const theta = { sha256: blobHash(inline), bytes: BigInt(inline.length) };
  const of = { ...asked, inline, round: { ...asked.round, theta } };
  const event = { ...example("round"), ...training.buildRound(of, 1) };
  assert.deepEqual(training.parseRound(event), of);
  const other = event.tags.map((tag) => (tag[0] === "inline" ? ["inline", "AAAA"] : tag));
  assert.throws(() => training.parseRound({ ...event, tags: other }), /bad-hash: inline/);
  const padded = event.tags.map((tag) => (tag[0] === "inline" ? ["inline", tag[1]!.replace("=", "")] : tag));
  assert.throws(() => training.parseRound({ ...event, tags: padded }), /bad-tag: inline/);
});

const PROVIDER = new Uint8Array(32).fill(2);

test("a request in FEDSTR's layout says the same in the plain and encrypted", () => {
  const provider = toHex(schnorr.getPublicKey(PROVIDER));
  const hash = "ab".repeat(32);
  const said = [
    ["i", hash, "job", "wss://a.example"],
    ["i", "https://a.example/s", "url", "", "state"],
    ["x", hash, "state", "2000"],
    ["param", "task", "train"],
    ["param", "run", "diloco"],
    ...Object.entries({ model: "linear", inputs: "4", classes: "2", steps: "9", batch: "3", lr: "1e-3", round: "5" }).map(
      ([name, value]) => ["param", name, value],
    ),
  ];
  const sealed = encrypt(JSON.stringify(said), conversationKey(customer, provider));
  const asked = (tags: string[][], content = ""): NostrEvent =>
    signEvent(customer, { kind: 8000, created_at: 1_800_000_000, tags: [["p", provider], ...tags], content });
  for (const event of [asked(said), asked([["encrypted"]], sealed)]) {
    assert.ok(isFedstr(event, PROVIDER));
    const read = parseFedstr(event, PROVIDER);
    assert.deepEqual(read.data, { type: "job", id: hash });
    assert.deepEqual(read.state, { type: "url", url: "https://a.example/s", sha256: hash, bytes: 2000n, key: null });
    assert.deepEqual([read.round, read.index, read.deadlineS, read.bidMsat], [5n, 0n, 3600n, null]);
    assert.deepEqual([read.recipe.inner.lr, read.recipe.outer.method, read.recipe.outer.lr], ["0.001", "nesterov", "0.7"]);
  }
  assert.ok(!isFedstr(asked([["encrypted"]], "no ciphertext"), PROVIDER));
  assert.ok(!isFedstr(asked(said), customer));
  const other = said.map((row) => (row[1] === "run" ? ["param", "run", "fedavg"] : row));
  const withRecipe = [...other.slice(0, 5), ["param", "recipe", recipe.json(parseFedstr(asked(said), PROVIDER).recipe)]];
  assert.throws(() => parseFedstr(asked(withRecipe), PROVIDER), /unsupported: run/);
  const state = [["i", hash, "job", "", "state"], ["i", hash, "job"], ...said.slice(3)];
  assert.throws(() => parseFedstr(asked(state), PROVIDER), /unsupported: i/);
});

test("tickets are wrapped for their provider, and told from each other", () => {
  const provider = toHex(schnorr.getPublicKey(PROVIDER));
  const by = toHex(schnorr.getPublicKey(customer));
  const round = roundTicket.parse(at(examples, "round_ticket"));
  const { index: _, shard_key: _key, shard_sha256: _sha, start_key: _start, carried: _carried, ...shared } = round;
  const outer = { ...shared, momenta_key: null, momenta_sha256: null, opens: [["1".repeat(64), "2".repeat(64)]] };
  const cases: OpenedTicket[] = [
    { customer: by, type: "job", ticket: ticket.parse(at(examples, "ticket", "document")) },
    { customer: by, type: "round", ticket: round },
    { customer: by, type: "outer", ticket: outer as OuterTicket },
  ];
  for (const one of cases) {
    const event = wrapTicket(one, customer, provider, 1_800_000_000);
    verifyEvent(event);
    assert.deepEqual([event.kind, event.tags], [21_059, [["p", provider]]]);
    assert.deepEqual(openTicket(event, PROVIDER), one);
    assert.throws(() => openTicket(event, customer), /bad-ciphertext/);
  }
  const offer = wrap({ kind: 28_843, created_at: 1, tags: [], content: "{}" }, customer, provider, 1);
  assert.throws(() => openTicket(offer, PROVIDER), /bad-event: rumor.kind/);
  const long = wrap({ kind: 28_841, created_at: 1, tags: [], content: "x".repeat(24_577) }, customer, provider, 1);
  assert.throws(() => openTicket(long, PROVIDER), /too-large: ticket/);
});

test("a result in FEDSTR's layout", () => {
  const [request, provider] = ["ab".repeat(32), toHex(schnorr.getPublicKey(PROVIDER))];
  const of = toHex(schnorr.getPublicKey(customer));
  const result = (amount: string[]): NostrEvent => {
    const tags = [["request", "{}"], ["e", request], ["p", of], ["amount", ...amount], ["encrypted"]];
    return signEvent(PROVIDER, { kind: 6000, created_at: 1, tags, content: "c" });
  };
  const { id: _, ...read } = parseFedstrResult(result(["750", "lnbc1"]));
  assert.deepEqual(read, { provider, request, customer: of, amountMsat: 750n, bolt11: "lnbc1", content: "c" });
  assert.equal(parseFedstrResult(result(["0"])).bolt11, null);
  assert.throws(() => parseFedstrResult(result([])), /bad-tag: amount/);
  assert.throws(() => parseFedstrResult(result(["-1"])), /bad-tag: amount/);
});

const READERS: Record<string, (event: NostrEvent) => unknown> = {
  trainer: training.parseTrainer,
  round: training.parseRound,
  outer: training.parseStep,
  delivery: delivery.parseDelivery,
  outer_delivery: delivery.parseStepDelivery,
  round_close: audits.parseRoundClose,
  snapshots_asked: audits.parseSnapshotsAsked,
  fedstr: (event) => {
    if (!isFedstr(event, PROVIDER)) throw new NodewireError("bad-event", "event", "is not for this provider");
    return parseFedstr(event, PROVIDER);
  },
};

const file = process.env["NODEWIRE_RANDOM_EVENTS"];
const skip = file ? false : "make interop writes them, and names their file in NODEWIRE_RANDOM_EVENTS";

test("random events are read or refused as nodewire does", { skip }, (context) => {
  const lines = readFileSync(file!, "utf-8").trimEnd().split("\n");
  const differ: string[] = [];
  let taken = 0;
  for (const line of lines) {
    const one = parseJson(line) as ValueMap;
    const said = refusal(() => READERS[text(one.get("is"))]!(eventOf(one.get("event")!)));
    const isTaken = one.get("error") === null;
    taken += Number(isTaken);
    if (isTaken !== (said === undefined)) differ.push(`${line}\n  here: ${said}`);
  }
  context.diagnostic(`${lines.length} events, of them ${taken} read`);
  assert.deepEqual(differ.slice(0, 20), [], `${differ.length} of ${lines.length} differ`);
  assert.ok(taken > lines.length / 10 && taken < lines.length * 0.9, `${taken} of ${lines.length} are read`);
});

function refusal(action: () => unknown): NodewireError | undefined {
  try {
    action();
  } catch (error) {
    if (!(error instanceof NodewireError)) throw error;
    return error;
  }
  return undefined;
}
