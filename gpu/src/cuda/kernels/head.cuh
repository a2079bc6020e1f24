// Common to all kernels, and all they include. NVRTC compiles them for a device; a C++ compiler
// compiles the same files behind `emulated/host.h`, with ODEON_HOST defined.
//
// A matrix fragment is what one lane of a warp holds of a tile, as `mma.sync.m16n8k16` wants it:
// with g = lane / 4 and t = lane % 4, lane holds of
//   A [16 rows, 16 k]:  (g, 2t) (g+8, 2t) (g, 2t+8) (g+8, 2t+8), each with its right neighbour
//   B [16 k, 8 columns]: (2t, g) (2t+8, g), each with its neighbour below
//   C [16 rows, 8 columns]: (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define INLINE static __device__ __forceinline__
#define ALL_LANES 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)

#ifndef ODEON_HOST
// Shared memory whose size the launch gives.
#define DYNAMIC_SHARED(T, name)                             \
    extern __shared__ __align__(16) u8 odeon_shared_bytes[]; \
    T* name = reinterpret_cast<T*>(odeon_shared_bytes)
#endif

// The elements that a thread of a flat grid takes, one stride of the grid apart.
#define FOR_EACH(i, count)                                                                   \
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (count);                    \
         i += (u64)gridDim.x * blockDim.x)

INLINE u32 least(u32 a, u32 b) { return a < b ? a : b; }

// The functions that the text of an update rule may name.
INLINE float root(float x) { return sqrtf(x); }
INLINE float sign(float x) { return (float)((int)(x > 0.0f) - (int)(x < 0.0f)); }

INLINE bool aligned16(const void* p) { return ((u64)p & 15) == 0; }

// Two numbers rounded to bf16, to nearest even; `low` in the low half.
INLINE u32 pack_bf16(float low, float high) {
#ifdef ODEON_HOST
    return (u32)odeon_round_bf16(low) | ((u32)odeon_round_bf16(high) << 16);
#else
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

INLINE u16 to_bf16(float x) { return (u16)pack_bf16(x, 0.0f); }
INLINE float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
INLINE float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
INLINE float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Eight numbers, aligned to 16 bytes, rounded to bf16.
INLINE uint4 round_eight(const float* src) {
    float4 a = ((const float4*)src)[0], b = ((const float4*)src)[1];
    return make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
}

// c += a b for one tile of a warp, operands bf16, sums f32.
INLINE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef ODEON_HOST
    odeon_mma_bf16(c, a, b0, b1);
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four 8x8 tiles of bf16 from shared memory; lane i gives the address of row i % 8 of tile i / 8.
INLINE void load_tiles(u32 (&r)[4], const u16* row) {
#ifdef ODEON_HOST
    odeon_load_tiles(r, row, false);
#else
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#endif
}

// The same, each tile transposed.
INLINE void load_tiles_turned(u32 (&r)[4], const u16* row) {
#ifdef ODEON_HOST
    odeon_load_tiles(r, row, true);
#else
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#endif
}

// Begins to copy 16 bytes from global to shared memory; with `live` false writes zeros.
INLINE void copy16_begin(void* to_shared, const void* from, bool live) {
#ifdef ODEON_HOST
    odeon_copy16_begin(to_shared, from, live);
#else
    u32 at = (u32)__cvta_generic_to_shared(to_shared);
    u32 bytes = live ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
#endif
}

// Closes a group of begun copies.
INLINE void copy16_group() {
#ifdef ODEON_HOST
    odeon_copy16_group();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `LEFT` of this thread's groups are under way.
template <int LEFT>
INLINE void copy16_wait() {
#ifdef ODEON_HOST
    odeon_copy16_wait(LEFT);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// 2 to the power of x, as the card's own instruction gives it: to 2 units of the last place, and 0 below 2^-126.
INLINE float power_of_two(float x) {
#ifdef ODEON_HOST
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

template <class T>
INLINE T warp_sum(T v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}

INLINE float warp_max(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, o));
    return v;
}

// Sum over all threads of a block, known to all. `part` is shared memory of 32 elements.
template <class T>
INLINE T block_sum(T v, T* part) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    v = warp_sum(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? part[lane] : (T)0);
    __syncthreads();
    return v;
}

// Greatest over all threads of a block, known to all. `part` is shared memory of 32 elements.
INLINE float block_max(float v, float* part) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    v = warp_max(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = warp_max(lane < warps ? part[lane] : -INFINITE);
    __syncthreads();
    return v;
}
