// The streaming Mimi decoder: codes to samples, one frame a launch sequence, many streams side by side.
//
// Every convolution is one matrix product over overlapping rows: the inputs of an output row are neighbours in memory when
// rows are stored time first, with the rows of the past in front. A transposed convolution whose kernel is a multiple of its
// stride is the same, with `stride` output rows for each input row. So `few_rows` and `many_rows` do all of them and the linear layers, too.
// Sums run in an order that does not depend on how many streams there are.
//
// A block has four warps and, but for those of several streams, 32 registers a thread and, with Mimi's sizes, 20 KB of shared memory at most: so much is left of a
// multiprocessor beside the persistent kernel (frame.cu), and a frame is decoded while the next one's tokens are chosen.
#include "common.cuh"

constexpr int CODEC_THREADS = 128, CODEC_WARPS = CODEC_THREADS / 32;
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900
constexpr int MOST_THREADS = 2048;  // of a multiprocessor
#else
constexpr int MOST_THREADS = 1536;
#endif
#define CODEC_KERNEL extern "C" __global__ void __launch_bounds__(CODEC_THREADS, MOST_THREADS / CODEC_THREADS)
#define SEVERAL_KERNEL extern "C" __global__ void __launch_bounds__(CODEC_THREADS, 6)  // of several streams: the persistent kernel is not beside it

// A stream's frame is decoded only when its column completed one; the layout of these is that of head.cu.
struct FrameOut {
    int tokens, frames, end, pad;
    float stop_probability[16];
    uint32_t token[16];
    uint32_t code[16];
};
struct Streams {
    Column* columns;       // of the frame that is decoded: copies, because the next one is under way
    FrameOut* out;         // [columns]
    int* position;         // [slots] transformer positions so far
};
DI bool has_frame(const Streams& s, int column) { return s.out[column].frames > 0; }

// Copies what the columns completed. Block c: column c.
CODEC_KERNEL take_frame(const __grid_constant__ Streams s, const Column* columns, const FrameOut* out) {
    const int c = blockIdx.x;
    wait_prerequisites();
    static_assert(sizeof(FrameOut) / 4 <= CODEC_THREADS, "a word a thread");
    if (threadIdx.x < sizeof(FrameOut) / 4) reinterpret_cast<uint32_t*>(s.out + c)[threadIdx.x] = __ldcg(reinterpret_cast<const uint32_t*>(out + c) + threadIdx.x);
    if (threadIdx.x < sizeof(Column) / 4) reinterpret_cast<uint32_t*>(s.columns + c)[threadIdx.x] = __ldcg(reinterpret_cast<const uint32_t*>(columns + c) + threadIdx.x);
}

enum Finish { STORE = 0, ADD = 1, ADD_SCALED = 2, GELU = 3 };

// y[t][n] = finish(bias[n] + sum_k w[n][k] * x[t * stride + k]), where x is the past rows, then the new ones. A product whose output
// an ELU follows leaves the ELU as well, or it alone: who reads it would compute it many times.
struct Rows {
    const float* w;        // [n][k]
    const float* bias;     // [n], or null
    const float* past;     // [slots][kept], or null
    const float* x;        // [columns][new_size]
    float* y;              // [columns][t][n], or null
    float* elu;            // [columns][t][n] ELU of y, or null
    const float* residual; // [columns][t][n] for ADD and ADD_SCALED; may be y
    const float* scale;    // [n] for ADD_SCALED
    const float *norm, *norm_bias;  // [k]: LayerNorm of each row first, or null
    int t, n, k, stride, kept, new_size, finish;
    float eps;
};

