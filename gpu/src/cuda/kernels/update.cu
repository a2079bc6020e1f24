// One step of an update rule over a run of the flat buffers. Before this text stand, made of the rule:
// the kernel's name, the buffers that it keeps, its numbers, and `ELEMENT(e)`, which applies the rule to
// one element of `p`, `g` and `s`. Where there is a bf16 copy of the parameters, it is written too.
KERNEL RULE(float* params, const float* grads, BUFFERS u16* copy, u64 start, u64 count NUMBERS) {
    float* const states[STATES + 1] = {POINTERS};
    // Groups of four by their place in the buffers, which are aligned; those at the ends in part.
    u64 first = start / 4, groups = (start + count + 3) / 4 - first;
    FOR_EACH(i, groups) {
        u64 at = (first + i) * 4;
        bool whole = at >= start && at + 4 <= start + count;
        float p[4], g[4], s[STATES + 1][4];
        if (whole) {
            *(float4*)p = *(const float4*)(params + at);
            *(float4*)g = *(const float4*)(grads + at);
#pragma unroll
            for (int k = 0; k < STATES; ++k) *(float4*)s[k] = *(const float4*)(states[k] + at);
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                bool in = at + e >= start && at + e < start + count;
                p[e] = in ? params[at + e] : 0.0f;
                g[e] = in ? grads[at + e] : 0.0f;
#pragma unroll
                for (int k = 0; k < STATES; ++k) s[k][e] = in ? states[k][at + e] : 0.0f;
            }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) ELEMENT(e);
        if (whole) {
            *(float4*)(params + at) = *(const float4*)p;
#pragma unroll
            for (int k = 0; k < STATES; ++k) *(float4*)(states[k] + at) = *(const float4*)s[k];
            if (copy)
                *(uint2*)(copy + at) = make_uint2(pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3]));
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (at + e < start || at + e >= start + count) continue;
                params[at + e] = p[e];
#pragma unroll
                for (int k = 0; k < STATES; ++k) states[k][at + e] = s[k][e];
                if (copy) copy[at + e] = to_bf16(p[e]);
            }
        }
    }
}
