/** Nutzaps 9321, and what a provider takes of them, 10019 (nips/39-nutzaps.md). A proof's DLEQ needs its mint's keys, and is not checked here. */

import { fromHex, toHex, compareUtf8 } from "../bytes.js";
import { NodewireError } from "../errors.js";
import { digest, sha256 } from "../hash.js";
import { parseJson } from "../json.js";
import { isList, isMap, type Value } from "../value.js";
import type { EventTemplate, NostrEvent } from "./event.js";
import * as tags from "./tags.js";

export const NUTZAP = 9321;
export const NUTZAP_INFO = 10_019;

const UNIT = "sat";
const MOST_MINTS = 32;
const MOST_RELAYS = 32;
const MOST_PROOFS = 32;
const MOST_PROOF_CHARS = 2048;
const MOST_SECRET_CHARS = 512;
const MOST_URL_CHARS = 256;
const MOST_COMMENT_CHARS = 1024;
const MOST_SAT = 1n << 52n;
const MOST_COUNT = (1n << 31n) - 1n;

export interface NutzapInfo {
  readonly relays: readonly string[];
  /** Each mint's URL, then the units that are taken there. No unit means any. */
  readonly mints: readonly (readonly string[])[];
  /** The lock key; never the author's own. */
  readonly lockKey: string;
}

export interface LockedProof {
  /** Its JSON, as the event has it. */
  readonly text: string;
  readonly sat: bigint;
  readonly secret: string;
  readonly lockKey: string;
  readonly nonce: string;
}

export interface Nutzap {
  readonly comment: string;
  readonly recipient: string;
  readonly mint: string;
  readonly proofs: readonly LockedProof[];
  /** The chunk that it pays for; null of an ordinary nutzap. */
  readonly pays: { readonly job: string; readonly chunk: bigint; readonly attempt: bigint } | null;
  /** Null where nobody can tell that its author made the proofs. */
  readonly salt: string | null;
}

export function parseNutzapInfo(event: NostrEvent): NutzapInfo {
  tags.checkKind(event, NUTZAP_INFO);
  const relays = tags.values(event, "relay");
  if (relays.length > MOST_RELAYS || relays.some(isTooLong)) throw tags.badTag("relay", "names too many, or one too long");
  const mints = tags.rows(event, "mint").map((row) => row.slice(1));
  if (mints.length === 0 || mints.length > MOST_MINTS || mints.some((mint) => mint.length === 0 || mint.some(isTooLong)))
    throw tags.badTag("mint", "names no mint, or too much");
  const key = tags.one(event, "pubkey");
  const lockKey = tags.isHex32("pubkey", key.length === 66 && key.startsWith("02") ? key.slice(2) : key);
  if (lockKey === event.pubkey) throw tags.badTag("pubkey", "is the author's own key");
  return { relays, mints, lockKey };
}

export function buildNutzapInfo(info: NutzapInfo, createdAt: number): EventTemplate {
  const found = [...info.relays.map((url) => ["relay", url]), ...info.mints.map((mint) => ["mint", ...mint])];
  return { kind: NUTZAP_INFO, created_at: createdAt, tags: [...found, ["pubkey", info.lockKey]], content: "" };
}

export function parseNutzap(event: NostrEvent): Nutzap {
  tags.checkKind(event, NUTZAP);
  if ([...event.content].length > MOST_COMMENT_CHARS) throw new NodewireError("too-large", "content", `has over ${MOST_COMMENT_CHARS} characters`);
  const texts = tags.values(event, "proof");
  if (texts.length === 0 || texts.length > MOST_PROOFS) throw tags.badTag("proof", `stands ${texts.length} times`);
  const proofs = texts.map(proofOf);
  if (new Set(proofs.map((one) => one.secret)).size < proofs.length) throw tags.badTag("proof", "stands twice");
  if (proofs.reduce((sum, one) => sum + one.sat, 0n) > MOST_SAT) throw tags.badTag("proof", "is more than there is");
  const mint = tags.one(event, "u");
  if (mint === "" || isTooLong(mint)) throw tags.badTag("u", "is no mint's URL");
  if (tags.one(event, "unit") !== UNIT) throw tags.badTag("unit", `is not ${UNIT}`);
  const salt = tags.optionalRow(event, "salt");
  return {
    comment: event.content,
    recipient: tags.hex32(event, "p"),
    mint,
    proofs,
    pays: paysFor(event),
    salt: salt === undefined ? null : tags.isHex32("salt", salt[1]),
  };
}

