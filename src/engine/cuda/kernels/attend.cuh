// Attention of the newest position of a column, on the tensor cores, split over chunks of the positions.
//
// A team of four warps works on one item, a key/value head with up to four of the query heads that share it, of one column and
// one chunk. Queries and probabilities stay as exact as f32 there: each is the sum of two f16, x = hi + lo to 22 bits, and the
// eight columns of the tensor core's B operand are four heads' hi and four heads' lo. Keys are stored as f16, [position][dim];
// values as f16, [position / 32][dim][32], so that both are A operands in 16-byte pieces, eight lanes' beside each other: a lane's eight halves count as two steps of k,
// in the same order on both sides of the product.
//
// Chunks are 64, 128, 256, ... positions long, counted from 0, so that there are at most 32; their length depends on the
// column's own position alone, so the bits do, too. Each chunk leaves its maximum, sum and output; the team that finishes the
// last chunk of an item joins them in index order and rounds the result.
#pragma once
#include "layer.cuh"

constexpr int SPAN = 64;        // positions a team works on at a time
constexpr int MAX_CHUNKS = 32;  // splits of the positions an item sees
constexpr int TEAM = 128;       // threads of a team
constexpr int ITEM_HEADS = 4;   // query heads of an item at most

struct Range {
    int first, last, length;  // oldest and newest position seen; positions of a chunk
    __device__ int first_chunk() const { return first / length; }
    __device__ int chunks() const { return last / length - first / length + 1; }
};
DI Range seen(const Layer& l, int position) {
    int length = SPAN;
    while (position / length >= MAX_CHUNKS) length *= 2;
    return {l.window ? max(0, position - l.window + 1) : 0, position, length};
}
DI int units(const Shape& s) { return s.heads * s.head_dim / GROUP; }
DI int quads(const Shape& s) { return (s.heads / s.kv_heads + ITEM_HEADS - 1) / ITEM_HEADS; }
DI int items(const Shape& s) { return s.kv_heads * quads(s); }

struct Item {
    int kv, first_head, heads;
};
DI Item item_of(const Shape& s, int item) {
    const int shared = s.heads / s.kv_heads, quad = item % quads(s), kv = item / quads(s);
    return {kv, kv * shared + quad * ITEM_HEADS, min(ITEM_HEADS, shared - quad * ITEM_HEADS)};
}

// A team's shared memory. A lane reads only the keys and values that it copied itself.
template <int D> struct AttendShared {
    uint4 k[4][D / 16][32];     // [warp][(row g, 16 bytes), (row g + 8, 16 bytes)][lane]: 16 positions a warp
    uint4 v[4][D / 16][32];     // [warp][rows of 16 dims; two pieces of 8 positions][lane]: D / 4 dims a warp
    __half q[2][ITEM_HEADS][D + 8];  // the scaled queries, hi and lo, padded against bank conflicts
    __half p[8][SPAN + 32];     // [hi of 4 heads, lo of 4 heads][position], padded against bank conflicts
    float top[4][ITEM_HEADS], sum[4][ITEM_HEADS];  // of each warp's positions
    int last;
};

DI void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The high or the low half of x = hi + lo.
DI __half part_of(float x, bool low) {
    const __half hi = __float2half_rn(x);
    return low ? __float2half_rn(x - __half2float(hi)) : hi;
}
DI uint32_t pair_of(float x, float y, bool low) {
    const __half2 pair = __halves2half2(part_of(x, low), part_of(y, low));
    return *reinterpret_cast<const uint32_t*>(&pair);
}

constexpr float LOG2_E = 1.44269504f;  // what puts scores in units of log 2
// 2^x and 1 / x to 22 bits or more, as exact as the two f16 of a query. Code that runs once a layer comes from far away: exp_plain and a division are
// 30 instructions where these are one.
DI float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DI float inverse_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Where a lane's pieces of keys and values lie.
template <int D> DI const __half* key_at(const Shape& s, const Layer& l, int slot, int kv, int position, int piece, int lane) {
    return l.k + (((size_t)slot * s.kv_heads + kv) * s.positions + position) * D + piece * 32 + (lane & 3) * 8;
}
template <int D> DI const __half* value_at(const Shape& s, const Layer& l, int slot, int kv, int row, int from, int piece, int w, int lane) {
    const int d = (w * (D / 64) + row / 2) * 16 + (lane >> 2) + 8 * (row & 1);
    return l.v + (((size_t)slot * s.kv_heads + kv) * s.positions + from + piece * 32) * D + d * 32 + (lane & 3) * 8;
}

