// A decoder layer's structs and the pieces that the launches of layer.cu and the persistent kernel of layers.cu share.
#pragma once
#include "common.cuh"

constexpr int CHUNK = 64;             // positions of one attention split, counted from position 0
constexpr int MAX_CHUNKS = 128;       // 8192 positions

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

// Sums a tile of 16 rows over the warps' partial results and finishes it, for every column; a whole warp calls it. `part` is
// [group][columns][16]. `complete(group, last)` is told, by a whole warp, of the tile's MLP group; last: all 16 tiles of it are done.
template <class Complete> DI void finish_tile(const Shape& s, const Layer& l, const Buffers& b, const Column* shared_columns, int columns, int groups,
                                              const float* part, int tile, int lane, Complete complete) {
    for (int c0 = 0; c0 < columns; c0 += 2) {
        int c = c0 + (lane >> 4), row = lane & 15;
        bool ok = c < columns;
        float v = ok ? sum_warps(part + c * ROWS + row, columns * ROWS, groups) : 0.f;
        finish_in(s, l, b, shared_columns[ok ? c : 0], c, tile, row, v, ok);
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
template <int NT, class TileAt> DI void fold_groups(Ring& ring, const Digits& from, int n, int columns, int w, int lane, TileAt tile_at, float (&p)[NT][2]) {
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
            Tile4 tile = ring_take(ring, tile_at(i + d + RING), lane);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) fold_tile4(tile, x[d][nt], sx[d][nt], p[nt]);
            if (i + d + AHEAD < n) fetch(i + d + AHEAD, d);
        }
    }
}

// ---- attention ---------------------------------------------------------------------------------------------------------------
// 128 threads work on the query heads of one key/value head of one column. Positions are split into chunks of 64 counted from
// 0, each with its own maximum, sum and output; the last team to finish joins the chunks in index order and rounds the result.
// D: head_dim, Q: query heads a key/value head.
constexpr int TEAM = 128, TEAM_BARRIER = 4;
DI void team_sync() { asm volatile("bar.sync %0, %1;" ::"n"(TEAM_BARRIER), "n"(TEAM) : "memory"); }

template <int D, int Q> struct AttentionScratch {
    float score[Q][CHUNK];
    float out[4][Q][D];
    float2 ml[Q][MAX_CHUNKS];
    int last;
};

struct Range {
    int first, first_chunk, last_chunk;  // oldest position seen, its chunk, the newest position's chunk
};
DI Range seen(const Layer& l, int position) {
    int first = l.window ? max(0, position - l.window + 1) : 0;
    return {first, first / CHUNK, position / CHUNK};
}

// The queries a lane multiplies: 8 columns from d0 of every head, scaled.
template <int D, int Q> DI void load_queries(const Shape& s, const Buffers& b, int c, int kv, int d0, float (&q)[Q][8]) {
#pragma unroll
    for (int h = 0; h < Q; h++) {
        const float* from = b.q + ((size_t)c * s.heads + kv * Q + h) * D + d0;
        float4 a = __ldcg(reinterpret_cast<const float4*>(from)), e = __ldcg(reinterpret_cast<const float4*>(from + 4));
        q[h][0] = a.x, q[h][1] = a.y, q[h][2] = a.z, q[h][3] = a.w, q[h][4] = e.x, q[h][5] = e.y, q[h][6] = e.z, q[h][7] = e.w;
#pragma unroll
        for (int i = 0; i < 8; i++) q[h][i] *= s.scale;
    }
}

