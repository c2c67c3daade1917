// A decoder layer: project_in (LayerNorm, q, k, v, gate, up), attend, project_out (o_proj, down_proj, residual).
//
// The narrow kernels (up to 4 or 8 columns) read each weight once and are bound by memory: every warp keeps RING tiles of its
// group in flight in registers, the first of them requested before the kernel may touch anything another kernel wrote. The
// wide kernels (up to 64 columns: prompts, many slots) loop over column tiles and use each fragment for two row tiles. Both
// fold in the same order, so a column's bits do not depend on which kernel ran, nor on its neighbours.
#include "common.cuh"

constexpr int RING = 4;               // tiles a warp has in flight: 4 x 17 KB a block
constexpr int CHUNK = 64;             // positions of one attention split, counted from position 0
constexpr int MAX_CHUNKS = 128;       // 8192 positions
constexpr int WIDE_COLUMNS = 32;      // columns whose partial sums the wide project_in holds in shared memory
constexpr int WIDE_TILES = 5;         // n-tiles of a project_out block

struct Layer {
    const uint8_t* in;    // [(k, v, q, gate/up) tiles][hidden groups] int4 tiles; gate and up interleaved 8 + 8 rows
    const uint8_t* out;   // [hidden / 16][down groups, o groups] int4 tiles
    const float* norm;    // [hidden]
    const float2* rope;   // [positions][head_dim / 2] (cos, sin); null: no position encoding
    __half *k, *v;        // [slots][kv_heads][positions][head_dim]
    int window;           // positions seen, the newest included; 0: all
};

struct Shape {
    int hidden, intermediate, heads, kv_heads, head_dim, positions;
    float eps, scale;     // LayerNorm epsilon, head_dim^-0.5
};

struct Buffers {
    float* x;             // [rows][hidden] residual stream
    float* q;             // [columns][heads * head_dim]
    float* mlp;           // [columns][intermediate] silu(gate) * up
    Digits hidden;        // LayerNorm of x, prepared for the wide project_in
    Digits attention;     // [heads * head_dim] rounded
    Digits inner;         // [intermediate] rounded
    float* partial;       // [columns][kv_heads][chunks][heads a kv head][head_dim]
    float2* partial_ml;   // [columns][kv_heads][chunks][heads a kv head] (maximum, sum)
    unsigned* mlp_arrivals;        // [intermediate / 128]
    unsigned* attention_arrivals;  // [columns][kv_heads]
    const Column* columns;
};

static_assert(sizeof(Layer) == 56 && sizeof(Shape) == 32 && sizeof(Buffers) == 136, "as in kernels.rs");

DI bool any_live(const Column* columns, int n) {
    int live = 0;
    for (int c = 0; c < n; c++) live |= columns[c].live;
    return live;
}

// LayerNorm and rounding of `n` columns by a block of 16 warps. Warp w leaves group w of every column in `out`
// ([n-tile][group] as in Digits), which only it may read without a barrier.
template <int MAX> DI void norm_digits(const float* x, const Column* columns, int n, const float* weight, int groups, float eps,
                                       float2* moments, uint32_t* words, float2* scales, int w, int lane) {
    float v[MAX][4];
#pragma unroll
    for (int c = 0; c < MAX; c++) {
        if (c < n && w < groups) {
            load4(x + (size_t)columns[c].row * groups * GROUP + w * GROUP + lane * 4, v[c]);
            float2 m = group_moments(v[c]);
            if (lane == 0) moments[c * WARPS + w] = m;
        }
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < MAX; c++) {
        if (c < n && w < groups) {
            normalize(v[c], join_moments(moments + c * WARPS, groups, eps), weight + w * GROUP + lane * 4);
            int at = (c >> 2) * groups + w;
            store_digits(v[c], words + at * FRAGMENT, scales + at * 4, c & 3, lane);
        }
    }
    __syncwarp();
}

