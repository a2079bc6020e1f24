// Causal attention inside sequences, forward and backward, after Dao et al. 2022 (FlashAttention)
// and Dao 2023 (FlashAttention-2): a block holds one tile, walks over the tiles of the other side,
// and the backward pass computes the probabilities again. Gradients of keys and values and those of
// queries come from two kernels, so that nothing is added by atomics and the same operands give the
// same bits.
//
// A tile is three numbers: first row of its sequence, first row of the tile, end of the sequence. A
// row sees `window` rows up to its own, or all: then `window` is the largest number.
// The tensor-core kernels read rows rounded to bf16 with heads of D elements, zeros beyond `dim`.
//
// Where keys and values lie apart from the queries (APART), in blocks, a tile is five numbers: first row of the other
// side, first row of the tile, end of the rows of its own side, `shift`, end of the rows of the other side. Queries and
// keys compare as rows of keys: `row + shift` is where a query would stand among these. Forward, what a block gives is
// merged into what `out` and `lse` hold of others; backward, it is added. No two tiles of a launch write the same rows.

#define TILE 64  // rows of a tile
#define STEP 32  // rows of the other side that the backward kernels take at once
#define LOG2_E 1.4426950408889634f

// Rows of `heads` heads as bf16 heads of `wide` elements. One block a row.
KERNEL attention_round(const float* src, u64 step, u32 heads, u32 dim, u16* dst, u32 wide) {
    const float* row = src + blockIdx.x * step;
    u16* to = dst + (u64)blockIdx.x * heads * wide;
    if (dim == wide && aligned16(row)) {
        for (u32 i = threadIdx.x; i < heads * wide / 8; i += blockDim.x) ((uint4*)to)[i] = round_eight(row + 8 * i);
        return;
    }
    for (u32 i = threadIdx.x; i < heads * wide / 2; i += blockDim.x) {
        u32 head = 2 * i / wide, d = 2 * i % wide;
        float low = d < dim ? row[head * dim + d] : 0.0f;
        float high = d + 1 < dim ? row[head * dim + d + 1] : 0.0f;
        ((u32*)to)[i] = pack_bf16(low, high);
    }
}

// delta[row, head] = out . dout. One warp a row and head.
KERNEL attention_delta(const float* out, const float* dout, u32 dim, float* delta, u32 count) {
    u32 i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (i >= count) return;
    float sum = 0.0f;
    for (u32 d = lane; d < dim; d += 32) sum += out[(u64)i * dim + d] * dout[(u64)i * dim + d];
    sum = warp_sum(sum);
    if (lane == 0) delta[i] = sum;
}

// Begins to copy `rows` rows of D elements to shared memory; rows from `live` on are zero.
template <int D>
INLINE void begin_rows(u16* to, const u16* from, u64 step, u32 rows, u32 live) {
    for (u32 i = threadIdx.x; i < rows * (D / 8); i += blockDim.x) {
        u32 r = i / (D / 8), c = i % (D / 8) * 8;
        copy16_begin(to + r * (D + 8) + c, r < live ? from + r * step + c : from, r < live);
    }
}

// Fragment A of rows `row`.. and elements `k`.. of row-major shared memory.
template <int D>
INLINE void fragment_a(u32 (&a)[4], const u16* tile, u32 row, u32 k) {
    u32 lane = threadIdx.x & 31;
    load_tiles(a, tile + (row + lane % 16) * (D + 8) + k + lane / 16 * 8);
}

// Fragments B of two tiles of 8 columns, where memory holds [column, k].
template <int D>
INLINE void fragments_b(u32 (&b)[4], const u16* tile, u32 column, u32 k) {
    u32 lane = threadIdx.x & 31;
    load_tiles(b, tile + (column + lane / 16 * 8 + lane % 8) * (D + 8) + k + lane / 8 % 2 * 8);
}

// Fragments B of two tiles of 8 columns, where memory holds [k, column].
template <int D>
INLINE void fragments_b_turned(u32 (&b)[4], const u16* tile, u32 k, u32 column) {
    u32 lane = threadIdx.x & 31;
    load_tiles_turned(b,
                      tile + (k + lane / 8 % 2 * 8 + lane % 8) * (D + 8) + column + lane / 16 * 8);
}

// Fragments A of 16 rows of D elements, to be used again and again.
template <int D>
INLINE void hold_rows(u32 (&held)[D / 16][4], const u16* tile, u32 row) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) fragment_a<D>(held[k], tile, row, k * 16);
}

