// What every kernel shares: the layout of weights and activations, the int4 and int8 products, LayerNorm.
//
// Meaning of a product ("docs/architecture.md", "What an int4 product means"): an activation vector is rounded, per group of
// 128 columns, to 16-bit integers q = 256 * hi + lo with two signed bytes; the tensor cores multiply the bytes exactly, and
// the groups are folded in f32 in a fixed order. hi and lo of one sequence are two neighbouring columns of the tensor core's
// B operand, so a tile of 8 columns holds 4 sequences. A column's result never depends on its neighbours.
//
// Here "column" is one (sequence, position) that goes through the model in this launch: a slot when decoding, a position of
// the prompt when prefilling. Both run the same arithmetic, so decoding and prefilling agree bit for bit.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>
#include "twin.cuh"
#define DI static __device__ __forceinline__

constexpr int GROUP = 128;          // columns that share a scale and a minimum
constexpr int WARPS = 16;           // warps of a matrix block; warp w owns groups w, w + 16, ...
constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16;            // rows of a tile, the tensor core's M
constexpr int TILE4 = 1088;         // bytes of a 16 x 128 int4 tile: 1024 of codes, 64 of (scale, min) pairs
constexpr int TILE8 = 2048;         // bytes of a 16 x 128 int8 tile
constexpr int FRAGMENT = 256;       // words of 4 columns x 128 activations in the tensor core's order
constexpr unsigned ALL = 0xFFFFFFFFu;

// One (sequence, position) of a launch.
struct __align__(16) Column {
    int slot;      // whose cache
    int position;  // where in the sequence; between passes, of the newest token in the cache
    int live;      // 0: the sequence has ended, write nothing
    int row;       // row of the residual stream x
};

// Rounded activations, in n-tiles of 4 columns by one group: `words` [256] each, `scales` [4] = (s, s * sum of q).
struct Digits {
    uint32_t* words;
    float2* scales;
    int groups;
    int beside;  // 1: tiles are [n-tile][group], in the order of mma.sync; more: [n-tile / beside][group][beside], in that of wgmma
};
DI int digit_tile(const Digits& d, int column, int group) {
    const int tile = column >> 2;
    return d.beside == 1 ? tile * d.groups + group : (tile / d.beside * d.groups + group) * d.beside + tile % d.beside;
}

// ---- programmatic dependent launch (compute capability 9.0 and up; nothing below) ----------------------------------------
// A kernel lets the next one start at once, prefetches weights, and waits before it touches anything another kernel writes.
DI void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DI void wait_prerequisites() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Counts arrivals at `counter` and wraps to 0 after `n` of them; true for the last. Orders memory both ways.
DI bool arrive_last(unsigned* counter, unsigned n) {
    unsigned old;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(n - 1) : "memory");
    return old == n - 1;
}

// Adds to a counter after everything this thread has seen written; waits for a counter and what was written before it. A wait that
// takes seconds is a fault: it stops the kernel, and the driver reports it.
DI void signal(unsigned* counter) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory"); }
DI void await(const unsigned* counter, unsigned count) {
    unsigned now;
    for (int spins = 0;; spins++) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
        if (now >= count) break;
        if (spins > 1 << 23) __trap();
    }
}

// Says and waits for the number of a layer.
DI void say_layer(unsigned* number, int layer) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(number), "r"(layer) : "memory"); }
DI void await_layer(const unsigned* number, int layer) {
    unsigned now;
    for (int spins = 0;; spins++) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(number) : "memory");
        if (now == (unsigned)layer) break;
        if (spins > 1 << 23) __trap();
    }
}

