// Operations on rows: RMSNorm, layer norm, rotary embedding, SwiGLU, GELU, dropout, gather and scatter, softmax, the
// choice of experts.

// One block a row.
KERNEL rms_norm(float eps, const float* x, const float* weight, float* y, float* inv_rms,
                u32 cols) {
    __shared__ float part[32];
    const float* row = x + (u64)blockIdx.x * cols;
    float* to = y + (u64)blockIdx.x * cols;
    bool vector = cols % 4 == 0 && aligned16(row) && aligned16(to) && aligned16(weight);
    float squares = 0.0f;
    if (vector) {
        for (u32 c = threadIdx.x; c < cols / 4; c += blockDim.x) {
            float4 v = ((const float4*)row)[c];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
    } else {
        for (u32 c = threadIdx.x; c < cols; c += blockDim.x) squares += row[c] * row[c];
    }
    float inv = 1.0f / sqrtf(block_sum(squares, part) / cols + eps);
    if (threadIdx.x == 0) inv_rms[blockIdx.x] = inv;
    if (vector) {
        for (u32 c = threadIdx.x; c < cols / 4; c += blockDim.x) {
            float4 v = ((const float4*)row)[c], w = ((const float4*)weight)[c];
            ((float4*)to)[c] = make_float4(v.x * inv * w.x, v.y * inv * w.y, v.z * inv * w.z,
                                           v.w * inv * w.w);
        }
    } else {
        for (u32 c = threadIdx.x; c < cols; c += blockDim.x) to[c] = row[c] * inv * weight[c];
    }
}

// One block a row: dx = (or +=) dy weight inv - x inv^3 (dy weight . x) / cols.
KERNEL rms_norm_dx(const float* x, const float* weight, const float* inv_rms, const float* dy,
                   float* dx, u32 cols, u32 add) {
    __shared__ float part[32];
    u64 at = (u64)blockIdx.x * cols;
    const float *row = x + at, *up = dy + at;
    float* to = dx + at;
    float inv = inv_rms[blockIdx.x], dot = 0.0f;
    if (cols % 4 == 0 && aligned16(row) && aligned16(up) && aligned16(to) && aligned16(weight)) {
        const float4 *rows = (const float4*)row, *ups = (const float4*)up, *weights = (const float4*)weight;
        for (u32 c = threadIdx.x; c < cols / 4; c += blockDim.x) {
            float4 x4 = rows[c], u = ups[c], w = weights[c];
            dot += u.x * w.x * x4.x + u.y * w.y * x4.y + u.z * w.z * x4.z + u.w * w.w * x4.w;
        }
        float pull = block_sum(dot, part) * inv * inv * inv / cols;
        for (u32 c = threadIdx.x; c < cols / 4; c += blockDim.x) {
            float4 x4 = rows[c], u = ups[c], w = weights[c];
            float4 v = make_float4(u.x * w.x * inv - x4.x * pull, u.y * w.y * inv - x4.y * pull,
                                   u.z * w.z * inv - x4.z * pull, u.w * w.w * inv - x4.w * pull);
            if (add) {
                float4 held = ((float4*)to)[c];
                v = make_float4(held.x + v.x, held.y + v.y, held.z + v.z, held.w + v.w);
            }
            ((float4*)to)[c] = v;
        }
        return;
    }
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) dot += up[c] * weight[c] * row[c];
    float pull = block_sum(dot, part) * inv * inv * inv / cols;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = up[c] * weight[c] * inv - row[c] * pull;
        to[c] = add ? to[c] + v : v;
    }
}

// parts[y, cols] = sums of dy x inv_rms over every gridDim.y-th group of 8 rows, as `column_sums`.
KERNEL rms_norm_dweight(const float* x, const float* inv_rms, const float* dy, u32 count, u32 cols,
                        float* parts) {
    __shared__ float sums[8][33];
    u32 lane = threadIdx.x & 31, y = threadIdx.x >> 5, c = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (c < cols)
        for (u32 r = blockIdx.y * 8 + y; r < count; r += gridDim.y * 8)
            sum += dy[(u64)r * cols + c] * (x[(u64)r * cols + c] * inv_rms[r]);
    sums[y][lane] = sum;
    __syncthreads();
    if (y == 0 && c < cols) {
#pragma unroll
        for (int i = 1; i < 8; ++i) sum += sums[i][lane];
        parts[(u64)blockIdx.y * cols + c] = sum;
    }
}

