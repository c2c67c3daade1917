// A decoder layer: project_in (LayerNorm, q, k, v, gate, up), attend, project_out (o_proj, down_proj, residual).
//
// The narrow kernels (up to 4 or 8 columns) read each weight once and are bound by memory: every warp keeps some tiles of its
// group in flight, the first of them requested before the kernel may touch anything another kernel wrote. The
// wide kernels (up to 64 columns: prompts, many slots) use each weight for many column tiles. Both fold in the same order, so a column's bits do not depend on which kernel ran, nor on its neighbours.
#include "attend.cuh"

constexpr int WIDE_TILES = 5;    // column tiles of a block of project_out_wide
constexpr int PROMPT_TILES = 9;  // of project_in_wide: most prompts in one
constexpr int PROMPT_DEPTH = 3;  // tiles its warps have under way

// Grid: any number of blocks; block: 512 threads. Columns: at most 4 * NT. Dynamic shared memory: see `narrow_in_bytes`.
template <int NT, int DEPTH> DI void project_in_narrow(const Shape& s, const Layer& l, const Buffers& b, int columns, int tiles, int round) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float2 moments[4 * NT * WARPS];
    __shared__ Column shared_columns[4 * NT];
    const int groups = s.hidden / GROUP, w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);                       // [NT][groups][256]
    float2* scales = reinterpret_cast<float2*>(words + NT * groups * FRAGMENT);  // [NT][groups][4]
    uint8_t* slots = reinterpret_cast<uint8_t*>(scales + NT * groups * 4);       // [16 warps][DEPTH] tiles
    float* part = reinterpret_cast<float*>(slots + WARPS * Ring<DEPTH>::BYTES);  // [round][groups][columns][16]
    launch_dependents();
    const int n = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;  // tiles of this block
    const uint8_t* mine = l.in + ((size_t)blockIdx.x * groups + w) * TILE4;
    const size_t step = (size_t)gridDim.x * groups * TILE4;
    Ring<DEPTH> ring = {slots + w * Ring<DEPTH>::BYTES, 0};
    ring.fill([&](int i) { return i < n && w < groups ? mine + i * step : nullptr; }, lane);
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
                Tile4 t = ring.take(i + DEPTH < n ? mine + (i + DEPTH) * step : nullptr, lane);
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
        for (int i = first + w; i < last; i += WARPS) {
            finish_tile(s, l, b, shared_columns, columns, groups, part + (i - first) * groups * columns * ROWS, tile_of(i), lane);
            const int group = completed_group(s, b, tile_of(i), lane);
            if (group >= 0) round_mlp_groups(s, b, columns, group, lane);
        }
        if (last < n) __syncthreads();
    }
}

// Four values of the residual stream with what project_out by warpgroups left of them; `x`: where they are, `at`: their row in column c. All loads are on
// their way before one is used, as far as there are registers.
DI void settle(const Shape& s, const Buffers& b, int c, int at, const float* x, float (&v)[4]) {
    float of[2][OUT_SPLITS][4];  // o_proj, down_proj
    auto load = [&](int which) {
#pragma unroll
        for (int i = 0; i < OUT_SPLITS; i++) load4_in_order(b.out_partial + (((size_t)c * 2 + which) * OUT_SPLITS + i) * s.hidden + at, of[which][i]);
    };
    load(0);
    load4_in_order(x, v);
    load(1);
#pragma unroll
    for (int which = 0; which < 2; which++)
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = v[i] + (((of[which][0][i] + of[which][1][i]) + of[which][2][i]) + of[which][3][i]);
}

