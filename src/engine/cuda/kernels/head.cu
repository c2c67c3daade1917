// After the last layer: final LayerNorm, audio head (int8 or bf16), stop head, and the choice of the next token.
#include <cuda_bf16.h>
#include <math_constants.h>
#include "common.cuh"

constexpr int FRAME = 16;             // most tokens of a frame
constexpr int FAST_K = 128;           // top-k up to here is found through the maxima of 128 classes of rows
constexpr int CANDIDATES = 2048;      // rows the choice may have to compare
constexpr int CHOICE_THREADS = 1024;
constexpr int HELD = 20;              // logits a thread holds: 20,480 rows

// How a sequence ended; as in kernels.rs.
enum End { RUNNING = 0, STOP_HEAD = 1, AUDIO_END = 2, LENGTH = 3, NOT_FINITE = 4 };

struct Head {
    const uint8_t* rows;          // int8: [tiles][groups] tiles; bf16: [rows][hidden]
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

// ---- scores ------------------------------------------------------------------------------------------------------------------

// One row of the stop head's inner layer for every column; a whole warp calls it. `h`: normed hidden states in shared memory;
// `stats`: their own moments, joined.
DI void stop_row(const Head& a, const HeadBuffers& b, int columns, const float* h, const float2* stats, int row, int lane) {
    const float* from = a.stop_up + (size_t)row * a.hidden;
    for (int c = 0; c < columns; c++) {
        float sum = 0;
        const float2 stat = stats[c];
#pragma unroll 8
        for (int i = lane * 4; i < a.hidden; i += 128) {
            uint4 bits = load_stream(from + i);
            float4 norm = __ldg(reinterpret_cast<const float4*>(a.stop_norm + i)), bias = __ldg(reinterpret_cast<const float4*>(a.stop_norm_bias + i));
            float4 v = *reinterpret_cast<const float4*>(h + c * a.hidden + i);
            sum = __fmaf_rn(__uint_as_float(bits.x), __fmaf_rn((v.x - stat.x) * stat.y, norm.x, bias.x), sum);
            sum = __fmaf_rn(__uint_as_float(bits.y), __fmaf_rn((v.y - stat.x) * stat.y, norm.y, bias.y), sum);
            sum = __fmaf_rn(__uint_as_float(bits.z), __fmaf_rn((v.z - stat.x) * stat.y, norm.z, bias.z), sum);
            sum = __fmaf_rn(__uint_as_float(bits.w), __fmaf_rn((v.w - stat.x) * stat.y, norm.w, bias.w), sum);
        }
        float z = sum_lanes(sum) + a.stop_up_bias[row];
        float gelu = 0.5f * z * (1.f + erff(z * 0.70710678118654752f));
        if (lane == 0) __stcg(b.stop + c * a.inner + row, gelu * a.stop_down[row]);
    }
}

// Grid: any number of blocks; block: 512 threads; at most 8 columns. Rows of the stop head are dealt to the blocks one by one,
// tiles of 16 rows of the audio head likewise; `round` tiles' partial sums fit the shared memory. Dynamic shared memory: h
// [columns][hidden] floats, words [n-tiles][groups][256], scales [n-tiles][groups][4], part [round][groups][columns][16] floats.
extern "C" __global__ void __launch_bounds__(THREADS, 1) scores(const __grid_constant__ Head a, const __grid_constant__ HeadBuffers b, int columns, int round) {
    extern __shared__ __align__(16) uint8_t head_shared[];
    __shared__ float2 moments[8 * WARPS];
    __shared__ float2 stats[8];
    const int groups = a.hidden / GROUP, w = threadIdx.x >> 5, lane = threadIdx.x & 31, column_tiles = (columns + 3) / 4, blocks = gridDim.x;
    float* h = reinterpret_cast<float*>(head_shared);
    uint32_t* words = reinterpret_cast<uint32_t*>(h + columns * a.hidden);
    float2* scales = reinterpret_cast<float2*>(words + column_tiles * groups * FRAGMENT);
    float* part = reinterpret_cast<float*>(scales + column_tiles * groups * 4);
    const int tiles = (a.count + ROWS - 1) / ROWS, n = (tiles - (int)blockIdx.x + blocks - 1) / blocks;
    launch_dependents();
    Tile8 ahead[2];
    auto fetch = [&](Tile8& to, int i) {
        if (!a.bf16 && i < n && w < groups) to = load_tile8(a.rows + ((size_t)(blockIdx.x + i * blocks) * groups + w) * TILE8, lane);
    };
    fetch(ahead[0], 0);
    fetch(ahead[1], 1);
    wait_prerequisites();
    int live = 0;
    for (int c = 0; c < columns; c++) live |= b.columns[c].live;
    if (!live) return;
    for (int c = 0; c < columns; c++) {
        float v[4];
        if (w < groups) {
            load4(b.x + (size_t)b.columns[c].row * a.hidden + w * GROUP + lane * 4, v);
            float2 m = group_moments(v);
            if (lane == 0) moments[c * WARPS + w] = m;
        }
        __syncthreads();
        float2 m = make_float2(0, 0);
        if (w < groups) {
            normalize(v, join_moments(moments + c * WARPS, groups, a.eps), a.norm + w * GROUP + lane * 4);
            reinterpret_cast<float4*>(h + c * a.hidden)[w * 32 + lane] = make_float4(v[0], v[1], v[2], v[3]);
            if (blockIdx.x == 0 && b.normed) reinterpret_cast<float4*>(b.normed + (size_t)c * a.hidden)[w * 32 + lane] = make_float4(v[0], v[1], v[2], v[3]);
            int at = (c >> 2) * groups + w;
            if (!a.bf16) store_digits(v, words + at * FRAGMENT, scales + at * 4, c & 3, lane);
            m = group_moments(v);
        }
        __syncthreads();  // everyone has joined the moments of x; now those of its norm
        if (w < groups && lane == 0) moments[c * WARPS + w] = m;
    }
    __syncthreads();
    if (threadIdx.x < columns) stats[threadIdx.x] = join_moments(moments + threadIdx.x * WARPS, groups, 1e-5f);
    if (a.bf16) {
        for (int row = blockIdx.x * WARPS + w; row < a.count; row += blocks * WARPS) {
            const uint8_t* from = a.rows + (size_t)row * a.hidden * 2;
            for (int c = 0; c < columns; c++) {
                float sum = 0;
#pragma unroll 8
                for (int i = lane * 8; i < a.hidden; i += 256) {
                    uint4 t = load_stream(from + i * 2);
                    const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&t);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float2 f = __bfloat1622float2(pairs[j]);
                        sum = __fmaf_rn(f.x, h[c * a.hidden + i + 2 * j], sum);
                        sum = __fmaf_rn(f.y, h[c * a.hidden + i + 2 * j + 1], sum);
                    }
                }
                sum = sum_lanes(sum);
                if (lane == 0) __stcg(b.logits + (size_t)c * a.count + row, sum * a.logit_scale);
            }
        }
    } else {
        for (int first = 0; first < n; first += round) {
            const int last = min(first + round, n);
            if (w < groups) {
                for (int i = first; i < last; i += 2) {
#pragma unroll
                    for (int d = 0; d < 2; d++) {  // `round` is even
                        if (i + d >= last) break;
                        Tile8 t = ahead[d];
                        fetch(ahead[d], i + d + 2);
                        for (int nt = 0; nt < column_tiles; nt++) {
                            int at = nt * groups + w, c = nt * 4 + (lane & 3);
                            uint32_t x[8];
                            float p[2] = {0, 0};
                            load_fragment(words + at * FRAGMENT, lane, columns - 4 * nt, x);
                            fold_tile8(t, x, c < columns ? scales[at * 4 + (lane & 3)] : make_float2(0, 0), p);
                            float* to = part + (((i + d - first) * groups + w) * columns + c) * ROWS + (lane >> 2);
                            if (c < columns) to[0] = p[0], to[8] = p[1];
                        }
                    }
                }
            }
            __syncthreads();
            for (int j = threadIdx.x; j < (last - first) * columns * ROWS; j += THREADS) {
                int i = (j >> 4) / columns, c = (j >> 4) % columns, row = (blockIdx.x + (first + i) * blocks) * ROWS + (j & 15);
                float y = sum_warps(part + (i * groups * columns + c) * ROWS + (j & 15), columns * ROWS, groups);
                if (row < a.count) __stcg(b.logits + (size_t)c * a.count + row, y * a.row_scale[row] * a.logit_scale);
            }
            if (last < n) __syncthreads();
        }
    }
    __syncthreads();
    for (int row = blockIdx.x + w * blocks; row < a.inner; row += WARPS * blocks) stop_row(a, b, columns, h, stats, row, lane);
}