// One block a head of each row `[queries | keys | values]`; values are copied. `weight` is that of
// queries, then that of keys.
KERNEL head_norm(float eps, const float* x, const float* weight, float* y, float* inv_rms,
                 u32 queries, u32 keys, u32 dim) {
    __shared__ float part[32];
    u32 heads = queries + 2 * keys, row = blockIdx.x / heads, head = blockIdx.x % heads;
    const float* from = x + (u64)blockIdx.x * dim;
    float* to = y + (u64)blockIdx.x * dim;
    if (head >= queries + keys) {
        for (u32 c = threadIdx.x; c < dim; c += blockDim.x) to[c] = from[c];
        return;
    }
    const float* own = head < queries ? weight : weight + dim;
    float squares = 0.0f;
    for (u32 c = threadIdx.x; c < dim; c += blockDim.x) squares += from[c] * from[c];
    float inv = 1.0f / sqrtf(block_sum(squares, part) / dim + eps);
    if (threadIdx.x == 0) inv_rms[(u64)row * (queries + keys) + head] = inv;
    for (u32 c = threadIdx.x; c < dim; c += blockDim.x) to[c] = from[c] * inv * own[c];
}

// The same backward: dx as `rms_norm_dx`, values copied.
KERNEL head_norm_dx(const float* x, const float* weight, const float* inv_rms, const float* dy,
                    float* dx, u32 queries, u32 keys, u32 dim) {
    __shared__ float part[32];
    u32 heads = queries + 2 * keys, row = blockIdx.x / heads, head = blockIdx.x % heads;
    const float *from = x + (u64)blockIdx.x * dim, *up = dy + (u64)blockIdx.x * dim;
    float* to = dx + (u64)blockIdx.x * dim;
    if (head >= queries + keys) {
        for (u32 c = threadIdx.x; c < dim; c += blockDim.x) to[c] = up[c];
        return;
    }
    const float* own = head < queries ? weight : weight + dim;
    float inv = inv_rms[(u64)row * (queries + keys) + head], dot = 0.0f;
    for (u32 c = threadIdx.x; c < dim; c += blockDim.x) dot += up[c] * own[c] * from[c];
    float pull = block_sum(dot, part) * inv * inv * inv / dim;
    for (u32 c = threadIdx.x; c < dim; c += blockDim.x)
        to[c] = up[c] * own[c] * inv - from[c] * pull;
}

// parts[y, cols] = sums of dy x inv_rms over all query heads, then over all key heads, of every
// gridDim.y-th group of 8 rows, as `rms_norm_dweight`; `cols` is twice the elements of a head.
KERNEL head_norm_dweight(const float* x, const float* inv_rms, const float* dy, u32 queries,
                         u32 keys, u32 count, u32 cols, float* parts) {
    __shared__ float sums[8][33];
    u32 lane = threadIdx.x & 31, y = threadIdx.x >> 5, c = blockIdx.x * 32 + lane;
    u32 dim = cols / 2, normed = queries + keys;
    u64 row_step = (u64)(normed + keys) * dim;
    float sum = 0.0f;
    if (c < cols) {
        u32 first = c < dim ? 0 : queries, end = c < dim ? queries : normed, i = c % dim;
        for (u32 r = blockIdx.y * 8 + y; r < count; r += gridDim.y * 8)
            for (u32 head = first; head < end; ++head) {
                u64 at = r * row_step + head * dim + i;
                sum += dy[at] * (x[at] * inv_rms[(u64)r * normed + head]);
            }
    }
    sums[y][lane] = sum;
    __syncthreads();
    if (y == 0 && c < cols) {
#pragma unroll
        for (int i = 1; i < 8; ++i) sum += sums[i][lane];
        parts[(u64)blockIdx.y * cols + c] = sum;
    }
}

// One block a row. Two passes over it, so that a large mean does not take the variance's digits.
KERNEL layer_norm(float eps, const float* x, const float* weight, const float* bias, float* y,
                  float* moments, u32 cols) {
    __shared__ float part[32];
    const float* row = x + (u64)blockIdx.x * cols;
    float* to = y + (u64)blockIdx.x * cols;
    float sum = 0.0f, squares = 0.0f;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) sum += row[c];
    float mean = block_sum(sum, part) / cols;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x)
        squares += (row[c] - mean) * (row[c] - mean);
    float inv = 1.0f / sqrtf(block_sum(squares, part) / cols + eps);
    if (threadIdx.x == 0) {
        moments[2 * (u64)blockIdx.x] = mean;
        moments[2 * (u64)blockIdx.x + 1] = inv;
    }
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x)
        to[c] = (row[c] - mean) * inv * weight[c] + bias[c];
}