// LayerNorm and rounding of several columns: block c does column c, one more block clears `inner_ready`. 512 threads. `pending`: project_out left
// partial sums before.
DI void norm(const Shape& s, const Layer& l, const Buffers& b, int pending) {
    __shared__ float2 moments[WARPS];
    const int c = blockIdx.x, w = threadIdx.x >> 5, lane = threadIdx.x & 31, groups = s.hidden / GROUP, at = w * GROUP + lane * 4;
    launch_dependents();  // project_in may copy weights; by warpgroups it lets nothing begin before this kernel's end
    if (c == gridDim.x - 1) {  // nobody finds the units of the layer before: who reads them begins after this kernel's end
        wait_prerequisites();
        if (threadIdx.x == 0) __stcg(b.inner_ready, 0u), __stcg(b.inner_ready + UNITS_READY, 0u);
        return;
    }
    const float4 weight = w < groups ? __ldg(reinterpret_cast<const float4*>(l.norm + at)) : make_float4(0, 0, 0, 0);
    const int4* known = reinterpret_cast<const int4*>(b.columns + c);
    int4 column = {};
    if (pending) column = __ldcg(known);  // complete since the first layer's wait
    // The first turn is a rehearsal, on whatever is there and for nobody, while the kernel before is at work: its instructions are in the
    // cache then, and fetching them takes longer than all the arithmetic.
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        const bool real = turn == 1;
        if (real) {
            wait_prerequisites();
            if (!pending) column = __ldcg(known);
            if (!column.z) return;
        }
        float v[4];
        if (w < groups) {
            float* x = b.x + (size_t)column.w * s.hidden + at;
            if (pending) {
                settle(s, b, c, at, x, v);
                if (real) __stcg(reinterpret_cast<float4*>(x), make_float4(v[0], v[1], v[2], v[3]));
            } else {
                load4(x, v);
            }
            float2 m = group_moments(v);
            if (lane == 0) moments[w] = m;
        }
        __syncthreads();
        if (w < groups) {
            normalize_by(v, join_moments(moments, groups, s.eps), weight);
            const int to = digit_tile(b.hidden, c, w);
            store_digits(v, b.hidden.words + to * FRAGMENT, b.hidden.scales + to * 4, c & 3, lane, b.hidden.beside, real);
        }
        __syncthreads();
    }
}
#define NORM const __grid_constant__ Shape s, const __grid_constant__ Layer l, const __grid_constant__ Buffers b, int pending
// Few registers for many columns, so that a block finds room beside project_out; for few of them, room for all loads at once.
#if __CUDA_ARCH__ == 900
constexpr int NORM_BLOCKS = 4;
#else
constexpr int NORM_BLOCKS = 3;
#endif
extern "C" __global__ void __launch_bounds__(THREADS, NORM_BLOCKS) norm_columns(NORM) { norm(s, l, b, pending); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) norm_few(NORM) { norm(s, l, b, pending); }

// After the last layer: block c adds the partial sums of column c to the residual stream. 512 threads.
extern "C" __global__ void __launch_bounds__(THREADS) add_partial_sums(const __grid_constant__ Shape s, const __grid_constant__ Layer l,
                                                                       const __grid_constant__ Buffers b) {
    const int at = threadIdx.x * 4;
    launch_dependents();
    wait_prerequisites();
    const Column column = b.columns[blockIdx.x];
    float v[4];
    if (!column.live || at >= s.hidden) return;
    float* x = b.x + (size_t)column.row * s.hidden + at;
    settle(s, b, blockIdx.x, at, x, v);
    __stcg(reinterpret_cast<float4*>(x), make_float4(v[0], v[1], v[2], v[3]));
}

