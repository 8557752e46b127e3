/** What a result in FEDSTR's layout opens to (nips/37-fedstr.md). */

import { document } from "../document.js";
import { count, hex32, list, object, type Typed, version, webUrl } from "../schema.js";

const fedstrFields = object({
  v: version,
  urls: list(webUrl, 8),
  sha256: hex32,
  bytes: count,
  key: hex32,
  update_sha256: hex32,
  update_bytes: count,
  samples: count,
  loss: count,
});

export type FedstrResult = Typed<typeof fedstrFields>;
/** The plain text of a 6000's content. */
export const fedstrResult = document(fedstrFields, { what: "result", code: "bad-event", mostBytes: 16 * 1024 });