// Asks for the keys, and for the values, of positions from .. from + 63 that are not past `last`; when `newest` is one of them, for those
// around it alone.
template <int D> DI void fetch_keys(AttendShared<D>& m, const Shape& s, const Layer& l, int slot, int kv, int from, int last, int newest, int w, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int p = from + w * 16 + (lane >> 2) + 8 * r;
        if (p > last || (newest >= 0 && newest != p)) continue;
        const __half* at = key_at<D>(s, l, slot, kv, p, 0, lane);
#pragma unroll
        for (int i = 0; i < D / 32; i++) copy16(&m.k[w][r * (D / 32) + i][lane], at + i * 32);
    }
}
template <int D> DI void fetch_values(AttendShared<D>& m, const Shape& s, const Layer& l, int slot, int kv, int from, int last, int newest, int w, int lane) {
    const int p = from + (lane & 3) * 8;
    bool wanted[2];
#pragma unroll
    for (int i = 0; i < 2; i++) wanted[i] = p + i * 32 <= last && (newest < 0 || (unsigned)(newest - p - i * 32) < 8u);
#pragma unroll
    for (int r = 0; r < D / 32; r++) {
        const __half* at = value_at<D>(s, l, slot, kv, r, from, 0, w, lane);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (wanted[i]) copy16(&m.v[w][r * 2 + i][lane], at + i * 32 * D);
    }
}
template <int D> DI void fetch_span(AttendShared<D>& m, const Shape& s, const Layer& l, int slot, int kv, int from, int last, int newest, int w, int lane) {
    fetch_keys<D>(m, s, l, slot, kv, from, last, newest, w, lane);
    fetch_values<D>(m, s, l, slot, kv, from, last, newest, w, lane);
}

// First position of an item's chunk that is fetched.
DI int begin_of(const Range& range, int chunk) { return max(range.first, chunk * range.length) / SPAN * SPAN; }

// Which halves of a word of two positions, p and p + 1, are within the range: what lies outside may be no number.
DI uint32_t within(int p, const Range& range) {
    const unsigned seen = range.last - range.first;
    return ((unsigned)(p - range.first) <= seen ? 0x0000FFFFu : 0u) | ((unsigned)(p + 1 - range.first) <= seen ? 0xFFFF0000u : 0u);
}

// Rounds 128 columns of attention's output; a whole warp calls it.
DI void round_attention(const Buffers& b, int c, int unit, const float (&o)[4], int lane) {
    const int to = digit_tile(b.attention, c, unit);
    store_digits(o, b.attention.words + to * FRAGMENT, b.attention.scales + to * 4, c & 3, lane, b.attention.beside);
}

// When the first span of a chunk was asked for.
enum Fetched { NOT_YET, BEFORE_NEWEST, COMPLETE };  // BEFORE_NEWEST: perhaps before the newest key and value were written

