/** Recipes (nips/30-training-recipes.md): what is trained and how, what fits together, and what a round takes. */

import { document } from "../document.js";
import {
  below,
  bool,
  checked,
  constant,
  count,
  fault,
  integer,
  label,
  leftOut,
  name,
  nullable,
  object,
  oneOf,
  pair,
  type Place,
  type Typed,
  version,
  withDefault,
} from "../schema.js";
import { adapter, type Family, family, integerOf } from "./families.js";
import { real } from "./real.js";
import { moduleOf, shapesOf } from "./shapes.js";
import { takesOf } from "./takes.js";

const share = real(0, 1);
const rate = real(0, 1e4);
const beta = real(0, 0.999999);
const epsilon = real(1e-20, 1);
const steps = integer(1n, 100_000n);
const step = integer(0n, 1n << 40n);

const data = object({
  layout: oneOf("arrays", "bytes", "tokens", "texts"),
  window: withDefault(integer(0n, 1n << 17n), 0n),
  block: withDefault(integer(1n, 1n << 30n), 4096n),
  deal: withDefault(oneOf("shuffled", "contiguous"), "shuffled"),
  held_out: withDefault(integer(2n, 1n << 20n), 10n),
});

const inner = object({
  optimizer: oneOf("sgd", "adamw", "muon"),
  lr: rate,
  rest_lr: withDefault(rate, "0.001"),
  momentum: withDefault(beta, "0.0"),
  nesterov: withDefault(bool, false),
  betas: withDefault(pair(beta, beta), ["0.9", "0.95"]),
  eps: withDefault(epsilon, "1e-08"),
  weight_decay: withDefault(rate, "0.0"),
  clip: withDefault(rate, "0.0"),
  schedule: withDefault(oneOf("constant", "cosine", "linear"), "constant"),
  warmup: withDefault(step, 0n),
  rise: withDefault(integer(0n, 100_000n), 0n),
  total: withDefault(step, 0n),
  floor: withDefault(share, "0.0"),
});

const outer = checked(
  object({
    method: withDefault(oneOf("average", "nesterov", "fedadam"), "average"),
    lr: withDefault(rate, "1.0"),
    momentum: withDefault(beta, "0.0"),
    betas: withDefault(pair(beta, beta), ["0.9", "0.99"]),
    eps: withDefault(epsilon, "0.001"),
    aggregate: withDefault(oneOf("mean", "trimmed", "median", "clip", "krum"), "mean"),
    tolerated: withDefault(integer(0n, 1024n), 0n),
    bound: withDefault(real(0, 1e6, "open"), "2.0"),
    stored: withDefault(oneOf("f32", "bf16"), "f32"),
    shards: leftOut(integer(0n, 4096n), 0n),
  }),
  (typed, at) => {
    if (["trimmed", "krum"].includes(typed.aggregate) && typed.tolerated === 0n)
      throw fault(below(at, "tolerated"), `is 0, so ${typed.aggregate} is the mean`);
  },
);

const compression = object({
  method: withDefault(oneOf("f32", "int8", "int4", "topk"), "f32"),
  block: withDefault(integerOf(128n, 256n, 512n, 1024n, 2048n, 4096n), 256n),
  fraction: withDefault(real(0, 0.5, "open"), "0.0625"),
  bits: withDefault(integerOf(2n, 8n), 8n),
  error_feedback: withDefault(share, "0.0"),
  fragments: withDefault(integer(1n, 64n), 1n),
});

const validation = object({
  policy: withDefault(oneOf("none", "progress", "decay"), "none"),
  gamma: withDefault(rate, "0.05"),
  rate: withDefault(real(-1, 1), "0.0"),
  average: withDefault(integer(1n, 1000n), 3n),
  norm_low: withDefault(rate, "0.2"),
  norm_high: withDefault(rate, "5.0"),
  cosine: withDefault(share, "0.99"),
  gain: withDefault(real(-1e4, 1e4), "-0.05"),
  own: withDefault(real(-1e4, 1e4), "0.0"),
  samples: withDefault(integer(0n, 65_536n), 0n),
});