// Asks for the weights of output `n`, shared by `lanes` lanes: the language model has driven them out of the cache.
DI void prefetch_weights(const Rows& a, int n, int lane, int lanes) {
#pragma unroll 1
    for (int k = lane * 32; k < a.k; k += lanes * 32) prefetch(a.w + (size_t)n * a.k + k);
}
// Where x[at] of a column lies; every size is a multiple of 4, and so is `at`.
DI const float* input_at(const Streams& s, const Rows& a, int c, int at) {
    return at < a.kept ? a.past + (size_t)s.columns[c].slot * a.kept + at : a.x + (size_t)c * a.new_size + at - a.kept;
}
// Sums of R rows over LANES neighbouring lanes, each added as a butterfly adds it from LANES / 2 down; lane i of them gets that of row i / (LANES / R).
template <int LANES, int R> DI float sum_rows(float (&v)[R], int lane) {
    int o = LANES / 2;
#pragma unroll
    for (int n = R / 2; n; n >>= 1, o >>= 1) {  // half of the lanes go on with half of the rows
        const bool upper = lane & o;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float other = __shfl_xor_sync(ALL, upper ? v[i] : v[i + n], o);
            v[i] = (upper ? v[i + n] : v[i]) + other;
        }
    }
#pragma unroll
    for (; o; o >>= 1) v[0] += __shfl_xor_sync(ALL, v[0], o);
    return v[0];
}
// Adds to each row's sums the products of OUT outputs' weights, `apart` floats from each other, four at a time for this lane: from `first` on, `step`
// apart, below `size`. AHEAD steps are under way at once. The rows lie `pitch` floats apart.
template <int R, int OUT, int AHEAD>
DI void multiply(const float* weights, int apart, const float* x, int first, int step, int size, int pitch, float (&sum)[OUT][R]) {
#pragma unroll 1
    for (int from = first; from < size; from += AHEAD * step) {
        float4 w[AHEAD][OUT];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (from + j * step < size)
#pragma unroll
                for (int o = 0; o < OUT; o++) w[j][o] = __ldg(reinterpret_cast<const float4*>(weights + o * apart + from + j * step));
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (from + j * step >= size) break;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float4 v = *reinterpret_cast<const float4*>(x + r * pitch + from + j * step);
#pragma unroll
                for (int o = 0; o < OUT; o++) {
                    sum[o][r] = fmaf(w[j][o].x, v.x, sum[o][r]);
                    sum[o][r] = fmaf(w[j][o].y, v.y, sum[o][r]);
                    sum[o][r] = fmaf(w[j][o].z, v.z, sum[o][r]);
                    sum[o][r] = fmaf(w[j][o].w, v.w, sum[o][r]);
                }
            }
        }
    }
}
DI void finish(const Rows& a, size_t at, int n, float v) {
    if (a.bias) v += a.bias[n];
    if (a.finish == ADD) v = __ldcg(a.residual + at) + v;
    if (a.finish == ADD_SCALED) v = fmaf(v, a.scale[n], __ldcg(a.residual + at));
    if (a.finish == GELU) v = 0.5f * v * (1.f + erff(v * 0.70710678118654752f));
    if (a.y) __stcg(a.y + at, v);
    if (a.elu) __stcg(a.elu + at, v <= 0.f ? expm1f(v) : v);
}

