// A frame period, or one pass of the layers, in one persistent kernel, for one column (compute capability 9.0, sm_90a). Kernels for
// several columns were tried; docs/cuda.md says what became of them.
//
//   steps × ( scores ─▶ choice ─▶ layers × ( LayerNorm ─▶ k, v, q tiles ─▶ gate, up tiles ─▶ down tiles ─▶ o tiles ─▶ x ) )
//                                                             └▶ RoPE, cache ─▶ attention ─────────────────┘
//
// A block of every multiprocessor stays for all of it. Its warps have roles:
//   consumers  16 warps; warp w multiplies the groups w, w + 16, ... of every packet; what nobody else finishes they do.
//   producer   one lane copies the block's weights in the order of use into a ring in shared memory. It waits for nothing but a free
//              slot and never has more than a few packets under way, so that the memory is busy but its queues are short.
//   team       4 warps finish keys, values and queries and do the attention while the others are at gate, up and down, and the stop
//              head while they are at the logits.
//   finishers  with one column 3 warps finish gate and up, tile after tile. The consumers round the MLP, two blocks, a cluster, for each other.
// Blocks wait for each other through counters that only grow; one thread polls. The code that runs in every layer is kept small: what
// does not fit the instruction cache is fetched from L2 each time, and that is slower than all the arithmetic (docs/cuda.md). The
// order of sums is that of the launches of layer.cu and head.cu, so the bits are the same.
#include "attend.cuh"
#include "bulk.cuh"
#include "head.cuh"

constexpr int BLOCK = 24 * 32;

struct Frame {
    const uint8_t *in, *out;       // tiles of all layers, as in Layer
    size_t in_stride, out_stride;  // bytes a layer
    const Layer* layers;
    unsigned* counters;            // [COUNTERS][32], 0 at the start and left so
    uint32_t* maxima;              // [columns][tiles of the head] largest key of a tile's rows
    int count, columns, tiles;     // layers; columns; tiles of a layer's input
    int steps, head;               // passes; 1: scores and a choice before each of them, 0: one pass alone
    int last_pass;                 // 1: the last step passes through the layers as well, 0: it ends with the choice
    int depth, slots;              // packets under way; slots of the ring
    int round;                     // tiles whose partial sums are kept
    int early_packets;             // of down_proj, with one column: they wait only for the first part of the MLP,
    int early_tiles;               // which these tiles of each block leave
    // Where things lie in dynamic shared memory, in bytes; decoder/frame.rs decides. After `Shared`: digits, or a Choice; their
    // scales; the layers; partial sums [round][groups][columns][16]; the ring.
    uint32_t words_at, scales_at, layers_at, part_at, ring_at;
    __device__ __forceinline__ int layers_in(int step) const { return step + 1 < steps || last_pass ? count : 0; }
};
enum Counter { X = 0, QUERIES = 32, MLP_FIRST = 64, MLP = 96, ATTENTION = 160, LOGITS = 192, START = 224, FINISHED = 256 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int CONSUMERS = 16, FIRST_OF_TEAM = 16, PRODUCER = 20, FIRST_FINISHER = 21, FINISHERS = 3;  // warps
constexpr int PACKET = CONSUMERS * TILE4;   // bytes of a ring slot
constexpr int MOST_SLOTS = 12;
constexpr int MOST_TILES = 24;              // of a block, that finishers wait for
constexpr int CHOSEN = 1024;                // rows a choice may have to compare before it takes the slow way
constexpr int MOST_BLOCKS = 256;
constexpr int HEAD_TILES = 3;               // a thread's tiles of the head at most

// ---- barriers of some roles ----------------------------------------------------------------------------------------------------
DI void team_sync() { asm volatile("bar.sync 1, %0;" ::"n"(TEAM) : "memory"); }
DI void consumers_sync() { asm volatile("bar.sync 2, %0;" ::"n"(CONSUMERS * 32) : "memory"); }
DI void finishers_sync() { asm volatile("bar.sync 4, %0;" ::"n"(FINISHERS * 32) : "memory"); }
// Consumers hand the partial sums of keys, values and queries to the team.
DI void hand_over() { asm volatile("bar.arrive 3, %0;" ::"n"(CONSUMERS * 32 + TEAM) : "memory"); }
DI void take_over() { asm volatile("bar.sync 3, %0;" ::"n"(CONSUMERS * 32 + TEAM) : "memory"); }

// A place in a ring of `size` slots: every lap turns the parity.
struct Turn {
    int at;
    uint32_t parity;
    __device__ __forceinline__ void next(int size) {
        if (++at == size) at = 0, parity ^= 1;
    }
};

// What the consumers of a choosing block share.
struct Choice {
    uint32_t key[CHOSEN];
    int row[CHOSEN];
    int tile[CHOSEN];
    __align__(16) uint32_t best[MOST_BLOCKS];
    double score[CONSUMERS];
    int winner[CONSUMERS];
    float stop[32];
    int total[CONSUMERS];
    int tiles, rows, bad;
    uint32_t threshold;
};

template <int C, int D> struct __align__(128) Shared {
    AttendShared<D> attend;
    float out[2][CONSUMERS][C][ROWS];
    float2 moments[C * WARPS];
    float2 team_moments[2][WARPS];
    Column columns[C];
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS], summed[MOST_TILES];
    uint64_t begun;           // consumers have the layer's input
    uint64_t peer[2][CONSUMERS];  // what the other block of the cluster rounds for a warp is there, of the two parts of the MLP
    int n_qkv, n_in, n_head;  // this block's tiles
};

extern __shared__ __align__(128) uint8_t frame_shared[];

