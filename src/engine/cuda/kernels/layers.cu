// All decoder layers of one pass in one persistent kernel, for up to 8 columns.
//
// A block of every multiprocessor stays for the whole pass. Sixteen warps stream weights: each keeps DEPTH tiles in flight and
// never lets the memory idle, because the tiles it fetches while it waits for other blocks are those of the phases to come. Four more warps finish q, k and v and do the attention while the others work on gate and up. Blocks wait for
// each other through counters in global memory, one for each kind of result; the order of sums is that of layer.cu, so the
// bits are the same.
//
//   wait x ─▶ LayerNorm ─▶ k, v, q tiles ─▶ gate, up tiles ─▶ wait MLP ─▶ down tiles ─▶ wait attention ─▶ o tiles ─▶ x
//                              └▶ RoPE, cache ─▶ wait q ─▶ attention ────────────────────────┘
#include "layer.cuh"

constexpr int TEAM = 128;  // threads that attend: the first of the block, whose warps the schedulers prefer
constexpr int BLOCK = THREADS + TEAM;
constexpr int DEPTH = 3;   // tiles a warp has in flight; more floods the memory, and every wait for another block lengthens
constexpr int CONSUMERS = 1, QKV = 2;  // named barriers

struct Pass {
    const uint8_t *in, *out;       // tiles of all layers, as in Layer
    size_t in_stride, out_stride;  // bytes a layer
    const Layer* layers;
    unsigned* counters;            // [5][32]
    int count, columns, tiles, pad;
};
enum Counter { X = 0, QUERIES = 32, MLP = 64, ATTENTION = 96, FINISHED = 128 };

DI void consumers_sync() { asm volatile("bar.sync %0, %1;" ::"n"(CONSUMERS), "n"(THREADS) : "memory"); }

template <int NT> struct Shared {
    float2 moments[4 * NT * WARPS];
    Column columns[4 * NT];
    float out[2][WARPS][4 * NT][ROWS];
};

// The tiles of one warp in the order it uses them: for every layer its tiles of project_in, then of down_proj, then of o_proj.
struct Feed {
    const uint8_t* at;
    const uint8_t *in, *out;      // the warp's first tile of either kind in layer 0
    size_t in_stride, out_stride; // bytes a layer
    size_t in_step, o_offset;     // bytes from tile to tile; from the first tile of down_proj to that of o_proj
    int n_in, n_down, n_o, left, phase, layers;

    // Moves on to the next phase that has tiles.
    __device__ void turn() {
        while (left == 0 && layers > 0) {
            if (++phase == 3) {
                phase = 0, in += in_stride, out += out_stride;
                if (--layers == 0) return;
            }
            left = phase == 0 ? n_in : phase == 1 ? n_down : n_o;
            at = phase == 0 ? in : phase == 1 ? out : out + o_offset;
        }
    }
    // Address of the next tile, or null after the last.
    __device__ const uint8_t* next() {
        if (left == 0) return nullptr;
        const uint8_t* tile = at;
        at += phase == 0 ? in_step : (size_t)WARPS * TILE4;
        if (--left == 0) turn();
        return tile;
    }
};