// c[N] += a b over D elements, for 16 rows of `a` that are held and 8 N rows of `b`, row-major.
template <int D, int N>
INLINE void held_by_rows(float (&c)[N][4], const u32 (&a)[D / 16][4], const u16* b) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 fb[4];
            fragments_b<D>(fb, b, n * 8, k * 16);
            mma_bf16(c[n], a[k], fb[0], fb[1]);
            mma_bf16(c[n + 1], a[k], fb[2], fb[3]);
        }
    }
}

// c[N] += a b over D elements, for 16 rows of `a` and 8 N rows of `b`, both row-major.
template <int D, int N>
INLINE void rows_by_rows(float (&c)[N][4], const u16* a, u32 row, const u16* b) {
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        u32 fa[4];
        fragment_a<D>(fa, a, row, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 fb[4];
            fragments_b<D>(fb, b, n * 8, k);
            mma_bf16(c[n], fa, fb[0], fb[1]);
            mma_bf16(c[n + 1], fa, fb[2], fb[3]);
        }
    }
}

// c[D / 8] += p b, for 16 rows of `p` in fragments C and 8 N rows of `b`, row-major.
template <int D, int N>
INLINE void scores_by_rows(float (&c)[D / 8][4], const float (&p)[N][4], const u16* b) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        u32 fa[4] = {pack_bf16(p[k][0], p[k][1]), pack_bf16(p[k][2], p[k][3]),
                     pack_bf16(p[k + 1][0], p[k + 1][1]), pack_bf16(p[k + 1][2], p[k + 1][3])};
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            u32 fb[4];
            fragments_b_turned<D>(fb, b, k * 8, d * 8);
            mma_bf16(c[d], fa, fb[0], fb[1]);
            mma_bf16(c[d + 1], fa, fb[2], fb[3]);
        }
    }
}

// Writes or adds 16 rows of fragments C, `factor[h]` times, to rows of `dim` elements; those from `live`
// on stay.
template <int D, bool ADD>
INLINE void store_rows(float* to, u64 step, u32 dim, u32 live, const float (&c)[D / 8][4],
                       float factor0, float factor1) {
    u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            u32 row = g + 8 * h, d = n * 8 + 2 * t;
            float factor = h ? factor1 : factor0;
            float x = c[n][2 * h] * factor, y = c[n][2 * h + 1] * factor;
            if (row >= live) continue;
            float* at = to + row * step + d;
            if (d + 1 < dim && ((u64)at & 7) == 0) {
                float2 held = ADD ? *(float2*)at : make_float2(0.0f, 0.0f);
                *(float2*)at = ADD ? make_float2(held.x + x, held.y + y) : make_float2(x, y);
            } else {
                if (d < dim) at[0] = ADD ? at[0] + x : x;
                if (d + 1 < dim) at[1] = ADD ? at[1] + y : y;
            }
        }
    }
}

// The first row of its sequence that a row sees.
INLINE u32 first_seen(u32 sequence, u32 row, u32 window) {
    return row - sequence < window ? sequence : row - window + 1;
}

// The end of the rows, of those up to `end`, that see a row or some before it.
INLINE u32 seeing_end(u32 row, u32 end, u32 window) {
    return end - row <= window ? end : row + window;
}

INLINE u32 live_rows(u32 from, u32 end, u32 most) { return from < end ? least(end - from, most) : 0; }