// What becomes of a row's sum `v` in tile `tile`: RoPE and the cache for keys, the cache for values, RoPE for queries,
// silu(gate) * up. The 16 lanes of a half warp hold the 16 rows of the tile.
DI void finish_in(const Shape& s, const Layer& l, const Buffers& b, const Column& column, int c, int tile, int row, float v, bool ok) {
    float pair = __shfl_xor_sync(ALL, v, 1), up = __shfl_xor_sync(ALL, v, 8);
    if (!ok || !column.live) return;
    int kv_tiles = s.kv_heads * s.head_dim / ROWS, q_tiles = s.heads * s.head_dim / ROWS;
    if (tile >= 2 * kv_tiles + q_tiles) {
        int m = (tile - 2 * kv_tiles - q_tiles) * 8 + row;
        if (row < 8) __stcg(b.mlp + (size_t)c * s.intermediate + m, __fmul_rn(__fdiv_rn(v, __fadd_rn(1.f, exp_plain(-v))), up));
        return;
    }
    bool value = tile >= kv_tiles && tile < 2 * kv_tiles, query = tile >= 2 * kv_tiles;
    int n = (query ? tile - 2 * kv_tiles : value ? tile - kv_tiles : tile) * ROWS + row;
    int head = n / s.head_dim, d = n % s.head_dim;
    if (l.rope && !value) {
        float2 r = __ldg(l.rope + (size_t)column.position * (s.head_dim / 2) + d / 2);
        float own = __fmul_rn(v, r.x), other = __fmul_rn(pair, r.y);
        v = (d & 1) ? __fadd_rn(other, own) : __fsub_rn(own, other);
    }
    if (query) {
        __stcg(b.q + (size_t)c * s.heads * s.head_dim + n, v);
    } else {
        size_t at = (((size_t)column.slot * s.kv_heads + head) * s.positions + column.position) * s.head_dim + d;
        (value ? l.v : l.k)[at] = __float2half_rn(v);
    }
}

// Rounds the MLP groups that became complete: the block that brings the 16th tile of a group rounds it for every column.
// `tile` is the block's i-th of `tiles`, `first_mlp` the first gate/up tile. All threads call it, after finish_in.
template <class TileOf> DI void round_mlp(const Shape& s, const Buffers& b, int columns, int first_mlp, int tiles, TileOf tile_of, int* complete) {
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    __syncthreads();
    if (threadIdx.x < tiles) {
        int t = tile_of(threadIdx.x) - first_mlp;
        complete[threadIdx.x] = t >= 0 && arrive_last(b.mlp_arrivals + t / 16, 16) ? t / 16 : -1;
    }
    __syncthreads();
    for (int i = w; i < tiles * columns; i += WARPS) {
        int g = complete[i / columns], c = i % columns;
        if (g < 0 || !b.columns[c].live) continue;
        float v[4];
        load4(b.mlp + (size_t)c * s.intermediate + g * GROUP + lane * 4, v);
        int at = (c >> 2) * b.inner.groups + g;
        store_digits(v, b.inner.words + at * FRAGMENT, b.inner.scales + at * 4, c & 3, lane);
    }
}

// Grid: any number of blocks; block: 512 threads. Columns: at most 4 * NT. Dynamic shared memory: see `narrow_in_bytes`.
template <int NT> DI void project_in_narrow(const Shape& s, const Layer& l, const Buffers& b, int columns, int tiles, int round) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float2 moments[4 * NT * WARPS];
    __shared__ int complete[64];
    const int groups = s.hidden / GROUP, w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);                       // [NT][groups][256]
    float2* scales = reinterpret_cast<float2*>(words + NT * groups * FRAGMENT);  // [NT][groups][4]
    float* part = reinterpret_cast<float*>(scales + NT * groups * 4);            // [round][groups][columns][16]
    launch_dependents();
    const int n = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;  // tiles of this block
    const uint8_t* mine = l.in + ((size_t)blockIdx.x * groups + w) * TILE4;
    const size_t step = (size_t)gridDim.x * groups * TILE4;
    Tile4 ring[RING];