// Grid: (any number of blocks, blocks of 4 * PROMPT_TILES columns); block: 512 threads. Needs norm_columns before it and
// round_columns after it. As in the narrow kernel warp w multiplies group w of every tile, with the rounded activations of all its
// columns in registers; they would be the most of what a block reads if they were fetched for each tile. Dynamic shared memory: the
// rings, then partial sums [round][groups][columns of the block][16].
extern "C" __global__ void __launch_bounds__(THREADS, 1) project_in_wide(const __grid_constant__ Shape s, const __grid_constant__ Layer l,
                                                                         const __grid_constant__ Buffers b, int columns, int tiles, int round) {
    extern __shared__ __align__(16) uint8_t in_shared[];
    __shared__ float2 scales[WARPS][PROMPT_TILES][4];
    constexpr int DEPTH = PROMPT_DEPTH;
    const int groups = s.hidden / GROUP, w = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int from = blockIdx.y * 4 * PROMPT_TILES, count = min(4 * PROMPT_TILES, columns - from);
    float* part = reinterpret_cast<float*>(in_shared + WARPS * Ring<DEPTH>::BYTES);
    launch_dependents();
    const int n = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const uint8_t* mine = l.in + ((size_t)blockIdx.x * groups + w) * TILE4;
    const size_t step = (size_t)gridDim.x * groups * TILE4;
    Ring<DEPTH> ring = {in_shared + w * Ring<DEPTH>::BYTES, 0};
    ring.fill([&](int i) { return i < n && w < groups ? mine + i * step : nullptr; }, lane);
    wait_prerequisites();
    uint32_t x[PROMPT_TILES][8];
#pragma unroll
    for (int nt = 0; nt < PROMPT_TILES; nt++) {
        const int at = (from / 4 + nt) * groups + w, here = w < groups ? count - 4 * nt : 0;
        load_fragment(b.hidden.words + (here > 0 ? at : 0) * FRAGMENT, lane, here, x[nt]);
        if (lane < 4) scales[w][nt][lane] = lane < here ? b.hidden.scales[at * 4 + lane] : make_float2(0, 0);
    }
    __syncwarp();
    for (int first = 0; first < n; first += round) {
        const int last = min(first + round, n);
        if (w < groups) {
            for (int i = first; i < last; i++) {
                const Codes4 codes = unpack(ring.take(i + DEPTH < n ? mine + (i + DEPTH) * step : nullptr, lane));
                float* to = part + (((i - first) * groups + w) * count + t) * ROWS + (lane >> 2);
#pragma unroll
                for (int nt = 0; nt < PROMPT_TILES; nt++) {
                    if (nt * 4 >= count) break;
                    float p[2] = {0, 0};
                    fold_codes4(codes, x[nt], scales[w][nt][t], p);
                    if (nt * 4 + t < count) to[nt * 4 * ROWS] = p[0], to[nt * 4 * ROWS + 8] = p[1];
                }
            }
        }
        __syncthreads();
        for (int i = 2 * w; i < (last - first) * count; i += 2 * WARPS) {  // a half warp a tile and column
            const int unit = i + (lane >> 4), row = lane & 15, c = unit % count, tile = blockIdx.x + (first + unit / count) * gridDim.x;
            const bool real = unit < (last - first) * count;
            const float v = real ? sum_warps(part + (unit / count * groups * count + c) * ROWS + row, count * ROWS, groups) : 0.f;
            const float pair = __shfl_xor_sync(ALL, v, 1), up = __shfl_xor_sync(ALL, v, 8);
            if (!real) continue;
            const Column column = b.columns[from + c];
            finish_row(place_of(s, l, b, column, from + c, tile, row), row, v, pair, up);
        }
        if (last < n) __syncthreads();
    }
}

// Rounds the MLP activations of many columns. Grid: (groups, blocks of 4 columns); block: 128 threads, a warp a column.
extern "C" __global__ void __launch_bounds__(128) round_columns(const __grid_constant__ Shape s, const __grid_constant__ Layer l,
                                                                const __grid_constant__ Buffers b, int columns) {
    const int c = blockIdx.y * 4 + (threadIdx.x >> 5);
    launch_dependents();
    wait_prerequisites();
    if (c < columns && b.columns[c].live) round_mlp_group(s, b, c, blockIdx.x, threadIdx.x & 31);
}

