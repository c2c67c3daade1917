// A decoder layer: project_in (LayerNorm, q, k, v, gate, up), attend, project_out (o_proj, down_proj, residual).
//
// The narrow kernels (up to 4 or 8 columns) read each weight once and are bound by memory: every warp keeps RING tiles of its
// group in flight, the first of them requested before the kernel may touch anything another kernel wrote. The
// wide kernels (up to 64 columns: prompts, many slots) loop over column tiles and use each fragment for two row tiles. Both
// fold in the same order, so a column's bits do not depend on which kernel ran, nor on its neighbours.
#include "layer.cuh"

constexpr int WIDE_COLUMNS = 32;      // columns whose partial sums the wide project_in holds in shared memory
constexpr int WIDE_TILES = 5;         // n-tiles of a project_out block

// Grid: any number of blocks; block: 512 threads. Columns: at most 4 * NT. Dynamic shared memory: see `narrow_in_bytes`.
template <int NT> DI void project_in_narrow(const Shape& s, const Layer& l, const Buffers& b, int columns, int tiles, int round) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float2 moments[4 * NT * WARPS];
    __shared__ Column shared_columns[4 * NT];
    const int groups = s.hidden / GROUP, w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);                       // [NT][groups][256]
    float2* scales = reinterpret_cast<float2*>(words + NT * groups * FRAGMENT);  // [NT][groups][4]
    uint8_t* slots = reinterpret_cast<uint8_t*>(scales + NT * groups * 4);       // [16 warps][RING_BYTES]
    float* part = reinterpret_cast<float*>(slots + WARPS * RING_BYTES);          // [round][groups][columns][16]
    launch_dependents();
    const int n = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;  // tiles of this block
    const uint8_t* mine = l.in + ((size_t)blockIdx.x * groups + w) * TILE4;
    const size_t step = (size_t)gridDim.x * groups * TILE4;
    Ring ring = {slots + w * RING_BYTES, 0};
    for (int d = 0; d < RING; d++) ring_push(ring, d, d < n && w < groups ? mine + d * step : nullptr, lane);
    wait_prerequisites();
    if (!any_live(b.columns, columns)) return;
    if (threadIdx.x < columns) shared_columns[threadIdx.x] = b.columns[threadIdx.x];
    norm_digits<4 * NT>([] { __syncthreads(); }, b.x, b.columns, columns, l.norm, groups, s.eps, moments, words, scales, w, lane);
    uint32_t x[NT][8];
    float2 sx[NT];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        int at = nt * groups + w;
        if (w < groups) load_fragment(words + at * FRAGMENT, lane, columns - 4 * nt, x[nt]);
        sx[nt] = w < groups && nt * 4 + (lane & 3) < columns ? scales[at * 4 + (lane & 3)] : make_float2(0, 0);
    }
    auto tile_of = [&](int i) { return (int)blockIdx.x + i * (int)gridDim.x; };
    for (int first = 0; first < n; first += round) {
        int last = min(first + round, n);
        if (w < groups) {
            for (int i = first; i < last; i++) {
                Tile4 t = ring_take(ring, i + RING < n ? mine + (i + RING) * step : nullptr, lane);
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    float p[2] = {0, 0};
                    fold_tile4(t, x[nt], sx[nt], p);
                    int c = nt * 4 + (lane & 3);
                    float* to = part + (((i - first) * groups + w) * columns + c) * ROWS + (lane >> 2);
                    if (c < columns) to[0] = p[0], to[8] = p[1];
                }
            }
        }
        __syncthreads();
        for (int i = first + w; i < last; i += WARPS)
            finish_tile(s, l, b, shared_columns, columns, groups, part + (i - first) * groups * columns * ROWS, tile_of(i), lane, [&](int g, int last_tile) {
                if (last_tile)
                    for (int c = 0; c < columns; c++) round_mlp_group(s, b, c, g, lane);
            });
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
    __shared__ int complete[2];
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
        if (threadIdx.x < rows) {
            int t = pair * 2 + threadIdx.x - first_mlp;
            complete[threadIdx.x] = t >= 0 && arrive_last(b.mlp_arrivals + t / 16, 16) ? t / 16 : -1;
        }
        __syncthreads();
        for (int i = w; i < rows * columns; i += WARPS)
            if (complete[i % rows] >= 0) round_mlp_group(s, b, i / rows, complete[i % rows], lane);
    }
}

// Grid: hidden / 16 blocks, one row tile each; block: 512 threads. Columns: at most 4 * NT.
// x[row] = (x[row] + o_proj(attention)) + down_proj(inner).
template <int NT> DI void project_out_narrow(const Shape& s, const Layer& l, const Buffers& b, int columns) {
    __shared__ float part[2][WARPS][4 * NT][ROWS];
    extern __shared__ __align__(16) uint8_t shared[];  // [16 warps][RING_BYTES]
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int down = b.inner.groups, o = b.attention.groups;
    const int n_down = w < down ? (down - w + WARPS - 1) / WARPS : 0, n_o = w < o ? (o - w + WARPS - 1) / WARPS : 0, n = n_down + n_o;
    const uint8_t* mine = l.out + (size_t)blockIdx.x * (down + o) * TILE4;
    auto tile_at = [&](int i) { return i < n ? mine + (size_t)(i < n_down ? w + i * WARPS : down + w + (i - n_down) * WARPS) * TILE4 : nullptr; };
    launch_dependents();
    Ring ring = {shared + w * RING_BYTES, 0};
    for (int d = 0; d < RING; d++) ring_push(ring, d, tile_at(d), lane);
    wait_prerequisites();
    if (!any_live(b.columns, columns)) return;
    float p[NT][2] = {};
    auto leave = [&](int which) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int r = 0; r < 2; r++) part[which][w][nt * 4 + t][(lane >> 2) + 8 * r] = p[nt][r], p[nt][r] = 0;
    };
    fold_groups<NT>(ring, b.inner, n_down, columns, w, lane, [&](int i) { return tile_at(i); }, p);
    leave(1);
    fold_groups<NT>(ring, b.attention, n_o, columns, w, lane, [&](int i) { return tile_at(n_down + i); }, p);
    leave(0);
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

// Grid: (kv_heads, splits, columns); block: 128 threads. Block y takes chunks y, y + splits, ...
template <int D, int Q> DI void attend(const Shape& s, const Layer& l, const Buffers& b) {
    __shared__ AttentionScratch<D, Q> scratch;
    const int tid = threadIdx.x, kv = blockIdx.x, c = blockIdx.z;
    launch_dependents();
    wait_prerequisites();
    const Column column = b.columns[c];
    if (!column.live) return;
    const Range range = seen(l, column.position);
    float q[Q][8];
    load_queries<D, Q>(s, b, c, kv, tid % (D / 8) * 8, q);
    for (int chunk = range.first_chunk + blockIdx.y; chunk <= range.last_chunk; chunk += gridDim.y)
        attend_chunk<D, Q>(s, l, b, scratch, column, range, c, kv, chunk, q, tid);
    team_sync();
    if (tid == 0) scratch.last = arrive_last(b.attention_arrivals + c * s.kv_heads + kv, gridDim.y);
    team_sync();
    if (scratch.last) join_chunks<D, Q>(s, b, scratch, range, c, kv, tid, [] {});
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