#pragma unroll
    for (int d = 0; d < RING; d++)
        if (d < n && w < groups) ring[d] = load_tile4(mine + d * step, lane);
    wait_prerequisites();
    if (!any_live(b.columns, columns)) return;
    norm_digits<4 * NT>(b.x, b.columns, columns, l.norm, groups, s.eps, moments, words, scales, w, lane);
    uint32_t x[NT][8];
    float2 sx[NT];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        int at = nt * groups + w;
        if (w < groups) load_fragment(words + at * FRAGMENT, lane, columns - 4 * nt, x[nt]);
        sx[nt] = w < groups && nt * 4 + (lane & 3) < columns ? scales[at * 4 + (lane & 3)] : make_float2(0, 0);
    }
    const int first_mlp = (2 * s.kv_heads + s.heads) * s.head_dim / ROWS;
    auto tile_of = [&](int i) { return (int)blockIdx.x + i * (int)gridDim.x; };
    for (int first = 0; first < n; first += round) {  // `round` is a multiple of RING
        int last = min(first + round, n);
        if (w < groups) {
            for (int i = first; i < last; i += RING) {
#pragma unroll
                for (int d = 0; d < RING; d++) {
                    if (i + d >= last) break;
                    Tile4 t = ring[d];
                    if (i + d + RING < n) ring[d] = load_tile4(mine + (i + d + RING) * step, lane);
#pragma unroll
                    for (int nt = 0; nt < NT; nt++) {
                        float p[2] = {0, 0};
                        fold_tile4(t, x[nt], sx[nt], p);
                        int c = nt * 4 + (lane & 3);
                        float* to = part + (((i + d - first) * groups + w) * columns + c) * ROWS + (lane >> 2);
                        if (c < columns) to[0] = p[0], to[8] = p[1];
                    }
                }
            }
        }
        __syncthreads();
        int outputs = (last - first) * columns * ROWS;
        for (int j = threadIdx.x; j < ((outputs + 31) & ~31); j += THREADS) {
            int i = (j >> 4) / columns, c = (j >> 4) % columns, row = j & 15;
            bool ok = j < outputs;
            float v = ok ? sum_warps(part + (i * groups * columns + c) * ROWS + row, columns * ROWS, groups) : 0.f;
            finish_in(s, l, b, b.columns[ok ? c : 0], c, tile_of(first + i), row, v, ok);
        }
        round_mlp(s, b, columns, first_mlp, last - first, [&](int i) { return tile_of(first + i); }, complete);
        if (last < n) __syncthreads();
    }
}

// LayerNorm and rounding of many columns: block c does column c. 512 threads.
extern "C" __global__ void __launch_bounds__(THREADS) norm_columns(const __grid_constant__ Shape s, const __grid_constant__ Layer l,
                                                                   const __grid_constant__ Buffers b) {
    __shared__ float2 moments[WARPS];
    const int c = blockIdx.x, w = threadIdx.x >> 5, lane = threadIdx.x & 31, groups = s.hidden / GROUP;
    launch_dependents();
    wait_prerequisites();
    if (!b.columns[c].live) return;
    float v[4];
    if (w < groups) {
        load4(b.x + (size_t)b.columns[c].row * s.hidden + w * GROUP + lane * 4, v);
        float2 m = group_moments(v);
        if (lane == 0) moments[w] = m;
    }
    __syncthreads();
    if (w < groups) {
        normalize(v, join_moments(moments, groups, s.eps), l.norm + w * GROUP + lane * 4);
        int at = (c >> 2) * groups + w;
        store_digits(v, b.hidden.words + at * FRAGMENT, b.hidden.scales + at * 4, c & 3, lane);
    }
}

