// A decoder layer's structs and the pieces that the launches of layer.cu and the persistent kernel of frame.cu share.
#pragma once
#include "common.cuh"

struct Layer {
    const uint8_t* in;    // [(k, v, q, gate/up) tiles][hidden groups] int4 tiles; gate and up interleaved 8 + 8 rows
    const uint8_t* out;   // [hidden / 16][down groups, o groups] int4 tiles
    const float* norm;    // [hidden]
    const float2* rope;   // [positions][head_dim / 2] (cos, sin); null: no position encoding
    __half* k;            // [slots][kv_heads][positions][head_dim]
    __half* v;            // [slots][kv_heads][positions / 32][head_dim][32]
    int window;           // positions seen, the newest included; 0: all
    int number;           // of the layer, from 1
};

struct Shape {
    int hidden, intermediate, heads, kv_heads, head_dim;
    int positions;        // of the cache, a multiple of 64
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
    float2* partial_ml;   // [columns][units][32][128 / head_dim] (maximum, sum), scores in units of log 2
    float* out_partial;   // [columns][o_proj, down_proj][OUT_SPLITS][hidden] sums that project_out by warpgroups leaves
    uint64_t* exchange;   // [columns of a block][intermediate] (1, bits) of values of the MLP, 0 before they are there: between the blocks that share a
                          // group of project_in by warpgroups
    unsigned* inner_ready;  // number of the layer whose project_in is complete, 0 at first: attend says so; at [UNITS_READY] units of keys, values and
                            // queries that are complete in this layer, where project_in is by warpgroups
    unsigned* mlp_arrivals;        // [intermediate / 128]
    unsigned* attention_arrivals;  // [columns][items]; an item is a key/value head and up to 4 of its query heads
    const Column* columns;
};

static_assert(sizeof(Layer) == 56 && sizeof(Shape) == 32 && sizeof(Buffers) == 160, "as in kernels.rs");

constexpr int UNITS_READY = 32;  // a line of memory further on
constexpr int OUT_SPLITS = 4;  // the four sums of `sum_fours`: blocks that share rows of project_out by warpgroups

// Another kernel may have written it beside what this multiprocessor has in L1.
DI Column column_of(const Column* column) {
    const int4 c = __ldcg(reinterpret_cast<const int4*>(column));
    return {c.x, c.y, c.z, c.w};
}

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

// silu(gate) * up.
DI float silu_times(float gate, float up) { return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.f, exp_plain(-gate))), up); }

// What becomes of row `row` of tile `tile`: RoPE and the cache for keys, the cache for values, RoPE for queries, silu(gate) * up.
struct Place {
    int kind;         // 0: key, 1: value, 2: query, 3: MLP
    bool turns, odd;  // whether RoPE turns it, and which of a pair it is
    float2 turn;      // (cos, sin)
    void* to;         // where it goes; null: the sequence has ended
};
DI Place place_of(const Shape& s, const Layer& l, const Buffers& b, const Column& column, int c, int tile, int row) {
    const int dim = s.head_dim == 128 ? 7 : 6, kv = s.kv_heads << dim, n = tile * ROWS + row;  // head_dim is 64 or 128
    Place p = {n < kv ? 0 : n < 2 * kv ? 1 : n < 2 * kv + (s.heads << dim) ? 2 : 3, false, (row & 1) != 0, {}, nullptr};
    const int in_kind = n - min(p.kind, 2) * kv, head = in_kind >> dim, d = in_kind & ((1 << dim) - 1);
    if (p.kind == 3) {
        p.to = b.mlp + (size_t)c * s.intermediate + (n - 2 * kv - (s.heads << dim)) / ROWS * 8 + row;
    } else {
        p.turns = l.rope && p.kind != 1;
        if (p.turns) p.turn = __ldg(l.rope + ((size_t)column.position << (dim - 1)) + d / 2);
        const size_t of_head = (size_t)column.slot * s.kv_heads + head;
        p.to = p.kind == 0   ? (void*)(l.k + ((of_head * s.positions + column.position) << dim) + d)
               : p.kind == 1 ? (void*)(l.v + ((of_head * s.positions + (column.position & ~31)) << dim) + d * 32 + (column.position & 31))
                             : (void*)(b.q + (((size_t)c * s.heads + head) << dim) + d);
    }
    if (!column.live) p.to = nullptr;
    return p;
}
// v: the row's sum; `pair`: of the row that differs in its lowest bit, `up`: of the row 8 further on.
DI void finish_row(const Place& p, int row, float v, float pair, float up) {
    if (!p.to) return;
    if (p.kind == 3) {
        if (row < 8) __stcg((float*)p.to, silu_times(v, up));
        return;
    }
    const float own = __fmul_rn(v, p.turn.x), other = __fmul_rn(pair, p.turn.y);
    if (p.turns) v = p.odd ? __fadd_rn(other, own) : __fsub_rn(own, other);
    if (p.kind == 2)
        __stcg((float*)p.to, v);
    else
        *(__half*)p.to = __float2half_rn(v);
}

// Sums a tile of 16 rows over the warps' partial results and finishes it, for every column; a whole warp calls it. `part` is
// [group][columns][16].
DI void finish_tile(const Shape& s, const Layer& l, const Buffers& b, const Column* shared_columns, int columns, int groups, const float* part, int tile,
                    int lane) {
    for (int c0 = 0; c0 < columns; c0 += 2) {
        int c = c0 + (lane >> 4), row = lane & 15;
        bool ok = c < columns;
        const Column& column = shared_columns[ok ? c : 0];
        const Place place = place_of(s, l, b, column, c, tile, row);
        float v = ok ? sum_warps(part + c * ROWS + row, columns * ROWS, groups) : 0.f;
        float pair = __shfl_xor_sync(ALL, v, 1), up = __shfl_xor_sync(ALL, v, 8);
        if (ok) finish_row(place, row, v, pair, up);
    }
}

// First tile of gate and up.
DI int first_mlp_tile(const Shape& s) { return (2 * s.kv_heads + s.heads) * s.head_dim / ROWS; }

// Counts a finished tile; the group whose last tile it was, or -1. A whole warp calls it.
DI int completed_group(const Shape& s, const Buffers& b, int tile, int lane) {
    if (tile < first_mlp_tile(s)) return -1;
    __syncwarp();
    int last = 0, g = (tile - first_mlp_tile(s)) / 16;
    if (lane == 0) last = arrive_last(b.mlp_arrivals + g, 16);
    return __shfl_sync(ALL, last, 0) ? g : -1;
}

// Rounds one complete MLP group of every column, up to 4 of them at a time; a whole warp calls it.
DI void round_mlp_groups(const Shape& s, const Buffers& b, int columns, int g, int lane) {
    for (int c0 = 0; c0 < columns; c0 += 4) {
        float v[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (c0 + i < columns) load4(b.mlp + (size_t)(c0 + i) * s.intermediate + g * GROUP + lane * 4, v[i]);
        const int at = (c0 >> 2) * b.inner.groups + g;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (c0 + i < columns) store_digits(v[i], b.inner.words + at * FRAGMENT, b.inner.scales + at * 4, i, lane);
    }
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