// What every role is given.
template <int C, int D> struct Block {
    static constexpr int NT = (C + 3) / 4;          // tiles of 4 columns
    const Shape& s;
    const Buffers& b;
    const Frame& f;
    const Head& h;
    const HeadBuffers& hb;
    __device__ __forceinline__ Shared<C, D>& m() const { return *reinterpret_cast<Shared<C, D>*>(frame_shared); }
    __device__ __forceinline__ uint32_t* words() const { return reinterpret_cast<uint32_t*>(frame_shared + f.words_at); }
    __device__ __forceinline__ float2* scales() const { return reinterpret_cast<float2*>(frame_shared + f.scales_at); }
    __device__ __forceinline__ const Layer& layer(int l) const { return reinterpret_cast<const Layer*>(frame_shared + f.layers_at)[l]; }
    __device__ __forceinline__ float* part(int tile) const { return reinterpret_cast<float*>(frame_shared + f.part_at) + tile * groups() * columns() * ROWS; }
    __device__ __forceinline__ uint8_t* packet(int slot) const { return frame_shared + f.ring_at + slot * PACKET; }
    __device__ __forceinline__ int columns() const { return C == 1 ? 1 : f.columns; }
    __device__ __forceinline__ int groups() const { return s.hidden / GROUP; }
    __device__ __forceinline__ int row_tiles() const { return s.hidden / ROWS; }
    __device__ __forceinline__ bool has_rows() const { return (int)blockIdx.x < row_tiles(); }
    __device__ __forceinline__ bool chooses() const { return blockIdx.x == gridDim.x - 1; }  // the last block has no rows where some have none
    __device__ __forceinline__ int down() const { return b.inner.groups; }
    __device__ __forceinline__ int o() const { return b.attention.groups; }
    __device__ __forceinline__ int pairs() const { return (columns() + 1) / 2; }
    __device__ __forceinline__ int head_tiles() const { return (h.count + ROWS - 1) / ROWS; }
    __device__ __forceinline__ int halves() const { return groups() > 1 ? 2 : 1; }  // packets of a head tile
    __device__ __forceinline__ int half_groups(int half) const { return half == 0 ? (groups() + 1) / 2 : groups() / 2; }
    __device__ __forceinline__ unsigned* counter(Counter c) const { return f.counters + c; }
};

// Makes the compiler forget where a value came from. What follows from a warp's and a lane's number alone it would compute once,
// before the loops over steps and layers, and keep in more registers than there are; so each phase starts from a fresh number.
DI void forget(int& value) { asm volatile("" : "+r"(value)); }

// ---- producer ----------------------------------------------------------------------------------------------------------------
template <int C, int D> DI void produce(const Block<C, D>& k) {
    Shared<C, D>& m = k.m();
    Turn to = {0, 1}, oldest = {0, 0};  // the first lap finds every slot empty
    int under_way = 0;
    auto push = [&](const uint8_t* from, int bytes) {
        if (under_way == k.f.depth) {
            barrier_wait(m.full + oldest.at, oldest.parity);
            oldest.next(k.f.slots);
        } else {
            under_way++;
        }
        barrier_wait(m.empty + to.at, to.parity);
        barrier_expect(m.full + to.at, READS_WEIGHTS ? bytes : 0);
        if (READS_WEIGHTS) bulk_copy(k.packet(to.at), from, bytes, m.full + to.at);
        to.next(k.f.slots);
    };
    auto push_groups = [&](const uint8_t* from, int groups) {
#pragma unroll 1
        for (int g = 0; g < groups; g += CONSUMERS) push(from + (size_t)g * TILE4, min(CONSUMERS, groups - g) * TILE4);
    };
#pragma unroll 1
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head)
#pragma unroll 1
            for (int i = 0; i < m.n_head * k.halves(); i++) {
                const int half = k.halves() == 2 ? i & 1 : 0, tile = blockIdx.x + i / k.halves() * gridDim.x;
                push(k.h.rows + ((size_t)tile * k.groups() + half * k.half_groups(0)) * TILE8, k.half_groups(half) * TILE8);
            }
#pragma unroll 1
        for (int l = 0; l < k.f.layers_in(step); l++) {
#pragma unroll 1
            for (int i = 0; i < m.n_in; i++) push(k.f.in + l * k.f.in_stride + (size_t)(blockIdx.x + i * gridDim.x) * k.groups() * TILE4, k.groups() * TILE4);
            if (!k.has_rows()) continue;
            const uint8_t* from = k.f.out + l * k.f.out_stride + (size_t)blockIdx.x * (k.down() + k.o()) * TILE4;
            push_groups(from, k.down());
            push_groups(from + (size_t)k.down() * TILE4, k.o());
        }
    }
}

DI Tile4 tile4_from(const uint8_t* tile, int lane) {
    return {*reinterpret_cast<const uint4*>(tile + lane * 16), *reinterpret_cast<const uint4*>(tile + 512 + lane * 16),
            *reinterpret_cast<const uint2*>(tile + 1024 + (lane >> 2) * 8)};
}
DI Tile8 tile8_from(const uint8_t* tile, int lane) {
    Tile8 t;
#pragma unroll
    for (int s = 0; s < 4; s++) t.step[s] = *reinterpret_cast<const uint4*>(tile + s * 512 + lane * 16);
    return t;
}

// A key below every number for rows that cannot be chosen.
DI uint32_t key_of(const Head& h, const float* logits, int row, bool early) {
    return row >= h.count || (early && row == h.end_row) ? 0u : order(__ldcg(logits + row));
}