// `queries` and `keys` are the first rows of these, `q_step` and `step` from a row to the next.
template <int D, bool APART>
INLINE void attention_forward(const u16* queries, u64 q_step, const u16* keys, u64 step,
                              const u32* tiles, float* out, float* lse, u32 heads, u32 kv_heads,
                              u32 dim, float scale, u32 window) {
    constexpr int SIZE = TILE * (D + 8);
    DYNAMIC_SHARED(u16, memory);
    // Queries are held by the time that the second tile of keys comes, in whose place they lie before.
    u16 *k = memory, *q = memory + SIZE, *v = memory + 2 * SIZE;
    const u32* tile = tiles + (APART ? 5 : 3) * blockIdx.x;
    u32 sequence = tile[0], start = tile[1], rows_end = least(start + TILE, tile[2]);
    u32 shift = APART ? tile[3] : 0;
    u32 keys_end = APART ? least(rows_end + shift, tile[4]) : rows_end;
    u32 head = blockIdx.y, kv = head / (heads / kv_heads), warp = threadIdx.x / 32;
    u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
    u64 width = (u64)heads * dim;
    keys += (u64)kv * D;
    const u16* values = keys + (u64)kv_heads * D;
    begin_rows<D>(q, queries + start * q_step + (u64)head * D, q_step, TILE, rows_end - start);
    // The first tile of keys that a row of this one sees.
    u32 from = sequence + (first_seen(sequence, start + shift, window) - sequence) / TILE * TILE;
    begin_rows<D>(k, keys + from * step, step, TILE, live_rows(from, keys_end, TILE));
    begin_rows<D>(v, values + from * step, step, TILE, live_rows(from, keys_end, TILE));
    copy16_group();
    copy16_wait<0>();
    __syncthreads();
    u32 held[D / 16][4];
    hold_rows<D>(held, q, warp * 16);
    __syncthreads();
    float o[D / 8][4] = {}, top[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f};
    float unit = scale * LOG2_E;
    u32 first_row = start + warp * 16, first_place = first_row + shift;
    if (APART) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            u32 row = first_row + g + 8 * h;
            float before = row < rows_end ? lse[(u64)row * heads + head] : -INFINITE;
            if (before == -INFINITE) continue;
            // What is there counts as one score of which the value is `out`.
            top[h] = before / scale;
            sum[h] = t == 0 ? 1.0f : 0.0f;
            const float* made = out + row * width + (u64)head * dim;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                u32 d = n * 8 + 2 * t;
                if (d < dim) o[n][2 * h] = made[d];
                if (d + 1 < dim) o[n][2 * h + 1] = made[d + 1];
            }
        }
    }
    for (u32 at = from, turn = 0; at < keys_end; at += TILE, turn ^= 1) {
        u32 next = at + TILE;
        if (next < keys_end) {
            u32 live = live_rows(next, keys_end, TILE);
            begin_rows<D>(k + (turn ^ 1) * SIZE, keys + next * step, step, TILE, live);
            begin_rows<D>(v + (turn ^ 1) * SIZE, values + next * step, step, TILE, live);
            copy16_group();
            copy16_wait<1>();
        } else {
            copy16_wait<0>();
        }
        __syncthreads();
        float s[8][4] = {};
        held_by_rows<D, 8>(s, held, k + turn * SIZE);
        if (at + TILE - 1 > first_place || first_place + 15 - at >= window ||
            (APART && at + TILE > keys_end)) {
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    u32 key = at + n * 8 + 2 * t + (e & 1), row = first_place + g + (e >> 1) * 8;
                    bool hidden = key > row || row - key >= window || (APART && key >= keys_end);
                    if (hidden) s[n][e] = -INFINITE;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float high = top[h];
#pragma unroll
            for (int n = 0; n < 8; ++n) high = fmaxf(high, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
            high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, 1));
            high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, 2));
            // A row may see none of these keys, nor of those before.
            float base = high == -INFINITE ? 0.0f : high;
            float keep = power_of_two((top[h] - base) * unit), added = 0.0f;
            top[h] = high;
            base *= -unit;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; ++e) {
                    s[n][e] = power_of_two(fmaf(s[n][e], unit, base));
                    added += s[n][e];
                }
            }
            sum[h] = sum[h] * keep + added;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                o[n][2 * h] *= keep;
                o[n][2 * h + 1] *= keep;
            }
        }
        scores_by_rows<D, 8>(o, s, v + turn * SIZE);
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 1);
        sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 2);
        u32 row = first_row + g + 8 * h;
        if (t == 0 && row < rows_end) lse[(u64)row * heads + head] = top[h] * scale + logf(sum[h]);
        // Of rows that lie apart one may have seen nothing yet.
        sum[h] = APART && sum[h] == 0.0f ? 1.0f : sum[h];
    }
    store_rows<D, false>(out + first_row * width + (u64)head * dim, width, dim,
                         live_rows(first_row, rows_end, 16), o, 1.0f / sum[0], 1.0f / sum[1]);
}

// Of probabilities `p` before their exponential and products `ds` of gradients with values: the
// probabilities, and the gradients of the scores. Rows are keys from `first_key` on, columns queries
// from `from` on; `logs` has a query's log of the sum, in powers of two, and `pulls` its delta. With
// `MASKED` some keys come after their query or are out of its window, or queries after the end.
template <bool MASKED>
INLINE void score_gradients(float (&p)[STEP / 8][4], float (&ds)[STEP / 8][4], const float* logs,
                            const float* pulls, u32 first_key, u32 from, u32 end, u32 window,
                            float unit) {
    u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            u32 column = n * 8 + 2 * t + e, query = from + column;
            float log_sum = logs[column], pull = pulls[column];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float& x = p[n][2 * h + e];
                x = power_of_two(fmaf(x, unit, -log_sum));
                u32 key = first_key + g + 8 * h;
                if (MASKED && (key > query || query - key >= window || query >= end)) x = 0.0f;
                ds[n][2 * h + e] = x * (ds[n][2 * h + e] - pull);
            }
        }
    }
}