// ---- loads -----------------------------------------------------------------------------------------------------------------
// Weights are read once a token: keep them out of L1.
DI uint4 load_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DI uint2 load_stream2(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

DI void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// Asks for 16 bytes, past L1, into shared memory.
DI void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

// A lane's share of a 16 x 128 int4 tile. Lane (g = lane / 4, t = lane % 4) holds rows g and g + 8. Byte i of a word is
// column 4t + i of a step of 32 columns in its low nibble and of the next step in its high nibble.
struct Tile4 {
    uint4 a, b;  // steps 0 and 1, steps 2 and 3; words: (row g, +0), (g + 8, +0), (g, +16), (g + 8, +16)
    uint2 s;     // (scale, min) of row g, of row g + 8, f16
};
DI Tile4 load_tile4(const uint8_t* tile, int lane) {
    if (!READS_WEIGHTS) return {make_uint4(lane, lane, lane, lane), make_uint4(lane, lane, lane, lane), make_uint2(lane, lane)};
    return {load_stream(tile + lane * 16), load_stream(tile + 512 + lane * 16), load_stream2(tile + 1024 + (lane >> 2) * 8)};
}

// A warp's own ring of int4 tiles in shared memory: DEPTH tiles are under way while one is used, and no registers hold them.
// Only the owning warp touches it, so it needs no barrier.
template <int DEPTH> struct Ring {
    static constexpr int BYTES = DEPTH * TILE4;
    uint8_t* slots;  // [DEPTH][TILE4], 16-byte aligned
    int slot;        // of the oldest tile

    // Asks for a tile, or for nothing when `tile` is null; either way it is the next to come.
    __device__ __forceinline__ void push(int to_slot, const uint8_t* tile, int lane) const {
        if (tile && READS_WEIGHTS) {
            uint32_t to = (uint32_t)__cvta_generic_to_shared(slots + to_slot * TILE4);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + lane * 16), "l"(tile + lane * 16) : "memory");
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 512 + lane * 16), "l"(tile + 512 + lane * 16) : "memory");
            if (lane < 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 1024 + lane * 16), "l"(tile + 1024 + lane * 16) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    // Fills the ring with the first tiles: tile_at(0), tile_at(1), ...
    template <class TileAt> __device__ __forceinline__ void fill(TileAt tile_at, int lane) const {
        for (int i = 0; i < DEPTH; i++) push(i, tile_at(i), lane);
    }
    // Takes the oldest tile and asks for `next` in its place.
    __device__ __forceinline__ Tile4 take(const uint8_t* next, int lane) {
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
        __syncwarp();
        const uint8_t* from = slots + slot * TILE4;
        Tile4 t;
        t.a = *reinterpret_cast<const uint4*>(from + lane * 16);
        t.b = *reinterpret_cast<const uint4*>(from + 512 + lane * 16);
        t.s = *reinterpret_cast<const uint2*>(from + 1024 + (lane >> 2) * 8);
        __syncwarp();
        push(slot, next, lane);
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
        return t;
    }
};

// A lane's share of a 16 x 128 int8 tile: one word quadruple per step of 32 columns.
struct Tile8 {
    uint4 step[4];
};
DI Tile8 load_tile8(const uint8_t* tile, int lane) {
    Tile8 t;
#pragma unroll
    for (int s = 0; s < 4; s++) t.step[s] = !READS_WEIGHTS ? make_uint4(lane, s, lane, s) : load_stream(tile + s * 512 + lane * 16);
    return t;
}

// ---- products --------------------------------------------------------------------------------------------------------------
DI void mma_u8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DI void mma_s8(int (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// The codes of a tile apart: high nibbles stay in place, 16 * code, and get an accumulator of their own.
struct Codes4 {
    uint4 a_low, a_high, b_low, b_high;
    uint2 s;
};
DI Codes4 unpack(const Tile4& t) {
    constexpr uint32_t LOW = 0x0F0F0F0Fu, HIGH = 0xF0F0F0F0u;
    return {make_uint4(t.a.x & LOW, t.a.y & LOW, t.a.z & LOW, t.a.w & LOW), make_uint4(t.a.x & HIGH, t.a.y & HIGH, t.a.z & HIGH, t.a.w & HIGH),
            make_uint4(t.b.x & LOW, t.b.y & LOW, t.b.z & LOW, t.b.w & LOW), make_uint4(t.b.x & HIGH, t.b.y & HIGH, t.b.z & HIGH, t.b.w & HIGH), t.s};
}

// Folds one group of one column into the partial sums of rows g and g + 8. `x` is the column tile's fragment, `s` the
// scales of column lane % 4, for which this lane holds the sums.
DI void fold_codes4(const Codes4& t, const uint32_t (&x)[8], float2 s, float (&p)[2]) {
    if (!MULTIPLIES) return;
    int l[4] = {0, 0, 0, 0}, u[4] = {0, 0, 0, 0};
    mma_u8(l, t.a_low.x, t.a_low.y, t.a_low.z, t.a_low.w, x[0], x[1]);
    mma_u8(u, t.a_high.x, t.a_high.y, t.a_high.z, t.a_high.w, x[2], x[3]);
    mma_u8(l, t.b_low.x, t.b_low.y, t.b_low.z, t.b_low.w, x[4], x[5]);
    mma_u8(u, t.b_high.x, t.b_high.y, t.b_high.z, t.b_high.w, x[6], x[7]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int sum = (l[2 * r] * 256 + l[2 * r + 1]) + ((u[2 * r] * 256 + u[2 * r + 1]) >> 4);  // exact: a multiple of 16
        uint32_t pair = r ? t.s.y : t.s.x;
        float2 w = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        p[r] = __fmaf_rn(__fmul_rn(w.x, s.x), __int2float_rn(sum), p[r]);
        p[r] = __fmaf_rn(w.y, s.y, p[r]);
    }
}
DI void fold_tile4(const Tile4& t, const uint32_t (&x)[8], float2 s, float (&p)[2]) { fold_codes4(unpack(t), x, s, p); }
DI void fold_tile8(const Tile8& t, const uint32_t (&x)[8], float2 s, float (&p)[2]) {
    if (!MULTIPLIES) return;
    int c[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) mma_s8(c, t.step[i], x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int r = 0; r < 2; r++) p[r] = __fmaf_rn(s.x, __int2float_rn(c[2 * r] * 256 + c[2 * r + 1]), p[r]);
}

// Adds as `plain::sum_lanes`: each four in order, then the four sums.
DI float sum_fours(const float (&v)[WARPS]) {
    float y = ((v[0] + v[1]) + v[2]) + v[3];
#pragma unroll
    for (int w = 4; w < WARPS; w += 4) y += ((v[w] + v[w + 1]) + v[w + 2]) + v[w + 3];
    return y;
}
// The same of the warps' partial sums; `p` points at warp 0's, `stride` floats apart. The others of 16 are 0.
DI float sum_warps(const float* p, int stride, int warps) {
    float v[WARPS];
    if (warps == WARPS) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) v[w] = p[w * stride];  // all on their way at once
        return sum_fours(v);
    }
    float y = 0, four = 0;
    for (int w = 0; w < warps; w++) {
        four = w % 4 ? four + p[w * stride] : p[w * stride];
        if (w % 4 == 3 || w == warps - 1) y = w < 4 ? four : y + four;
    }
    return y;
}

