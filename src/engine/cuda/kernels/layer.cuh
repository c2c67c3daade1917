// A decoder layer's structs and the pieces that the launches of layer.cu and the persistent kernel of layers.cu share.
#pragma once
#include "common.cuh"

constexpr int STEP = 16;              // positions a warp attends to at a time
constexpr int MAX_CHUNKS = 32;        // splits of the positions a unit sees

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
    float* partial;       // [columns][units][32][128]; a unit is 128 columns of the queries
    float2* partial_ml;   // [columns][units][32][128 / head_dim] (maximum, sum)
    unsigned* mlp_arrivals;        // [intermediate / 128]
    unsigned* attention_arrivals;  // [columns][units]
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
template <int MAX, class Sync> DI void norm_digits(Sync sync, const float* x, const Column* columns, int n, const float* weight, int groups, float eps,
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
    sync();
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

// What becomes of row `row` of tile `tile`, whose sum is v: RoPE and the cache for keys, the cache for values, RoPE for queries,
// silu(gate) * up. `pair`: the sum of the row that differs in its lowest bit, `up`: of the row 8 further on.
struct Place {
    int kind, head, d;  // 0: key, 1: value, 2: query, 3: MLP
    float2 turn;
};
DI Place place_of(const Shape& s, const Layer& l, const Column& column, int tile, int row) {
    const int dim = s.head_dim == 128 ? 7 : 6, kv = s.kv_heads << dim, n = tile * ROWS + row;  // head_dim is 64 or 128
    Place p = {n < kv ? 0 : n < 2 * kv ? 1 : n < 2 * kv + (s.heads << dim) ? 2 : 3, 0, 0, {1.f, 0.f}};
    if (p.kind == 3) return p;
    const int in_kind = n - p.kind * kv;
    p.head = in_kind >> dim, p.d = in_kind & ((1 << dim) - 1);
    if (l.rope && p.kind != 1) p.turn = __ldg(l.rope + ((size_t)column.position << (dim - 1)) + p.d / 2);
    return p;
}
DI void finish_row(const Shape& s, const Layer& l, const Buffers& b, const Column& column, const Place& p, int c, int tile, int row, float v, float pair,
                   float up) {
    if (!column.live) return;
    if (p.kind == 3) {
        int m = (tile - (2 * s.kv_heads + s.heads) * s.head_dim / ROWS) * 8 + row;
        if (row < 8) __stcg(b.mlp + (size_t)c * s.intermediate + m, __fmul_rn(__fdiv_rn(v, __fadd_rn(1.f, exp_plain(-v))), up));
        return;
    }
    if (l.rope && p.kind != 1) {
        float own = __fmul_rn(v, p.turn.x), other = __fmul_rn(pair, p.turn.y);
        v = (p.d & 1) ? __fadd_rn(other, own) : __fsub_rn(own, other);
    }
    if (p.kind == 2) {
        __stcg(b.q + ((size_t)c * s.heads + p.head) * s.head_dim + p.d, v);
    } else {
        size_t at = (((size_t)column.slot * s.kv_heads + p.head) * s.positions + column.position) * s.head_dim + p.d;
        (p.kind == 1 ? l.v : l.k)[at] = __float2half_rn(v);
    }
}

// Sums a tile of 16 rows over the warps' partial results and finishes it, for every column; a whole warp calls it. `part` is
// [group][columns][16]. `complete(group, last)` is told, by a whole warp, of the tile's MLP group; last: all 16 tiles of it are done.
template <class Complete> DI void finish_tile(const Shape& s, const Layer& l, const Buffers& b, const Column* shared_columns, int columns, int groups,
                                              const float* part, int tile, int lane, Complete complete) {
    for (int c0 = 0; c0 < columns; c0 += 2) {
        int c = c0 + (lane >> 4), row = lane & 15;
        bool ok = c < columns;
        const Column& column = shared_columns[ok ? c : 0];
        const Place place = place_of(s, l, column, tile, row);
        float v = ok ? sum_warps(part + c * ROWS + row, columns * ROWS, groups) : 0.f;
        float pair = __shfl_xor_sync(ALL, v, 1), up = __shfl_xor_sync(ALL, v, 8);
        if (ok) finish_row(s, l, b, column, place, c, tile, row, v, pair, up);
    }
    const int first_mlp = (2 * s.kv_heads + s.heads) * s.head_dim / ROWS;
    if (tile < first_mlp) return;
    __syncwarp();
    int last = 0, g = (tile - first_mlp) / 16;
    if (lane == 0) last = arrive_last(b.mlp_arrivals + g, 16);
    complete(g, __shfl_sync(ALL, last, 0));
}

// Rounds one complete MLP group of one column; a whole warp calls it.
DI void round_mlp_group(const Shape& s, const Buffers& b, int c, int g, int lane) {
    float v[4];
    load4(b.mlp + (size_t)c * s.intermediate + g * GROUP + lane * 4, v);
    int at = (c >> 2) * b.inner.groups + g;
    store_digits(v, b.inner.words + at * FRAGMENT, b.inner.scales + at * 4, c & 3, lane);
}

// Folds a warp's groups w, w + 16, ... of rounded activations with the next `n` tiles of its ring into p. tile_at(i): address of
// the i-th tile from here on, or null. Fragments are asked for AHEAD groups early; they come from L2, other blocks wrote them.
template <int NT, int DEPTH, class TileAt> DI void fold_groups(Ring<DEPTH>& ring, const Digits& from, int n, int columns, int w, int lane, TileAt tile_at, float (&p)[NT][2]) {
    constexpr int AHEAD = NT == 1 ? 3 : 2;
    uint32_t x[AHEAD][NT][8];
    float2 sx[AHEAD][NT];
    auto fetch = [&](int i, int d) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            int at = nt * from.groups + w + i * WARPS;
            load_fragment_fresh(from.words + at * FRAGMENT, lane, columns - 4 * nt, x[d][nt]);
            sx[d][nt] = nt * 4 + (lane & 3) < columns ? __ldcg(from.scales + at * 4 + (lane & 3)) : make_float2(0, 0);
        }
    };
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
        if (d < n) fetch(d, d);
    for (int i = 0; i < n; i += AHEAD) {
#pragma unroll
        for (int d = 0; d < AHEAD; d++) {
            if (i + d >= n) break;
            Tile4 tile = ring.take(tile_at(i + d + DEPTH), lane);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) fold_tile4(tile, x[d][nt], sx[d][nt], p[nt]);
            if (i + d + AHEAD < n) fetch(i + d + AHEAD, d);
        }
    }
}