// Fills `m` with rows among which the k best surely are: those not below the k-th largest of the blocks' maxima. False when they
// are too many. All consumers call it.
template <int C, int D> DI bool collect(const Block<C, D>& k, Choice& m, int c, int most, bool early, int thread) {
    const int tiles = k.head_tiles(), blocks = gridDim.x;
    const uint32_t* maxima = k.f.maxima + (size_t)c * tiles;
    const float* logits = k.hb.logits + (size_t)c * k.h.count;
    uint32_t mine[HEAD_TILES];
#pragma unroll
    for (int j = 0; j < HEAD_TILES; j++) mine[j] = thread + j * CONSUMERS * 32 < tiles ? __ldcg(maxima + thread + j * CONSUMERS * 32) : 0;
    if (thread < MOST_BLOCKS) {  // of the block's tiles; 0 for blocks that are not
        uint32_t best = 0;
#pragma unroll 8
        for (int i = thread; thread < blocks && i < tiles; i += blocks) best = max(best, __ldcg(maxima + i));
        m.best[thread] = best;
        if (best == 0xFFFFFFFFu) m.bad = 1;
    }
    consumers_sync();
    if (thread < blocks) {
        const uint32_t best = m.best[thread];
        int rank = 0;
#pragma unroll 4
        for (int other = 0; other < blocks; other += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(m.best + other);
            const uint32_t of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; i++) rank += of[i] > best || (of[i] == best && other + i < thread);
        }
        if (rank == most - 1) m.threshold = max(1u, best);
    }
    consumers_sync();
    const uint32_t threshold = m.threshold;
#pragma unroll
    for (int j = 0; j < HEAD_TILES; j++)
        if (mine[j] >= threshold) {
            const int at = atomicAdd(&m.tiles, 1);
            if (at < CHOSEN) m.tile[at] = thread + j * CONSUMERS * 32;
        }
    consumers_sync();
    if (m.tiles > CHOSEN) return false;
#pragma unroll 1
    for (int i = thread; i < m.tiles * ROWS; i += CONSUMERS * 32) {
        const int row = m.tile[i / ROWS] * ROWS + i % ROWS;
        const uint32_t key = key_of(k.h, logits, row, early);
        if (key < threshold) continue;
        const int at = atomicAdd(&m.rows, 1);
        if (at >= CHOSEN) continue;
        m.row[at] = row, m.key[at] = key;
        const int8_t* embedding = k.h.embedding + (size_t)row * k.h.hidden;  // one of them will be wanted soon
        prefetch(k.h.embedding_scale + row);
#pragma unroll 1
        for (int i = 0; i < k.h.hidden; i += 128) prefetch(embedding + i);
    }
    consumers_sync();
    return m.rows <= CHOSEN;
}

DI unsigned long long composite(uint32_t key, int row) { return (unsigned long long)key << 32 | (0xFFFFFFFFu - row); }

// The k-th largest (key, lower row first) of all rows by bisection: the slow way, for large k and masses of equal logits.
DI unsigned long long kth(Choice& m, const Head& h, const float* logits, int k, bool early, int thread) {
    unsigned long long found = 0;
    for (int bit = 63; bit >= 0; bit--) {
        const unsigned long long trial = found | 1ull << bit;
        int n = 0;
        for (int row = thread; row < h.count; row += CONSUMERS * 32) {
            const uint32_t key = key_of(h, logits, row, early);
            n += key && composite(key, row) >= trial;
        }
        n = __reduce_add_sync(ALL, n);
        if ((thread & 31) == 0) m.total[thread >> 5] = n;
        consumers_sync();
        n = 0;
        for (int w = 0; w < CONSUMERS; w++) n += m.total[w];
        consumers_sync();
        if (n >= k) found = trial;
    }
    return found;
}

