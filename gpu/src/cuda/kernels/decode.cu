// Sampling: products with few rows, and attention over a paged cache of keys and values.
//
// A page holds PAGE positions in one layer, [keys | values][kv head][position][dim].
// Page i of a slot is `pages[slot * pages_most + i]`. What a row gets does not depend on the other rows of the call.

#define PAGE 64         // positions of a page
#define SPLIT_PAGES 4   // pages of a block, one a warp
#define PRODUCT_WARPS 8 // warps that share the inputs of a product

struct Place {
    u32 slot, position;
};

INLINE u64 page_of(const u32* pages, u32 pages_most, u32 slot, u32 index) {
    return pages[slot * pages_most + index];
}

INLINE float as_float(float x) { return x; }
INLINE float as_float(u16 x) { return from_bf16(x); }
INLINE void put(float* to, float x) { *to = x; }
INLINE void put(u16* to, float x) { *to = to_bf16(x); }

// Eight elements, from an address that is a multiple of 16 bytes where their size allows.
INLINE void eight(float (&x)[8], const u16* from) {
    uint4 v = *(const uint4*)from;
    x[0] = low_bf16(v.x), x[1] = high_bf16(v.x), x[2] = low_bf16(v.y), x[3] = high_bf16(v.y);
    x[4] = low_bf16(v.z), x[5] = high_bf16(v.z), x[6] = low_bf16(v.w), x[7] = high_bf16(v.w);
}
INLINE void eight(float (&x)[8], const float* from) {
    *(float4*)x = *(const float4*)from;
    *(float4*)(x + 4) = *(const float4*)(from + 4);
}

template <class T>
INLINE void append(const Place* places, const u32* pages, u32 pages_most, const float* qkv,
                   T* cache, u32 heads, u32 kv_heads, u32 dim) {
    Place place = places[blockIdx.x];
    u32 half = kv_heads * dim;
    u64 page = page_of(pages, pages_most, place.slot, place.position / PAGE) * 2 * PAGE * half;
    const float* from = qkv + (u64)blockIdx.x * (heads + 2 * kv_heads) * dim + (u64)heads * dim;
    for (u32 i = threadIdx.x; i < 2 * half; i += blockDim.x) {
        u32 head = i / dim, d = i % dim; // key heads, then value heads
        put(cache + page + ((u64)head * PAGE + place.position % PAGE) * dim + d, from[i]);
    }
}

KERNEL cache_append_f32(const Place* places, const u32* pages, u32 pages_most, const float* qkv,
                        float* cache, u32 heads, u32 kv_heads, u32 dim) {
    append(places, pages, pages_most, qkv, cache, heads, kv_heads, dim);
}

KERNEL cache_append_bf16(const Place* places, const u32* pages, u32 pages_most, const float* qkv,
                         u16* cache, u32 heads, u32 kv_heads, u32 dim) {
    append(places, pages, pages_most, qkv, cache, heads, kv_heads, dim);
}