// ---- the choice ----------------------------------------------------------------------------------------------------------------

// Orders floats as unsigned integers; zeros of either sign are equal.
DI uint32_t order(float v) {
    uint32_t u = __float_as_uint(v + 0.f);
    return (u >> 31) ? ~u : u | 0x80000000u;
}
DI float value(uint32_t key) { return __uint_as_float((key >> 31) ? key & 0x7FFFFFFFu : ~key); }

// Philox4x32-10 (Salmon et al., 2011), first word.
DI uint32_t philox(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2) {
    uint32_t c3 = 0;
#pragma unroll
    for (int i = 0; i < 10; i++) {
        uint32_t hi0 = __umulhi(0xD2511F53u, c0), lo0 = 0xD2511F53u * c0, hi1 = __umulhi(0xCD9E8D57u, c2), lo1 = 0xCD9E8D57u * c2;
        c0 = hi1 ^ c1 ^ key0, c1 = lo1, c2 = hi0 ^ c3 ^ key1, c3 = lo0;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return c0;
}

// Sum over the block in a fixed order; every thread gets it. `scratch`: 32 values.
template <class T> DI T sum_block(T v, T* scratch) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
    __syncthreads();
    v = scratch[threadIdx.x & 31];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
    return v;
}

struct Choice {
    uint32_t key[CANDIDATES];
    int row[CANDIDATES];
    uint32_t best[128];
    int scratch[32];
    float fscratch[32];
    double score[32];
    int winner[32];
    int count;
    uint32_t threshold;
};

