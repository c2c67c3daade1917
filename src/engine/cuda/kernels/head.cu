// After the last layer: final LayerNorm, audio head (int8 or bf16), stop head, and the choice of the next token.
#include <cuda_bf16.h>
#include "head.cuh"

constexpr int FAST_K = 128;           // top-k up to here is found through the maxima of 128 classes of rows
constexpr int CANDIDATES = 2048;      // rows the choice may have to compare
constexpr int CHOICE_THREADS = 1024;
constexpr int HELD = 20;              // logits a thread holds: 20,480 rows

// ---- scores ------------------------------------------------------------------------------------------------------------------

// Grid: any number of blocks; block: 512 threads; at most 8 columns. `phase`: see Tiles. Rows of the stop head are dealt to the blocks one by one,
// tiles of 16 rows of the audio head likewise; `round` tiles' partial sums fit the shared memory. Dynamic shared memory: h
// [columns][hidden] floats, words [n-tiles][groups][256], scales [n-tiles][groups][4], part [round][groups][columns][16] floats.
extern "C" __global__ void __launch_bounds__(THREADS, 1) scores(const __grid_constant__ Head a, const __grid_constant__ HeadBuffers b, int columns, int round,
                                                                     int phase) {
    extern __shared__ __align__(16) uint8_t head_shared[];
    __shared__ float2 moments[8 * WARPS], normed_moments[8 * WARPS];
    const int groups = a.hidden / GROUP, w = threadIdx.x >> 5, lane = threadIdx.x & 31, column_tiles = (columns + 3) / 4, blocks = gridDim.x;
    float* h = reinterpret_cast<float*>(head_shared);
    uint32_t* words = reinterpret_cast<uint32_t*>(h + columns * a.hidden);
    float2* scales = reinterpret_cast<float2*>(words + column_tiles * groups * FRAGMENT);
    float* part = reinterpret_cast<float*>(scales + column_tiles * groups * 4);
    const Tiles all = {a, phase};
    const int tiles = all.count(), n = (tiles - (int)blockIdx.x + blocks - 1) / blocks;
    launch_dependents();
    for (int i = threadIdx.x * 128; i < a.hidden * 4; i += THREADS * 128)  // the stop head's rows come last
        for (int row = blockIdx.x; row < a.inner; row += blocks) prefetch(reinterpret_cast<const uint8_t*>(a.stop_up + (size_t)row * a.hidden) + i);
    Tile8 ahead[2];
    auto fetch = [&](Tile8& to, int i) {
        if (!a.bf16 && i < n && w < groups) to = load_tile8(a.rows + ((size_t)all.tile(blockIdx.x + i * blocks) * groups + w) * TILE8, lane);
    };
    fetch(ahead[0], 0);
    fetch(ahead[1], 1);
    wait_prerequisites();
    int live = 0;
    for (int c = 0; c < columns; c++) live |= b.columns[c].live;
    if (!live) return;
    // All columns are asked for at once; a lane reads only what it copied or wrote itself.
    auto mine = [&](int c) { return reinterpret_cast<float4*>(h + c * a.hidden) + w * 32 + lane; };
    const int own = w < groups ? columns : 0;
    for (int c = 0; c < own; c++) copy16(mine(c), b.x + (size_t)b.columns[c].row * a.hidden + w * GROUP + lane * 4);
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int c = 0; c < own; c++) {
        const float4 t = *mine(c);
        const float v[4] = {t.x, t.y, t.z, t.w};
        const float2 m = group_moments(v);
        if (lane == 0) moments[c * WARPS + w] = m;
    }
    __syncthreads();
    for (int c = 0; c < own; c++) {
        const float4 t = *mine(c);
        float v[4] = {t.x, t.y, t.z, t.w};
        normalize(v, join_moments(moments + c * WARPS, groups, a.eps), a.norm + w * GROUP + lane * 4);
        *mine(c) = make_float4(v[0], v[1], v[2], v[3]);
        if (blockIdx.x == 0 && b.normed) reinterpret_cast<float4*>(b.normed + (size_t)c * a.hidden)[w * 32 + lane] = *mine(c);
        const int at = (c >> 2) * groups + w;
        if (!a.bf16) store_digits(v, words + at * FRAGMENT, scales + at * 4, c & 3, lane);
        const float2 m = group_moments(v);
        if (lane == 0) normed_moments[c * WARPS + w] = m;
    }
    __syncthreads();
    if (a.bf16) {
        for (int tile = blockIdx.x; tile < tiles; tile += blocks) {  // a warp a row
            const int row = all.row(tile, w);
            if (row < 0) continue;
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
                int i = (j >> 4) / columns, c = (j >> 4) % columns, row = all.row(blockIdx.x + (first + i) * blocks, j & 15);
                float y = sum_warps(part + (i * groups * columns + c) * ROWS + (j & 15), columns * ROWS, groups);
                if (row >= 0) __stcg(b.logits + (size_t)c * a.count + row, y * a.row_scale[row] * a.logit_scale);
            }
            if (last < n) __syncthreads();
        }
    }
    __syncthreads();  // the hidden states make place for the stop head's LayerNorm of them
    for (int c = 0; c < own; c++) {
        const float4 t = *mine(c);
        *mine(c) = stop_input(a, {t.x, t.y, t.z, t.w}, join_moments(normed_moments + c * WARPS, groups, STOP_EPS), w * GROUP + lane * 4);
    }
    __syncthreads();
    for (int row = blockIdx.x + w * blocks; row < a.inner; row += WARPS * blocks)
        for (int c = 0; c < columns; c += 4) stop_row(a, b.stop + (size_t)c * a.inner, min(4, columns - c), h + c * a.hidden, row, lane);
}

