/** Whole frames of a link written, and read from its bytes however they are cut (nips/21-links.md). */

import { concat } from "../bytes.js";
import { NodewireError } from "../errors.js";
import type { ValueMap } from "../value.js";
import { type Control, packControl, parseControl } from "./control.js";
import * as heads from "./head.js";
import { type Credit, type DataHeader, frameBytes, packCredit, packDataHeader, parseCredit, parseDataHeader } from "./header.js";

const MOST_STREAMS = 64;
const EDGE_BYTES = 64 * 2 ** 20;
const EMPTY = new Uint8Array();

export type Message =
  /** The tensors' raw bytes, one after another; null of a frame that was let pass by. */
  | { readonly type: "data"; readonly header: DataHeader; readonly tensors: Uint8Array | null }
  | ({ readonly type: "control" } & Control)
  | ({ readonly type: "credit" } & Credit)
  | { readonly type: "ping" | "pong"; readonly tag: number }
  | { readonly type: "filler"; readonly bytes: number };

export const control = (document: ValueMap): Uint8Array => heads.frame(heads.CONTROL, 0, EMPTY, packControl(document));
export const credit = (of: Credit): Uint8Array => heads.frame(heads.CREDIT, 0, packCredit(of), EMPTY);
export const ping = (tag: number): Uint8Array => heads.frame(heads.PING, tag, EMPTY, EMPTY);
export const pong = (tag: number): Uint8Array => heads.frame(heads.PONG, tag, EMPTY, EMPTY);
export const filler = (bytes: number): Uint8Array => heads.frame(heads.FILLER, 0, EMPTY, new Uint8Array(bytes));

/** A frame of tensors in its segments, in order; others may be sent between them. */
export function data(stream: number, header: DataHeader, tensors: Uint8Array): Uint8Array[] {
  if (tensors.length !== frameBytes(header.tensors))
    throw new NodewireError("bad-input", "tensors", `have ${tensors.length} bytes, not those of the header`);
  const first = heads.frame(heads.DATA, stream, packDataHeader(header), tensors.subarray(0, heads.SEGMENT_BYTES));
  const segments = [first];
  for (let at = heads.SEGMENT_BYTES; at < tensors.length; at += heads.SEGMENT_BYTES)
    segments.push(heads.frame(heads.MORE, stream, EMPTY, tensors.subarray(at, at + heads.SEGMENT_BYTES)));
  return segments;
}

export interface FrameReaderOptions {
  /** Whether a frame's tensors are kept: by its edge, its producer, its `seq`, its key, its size. */
  readonly admits?: (header: DataHeader, bytes: number) => boolean;
  /** So many bytes are read at most, until `unlimited` is called: of a stranger who has not proven itself. */
  readonly budget?: number;
}

interface UnderWay {
  readonly header: DataHeader;
  readonly bytes: number;
  readonly segments: Uint8Array[] | null;
  got: number;
}

/** Reads what one end of a link sends. What breaks the form of a frame is raised, again at each further call. */
export class FrameReader {
  private readonly underWay = new Map<number, UnderWay>();
  private readonly admits: (header: DataHeader, bytes: number) => boolean;
  private budget: number;
  private head: heads.Head | undefined;
  private header: Uint8Array | undefined;
  private part = new Uint8Array(heads.HEAD_BYTES);
  private filled = 0;
  private fault: unknown;

  constructor({ admits = (_, bytes) => bytes <= EDGE_BYTES, budget = Infinity }: FrameReaderOptions = {}) {
    this.admits = admits;
    this.budget = budget;
  }

  unlimited(): void {
    this.budget = Infinity;
  }

  /** What is whole with these bytes, to be taken one by one. Memory is taken for a part of a frame within its bounds. */
  *read(bytes: Uint8Array): Generator<Message, void> {
    if (this.fault !== undefined) throw this.fault;
    try {
      for (let at = 0; at < bytes.length; ) {
        const taken = bytes.subarray(at, at + this.part.length - this.filled);
        this.part.set(taken, this.filled);
        this.filled += taken.length;
        at += taken.length;
        while (this.filled === this.part.length) {
          const message = this.partRead();
          if (message) yield message;
        }
      }
    } catch (fault) {
      this.fault = fault;
      throw fault;
    }
  }

  private next(bytes: number): void {
    this.part = new Uint8Array(bytes);
    this.filled = 0;
  }

  private partRead(): Message | undefined {
    if (!this.head) {
      this.head = parseHeadWithin(this.part, this.budget);
      this.budget -= heads.HEAD_BYTES + this.head.headerBytes + this.head.payloadBytes;
      this.next(this.head.headerBytes);
      return undefined;
    }
    if (!this.header) {
      this.header = this.part;
      this.begin(this.head, this.header);
      this.next(this.head.payloadBytes);
      return undefined;
    }
    const { head, header, part } = this;
    this.head = this.header = undefined;
    this.next(heads.HEAD_BYTES);
    return this.whole(head, header, part);
  }

  /** Before a byte of its payload is read. */
  private begin({ type, stream, payloadBytes }: heads.Head, packed: Uint8Array): void {
    if (type === heads.DATA) {
      const header = parseDataHeader(packed);
      const bytes = frameBytes(header.tensors);
      if (this.underWay.has(stream)) throw new NodewireError("bad-frame", "stream", `${stream} carries another frame`);
      if (this.underWay.size >= MOST_STREAMS)
        throw new NodewireError("too-large", "stream", `more than ${MOST_STREAMS} frames are under way`);
      this.underWay.set(stream, { header, bytes, got: 0, segments: this.admits(header, bytes) ? [] : null });
    }
    if (type !== heads.DATA && type !== heads.MORE) return;
    const frame = this.underWay.get(stream);
    if (!frame) throw new NodewireError("bad-frame", "stream", `${stream} carries no frame`);
    if (payloadBytes !== Math.min(heads.SEGMENT_BYTES, frame.bytes - frame.got))
      throw new NodewireError("bad-frame", "payload", `of ${payloadBytes} bytes is not the next segment`);
  }

  private whole({ type, stream }: heads.Head, header: Uint8Array, payload: Uint8Array): Message | undefined {
    switch (type) {
      case heads.CONTROL:
        return { type: "control", ...parseControl(payload) };
      case heads.CREDIT:
        return { type: "credit", ...parseCredit(header) };
      case heads.PING:
        return { type: "ping", tag: stream };
      case heads.PONG:
        return { type: "pong", tag: stream };
      case heads.FILLER:
        return { type: "filler", bytes: payload.length };
    }
    const frame = this.underWay.get(stream)!;
    frame.got += payload.length;
    frame.segments?.push(payload);
    if (frame.got < frame.bytes) return undefined;
    this.underWay.delete(stream);
    return { type: "data", header: frame.header, tensors: frame.segments && concat(...frame.segments) };
  }
}

function parseHeadWithin(bytes: Uint8Array, budget: number): heads.Head {
  const head = heads.parseHead(bytes);
  if (heads.HEAD_BYTES + head.headerBytes + head.payloadBytes > budget)
    throw new NodewireError("too-large", "frame", "is longer than may be read before its sender has proven itself");
  return head;
}
