/** What nodewire's events have in common: tags that stand once, numbers and hashes in tags, JSON in the content. */

import { hex32 as hexForm } from "../schema.js";
import { NodewireError } from "../errors.js";
import { isMap, type Value, type ValueMap } from "../value.js";
import { parseJson } from "../json.js";
import type { EventTemplate } from "./event.js";

const MAX_EPOCH = 1n << 40n;

export function badTag(name: string, reason: string): NodewireError {
  return new NodewireError("bad-tag", name, reason);
}

export function checkKind(event: EventTemplate, kind: number): void {
  if (event.kind !== kind) throw new NodewireError("bad-event", "kind", `is ${event.kind}, not ${kind}`);
}

/** All tags of that name, each with its name. */
export function rows(event: EventTemplate, name: string): string[][] {
  return event.tags.filter((tag) => tag[0] === name);
}

/** The first values of all tags of that name that have one. */
export function values(event: EventTemplate, name: string): string[] {
  return rows(event, name).flatMap((tag) => (tag.length > 1 ? [tag[1]!] : []));
}

/** The value of a tag that stands once. */
export function one(event: EventTemplate, name: string): string {
  const found = values(event, name);
  if (found.length !== 1) throw badTag(name, `stands ${found.length} times, not once`);
  return found[0]!;
}

/** The tag of that name, if there is one; not two. */
export function optionalRow(event: EventTemplate, name: string): string[] | undefined {
  const found = rows(event, name);
  if (found.length > 1) throw badTag(name, `stands ${found.length} times`);
  return found[0];
}

export function hex32(event: EventTemplate, name: string): string {
  return isHex32(name, one(event, name));
}

export function isHex32(name: string, value: string | undefined): string {
  if (value === undefined || !isHex(value)) throw badTag(name, "is not 64 lowercase hex digits");
  return value;
}

export function isHex(value: string): boolean {
  try {
    hexForm.read(value, { path: "", code: "bad-tag" });
    return true;
  } catch {
    return false;
  }
}

/** A decimal number from 0 to `most`. */
export function number(name: string, value: string | undefined, most: bigint): bigint {
  if (value === undefined || !/^[0-9]{1,19}$/.test(value) || BigInt(value) > most)
    throw badTag(name, `is no decimal number up to ${most}`);
  return BigInt(value);
}

export const epochTopic = (epoch: bigint): string => `epoch/${epoch}`;

/** The epoch that the tag `n` names. */
export function epochOf(event: EventTemplate): bigint {
  const found = /^epoch\/(0|[1-9][0-9]{0,12})$/.exec(one(event, "n"));
  const epoch = found ? BigInt(found[1]!) : MAX_EPOCH + 1n;
  if (epoch > MAX_EPOCH) throw badTag("n", "is not epoch/<number>");
  return epoch;
}

/** The content of version 1 with just these fields. Raises bad-event, bad-version. */
export function contentOf(event: EventTemplate, fields: readonly string[]): ValueMap {
  const refused = (reason: string): NodewireError => new NodewireError("bad-event", "content", reason);
  const content = jsonOf(event);
  if (!isMap(content)) throw refused("is no map");
  if (content.get("v") !== 1n) throw new NodewireError("bad-version", "v", "is not 1");
  if (content.size !== fields.length || !fields.every((field) => content.has(field)))
    throw refused(`has other fields than ${fields.join(", ")}`);
  return content;
}

export function jsonOf(event: EventTemplate): Value {
  try {
    return parseJson(event.content);
  } catch (error) {
    if (error instanceof NodewireError && error.code === "bad-input")
      throw new NodewireError("bad-event", "content", error.reason);
    throw error;
  }
}

/** Raises bad-tag unless the document says what the tag says. */
export function agree(name: string, tag: string, said: string): void {
  if (tag !== said) throw badTag(name, "does not agree with the document");
}

export const expires = (at: number | undefined): string[][] => (at === undefined ? [] : [["expiration", String(at)]]);