// Grid: any number of blocks, each takes pairs of row tiles; block: 512 threads. Needs norm_columns before it.
// Dynamic shared memory: [2][groups][WIDE_COLUMNS][16] floats.
extern "C" __global__ void __launch_bounds__(THREADS, 1) project_in_wide(const __grid_constant__ Shape s, const __grid_constant__ Layer l,
                                                                         const __grid_constant__ Buffers b, int columns, int tiles) {
    extern __shared__ __align__(16) uint8_t in_shared[];
    __shared__ int complete[64];
    const int groups = s.hidden / GROUP, w = threadIdx.x >> 5, lane = threadIdx.x & 31, pairs = (tiles + 1) / 2;
    float* part = reinterpret_cast<float*>(in_shared);
    launch_dependents();
    const int first_mlp = (2 * s.kv_heads + s.heads) * s.head_dim / ROWS;
    Tile4 next[2];
    auto fetch = [&](int pair) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (w < groups && pair * 2 + r < tiles) next[r] = load_tile4(l.in + ((size_t)(pair * 2 + r) * groups + w) * TILE4, lane);
    };
    fetch(blockIdx.x);
    wait_prerequisites();
    for (int pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
        Tile4 t[2] = {next[0], next[1]};
        const int rows = min(2, tiles - pair * 2);
        if (pair + gridDim.x < pairs) fetch(pair + gridDim.x);
        for (int from = 0; from < columns; from += WIDE_COLUMNS) {
            int count = min(WIDE_COLUMNS, columns - from);
            if (w < groups) {
                for (int nt = 0; nt < (count + 3) / 4; nt++) {
                    int at = (from / 4 + nt) * groups + w, c = nt * 4 + (lane & 3);
                    uint32_t x[8];
                    load_fragment(b.hidden.words + at * FRAGMENT, lane, count - 4 * nt, x);
                    float2 sx = c < count ? b.hidden.scales[at * 4 + (lane & 3)] : make_float2(0, 0);
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float p[2] = {0, 0};
                        fold_tile4(t[r], x, sx, p);
                        float* to = part + ((r * groups + w) * WIDE_COLUMNS + c) * ROWS + (lane >> 2);
                        if (c < count && r < rows) to[0] = p[0], to[8] = p[1];
                    }
                }
            }
            __syncthreads();
            int outputs = rows * count * ROWS;
            for (int j = threadIdx.x; j < ((outputs + 31) & ~31); j += THREADS) {
                int r = (j >> 4) / count, c = (j >> 4) % count, row = j & 15;
                bool ok = j < outputs;
                float v = ok ? sum_warps(part + (r * groups * WIDE_COLUMNS + c) * ROWS + row, WIDE_COLUMNS * ROWS, groups) : 0.f;
                finish_in(s, l, b, b.columns[from + (ok ? c : 0)], from + c, pair * 2 + r, row, v, ok);
            }
            __syncthreads();
        }
        round_mlp(s, b, columns, first_mlp, rows, [&](int i) { return pair * 2 + i; }, complete);
    }
}

// Grid: hidden / 16 blocks, one row tile each; block: 512 threads. Columns: at most 4 * NT.
// x[row] = (x[row] + o_proj(attention)) + down_proj(inner).
template <int NT> DI void project_out_narrow(const Shape& s, const Layer& l, const Buffers& b, int columns) {
    __shared__ float part[2][WARPS][4 * NT][ROWS];
    constexpr int AHEAD = NT == 1 ? RING : 2;  // fragments requested ahead; registers forbid more for 8 columns
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int down = b.inner.groups, o = b.attention.groups;
    const int n_down = w < down ? (down - w + WARPS - 1) / WARPS : 0, n_o = w < o ? (o - w + WARPS - 1) / WARPS : 0, n = n_down + n_o;
    const uint8_t* mine = l.out + (size_t)blockIdx.x * (down + o) * TILE4;
    auto tile_at = [&](int i) { return mine + (size_t)(i < n_down ? w + i * WARPS : down + w + (i - n_down) * WARPS) * TILE4; };
    launch_dependents();
    Tile4 ring[RING];
#pragma unroll
    for (int d = 0; d < RING; d++)
        if (d < n) ring[d] = load_tile4(tile_at(d), lane);
    wait_prerequisites();
    if (!any_live(b.columns, columns)) return;
    uint32_t x[AHEAD][NT][8];
    float2 sx[AHEAD][NT];
    auto fetch = [&](int i, uint32_t (&xi)[NT][8], float2 (&si)[NT]) {
        const Digits& from = i < n_down ? b.inner : b.attention;
        int g = i < n_down ? w + i * WARPS : w + (i - n_down) * WARPS;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            int at = nt * from.groups + g;
            load_fragment(from.words + at * FRAGMENT, lane, columns - 4 * nt, xi[nt]);
            si[nt] = nt * 4 + t < columns ? from.scales[at * 4 + t] : make_float2(0, 0);
        }
    };
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
        if (d < n) fetch(d, x[d], sx[d]);
    float p[NT][2] = {}, p_down[NT][2] = {};
    for (int i = 0; i < n; i += RING) {
#pragma unroll
        for (int d = 0; d < RING; d++) {
            if (i + d >= n) break;
            if (i + d == n_down) {
#pragma unroll
                for (int nt = 0; nt < NT; nt++) p_down[nt][0] = p[nt][0], p_down[nt][1] = p[nt][1], p[nt][0] = p[nt][1] = 0;
            }
            Tile4 tile = ring[d];
            if (i + d + RING < n) ring[d] = load_tile4(tile_at(i + d + RING), lane);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) fold_tile4(tile, x[d % AHEAD][nt], sx[d % AHEAD][nt], p[nt]);
            if (i + d + AHEAD < n) fetch(i + d + AHEAD, x[d % AHEAD], sx[d % AHEAD]);
        }
    }
    bool o_last = n_o > 0;  // a warp without o groups never met i == n_down
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            part[0][w][nt * 4 + t][(lane >> 2) + 8 * r] = o_last ? p[nt][r] : 0.f;
            part[1][w][nt * 4 + t][(lane >> 2) + 8 * r] = o_last ? p_down[nt][r] : p[nt][r];
        }
    __syncthreads();
    for (int j = threadIdx.x; j < columns * ROWS; j += THREADS) {
        int c = j >> 4, row = j & 15;
        if (!b.columns[c].live) continue;
        float yo = sum_warps(&part[0][0][c][row], 4 * NT * ROWS, WARPS), yd = sum_warps(&part[1][0][c][row], 4 * NT * ROWS, WARPS);
        float* to = b.x + (size_t)b.columns[c].row * s.hidden + blockIdx.x * ROWS + row;
        __stcg(to, (__ldcg(to) + yo) + yd);
    }
}

