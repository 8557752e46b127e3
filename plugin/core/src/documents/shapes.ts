/** A family's tensors, and what a sample takes of its model (nips/30-training-recipes.md). */

import type { Adapter, Cnn, Decoder, Encoder, Family, Shapes } from "./families.js";

interface Costs {
  /** Operations there. */
  readonly forward: bigint;
  /** Numbers that are kept for the way back. */
  readonly activations: bigint;
}

type Listed = [name: string, shape: bigint[]][];

export function shapesOf(of: Family): Shapes {
  switch (of.name) {
    case "linear":
      return dense("", of.classes, of.inputs);
    case "mlp":
      return layersOf(of).flatMap(([wide, out], n) => dense(`layers.${n}.`, out, wide));
    case "cnn":
      return cnnShapes(of);
    case "decoder":
      return decoderShapes(of);
    case "encoder":
      return encoderShapes(of);
  }
}

const dense = (at: string, out: bigint, wide: bigint): Listed => [
  [`${at}weight`, [out, wide]],
  [`${at}bias`, [out]],
];

function layersOf(of: { inputs: bigint; hidden: bigint[]; classes: bigint }): [wide: bigint, out: bigint][] {
  const widths = [of.inputs, ...of.hidden, of.classes];
  return widths.slice(1).map((out, n) => [widths[n]!, out]);
}

interface Convolution {
  readonly wide: bigint;
  readonly filters: bigint;
  readonly pixels: bigint;
}

/** The convolutions, and what comes to the head. */
function convolutionsOf(of: Cnn): { convolutions: Convolution[]; head: bigint } {
  let [wide, height, width] = [of.channels, of.height, of.width];
  const convolutions = of.filters.map((filters) => {
    const one = { wide, filters, pixels: height * width };
    wide = filters;
    if (of.pool) [height, width] = [height / 2n, width / 2n];
    return one;
  });
  return { convolutions, head: wide * height * width };
}

function cnnShapes(of: Cnn): Shapes {
  const { convolutions, head } = convolutionsOf(of);
  return [
    ...convolutions.flatMap(({ wide, filters }, n): Listed => [
      [`convolutions.${n}.weight`, [filters, wide, of.kernel, of.kernel]],
      [`convolutions.${n}.bias`, [filters]],
    ]),
    ...dense("head.", of.classes, head),
  ];
}

function decoderShapes(of: Decoder): Shapes {
  const { width, inner } = of;
  const [queries, keys] = [of.heads * of.head_dim, of.kv_heads * of.head_dim];
  const layer = (n: number): Listed => [
    [`model.layers.${n}.self_attn.q_proj.weight`, [queries, width]],
    [`model.layers.${n}.self_attn.k_proj.weight`, [keys, width]],
    [`model.layers.${n}.self_attn.v_proj.weight`, [keys, width]],
    [`model.layers.${n}.self_attn.o_proj.weight`, [width, queries]],
    [`model.layers.${n}.mlp.gate_proj.weight`, [inner, width]],
    [`model.layers.${n}.mlp.up_proj.weight`, [inner, width]],
    [`model.layers.${n}.mlp.down_proj.weight`, [width, inner]],
    [`model.layers.${n}.input_layernorm.weight`, [width]],
    [`model.layers.${n}.post_attention_layernorm.weight`, [width]],
  ];
  return [
    ["model.embed_tokens.weight", [of.vocabulary, width]],
    ...Array.from({ length: Number(of.layers) }, (_, n) => layer(n)).flat(),
    ["model.norm.weight", [width]],
    ...(of.tied ? [] : [["lm_head.weight", [of.vocabulary, width]] as [string, bigint[]]]),
  ];
}

