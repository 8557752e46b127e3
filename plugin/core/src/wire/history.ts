/** What an edge carried without guesses (nips/13-speculation.md): its run, its tree of guesses, and its plain history. */

import { NodewireError } from "../errors.js";

const MOST_CELLS = 512;
const SLACK = 64;

/** A frame of an inner edge after frame 0. `parents` and `keep` are there in trees alone. */
export interface Guess<R> {
  readonly seq: number;
  readonly pos: number;
  readonly chunk: number;
  readonly epoch: number;
  readonly rows: readonly R[];
  readonly parents?: readonly number[];
  readonly keep?: readonly number[];
}

/** A frame of the plain history: its one row. */
export interface PlainRow<R> {
  readonly seq: number;
  readonly pos: number;
  readonly chunk: number;
  readonly row: R;
}

interface Cell<R> {
  readonly row: R;
  /** The live cell that it follows, or -1 for the run's end. */
  readonly parent: number;
}

export interface Bounds {
  /** Positions of the prompt: frame 0 has them. */
  readonly prompt: number;
  /** Of the manifest. */
  readonly chunk: number;
  /** Of the plan's terms. */
  readonly lookahead: number;
}

const refused = (field: string, reason: string): NodewireError => new NodewireError("bad-frame", field, reason);

export class History<R> {
  /** Rows of the positions from P on. */
  private run: R[] = [];
  private cells: Cell<R>[] = [];
  private epoch = 0;
  private seq = 0;
  /** Chunks that are closed. */
  private closed = 0;
  private isOver = false;
  /** The last position that a row on the run ever had. */
  private furthest: number;
  private readonly came = new Map<number, number>();

  constructor(private readonly of: Bounds) {
    this.furthest = of.prompt - 1;
  }

  /** Raises bad-frame: its field says which rule the frame breaks. After that the history is of no use. */
  take(frame: Guess<R>): void {
    const { lookahead } = this.of;
    if (frame.seq !== this.seq + 1) throw refused("seq", `is ${frame.seq}, not ${this.seq + 1}`);
    if (frame.epoch < this.epoch) throw refused("epoch", "falls");
    if (frame.rows.length > lookahead) throw refused("rows", `are more than ${lookahead}`);
    this.count(frame);
    const end = this.ended(frame);
    const isLater = frame.epoch > this.epoch;
    this.seq = frame.seq;
    this.epoch = frame.epoch;
    if (frame.keep === undefined && (isLater || (!frame.parents && frame.rows.length > 0))) this.cells = [];
    if (frame.keep) this.join(frame.keep);
    else if (frame.pos < end) {
      this.run.length = frame.pos - this.of.prompt;
      this.cells = [];
    }
    if (frame.parents) this.grow(frame.rows, frame.parents);
    else if (frame.rows.length > 0) {
      this.cells = [];
      this.run.push(...frame.rows);
    }
    this.furthest = Math.max(this.furthest, this.end() - 1);
  }

  /** The plain frames that a close makes final; `positions` of the last chunk. Raises bad-frame. */
  close(chunk: number, positions?: number): PlainRow<R>[] {
    if (this.isOver || chunk !== this.closed) throw refused("chunk", `${chunk} is closed out of order`);
    const first = this.first(chunk);
    const count = chunk === 0 ? 0 : (positions ?? this.of.chunk);
    if (positions !== undefined && (positions < 1 || positions > this.of.chunk))
      throw refused("positions", "are not from 1 to the chunk's");
    if (this.run.length < first - this.of.prompt + count)
      throw refused("chunk", `${chunk} is closed before its rows came`);
    this.closed = chunk + 1;
    this.isOver = positions !== undefined && chunk > 0;
    return Array.from({ length: count }, (_, n) => {
      const pos = first + n;
      return { seq: pos - this.of.prompt + 1, pos, chunk, row: this.run[pos - this.of.prompt]! };
    });
  }

  /** Chunks that are not closed and are claimed all the same when the job fails. */
  claims(): number[] {
    if (this.isOver) return [];
    const claimed: number[] = [];
    for (let chunk = this.closed; chunk === 0 || this.isPast(chunk); chunk++) {
      if (chunk === 0 && this.seq === 0) break;
      claimed.push(chunk);
    }
    return claimed;
  }

  /** Whether all of a chunk is there, and a row of the run came more than 2 * lookahead positions behind it. */
  private isPast(chunk: number): boolean {
    const behind = this.first(chunk + 1);
    return this.end() >= behind && this.furthest - (behind - 1) > 2 * this.of.lookahead;
  }