// One chunk of an item. Scores are in units of log 2, so that weights are powers of two. AHEAD: keys and values are asked for as soon as those before
// them have been used; `next`: first position of the span that the team wants after this chunk, or -1. `sync`: a barrier of the team. `alone`: it is the only chunk, and its output is rounded at once, to the bits that a join of one would make.
template <int D, bool AHEAD, class Sync>
DI void attend_chunk(AttendShared<D>& m, Sync sync, const Shape& s, const Layer& l, const Buffers& b, int c, int slot, const Item& item, const Range& range,
                     int chunk, int next, Fetched fetched, bool alone, int w, int lane) {
    constexpr int PIECES = D / 32, TILES = D / 64;  // 16-byte pieces of a key; tiles of 16 dims a warp
    const int g = lane >> 2, t = lane & 3, two = 2 * (t & 1);  // this lane's sums are of heads two and two + 1
    const int thread = w * 32 + lane;
    float query[4] = {};
    if (thread * 4 < item.heads * D) load4(b.q + ((size_t)c * s.heads + item.first_head) * D + thread * 4, query);
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, o[TILES][4] = {};
    const int begin = begin_of(range, chunk), end = min(range.last, (chunk + 1) * range.length - 1);
#pragma unroll 1
    for (int from = begin; from <= end; from += SPAN) {
        const bool again = fetched == BEFORE_NEWEST && from == begin && range.last < from + SPAN;  // the newest key and value are among them
        if (again) asm volatile("cp.async.wait_all;" ::: "memory");  // two copies to one place would race
        if (from == begin ? fetched == NOT_YET || again : !AHEAD) fetch_span<D>(m, s, l, slot, item.kv, from, range.last, again ? range.last : -1, w, lane);
        const int following = !AHEAD ? -1 : from + SPAN <= end ? from + SPAN : next;
        if (from == begin && thread * 4 < ITEM_HEADS * D) {
            uint32_t* to = reinterpret_cast<uint32_t*>(&m.q[0][thread * 4 / D][thread * 4 % D]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float x = query[2 * i] * (s.scale * LOG2_E), y = query[2 * i + 1] * (s.scale * LOG2_E);
                to[i] = pair_of(x, y, false), to[i + ITEM_HEADS * (D + 8) / 2] = pair_of(x, y, true);
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        if (from == begin) sync();  // the queries are everybody's
        float even[4] = {}, odd[4] = {};
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const uint4 a = m.k[w][i][lane], a8 = m.k[w][PIECES + i][lane];
            const uint4 x = *reinterpret_cast<const uint4*>(&m.q[g >> 2][g & 3][i * 32 + t * 8]);
            mma_f16(even, a.x, a8.x, a.y, a8.y, x.x, x.y);
            mma_f16(odd, a.z, a8.z, a.w, a8.w, x.z, x.w);
        }
        if (following >= 0) fetch_keys<D>(m, s, l, slot, item.kv, following, range.last, -1, w, lane);
        float p[4], most[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int position = from + w * 16 + g + 8 * (j >> 1);
            p[j] = even[j] + odd[j];
            p[j] += __shfl_xor_sync(ALL, p[j], 2);  // hi and lo
            p[j] = position >= range.first && position <= range.last ? p[j] : -INFINITY;
            most[j & 1] = fmaxf(most[j & 1], p[j]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int x = 4; x < 32; x <<= 1) most[j] = fmaxf(most[j], __shfl_xor_sync(ALL, most[j], x));
            if (g == 0 && t < 2) m.top[w][two + j] = most[j];
        }
        sync();
        float shrink[2], added[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float now = top[j];
#pragma unroll
            for (int i = 0; i < 4; i++) now = fmaxf(now, m.top[i][two + j]);
            shrink[j] = exp2_fast(top[j] - now);  // 0 at first
            top[j] = now;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            p[j] = exp2_fast(p[j] - top[j & 1]);
            added[j & 1] += p[j];
            m.p[(t >> 1) * 4 + two + (j & 1)][w * 16 + g + 8 * (j >> 1)] = part_of(p[j], t >> 1);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int x = 4; x < 32; x <<= 1) added[j] += __shfl_xor_sync(ALL, added[j], x);
            if (g == 0 && t < 2) m.sum[w][two + j] = added[j];
        }
        sync();
#pragma unroll
        for (int j = 0; j < 2; j++)
            sum[j] = __fmaf_rn(sum[j], shrink[j], ((m.sum[0][two + j] + m.sum[1][two + j]) + m.sum[2][two + j]) + m.sum[3][two + j]);
        uint4 weight[2];
#pragma unroll
        for (int i = 0; i < 2; i++) weight[i] = *reinterpret_cast<const uint4*>(&m.p[g][i * 32 + t * 8]);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int j = 0; j < 4; j++) o[tile][j] *= shrink[j & 1];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = from + i * 32 + t * 8;
            uint4 mask = make_uint4(ALL, ALL, ALL, ALL);
            if (from < range.first || from + SPAN - 1 > range.last)
                mask = make_uint4(within(at, range), within(at + 2, range), within(at + 4, range), within(at + 6, range));
            auto values = [&](int row) {
                const uint4 v = m.v[w][row * 2 + i][lane];
                return make_uint4(v.x & mask.x, v.y & mask.y, v.z & mask.z, v.w & mask.w);
            };
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const uint4 a = values(2 * tile), a8 = values(2 * tile + 1);
                mma_f16(o[tile], a.x, a8.x, a.y, a8.y, weight[i].x, weight[i].y);
                mma_f16(o[tile], a.z, a8.z, a.w, a8.w, weight[i].z, weight[i].w);
            }
        }
        if (following >= 0) fetch_values<D>(m, s, l, slot, item.kv, following, range.last, -1, w, lane);
    }
    // A head's first value in the partial results: heads lie D columns apart within a unit, units MAX_CHUNKS groups.
    auto place = [&](int head) {
        const int column = (item.first_head + head) * D;
        return ((c * units(s) + column / GROUP) * MAX_CHUNKS + chunk) * GROUP + column % GROUP;
    };
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int j = 0; j < 4; j++) o[tile][j] += __shfl_xor_sync(ALL, o[tile][j], 2);
    if (alone) {
        float* out = reinterpret_cast<float*>(m.v);  // [head][D]
        sync();                                      // everyone has used the values
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (t < 2) out[(two + j) * D + (w * TILES + tile) * 16 + g + 8 * r] = __fmul_rn(__fadd_rn(o[tile][j + 2 * r], 0.f), inverse_fast(sum[j]));
        sync();
        if (w >= item.heads * D / GROUP) return;
        const float4 four = reinterpret_cast<const float4*>(out)[w * 32 + lane];
        round_attention(b, c, item.first_head * D / GROUP + w, {four.x, four.y, four.z, four.w}, lane);
        return;
    }
    if (t >= 2) return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (two + j >= item.heads) continue;
        float* to = b.partial + place(two + j) + w * TILES * 16 + g;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) __stcg(to + tile * 16, o[tile][j]), __stcg(to + tile * 16 + 8, o[tile][j + 2]);
        if (w == 0 && g == 0) __stcg(b.partial_ml + place(two + j) / D, make_float2(top[j], sum[j]));
    }
}