// Gradients of 64 keys and values of one head, over the query heads that share it; `dkeys` is the first row of these,
// `width` from a row to the next.
template <int D, bool APART>
INLINE void attention_dkv(const u16* queries, u64 q_step, const u16* keys, u64 step,
                          const u16* dout, const u32* tiles, const float* lse, const float* delta,
                          float* dkeys, u64 width, u32 heads, u32 kv_heads, u32 dim, float scale,
                          u32 window) {
    constexpr int SIZE = TILE * (D + 8), PART = STEP * (D + 8);
    DYNAMIC_SHARED(u16, memory);
    u16 *k = memory, *v = memory + SIZE, *q = memory + 2 * SIZE, *o = q + 2 * PART;
    // For each of two parts: logs of sums, then deltas, of its queries.
    float* facts = (float*)(o + 2 * PART);
    const u32* tile = tiles + (APART ? 5 : 3) * blockIdx.x;
    u32 start = tile[1], kv = blockIdx.y, group = heads / kv_heads;
    u32 keys_end = least(start + TILE, tile[2]), shift = APART ? tile[3] : 0;
    // Of the queries that see a key of this tile.
    u32 begin = APART && tile[0] > start ? tile[0] : start;
    u32 end = seeing_end(keys_end - 1, APART ? tile[4] : tile[2], window);
    u32 warp = threadIdx.x / 32;
    u64 out_step = (u64)heads * D;
    u32 live = keys_end - start;
    keys += start * step + (u64)kv * D;
    begin_rows<D>(k, keys, step, TILE, live);
    begin_rows<D>(v, keys + (u64)kv_heads * D, step, TILE, live);
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, unit = scale * LOG2_E;
    // The parts of all query heads as one sequence of steps.
    u32 parts = (end - begin + STEP - 1) / STEP, steps = parts * group;
    u32 first_key = start + warp * 16;
    // The fact of a part that this thread brings; beyond the end it is never used but in masked sums.
    bool brings = threadIdx.x < 2 * STEP;
    auto fact = [&](u32 head, u32 from) {
        u32 query = from + threadIdx.x % STEP;
        u64 at = (u64)(query - shift) * heads + head;
        if (!brings || query >= end) return 0.0f;
        return threadIdx.x < STEP ? lse[at] * LOG2_E : delta[at];
    };
    begin_rows<D>(q, queries + (begin - shift) * q_step + (u64)kv * group * D, q_step, STEP,
                  live_rows(begin, end, STEP));
    begin_rows<D>(o, dout + (begin - shift) * out_step + (u64)kv * group * D, out_step, STEP,
                  live_rows(begin, end, STEP));
    copy16_group();
    if (brings) facts[threadIdx.x] = fact(kv * group, begin);
    copy16_wait<0>();
    __syncthreads();
    // There is no room to hold the values as well.
    u32 held_k[D / 16][4];
    hold_rows<D>(held_k, k, warp * 16);
    for (u32 i = 0, turn = 0; i < steps; ++i, turn ^= 1) {
        float next_fact = 0.0f;
        if (i + 1 < steps) {
            u32 head = kv * group + (i + 1) / parts, from = begin + (i + 1) % parts * STEP;
            u32 row = from - shift, rows = live_rows(from, end, STEP);
            begin_rows<D>(q + (turn ^ 1) * PART, queries + row * q_step + (u64)head * D, q_step,
                          STEP, rows);
            begin_rows<D>(o + (turn ^ 1) * PART, dout + row * out_step + (u64)head * D, out_step,
                          STEP, rows);
            copy16_group();
            // It arrives while the present part is worked on.
            next_fact = fact(head, from);
            copy16_wait<1>();
        } else {
            copy16_wait<0>();
        }
        __syncthreads();
        u32 from = begin + i % parts * STEP;
        // Rows are keys, columns queries.
        float p[STEP / 8][4] = {}, ds[STEP / 8][4] = {};
        held_by_rows<D, STEP / 8>(p, held_k, q + turn * PART);
        rows_by_rows<D, STEP / 8>(ds, v, warp * 16, o + turn * PART);
        const float *logs = facts + turn * 2 * STEP, *pulls = logs + STEP;
        if (from < start + TILE || from + STEP > end || from + STEP - 1 - first_key >= window)
            score_gradients<true>(p, ds, logs, pulls, first_key, from, end, window, unit);
        else
            score_gradients<false>(p, ds, logs, pulls, first_key, from, end, window, unit);
        scores_by_rows<D, STEP / 8>(dv, p, o + turn * PART);
        scores_by_rows<D, STEP / 8>(dk, ds, q + turn * PART);
        if (brings) facts[(turn ^ 1) * 2 * STEP + threadIdx.x] = next_fact;
        __syncthreads();
    }
    float* to = dkeys + first_key * width + (u64)kv * dim;
    u32 rows = live_rows(first_key, keys_end, 16);
    store_rows<D, APART>(to, width, dim, rows, dk, scale, scale);
    store_rows<D, APART>(to + (u64)kv_heads * dim, width, dim, rows, dv, 1.0f, 1.0f);
}

