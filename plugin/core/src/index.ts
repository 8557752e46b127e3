/** `@nodewire/core`: nodewire's planner and documents, from `nips/` alone. No I/O, no clock, no secret but what is handed in. */

export * from "./assign.js";
export * from "./beacon.js";
export * from "./document.js";
export * from "./documents/ad.js";
export * from "./documents/committee.js";
export * from "./documents/job.js";
export * from "./documents/manifest.js";
export * from "./documents/plan.js";
export * from "./documents/snapshot.js";
export * from "./documents/work.js";
export * from "./encryption/blob.js";
export * as nip44 from "./encryption/nip44.js";
export * from "./encryption/wrap.js";
export * from "./errors.js";
export * from "./events/catalog.js";
export * from "./events/event.js";
export * from "./events/job.js";
export * from "./events/rounds.js";
export * from "./events/work.js";
export * from "./hash.js";
export * from "./json.js";
export * as merkle from "./merkle.js";
export * from "./msgpack.js";
export * from "./value.js";
export * as wire from "./wire/index.js";