// Joins the at most 32 chunks of a unit, 128 columns of the queries, and rounds them; a whole warp calls it.
template <int D> DI void join_chunks(const Shape& s, const Buffers& b, const Range& range, int c, int unit, int lane) {
    constexpr int H = GROUP / D;
    const int n = range.chunks(), mine = lane * 4 / D;  // the head of the lane's four outputs
    const size_t at = ((size_t)c * units(s) + unit) * MAX_CHUNKS + range.first_chunk();
    float e[H], sum[H], o[4] = {}, part[8][4];
    auto fetch = [&](int i0) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i0 + i < n) load4(b.partial + (at + i0 + i) * GROUP + lane * 4, part[i]);
    };
    fetch(0);
#pragma unroll
    for (int h = 0; h < H; h++) {  // lane i weighs chunk i
        float2 ml = lane < n ? __ldcg(b.partial_ml + (at + lane) * H + h) : make_float2(-INFINITY, 0.f);
        float top = ml.x;
#pragma unroll
        for (int x = 16; x; x >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL, top, x));
        e[h] = exp2_fast(ml.x - top);  // 0 past the last chunk
        sum[h] = sum_lanes(e[h] * ml.y);
    }
#pragma unroll 1
    for (int i0 = 0; i0 < n; i0 += 8) {
        if (i0) fetch(i0);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float weight = __shfl_sync(ALL, e[0], i0 + i);
            if (H == 2) {
                float other = __shfl_sync(ALL, e[H - 1], i0 + i);
                weight = mine ? other : weight;
            }
            if (i0 + i < n)
#pragma unroll
                for (int j = 0; j < 4; j++) o[j] = __fmaf_rn(weight, part[i][j], o[j]);
        }
    }
    const float inverse = inverse_fast(sum[H == 2 ? mine : 0]);
#pragma unroll
    for (int j = 0; j < 4; j++) o[j] = __fmul_rn(o[j], inverse);
    round_attention(b, c, unit, o, lane);
}

// After a team's chunks of an item, the `index`-th, whose chunks `teams` teams share: the last one joins them all; `joined(lane)` is told of each
// rounded group, by a whole warp.
template <int D, class Sync, class Joined>
DI void join_item(AttendShared<D>& m, Sync sync, const Shape& s, const Buffers& b, int c, const Item& item, int index, const Range& range, int teams, int w, int lane,
                  Joined joined) {
    sync();
    if (w == 0 && lane == 0) m.last = arrive_last(b.attention_arrivals + c * items(s) + index, teams);
    sync();
    if (!m.last || w >= item.heads * D / GROUP) return;
    join_chunks<D>(s, b, range, c, item.first_head * D / GROUP + w, lane);
    __syncwarp();
    joined(lane);
}
