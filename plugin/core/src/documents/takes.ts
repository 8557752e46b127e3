/** What a round of a recipe takes (nips/30-training-recipes.md). */

import type { Shapes } from "./families.js";
import type { Recipe } from "./recipe.js";
import { adapterShapes, costsOf, numbersOf, product, shapesOf, sum } from "./shapes.js";

/** Names and shapes of what a recipe trains. */
export function trainedShapes(of: Recipe): Shapes {
  const whole = shapesOf(of.family);
  return of.adapter ? adapterShapes(of.adapter, whole) : whole;
}

/** Whether a provider takes something of its own from a round into the next one. */
export function carries(of: Recipe): boolean {
  return of.compression.fragments > 1n || Number(of.compression.error_feedback) > 0;
}

/** Numbers that the inner optimizer keeps for each that is trained. */
export function momentsOf({ optimizer, momentum }: Recipe["inner"]): bigint {
  return optimizer === "sgd" ? BigInt(Number(momentum) > 0) : 2n;
}

export interface Takes {
  readonly parameters: bigint;
  readonly trained: bigint;
  readonly stretches: bigint;
  readonly flopsPerRound: bigint;
  readonly memoryBytes: bigint;
  readonly uploadBytes: bigint;
}

const ceil = (a: bigint, b: bigint): bigint => (a + b - 1n) / b;
const most = (numbers: readonly bigint[]): bigint => numbers.reduce((all, one) => (one > all ? one : all), 0n);
const MiB = 1n << 20n;

/** What a round takes: its numbers are fixed by formulas, so that bids and refusals agree. */
export function takesOf(of: Recipe): Takes {
  const shapes = trainedShapes(of);
  const trained = numbersOf(shapes);
  const parameters = numbersOf(shapesOf(of.family)) + (of.adapter ? trained : 0n);
  const { forward, activations: perSample } = costsOf(of.family, of.data.window);
  const activations = of.batch * perSample;
  const moments = momentsOf(of.inner);
  const { fragments, error_feedback: feedback } = of.compression;
  const sides = shapes
    .filter(([, shape]) => shape.length === 2)
    .map(([, [a, b]]) => (a! < b! ? [a!, b!] : [b!, a!]) as [bigint, bigint]);
  const isMuon = of.inner.optimizer === "muon";
  const orthogonal = isMuon ? most(sides.map(([a, b]) => 2n * a * (a + b))) : 0n;
  const muon = isMuon ? sum(sides.map(([a, b]) => 10n * (2n * a * a * b + a * a * a))) : 0n;
  const carried = (fragments > 1n ? 5n : 0n) + (Number(feedback) > 0 ? 3n : 0n);
  const largest = most(shapes.map(([, shape]) => product(shape)));
  const cast = of.precision === "bf16" ? 2n * (parameters + activations) + 4n * MiB : 0n;
  const atATime = trained < 1n << 18n ? trained : 1n << 18n;
  const layers = "layers" in of.family ? of.family.layers : 1n;
  return {
    parameters,
    trained,
    stretches: fragments * most([1n, layers / fragments]),
    flopsPerRound: of.steps * (of.batch * 3n * forward + 20n * trained + muon),
    memoryBytes:
      4n * (parameters + trained * (3n + moments + carried) + 2n * largest + orthogonal + activations) +
      cast +
      keptBytes(of, trained, moments) +
      32n * atATime +
      8n * MiB,
    uploadBytes: uploadBytes(of.compression, trained),
  };
}

/** Of snapshots that a provider keeps until they are audited. */
function keptBytes({ audit: of, steps: all }: Recipe, trained: bigint, moments: bigint): bigint {
  if (Number(of.fraction) === 0) return 0n;
  const segments = ceil(all, of.segment);
  const snapshot = 4n * trained * (1n + moments);
  return (segments / most([1n, ceil(segments * snapshot, 16n * MiB)])) * snapshot;
}

/** Numbers of a block that topk keeps. */
export function keptOf({ block, fraction }: Recipe["compression"]): bigint {
  return most([1n, BigInt(Math.floor(Number(block) * Number(fraction)))]);
}

/** Bytes of a result's tensors, of so many trained numbers. */
export function uploadBytes(of: Recipe["compression"], n: bigint): bigint {
  const blocks = ceil(n, of.block);
  const kept = keptOf(of);
  switch (of.method) {
    case "f32":
      return 4n * n;
    case "int8":
      return n + 4n * blocks;
    case "int4":
      return ceil(n, 2n) + 4n * blocks;
    case "topk":
      return blocks * (ceil(kept * of.bits, 8n) + 2n * kept + (of.bits === 2n ? 8n : 4n));
  }
}