// Chooses the next token of column `c` as `choose_token` does, and starts the next pass. All consumers of the choosing block call it.
template <int C, int D> DI void choose(const Block<C, D>& k, int c, int thread, unsigned due) {
    Choice& m = *reinterpret_cast<Choice*>(k.words());
    const Head& h = k.h;
    const Column column = k.m().columns[c];
    Sequence& seq = k.hb.sequences[column.slot];
    const int warp = thread >> 5, lane = thread & 31;
    Sequence now;  // of what the choice depends on
    now.temperature = seq.temperature, now.top_k = seq.top_k, now.seed_low = seq.seed_low, now.seed_high = seq.seed_high, now.sequence = seq.sequence;
    now.max_new = seq.max_new, now.step = __ldcg(&seq.step);
    if (thread == 0) {
        m.bad = m.tiles = m.rows = 0, m.threshold = 1;
        await(k.counter(LOGITS), due);
    }
    consumers_sync();
    double score = -CUDART_INF;
    int row = 1 << 30, end = RUNNING;
    float probability = 0;
    if (column.live) {
        const bool early = now.step < h.min_new_tokens;
        const float* logits = k.hb.logits + (size_t)c * h.count;
        const int most = min(now.temperature == 0.f ? 1 : now.top_k, h.count - early);
        float z[2] = {0, 0};  // of the two halves of choose_token's threads
#pragma unroll 1
        for (int i = thread; i < h.inner; i += 1024) {
            z[0] += __ldcg(k.hb.stop + (size_t)c * h.inner + i);
            if (i + CONSUMERS * 32 < h.inner) z[1] += __ldcg(k.hb.stop + (size_t)c * h.inner + i + CONSUMERS * 32);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            z[j] = sum_lanes(z[j]);
            if (lane == 0) m.stop[j * CONSUMERS + warp] = z[j];
        }
        const bool listed = collect(k, m, c, most, early, thread);
        probability = 1.f / (1.f + expf(-(sum_lanes(m.stop[lane]) + h.stop_down_bias)));
        const bool stop = !early && probability > h.stop_threshold;
        const bool bad = (m.bad && !stop) || (!early && !isfinite(probability));
        auto better = [&](double other, int other_row) {
            if (other > score || (other == score && other_row < row)) score = other, row = other_row;
        };
        if (bad || stop) {
            row = h.end_row;
        } else {
            unsigned long long limit = 0;
            if (!listed) limit = kth(m, h, logits, most, early, thread);
            const int n = listed ? m.rows : h.count;
#pragma unroll 1
            for (int i = thread; i < n; i += CONSUMERS * 32) {
                const int mine = listed ? m.row[i] : i;
                const uint32_t key = listed ? m.key[i] : key_of(h, logits, i, early);
                bool among = key && composite(key, i) >= limit;
                if (listed) {
                    int rank = 0;
#pragma unroll 4
                    for (int j = 0; j < n; j++) rank += m.key[j] > key || (m.key[j] == key && m.row[j] < mine);
                    among = rank < most;
                }
                if (among) better(chance(now, value(key), mine), mine);
            }
#pragma unroll 1
            for (int o = 16; o; o >>= 1) better(__shfl_xor_sync(ALL, score, o), __shfl_xor_sync(ALL, row, o));
            if (lane == 0) m.score[warp] = score, m.winner[warp] = row;
            consumers_sync();
            score = m.score[lane & 15], row = m.winner[lane & 15];
#pragma unroll 1
            for (int o = 8; o; o >>= 1) better(__shfl_xor_sync(ALL, score, o), __shfl_xor_sync(ALL, row, o));
            row = min(row, h.count - 1);
        }
        end = bad ? NOT_FINITE : stop ? STOP_HEAD : row == h.end_row ? AUDIO_END : now.step + 1 >= now.max_new ? LENGTH : RUNNING;
        const float scale = h.embedding_scale[row];
#pragma unroll 1
        for (int i = thread * 4; i < h.hidden; i += CONSUMERS * 32 * 4) {
            const char4 e = *reinterpret_cast<const char4*>(h.embedding + (size_t)row * h.hidden + i);
            __stcg(reinterpret_cast<float4*>(k.b.x + (size_t)column.row * h.hidden + i), make_float4(e.x * scale, e.y * scale, e.z * scale, e.w * scale));
        }
        if (thread == 0) {
            __stcg(&seq.step, now.step + 1);
            __stcg(reinterpret_cast<int4*>(k.hb.columns + c), make_int4(column.slot, column.position + 1, end == RUNNING, column.row));
        }
    }
    consumers_sync();
    if (thread == 0) {
        signal(k.counter(START));
        if (column.live) {
            FrameOut& out = k.hb.out[c];
            out.stop_probability[out.tokens] = probability;
            record(h, seq, out, h.ids[row]);
            out.end = end;
        }
    }
}

// silu(gate) * up of a tile's row.
template <int C, int D> DI void leave_mlp(const Block<C, D>& k, int c, int tile, int row, float gate, float up) {
    if (row < 8) __stcg(k.b.mlp + (size_t)c * k.s.intermediate + (tile - first_mlp_tile(k.s)) * 8 + row, silu_times(gate, up));
}

// ---- consumers ---------------------------------------------------------------------------------------------------------------
// Folds down_proj with one column's activations, which a warp copies and rounds; the digits replace the values. The two blocks of a cluster
// each round every other group of a warp and send its digits to the other.
constexpr int SENT = 64 * 4 + 8;  // bytes of a column's digits in a group, and of their scales
template <int C, int D, class WaitFor, class Take>
DI void fold_own(const Block<C, D>& k, unsigned layers, int w, int lane, WaitFor wait_for, Take take, float (&p)[2]) {
    const int n = (k.down() + CONSUMERS - 1) / CONSUMERS;  // packets, and groups of a warp
    float2* scales = k.scales() + w * n;
    uint32_t* own = k.words() + w * n * GROUP;
    const int rank = blockIdx.x & 1, stride = (int)(blockIdx.x | 1) < k.row_tiles() ? 2 : 1;  // 1 where the other block has no rows
#pragma unroll 1
    for (int part = 0; part < 2; part++) {
        const int from = part ? k.f.early_packets : 0, to = min(part ? n : k.f.early_packets, (k.down() - w + CONSUMERS - 1) / CONSUMERS);  // this warp's
        const int first = stride == 1 ? from : from + ((from ^ rank) & 1);
        uint64_t* arrived = k.m().peer[part] + w;
        wait_for(part ? MLP : MLP_FIRST);
        if (stride == 2 && lane == 0) barrier_expect(arrived, max(0, to - from - max(0, to - first + 1) / 2) * SENT);
#pragma unroll 1
        for (int j = first; j < to; j += stride) copy16(own + j * GROUP + lane * 4, k.b.mlp + (w + j * CONSUMERS) * GROUP + lane * 4);
        asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll 2
        for (int j = first; j < to; j += stride) {
            const float4 t = *reinterpret_cast<const float4*>(own + j * GROUP + lane * 4);
            const float v[4] = {t.x, t.y, t.z, t.w};
            store_digits(v, own + j * GROUP, scales + j, 0, lane);
        }
        __syncwarp();
        if (stride == 2) {
            const uint32_t there = address_in(arrived, rank ^ 1);
#pragma unroll 1
            for (int j = first; j < to; j += stride) {
                const uint32_t* digits = own + j * GROUP + lane * 2;
                send(address_in(digits, rank ^ 1), *reinterpret_cast<const uint2*>(digits), there);
                if (lane == 0) send(address_in(scales + j, rank ^ 1), *reinterpret_cast<const uint2*>(scales + j), there);
            }
            barrier_wait_for_peer(arrived, layers & 1);
            __syncwarp();
        }
        auto mine = [&](int j) { return j < to; };
#pragma unroll 1
        for (int j = from; j < (part ? n : k.f.early_packets); j++) {
            uint32_t y[8];
            load_fragment(own + j * GROUP, lane, mine(j) ? 1 : 0, y);
            const float2 sy = mine(j) && (lane & 3) == 0 ? scales[j] : make_float2(0, 0);
            const Tile4 tile = take();
            if (mine(j)) fold_tile4(tile, y, sy, p);
        }
    }
}