template <int NT> DI void stream_weights(const Shape& s, const Buffers& b, const Pass& a, Shared<NT>& m, uint32_t* words, float2* scales, uint8_t* slots, float* part, int n_in,
                                         int n_qkv) {
    const int thread = threadIdx.x - TEAM, w = thread >> 5, lane = thread & 31, t = lane & 3;
    const int groups = s.hidden / GROUP, columns = a.columns, block = blockIdx.x;
    const int down = b.inner.groups, o = b.attention.groups, row_tiles = s.hidden / ROWS;
    const bool has_rows = block < row_tiles;
    const int n1 = w < groups ? n_in : 0, n1_qkv = w < groups ? n_qkv : 0;
    const int n2 = has_rows && w < down ? (down - w + WARPS - 1) / WARPS : 0, n3 = has_rows && w < o ? (o - w + WARPS - 1) / WARPS : 0;
    const int signals = (columns * ROWS + 31) / 32;
    Feed feed = {nullptr,
                 a.in + ((size_t)block * groups + w) * TILE4 - a.in_stride,
                 a.out + ((size_t)block * (down + o) + w) * TILE4 - a.out_stride,
                 a.in_stride,
                 a.out_stride,
                 (size_t)gridDim.x * groups * TILE4,
                 (size_t)down * TILE4,
                 n1,
                 n2,
                 n3,
                 0,
                 2,
                 n1 + n2 + n3 ? a.count + 1 : 0};
    feed.turn();
    auto next = [&](int) { return feed.next(); };
    Ring<DEPTH> ring = {slots + w * Ring<DEPTH>::BYTES, 0};
    ring.fill(next, lane);
    for (int l = 0; l < a.count; l++) {
        const Layer layer = a.layers[l];  // in registers: waiting empties L1
        if (l) {
            if (thread == 0) await(a.counters + X, row_tiles * signals * l);
            consumers_sync();
        }
        norm_digits<4 * NT>([] { consumers_sync(); }, b.x, m.columns, columns, layer.norm, groups, s.eps, m.moments, words, scales, w, lane);
        {
            uint32_t x[NT][8];
            float2 sx[NT];
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                int at = nt * groups + w;
                if (w < groups) load_fragment(words + at * FRAGMENT, lane, columns - 4 * nt, x[nt]);
                sx[nt] = w < groups && nt * 4 + t < columns ? scales[at * 4 + t] : make_float2(0, 0);
            }
            auto project = [&](int from, int to) {
                for (int i = from; i < to; i++) {
                    Tile4 tile = ring.take(feed.next(), lane);
#pragma unroll
                    for (int nt = 0; nt < NT; nt++) {
                        float p[2] = {0, 0};
                        fold_tile4(tile, x[nt], sx[nt], p);
                        int c = nt * 4 + t;
                        float* sums = part + ((i * groups + w) * columns + c) * ROWS + (lane >> 2);
                        if (c < columns) sums[0] = p[0], sums[8] = p[1];
                    }
                }
            };
            project(0, n1_qkv);
            asm volatile("bar.arrive %0, %1;" ::"n"(QKV), "n"(BLOCK) : "memory");
            project(n1_qkv, n1);
        }
        consumers_sync();
        for (int i = n_qkv + w; i < n_in; i += WARPS)
            finish_tile(s, layer, b, m.columns, columns, groups, part + i * groups * columns * ROWS, block + i * (int)gridDim.x, lane, [&](int g, int last) {
                if (!last) return;
                for (int c = 0; c < columns; c++) round_mlp_group(s, b, c, g, lane);
                __syncwarp();
                if (lane == 0) signal(a.counters + MLP);
            });
        if (!has_rows) continue;
        if (thread == 0) await(a.counters + MLP, down * (l + 1));
        consumers_sync();
        float p[NT][2] = {};
        auto leave = [&](int which) {
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int r = 0; r < 2; r++) m.out[which][w][nt * 4 + t][(lane >> 2) + 8 * r] = p[nt][r], p[nt][r] = 0;
        };
        fold_groups<NT>(ring, b.inner, n2, columns, w, lane, next, p);
        leave(1);
        if (thread == 0) await(a.counters + ATTENTION, o * columns * (l + 1));
        consumers_sync();
        fold_groups<NT>(ring, b.attention, n3, columns, w, lane, next, p);
        leave(0);
        consumers_sync();
        if (w < signals) {
            int c = thread >> 4, row = thread & 15;
            if (c < columns && m.columns[c].live) {
                float yo = sum_warps(&m.out[0][0][c][row], 4 * NT * ROWS, WARPS), yd = sum_warps(&m.out[1][0][c][row], 4 * NT * ROWS, WARPS);
                float* to = b.x + (size_t)m.columns[c].row * s.hidden + block * ROWS + row;
                __stcg(to, (__ldcg(to) + yo) + yd);
            }
            __syncwarp();
            if (lane == 0) signal(a.counters + X);
        }
    }
}

// Asks for a unit's share of a chunk of the cache, so that it waits in L2 when the queries come.
template <int D> DI void prefetch_chunk(const Shape& s, const Layer& l, int slot, const Range& range, int unit, int chunk, int lane) {
    const int kv = unit * (GROUP / D) * s.kv_heads / s.heads, from = max(range.first, chunk * range.length);
    const size_t base = (((size_t)slot * s.kv_heads + kv) * s.positions + from) * D;
    const int values = (min(range.last, (chunk + 1) * range.length) - from) * D;  // f16; the newest is not written yet
    for (int i = lane * 64; i < values; i += 32 * 64) {                           // a line of 128 bytes each
        asm volatile("prefetch.global.L2 [%0];" ::"l"(l.k + base + i));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(l.v + base + i));
    }
}

