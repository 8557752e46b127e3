/** Typed errors (NIPS.md, Errors): what was malformed or cannot be, by a code, and the field that is meant. */

/** By code, whether another try may do, and who pays for it. */
const CODES = {
  error: [false, "nobody"],
  "bad-input": [false, "sender"],
  "bad-event": [false, "sender"],
  "bad-tag": [false, "sender"],
  "bad-signature": [false, "sender"],
  "bad-hash": [false, "sender"],
  "bad-version": [false, "sender"],
  "bad-manifest": [false, "sender"],
  "bad-recipe": [false, "sender"],
  "bad-update": [false, "sender"],
  "bad-plan": [false, "sender"],
  "bad-frame": [false, "sender"],
  "bad-ciphertext": [false, "sender"],
  "bad-quorum": [false, "sender"],
  "too-large": [false, "sender"],
  unsupported: [false, "sender"],
  "no-quorum": [true, "nobody"],
  "no-provider": [true, "nobody"],
  "over-budget": [false, "nobody"],
} as const;

export type Code = keyof typeof CODES;

export class NodewireError extends Error {
  readonly retryable: boolean;
  readonly pays: "nobody" | "sender";

  constructor(
    readonly code: Code,
    readonly field: string,
    readonly reason: string,
  ) {
    super(`${code}: ${field}: ${reason}`);
    this.name = "NodewireError";
    [this.retryable, this.pays] = CODES[code];
  }
}
