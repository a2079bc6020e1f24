// The shapes of the inspection API, as the page reads them. Times are Unix milliseconds.

export type Missing = { missing: string };
export type Measured = number | Missing;
export type Subject = { kind: string; id: string; name: string };
export type Head = {
  name: string; nodes: { up: number; all: number }; devices: number; actors: { all: number; failed: number };
  problems: { error: number; warning: number }; spans_per_s: number; replay: Replay | null;
};
export type Replay = { name: string; speed: number; paused: boolean; at: number; from: number; to: number };
export type Meta = {
  epoch: string; seq: number; captured_at: number; shown: number; total: number; dropped: number; sampled: number;
  clock_error_us: number | null; missing: { node: string; since: number; why: string }[]; head?: Head;
  /** Of spans that ended before, nothing is kept; and how many these are. */
  kept_from?: number | null; forgotten?: number;
};
export type Envelope = Meta & { head: Head; data: any };
export type Failure = { kind: string; why: string; hint?: string; request?: string; status?: number; retry_s?: number };
export type State = 'starting' | 'idle' | 'busy' | 'waiting' | 'restarting' | 'stopped' | 'failed';
export type ActorRow = {
  id: string; name: string | null; type: string; job: string | null; node: string; process: string; devices: string[];
  parent: string | null; system: boolean; state: State; since: number; mailbox: { len: number; max: number; bytes: number };
  received: number; handled: number; failed: number; restarts: number; incarnation: number; rate: number; busy: number;
  waiting: number; current: { message: string; since: number } | null;
  waits_on: { id: string; name: string; how: string; message: string; since: number } | null;
  ended: { at: number; sentence: string } | null;
};
export type Waiting = { subject: Subject; chain: Hop[]; circle: boolean; deadlock?: boolean; since: number };
export type Hop = { subject: Subject; how: string; message: string; since: number };
export type Term = { not: boolean; key: string; op: ':' | '>' | '<'; value: string; number: number };
export type Route = { page: string; params: Record<string, string>; unknown?: string };
export type Column = {
  id: string; title: string; width: string; cell: (row: any) => any; sort?: (row: any) => any; right?: boolean; hint?: string;
};
/** A bucket is its place, how many were at work in it, on the average of its time, and how many failed. */
export type Lane = {
  id: string; parent: string | null; depth: number; kind: string; name: string; subject: Subject | null; system: boolean; open: boolean; children: number;
  spans: SpanTuple[] | null; buckets: [number, number, number][] | null; gaps: [number, number, number][];
};
export type SpanTuple = [string, number, number | null, number, number, 0 | 1, number];
/** `full`: what a full height stands for, by kind of lane. The last two are of its envelope. */
export type Chunk = {
  from: number; to: number; bucket_ms: number; names: string[]; kinds: string[]; lanes: Lane[]; lanes_left_out?: number;
  full?: Record<string, number>; kept_from?: number | null; forgotten?: number;
};
export type Span = {
  id: string; trace: string; parent: string | null; kind: string; name: string; actor: Subject; start: number;
  end: number | null; queued_ms: number; ok: boolean;
};