// Gradients of 64 queries of one head.
template <int D, bool APART>
INLINE void attention_dq(const u16* queries, u64 q_step, const u16* keys, u64 step,
                         const u16* dout, const u32* tiles, const float* lse, const float* delta,
                         float* dqkv, u32 heads, u32 kv_heads, u32 dim, float scale, u32 window) {
    constexpr int SIZE = TILE * (D + 8), PART = STEP * (D + 8);
    DYNAMIC_SHARED(u16, memory);
    u16 *q = memory, *o = memory + SIZE, *k = memory + 2 * SIZE, *v = k + 2 * PART;
    const u32* tile = tiles + (APART ? 5 : 3) * blockIdx.x;
    u32 sequence = tile[0], start = tile[1], end = least(start + TILE, tile[2]);
    u32 shift = APART ? tile[3] : 0, keys_end = APART ? least(end + shift, tile[4]) : end;
    u32 head = blockIdx.y, kv = head / (heads / kv_heads), warp = threadIdx.x / 32;
    u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
    u64 out_step = (u64)heads * D;
    keys += (u64)kv * D;
    const u16* values = keys + (u64)kv_heads * D;
    begin_rows<D>(q, queries + start * q_step + (u64)head * D, q_step, TILE, end - start);
    begin_rows<D>(o, dout + start * out_step + (u64)head * D, out_step, TILE, end - start);
    u32 from = sequence + (first_seen(sequence, start + shift, window) - sequence) / STEP * STEP;
    begin_rows<D>(k, keys + from * step, step, STEP, live_rows(from, keys_end, STEP));
    begin_rows<D>(v, values + from * step, step, STEP, live_rows(from, keys_end, STEP));
    copy16_group();
    u32 first_row = start + warp * 16, first_place = first_row + shift;
    float dq[D / 8][4] = {}, log_sum[2], pull[2], unit = scale * LOG2_E;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        u32 row = first_row + g + 8 * h;
        log_sum[h] = row < end ? lse[(u64)row * heads + head] * LOG2_E : 0.0f;
        pull[h] = row < end ? delta[(u64)row * heads + head] : 0.0f;
    }
    // The gradients' rows are read anew each time: with both held, fewer blocks would work at once.
    copy16_wait<0>();
    __syncthreads();
    u32 held_q[D / 16][4];
    hold_rows<D>(held_q, q, warp * 16);
    for (u32 at = from, turn = 0; at < keys_end; at += STEP, turn ^= 1) {
        u32 next = at + STEP;
        if (next < keys_end) {
            u32 live = live_rows(next, keys_end, STEP);
            begin_rows<D>(k + (turn ^ 1) * PART, keys + next * step, step, STEP, live);
            begin_rows<D>(v + (turn ^ 1) * PART, values + next * step, step, STEP, live);
            copy16_group();
            copy16_wait<1>();
        } else {
            copy16_wait<0>();
        }
        __syncthreads();
        float p[STEP / 8][4] = {}, ds[STEP / 8][4] = {};
        held_by_rows<D, STEP / 8>(p, held_q, k + turn * PART);
        rows_by_rows<D, STEP / 8>(ds, o, warp * 16, v + turn * PART);
        // Rows beyond the end are not stored, so that only keys that are not seen are to be left out.
        bool masked = at + STEP - 1 > first_place || first_place + 15 - at >= window ||
                      (APART && at + STEP > keys_end);
#pragma unroll
        for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int h = e >> 1;
                u32 key = at + n * 8 + 2 * t + (e & 1), row = first_place + g + 8 * h;
                float x = power_of_two(fmaf(p[n][e], unit, -log_sum[h]));
                bool hidden = key > row || row - key >= window || (APART && key >= keys_end);
                if (masked && hidden) x = 0.0f;
                ds[n][e] = x * (ds[n][e] - pull[h]);
            }
        }
        scores_by_rows<D, STEP / 8>(dq, ds, k + turn * PART);
        __syncthreads();
    }
    u64 width = (u64)(heads + 2 * kv_heads) * dim;
    store_rows<D, APART>(dqkv + first_row * width + (u64)head * dim, width, dim,
                         live_rows(first_row, end, 16), dq, scale, scale);
}

