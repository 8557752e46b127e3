/** Tickets 28841, as their wraps open (nips/14-tickets.md, nips/32-training-outer-steps.md, nips/34-training-rounds.md). */

import { type Ticket, ticket } from "../documents/job.js";
import { type OuterTicket, outerTicket, type RoundTicket, roundTicket } from "../documents/training.js";
import { type Rumor, unwrap, wrap } from "../encryption/wrap.js";
import { NodewireError } from "../errors.js";
import { parseJson } from "../json.js";
import { isMap } from "../value.js";
import type { NostrEvent } from "./event.js";

export const TICKET = 28_841;
const MOST_BYTES = 24 * 1024;

/** `opens` tells an outer step's ticket from a round's, `recipe` a round's from a job's of inference. */
export type OpenedTicket = { readonly customer: string } & (
  | { readonly type: "job"; readonly ticket: Ticket }
  | { readonly type: "round"; readonly ticket: RoundTicket }
  | { readonly type: "outer"; readonly ticket: OuterTicket }
);

/** The ticket in a wrap for this key. Raises as `unwrap`; bad-event: another rumor; bad-input, bad-version, too-large. */
export function openTicket(event: NostrEvent, secretKey: Uint8Array): OpenedTicket {
  return ticketOf(unwrap(event, secretKey));
}

export function ticketOf({ kind, content, pubkey: customer }: Rumor): OpenedTicket {
  if (kind !== TICKET) throw new NodewireError("bad-event", "rumor.kind", `is ${kind}, not ${TICKET}`);
  if (content.length > MOST_BYTES) throw new NodewireError("too-large", "ticket", `has more than ${MOST_BYTES} bytes`);
  const value = parseJson(content, "ticket");
  const has = (name: string): boolean => isMap(value) && value.has(name);
  if (has("opens")) return { customer, type: "outer", ticket: outerTicket.parseJson(content) };
  if (has("recipe")) return { customer, type: "round", ticket: roundTicket.parseJson(content) };
  return { customer, type: "job", ticket: ticket.parseJson(content) };
}

/** The wrap of a ticket for a provider, to be sent again until the provider's first feedback. */
export function wrapTicket(of: OpenedTicket, secretKey: Uint8Array, provider: string, createdAt: number): NostrEvent {
  const content =
    of.type === "job" ? ticket.json(of.ticket) : of.type === "round" ? roundTicket.json(of.ticket) : outerTicket.json(of.ticket);
  return wrap({ kind: TICKET, created_at: createdAt, tags: [], content }, secretKey, provider, createdAt);
}