template <int NT, int D> DI void attend_beside(const Shape& s, const Buffers& b, const Pass& a, Shared<NT>& m, const float* part, int n_qkv) {
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, groups = s.hidden / GROUP, block = blockIdx.x;
    const int warps = gridDim.x * (TEAM / 32), warp = block * (TEAM / 32) + w, n_units = units(s);
    const unsigned qkv_tiles = (2 * s.kv_heads + s.heads) * s.head_dim / ROWS;
    for (int l = 0; l < a.count; l++) {
        const Layer layer = a.layers[l];
        // work(c, unit, chunk, range) for this warp's share of all chunks; a column that has ended has one share of nothing
        auto share = [&](auto work) {
            int next = warp;  // index of the share within the columns from c on
            for (int c = 0; c < a.columns; c++) {
                const Range range = seen(layer, m.columns[c].position);
                const int n = m.columns[c].live ? range.chunks() * n_units : 1;
                for (; next < n; next += warps) work(c, next % n_units, range.first_chunk() + next / n_units, range);
                next -= n;
            }
        };
        share([&](int c, int unit, int chunk, const Range& range) {
            if (m.columns[c].live) prefetch_chunk<D>(s, layer, m.columns[c].slot, range, unit, chunk, lane);
        });
        asm volatile("bar.sync %0, %1;" ::"n"(QKV), "n"(BLOCK) : "memory");
        for (int i = w; i < n_qkv; i += TEAM / 32) {
            finish_tile(s, layer, b, m.columns, a.columns, groups, part + i * groups * a.columns * ROWS, block + i * (int)gridDim.x, lane, [](int, int) {});
            __syncwarp();
            if (lane == 0) signal(a.counters + QUERIES);
        }
        bool waited = false;
        share([&](int c, int unit, int chunk, const Range& range) {
            if (!waited) {
                if (lane == 0) await(a.counters + QUERIES, qkv_tiles * (l + 1));
                __syncwarp();
                waited = true;
            }
            if (!m.columns[c].live) {
                if (lane == 0)
                    for (int i = 0; i < n_units; i++) signal(a.counters + ATTENTION);
                return;
            }
            attend_chunk<D>(s, layer, b, m.columns[c].slot, range, c, unit, chunk, lane);
            int last = 0;
            if (lane == 0) last = arrive_last(b.attention_arrivals + c * n_units + unit, range.chunks());
            if (__shfl_sync(ALL, last, 0)) {
                join_chunks<D>(s, b, range, c, unit, lane);
                __syncwarp();
                if (lane == 0) signal(a.counters + ATTENTION);
            }
        });
    }
}

// Grid: one block a multiprocessor, all resident (cooperative launch), at least hidden / 16; block: 640 threads. At most 4 * NT
// columns. Dynamic shared memory: words [NT][groups][256] u32, scales [NT][groups][4] float2, rings [16 warps][DEPTH] tiles,
// part [tiles of a block][groups][columns][16] floats. Counters are 0 at the start and left so.
template <int NT, int D> DI void run_pass(const Shape& s, const Buffers& b, const Pass& a) {
    extern __shared__ __align__(16) uint8_t pass_shared[];
    __shared__ Shared<NT> m;
    const int groups = s.hidden / GROUP;
    uint32_t* words = reinterpret_cast<uint32_t*>(pass_shared);
    float2* scales = reinterpret_cast<float2*>(words + NT * groups * FRAGMENT);
    uint8_t* slots = reinterpret_cast<uint8_t*>(scales + NT * groups * 4);
    float* part = reinterpret_cast<float*>(slots + WARPS * Ring<DEPTH>::BYTES);
    if (threadIdx.x < a.columns) m.columns[threadIdx.x] = b.columns[threadIdx.x];
    __syncthreads();
    if (!any_live(m.columns, a.columns)) return;
    const int qkv_tiles = (2 * s.kv_heads + s.heads) * s.head_dim / ROWS, blocks = gridDim.x;
    auto tiles_of = [&](int tiles) { return (tiles - (int)blockIdx.x + blocks - 1) / blocks; };
    const int n_in = tiles_of(a.tiles), n_qkv = tiles_of(qkv_tiles);
    if (threadIdx.x >= TEAM)
        stream_weights<NT>(s, b, a, m, words, scales, slots, part, n_in, n_qkv);
    else
        attend_beside<NT, D>(s, b, a, m, part, n_qkv);
    __syncthreads();
    if (threadIdx.x == 0 && arrive_last(a.counters + FINISHED, blocks))
        a.counters[X] = a.counters[QUERIES] = a.counters[MLP] = a.counters[ATTENTION] = 0;
}

#define PASS(NT, D)                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK, 1) layers_##NT##_##D(const __grid_constant__ Shape s, const __grid_constant__ Buffers b,    \
                                                                            const __grid_constant__ Pass a) {                                     \
        run_pass<NT, D>(s, b, a);                                                                                                           \
    }
PASS(1, 128)
PASS(2, 128)
PASS(1, 64)
PASS(2, 64)

static_assert(sizeof(Pass) == 64, "as in kernels.rs");