#define ATTENTION(D)                                                                             \
    extern "C" __global__ void __launch_bounds__(128, 3) attention_forward_##D(                  \
        const u16* qkv, const u32* tiles, float* out, float* lse, u32 heads, u32 kv_heads,       \
        u32 dim, float scale, u32 window) {                                                      \
        u64 step = (u64)(heads + 2 * kv_heads) * D;                                              \
        attention_forward<D, false>(qkv, step, qkv + (u64)heads * D, step, tiles, out, lse,      \
                                    heads, kv_heads, dim, scale, window);                        \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) attention_dkv_##D(                         \
        const u16* qkv, const u16* dout, const u32* tiles, const float* lse, const float* delta, \
        float* dqkv, u32 heads, u32 kv_heads, u32 dim, float scale, u32 window) {                \
        u64 step = (u64)(heads + 2 * kv_heads) * D;                                              \
        attention_dkv<D, false>(qkv, step, qkv + (u64)heads * D, step, dout, tiles, lse, delta,  \
                                dqkv + (u64)heads * dim, (u64)(heads + 2 * kv_heads) * dim,      \
                                heads, kv_heads, dim, scale, window);                            \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) attention_dq_##D(                          \
        const u16* qkv, const u16* dout, const u32* tiles, const float* lse, const float* delta, \
        float* dqkv, u32 heads, u32 kv_heads, u32 dim, float scale, u32 window) {                \
        u64 step = (u64)(heads + 2 * kv_heads) * D;                                              \
        attention_dq<D, false>(qkv, step, qkv + (u64)heads * D, step, dout, tiles, lse, delta,   \
                               dqkv, heads, kv_heads, dim, scale, window);                       \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(128, 3) block_attention_forward_##D(            \
        const u16* q, const u16* kv, const u32* tiles, float* out, float* lse, u32 heads,        \
        u32 kv_heads, u32 dim, float scale, u32 window) {                                        \
        attention_forward<D, true>(q, (u64)heads * D, kv, (u64)2 * kv_heads * D, tiles, out,     \
                                   lse, heads, kv_heads, dim, scale, window);                    \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) block_attention_dkv_##D(                   \
        const u16* q, const u16* kv, const u16* dout, const u32* tiles, const float* lse,        \
        const float* delta, float* dkv, u32 heads, u32 kv_heads, u32 dim, float scale,           \
        u32 window) {                                                                            \
        attention_dkv<D, true>(q, (u64)heads * D, kv, (u64)2 * kv_heads * D, dout, tiles, lse,   \
                               delta, dkv, (u64)2 * kv_heads * dim, heads, kv_heads, dim, scale, \
                               window);                                                          \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) block_attention_dq_##D(                    \
        const u16* q, const u16* kv, const u16* dout, const u32* tiles, const float* lse,        \
        const float* delta, float* dqkv, u32 heads, u32 kv_heads, u32 dim, float scale,          \
        u32 window) {                                                                            \
        attention_dq<D, true>(q, (u64)heads * D, kv, (u64)2 * kv_heads * D, dout, tiles, lse,    \
                              delta, dqkv, heads, kv_heads, dim, scale, window);                 \
    }

ATTENTION(32)
ATTENTION(64)
ATTENTION(96)
ATTENTION(128)

// Below: f32 throughout, heads of at most 256 elements, a warp a row. For comparison, and for
// heads that the kernels above do not take.

#define LANE_ELEMENTS 8

INLINE float row_dot(const float* a, const float* b, u32 dim) {
    float sum = 0.0f;
    for (u32 d = 0; d < dim; ++d) sum = fmaf(a[d], b[d], sum);
    return sum;
}

// acc += sum over lanes of factor * rows[lane], lane by lane; `rows` is `step` apart.
INLINE void add_rows(float (&acc)[LANE_ELEMENTS], float factor, const float* rows, u64 step,
                     u32 count, u32 dim) {
    u32 lane = threadIdx.x & 31;
    for (u32 r = 0; r < 32; ++r) {
        float f = __shfl_sync(ALL_LANES, factor, r);
        if (r >= count) continue;
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; ++i)
            if (lane + 32 * i < dim) acc[i] = fmaf(f, rows[r * step + lane + 32 * i], acc[i]);
    }
}