// Folds rounded activations that other blocks wrote into p, packet by packet; those of AHEAD packets are asked for early.
// take(): this warp's tile of the next packet.
template <int AHEAD, int C, int D, class Take> DI void fold_packets(const Block<C, D>& k, const Digits& from, int w, int lane, Take take, float (&p)[(C + 3) / 4][2]) {
    constexpr int NT = Block<C, D>::NT;
    uint32_t y[AHEAD][NT][8];
    float2 sy[AHEAD][NT];
    auto fetch = [&](int i, int d) {
        if (i * CONSUMERS + w >= from.groups) return;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const int at = nt * from.groups + i * CONSUMERS + w;
            load_fragment_fresh(from.words + at * FRAGMENT, lane, k.columns() - 4 * nt, y[d][nt]);
            sy[d][nt] = nt * 4 + (lane & 3) < k.columns() ? __ldcg(from.scales + at * 4 + (lane & 3)) : make_float2(0, 0);
        }
    };
    const int n = (from.groups + CONSUMERS - 1) / CONSUMERS;
#pragma unroll
    for (int d = 0; d < AHEAD; d++) fetch(d, d);
#pragma unroll 1
    for (int i = 0; i < n; i += AHEAD) {
#pragma unroll
        for (int d = 0; d < AHEAD; d++) {
            if (i + d >= n) break;
            const Tile4 tile = take();
            if ((i + d) * CONSUMERS + w < from.groups)
#pragma unroll
                for (int nt = 0; nt < NT; nt++) fold_tile4(tile, y[d][nt], sy[d][nt], p[nt]);
            fetch(i + d + AHEAD, d);
        }
    }
}

template <int C, int D> DI void consume(const Block<C, D>& k, int w, int lane) {
    constexpr int NT = Block<C, D>::NT;
    Shared<C, D>& m = k.m();
    Turn slot = {0, 0};
    unsigned layers = 0;  // done
    uint32_t x[NT][8];
    float2 sx[NT];
    auto fresh = [&] { forget(w), forget(lane); };
    auto wait_for = [&](Counter counter, unsigned count) {
        if (w == 0 && lane == 0) await(k.counter(counter), count);
        consumers_sync();
    };
    auto give = [&] {  // the slot back to the producer
        __syncwarp();
        if (lane == 0) barrier_arrive(m.empty + slot.at);
        slot.next(k.f.slots);
    };
    auto take = [&] {
        barrier_wait(m.full + slot.at, slot.parity);
        const Tile4 tile = tile4_from(k.packet(slot.at) + w * TILE4, lane);
        give();
        return tile;
    };
    // LayerNorm of x, and this warp's group of it, once x is there; `renewed`: a choice was made, and with it the columns.
    auto norm = [&](const float* from, float eps, Counter counter, unsigned due, bool renewed) {
        const float4 weight = w < k.groups() ? __ldg(reinterpret_cast<const float4*>(from + w * GROUP + lane * 4)) : make_float4(0, 0, 0, 0);
        wait_for(counter, due);
        const bool renews = renewed && w == 0 && lane < k.columns();
        int4 column = {};
        if (renews) column = __ldcg(reinterpret_cast<const int4*>(k.b.columns + lane));
        // A lane's values wait where the partial sums will be, which is nobody's now: copied, not held, they need no unrolled code.
        float4* values = reinterpret_cast<float4*>(k.part(0)) + w * 32 + lane;
        const int columns = w < k.groups() ? k.columns() : 0, stride = k.groups() * 32;
#pragma unroll 1
        for (int c = 0; c < columns; c++) copy16(values + c * stride, k.b.x + (size_t)m.columns[c].row * k.s.hidden + w * GROUP + lane * 4);
        asm volatile("cp.async.wait_all;" ::: "memory");
        float v[4];  // one column's stay here: soon another warp may put partial sums in their place
        auto value = [&](int c) {
            const float4 t = values[c * stride];
            v[0] = t.x, v[1] = t.y, v[2] = t.z, v[3] = t.w;
        };
#pragma unroll 1
        for (int c = 0; c < columns; c++) {
            value(c);
            const float2 moments = group_moments(v);
            if (lane == 0) m.moments[c * WARPS + w] = moments;
        }
        consumers_sync();
        if (renews) m.columns[lane] = {column.x, column.y, column.z, column.w};
#pragma unroll 1
        for (int c = 0; c < columns; c++) {
            normalize_by(v, join_moments(m.moments + c * WARPS, k.groups(), eps), weight);
            const int at = (c >> 2) * k.groups() + w;
            store_digits(v, k.words() + at * FRAGMENT, k.scales() + at * 4, c & 3, lane);
        }
        __syncwarp();
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const int at = nt * k.groups() + w;
            load_fragment(k.words() + at * FRAGMENT, lane, w < k.groups() ? k.columns() - 4 * nt : 0, x[nt]);
            sx[nt] = w < k.groups() && nt * 4 + (lane & 3) < k.columns() ? k.scales()[at * 4 + (lane & 3)] : make_float2(0, 0);
        }
        fresh();
    };
    auto leave = [&](int tile, int nt, const float (&p)[2]) {  // partial sums
        float* to = k.part(tile) + (w * k.columns() + nt * 4 + (lane & 3)) * ROWS + (lane >> 2);
        if (w < k.groups() && nt * 4 + (lane & 3) < k.columns()) to[0] = p[0], to[8] = p[1];
    };
    // Multiplies the next `n` int4 tiles by x; partial sums go to the places from `at` on, and finishers are `told`.
    auto multiply = [&](int n, int at, bool told) {
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const Tile4 tile = take();
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                float p[2] = {0, 0};
                fold_tile4(tile, x[nt], sx[nt], p);
                leave(at + i, nt, p);
            }
            if (told) {
                __syncwarp();
                if (lane == 0) barrier_arrive(m.summed + at + i);
            }
        }
        fresh();
    };
    auto multiply_head = [&](int n) {
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            Tile8 tile = {};
#pragma unroll 1
            for (int half = 0; half < k.halves(); half++) {
                barrier_wait(m.full + slot.at, slot.parity);
                const int g = w - half * k.half_groups(0);
                if (g >= 0 && g < k.half_groups(half)) tile = tile8_from(k.packet(slot.at) + g * TILE8, lane);
                give();
            }
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                float p[2] = {0, 0};
                fold_tile8(tile, x[nt], sx[nt], p);
                leave(i, nt, p);
            }
        }
        fresh();
    };
    // For `n` tiles whose partial sums begin at place `at`: finish(real, tile, column, row, sum), a half warp a tile and column.
    auto each_tile = [&](int n, int at, auto finish) {
        consumers_sync();
#pragma unroll 1
        for (int first = 2 * w; first < n * k.columns(); first += 2 * CONSUMERS) {
            const int i = first + (lane >> 4), c = C == 1 ? 0 : i % k.columns(), tile = C == 1 ? i : i / k.columns(), row = lane & 15;
            const bool real = i < n * k.columns();
            finish(real, tile, c, row, real ? sum_warps(k.part(at + tile) + c * ROWS + row, k.columns() * ROWS, k.groups()) : 0.f);
        }
        fresh();
    };
    auto leave_out = [&](int which, float (&p)[NT][2]) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (nt * 4 + (lane & 3) < C) m.out[which][w][nt * 4 + (lane & 3)][(lane >> 2) + 8 * r] = p[nt][r];
                p[nt][r] = 0;
            }
    };
    const unsigned x_a_layer = k.row_tiles() * k.pairs();