// A few rows of each column and many weights: a warp OUT outputs at a time, whose number is a multiple of OUT, for R rows of any columns. Grid: (any number of
// blocks, columns * t / R); block: 128 threads. Dynamic shared memory: [R][min(k, CHUNK)] floats, so much of the rows at a time; a row with a LayerNorm fits whole.
constexpr int CHUNK = 2048;
template <int R, int OUT, int AHEAD> DI void few_rows(const Streams& s, const Rows& a, int columns) {
    extern __shared__ __align__(16) float tile[];
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, first = blockIdx.y * R, count = min(R, columns * a.t - first);
    const int own = (blockIdx.x * CODEC_WARPS + w) * OUT, stride = gridDim.x * CODEC_WARPS * OUT;  // this warp's first outputs, and from them to the next
    launch_dependents();
    if (blockIdx.y == 0)
        for (int n = own; n < a.n; n += stride)
            for (int o = 0; o < OUT; o++) prefetch_weights(a, n + o, lane, 32);
    wait_prerequisites();
    int any = 0;
    for (int r = 0; r < count; r++) any |= has_frame(s, (first + r) / a.t);
    if (!any) return;
#pragma unroll 1
    for (int n = own; n - w * OUT < a.n; n += stride) {  // all warps as often
        float sum[OUT][R] = {};
#pragma unroll 1
        for (int from = 0; from < a.k; from += CHUNK) {
            const int size = min(CHUNK, a.k - from), quads = size / 4;
            if (n == own || a.k > CHUNK) {
                __syncthreads();
#pragma unroll 1
                for (int i = threadIdx.x; i < count * quads; i += CODEC_THREADS) {
                    const int r = i / quads, k = i % quads * 4, row = first + r;
                    copy16(tile + r * size + k, input_at(s, a, row / a.t, row % a.t * a.stride + from + k));
                }
                asm volatile("cp.async.wait_all;" ::: "memory");
                __syncthreads();
                if (a.norm) {
                    for (int r = w; r < count; r += CODEC_WARPS) {
                        float4* row = reinterpret_cast<float4*>(tile + r * size);
                        float total = 0, squares = 0;
#pragma unroll 1
                        for (int i = lane; i < quads; i += 32) total += (row[i].x + row[i].y) + (row[i].z + row[i].w);
                        const float mean = sum_lanes(total) / size;
#pragma unroll 1
                        for (int i = lane; i < quads; i += 32) {
                            const float4 v = row[i];
                            squares = fmaf(v.x - mean, v.x - mean, squares), squares = fmaf(v.y - mean, v.y - mean, squares);
                            squares = fmaf(v.z - mean, v.z - mean, squares), squares = fmaf(v.w - mean, v.w - mean, squares);
                        }
                        const float inverse = 1.f / sqrtf(sum_lanes(squares) / size + a.eps);
#pragma unroll 1
                        for (int i = lane; i < quads; i += 32) {
                            const float4 v = row[i], g = __ldg(reinterpret_cast<const float4*>(a.norm) + i), b = __ldg(reinterpret_cast<const float4*>(a.norm_bias) + i);
                            row[i] = make_float4((v.x - mean) * inverse * g.x + b.x, (v.y - mean) * inverse * g.y + b.y, (v.z - mean) * inverse * g.z + b.z,
                                                 (v.w - mean) * inverse * g.w + b.w);
                        }
                    }
                    __syncthreads();
                }
            }
            if (n < a.n) multiply<R, OUT, AHEAD>(a.w + (size_t)n * a.k + from, a.k, tile, lane * 4, 128, size, size, sum);
        }
        constexpr int LANES = 32 / R;  // that have a row's sum; each finishes an output
        static_assert(OUT <= LANES, "a lane an output");
        float mine = 0;
#pragma unroll
        for (int o = 0; o < OUT; o++) {
            const float y = sum_rows<32>(sum[o], lane);
            mine = lane % LANES == o ? y : mine;
        }
        const int r = lane / LANES, o = lane % LANES;
        if (n < a.n && o < OUT && r < count && has_frame(s, (first + r) / a.t)) finish(a, (size_t)(first + r) * a.n + n + o, n + o, mine);
    }
}
CODEC_KERNEL few_rows_2(const __grid_constant__ Streams s, const __grid_constant__ Rows a, int columns) { few_rows<2, 1, 3>(s, a, columns); }
SEVERAL_KERNEL few_rows_8(const __grid_constant__ Streams s, const __grid_constant__ Rows a, int columns) { few_rows<8, 4, 1>(s, a, columns); }