// ---- attention ---------------------------------------------------------------------------------------------------------------
// A warp works on one unit, 128 columns of the queries (one head of 128, or two of 64), of one column and one chunk of the
// positions. Chunks are 16, 32, 64, ... positions long, counted from 0, so that there are at most 32; their length depends on
// the column's own position alone, so the bits do, too. Each chunk leaves its maximum, sum and output; the warp that finishes
// the last chunk of a unit joins them in index order and rounds the result, which is one group. No barriers, no shared memory.
struct Range {
    int first, last, length;  // oldest and newest position seen; positions of a chunk
    __device__ int first_chunk() const { return first / length; }
    __device__ int chunks() const { return last / length - first / length + 1; }
};
DI Range seen(const Layer& l, int position) {
    int length = STEP;
    while (position / length >= MAX_CHUNKS) length *= 2;
    return {l.window ? max(0, position - l.window + 1) : 0, position, length};
}
DI int units(const Shape& s) { return s.heads * s.head_dim / GROUP; }

template <int D> DI void attend_chunk(const Shape& s, const Layer& l, const Buffers& b, int slot, const Range& range, int c, int unit, int chunk, int lane) {
    constexpr int H = GROUP / D, LANES = D / 8, AT_ONCE = 32 / LANES, STEPS = STEP / AT_ONCE;  // heads; lanes a position; positions a load; loads
    const int sub = lane / LANES, d0 = lane % LANES * 8, kv = unit * H * s.kv_heads / s.heads;
    const size_t base = (((size_t)slot * s.kv_heads + kv) * s.positions + sub) * D + d0;
    const size_t at = ((size_t)c * units(s) + unit) * MAX_CHUNKS + chunk;
    float q[H][8], top[H], sum[H] = {}, out[H][8] = {};
#pragma unroll
    for (int h = 0; h < H; h++) {
        load4(b.q + ((size_t)c * units(s) + unit) * GROUP + h * D + d0, reinterpret_cast<float(&)[4]>(q[h][0]));
        load4(b.q + ((size_t)c * units(s) + unit) * GROUP + h * D + d0 + 4, reinterpret_cast<float(&)[4]>(q[h][4]));
        top[h] = -INFINITY;
    }
    const int from = max(range.first, chunk * range.length) / STEP, to = min(range.last, (chunk + 1) * range.length - 1) / STEP;
    for (int step = from; step <= to; step++) {
        uint4 k[STEPS], v[STEPS];
        bool valid[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int p = step * STEP + i * AT_ONCE;
            valid[i] = p + sub >= range.first && p + sub <= range.last;
            k[i] = valid[i] ? __ldcg(reinterpret_cast<const uint4*>(l.k + base + (size_t)p * D)) : make_uint4(0, 0, 0, 0);
            v[i] = valid[i] ? __ldcg(reinterpret_cast<const uint4*>(l.v + base + (size_t)p * D)) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            float score[STEPS], highest = top[h];
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const __half2* pairs = reinterpret_cast<const __half2*>(&k[i]);
                float dot = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float2 kj = __half22float2(pairs[j]);
                    dot = __fmaf_rn(q[h][2 * j], kj.x, dot);
                    dot = __fmaf_rn(q[h][2 * j + 1], kj.y, dot);
                }
#pragma unroll
                for (int o = LANES / 2; o; o >>= 1) dot += __shfl_xor_sync(ALL, dot, o);
                score[i] = valid[i] ? dot * s.scale : -INFINITY;
                highest = fmaxf(highest, score[i]);
            }
#pragma unroll
            for (int o = LANES; o < 32; o <<= 1) highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, o));
            const float shrink = exp_plain(top[h] - highest);
            top[h] = highest, sum[h] *= shrink;