// ---- rounding activations to digits ------------------------------------------------------------------------------------------
// x / s, correctly rounded, by two corrections of x * (1 / s) (Markstein, 1990); `inverse` is 1 / s, correctly rounded, and s
// so large that nothing on the way is subnormal.
DI float quotient(float x, float s, float inverse) {
    float q = __fmul_rn(x, inverse);
    q = __fmaf_rn(__fmaf_rn(-q, s, x), inverse, q);
    return __fmaf_rn(__fmaf_rn(-q, s, x), inverse, q);
}
constexpr float LEAST_FAST_MAXIMUM = 1e-20f;

// A whole warp rounds one group; the lane holds columns 4 lane .. 4 lane + 3. `words` is the fragment of the group's
// n-tile, `scales` its four pairs, `c` the column within the n-tile, `order` that of Digits::beside. `real`: 0 leaves nothing behind.
DI void store_digits(const float (&v)[4], uint32_t* words, float2* scales, int c, int lane, int order = 1, bool real = true) {
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) m = max(m, __float_as_uint(fabsf(v[i])));
    const float most = __uint_as_float(__reduce_max_sync(ALL, m));
    int q[4];
    float s;
    if (most > LEAST_FAST_MAXIMUM && most < INFINITY) {  // no quotient is beyond 32512 * (1 + 2^-23)
        s = quotient(most, 32512.f, 1.f / 32512.f);
        const float inverse = __frcp_rn(s);
#pragma unroll
        for (int i = 0; i < 4; i++) q[i] = __float2int_rn(quotient(v[i], s, inverse));
    } else {
        s = __fdiv_rn(most, 32512.f);
#pragma unroll
        for (int i = 0; i < 4; i++) q[i] = s > 0.f ? max(-32512, min(32512, __float2int_rn(__fdiv_rn(v[i], s)))) : 0;
    }
    const int sum = __reduce_add_sync(ALL, (q[0] + q[1]) + (q[2] + q[3]));
    uint32_t lo = __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
#pragma unroll
    for (int i = 0; i < 4; i++) q[i] += 128;  // so that lo is a signed byte: hi = (q + 128) >> 8
    uint32_t hi = __byte_perm(__byte_perm(q[0], q[1], 0x0051), __byte_perm(q[2], q[3], 0x0051), 0x5410);
    if (!real) return;
    // mma.sync: [digit of a column][4 activations of 16][16 of 128]; wgmma: [16 of 128][digit of a column][4 of 16].
    const int at = order == 1 ? (c * 8 + (lane & 3)) * 8 + (lane >> 2) : (lane >> 2) * 32 + c * 8 + (lane & 3);
    words[at] = hi;
    words[at + (order == 1 ? 32 : 4)] = lo;
    if (lane == 0) scales[c] = make_float2(s, __fmul_rn(s, __int2float_rn(sum)));
}