function encoderShapes(of: Encoder): Shapes {
  const { width, inner } = of;
  const norm = (at: string): Listed => [
    [`${at}LayerNorm.weight`, [width]],
    [`${at}LayerNorm.bias`, [width]],
  ];
  const layer = (n: number): Listed => {
    const at = `encoder.layer.${n}.`;
    return [
      ...dense(`${at}attention.self.query.`, width, width),
      ...dense(`${at}attention.self.key.`, width, width),
      ...dense(`${at}attention.self.value.`, width, width),
      ...dense(`${at}attention.output.dense.`, width, width),
      ...norm(`${at}attention.output.`),
      ...dense(`${at}intermediate.dense.`, inner, width),
      ...dense(`${at}output.dense.`, width, inner),
      ...norm(`${at}output.`),
    ];
  };
  return [
    ["embeddings.word_embeddings.weight", [of.vocabulary, width]],
    ["embeddings.position_embeddings.weight", [of.positions, width]],
    ["embeddings.token_type_embeddings.weight", [of.types, width]],
    ...norm("embeddings."),
    ...Array.from({ length: Number(of.layers) }, (_, n) => layer(n)).flat(),
  ];
}

/** The last name of a matrix's module; undefined of what is no matrix. */
export function moduleOf([name, shape]: Shapes[number]): string | undefined {
  const found = /(?:^|\.)([^.]+)\.weight$/.exec(name);
  return shape.length === 2 ? found?.[1] : undefined;
}

/** What is trained beside a whole model's frozen tensors. */
export function adapterShapes(of: Adapter, whole: Shapes): Shapes {
  const adapted = whole.filter((one) => of.targets.includes(moduleOf(one) ?? ""));
  return adapted.flatMap(([name, shape]): Listed => {
    const module = name.slice(0, -".weight".length);
    return [
      [`${module}.lora_a`, [of.rank, shape[1]!]],
      [`${module}.lora_b`, [shape[0]!, of.rank]],
    ];
  });
}

export const numbersOf = (shapes: Shapes): bigint => sum(shapes.map(([, shape]) => product(shape)));
export const product = (numbers: readonly bigint[]): bigint => numbers.reduce((all, one) => all * one, 1n);
export const sum = (numbers: readonly bigint[]): bigint => numbers.reduce((all, one) => all + one, 0n);

/** Of one sample, of so many positions (`window`) where a family has these. */
export function costsOf(of: Family, window: bigint): Costs {
  switch (of.name) {
    case "linear":
      return { forward: 2n * of.inputs * of.classes, activations: of.inputs + 3n * of.classes };
    case "mlp":
      return {
        forward: sum(layersOf(of).map(([wide, out]) => 2n * wide * out)),
        activations: of.inputs + 2n * sum(of.hidden) + 3n * of.classes,
      };
    case "cnn": {
      const { convolutions, head } = convolutionsOf(of);
      const kept = of.pool ? 4n : 2n;
      return {
        forward:
          2n * head * of.classes +
          sum(convolutions.map((one) => 2n * one.wide * one.filters * of.kernel ** 2n * one.pixels)),
        activations:
          of.channels * of.height * of.width +
          sum(convolutions.map((one) => kept * one.filters * one.pixels)) +
          head +
          3n * of.classes,
      };
    }
    case "decoder": {
      const [q, kv] = [of.heads * of.head_dim, of.kv_heads * of.head_dim];
      const matrices = of.layers * of.width * (2n * q + 2n * kv + 3n * of.inner) + of.vocabulary * of.width;
      const layer = 8n * of.width + 6n * q + 6n * kv + 5n * of.inner + of.heads;
      return {
        forward: window * (2n * matrices + 2n * of.layers * q * window),
        activations: window * (of.layers * layer + 4n * of.width + 3n * of.vocabulary),
      };
    }
    case "encoder": {
      const matrices = of.layers * of.width * (4n * of.width + 2n * of.inner);
      const layer = 12n * of.width + 3n * of.inner + of.heads * window;
      return {
        forward: 2n * window * (2n * matrices + 4n * of.layers * of.width * window),
        activations: 2n * window * (of.layers * layer + 6n * of.width),
      };
    }
  }
}