  private end(): number {
    return this.of.prompt + this.run.length;
  }

  /** The first position of a chunk. */
  private first(chunk: number): number {
    return chunk === 0 ? 0 : this.of.prompt + (chunk - 1) * this.of.chunk;
  }

  private count({ chunk, rows }: Guess<R>): void {
    const most = this.of.lookahead === 1 ? this.of.chunk : this.of.lookahead * this.of.chunk + SLACK;
    const came = (this.came.get(chunk) ?? 0) + Math.max(1, rows.length);
    if (came > most) throw refused("lookahead", `more than ${most} rows came for chunk ${chunk}`);
    this.came.set(chunk, came);
  }

  /** The run's end before a frame, whose pos, chunk and keep are looked at first. */
  private ended({ pos, chunk, rows, keep }: Guess<R>): number {
    const { prompt, chunk: size, lookahead } = this.of;
    const end = this.end();
    if (keep && keep.length === 0) throw refused("keep", "is empty");
    if (pos < prompt) throw refused("pos", "is before the prompt's end");
    // one that stands for a frame which was void may stand behind others of these
    if (keep ? pos !== end + keep.length : rows.length > 0 && pos > end) throw refused("pos", "is not where the run ends");
    const open = this.first(Math.max(1, this.closed));
    if (pos < open || this.isOver) throw refused("closed", "is where a chunk is closed");
    if (pos - open >= 4 * size + 2 * lookahead) throw refused("pos", "is too far behind what is closed");
    const of = keep && rows.length === 0 ? pos - 1 : pos;
    if (keep && rows.length > 0 && chunk !== 1 + Math.floor((end - prompt) / size))
      throw refused("keep", "stands beside rows of another chunk than its first cell's");
    if (chunk !== 1 + Math.floor((of - prompt) / size)) throw refused("chunk", `${chunk} is not that of the position`);
    return end;
  }

  private join(keep: readonly number[]): void {
    let before = -1;
    const [firstChunk, lastChunk] = [this.end(), this.end() + keep.length - 1].map((pos) =>
      Math.floor((pos - this.of.prompt) / this.of.chunk),
    );
    for (const one of keep) {
      const cell = this.cells[one];
      if (!cell || cell.parent !== before) throw refused("keep", "is no way from the run's end through live cells");
      before = one;
    }
    if (firstChunk !== lastChunk) throw refused("keep", "goes beyond the chunk of its first cell");
    this.run.push(...keep.map((one) => this.cells[one]!.row));
    const numbers = new Map<number, number>([[before, -1]]);
    const left: Cell<R>[] = [];
    this.cells.forEach((cell, n) => {
      const parent = n === before ? undefined : numbers.get(cell.parent);
      if (parent === undefined || cell.parent === -1) return;
      numbers.set(n, left.length);
      left.push({ row: cell.row, parent });
    });
    this.cells = left;
  }

  private grow(rows: readonly R[], parents: readonly number[]): void {
    if (parents.length !== rows.length) throw refused("parents", "are not one for each row");
    if (this.cells.length + rows.length > MOST_CELLS) throw refused("parents", `make more than ${MOST_CELLS} live cells`);
    rows.forEach((row, n) => {
      const parent = parents[n]!;
      if (!Number.isInteger(parent) || parent < -1 || parent >= this.cells.length)
        throw refused("parents", "have one that is no live cell of a lower number");
      this.cells.push({ row, parent });
      if (this.depth(this.cells.length - 1) > 2 * this.of.lookahead - 1)
        throw refused("parents", "have a row too far behind the run's end");
    });
  }

  /** How many cells a cell stands behind. */
  private depth(cell: number): number {
    const { parent } = this.cells[cell]!;
    return parent === -1 ? 0 : 1 + this.depth(parent);
  }
}

/** A frame that waits on an edge to be computed. */
export type Waiting = Pick<Guess<unknown>, "seq" | "pos" | "epoch"> & { readonly keep: boolean };

/** The frames that may be answered without rows: one that waits behind them makes them void. */
export function uncomputed(waiting: readonly Waiting[]): number[] {
  return waiting.flatMap((frame, n) => (frame.seq !== 0 && !frame.keep && isVoid(waiting, n) ? [frame.seq] : []));
}

function isVoid(waiting: readonly Waiting[], n: number): boolean {
  for (let later = n + 1; later < waiting.length; later++) {
    const one = waiting[later]!;
    if (one.keep) return false;
    if (one.epoch > waiting[later - 1]!.epoch && one.pos <= waiting[n]!.pos) return true;
  }
  return false;
}