// Many rows of each column: eight lanes share OUT outputs, for R rows of a column. Grid: (n / (16 * OUT), t / R, columns); block: 128 threads.
// Dynamic shared memory: (R - 1) * stride + k floats. No LayerNorm.
constexpr int SUM_LANES = 8;
template <int R, int OUT> DI void many_rows(const Streams& s, const Rows& a) {
    extern __shared__ __align__(16) float rows[];
    constexpr int TOGETHER = 32 / SUM_LANES;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, sub = lane % SUM_LANES;
    const int c = blockIdx.z, first = blockIdx.y * R, count = min(R, a.t - first);
    const int n = (blockIdx.x * CODEC_WARPS + w) * TOGETHER * OUT + lane / SUM_LANES;
    launch_dependents();
    if (blockIdx.y + blockIdx.z == 0)
        for (int o = 0; o < OUT; o++)
            if (n + o * TOGETHER < a.n) prefetch_weights(a, n + o * TOGETHER, sub, SUM_LANES);
    wait_prerequisites();
    if (!has_frame(s, c)) return;
    const int size = (count - 1) * a.stride + a.k;
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < size; i += CODEC_THREADS * 4) copy16(rows + i, input_at(s, a, c, first * a.stride + i));
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    float sum[OUT][R] = {};
    // Outputs past the last one repeat it and are left out below.
    const int last = a.n - 1, apart = OUT == 1 ? 0 : (min(n + TOGETHER, last) - min(n, last)) * a.k;
    multiply<R, OUT, OUT == 1 ? 3 : 2>(a.w + (size_t)min(n, last) * a.k, apart, rows, sub * 4, SUM_LANES * 4, a.k, a.stride, sum);
#pragma unroll
    for (int o = 0; o < OUT; o++) {
        constexpr int LANES = SUM_LANES / R;  // that have a row's sum
        static_assert(LANES > 0, "a lane finishes a row at most");
        const float y = sum_rows<SUM_LANES>(sum[o], sub);
        const int r = sub / LANES, at = n + o * TOGETHER;
        if (sub % LANES == 0 && at < a.n && r < count) finish(a, ((size_t)c * a.t + first + r) * a.n + at, at, y);
    }
}
CODEC_KERNEL many_rows_4(const __grid_constant__ Streams s, const __grid_constant__ Rows a) { many_rows<4, 1>(s, a); }
SEVERAL_KERNEL many_rows_8(const __grid_constant__ Streams s, const __grid_constant__ Rows a) { many_rows<8, 2>(s, a); }

// Sums the codebook vectors of a frame: semantic ones, then acoustic ones. Grid: (any number, columns); y: [columns][2 * dim].
CODEC_KERNEL look_up(const __grid_constant__ Streams s, const float* codebooks, float* y, int quantizers, int semantic, int codes, int dim) {
    const int c = blockIdx.y;
    launch_dependents();
    wait_prerequisites();
    if (!has_frame(s, c)) return;
    for (int i = blockIdx.x * CODEC_THREADS + threadIdx.x; i < 2 * dim; i += gridDim.x * CODEC_THREADS) {
        float sum = 0;
        for (int q = i < dim ? 0 : semantic; q < (i < dim ? min(semantic, quantizers) : quantizers); q++)
            sum += codebooks[((size_t)q * codes + s.out[c].code[q]) * dim + i % dim];
        __stcg(y + (size_t)c * 2 * dim + i, sum);
    }
}

// Doubles the frame rate, one filter of 2 * stride taps a channel. x: [columns][channels], past: [slots][channels],
// filter: [2 * stride][channels], y: [columns][stride][channels]. Grid: (any number, columns).
CODEC_KERNEL upsample(const __grid_constant__ Streams s, const float* filter, const float* past, const float* x, float* y, int channels, int stride) {
    const int c = blockIdx.y;
    launch_dependents();
    wait_prerequisites();
    if (!has_frame(s, c)) return;
    for (int i = blockIdx.x * CODEC_THREADS + threadIdx.x; i < stride * channels; i += gridDim.x * CODEC_THREADS) {
        int channel = i % channels;
        float older = past[(size_t)s.columns[c].slot * channels + channel], newer = __ldcg(x + (size_t)c * channels + channel);
        __stcg(y + (size_t)c * stride * channels + i, fmaf(older, filter[stride * channels + i], newer * filter[i]));
    }
}