#pragma unroll 1
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head) {
            norm(k.h.norm, k.h.eps, X, x_a_layer * layers, false);
            uint32_t masked = 0;
            if (lane < k.columns()) masked = __ldcg(&k.hb.sequences[m.columns[lane].slot].step) < k.h.min_new_tokens;
            masked = __ballot_sync(ALL, masked);
#pragma unroll 1
            for (int first = 0; first < m.n_head; first += k.f.round) {
                const int n = min(k.f.round, m.n_head - first);
                multiply_head(n);
                each_tile(n, 0, [&](bool real, int i, int c, int row, float sum) {
                    const int tile = blockIdx.x + (first + i) * gridDim.x, at = tile * ROWS + row;
                    uint32_t key = 0;
                    if (real && at < k.h.count) {
                        const float y = sum * __ldg(k.h.row_scale + at) * k.h.logit_scale;
                        __stcg(k.hb.logits + (size_t)c * k.h.count + at, y);
                        key = !isfinite(y) ? 0xFFFFFFFFu : at == k.h.end_row && (masked >> c & 1) ? 0u : order(y);
                    }
#pragma unroll
                    for (int o = 8; o; o >>= 1) key = max(key, __shfl_xor_sync(ALL, key, o));
                    if (real && row == 0) __stcg(k.f.maxima + (size_t)c * k.head_tiles() + tile, key);
                });
                consumers_sync();
            }
            if (w == 0 && lane == 0) signal(k.counter(LOGITS));
            if (k.chooses()) {
                choose(k, 0, w * 32 + lane, 2 * gridDim.x * (step + 1));
                fresh();
            }
        }
#pragma unroll 1
        for (int l = 0; l < k.f.layers_in(step); l++, layers++) {
            const bool begins = k.f.head && l == 0;
            norm(k.layer(l).norm, k.s.eps, begins ? START : X, begins ? k.columns() * (step + 1) : x_a_layer * layers, begins);
            __syncwarp();  // the other block may write over what all lanes have read
            if (lane == 0) barrier_arrive(&m.begun);
            multiply(m.n_qkv, 0, false);
            hand_over();
            multiply(m.n_in - m.n_qkv, m.n_qkv, true);
            if (!k.has_rows()) continue;
            // The residual that this lane adds to.
            const int c = 2 * w + (lane >> 4), row = lane & 15;
            const bool ends = c < k.columns() && m.columns[c].live;
            float* to = k.b.x + (size_t)m.columns[ends ? c : 0].row * k.s.hidden + blockIdx.x * ROWS + row;
            const float residual = ends ? __ldcg(to) : 0.f;
            float p[NT][2] = {};
            fold_own(k, layers, w, lane, [&](Counter counter) { wait_for(counter, gridDim.x * (layers + 1)); }, take, p[0]);
            leave_out(1, p);
            fresh();
            wait_for(ATTENTION, k.o() * k.columns() * (layers + 1));
            fold_packets<1>(k, k.b.attention, w, lane, take, p);
            leave_out(0, p);
            consumers_sync();
            if (ends) __stcg(to, (residual + sum_warps(&m.out[0][0][c][row], C * ROWS, WARPS)) + sum_warps(&m.out[1][0][c][row], C * ROWS, WARPS));
            __syncwarp();
            if (lane == 0 && w < k.pairs()) signal(k.counter(X));
            fresh();
        }
    }
}