// Grid: hidden / 16 blocks, one row tile each; block: 512 threads. Columns: at most 4 * NT.
// x[row] = (x[row] + o_proj(attention)) + down_proj(inner).
template <int NT, int DEPTH> DI void project_out_narrow(const Shape& s, const Layer& l, const Buffers& b, int columns) {
    __shared__ float part[2][WARPS][4 * NT][ROWS];
    extern __shared__ __align__(16) uint8_t shared[];  // [16 warps][DEPTH] tiles
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int down = b.inner.groups, o = b.attention.groups;
    const int n_down = w < down ? (down - w + WARPS - 1) / WARPS : 0, n_o = w < o ? (o - w + WARPS - 1) / WARPS : 0, n = n_down + n_o;
    const uint8_t* mine = l.out + (size_t)blockIdx.x * (down + o) * TILE4;
    auto tile_at = [&](int i) { return i < n ? mine + (size_t)(i < n_down ? w + i * WARPS : down + w + (i - n_down) * WARPS) * TILE4 : nullptr; };
    launch_dependents();
    Ring<DEPTH> ring = {shared + w * Ring<DEPTH>::BYTES, 0};
    ring.fill(tile_at, lane);
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

// Grid: items * columns * splits blocks and one more; block: a team; split z takes chunks z, z + splits, ...; those without one come last. `units`: right
// after project_in by warpgroups, so many of whose units make keys, values and queries: attention begins when those are there, beside the MLP; the one more block
// tells when all of project_in is complete. 0: everybody waits for the kernel before. `early`: besides, keys and values but those of each column's newest position were
// complete when project_in had waited, and nothing after it begins before that, so blocks fetch theirs before they wait.
template <int D> DI void attend(const Shape& s, const Layer& l, const Buffers& b, int columns, int units, int early) {
    __shared__ AttendShared<D> m;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, n_items = items(s);
    launch_dependents();
    if (!units || blockIdx.x == gridDim.x - 1) wait_prerequisites();
    if (blockIdx.x == gridDim.x - 1) {
        if (threadIdx.x == 0) say_layer(b.inner_ready, l.number);
        return;
    }
    const int index = blockIdx.x % n_items, c = blockIdx.x / n_items % columns, z = blockIdx.x / n_items / columns;
    const int splits = (gridDim.x - 1) / n_items / columns;
    const Column column = column_of(b.columns + c);
    const int slot = column.slot;
    const Range range = seen(l, column.position);
    const int chunks = column.live ? range.chunks() : 0;
    if (z >= chunks) return;
    const Item item = item_of(s, index);
    early = early && units;
    if (early) fetch_span<D>(m, s, l, slot, item.kv, begin_of(range, range.first_chunk() + z), range.last, -1, w, lane);
    if (units) {
        if (threadIdx.x == 0) await(b.inner_ready + UNITS_READY, units);
        __syncthreads();
    }
#pragma unroll 1
    for (int i = z; i < chunks; i += splits) {
        const int chunk = range.first_chunk() + i, next = i + splits < chunks ? begin_of(range, chunk + splits) : -1;
        const Fetched fetched = i > z ? COMPLETE : early ? BEFORE_NEWEST : NOT_YET;
        attend_chunk<D, true>(m, [] { __syncthreads(); }, s, l, b, c, slot, item, range, chunk, next, fetched, chunks == 1, w, lane);
    }
    if (chunks > 1) join_item<D>(m, [] { __syncthreads(); }, s, b, c, item, index, range, min(chunks, splits), w, lane, [](int) {});
}

#define KERNEL extern "C" __global__ void
#define LAYER const __grid_constant__ Shape s, const __grid_constant__ Layer l, const __grid_constant__ Buffers b
#define NARROW(NAME, NT, DEPTH_IN, DEPTH_OUT)                                                                                         \
    KERNEL __launch_bounds__(THREADS, 1) project_in_##NAME(LAYER, int columns, int tiles, int round) {                                \
        project_in_narrow<NT, DEPTH_IN>(s, l, b, columns, tiles, round);                                                              \
    }                                                                                                                                 \
    KERNEL __launch_bounds__(THREADS, 1) project_out_##NAME(LAYER, int columns) { project_out_narrow<NT, DEPTH_OUT>(s, l, b, columns); }
NARROW(4, 1, 3, 3)
NARROW(8, 2, 3, 3)
NARROW(4_deep, 1, 6, 7)  // where a block has the shared memory: nearly all of project_out is on its way while attention runs
NARROW(8_deep, 2, 6, 7)
KERNEL __launch_bounds__(TEAM, 4) attend_128(LAYER, int columns, int units, int early) { attend<128>(s, l, b, columns, units, early); }
KERNEL __launch_bounds__(TEAM, 4) attend_64(LAYER, int columns, int units, int early) { attend<64>(s, l, b, columns, units, early); }