// One block a row: with g = dy weight and h = (x - mean) inv,
// dx = (or +=) inv (g - mean of g - h (mean of g h)).
KERNEL layer_norm_dx(const float* x, const float* weight, const float* moments, const float* dy,
                     float* dx, u32 cols, u32 add) {
    __shared__ float part[32];
    u64 at = (u64)blockIdx.x * cols;
    const float *row = x + at, *up = dy + at;
    float* to = dx + at;
    float mean = moments[2 * (u64)blockIdx.x], inv = moments[2 * (u64)blockIdx.x + 1];
    float sum = 0.0f, dot = 0.0f;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
        sum += up[c] * weight[c];
        dot += up[c] * weight[c] * (row[c] - mean);
    }
    float level = block_sum(sum, part) / cols;
    float pull = block_sum(dot, part) * inv * inv / cols;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = inv * (up[c] * weight[c] - level - (row[c] - mean) * pull);
        to[c] = add ? to[c] + v : v;
    }
}

// parts[y, cols] = sums of dy (x - mean) inv over every gridDim.y-th group of 8 rows, as
// `rms_norm_dweight`.
KERNEL layer_norm_dweight(const float* x, const float* moments, const float* dy, u32 count,
                          u32 cols, float* parts) {
    __shared__ float sums[8][33];
    u32 lane = threadIdx.x & 31, y = threadIdx.x >> 5, c = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (c < cols)
        for (u32 r = blockIdx.y * 8 + y; r < count; r += gridDim.y * 8)
            sum += dy[(u64)r * cols + c] *
                   ((x[(u64)r * cols + c] - moments[2 * (u64)r]) * moments[2 * (u64)r + 1]);
    sums[y][lane] = sum;
    __syncthreads();
    if (y == 0 && c < cols) {
#pragma unroll
        for (int i = 1; i < 8; ++i) sum += sums[i][lane];
        parts[(u64)blockIdx.y * cols + c] = sum;
    }
}

// One block a row turns its leading heads in place; `direction` -1 turns back. Shared: dim floats.
KERNEL rope(float* rows, const u32* positions, const float* frequencies, u32 heads, u32 dim,
            u32 row_step, u32 interleaved, float direction, float magnitude) {
    DYNAMIC_SHARED(float, turn);
    u32 half = dim / 2;
    float position = (float)positions[blockIdx.x];
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        float s, c;
        sincosf(position * frequencies[i], &s, &c);
        turn[i] = magnitude * c;
        turn[half + i] = magnitude * direction * s;
    }
    __syncthreads();
    float* row = rows + (u64)blockIdx.x * row_step;
    for (u32 p = threadIdx.x; p < heads * half; p += blockDim.x) {
        u32 head = p / half, i = p % half;
        float* at = row + head * dim;
        u32 a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        float u = at[a], v = at[b];
        at[a] = u * turn[i] - v * turn[half + i];
        at[b] = v * turn[i] + u * turn[half + i];
    }
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// One block a row and 1024 columns.
KERNEL swiglu(const float* x, float* y, u32 cols) {
    const float *gate = x + (u64)blockIdx.x * 2 * cols, *up = gate + cols;
    float* to = y + (u64)blockIdx.x * cols;
    u32 end = least(cols, blockIdx.y * 1024 + 1024);
    if (cols % 4 == 0 && aligned16(gate) && aligned16(to)) {
        for (u32 c = blockIdx.y * 1024 + threadIdx.x * 4; c < end; c += blockDim.x * 4) {
            float4 g = *(const float4*)(gate + c), u = *(const float4*)(up + c);
            *(float4*)(to + c) =
                make_float4(g.x * sigmoid(g.x) * u.x, g.y * sigmoid(g.y) * u.y,
                            g.z * sigmoid(g.z) * u.z, g.w * sigmoid(g.w) * u.w);
        }
    } else {
        for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < end; c += blockDim.x)
            to[c] = gate[c] * sigmoid(gate[c]) * up[c];
    }
}