// Grid: (pairs of row tiles, blocks of 4 * WIDE_TILES columns); block: 512 threads.
// Dynamic shared memory: [2 tiles][2][16 warps][4 * WIDE_TILES columns][16] floats.
extern "C" __global__ void __launch_bounds__(THREADS, 1) project_out_wide(const __grid_constant__ Shape s, const __grid_constant__ Layer l,
                                                                          const __grid_constant__ Buffers b, int columns) {
    extern __shared__ __align__(16) uint8_t out_shared[];
    float* part = reinterpret_cast<float*>(out_shared);
    constexpr int COLUMNS = 4 * WIDE_TILES;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int down = b.inner.groups, o = b.attention.groups, tiles = s.hidden / ROWS, rows = min(2, tiles - (int)blockIdx.x * 2);
    const int from = blockIdx.y * COLUMNS, count = min(COLUMNS, columns - from);
    launch_dependents();
    wait_prerequisites();
    auto sums = [&](const Digits& digits, int first_tile, int which) {
        float p[2][WIDE_TILES][2] = {};
        for (int g = w; g < digits.groups; g += WARPS) {
            Tile4 tile[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (r < rows) tile[r] = load_tile4(l.out + ((size_t)(blockIdx.x * 2 + r) * (down + o) + first_tile + g) * TILE4, lane);
#pragma unroll
            for (int nt = 0; nt < WIDE_TILES; nt++) {
                if (nt * 4 >= count) break;
                int at = (from / 4 + nt) * digits.groups + g;
                uint32_t x[8];
                load_fragment(digits.words + at * FRAGMENT, lane, count - 4 * nt, x);
                float2 sx = nt * 4 + t < count ? digits.scales[at * 4 + t] : make_float2(0, 0);
#pragma unroll
                for (int r = 0; r < 2; r++) fold_tile4(tile[r], x, sx, p[r][nt]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int nt = 0; nt < WIDE_TILES; nt++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    part[(((r * 2 + which) * WARPS + w) * COLUMNS + nt * 4 + t) * ROWS + (lane >> 2) + 8 * h] = p[r][nt][h];
    };
    sums(b.inner, 0, 1);
    sums(b.attention, down, 0);
    __syncthreads();
    for (int j = threadIdx.x; j < rows * count * ROWS; j += THREADS) {
        int r = (j >> 4) / count, c = (j >> 4) % count, row = j & 15;
        if (!b.columns[from + c].live) continue;
        const float* at = part + (r * 2 * WARPS * COLUMNS + c) * ROWS + row;
        float yo = sum_warps(at, COLUMNS * ROWS, WARPS), yd = sum_warps(at + WARPS * COLUMNS * ROWS, COLUMNS * ROWS, WARPS);
        float* to = b.x + (size_t)b.columns[from + c].row * s.hidden + (blockIdx.x * 2 + r) * ROWS + row;
        __stcg(to, (__ldcg(to) + yo) + yd);
    }
}

// Attention of one column for the query heads of one key/value head, split over chunks of 64 positions counted from 0.
// Grid: (kv_heads, splits, columns); block: 128 threads; block y takes chunks y, y + splits, ... The last block to finish
// joins the chunks in index order and rounds the result. D: head_dim, Q: query heads a key/value head.
template <int D, int Q> DI void attend(const Shape& s, const Layer& l, const Buffers& b) {
    constexpr int LANES = D / 8, AT_ONCE = 32 / LANES, STEPS = 16 / AT_ONCE;  // lanes a position; positions a load; loads a warp
    __shared__ float score[Q][CHUNK];
    __shared__ float out[4][Q][D];
    __shared__ float2 ml[Q][MAX_CHUNKS];
    __shared__ bool last;
    const int tid = threadIdx.x, w = tid >> 5, lane = tid & 31, sub = lane / LANES, d0 = lane % LANES * 8;
    const int kv = blockIdx.x, c = blockIdx.z;
    launch_dependents();
    wait_prerequisites();
    const Column column = b.columns[c];
    if (!column.live) return;
    const int first = l.window ? max(0, column.position - l.window + 1) : 0;
    const int first_chunk = first / CHUNK, last_chunk = column.position / CHUNK, chunks = (s.positions + CHUNK - 1) / CHUNK;
    const size_t base = ((size_t)column.slot * s.kv_heads + kv) * s.positions;
    float q[Q][8];
#pragma unroll
    for (int h = 0; h < Q; h++) {
        const float* from = b.q + ((size_t)c * s.heads + kv * Q + h) * D + d0;
        float4 a = __ldcg(reinterpret_cast<const float4*>(from)), e = __ldcg(reinterpret_cast<const float4*>(from + 4));
        q[h][0] = a.x, q[h][1] = a.y, q[h][2] = a.z, q[h][3] = a.w, q[h][4] = e.x, q[h][5] = e.y, q[h][6] = e.z, q[h][7] = e.w;
#pragma unroll
        for (int i = 0; i < 8; i++) q[h][i] *= s.scale;
    }
    for (int chunk = first_chunk + blockIdx.y; chunk <= last_chunk; chunk += gridDim.y) {
        uint4 k[STEPS], v[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int p = chunk * CHUNK + w * 16 + i * AT_ONCE + sub;
            bool valid = p >= first && p <= column.position;
            k[i] = valid ? __ldcg(reinterpret_cast<const uint4*>(l.k + (base + p) * D + d0)) : make_uint4(0, 0, 0, 0);
            v[i] = valid ? __ldcg(reinterpret_cast<const uint4*>(l.v + (base + p) * D + d0)) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int in_chunk = w * 16 + i * AT_ONCE + sub, p = chunk * CHUNK + in_chunk;
            const __half2* pairs = reinterpret_cast<const __half2*>(&k[i]);
#pragma unroll
            for (int h = 0; h < Q; h++) {
                float dot = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float2 kj = __half22float2(pairs[j]);
                    dot = __fmaf_rn(q[h][2 * j], kj.x, dot);
                    dot = __fmaf_rn(q[h][2 * j + 1], kj.y, dot);
                }
#pragma unroll
                for (int o = LANES / 2; o; o >>= 1) dot += __shfl_xor_sync(ALL, dot, o);
                if (d0 == 0) score[h][in_chunk] = p >= first && p <= column.position ? dot : -INFINITY;
            }
        }
        __syncthreads();
        for (int h = w; h < Q; h += 4) {
            float a = score[h][lane], e = score[h][lane + 32], m = fmaxf(a, e);
#pragma unroll
            for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(ALL, m, o));
            a = a == -INFINITY ? 0.f : exp_plain(a - m), e = e == -INFINITY ? 0.f : exp_plain(e - m);
            score[h][lane] = a, score[h][lane + 32] = e;
            float sum = sum_lanes(a + e);
            if (lane == 0) __stcg(b.partial_ml + (((size_t)c * s.kv_heads + kv) * chunks + chunk) * Q + h, make_float2(m, sum));
        }
        __syncthreads();
        float acc[Q][8] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const __half2* pairs = reinterpret_cast<const __half2*>(&v[i]);
#pragma unroll
            for (int h = 0; h < Q; h++) {
                float p = score[h][w * 16 + i * AT_ONCE + sub];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float2 vj = __half22float2(pairs[j]);
                    acc[h][2 * j] = __fmaf_rn(p, vj.x, acc[h][2 * j]);
                    acc[h][2 * j + 1] = __fmaf_rn(p, vj.y, acc[h][2 * j + 1]);
                }
            }
        }
#pragma unroll
        for (int h = 0; h < Q; h++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
#pragma unroll
                for (int o = LANES; o < 32; o <<= 1) acc[h][j] += __shfl_xor_sync(ALL, acc[h][j], o);
                if (sub == 0) out[w][h][d0 + j] = acc[h][j];
            }
        __syncthreads();
        float* to = b.partial + (((size_t)c * s.kv_heads + kv) * chunks + chunk) * Q * D;
        for (int i = tid; i < Q * D; i += 128) {
            const float* o = &out[0][0][0] + i;
            __stcg(to + i, ((o[0] + o[Q * D]) + o[2 * Q * D]) + o[3 * Q * D]);
        }
    }
    __syncthreads();
    if (tid == 0) last = arrive_last(b.attention_arrivals + c * s.kv_heads + kv, gridDim.y);
    __syncthreads();
    if (!last) return;
    const int n = last_chunk - first_chunk + 1;
    const size_t at = ((size_t)c * s.kv_heads + kv) * chunks + first_chunk;
    for (int i = tid; i < n * Q; i += 128) ml[i % Q][i / Q] = __ldcg(b.partial_ml + at * Q + i);
    __syncthreads();
    constexpr int GROUPS = Q * D / GROUP;
    for (int g = w; g < GROUPS; g += 4) {
        const int i0 = g * GROUP + lane * 4, h = i0 / D;  // the lane's four of the Q * D outputs
        float m = -INFINITY, sum = 0, o[4] = {0, 0, 0, 0};
        for (int i = 0; i < n; i++) m = fmaxf(m, ml[h][i].x);
#pragma unroll 4
        for (int i = 0; i < n; i++) {
            float e = exp_plain(ml[h][i].x - m), part[4];
            load4(b.partial + (at + i) * Q * D + i0, part);
            sum = __fmaf_rn(e, ml[h][i].y, sum);
#pragma unroll
            for (int j = 0; j < 4; j++) o[j] = __fmaf_rn(e, part[j], o[j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) o[j] = __fdiv_rn(o[j], sum);
        int to = (c >> 2) * b.attention.groups + kv * GROUPS + g;
        store_digits(o, b.attention.words + to * FRAGMENT, b.attention.scales + to * 4, c & 3, lane);
    }
}

#define KERNEL extern "C" __global__ void
#define LAYER const __grid_constant__ Shape s, const __grid_constant__ Layer l, const __grid_constant__ Buffers b
KERNEL __launch_bounds__(THREADS, 1) project_in_4(LAYER, int columns, int tiles, int round) { project_in_narrow<1>(s, l, b, columns, tiles, round); }
KERNEL __launch_bounds__(THREADS, 1) project_in_8(LAYER, int columns, int tiles, int round) { project_in_narrow<2>(s, l, b, columns, tiles, round); }
KERNEL __launch_bounds__(THREADS, 1) project_out_4(LAYER, int columns) { project_out_narrow<1>(s, l, b, columns); }
KERNEL __launch_bounds__(THREADS, 1) project_out_8(LAYER, int columns) { project_out_narrow<2>(s, l, b, columns); }
KERNEL __launch_bounds__(128) attend_128_4(LAYER) { attend<128, 4>(s, l, b); }
KERNEL __launch_bounds__(128) attend_128_2(LAYER) { attend<128, 2>(s, l, b); }
KERNEL __launch_bounds__(128) attend_64_4(LAYER) { attend<64, 4>(s, l, b); }
KERNEL __launch_bounds__(128) attend_64_2(LAYER) { attend<64, 2>(s, l, b); }