// One block a row (x), head (y) and four pages (z); one warp a page. Leaves [maximum, sum,
// weighted values] of its positions in parts[row, head, z]. A row sees the last `window` positions up
// to its own, or all: then `window` is the largest number. Shared: (1 + SPLIT_PAGES) * dim +
// 2 * SPLIT_PAGES floats. `dim` is even and at most 256.
template <class T>
INLINE void attend(const Place* places, const u32* pages, u32 pages_most, const float* qkv,
                   const T* cache, float* parts, u32 heads, u32 kv_heads, u32 dim, float scale,
                   u32 window) {
    DYNAMIC_SHARED(float, q);
    float *weighted = q + dim, *tops = weighted + SPLIT_PAGES * dim, *sums = tops + SPLIT_PAGES;
    Place place = places[blockIdx.x];
    u32 head = blockIdx.y, kv = head / (heads / kv_heads), known = place.position + 1;
    u32 first = known > window ? known - window : 0;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const float* row = qkv + (u64)blockIdx.x * (heads + 2 * kv_heads) * dim + (u64)head * dim;
    for (u32 d = threadIdx.x; d < dim; d += blockDim.x) q[d] = row[d] * scale;
    __syncthreads();
    float acc[4][2] = {}, top = -INFINITE, sum = 0.0f;
    u32 index = blockIdx.z * SPLIT_PAGES + warp;
    if (index * PAGE < known && index * PAGE + PAGE > first) {
        u64 page = page_of(pages, pages_most, place.slot, index) * 2 * PAGE * kv_heads * dim;
        const T* keys = cache + page + (u64)kv * PAGE * dim;
        const T* values = keys + (u64)kv_heads * PAGE * dim;
        u32 count = least(known - index * PAGE, PAGE);
        u32 hidden = first > index * PAGE ? first - index * PAGE : 0;
        for (u32 at = hidden / 32 * 32; at < count; at += 32) {
            float s = -INFINITE;
            if (at + lane >= hidden && at + lane < count) {
                const T* key = keys + (u64)(at + lane) * dim;
                s = 0.0f;
                if (dim % 8 == 0) {
                    for (u32 d = 0; d < dim; d += 8) {
                        float x[8];
                        eight(x, key + d);
#pragma unroll
                        for (int i = 0; i < 8; ++i) s = fmaf(q[d + i], x[i], s);
                    }
                } else {
                    for (u32 d = 0; d < dim; ++d) s = fmaf(q[d], as_float(key[d]), s);
                }
            }
            float high = fmaxf(top, warp_max(s)), keep = expf(top - high), p = expf(s - high);
            top = high;
            sum = sum * keep + warp_sum(p);
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[i][0] *= keep, acc[i][1] *= keep;
            u32 here = least(count - at, 32);
            for (u32 r = 0; r < here; ++r) {
                float f = __shfl_sync(ALL_LANES, p, r);
                const T* value = values + (u64)(at + r) * dim;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    u32 d = 2 * lane + 64 * i;
                    if (d < dim) {
                        acc[i][0] = fmaf(f, as_float(value[d]), acc[i][0]);
                        acc[i][1] = fmaf(f, as_float(value[d + 1]), acc[i][1]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        u32 d = 2 * lane + 64 * i;
        if (d < dim) weighted[warp * dim + d] = acc[i][0], weighted[warp * dim + d + 1] = acc[i][1];
    }
    if (lane == 0) tops[warp] = top, sums[warp] = sum;
    __syncthreads();
    float* part =
        parts + (((u64)blockIdx.x * heads + head) * gridDim.z + blockIdx.z) * (dim + 2);
    float high = -INFINITE, total = 0.0f, factor[SPLIT_PAGES];
    for (int w = 0; w < SPLIT_PAGES; ++w) high = fmaxf(high, tops[w]);
    for (int w = 0; w < SPLIT_PAGES; ++w) {
        factor[w] = high == -INFINITE ? 0.0f : expf(tops[w] - high);
        total += sums[w] * factor[w];
    }
    for (u32 d = threadIdx.x; d < dim; d += blockDim.x) {
        float v = 0.0f;
        for (int w = 0; w < SPLIT_PAGES; ++w) v += weighted[w * dim + d] * factor[w];
        part[2 + d] = v;
    }
    if (threadIdx.x == 0) part[0] = high, part[1] = total;
}

KERNEL cache_attention_f32(const Place* places, const u32* pages, u32 pages_most, const float* qkv,
                           const float* cache, float* parts, u32 heads, u32 kv_heads, u32 dim,
                           float scale, u32 window) {
    attend(places, pages, pages_most, qkv, cache, parts, heads, kv_heads, dim, scale, window);
}

KERNEL cache_attention_bf16(const Place* places, const u32* pages, u32 pages_most,
                            const float* qkv, const u16* cache, float* parts, u32 heads,
                            u32 kv_heads, u32 dim, float scale, u32 window) {
    attend(places, pages, pages_most, qkv, cache, parts, heads, kv_heads, dim, scale, window);
}

// out[row, head] = the weighted values of all parts over their sum. One block a row and head.
KERNEL cache_combine(const float* parts, float* out, u32 splits, u32 dim) {
    const float* mine = parts + (u64)blockIdx.x * splits * (dim + 2);
    float high = -INFINITE, total = 0.0f;
    for (u32 i = 0; i < splits; ++i) high = fmaxf(high, mine[i * (dim + 2)]);
    for (u32 i = 0; i < splits; ++i)
        total += mine[i * (dim + 2) + 1] * expf(mine[i * (dim + 2)] - high);
    for (u32 d = threadIdx.x; d < dim; d += blockDim.x) {
        float v = 0.0f;
        for (u32 i = 0; i < splits; ++i)
            v += mine[i * (dim + 2) + 2 + d] * expf(mine[i * (dim + 2)] - high);
        out[(u64)blockIdx.x * dim + d] = v / total;
    }
}

// y[row, output] = (or +=) x W^T for 16 outputs (x) and 8 N rows (y) a block. Weights are the rows
// of the tensor cores' product, so a lane reads 16 bytes of a weight row and of an input row at the
// same place, and its four pairs serve two products: which inputs meet in one product does not
// matter as long as both sides agree. The warps' sums are added in their order.
template <int N>
INLINE void packed_product(const u16* x, const u16* w, float* y, u32 rows, u32 outputs, u32 ld,
                           u32 add) {
    DYNAMIC_SHARED(float, sums);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
    u32 first = blockIdx.x * 16, from = blockIdx.y * 8 * N;
    float c[N][4] = {};
    const u16* weight = w + (u64)(first + g) * ld + t * 8;
    for (u32 k = warp * 32; k < ld; k += PRODUCT_WARPS * 32) {
        uint4 high = *(const uint4*)(weight + k), low = *(const uint4*)(weight + 8 * (u64)ld + k);
        u32 a0[4] = {high.x, low.x, high.y, low.y}, a1[4] = {high.z, low.z, high.w, low.w};
#pragma unroll
        for (int n = 0; n < N; ++n) {
            u32 row = from + n * 8 + g;
            uint4 b = make_uint4(0, 0, 0, 0);
            if (row < rows) b = *(const uint4*)(x + (u64)row * ld + k + t * 8);
            mma_bf16(c[n], a0, b.x, b.y);
            mma_bf16(c[n], a1, b.z, b.w);
        }
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        // By row of the result, then output.
        float* to = sums + (warp * N + n) * 128;
        to[2 * t * 16 + g] = c[n][0];
        to[(2 * t + 1) * 16 + g] = c[n][1];
        to[2 * t * 16 + g + 8] = c[n][2];
        to[(2 * t + 1) * 16 + g + 8] = c[n][3];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < N * 128; i += blockDim.x) {
        float sum = 0.0f;
#pragma unroll
        for (int s = 0; s < PRODUCT_WARPS; ++s) sum += sums[s * N * 128 + i];
        u32 row = from + i / 16, output = first + i % 16;
        if (row >= rows || output >= outputs) continue;
        float* to = y + (u64)row * outputs + output;
        *to = add ? *to + sum : sum;
    }
}

#define PACKED(N)                                                                        \
    KERNEL packed_linear_##N(const u16* x, const u16* w, float* y, u32 rows, u32 outputs, \
                             u32 ld, u32 add) {                                          \
        packed_product<N>(x, w, y, rows, outputs, ld, add);                              \
    }

PACKED(1)
PACKED(2)
PACKED(4)
PACKED(8)

// The same in f32: one warp an output, eight rows at once.
KERNEL packed_linear_f32(const float* x, const float* w, float* y, u32 rows, u32 outputs,
                         u32 inputs, u32 add) {
    u32 output = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (output >= outputs) return;
    const float* weight = w + (u64)output * inputs;
    for (u32 from = 0; from < rows; from += 8) {
        float sum[8] = {};
        for (u32 k = lane; k < inputs; k += 32) {
            float v = weight[k];
#pragma unroll
            for (int r = 0; r < 8; ++r)
                if (from + r < rows) sum[r] = fmaf(v, x[(u64)(from + r) * inputs + k], sum[r]);
        }
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            float total = warp_sum(sum[r]);
            if (lane != 0 || from + r >= rows) continue;
            float* to = y + (u64)(from + r) * outputs + output;
            *to = add ? *to + total : total;
        }
    }
}