KERNEL swiglu_backward(const float* x, const float* dy, float* dx, u32 cols) {
    const float *gate = x + (u64)blockIdx.x * 2 * cols, *up = gate + cols;
    const float* from = dy + (u64)blockIdx.x * cols;
    float *dgate = dx + (u64)blockIdx.x * 2 * cols, *dup = dgate + cols;
    u32 end = least(cols, blockIdx.y * 1024 + 1024);
    for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < end; c += blockDim.x) {
        float g = gate[c], s = sigmoid(g), d = from[c], u = up[c];
        dup[c] = d * g * s;
        dgate[c] = d * u * s * (1.0f + g * (1.0f - s));
    }
}

// (1 + tanh(z)) / 2 is the logistic function of 2 z; 1.5957692 is 2 sqrt(2 / pi).
INLINE float gelu_gate(float x) { return sigmoid(1.5957692f * (x + 0.044715f * x * x * x)); }

KERNEL gelu(const float* x, float* y, u64 count) {
    FOR_EACH(i, count) y[i] = x[i] * gelu_gate(x[i]);
}

KERNEL gelu_backward(const float* x, const float* dy, float* dx, u64 count) {
    FOR_EACH(i, count) {
        float v = x[i], s = gelu_gate(v), inner = 1.5957692f * (1.0f + 0.134145f * v * v);
        dx[i] = dy[i] * (s + v * s * (1.0f - s) * inner);
    }
}

// The four words of a counter under a key: Philox4x32-10 (Salmon et al. 2011).
INLINE void philox(u32 (&words)[4], u32 low, u32 high) {
#pragma unroll
    for (int i = 0; i < 10; ++i) {
        u64 first = (u64)words[0] * 0xd2511f53u, second = (u64)words[2] * 0xcd9e8d57u;
        words[0] = (u32)(second >> 32) ^ words[1] ^ low;
        words[1] = (u32)second;
        words[2] = (u32)(first >> 32) ^ words[3] ^ high;
        words[3] = (u32)first;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
}

// y = (or +=) scale x where the word of a number is at least the threshold, else 0. `places` are the position of each
// row and the halves of its stream. A thread has the four columns of a counter.
KERNEL dropout(const u32* places, const float* x, float* y, u64 count, u32 cols, u32 first, u32 low,
               u32 high, u32 threshold, float scale, u32 add) {
    u32 counters = (cols + 3) / 4;
    FOR_EACH(i, count) {
        u64 row = i / counters;
        u32 counter = (u32)(i % counters), begin = 4 * counter, end = least(cols - begin, 4);
        const u32* place = places + 3 * row;
        u32 words[4] = {first + counter, place[0], place[1], place[2]};
        philox(words, low, high);
        const float* from = x + row * cols + begin;
        float* to = y + row * cols + begin;
#pragma unroll
        for (u32 c = 0; c < 4; ++c) {
            if (c >= end) break;
            float v = words[c] >= threshold ? scale * from[c] : 0.0f;
            to[c] = add ? to[c] + v : v;
        }
    }
}

// dst[i] = table[rows[i]], or zeros for a row of all ones. One block a row and 1024 columns.
KERNEL gather(const u32* rows, const float* table, float* dst, u32 cols) {
    u32 row = rows[blockIdx.x];
    const float* from = table + (u64)row * cols;
    float* to = dst + (u64)blockIdx.x * cols;
    u32 end = least(cols, blockIdx.y * 1024 + 1024);
    if (row == 0xffffffffu) {
        for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < end; c += blockDim.x) to[c] = 0.0f;
    } else if (cols % 4 == 0 && aligned16(from) && aligned16(to)) {
        for (u32 c = blockIdx.y * 1024 + threadIdx.x * 4; c < end; c += blockDim.x * 4)
            *(float4*)(to + c) = *(const float4*)(from + c);
    } else {
        for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < end; c += blockDim.x) to[c] = from[c];
    }
}

// table[targets[t]] += sum over s of starts[t]..starts[t + 1] of weight * src[sources[s]], in that
// order. `weights` may be absent. One block a target and 1024 columns.
KERNEL scatter(const u32* targets, const u32* starts, const u32* sources, const float* weights,
               const float* src, float* table, u32 cols) {
    u32 begin = starts[blockIdx.x], stop = starts[blockIdx.x + 1];
    float* to = table + (u64)targets[blockIdx.x] * cols;
    u32 end = least(cols, blockIdx.y * 1024 + 1024);
    for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < end; c += blockDim.x) {
        float sum = to[c];
        for (u32 s = begin; s < stop; ++s) {
            u32 source = sources[s];
            float v = src[(u64)source * cols + c];
            sum = weights ? fmaf(weights[source], v, sum) : sum + v;
        }
        to[c] = sum;
    }
}