// Attention of one head at the STEPS new positions of a stream, after rotating queries and keys (half-split pairs) and putting
// keys and values into the ring. Grid: (heads, columns); block: 128 threads; dim divides 128 and is a multiple of 4.
// qkv: [columns][STEPS][3 * heads * dim]; keys, values: [slots][heads][ring][dim], position p in row p % ring, ring >= window +
// STEPS - 1; y: [columns][STEPS][heads * dim]; rope: [positions][dim / 2] (cos, sin). Dynamic shared memory: floats q [STEPS][dim], scores
// [STEPS][ring], rows [2][SPAN][dim + 4], which keys and then values go through.
constexpr int STEPS = 2, SPAN = 32;
static_assert(CODEC_WARPS >= STEPS && CODEC_THREADS == SPAN * STEPS * 2, "a warp a step; two lanes a score");
CODEC_KERNEL attend_ring(const __grid_constant__ Streams s, const float* qkv, float* keys, float* values, float* y, const float2* rope, int heads, int dim,
                         int ring, int window) {
    extern __shared__ __align__(16) float scratch[];
    __shared__ float total[STEPS];
    float *q = scratch, *score = q + STEPS * dim, *rows = score + STEPS * ring;
    const int head = blockIdx.x, c = blockIdx.y, tid = threadIdx.x, lane = tid & 31, w = tid >> 5, width = heads * dim, pitch = dim + 4;
    launch_dependents();
    if (!has_frame(s, c)) return wait_prerequisites();
    const int slot = s.columns[c].slot, start = s.position[slot];  // of the frame before: complete since this frame's first kernel
    float* k_ring = keys + ((size_t)slot * heads + head) * ring * dim;
    float* v_ring = values + ((size_t)slot * heads + head) * ring * dim;
    const int oldest = max(0, start - window + 1), n = start + STEPS - oldest;  // seen by any of the steps
    const int spans = (n + SPAN - 1) / SPAN, first_row = oldest % ring;
    auto fetch = [&](int t) {  // spans of keys, then those of values
        const float* from = t < spans ? k_ring : v_ring;
        const int first = (t < spans ? t : t - spans) * SPAN, quads = dim / 4;
#pragma unroll 1
        for (int i = tid; i < SPAN * quads && first + i / quads < n; i += CODEC_THREADS) {
            const int r = i / quads, d = i % quads * 4, row = first_row + first + r;
            copy16(rows + ((t & 1) * SPAN + r) * pitch + d, from + (size_t)(row < ring ? row : row - ring) * dim + d);
        }
    };
    const bool early = n - STEPS >= SPAN;  // the first span is of earlier frames
    if (early) fetch(0);
#pragma unroll 1
    for (int i = tid * 32; i < ring * dim; i += CODEC_THREADS * 32) prefetch(k_ring + i), prefetch(v_ring + i);
    wait_prerequisites();
#pragma unroll 1
    for (int i = tid; i < STEPS * dim / 2; i += CODEC_THREADS) {
        const int step = i / (dim / 2), j = i % (dim / 2), row = (start + step) % ring;
        const float* from = qkv + ((size_t)c * STEPS + step) * 3 * width + head * dim + j;
        const float2 turn = rope[(size_t)(start + step) * (dim / 2) + j];
        float a = __ldcg(from), b = __ldcg(from + dim / 2);
        q[step * dim + j] = a * turn.x - b * turn.y, q[step * dim + j + dim / 2] = b * turn.x + a * turn.y;
        a = __ldcg(from + width), b = __ldcg(from + width + dim / 2);
        k_ring[row * dim + j] = a * turn.x - b * turn.y, k_ring[row * dim + j + dim / 2] = b * turn.x + a * turn.y;
        v_ring[row * dim + j] = __ldcg(from + 2 * width), v_ring[row * dim + j + dim / 2] = __ldcg(from + 2 * width + dim / 2);
    }
    __syncthreads();
    if (!early) fetch(0);
    float sum[2] = {};  // of outputs tid and tid + 128
#pragma unroll 1
    for (int t = 0; t < 2 * spans; t++) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();  // this span is there, and everyone has used the one before
        if (t + 1 < 2 * spans) fetch(t + 1);
        const float* span = rows + (t & 1) * SPAN * pitch;
        if (t < spans) {
            const int r = tid >> 2, step = tid >> 1 & 1, half = tid & 1, i = t * SPAN + r, p = oldest + i;
            float dot = 0;
#pragma unroll 2
            for (int d = half * 4; d < dim; d += 8) {
                const float4 u = *reinterpret_cast<const float4*>(q + step * dim + d), k = *reinterpret_cast<const float4*>(span + r * pitch + d);
                dot = fmaf(u.w, k.w, fmaf(u.z, k.z, fmaf(u.y, k.y, fmaf(u.x, k.x, dot))));
            }
            dot += __shfl_xor_sync(ALL, dot, 1);
            const bool seen = p <= start + step && p > start + step - window;
            if (i < n && half == 0) score[step * ring + i] = seen ? dot * rsqrtf((float)dim) : -INFINITY;
            if (t + 1 < spans) continue;
            __syncthreads();
            if (w < STEPS) {
                float *mine = score + w * ring, m = -INFINITY, all = 0;
                for (int i = lane; i < n; i += 32) m = fmaxf(m, mine[i]);
                for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(ALL, m, o));
                for (int i = lane; i < n; i += 32) {
                    mine[i] = expf(mine[i] - m);
                    all += mine[i];
                }
                all = sum_lanes(all);
                if (lane == 0) total[w] = all;
            }
        } else {
            const int first = (t - spans) * SPAN, count = min(SPAN, n - first);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int at = tid + j * CODEC_THREADS, step = at / dim, d = at % dim;
                if (step >= STEPS) break;
#pragma unroll 4
                for (int r = 0; r < count; r++) sum[j] = fmaf(score[step * ring + first + r], span[r * pitch + d], sum[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int at = tid + j * CODEC_THREADS, step = at / dim;
        if (step < STEPS) __stcg(y + ((size_t)c * STEPS + step) * width + head * dim + at % dim, sum[j] / total[step]);
    }
}

// What the next frame needs of a layer's input: its last `kept` values.
struct Carry {
    float* past;      // [slots][kept]
    const float* x;   // [columns][new_size]
    int kept, new_size;
};

// Grid: (carries + 1, columns); block: 128 threads. The last block of a column moves its stream's position on by `t`.
// Dynamic shared memory: the largest `kept` floats.
CODEC_KERNEL carry(const __grid_constant__ Streams s, const Carry* carries, int count, int t) {
    extern __shared__ __align__(16) float kept_values[];
    const int c = blockIdx.y;
    launch_dependents();
    wait_prerequisites();
    if (!has_frame(s, c)) return;
    const int slot = s.columns[c].slot;
    if (blockIdx.x == count) {
        if (threadIdx.x == 0) s.position[slot] += t;
        return;
    }
    const Carry a = carries[blockIdx.x];
    float* past = a.past + (size_t)slot * a.kept;
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < a.kept; i += CODEC_THREADS * 4) {
        const int at = a.new_size + i;  // in past, then x
        copy16(kept_values + i, at < a.kept ? past + at : a.x + (size_t)c * a.new_size + at - a.kept);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < a.kept; i += CODEC_THREADS * 4) *reinterpret_cast<float4*>(past + i) = *reinterpret_cast<const float4*>(kept_values + i);
}

static_assert(sizeof(Streams) == 24 && sizeof(Rows) == 112 && sizeof(Carry) == 24, "as in codec/mod.rs");
