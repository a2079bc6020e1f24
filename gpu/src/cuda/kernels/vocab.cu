// The fused vocabulary operation over one chunk of logits: row r of a chunk holds the logits of the
// entries start .. start + cols.

#define HELD 16  // logits of a row that a thread holds: as many threads as it takes for a chunk

// Adds a chunk to each row's [maximum, sum of e^(z - max), sum of e^(z - max) (z - max)], and takes
// the label's logit when it stands in the chunk. One block a row, of at least cols / HELD threads: logits are
// read once.
KERNEL vocab_fold(const float* logits, u32 cols, u32 start, const u32* labels, float* sums,
                  float* picked) {
    __shared__ float part[32];
    const float* row = logits + (u64)blockIdx.x * cols;
    float* held = sums + (u64)blockIdx.x * 3;
    float old_top = start == 0 ? -INFINITE : held[0];
    float z[HELD], top = old_top;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        u32 c = threadIdx.x + i * blockDim.x;
        z[i] = c < cols ? row[c] : -INFINITE;
        top = fmaxf(top, z[i]);
    }
    top = block_max(top, part);
    float sum = 0.0f, weighted = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (threadIdx.x + i * blockDim.x >= cols) continue;
        float below = z[i] - top, e = expf(below);
        sum += e;
        weighted = fmaf(e, below, weighted);
    }
    sum = block_sum(sum, part);
    weighted = block_sum(weighted, part);
    if (threadIdx.x == 0) {
        if (start != 0) {
            float shift = old_top - top, keep = expf(shift);
            weighted += (held[2] + shift * held[1]) * keep;
            sum += held[1] * keep;
        }
        held[0] = top;
        held[1] = sum;
        held[2] = weighted;
        u32 label = labels[blockIdx.x];
        if (label >= start && label - start < cols) picked[blockIdx.x] = row[label - start];
    }
}

KERNEL vocab_finish(const float* sums, float* logprob, float* entropy, float* logsumexp,
                    u32 rows) {
    u32 r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float top = sums[3 * r], sum = sums[3 * r + 1], weighted = sums[3 * r + 2];
    float lse = top + logf(sum);
    logsumexp[r] = lse;
    entropy[r] = logf(sum) - weighted / sum;
    logprob[r] -= lse;
}

// The gradient of a logit. `dlogprob` and `dentropy` may be absent.
INLINE float logit_gradient(float z, float lse, float entropy, float dlogprob, float dentropy) {
    float logp = z - lse;
    return -expf(logp) * fmaf(dentropy, logp + entropy, dlogprob);
}

// Logits turn into their gradient, in place. One block a row.
KERNEL vocab_gradient(float* logits, u32 cols, u32 start, const u32* labels, const float* lse,
                      const float* entropy, const float* dlogprob, const float* dentropy) {
    u32 r = blockIdx.x;
    float* row = logits + (u64)r * cols;
    float dl = dlogprob ? dlogprob[r] : 0.0f, de = dentropy ? dentropy[r] : 0.0f;
    u32 label = labels[r] - start;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
        float g = logit_gradient(row[c], lse[r], entropy[r], dl, de);
        row[c] = c == label ? g + dl : g;
    }
}

// The same, rounded to bf16 rows of `ld` elements, a multiple of 8; zeros beyond `cols`.
KERNEL vocab_gradient_bf16(const float* logits, u32 cols, u32 start, const u32* labels,
                           const float* lse, const float* entropy, const float* dlogprob,
                           const float* dentropy, u16* out, u32 ld) {
    u32 r = blockIdx.x;
    const float* row = logits + (u64)r * cols;
    u16* to = out + (u64)r * ld;
    float dl = dlogprob ? dlogprob[r] : 0.0f, de = dentropy ? dentropy[r] : 0.0f;
    u32 label = labels[r] - start;
    float log_sum = lse[r], mean = entropy[r];
    bool vector = cols % 4 == 0 && aligned16(row);
    for (u32 c = threadIdx.x * 4; c < ld; c += blockDim.x * 4) {
        float g[4];
        if (vector && c < cols) {
            *(float4*)g = *(const float4*)(row + c);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) g[i] = c + i < cols ? row[c + i] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            g[i] = c + i < cols ? logit_gradient(g[i], log_sum, mean, dl, de) : 0.0f;
            if (c + i == label && c + i < cols) g[i] += dl;
        }
        *(uint2*)(to + c) = make_uint2(pack_bf16(g[0], g[1]), pack_bf16(g[2], g[3]));
    }
}