// dsrc[i] = (or +=) weights[i] * dout[rows[i]]. One block a row and 1024 columns.
KERNEL combine_dsrc(const u32* rows, const float* weights, const float* dout, float* dsrc,
                    u32 cols, u32 add) {
    const float* from = dout + (u64)rows[blockIdx.x] * cols;
    float* to = dsrc + (u64)blockIdx.x * cols;
    float weight = weights[blockIdx.x];
    u32 end = least(cols, blockIdx.y * 1024 + 1024);
    for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < end; c += blockDim.x)
        to[c] = add ? fmaf(weight, from[c], to[c]) : weight * from[c];
}

// dweights[i] = (or +=) src[i] . dout[rows[i]]. One block a row.
KERNEL combine_dweights(const u32* rows, const float* src, const float* dout, float* dweights,
                        u32 cols, u32 add) {
    __shared__ float part[32];
    const float *a = src + (u64)blockIdx.x * cols, *b = dout + (u64)rows[blockIdx.x] * cols;
    float sum = 0.0f;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) sum = fmaf(a[c], b[c], sum);
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) dweights[blockIdx.x] = add ? dweights[blockIdx.x] + sum : sum;
}

// Probabilities of scales[row] * x, and the log of the sum of exponentials. One block a row.
KERNEL softmax(const float* scales, const float* x, float* probs, float* logsumexp, u32 cols) {
    __shared__ float part[32];
    const float* row = x + (u64)blockIdx.x * cols;
    float* to = probs + (u64)blockIdx.x * cols;
    float scale = scales[blockIdx.x], top = -INFINITE;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) top = fmaxf(top, scale * row[c]);
    top = block_max(top, part);
    float sum = 0.0f;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
        float e = expf(scale * row[c] - top);
        to[c] = e;
        sum += e;
    }
    sum = block_sum(sum, part);
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) to[c] /= sum;
    if (threadIdx.x == 0) logsumexp[blockIdx.x] = top + logf(sum);
}

// The `top` largest logits of a row, of equals the lowest first, and the softmax over them. What is
// no number counts as the largest. One thread a row.
KERNEL route(const float* x, u32* chosen, float* weights, u32 rows, u32 experts, u32 top) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* logits = x + (u64)row * experts;
    u32* to = chosen + (u64)row * top;
    float* weight = weights + (u64)row * top;
    float last = INFINITE, sum = 0.0f;
    u32 last_at = experts;
    for (u32 i = 0; i < top; ++i) {
        u32 best = experts;
        float most = 0.0f;
        for (u32 at = 0; at < experts; ++at) {
            float key = logits[at] == logits[at] ? logits[at] : INFINITE;
            bool left = key < last || (key == last && (last_at == experts || at > last_at));
            if (left && (best == experts || key > most)) {
                best = at;
                most = key;
            }
        }
        to[i] = best;
        last = most;
        last_at = best;
        float e = expf(logits[best] - logits[to[0]]);
        weight[i] = e;
        sum += e;
    }
    for (u32 i = 0; i < top; ++i) weight[i] /= sum;
}

// dx[r, chosen[r, i]] = (or +=) w[r, i] * (dw[r, i] - sum over j of w[r, j] dw[r, j]); with `add`
// unset the others are zero. One thread an element.
KERNEL route_backward(const u32* chosen, const float* weights, const float* dweights, float* dx,
                      u64 count, u32 experts, u32 top, u32 add) {
    FOR_EACH(i, count) {
        u64 row = i / experts;
        u32 expert = (u32)(i % experts);
        const u32* own = chosen + row * top;
        const float *w = weights + row * top, *dw = dweights + row * top;
        float mean = 0.0f, value = 0.0f;
        for (u32 j = 0; j < top; ++j) mean += w[j] * dw[j];
        for (u32 j = 0; j < top; ++j)
            if (own[j] == expert) value = w[j] * (dw[j] - mean);
        dx[i] = add ? dx[i] + value : value;
    }
}
