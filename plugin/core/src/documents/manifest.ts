/** Manifests: a model as a DAG of tasks (nips/02-manifests.md). */

import { document } from "../document.js";
import {
  below,
  bool,
  checked,
  constant,
  count,
  either,
  fault,
  hex32,
  integer,
  label,
  leftOut,
  list,
  mapOf,
  name,
  nullable,
  object,
  oneOf,
  type Place,
  refuseTwice,
  type Typed,
  version,
  withDefault,
} from "../schema.js";

export const CUSTOMER = "customer";
const MOST_CHAT_BYTES = 131_072n;

export const blob = object({ sha256: hex32, bytes: count });
/** Bytes on a server, by their plain SHA-256. */
export type Blob = Typed<typeof blob>;

export const dtype = oneOf("float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool");

const tensor = object({
  name,
  dtype,
  shape: list(
    either(count, name, (typed): typed is bigint => typeof typed === "bigint"),
    8,
  ),
});

const task = object({
  name,
  engine: oneOf("decoder.driver", "decoder.stage", "encoder.driver", "graph"),
  program: blob,
  weights: list(blob, 64),
  memory_bytes: count,
  slots: integer(1n, 4096n),
  flops: count,
  limit: withDefault(label, ""),
  page_bytes: leftOut(count, 0n),
});

const edge = object({
  name,
  source: name,
  target: name,
  tensors: list(tensor, 64),
  dims: withDefault(mapOf(name, count, 16), new Map()),
  bytes_per_position: count,
  back: withDefault(bool, false),
  exact: leftOut(bool, false),
});

const fields = object({
  v: version,
  name,
  kind: withDefault(constant(8843n), 8843n),
  mode: oneOf("generate", "embed", "run"),
  license: withDefault(label, ""),
  context: withDefault(count, 0n),
  chunk: withDefault(integer(1n, 4096n), 64n),
  tasks: list(task, 1024, 1),
  edges: list(edge, 8192, 1),
  chat: leftOut(nullable(blob), null),
});

export type Manifest = Typed<typeof fields>;
export type Task = Manifest["tasks"][number];
export type Edge = Manifest["edges"][number];

export const manifest = document(checked(fields, check), {
  what: "manifest",
  tag: "nodewire/manifest/1",
  code: "bad-manifest",
  mostBytes: 1 << 20,
});

function check(typed: Manifest, at: Place): void {
  refuseTwice(
    typed.tasks.map((one) => one.name),
    below(at, "tasks"),
  );
  refuseTwice(
    typed.edges.map((one) => one.name),
    below(at, "edges"),
  );
  const order = new Map(typed.tasks.map((one, n) => [one.name, n]));
  if (order.has(CUSTOMER)) throw fault(below(at, "tasks"), "names a task `customer`, who is no task");
  if (typed.chat !== null && (typed.mode !== "generate" || typed.chat.bytes < 1n || typed.chat.bytes > MOST_CHAT_BYTES))
    throw fault(below(at, "chat"), `is of a model that generates, and from 1 to ${MOST_CHAT_BYTES} bytes`);
  typed.edges.forEach((one, n) => {
    const place = below(below(at, "edges"), n);
    const source = order.get(one.source);
    const target = order.get(one.target);
    if (source === undefined && one.source !== CUSTOMER) throw fault(below(place, "source"), "is no task");
    if (target === undefined && one.target !== CUSTOMER) throw fault(below(place, "target"), "is no task");
    if (!one.back && source !== undefined && target !== undefined && source >= target)
      throw fault(place, "runs against the order of the tasks");
  });
}

/** Edges between tasks, in the manifest's order. */
export function innerEdges(typed: Manifest): Edge[] {
  return typed.edges.filter((edge) => edge.source !== CUSTOMER && edge.target !== CUSTOMER);
}
