// After the last layer: the structs and pieces that the kernels of head.cu and the persistent kernel of frame.cu share.
#pragma once
#include <math_constants.h>
#include "common.cuh"

constexpr int FRAME = 16;  // most tokens of a frame

// How a sequence ended; as in kernels.rs.
enum End { RUNNING = 0, STOP_HEAD = 1, AUDIO_END = 2, LENGTH = 3, NOT_FINITE = 4 };

struct Head {
    const uint8_t* rows;          // int8: [tiles][groups] tiles; bf16: [rows][hidden]
    const int* row_of;            // [tiles][16] row of each row of a tile, -1 for none; null: they are in order
    const float* row_scale;       // int8: [rows]
    const float* norm;            // [hidden]
    const float *stop_norm, *stop_norm_bias;  // [hidden]
    const float *stop_up, *stop_up_bias;      // [inner][hidden], [inner]
    const float* stop_down;                   // [inner]
    const float* embedding_scale; // [rows]
    const int8_t* embedding;      // [rows][hidden] input embedding of the audio rows, in the head's order
    const uint32_t* ids;          // [rows] token id of each row
    float stop_down_bias, logit_scale, eps;
    int bf16, count, hidden, inner, end_row;
    uint32_t first_unit;
    int quantizers, min_new_tokens;
    float stop_threshold;
    int phase_tiles, pad;         // tiles of a codebook, when row_of groups the rows by codebook
};

struct HeadBuffers {
    float* x;                     // [rows][hidden]
    Column* columns;
    float* logits;                // [columns][count]
    float* stop;                  // [columns][inner] gelu(up) * down
    float* normed;                // [columns][hidden], written when not null
    struct Sequence* sequences;   // [slots]
    struct FrameOut* out;         // [columns]
};

struct Sequence {
    float temperature;
    int top_k, max_new, step;
    uint32_t seed_low, seed_high, sequence;
    int partial;                  // codes already in the open frame
    uint32_t codes[FRAME];
};

// What one column made in one frame period.
struct FrameOut {
    int tokens, frames, end, pad;
    float stop_probability[FRAME];
    uint32_t token[FRAME];
    uint32_t code[FRAME];
};

// The tiles of one launch: all of the head, or of one codebook and the last tile, which holds `</audio>`.
struct Tiles {
    const Head& a;
    int phase;  // the codebook, or -1
    __device__ int count() const { return phase >= 0 ? a.phase_tiles + 1 : a.row_of ? a.quantizers * a.phase_tiles + 1 : (a.count + ROWS - 1) / ROWS; }
    __device__ int tile(int i) const { return phase < 0 ? i : i < a.phase_tiles ? phase * a.phase_tiles + i : a.quantizers * a.phase_tiles; }
    // Row of the head, or -1.
    __device__ int row(int i, int within) const {
        int at = tile(i) * ROWS + within;
        return a.row_of ? a.row_of[at] : at < a.count ? at : -1;
    }
};

constexpr float STOP_EPS = 1e-5f;  // of the stop head's LayerNorm

// The stop head's LayerNorm of four columns of the normed hidden state, from `at` on; `stat`: its moments, joined.
DI float4 stop_input(const Head& a, const float (&v)[4], float2 stat, int at) {
    const float4 norm = __ldg(reinterpret_cast<const float4*>(a.stop_norm + at)), bias = __ldg(reinterpret_cast<const float4*>(a.stop_norm_bias + at));
    return make_float4(__fmaf_rn((v[0] - stat.x) * stat.y, norm.x, bias.x), __fmaf_rn((v[1] - stat.x) * stat.y, norm.y, bias.y),
                       __fmaf_rn((v[2] - stat.x) * stat.y, norm.z, bias.z), __fmaf_rn((v[3] - stat.x) * stat.y, norm.w, bias.w));
}

// What a row of the stop head's inner layer adds to the logit of P(stop): gelu(sum + bias) * down.
DI float stop_term(const Head& a, int row, float sum) {
    const float z = sum + a.stop_up_bias[row];
    const float gelu = 0.5f * z * (1.f + erff(z * 0.70710678118654752f));
    return gelu * a.stop_down[row];
}