// The keys of rows threadIdx.x, threadIdx.x + 1024, ...; 0, below every key of a number, for a masked row and past the end.
struct Held {
    uint32_t key[HELD];
    static __device__ int row(int i) { return threadIdx.x + i * CHOICE_THREADS; }
};

// Fills `s` with rows among which the k best surely are: those not below the k-th largest of 128 class maxima.
DI void collect(Choice& s, const Held& held, int k) {
    constexpr int SHARE = CHOICE_THREADS / 128;  // threads of a class
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) best = max(best, held.key[i]);
    for (int o = 1; o < SHARE; o <<= 1) best = max(best, __shfl_xor_sync(ALL, best, o));
    if (threadIdx.x % SHARE == 0) s.best[threadIdx.x / SHARE] = best;
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    int mine = threadIdx.x / SHARE, rank = 0;
#pragma unroll
    for (int j = 0; j < 128 / SHARE; j++) {
        int i = threadIdx.x % SHARE + j * SHARE;
        rank += s.best[i] > best || (s.best[i] == best && i < mine);
    }
    for (int o = 1; o < SHARE; o <<= 1) rank += __shfl_xor_sync(ALL, rank, o);
    if (rank == min(k, 128) - 1) s.threshold = best;
    __syncthreads();
    const uint32_t threshold = max(1u, s.threshold);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (held.key[i] >= threshold) {
            int at = atomicAdd(&s.count, 1);
            if (at < CANDIDATES) s.key[at] = held.key[i], s.row[at] = Held::row(i);
        }
    }
    __syncthreads();
}

DI unsigned long long composite(uint32_t key, int row) { return (unsigned long long)key << 32 | (0xFFFFFFFFu - row); }

// The k-th largest (key, lower row first) by bisection, for large k and for masses of equal logits.
DI unsigned long long kth(Choice& s, const Held& held, int k) {
    unsigned long long found = 0;
    for (int bit = 63; bit >= 0; bit--) {
        unsigned long long trial = found | 1ull << bit;
        int n = 0;
#pragma unroll
        for (int i = 0; i < HELD; i++) n += held.key[i] && composite(held.key[i], Held::row(i)) >= trial;
        if (sum_block(n, s.scratch) >= k) found = trial;
    }
    return found;
}