export function buildNutzap(nutzap: Nutzap, createdAt: number): EventTemplate {
  const { pays, salt } = nutzap;
  const found = [...nutzap.proofs.map((one) => ["proof", one.text]), ["u", nutzap.mint], ["unit", UNIT], ["p", nutzap.recipient]];
  if (pays !== null) found.push(["e", pays.job], ["chunk", String(pays.chunk)], ["attempt", String(pays.attempt)]);
  if (salt !== null) found.push(["salt", salt]);
  return { kind: NUTZAP, created_at: createdAt, tags: found, content: nutzap.comment };
}

/** Raises bad-tag: the nutzap is for another, of a mint that is not listed, or locked to another key. */
export function checkNutzap(nutzap: Nutzap, provider: string, info: NutzapInfo): void {
  if (nutzap.recipient !== provider) throw tags.badTag("p", "is somebody else");
  if (!info.mints.some(([url, ...units]) => url === nutzap.mint && (units.length === 0 || units.includes(UNIT))))
    throw tags.badTag("u", "is a mint, or has a unit, that the provider does not list");
  if (nutzap.proofs.some((one) => one.lockKey !== info.lockKey)) throw tags.badTag("proof", "is locked to another key");
}

/** Whether its author made its proofs. Without a salt nobody knows. Raises bad-tag: another author made them. */
export function isBound(nutzap: Nutzap, author: string): boolean {
  if (nutzap.salt === null) return false;
  if (nutzap.proofs.some((one, n) => one.nonce !== nutzapNonce(author, nutzap.salt!, n)))
    throw tags.badTag("salt", "is not that of these proofs and this author");
  return true;
}

export const nutzapNonce = (author: string, salt: string, n: number): string => digest("nodewire/nutzap-nonce/1", [author, salt, BigInt(n)]);

/** What both books know a nutzap by, as they know a Lightning payment. */
export function nutzapPayment(nutzap: Nutzap): { readonly preimage: string; readonly payment_hash: string } {
  const secrets = nutzap.proofs.map((one) => one.secret).sort(compareUtf8);
  const preimage = digest("nodewire/nutzap/1", secrets);
  return { preimage, payment_hash: toHex(sha256(fromHex(preimage))) };
}

const isTooLong = (text: string): boolean => text.length > MOST_URL_CHARS;

function paysFor(event: NostrEvent): Nutzap["pays"] {
  if (["e", "chunk", "attempt"].every((name) => tags.rows(event, name).length === 0)) return null;
  const [chunk, attempt] = (["chunk", "attempt"] as const).map((name) => {
    const value = tags.one(event, name);
    if (value.length > 1 && value.startsWith("0")) throw tags.badTag(name, "begins with a zero");
    return tags.number(name, value, MOST_COUNT);
  });
  return { job: tags.hex32(event, "e"), chunk: chunk!, attempt: attempt! };
}

function proofOf(text: string): LockedProof {
  const said = mapOf(text, MOST_PROOF_CHARS);
  const [sat, secret] = [said.get("amount"), said.get("secret")];
  if (typeof sat !== "bigint" || sat < 1n || sat > MOST_SAT) throw tags.badTag("proof", "has no amount");
  if (typeof secret !== "string" || secret.length > MOST_SECRET_CHARS) throw tags.badTag("proof", "has no secret of that length");
  const lock = jsonOf(secret);
  const of = isList(lock) && lock.length === 2 && lock[0] === "P2PK" ? lock[1]! : null;
  if (of === null || !isMap(of)) throw tags.badTag("proof", "has no P2PK lock");
  const [data, nonce, conditions] = [of.get("data"), of.get("nonce"), of.get("tags") ?? []];
  if (typeof data !== "string" || !data.startsWith("02") || !tags.isHex(data.slice(2))) throw tags.badTag("proof", "is locked to no key");
  if (typeof nonce !== "string") throw tags.badTag("proof", "has no nonce");
  if (!isList(conditions) || !(conditions.length === 0 || isFree(conditions))) throw tags.badTag("proof", "has further conditions");
  return { text, sat, secret, lockKey: data.slice(2), nonce };
}

function isFree(conditions: readonly Value[]): boolean {
  const [only] = conditions;
  return conditions.length === 1 && isList(only!) && only.length === 2 && only[0] === "sigflag" && only[1] === "SIG_INPUTS";
}

function mapOf(text: string, most: number): ReadonlyMap<string, Value> {
  const found = text.length > most ? null : jsonOf(text);
  if (found === null || !isMap(found)) throw tags.badTag("proof", `is no JSON object of at most ${most} characters`);
  return found;
}

function jsonOf(text: string): Value {
  try {
    return parseJson(text);
  } catch {
    throw tags.badTag("proof", "is no JSON");
  }
}
