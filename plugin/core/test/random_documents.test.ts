/** Documents with a random part made another (tests/interop/random_documents.py): read and refused as nodewire does. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import type { DocumentType } from "../src/document.js";
import { ad, beat, spliceAd } from "../src/documents/ad.js";
import * as commitments from "../src/documents/commitments.js";
import { body, committee, inventory, partial } from "../src/documents/committee.js";
import { close, rollCall, sent, swarm, ticket, ticketSeal } from "../src/documents/job.js";
import { fedstrResult } from "../src/documents/fedstr.js";
import { manifest } from "../src/documents/manifest.js";
import { plan } from "../src/documents/plan.js";
import { type Recipe, recipe } from "../src/documents/recipe.js";
import { takesOf } from "../src/documents/takes.js";
import * as training from "../src/documents/training.js";
import { transcript } from "../src/documents/transcript.js";
import { closing, commitment, receipt, sampled, verdict } from "../src/documents/work.js";
import { NodewireError } from "../src/errors.js";
import { blobHash } from "../src/hash.js";
import { formatJson, parseJson } from "../src/json.js";
import type { ValueMap } from "../src/value.js";
import { text } from "./vectors.js";

const TYPES: Record<string, DocumentType<any>> = {
  Ad: ad,
  Beat: beat,
  Body: body,
  Close: close,
  Closing: closing,
  Commitment: commitment,
  Committee: committee,
  DeliveryDetails: training.delivered,
  Inventory: inventory,
  Manifest: manifest,
  Optimization: training.outerStep,
  OuterDeliveryDetails: training.outerDelivered,
  OuterTicket: training.outerTicket,
  Output: fedstrResult,
  Plan: plan,
  Progress: training.progress,
  Recipe: recipe,
  Receipt: receipt,
  RollCall: rollCall,
  Round: training.trainingRound,
  RoundClose: training.roundClose,
  RoundTicket: training.roundTicket,
  JobSamples: sampled,
  FrameStatement: sent,
  Share: partial,
  AuditAnswer: training.showing,
  Splice: spliceAd,
  Swarm: swarm,
  Ticket: ticket,
  Trainer: training.trainer,
  Transcript: transcript,
  Verdict: verdict,
};

/** Of two faults in one document a reader names either: nodewire counts, and reads the version, before all else. */
const FIRST = new Set(["too-large", "bad-version"]);

const file = process.env["NODEWIRE_RANDOM_DOCUMENTS"];
const skip = file ? false : "make interop writes them, and names their file in NODEWIRE_RANDOM_DOCUMENTS";

test("every random document is read or refused as nodewire does", { skip }, (context) => {
  const lines = readFileSync(file!, "utf-8").trimEnd().split("\n");
  const differ: string[] = [];
  let taken = 0;
  for (const line of lines) {
    const one = parseJson(line) as ValueMap;
    const said = read(TYPES[text(one.get("type"))]!, text(one.get("text")));
    if (one.has("takes") && said.takes !== formatJson(one.get("takes")!)) differ.push(`${line}\n  takes ${said.takes}`);
    const wanted = one.get("is") ?? one.get("error");
    taken += Number(one.has("is"));
    if (said.is !== wanted && !(FIRST.has(said.is) || FIRST.has(text(wanted)) ? one.has("error") && said.why : false))
      differ.push(`${line.slice(0, 3000)}\n  here: ${said.is} ${said.why}`);
  }
  context.diagnostic(`${lines.length} documents, of them ${taken} read`);
  assert.deepEqual(differ.slice(0, 20).map((one) => one.slice(0, 6000)), [], `${differ.length} of ${lines.length} differ`);
  assert.ok(taken >= lines.length / 10 && taken <= lines.length * 0.9, `${taken} of ${lines.length} are read`);
});

function read(type: DocumentType<any>, json: string): { is: string; why: string; takes?: string } {
  try {
    const typed = type.parseJson(json);
    if (type === recipe) return { is: blobHash(type.pack(typed)), why: "", takes: takesIn(typed) };
    return { is: type === ticket ? ticketSeal(typed) : blobHash(type.pack(typed)), why: "" };
  } catch (error) {
    if (!(error instanceof NodewireError)) throw error;
    return { is: error.code, why: error.message };
  }
}

function takesIn(of: Recipe): string {
  const { parameters, trained, stretches, flopsPerRound, memoryBytes, uploadBytes } = takesOf(of);
  const steps = of.steps > 1n ? of.steps / 2n : 1n;
  const gflop = [commitments.roundGflop(of, steps), commitments.stepGflop(of, 3n)];
  const audited = [false, true].flatMap((doubted) => {
    const drawn = commitments.drawnSegments(of, steps, { close: "6".repeat(64), commitment: recipe.digest(of), doubted });
    return [drawn, commitments.snapshotsOf(of, steps, drawn)];
  });
  const said = [parameters, trained, stretches, flopsPerRound, memoryBytes, uploadBytes, ...gflop, ...audited];
  return formatJson(said.map(String));
}
