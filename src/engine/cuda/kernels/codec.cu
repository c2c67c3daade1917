// The streaming Mimi decoder: codes to samples, one frame a launch sequence, many streams side by side.
//
// Every convolution is one matrix product over overlapping rows: the inputs of an output row are neighbours in memory when
// rows are stored time first, with the rows of the past in front. A transposed convolution whose kernel is a multiple of its
// stride is the same, with `stride` output rows for each input row. So `rows` does all of them and the linear layers, too.
// Sums run in an order that does not depend on how many streams there are.
//
// A block has four warps, 32 registers a thread at most and 20 KB of shared memory: so much is left of a multiprocessor beside the
// persistent kernel (frame.cu), and a frame is decoded while the next one's tokens are chosen.
#include "common.cuh"

constexpr int CODEC_THREADS = 128, CODEC_WARPS = CODEC_THREADS / 32;
#define CODEC_KERNEL extern "C" __global__ void __launch_bounds__(CODEC_THREADS, 16)

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

// y[t][n] = finish(bias[n] + sum_k w[n][k] * f(x)[t * stride + k]), where x is the past rows, then the new ones.
struct Rows {
    const float* w;        // [n][k]
    const float* bias;     // [n], or null
    const float* past;     // [slots][kept], or null
    const float* x;        // [columns][new_size]
    float* y;              // [columns][t][n]
    const float* residual; // [columns][t][n] for ADD and ADD_SCALED; may be y
    const float* scale;    // [n] for ADD_SCALED
    const float *norm, *norm_bias;  // [k]: LayerNorm of each row first, or null
    int t, n, k, stride, kept, new_size, elu, finish;
    float eps;
};

DI float elu(float v) { return v <= 0.f ? expm1f(v) : v; }