// The same from global memory that another block of a running kernel wrote: past L1.
DI void load_fragment_fresh(const uint32_t* words, int lane, int columns, uint32_t (&x)[8]) {
    uint4 a = make_uint4(0, 0, 0, 0), b = a;
    if ((lane >> 3) < columns) a = __ldcg(reinterpret_cast<const uint4*>(words + lane * 8)), b = __ldcg(reinterpret_cast<const uint4*>(words + lane * 8 + 4));
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// The lane's B operand of one group; zeros for columns from `columns` on.
DI void load_fragment(const uint32_t* words, int lane, int columns, uint32_t (&x)[8]) {
    if ((lane >> 3) < columns) {
        uint4 a = *reinterpret_cast<const uint4*>(words + lane * 8), b = *reinterpret_cast<const uint4*>(words + lane * 8 + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = 0;
    }
}

// e^x as `engine::cpu::plain::exp`, bit for bit.
DI float exp_plain(float x) {
    x = x < -87.f ? -87.f : x;  // comparisons, so that NaN stays NaN
    x = x > 88.f ? 88.f : x;
    float power = rintf(__fmul_rn(x, 1.44269504f));
    float r = __fmaf_rn(-power, -2.12194440e-4f, __fmaf_rn(-power, 0.693359375f, x));
    float sum = 1.9875691500e-4f;
    sum = __fmaf_rn(sum, r, 1.3981999507e-3f);
    sum = __fmaf_rn(sum, r, 8.3334519073e-3f);
    sum = __fmaf_rn(sum, r, 4.1665795894e-2f);
    sum = __fmaf_rn(sum, r, 1.6666665459e-1f);
    sum = __fmaf_rn(sum, r, 0.5f);
    float value = __fadd_rn(__fmaf_rn(sum, __fmul_rn(r, r), r), 1.f);
    return __fmul_rn(value, __int_as_float((__float2int_rn(power) + 127) << 23));
}

// ---- LayerNorm ---------------------------------------------------------------------------------------------------------------
DI float sum_lanes(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
    return v;
}

// Mean and sum of squared deviations of the 128 values a warp holds, four a lane.
DI float2 group_moments(const float (&v)[4]) {
    float mean = sum_lanes((v[0] + v[1]) + (v[2] + v[3])) * (1.f / GROUP), m2 = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float d = v[i] - mean;
        m2 = __fmaf_rn(d, d, m2);
    }
    return make_float2(mean, sum_lanes(m2));
}

// Joins the groups' moments (Chan et al., 1979), in index order: (mean, 1 / standard deviation). `moments` has room for 16.
DI float2 join_moments(const float2* moments, int groups, float eps) {
    float mean = 0, m2 = 0, between = 0;
    auto join = [&](int g) {
        const float2 m = moments[g];
        const float d = m.x - mean;
        m2 += m.y;
        between = __fmaf_rn(d, d, between);
    };
    float variance;
    if (groups == WARPS) {  // divisions by powers of two: products have the same bits
#pragma unroll 8
        for (int g = 0; g < WARPS; g++) mean += moments[g].x;
        mean = __fmul_rn(mean, 1.f / WARPS);
#pragma unroll 8
        for (int g = 0; g < WARPS; g++) join(g);
        variance = __fmul_rn(__fmaf_rn(between, (float)GROUP, m2), 1.f / (WARPS * GROUP));
    } else {
#pragma unroll 1
        for (int g = 0; g < groups; g++) mean += moments[g].x;
        mean = __fdiv_rn(mean, (float)groups);
#pragma unroll 1
        for (int g = 0; g < groups; g++) join(g);
        variance = __fdiv_rn(__fmaf_rn(between, (float)GROUP, m2), (float)(groups * GROUP));
    }
    return make_float2(mean, __frsqrt_rn(variance + eps));
}

DI void load4(const float* p, float (&v)[4]) {
    float4 t = __ldcg(reinterpret_cast<const float4*>(p));  // another block wrote it: past L1
    v[0] = t.x, v[1] = t.y, v[2] = t.z, v[3] = t.w;
}
// The same; loads stay where they are written, before what uses them.
DI void load4_in_order(const float* p, float (&v)[4]) {
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(p) : "memory");
}
DI void normalize_by(float (&v)[4], float2 stat, float4 w) {
    v[0] = (v[0] - stat.x) * stat.y * w.x;
    v[1] = (v[1] - stat.x) * stat.y * w.y;
    v[2] = (v[2] - stat.x) * stat.y * w.z;
    v[3] = (v[3] - stat.x) * stat.y * w.w;
}
DI void normalize(float (&v)[4], float2 stat, const float* weight) { normalize_by(v, stat, __ldg(reinterpret_cast<const float4*>(weight))); }
