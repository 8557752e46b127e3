/** The wire: heads, headers, control documents and frames of links. */

export * from "./control.js";
export * from "./frames.js";
export * from "./head.js";
export * from "./header.js";
export * from "./history.js";
export * from "./mxint8.js";
