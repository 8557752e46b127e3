/** What can be trained (nips/30-training-recipes.md): families of models, their tensors, and what a sample costs. */

import {
  below,
  bool,
  checked,
  fault,
  integer,
  list,
  nullable,
  object,
  oneOf,
  pattern,
  type Place,
  type Schema,
  type Typed,
  withDefault,
} from "../schema.js";
import { isMap, type Value } from "../value.js";
import { blob } from "./manifest.js";
import { real } from "./real.js";

/** Names and shapes in the family's order, which is that of all that is like theta. */
export type Shapes = readonly (readonly [name: string, shape: readonly bigint[]])[];

const size = integer(1n, 1n << 20n);
const heads = integer(1n, 1024n);
const layers = integer(1n, 256n);
const factor = real(1e-6, 1e6);
const id = integer(0n, (1n << 20n) - 1n);

const linear = object({ name: oneOf("linear"), inputs: size, classes: size });

const mlp = object({
  name: oneOf("mlp"),
  inputs: size,
  hidden: list(size, 64, 1),
  classes: size,
  activation: withDefault(oneOf("relu", "gelu", "tanh"), "relu"),
});

const cnn = object({
  name: oneOf("cnn"),
  channels: integer(1n, 1024n),
  height: integer(1n, 4096n),
  width: integer(1n, 4096n),
  filters: list(integer(1n, 4096n), 32, 1),
  kernel: withDefault(integerOf(1n, 3n, 5n, 7n), 3n),
  pool: withDefault(bool, false),
  classes: size,
});

const scaling = object({
  factor,
  low_freq_factor: factor,
  high_freq_factor: factor,
  original_max_position_embeddings: integer(1n, 1n << 21n),
});

const decoder = object({
  name: oneOf("decoder"),
  tokens: oneOf("byte", "bpe"),
  vocabulary: withDefault(integer(2n, 1n << 20n), 256n),
  width: integer(2n, 1n << 16n),
  inner: integer(1n, 1n << 18n),
  layers,
  heads,
  kv_heads: heads,
  head_dim: integer(2n, 1024n),
  positions: integer(2n, 1n << 20n),
  norm_eps: withDefault(real(1e-12, 1), "1e-05"),
  rope_theta: withDefault(real(1e-6, 1e12), "10000.0"),
  rope_scaling: withDefault(nullable(scaling), null),
  tied: withDefault(bool, true),
  ends: withDefault(list(id, 32), []),
  start: withDefault(nullable(blob), null),
  tokenizer: withDefault(nullable(blob), null),
});

const encoder = object({
  name: oneOf("encoder"),
  vocabulary: integer(2n, 1n << 20n),
  width: integer(2n, 1n << 14n),
  inner: integer(1n, 1n << 16n),
  layers,
  heads,
  positions: integer(2n, 8192n),
  types: withDefault(integer(1n, 16n), 2n),
  norm_eps: withDefault(real(1e-15, 1), "1e-12"),
  pad: withDefault(id, 0n),
  temperature: withDefault(real(1e-4, 100), "0.05"),
  start: withDefault(nullable(blob), null),
  tokenizer: blob,
});

export type Cnn = Typed<typeof cnn>;
export type Decoder = Typed<typeof decoder>;
export type Encoder = Typed<typeof encoder>;
export type Family = Typed<typeof linear> | Typed<typeof mlp> | Cnn | Decoder | Encoder;

const FAMILIES: Readonly<Record<string, Schema<Family>>> = {
  linear,
  mlp,
  cnn: checked(cnn, checkCnn),
  decoder: checked(decoder, checkDecoder),
  encoder: checked(encoder, checkEncoder),
} as Record<string, Schema<any>>;

/** One of the five, told by its name. */
export const family: Schema<Family> = {
  read(value, at) {
    const name = isMap(value) ? value.get("name") : undefined;
    const found = typeof name === "string" && Object.hasOwn(FAMILIES, name) ? FAMILIES[name] : undefined;
    if (!found) throw fault(below(at, "name"), `is none of ${Object.keys(FAMILIES).join(", ")}`);
    return found.read(value, at);
  },
  write: (typed) => FAMILIES[typed.name]!.write(typed),
};

export const adapter = object({
  rank: integer(1n, 1024n),
  alpha: integer(1n, 65_536n),
  targets: list(pattern(/^[a-z0-9_]{1,32}$/, "the last name of a module"), 16, 1),
});

export type Adapter = Typed<typeof adapter>;

/** One of these integers. */
export function integerOf(...numbers: readonly bigint[]): Schema<bigint> {
  return {
    read(value, at) {
      if (typeof value !== "bigint" || !numbers.includes(value)) throw fault(at, `is none of ${numbers.join(", ")}`);
      return value;
    },
    write: (typed): Value => typed,
  };
}

function checkCnn(typed: Cnn, at: Place): void {
  const least = 1n << BigInt(typed.filters.length);
  if (typed.pool && (typed.height < least || typed.width < least))
    throw fault(below(at, "pool"), "halves the image to nothing");
}

function checkDecoder(typed: Decoder, at: Place): void {
  const refuse = (name: string, reason: string): never => {
    throw fault(below(at, name), reason);
  };
  const { rope_scaling: scaled, tokens, vocabulary } = typed;
  if (scaled && Number(scaled.low_freq_factor) >= Number(scaled.high_freq_factor))
    refuse("rope_scaling", "has a low_freq_factor that is not below its high_freq_factor");
  if (typed.head_dim % 2n !== 0n) refuse("head_dim", "is odd");
  if (typed.heads % typed.kv_heads !== 0n) refuse("kv_heads", "do not divide heads");
  if (typed.heads * typed.head_dim > 1n << 17n) refuse("head_dim", "makes the heads together wider than 131072");
  if (typed.ends.some((one) => one >= vocabulary)) refuse("ends", "are not below vocabulary");
  if (tokens === "byte" && (vocabulary < 256n || typed.tokenizer)) refuse("vocabulary", "of bytes has 256 ids, and no tokenizer");
  if (tokens === "bpe" && !typed.tokenizer) refuse("tokenizer", "is missing");
}

function checkEncoder(typed: Encoder, at: Place): void {
  if (typed.width % typed.heads !== 0n) throw fault(below(at, "heads"), "do not divide width");
  if (typed.pad >= typed.vocabulary) throw fault(below(at, "pad"), "is not below vocabulary");
}
