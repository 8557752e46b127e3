/** Trainings in FEDSTR's layout: requests 8000 and results 6000 (nips/37-fedstr.md). */

import { schnorr } from "@noble/curves/secp256k1.js";
import { base64 } from "@scure/base";
import { toHex, toUtf8 } from "../bytes.js";
import { formatReal } from "../documents/real.js";
import { type Recipe, recipe } from "../documents/recipe.js";
import { conversationKey, decrypt } from "../encryption/nip44.js";
import { NodewireError } from "../errors.js";
import { parseJson } from "../json.js";
import { isList, type Value } from "../value.js";
import { eventJson, type EventTemplate, type NostrEvent } from "./event.js";
import * as tags from "./tags.js";

export const FEDSTR_REQUEST = 8000;
export const FEDSTR_RESULT = 6000;

const MOST_BYTES = 24_576;
const MOST_INPUTS = 8;
const MOST_INPUT_BYTES = 1280;
const MOST_COUNT = (1n << 53n) - 1n;
const MOST_MSAT = 2_100_000_000_000_000_000n;
const OUTPUT = "application/safetensors";
const METHODS: Readonly<Record<string, readonly string[]>> = { fedavg: ["average"], diloco: ["nesterov", "fedadam"] };

/** Where data or weights are: at a URL, in the event, or those of an earlier job. */
export type FedstrSource =
  | { readonly type: "url"; readonly url: string; readonly sha256: string; readonly bytes: bigint; readonly key: string | null }
  | { readonly type: "text"; readonly content: Uint8Array }
  | { readonly type: "job"; readonly id: string };

export interface FedstrRequest {
  readonly id: string;
  readonly customer: string;
  readonly provider: string;
  readonly run: string;
  readonly recipe: Recipe;
  readonly round: bigint;
  readonly index: bigint;
  readonly deadlineS: bigint;
  readonly bidMsat: bigint | null;
  readonly data: FedstrSource;
  readonly state: FedstrSource;
}

type Said = Pick<EventTemplate, "tags">;

/** Whether an event looks like one of these, for the provider with this key: to others nothing is said. */
export function isFedstr(event: NostrEvent, secretKey: Uint8Array): boolean {
  if (event.kind !== FEDSTR_REQUEST || !tags.values(event, "p").includes(publicOf(secretKey))) return false;
  try {
    return param(saidBy(event, secretKey), "task") === "train";
  } catch (error) {
    if (error instanceof NodewireError) return false;
    throw error;
  }
}

const publicOf = (secretKey: Uint8Array): string => toHex(schnorr.getPublicKey(secretKey));

/** What one that `isFedstr` asks for. Raises bad-tag, bad-recipe, bad-event, bad-ciphertext, unsupported, too-large. */
export function parseFedstr(event: NostrEvent, secretKey: Uint8Array): FedstrRequest {
  tags.checkKind(event, FEDSTR_REQUEST);
  if (toUtf8(eventJson(event)).length > MOST_BYTES)
    throw new NodewireError("too-large", "event", `has more than ${MOST_BYTES} bytes`);
  const plain = tags.rows(event, "i");
  if (plain.length > MOST_INPUTS) throw tags.badTag("i", `stands more than ${MOST_INPUTS} times`);
  if (plain.some((row) => toUtf8(JSON.stringify(row)).length > MOST_INPUT_BYTES))
    throw new NodewireError("too-large", "i", `has more than ${MOST_INPUT_BYTES} bytes`);
  const said = saidBy(event, secretKey);
  const [output = OUTPUT] = tags.values(event, "output");
  if (output !== OUTPUT) throw new NodewireError("unsupported", "output", `is not ${OUTPUT}`);
  const [bid] = tags.values(event, "bid");
  const run = param(said, "run") ?? "";
  const of = recipeOf(said, run);
  const state = sourceOf(said, "state");
  if (state.type === "job") throw new NodewireError("unsupported", "i", "of the state cannot be a job");
  return {
    id: event.id,
    customer: event.pubkey,
    provider: publicOf(secretKey),
    run,
    recipe: of,
    round: number(said, "round", 0n, 999_999n),
    index: number(said, "index", 0n, 4095n),
    deadlineS: number(said, "deadline", of.deadline, 31_536_000n),
    bidMsat: bid === undefined ? null : tags.number("bid", bid, MOST_MSAT),
    data: sourceOf(said, "data"),
    state,
  };
}

/** The tags that may be encrypted: all of them, or none. */
function saidBy(event: NostrEvent, secretKey: Uint8Array): Said {
  if (tags.rows(event, "encrypted").length === 0) return event;
  const list = parseJson(decrypt(event.content, conversationKey(secretKey, event.pubkey)));
  const isTag = (one: Value): boolean => isList(one) && one.length > 0 && one.every((part) => typeof part === "string");
  if (!isList(list) || !list.every(isTag)) throw new NodewireError("bad-event", "content", "is no list of tags");
  return { tags: list as unknown as string[][] };
}

const rowsOf = (said: Said, name: string): string[][] => said.tags.filter((row) => row[0] === name);

function param(said: Said, name: string): string | undefined {
  const found = rowsOf(said, "param").filter((row) => row[1] === name && row.length > 2);
  if (found.length > 1) throw tags.badTag("param", `has ${name} twice`);
  return found[0]?.[2];
}