template <bool ADD>
INLINE void store_lane(float* to, const float (&acc)[LANE_ELEMENTS], u32 dim, float factor) {
    u32 lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS; ++i) {
        u32 d = lane + 32 * i;
        if (d < dim) to[d] = ADD ? to[d] + acc[i] * factor : acc[i] * factor;
    }
}

template <bool APART>
INLINE void forward_rows(const float* queries, u64 q_step, const float* keys, u64 step,
                         const u32* tiles, float* out, float* lse, u32 heads, u32 kv_heads,
                         u32 dim, float scale, u32 window) {
    const u32* tile = tiles + (APART ? 5 : 3) * blockIdx.x;
    u32 sequence = tile[0], end = least(tile[1] + TILE, tile[2]), lane = threadIdx.x & 31;
    u32 shift = APART ? tile[3] : 0;
    u32 head = blockIdx.y, kv = head / (heads / kv_heads);
    keys += (u64)kv * dim;
    const float* values = keys + (u64)kv_heads * dim;
    for (u32 row = tile[1] + threadIdx.x / 32; row < end; row += blockDim.x / 32) {
        const float* q = queries + row * q_step + (u64)head * dim;
        float* made = out + ((u64)row * heads + head) * dim;
        float acc[LANE_ELEMENTS] = {}, top = -INFINITE, sum = 0.0f;
        u32 place = row + shift, keys_end = APART ? least(place + 1, tile[4]) : place + 1;
        if (APART && lse[(u64)row * heads + head] != -INFINITE) {
            // What is held counts as one score of which the value is `out`.
            top = lse[(u64)row * heads + head];
            sum = 1.0f;
#pragma unroll
            for (int i = 0; i < LANE_ELEMENTS; ++i)
                if (lane + 32 * i < dim) acc[i] = made[lane + 32 * i];
        }
        for (u32 at = first_seen(sequence, place, window); at < keys_end; at += 32) {
            u32 key = at + lane, count = least(keys_end - at, 32);
            float s = key < keys_end ? scale * row_dot(q, keys + key * step, dim) : -INFINITE;
            float high = fmaxf(top, warp_max(s)), keep = expf(top - high), p = expf(s - high);
            top = high;
            sum = sum * keep + warp_sum(p);
#pragma unroll
            for (int i = 0; i < LANE_ELEMENTS; ++i) acc[i] *= keep;
            add_rows(acc, p, values + at * step, step, count, dim);
        }
        if (lane == 0) lse[(u64)row * heads + head] = top + logf(sum);
        // Of rows that lie apart one may have seen nothing yet.
        store_lane<false>(made, acc, dim, APART && sum == 0.0f ? 0.0f : 1.0f / sum);
    }
}

template <bool APART>
INLINE void dkv_rows(const float* queries, u64 q_step, const float* keys, u64 step,
                     const float* dout, const u32* tiles, const float* lse, const float* delta,
                     float* dkeys, u32 heads, u32 kv_heads, u32 dim, float scale, u32 window) {
    const u32* tile = tiles + (APART ? 5 : 3) * blockIdx.x;
    u32 keys_end = least(tile[1] + TILE, tile[2]), lane = threadIdx.x & 31;
    u32 shift = APART ? tile[3] : 0, end = APART ? tile[4] : tile[2];
    u32 kv = blockIdx.y, group = heads / kv_heads;
    u64 out_width = (u64)heads * dim;
    for (u32 key = tile[1] + threadIdx.x / 32; key < keys_end; key += blockDim.x / 32) {
        u64 place = key * step + (u64)kv * dim;
        const float *k = keys + place, *v = k + (u64)kv_heads * dim;
        float dk[LANE_ELEMENTS] = {}, dv[LANE_ELEMENTS] = {};
        u32 begin = APART && tile[0] > key ? tile[0] : key;
        u32 queries_end = seeing_end(key, end, window);
        for (u32 head = kv * group; head < (kv + 1) * group; ++head) {
            for (u32 at = begin; at < queries_end; at += 32) {
                u32 row = at - shift, count = least(queries_end - at, 32);
                const float* q = queries + row * q_step + (u64)head * dim;
                const float* o = dout + row * out_width + (u64)head * dim;
                float p = 0.0f, ds = 0.0f;
                if (lane < count) {
                    u64 i = (u64)(row + lane) * heads + head;
                    p = expf(scale * row_dot(q + lane * q_step, k, dim) - lse[i]);
                    ds = p * (row_dot(o + lane * out_width, v, dim) - delta[i]);
                }
                add_rows(dv, p, o, out_width, count, dim);
                add_rows(dk, ds, q, q_step, count, dim);
            }
        }
        store_lane<APART>(dkeys + place, dk, dim, scale);
        store_lane<APART>(dkeys + place + (u64)kv_heads * dim, dv, dim, 1.0f);
    }
}