template <int D, int Q> DI void attend_chunk(const Shape& s, const Layer& l, const Buffers& b, AttentionScratch<D, Q>& m, const Column& column,
                                             const Range& range, int c, int kv, int chunk, const float (&q)[Q][8], int tid) {
    constexpr int LANES = D / 8, AT_ONCE = 32 / LANES, STEPS = 16 / AT_ONCE;  // lanes a position; positions a load; loads a warp
    const int w = tid >> 5, lane = tid & 31, sub = lane / LANES, d0 = lane % LANES * 8;
    const size_t base = ((size_t)column.slot * s.kv_heads + kv) * s.positions;
    const int chunks = (s.positions + CHUNK - 1) / CHUNK;
    constexpr int BATCH = STEPS < 4 ? STEPS : 4;  // loads under way; registers forbid more
#pragma unroll 1
    for (int from = 0; from < STEPS; from += BATCH) {
        uint4 k[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int p = chunk * CHUNK + w * 16 + (from + i) * AT_ONCE + sub;
            bool valid = p >= range.first && p <= column.position;
            k[i] = valid ? __ldcg(reinterpret_cast<const uint4*>(l.k + (base + p) * D + d0)) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int in_chunk = w * 16 + (from + i) * AT_ONCE + sub, p = chunk * CHUNK + in_chunk;
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
                if (d0 == 0) m.score[h][in_chunk] = p >= range.first && p <= column.position ? dot : -INFINITY;
            }
        }
    }
    uint4 v[STEPS];  // on their way while the team takes the softmax
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int p = chunk * CHUNK + w * 16 + i * AT_ONCE + sub;
        bool valid = p >= range.first && p <= column.position;
        v[i] = valid ? __ldcg(reinterpret_cast<const uint4*>(l.v + (base + p) * D + d0)) : make_uint4(0, 0, 0, 0);
    }
    team_sync();
    for (int h = w; h < Q; h += 4) {
        float a = m.score[h][lane], e = m.score[h][lane + 32], top = fmaxf(a, e);
#pragma unroll
        for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL, top, o));
        a = a == -INFINITY ? 0.f : exp_plain(a - top), e = e == -INFINITY ? 0.f : exp_plain(e - top);
        m.score[h][lane] = a, m.score[h][lane + 32] = e;
        float sum = sum_lanes(a + e);
        if (lane == 0) __stcg(b.partial_ml + (((size_t)c * s.kv_heads + kv) * chunks + chunk) * Q + h, make_float2(top, sum));
    }
    team_sync();
    float acc[Q][8] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const __half2* pairs = reinterpret_cast<const __half2*>(&v[i]);
#pragma unroll
        for (int h = 0; h < Q; h++) {
            float p = m.score[h][w * 16 + i * AT_ONCE + sub];
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
            if (sub == 0) m.out[w][h][d0 + j] = acc[h][j];
        }
    team_sync();
    float* to = b.partial + (((size_t)c * s.kv_heads + kv) * chunks + chunk) * Q * D;
    for (int i = tid; i < Q * D; i += TEAM) {
        const float* o = &m.out[0][0][0] + i;
        __stcg(to + i, ((o[0] + o[Q * D]) + o[2 * Q * D]) + o[3 * Q * D]);
    }
    team_sync();
}

// Joins the chunks of one (column, key/value head). `rounded` is called by a whole warp for each group it has rounded.
template <int D, int Q, class Rounded> DI void join_chunks(const Shape& s, const Buffers& b, AttentionScratch<D, Q>& m, const Range& range, int c, int kv,
                                                           int tid, Rounded rounded) {
    constexpr int GROUPS = Q * D / GROUP;
    const int w = tid >> 5, lane = tid & 31, chunks = (s.positions + CHUNK - 1) / CHUNK, n = range.last_chunk - range.first_chunk + 1;
    const size_t at = ((size_t)c * s.kv_heads + kv) * chunks + range.first_chunk;
    for (int i = tid; i < n * Q; i += TEAM) m.ml[i % Q][i / Q] = __ldcg(b.partial_ml + at * Q + i);
    team_sync();
    for (int g = w; g < GROUPS; g += 4) {
        const int i0 = g * GROUP + lane * 4, h = i0 / D;  // the lane's four of the Q * D outputs
        float top = -INFINITY, sum = 0, o[4] = {0, 0, 0, 0};
        for (int i = 0; i < n; i++) top = fmaxf(top, m.ml[h][i].x);
#pragma unroll 8
        for (int i = 0; i < n; i++) {
            float e = exp_plain(m.ml[h][i].x - top), part[4];
            load4(b.partial + (at + i) * Q * D + i0, part);
            sum = __fmaf_rn(e, m.ml[h][i].y, sum);
#pragma unroll
            for (int j = 0; j < 4; j++) o[j] = __fmaf_rn(e, part[j], o[j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) o[j] = __fdiv_rn(o[j], sum);
        int to = (c >> 2) * b.attention.groups + kv * GROUPS + g;
        store_digits(o, b.attention.words + to * FRAGMENT, b.attention.scales + to * 4, c & 3, lane);
        __syncwarp();
        rounded();
    }
}