function number(said: Said, name: string, absent: bigint, most: bigint): bigint {
  const found = param(said, name);
  return found === undefined ? absent : tags.number("param", found, most);
}

function needed(said: Said, name: string): bigint {
  const found = param(said, name);
  if (found === undefined) throw tags.badTag("param", `lacks ${name}`);
  return tags.number("param", found, MOST_COUNT);
}

function sourceOf(said: Said, marker: "data" | "state"): FedstrSource {
  const is = (row: string[]): boolean => (row[4] || (row[2] === "job" ? "data" : "")) === marker;
  const [input, ...more] = rowsOf(said, "i").filter(is);
  if (!input || more.length > 0) throw tags.badTag("i", `of the ${marker} does not stand once`);
  const [, value = "", type] = input;
  if (type === "job") return { type, id: tags.isHex32("i", value) };
  if (type === "text") {
    try {
      return { type, content: base64.decode(value) };
    } catch {
      throw tags.badTag("i", "is not base64");
    }
  }
  if (type !== "url") throw new NodewireError("unsupported", "i", "is no url, job or text");
  const hashes = rowsOf(said, "x").filter((row) => row[2] === marker);
  const keys = rowsOf(said, "key").filter((row) => row[2] === marker);
  if (hashes.length !== 1 || hashes[0]!.length !== 4) throw tags.badTag("x", `of the ${marker} is not once [x, hash, marker, bytes]`);
  if (keys.length > 1) throw tags.badTag("key", `of the ${marker} stands twice`);
  return {
    type,
    url: value,
    sha256: tags.isHex32("x", hashes[0]![1]),
    bytes: tags.number("x", hashes[0]![3], MOST_COUNT),
    key: keys[0] ? tags.isHex32("key", keys[0][1]) : null,
  };
}

function recipeOf(said: Said, run: string): Recipe {
  const methods = Object.hasOwn(METHODS, run) ? METHODS[run] : undefined;
  if (!methods) throw new NodewireError("unsupported", "run", "is neither fedavg nor diloco");
  const json = param(said, "recipe");
  const of = json === undefined ? recipe.parse(plainRecipe(said, run)) : recipe.parseJson(json);
  if (!methods.includes(of.outer.method)) throw new NodewireError("unsupported", "run", "has not the recipe's outer method");
  return of;
}

/** The recipe of plain parameters. */
function plainRecipe(said: Said, run: string): Value {
  const model = param(said, "model") ?? "";
  if (model !== "linear" && model !== "mlp") throw new NodewireError("unsupported", "model", "is neither linear nor mlp");
  const map = (entries: readonly (readonly [string, Value | undefined])[]): Value =>
    new Map(entries.filter((entry): entry is [string, Value] => entry[1] !== undefined));
  const hidden = (): Value => (param(said, "hidden") ?? "").split(",").map((one) => tags.number("param", one, MOST_COUNT));
  return map([
    ["v", 1n],
    ["name", "fedstr"],
    [
      "family",
      map([
        ["name", model],
        ["inputs", needed(said, "inputs")],
        ["hidden", model === "mlp" ? hidden() : undefined],
        ["classes", needed(said, "classes")],
      ]),
    ],
    ["loss", param(said, "loss") ?? "cross_entropy"],
    ["data", map([["layout", "arrays"]])],
    [
      "inner",
      map([
        ["optimizer", param(said, "optimizer") ?? "sgd"],
        ["lr", real(said, "lr")],
        ["momentum", real(said, "momentum")],
        ["weight_decay", real(said, "weight_decay")],
      ]),
    ],
    [
      "outer",
      run === "diloco" ? map([["method", "nesterov"], ["lr", "0.7"], ["momentum", "0.9"]]) : map([["method", "average"]]),
    ],
    ["steps", needed(said, "steps")],
    ["batch", needed(said, "batch")],
    ["rounds", number(said, "rounds", 1n, MOST_COUNT)],
    ["seed", number(said, "seed", 0n, MOST_COUNT)],
  ]);
}

function real(said: Said, name: string): string | undefined {
  const found = param(said, name);
  if (found === undefined) return undefined;
  const value = /^-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$/.test(found) ? Number(found) : Number.NaN;
  if (!Number.isFinite(value)) throw tags.badTag("param", `${name} is no number`);
  return formatReal(value);
}

export interface FedstrAnswer {
  readonly id: string;
  readonly provider: string;
  readonly request: string;
  readonly customer: string;
  /** The balance, and its invoice; no invoice where nothing is due any more. */
  readonly amountMsat: bigint;
  readonly bolt11: string | null;
  /** NIP-44 ciphertext of `fedstrResult` for the customer. */
  readonly content: string;
}

export function parseFedstrResult(event: NostrEvent): FedstrAnswer {
  tags.checkKind(event, FEDSTR_RESULT);
  const amount = tags.optionalRow(event, "amount");
  return {
    id: event.id,
    provider: event.pubkey,
    request: tags.hex32(event, "e"),
    customer: tags.hex32(event, "p"),
    amountMsat: tags.number("amount", amount?.[1], MOST_MSAT),
    bolt11: amount?.[2] || null,
    content: event.content,
  };
}