template <bool APART>
INLINE void dq_rows(const float* queries, u64 q_step, const float* keys, u64 step,
                    const float* dout, const u32* tiles, const float* lse, const float* delta,
                    float* dqkv, u32 heads, u32 kv_heads, u32 dim, float scale, u32 window) {
    const u32* tile = tiles + (APART ? 5 : 3) * blockIdx.x;
    u32 sequence = tile[0], end = least(tile[1] + TILE, tile[2]), lane = threadIdx.x & 31;
    u32 shift = APART ? tile[3] : 0;
    u32 head = blockIdx.y, kv = head / (heads / kv_heads);
    keys += (u64)kv * dim;
    const float* values = keys + (u64)kv_heads * dim;
    for (u32 row = tile[1] + threadIdx.x / 32; row < end; row += blockDim.x / 32) {
        u64 i = (u64)row * heads + head;
        const float *q = queries + row * q_step + (u64)head * dim, *o = dout + i * dim;
        float dq[LANE_ELEMENTS] = {};
        u32 place = row + shift, keys_end = APART ? least(place + 1, tile[4]) : place + 1;
        for (u32 at = first_seen(sequence, place, window); at < keys_end; at += 32) {
            u32 key = at + lane, count = least(keys_end - at, 32);
            float ds = 0.0f;
            if (key < keys_end) {
                float p = expf(scale * row_dot(q, keys + key * step, dim) - lse[i]);
                ds = p * (row_dot(o, values + key * step, dim) - delta[i]);
            }
            add_rows(dq, ds, keys + at * step, step, count, dim);
        }
        store_lane<APART>(dqkv + row * q_step + (u64)head * dim, dq, dim, scale);
    }
}

KERNEL attention_forward_f32(const float* qkv, const u32* tiles, float* out, float* lse, u32 heads,
                             u32 kv_heads, u32 dim, float scale, u32 window) {
    u64 step = (u64)(heads + 2 * kv_heads) * dim;
    forward_rows<false>(qkv, step, qkv + (u64)heads * dim, step, tiles, out, lse, heads, kv_heads,
                        dim, scale, window);
}

KERNEL attention_dkv_f32(const float* qkv, const float* dout, const u32* tiles, const float* lse,
                         const float* delta, float* dqkv, u32 heads, u32 kv_heads, u32 dim,
                         float scale, u32 window) {
    u64 step = (u64)(heads + 2 * kv_heads) * dim, before = (u64)heads * dim;
    dkv_rows<false>(qkv, step, qkv + before, step, dout, tiles, lse, delta, dqkv + before, heads,
                    kv_heads, dim, scale, window);
}

KERNEL attention_dq_f32(const float* qkv, const float* dout, const u32* tiles, const float* lse,
                        const float* delta, float* dqkv, u32 heads, u32 kv_heads, u32 dim,
                        float scale, u32 window) {
    u64 step = (u64)(heads + 2 * kv_heads) * dim;
    dq_rows<false>(qkv, step, qkv + (u64)heads * dim, step, dout, tiles, lse, delta, dqkv, heads,
                   kv_heads, dim, scale, window);
}

KERNEL block_attention_forward_f32(const float* qkv, const float* kv, const u32* tiles, float* out,
                                   float* lse, u32 heads, u32 kv_heads, u32 dim, float scale,
                                   u32 window) {
    forward_rows<true>(qkv, (u64)(heads + 2 * kv_heads) * dim, kv, (u64)2 * kv_heads * dim, tiles,
                       out, lse, heads, kv_heads, dim, scale, window);
}

KERNEL block_attention_dkv_f32(const float* qkv, const float* kv, const float* dout,
                               const u32* tiles, const float* lse, const float* delta, float* dkv,
                               u32 heads, u32 kv_heads, u32 dim, float scale, u32 window) {
    dkv_rows<true>(qkv, (u64)(heads + 2 * kv_heads) * dim, kv, (u64)2 * kv_heads * dim, dout, tiles,
                   lse, delta, dkv, heads, kv_heads, dim, scale, window);
}

KERNEL block_attention_dq_f32(const float* qkv, const float* kv, const float* dout,
                              const u32* tiles, const float* lse, const float* delta, float* dqkv,
                              u32 heads, u32 kv_heads, u32 dim, float scale, u32 window) {
    dq_rows<true>(qkv, (u64)(heads + 2 * kv_heads) * dim, kv, (u64)2 * kv_heads * dim, dout, tiles,
                  lse, delta, dqkv, heads, kv_heads, dim, scale, window);
}