// One row of the stop head's inner layer for `columns` columns, at most 4; a whole warp calls it. `h`: their `stop_input` in shared
// memory; `to`: of the first column.
DI void stop_row(const Head& a, float* to, int columns, const float* h, int row, int lane) {
    const float* from = a.stop_up + (size_t)row * a.hidden;
    float sum[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int i = lane * 4; i < a.hidden; i += 128) {
        const uint4 bits = load_stream(from + i);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (c >= columns) break;
            const float4 v = *reinterpret_cast<const float4*>(h + c * a.hidden + i);
            sum[c] = __fmaf_rn(__uint_as_float(bits.x), v.x, sum[c]);
            sum[c] = __fmaf_rn(__uint_as_float(bits.y), v.y, sum[c]);
            sum[c] = __fmaf_rn(__uint_as_float(bits.z), v.z, sum[c]);
            sum[c] = __fmaf_rn(__uint_as_float(bits.w), v.w, sum[c]);
        }
    }
#pragma unroll 1
    for (int c = 0; c < columns; c++) {
        float z = c == 0 ? sum[0] : c == 1 ? sum[1] : c == 2 ? sum[2] : sum[3];
        z = stop_term(a, row, sum_lanes(z));
        if (lane == 0) __stcg(to + (size_t)c * a.inner + row, z);
    }
}

// Orders floats as unsigned integers; zeros of either sign are equal.
DI uint32_t order(float v) {
    uint32_t u = __float_as_uint(v + 0.f);
    return (u >> 31) ? ~u : u | 0x80000000u;
}
DI float value(uint32_t key) { return __uint_as_float((key >> 31) ? key & 0x7FFFFFFFu : ~key); }

// Philox4x32-10 (Salmon et al., 2011), first word.
DI uint32_t philox(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2) {
    uint32_t c3 = 0;
#pragma unroll 1
    for (int i = 0; i < 10; i++) {
        uint32_t hi0 = __umulhi(0xD2511F53u, c0), lo0 = 0xD2511F53u * c0, hi1 = __umulhi(0xCD9E8D57u, c2), lo1 = 0xCD9E8D57u * c2;
        c0 = hi1 ^ c1 ^ key0, c1 = lo1, c2 = hi0 ^ c3 ^ key1, c3 = lo0;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return c0;
}

// What a row among the k best scores: its logit, or logit / temperature + Gumbel noise, a function of (seed, sequence, step, row).
DI double chance(const Sequence& seq, float logit, int row) {
    if (seq.temperature == 0.f) return (double)logit;
    double noise = (philox(seq.seed_low, seq.seed_high, row, seq.step, seq.sequence) + 0.5) / 4294967296.0;
#pragma unroll 1
    for (int i = 0; i < 2; i++) noise = -log(noise);  // code that runs once a token comes from far away: the less, the sooner
    return (double)logit / (double)seq.temperature + noise;
}

// Appends a token to the output and to the open frame, as `engine::frames` does.
DI void record(const Head& a, Sequence& seq, FrameOut& out, uint32_t id) {
    out.token[out.tokens++] = id;
    uint32_t unit = id - a.first_unit, units = a.count - 1;
    if (unit >= units) {
        seq.partial = 0;
        return;
    }
    int quantizer = unit % a.quantizers;
    if (quantizer != seq.partial) seq.partial = 0;
    if (quantizer == seq.partial) seq.codes[seq.partial++] = unit / a.quantizers;
    if (seq.partial == a.quantizers) {
        for (int i = 0; i < a.quantizers; i++) out.code[i] = seq.codes[i];
        out.frames = 1;
        seq.partial = 0;
    }
}

static_assert(sizeof(Head) == 152 && sizeof(HeadBuffers) == 56 && sizeof(Sequence) == 96 && sizeof(FrameOut) == 208, "as in kernels.rs");