#pragma unroll
            for (int j = 0; j < 8; j++) out[h][j] *= shrink;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const __half2* pairs = reinterpret_cast<const __half2*>(&v[i]);
                float p = valid[i] ? exp_plain(score[i] - highest) : 0.f;
                sum[h] += p;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float2 vj = __half22float2(pairs[j]);
                    out[h][2 * j] = __fmaf_rn(p, vj.x, out[h][2 * j]);
                    out[h][2 * j + 1] = __fmaf_rn(p, vj.y, out[h][2 * j + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int h = 0; h < H; h++) {
#pragma unroll
        for (int o = LANES; o < 32; o <<= 1) {
            sum[h] += __shfl_xor_sync(ALL, sum[h], o);
#pragma unroll
            for (int j = 0; j < 8; j++) out[h][j] += __shfl_xor_sync(ALL, out[h][j], o);
        }
        if (sub == 0) {
            float4* to_partial = reinterpret_cast<float4*>(b.partial + at * GROUP + h * D + d0);
            __stcg(to_partial, make_float4(out[h][0], out[h][1], out[h][2], out[h][3]));
            __stcg(to_partial + 1, make_float4(out[h][4], out[h][5], out[h][6], out[h][7]));
        }
        if (lane == 0) __stcg(b.partial_ml + at * H + h, make_float2(top[h], sum[h]));
    }
    __syncwarp();
}

// Joins the at most 32 chunks of a unit; a whole warp calls it.
template <int D> DI void join_chunks(const Shape& s, const Buffers& b, const Range& range, int c, int unit, int lane) {
    constexpr int H = GROUP / D;
    const int n = range.chunks(), mine = lane * 4 / D;  // the head of the lane's four outputs
    const size_t at = ((size_t)c * units(s) + unit) * MAX_CHUNKS + range.first_chunk();
    float e[H], sum[H], o[4] = {};
#pragma unroll
    for (int h = 0; h < H; h++) {  // lane i weighs chunk i
        float2 ml = lane < n ? __ldcg(b.partial_ml + (at + lane) * H + h) : make_float2(-INFINITY, 0.f);
        float top = ml.x;
#pragma unroll
        for (int x = 16; x; x >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL, top, x));
        e[h] = lane < n ? exp_plain(ml.x - top) : 0.f;
        sum[h] = sum_lanes(e[h] * ml.y);
    }
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        float part[4], weight = __shfl_sync(ALL, e[0], i);
        if (H == 2) {
            float other = __shfl_sync(ALL, e[H - 1], i);
            weight = mine ? other : weight;
        }
        load4(b.partial + (at + i) * GROUP + lane * 4, part);
#pragma unroll
        for (int j = 0; j < 4; j++) o[j] = __fmaf_rn(weight, part[j], o[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) o[j] = __fdiv_rn(o[j], sum[H == 2 ? mine : 0]);
    int to = (c >> 2) * b.attention.groups + unit;
    store_digits(o, b.attention.words + to * FRAGMENT, b.attention.scales + to * 4, c & 3, lane);
}