// Grid: (blocks of outputs, blocks of R rows, columns); block: 128 threads. LANES lanes share the K of an output.
// Dynamic shared memory: (R - 1) * stride + k floats.
template <int R, int LANES> DI void rows(const Streams& s, const Rows& a) {
    extern __shared__ __align__(16) float tile[];
    const int c = blockIdx.z, first = blockIdx.y * R, count = min(R, a.t - first);
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, sub = lane % LANES;
    const int n = (blockIdx.x * CODEC_WARPS + w) * (32 / LANES) + lane / LANES;
    const float* weights = a.w + (size_t)n * a.k;
    launch_dependents();
    if (blockIdx.y + blockIdx.z == 0 && n < a.n)  // the language model has driven them out of the cache
#pragma unroll 1
        for (int k = sub * 32; k < a.k; k += LANES * 32) prefetch(weights + k);
    wait_prerequisites();
    if (!has_frame(s, c)) return;
    const float* past = a.past + (size_t)s.columns[c].slot * a.kept;
    const float* x = a.x + (size_t)c * a.new_size;
    const int size = (count - 1) * a.stride + a.k;
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < size; i += CODEC_THREADS * 4) {  // every size is a multiple of 4
        const int at = first * a.stride + i;
        copy16(tile + i, at < a.kept ? past + at : x + at - a.kept);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (a.elu)
#pragma unroll 1
        for (int i = threadIdx.x * 4; i < size; i += CODEC_THREADS * 4) {  // those that this thread copied
            float4 v = *reinterpret_cast<const float4*>(tile + i);
            v.x = elu(v.x), v.y = elu(v.y), v.z = elu(v.z), v.w = elu(v.w);
            *reinterpret_cast<float4*>(tile + i) = v;
        }
    __syncthreads();
    if (a.norm) {  // linear layers only: rows do not overlap
        for (int r = w; r < count; r += CODEC_WARPS) {
            float* row = tile + r * a.stride;
            float sum = 0, squares = 0;
            for (int i = lane; i < a.k; i += 32) sum += row[i];
            float mean = sum_lanes(sum) / a.k;
            for (int i = lane; i < a.k; i += 32) squares = fmaf(row[i] - mean, row[i] - mean, squares);
            float inverse = 1.f / sqrtf(sum_lanes(squares) / a.k + a.eps);
            for (int i = lane; i < a.k; i += 32) row[i] = (row[i] - mean) * inverse * a.norm[i] + a.norm_bias[i];
        }
        __syncthreads();
    }
    float sum[R] = {};
    if (n < a.n) {
#pragma unroll(R == 2 ? 4 : 2)
        for (int k = sub * 4; k < a.k; k += LANES * 4) {
            float4 b = __ldg(reinterpret_cast<const float4*>(weights + k));
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r < count) {
                    float4 v = *reinterpret_cast<const float4*>(tile + r * a.stride + k);
                    sum[r] = fmaf(b.x, v.x, sum[r]);
                    sum[r] = fmaf(b.y, v.y, sum[r]);
                    sum[r] = fmaf(b.z, v.z, sum[r]);
                    sum[r] = fmaf(b.w, v.w, sum[r]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int o = LANES / 2; o; o >>= 1) sum[r] += __shfl_xor_sync(ALL, sum[r], o);
        if (n < a.n && r < count && sub == r % LANES) {
            size_t at = ((size_t)c * a.t + first + r) * a.n + n;
            float v = sum[r] + (a.bias ? a.bias[n] : 0.f);
            if (a.finish == ADD) v = __ldcg(a.residual + at) + v;
            if (a.finish == ADD_SCALED) v = fmaf(v, a.scale[n], __ldcg(a.residual + at));
            if (a.finish == GELU) v = 0.5f * v * (1.f + erff(v * 0.70710678118654752f));
            __stcg(a.y + at, v);
        }
    }
}
#define ROWS_KERNEL(R, LANES) \
    CODEC_KERNEL rows_##R##_##LANES(const __grid_constant__ Streams s, const __grid_constant__ Rows a) { rows<R, LANES>(s, a); }
ROWS_KERNEL(2, 32)
ROWS_KERNEL(2, 8)
ROWS_KERNEL(8, 32)
ROWS_KERNEL(8, 8)

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
// STEPS - 1; y: [columns][STEPS][heads * dim]. Dynamic shared memory: STEPS * (dim + ring) floats.
static_assert(CODEC_WARPS >= 2, "a warp a step");
constexpr int STEPS = 2, PARTS = 256;  // dims times partial sums of an output, four dims a part
CODEC_KERNEL attend_ring(const __grid_constant__ Streams s, const float* qkv, float* keys, float* values, float* y,
                                                              const double* frequencies, int heads, int dim, int ring, int window) {
    extern __shared__ __align__(16) float scratch[];
    __shared__ float4 acc[STEPS][PARTS];
    __shared__ float total[STEPS];
    float *q = scratch, *score = q + STEPS * dim;
    const int head = blockIdx.x, c = blockIdx.y, tid = threadIdx.x, lane = tid & 31, w = tid >> 5, width = heads * dim;
    launch_dependents();
    wait_prerequisites();
    if (!has_frame(s, c)) return;
    const int slot = s.columns[c].slot, start = s.position[slot];
    float* k_ring = keys + ((size_t)slot * heads + head) * ring * dim;
    float* v_ring = values + ((size_t)slot * heads + head) * ring * dim;
    for (int i = tid; i < STEPS * dim / 2; i += CODEC_THREADS) {
        const int step = i / (dim / 2), j = i % (dim / 2), row = (start + step) % ring;
        const float* from = qkv + ((size_t)c * STEPS + step) * 3 * width + head * dim + j;
        double sine, cosine;
        sincos((start + step) * frequencies[j], &sine, &cosine);
        float cs = (float)cosine, sn = (float)sine, a = __ldcg(from), b = __ldcg(from + dim / 2);
        q[step * dim + j] = a * cs - b * sn, q[step * dim + j + dim / 2] = b * cs + a * sn;
        a = __ldcg(from + width), b = __ldcg(from + width + dim / 2);
        k_ring[row * dim + j] = a * cs - b * sn, k_ring[row * dim + j + dim / 2] = b * cs + a * sn;
        v_ring[row * dim + j] = __ldcg(from + 2 * width), v_ring[row * dim + j + dim / 2] = __ldcg(from + 2 * width + dim / 2);
    }
    __syncthreads();
    const int oldest = max(0, start - window + 1), n = start + STEPS - oldest;  // seen by any of the steps
    const int lanes = dim / 4, d = tid % lanes * 4, first = tid / lanes;  // lanes that share a row of the ring
    const int stride = PARTS / lanes, at_once = CODEC_THREADS / lanes, rounds = (n + at_once - 1) / at_once;
#pragma unroll 4
    for (int r = 0; r < rounds; r++) {
        const int i = first + r * at_once, p = oldest + i;
        float4 k = i < n ? *reinterpret_cast<const float4*>(k_ring + p % ring * dim + d) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            float4 u = *reinterpret_cast<const float4*>(q + step * dim + d);
            float dot = fmaf(u.w, k.w, fmaf(u.z, k.z, fmaf(u.y, k.y, u.x * k.x)));
            for (int o = lanes / 2; o; o >>= 1) dot += __shfl_xor_sync(ALL, dot, o);
            const bool seen = p <= start + step && p > start + step - window;
            if (i < n && d == 0) score[step * ring + i] = seen ? dot * rsqrtf((float)dim) : -INFINITY;
        }
    }
    __syncthreads();
    if (w < STEPS) {
        float *mine = score + w * ring, m = -INFINITY, sum = 0;
        for (int i = lane; i < n; i += 32) m = fmaxf(m, mine[i]);
        for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(ALL, m, o));
        for (int i = lane; i < n; i += 32) {
            mine[i] = expf(mine[i] - m);
            sum += mine[i];
        }
        sum = sum_lanes(sum);
        if (lane == 0) total[w] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int part = tid; part < PARTS; part += CODEC_THREADS) {  // the rows part / lanes, part / lanes + stride, ...
        float4 o[STEPS] = {};
#pragma unroll 8
        for (int i = part / lanes; i < n; i += stride) {
            float4 v = *reinterpret_cast<const float4*>(v_ring + (oldest + i) % ring * dim + d);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                float p = score[step * ring + i];
                o[step].x = fmaf(p, v.x, o[step].x), o[step].y = fmaf(p, v.y, o[step].y);
                o[step].z = fmaf(p, v.z, o[step].z), o[step].w = fmaf(p, v.w, o[step].w);
            }
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++) acc[step][part] = o[step];
    }
    __syncthreads();
    for (int i = tid; i < STEPS * dim; i += CODEC_THREADS) {
        const int step = i / dim, at = i % dim;
        const float* from = reinterpret_cast<const float*>(&acc[step][0]) + at;
        float sum = 0;
        for (int part = 0; part < stride; part++) sum += from[part * dim];
        __stcg(y + ((size_t)c * STEPS + step) * width + head * dim + at, sum / total[step]);
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
    extern __shared__ float kept_values[];
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
#pragma unroll 8
    for (int i = threadIdx.x; i < a.kept; i += CODEC_THREADS) {
        int at = a.new_size + i;  // in past, then x
        kept_values[i] = at < a.kept ? past[at] : __ldcg(a.x + (size_t)c * a.new_size + at - a.kept);
    }
    __syncthreads();
#pragma unroll 8
    for (int i = threadIdx.x; i < a.kept; i += CODEC_THREADS) past[i] = kept_values[i];
}

static_assert(sizeof(Streams) == 24 && sizeof(Rows) == 112 && sizeof(Carry) == 24, "as in codec.rs");