const audit = object({
  fraction: withDefault(share, "0.1"),
  segment: withDefault(steps, 10n),
  tolerance: withDefault(share, "0.02"),
  outer: withDefault(share, "0.1"),
});

const recipeFields = object({
  v: version,
  name,
  family,
  adapter: withDefault(nullable(adapter), null),
  loss: oneOf("cross_entropy", "squared_error", "next_token", "contrastive"),
  data,
  inner,
  outer: withDefault(outer, new Map()),
  steps,
  batch: integer(1n, 65_536n),
  rounds: integer(1n, 100_000n),
  precision: withDefault(oneOf("f32", "bf16"), "f32"),
  seed: withDefault(count, 0n),
  compression: withDefault(compression, new Map()),
  validation: withDefault(validation, new Map()),
  audit: withDefault(audit, new Map()),
  deadline: withDefault(integer(1n, 2_592_000n), 3600n),
  pace: withDefault(oneOf("equal", "speed"), "equal"),
  quorum: withDefault(share, "1.0"),
  late: withDefault(oneOf("drop", "half"), "drop"),
  profile: withDefault(
    object({
      threads: withDefault(constant(1n), 1n),
      torch: withDefault(label, ""),
      isa: withDefault(label, ""),
    }),
    new Map(),
  ),
  hardware: withDefault(
    object({ device: withDefault(oneOf("cpu", "any"), "any"), memory_bytes: withDefault(count, 0n) }),
    new Map(),
  ),
});

export type Recipe = Typed<typeof recipeFields>;

export const recipe = document(checked(recipeFields, check), {
  what: "recipe",
  tag: "nodewire/recipe/1",
  code: "bad-recipe",
  mostBytes: 32_768,
});

function check(typed: Recipe, at: Place): void {
  const refuse = (field: string, reason: string): never => {
    throw fault(below(at, field), reason);
  };
  const { family: of, data: read, compression: packed } = typed;
  const [losses, layouts] = trainedBy(of);
  if (!losses.includes(typed.loss)) refuse("loss", `of ${of.name} is ${losses.join(" or ")}`);
  if (!layouts.includes(read.layout)) refuse("data.layout", `of ${of.name} is ${layouts.join(" or ")}`);
  if (of.name === "decoder" || of.name === "encoder") {
    if (read.window < 2n || read.window > of.positions) refuse("data.window", `is not from 2 to ${of.positions}`);
  } else if (read.window !== 0n) refuse("data.window", "of arrays is 0");
  if (typed.loss === "contrastive" && typed.batch < 2n) refuse("batch", "of one pair has nothing to be told from");
  if (typed.adapter) {
    if ((of.name !== "decoder" && of.name !== "encoder") || !of.start) refuse("adapter", "has no weights to start from");
    const modules = new Set(shapesOf(of).map(moduleOf));
    if (!typed.adapter.targets.every((one) => modules.has(one))) refuse("adapter.targets", "are no matrices of the model");
  }
  if (typed.outer.stored === "bf16" && of.name !== "decoder") refuse("outer.stored", "is of decoders");
  if (packed.fragments > typed.rounds) refuse("compression.fragments", "are more than rounds");
  if (packed.fragments > 1n && typed.late !== "drop") refuse("late", "is drop where there are fragments");
  const takes = takesOf(typed);
  if (takes.stretches > takes.trained) refuse("compression.fragments", "are more than there are numbers");
  if (typed.steps * typed.batch > (1n << 29n) - 1n) refuse("steps", "and batch are more than 2^29 - 1 samples");
  if (takes.parameters > 1n << 34n) refuse("family", "has more than 2^34 parameters");
  if (takes.memoryBytes > 1n << 40n) refuse("family", "takes more than 2^40 bytes of memory");
  if (takes.flopsPerRound > 1n << 62n) refuse("family", "takes more than 2^62 operations a round");
}

function trainedBy(of: Family): readonly [losses: readonly string[], layouts: readonly string[]] {
  if (of.name === "decoder") return [["next_token"], of.tokens === "byte" ? ["bytes"] : ["tokens", "texts"]];
  if (of.name === "encoder") return [["contrastive"], ["texts"]];
  return [["cross_entropy", "squared_error"], ["arrays"]];
}