// ---- the team ----------------------------------------------------------------------------------------------------------------
// The stop head: LayerNorm of the normed hidden states, then this block's rows of the inner layer.
template <int C, int D> DI void stop_head(const Block<C, D>& k, int w, int lane) {
    Shared<C, D>& m = k.m();
    static_assert(sizeof(m.attend.k) >= WARPS * GROUP * 4, "hidden states in the place of the keys");
    float* h = reinterpret_cast<float*>(&m.attend);
    const int n = k.groups() > w ? (k.groups() - w + 3) / 4 : 0;  // this warp's groups: w, w + 4, ...
    auto mine = [&](int i) { return reinterpret_cast<float4*>(h) + (w + 4 * i) * 32 + lane; };  // only this lane's until the end
    auto column = [&](int i) { return (w + 4 * i) * GROUP + lane * 4; };
#pragma unroll 1
    for (int i = 0; i < n; i++) copy16(mine(i), k.b.x + (size_t)m.columns[0].row * k.h.hidden + column(i));
    asm volatile("cp.async.wait_all;" ::: "memory");
    // Twice the moments of all: of the hidden state, then of its norm.
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const float4 t = *mine(i);
            const float2 moments = group_moments({t.x, t.y, t.z, t.w});
            if (lane == 0) m.team_moments[which][w + 4 * i] = moments;
        }
        team_sync();
        const float2 stat = join_moments(m.team_moments[which], k.groups(), which ? STOP_EPS : k.h.eps);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const float4 t = *mine(i);
            float v[4] = {t.x, t.y, t.z, t.w};
            if (which == 0) normalize(v, stat, k.h.norm + column(i));
            *mine(i) = which ? stop_input(k.h, v, stat, column(i)) : make_float4(v[0], v[1], v[2], v[3]);
        }
    }
    team_sync();
#pragma unroll 1
    for (int row = blockIdx.x + w * gridDim.x; row < k.h.inner; row += 4 * gridDim.x) stop_row(k.h, k.hb.stop, 1, h, row, lane);
    team_sync();
}

// Calls each(c, item, chunk, range) for this block's share of all chunks of a layer.
template <int C, int D, class Each> DI void share(const Block<C, D>& k, const Layer& layer, Each each) {
    const int n_items = items(k.s);
    int next = blockIdx.x;  // index of the share within the columns from c on
#pragma unroll 1
    for (int c = 0; c < k.columns(); c++) {
        if (!k.m().columns[c].live) continue;
        const Range range = seen(layer, k.m().columns[c].position);
        const int n = range.chunks() * n_items;
#pragma unroll 1
        for (; next < n; next += gridDim.x) each(c, next % n_items, range.first_chunk() + next / n_items, range);
        next -= n;
    }
}

template <int C, int D> DI void attend_beside(const Block<C, D>& k, int w, int lane) {
    Shared<C, D>& m = k.m();
    const bool speaks = w == 0 && lane == 0;
    unsigned layers = 0;  // done
#pragma unroll 1
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head) {
            const int stop_bytes = k.h.hidden * 4;
            for (int i = (w * 32 + lane) * 128; i < stop_bytes; i += TEAM * 128) {  // they were read a token ago
                for (int row = blockIdx.x; row < k.h.inner; row += gridDim.x) prefetch(reinterpret_cast<const uint8_t*>(k.h.stop_up) + (size_t)row * stop_bytes + i);
                prefetch(reinterpret_cast<const uint8_t*>(k.h.stop_norm) + i), prefetch(reinterpret_cast<const uint8_t*>(k.h.stop_norm_bias) + i);
            }
            for (int i = w * 32 + lane; i < m.n_head; i += TEAM) prefetch(k.h.row_scale + (blockIdx.x + i * gridDim.x) * ROWS);
            if (speaks) await(k.counter(X), k.row_tiles() * k.pairs() * layers);
            team_sync();
            stop_head(k, w, lane);
            if (speaks) signal(k.counter(LOGITS));
            forget(w), forget(lane);
        }
#pragma unroll 1
        for (int l = 0; l < k.f.layers_in(step); l++, layers++) {
            const Layer& layer = k.layer(l);
            bool early = !(k.f.head && l == 0);  // the columns are known, and the first keys and values can come before the queries
            if (early) {
                bool first = true;
                share(k, layer, [&](int c, int item, int chunk, const Range& range) {
                    if (!first) return;
                    first = false;
                    fetch_span<D>(m.attend, k.s, layer, m.columns[c].slot, item_of(k.s, item).kv, begin_of(range, chunk), range.last, -1, w, lane);
                });
            }
            forget(w), forget(lane);
            const int mine = 2 * w + (lane >> 4), row = lane & 15;
            auto place_at = [&](int i) {
                const int c = C == 1 ? 0 : i % k.columns();
                return place_of(k.s, layer, k.b, m.columns[c], c, blockIdx.x + (C == 1 ? i : i / k.columns()) * gridDim.x, row);
            };
            Place place = {};
            if (early && mine < m.n_qkv * k.columns()) place = place_at(mine);
            take_over();
#pragma unroll 1
            for (int first = 0; first < m.n_qkv * k.columns(); first += 8) {
                const int i = first + mine, c = C == 1 ? 0 : i % k.columns(), of = C == 1 ? i : i / k.columns();
                const bool real = i < m.n_qkv * k.columns();
                if (real && (first || !early)) place = place_at(i);
                const float v = real ? sum_warps(k.part(of) + c * ROWS + row, k.columns() * ROWS, k.groups()) : 0.f;
                const float pair = __shfl_xor_sync(ALL, v, 1);
                if (real) finish_row(place, row, v, pair, 0.f);
            }
            team_sync();
            if (speaks) signal(k.counter(QUERIES));
            bool waited = false;
            share(k, layer, [&](int c, int index, int chunk, const Range& range) {
                const Item item = item_of(k.s, index);
                forget(w), forget(lane);
                if (!waited) {
                    if (speaks) await(k.counter(QUERIES), gridDim.x * (layers + 1));
                    team_sync();
                }
                attend_chunk<D, false>(m.attend, [] { team_sync(); }, k.s, layer, k.b, c, m.columns[c].slot, item, range, chunk, -1,
                                       early && !waited ? BEFORE_NEWEST : NOT_YET, false, w, lane);
                join_item<D>(m.attend, [] { team_sync(); }, k.s, k.b, c, item, index, range, range.chunks(), w, lane, [&](int lane) {
                    if (lane == 0) signal(k.counter(ATTENTION));
                });
                waited = true;
            });
            if (blockIdx.x == 0 && speaks)  // nobody works for columns that have ended
#pragma unroll 1
                for (int i = 0; i < k.columns() * k.o(); i++)
                    if (!m.columns[i / k.o()].live) signal(k.counter(ATTENTION));
        }
    }
}