// Row with the largest logit / temperature + Gumbel noise among the k best of `allowed` rows; ties go to the lower row.
DI int choose(Choice& s, const Sequence& seq, const Held& held, int allowed) {
    const bool greedy = seq.temperature == 0.f;
    const int k = greedy ? 1 : min(seq.top_k, allowed);
    collect(s, held, k);
    const bool listed = k <= FAST_K && s.count <= CANDIDATES;
    const unsigned long long limit = listed ? 0 : kth(s, held, k);
    double score = -CUDART_INF;
    int row = 1 << 30;
    auto offer = [&](uint32_t key, int r) {
        double noise = 0;
        if (!greedy) {
            double u = (philox(seq.seed_low, seq.seed_high, r, seq.step, seq.sequence) + 0.5) / 4294967296.0;
            noise = -log(-log(u));
        }
        double v = greedy ? (double)value(key) : (double)value(key) / (double)seq.temperature + noise;
        if (v > score || (v == score && r < row)) score = v, row = r;
    };
    if (listed) {
        for (int i = threadIdx.x; i < s.count; i += CHOICE_THREADS) {
            int rank = 0;
            for (int j = 0; j < s.count; j++) rank += s.key[j] > s.key[i] || (s.key[j] == s.key[i] && s.row[j] < s.row[i]);
            if (rank < k) offer(s.key[i], s.row[i]);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < HELD; i++) {
            uint32_t key = 0;
#pragma unroll
            for (int j = 0; j < HELD; j++) key = i == j ? held.key[j] : key;  // a constant index keeps the keys in registers
            if (key && composite(key, Held::row(i)) >= limit) offer(key, Held::row(i));
        }
    }
    auto better = [&](double other, int other_row) {
        if (other > score || (other == score && other_row < row)) score = other, row = other_row;
    };
    for (int o = 16; o; o >>= 1) better(__shfl_xor_sync(ALL, score, o), __shfl_xor_sync(ALL, row, o));
    if ((threadIdx.x & 31) == 0) s.score[threadIdx.x >> 5] = score, s.winner[threadIdx.x >> 5] = row;
    __syncthreads();
    score = s.score[threadIdx.x & 31], row = s.winner[threadIdx.x & 31];
    for (int o = 16; o; o >>= 1) better(__shfl_xor_sync(ALL, score, o), __shfl_xor_sync(ALL, row, o));
    return row;
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

// Chooses the next token of column c = blockIdx.x, applies the stop rule, assembles frames, moves to the next position and puts
// the token's embedding into x for the next pass. 1024 threads.
extern "C" __global__ void __launch_bounds__(CHOICE_THREADS) choose_token(const __grid_constant__ Head a, const __grid_constant__ HeadBuffers b) {
    __shared__ Choice s;
    const int c = blockIdx.x;
    launch_dependents();
    wait_prerequisites();
    const Column column = b.columns[c];
    if (!column.live) return;
    Sequence& seq = b.sequences[column.slot];
    const bool early = seq.step < a.min_new_tokens;
    const int masked = early ? a.end_row : -1;
    Held held;
    float v[HELD], z = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) v[i] = Held::row(i) < a.count ? __ldcg(b.logits + (size_t)c * a.count + Held::row(i)) : 0.f;
    for (int i = threadIdx.x; i < a.inner; i += CHOICE_THREADS) z += __ldcg(b.stop + c * a.inner + i);
    bool bad = false;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        bad |= !isfinite(v[i]);
        held.key[i] = Held::row(i) < a.count && Held::row(i) != masked ? order(v[i]) : 0;
    }
    z = sum_block(z, s.fscratch) + a.stop_down_bias;
    const float probability = 1.f / (1.f + expf(-z));
    const bool stop = !early && probability > a.stop_threshold;
    bad = __syncthreads_or(bad && !stop) || (!early && !isfinite(probability));
    int row = stop ? a.end_row : choose(s, seq, held, a.count - early);
    row = min(row, a.count - 1);  // no row wins when all are NaN
    __syncthreads();  // everyone has read seq
    const float scale = a.embedding_scale[row];
    for (int i = threadIdx.x; i < a.hidden; i += CHOICE_THREADS)
        b.x[(size_t)column.row * a.hidden + i] = (float)a.embedding[(size_t)row * a.hidden + i] * scale;
    if (threadIdx.x) return;
    FrameOut& out = b.out[c];
    out.stop_probability[out.tokens] = probability;
    record(a, seq, out, a.ids[row]);
    seq.step++;
    int end = bad ? NOT_FINITE : stop ? STOP_HEAD : row == a.end_row ? AUDIO_END : seq.step >= seq.max_new ? LENGTH : RUNNING;
    out.end = end;
    if (end) b.columns[c].live = 0;
    b.columns[c].position = column.position + 1;
}

static_assert(sizeof(Head) == 136 && sizeof(HeadBuffers) == 56 && sizeof(Sequence) == 96 && sizeof(FrameOut) == 208, "as in kernels.rs");