// The last LayerNorm of several columns for the kernels of head_wgmma.cu. Block c does column c: it leaves digits in `hidden`, the stop head's LayerNorm in
// `stop_in` [columns][hidden], and the normed state where b.normed says. 512 threads. As norm_columns it goes through its arithmetic once before it waits, for
// nobody; the kernels after it may begin at once, because they read nothing of other kernels before they have waited for this one.
extern "C" __global__ void __launch_bounds__(THREADS, 3) norm_head(const __grid_constant__ Head a, const __grid_constant__ HeadBuffers b,
                                                                   const __grid_constant__ Digits hidden, float* stop_in) {
    __shared__ float2 moments[WARPS], normed_moments[WARPS];
    const int c = blockIdx.x, w = threadIdx.x >> 5, lane = threadIdx.x & 31, groups = hidden.groups, at = w * GROUP + lane * 4;
    launch_dependents();
    const float4 weight = w < groups ? __ldg(reinterpret_cast<const float4*>(a.norm + at)) : make_float4(0, 0, 0, 0);
    int4 column = {};
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        const bool real = turn == 1;
        if (real) {
            wait_prerequisites();
            column = __ldcg(reinterpret_cast<const int4*>(b.columns + c));
            if (!column.z) return;
        }
        float v[4];
        if (w < groups) {
            load4(b.x + (size_t)column.w * a.hidden + at, v);
            const float2 m = group_moments(v);
            if (lane == 0) moments[w] = m;
        }
        __syncthreads();
        if (w < groups) {
            normalize_by(v, join_moments(moments, groups, a.eps), weight);
            const int to = digit_tile(hidden, c, w);
            store_digits(v, hidden.words + to * FRAGMENT, hidden.scales + to * 4, c & 3, lane, hidden.beside, real);
            if (real && b.normed) __stcg(reinterpret_cast<float4*>(b.normed + (size_t)c * a.hidden + at), make_float4(v[0], v[1], v[2], v[3]));
            const float2 m = group_moments(v);
            if (lane == 0) normed_moments[w] = m;
        }
        __syncthreads();
        if (w < groups) {
            const float4 stop = stop_input(a, v, join_moments(normed_moments, groups, STOP_EPS), at);
            if (real) __stcg(reinterpret_cast<float4*>(stop_in + (size_t)c * a.hidden + at), stop);
        }
    }
}

// ---- the choice ----------------------------------------------------------------------------------------------------------------

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
        const double v = chance(seq, value(key), r);
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

// Chooses the next token of column c = blockIdx.x, applies the stop rule, assembles frames, moves to the next position and puts
// the token's embedding into x for the next pass. `phase`: the codebook whose rows are allowed beside `</audio>`, or -1 for all.
// 1024 threads.
extern "C" __global__ void __launch_bounds__(CHOICE_THREADS) choose_token(const __grid_constant__ Head a, const __grid_constant__ HeadBuffers b, int phase) {
    __shared__ Choice s;
    const int c = blockIdx.x;
    launch_dependents();
    wait_prerequisites();
    const Column column = b.columns[c];
    if (!column.live) return;
    Sequence& seq = b.sequences[column.slot];
    const bool early = seq.step < a.min_new_tokens;
    const int masked = early ? a.end_row : -1;
    auto known = [&](int row) {  // has a logit of this step
        return row < a.count && (phase < 0 || row == a.end_row || (a.ids[row] - a.first_unit) % a.quantizers == phase);
    };
    Held held;
    float v[HELD], z = 0;
    uint32_t rows = 0;  // bit i: row i takes part
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const bool known_row = known(Held::row(i));
        v[i] = known_row ? __ldcg(b.logits + (size_t)c * a.count + Held::row(i)) : 0.f;
        rows |= (uint32_t)(known_row && Held::row(i) != masked) << i;
    }
    for (int i = threadIdx.x; i < a.inner; i += CHOICE_THREADS) z += __ldcg(b.stop + c * a.inner + i);
    bool bad = false;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        bad |= !isfinite(v[i]);
        held.key[i] = rows >> i & 1 ? order(v[i]) : 0;
    }
    z = sum_block(z, s.fscratch) + a.stop_down_bias;
    const float probability = 1.f / (1.f + expf(-z));
    const bool stop = !early && probability > a.stop_threshold;
    bad = __syncthreads_or(bad && !stop) || (!early && !isfinite(probability));
    const int allowed = (phase < 0 ? a.count : (a.count - 1) / a.quantizers + 1) - early;
    int row = stop ? a.end_row : choose(s, seq, held, allowed);
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
