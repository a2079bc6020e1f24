// Flat buffers: updates, reductions, conversion. Four elements a thread where addresses allow it.

KERNEL fill(float* dst, float value, u64 count) {
    if (aligned16(dst)) {
        FOR_EACH(i, count / 4) ((float4*)dst)[i] = make_float4(value, value, value, value);
        FOR_EACH(i, count % 4) dst[count / 4 * 4 + i] = value;
    } else {
        FOR_EACH(i, count) dst[i] = value;
    }
}

KERNEL scale(float factor, float* dst, u64 count) {
    if (aligned16(dst)) {
        FOR_EACH(i, count / 4) {
            float4 v = ((float4*)dst)[i];
            ((float4*)dst)[i] =
                make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w);
        }
        FOR_EACH(i, count % 4) dst[count / 4 * 4 + i] *= factor;
    } else {
        FOR_EACH(i, count) dst[i] *= factor;
    }
}

KERNEL axpy(float factor, const float* src, float* dst, u64 count) {
    if (aligned16(src) && aligned16(dst)) {
        FOR_EACH(i, count / 4) {
            float4 s = ((const float4*)src)[i], d = ((float4*)dst)[i];
            ((float4*)dst)[i] = make_float4(fmaf(factor, s.x, d.x), fmaf(factor, s.y, d.y),
                                            fmaf(factor, s.z, d.z), fmaf(factor, s.w, d.w));
        }
        FOR_EACH(i, count % 4) {
            u64 at = count / 4 * 4 + i;
            dst[at] = fmaf(factor, src[at], dst[at]);
        }
    } else {
        FOR_EACH(i, count) dst[i] = fmaf(factor, src[i], dst[i]);
    }
}

// Two numbers in each word of dst, as bf16.
KERNEL narrow(const float* src, u32* dst, u64 count) {
    FOR_EACH(i, count) dst[i] = pack_bf16(src[2 * i], src[2 * i + 1]);
}

// The other way round.
KERNEL widen(const u32* src, float* dst, u64 count) {
    FOR_EACH(i, count) {
        u32 pair = src[i];
        dst[2 * i] = low_bf16(pair);
        dst[2 * i + 1] = high_bf16(pair);
    }
}

// One block a row and 1024 columns.
KERNEL add_bias(const float* bias, float* rows, u32 cols) {
    float* row = rows + (u64)blockIdx.x * cols;
    for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < least(cols, blockIdx.y * 1024 + 1024);
         c += blockDim.x)
        row[c] += bias[c];
}

// parts[y, cols] = sums over every gridDim.y-th group of 8 rows. Blocks of 32 columns by 8 rows.
KERNEL column_sums(const float* rows, u32 count, u32 cols, float* parts) {
    __shared__ float sums[8][33];
    u32 x = threadIdx.x & 31, y = threadIdx.x >> 5, c = blockIdx.x * 32 + x;
    float sum = 0.0f;
    if (c < cols)
        for (u32 r = blockIdx.y * 8 + y; r < count; r += gridDim.y * 8)
            sum += rows[(u64)r * cols + c];
    sums[y][x] = sum;
    __syncthreads();
    if (y == 0 && c < cols) {
#pragma unroll
        for (int i = 1; i < 8; ++i) sum += sums[i][x];
        parts[(u64)blockIdx.y * cols + c] = sum;
    }
}

// dst[cols] += sum over parts, in their order.
KERNEL add_parts(const float* parts, u32 count, u32 cols, float* dst) {
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) return;
    float sum = dst[c];
    for (u32 i = 0; i < count; ++i) sum += parts[(u64)i * cols + c];
    dst[c] = sum;
}

// parts[block] = sum of squares of the block's elements.
KERNEL square_parts(const float* src, u64 count, double* parts) {
    __shared__ double part[32];
    double sum = 0.0;
    if (aligned16(src)) {
        FOR_EACH(i, count / 4) {
            float4 v = ((const float4*)src)[i];
            sum += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + (double)v.w * v.w;
        }
        FOR_EACH(i, count % 4) {
            double v = src[count / 4 * 4 + i];
            sum += v * v;
        }
    } else {
        FOR_EACH(i, count) sum += (double)src[i] * src[i];
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block: out = sum of parts.
KERNEL add_squares(const double* parts, u32 count, double* out) {
    __shared__ double part[32];
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) *out = sum;
}

// dst = src rounded to bf16, with the same alignment of elements on both sides.
KERNEL round_flat(const float* src, u16* dst, u64 count) {
    if (aligned16(src) && aligned16(dst)) {
        FOR_EACH(i, count / 8) ((uint4*)dst)[i] = round_eight(src + 8 * i);
        FOR_EACH(i, count % 8) dst[count / 8 * 8 + i] = to_bf16(src[count / 8 * 8 + i]);
    } else {
        FOR_EACH(i, count) dst[i] = to_bf16(src[i]);
    }
}

// Matrices of a batch with any steps as bf16 rows of `ld` elements, a multiple of 8; those beyond
// `cols` are zero. One block a row (x), 1024 columns (y) and matrix (z).
KERNEL round_rows(const float* src, u64 row_step, u64 col_step, u64 batch_step, u32 cols, u16* dst,
                  u32 ld, u64 dst_batch) {
    const float* row = src + blockIdx.z * batch_step + blockIdx.x * row_step;
    u16* to = dst + blockIdx.z * dst_batch + (u64)blockIdx.x * ld;
    u32 end = least(ld, blockIdx.y * 1024 + 1024);
    bool vector = col_step == 1 && aligned16(row);
    for (u32 c = blockIdx.y * 1024 + threadIdx.x * 4; c < end; c += blockDim.x * 4) {
        float v[4];
        if (vector && c + 4 <= cols) {
            float4 four = *(const float4*)(row + c);
            v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = c + i < cols ? row[(c + i) * col_step] : 0.0f;
        }
        *(uint2*)(to + c) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
}

// The same without rounding, for steps that no library takes.
KERNEL gather_rows(const float* src, u64 row_step, u64 col_step, u64 batch_step, u32 cols,
                   float* dst, u64 dst_batch) {
    const float* row = src + blockIdx.z * batch_step + blockIdx.x * row_step;
    float* to = dst + blockIdx.z * dst_batch + (u64)blockIdx.x * cols;
    for (u32 c = blockIdx.y * 1024 + threadIdx.x; c < least(cols, blockIdx.y * 1024 + 1024);
         c += blockDim.x)
        to[c] = row[c * col_step];
}