// ---- finishers ---------------------------------------------------------------------------------------------------------------
// Gate and up of one column: a half warp a tile, while the consumers are at the next ones.
template <int C, int D> DI void finish(const Block<C, D>& k, int which, int lane) {
    Shared<C, D>& m = k.m();
    uint32_t parity = 0;
#pragma unroll 1
    for (int step = 0; step < k.f.steps; step++)
#pragma unroll 1
        for (int l = 0; l < k.f.layers_in(step); l++, parity ^= 1) {
            // Not before this block's consumers, even where it has no tile to wait for: its arrivals would be taken for another block's,
            // and its consumers may still read what the others go on to write.
            barrier_wait(&m.begun, parity);
            bool told = false;
            auto tell = [&](Counter counter) {
                finishers_sync();
                if (which == 0 && lane == 0) signal(k.counter(counter));
            };
#pragma unroll 1
            for (int first = m.n_qkv + 2 * which; first < m.n_in; first += 2 * FINISHERS) {
                const int i = first + (lane >> 4), row = lane & 15;
                if (!told && first >= k.f.early_tiles) tell(MLP_FIRST), told = true;
                const bool real = i < m.n_in;
                if (real) barrier_wait(m.summed + i, parity);
                __syncwarp();
                const float sum = real ? sum_warps(k.part(i) + row, ROWS, k.groups()) : 0.f, up = __shfl_xor_sync(ALL, sum, 8);
                if (real && m.columns[0].live) leave_mlp(k, 0, blockIdx.x + i * gridDim.x, row, sum, up);
            }
            if (!told) tell(MLP_FIRST);
            tell(MLP);
        }
}

// ---- the kernel --------------------------------------------------------------------------------------------------------------
// Grid: one block a multiprocessor, an even number, all resident (cooperative launch), at least hidden / 16; block: 768 threads. At most C columns.
template <int C, int D> DI void run(const Block<C, D>& k) {
    Shared<C, D>& m = k.m();
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        auto share_of = [&](int tiles) { return max(0, (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x); };
        m.n_qkv = share_of(first_mlp_tile(k.s)), m.n_in = share_of(k.f.tiles), m.n_head = share_of(k.head_tiles());
        for (int i = 0; i < k.f.slots; i++) barrier_init(m.full + i, 1), barrier_init(m.empty + i, CONSUMERS);
        for (int i = 0; i < MOST_TILES; i++) barrier_init(m.summed + i, CONSUMERS);
        barrier_init(&m.begun, CONSUMERS);
        for (int i = 0; i < 2 * CONSUMERS; i++) barrier_init(&m.peer[0][0] + i, 1);
        barriers_ready();
    }
    if (threadIdx.x < k.columns()) m.columns[threadIdx.x] = k.b.columns[threadIdx.x];
    for (int i = threadIdx.x; i < k.f.count * (int)sizeof(Layer) / 8; i += BLOCK)
        reinterpret_cast<uint64_t*>(frame_shared + k.f.layers_at)[i] = reinterpret_cast<const uint64_t*>(k.f.layers)[i];
    cluster_sync();  // the other block sends only what finds its barriers ready
    // A block of 768 threads is given 80 registers a thread: 480 for six times four warps, dealt as the roles need them.
    if (w < FIRST_OF_TEAM) {
        consume(k, w, lane);
    } else if (w < PRODUCER) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        attend_beside(k, w - FIRST_OF_TEAM, lane);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
        if (w == PRODUCER && lane == 0) produce(k);
        if (w >= FIRST_FINISHER) finish(k, w - FIRST_FINISHER, lane);
    }
    __syncwarp();
    __syncthreads();
    if (threadIdx.x == 0 && arrive_last(k.counter(FINISHED), gridDim.x))
        for (int i = 0; i < FINISHED; i += 32) k.f.counters[i] = 0;
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PAIRS __cluster_dims__(2)
#define BODY(C, D) run<C, D>({s, b, f, h, hb});
#else
#define PAIRS
#define BODY(C, D)  // launched on compute capability 9.0 only
#endif
#define KERNEL(C, D)                                                                                                                        \
    extern "C" __global__ void PAIRS __launch_bounds__(BLOCK, 1) frame_##C##_##D(const __grid_constant__ Shape s, const __grid_constant__ Buffers b,  \
                                                                           const __grid_constant__ Frame f, const __grid_constant__ Head h,     \
                                                                           const __grid_constant__ HeadBuffers hb) {                            \
        BODY(C, D)                                                                                                                          \
    }
KERNEL(1, 128)

static_assert(sizeof(Frame) == 120, "as in kernels.rs");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static_assert(sizeof(Shared<1, 128>) <= 39936 && sizeof(Choice) <= 14336, "as in decoder/frame.rs");
#endif
