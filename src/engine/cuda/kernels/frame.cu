// A frame period, or one pass of the layers, in one persistent kernel, for up to 8 columns (compute capability 9.0 and up).
//
//   steps × ( scores ─▶ choice ─▶ layers × ( LayerNorm ─▶ k, v, q tiles ─▶ gate, up tiles ─▶ down tiles ─▶ o tiles ─▶ x ) )
//                                                             └▶ RoPE, cache ─▶ attention ─────────────────┘
//
// A block of every multiprocessor stays for all of it. Its warps have roles:
//   producer   one lane copies the block's weights in the order of use into a ring in shared memory. It waits for nothing but a free
//              slot and never has more than a few packets under way, so that the memory is busy but its queues are short.
//   consumers  16 warps; warp w multiplies the groups w, w + 16, ... of every packet.
//   finishers  sum a tile over the consumers' partial results: RoPE, cache, silu(gate) * up, logits, the residual.
//   team       4 warps do the attention while the others are at gate and up, and the stop head while they are at the logits.
//   watcher    one lane polls the counters through which blocks wait for each other, and passes each event on inside the block, so
//              that an event which came early costs nobody a trip to L2.
// The order of sums is that of the launches of layer.cu and head.cu, so the bits are the same.
#include "attend.cuh"
#include "head.cuh"

constexpr int BLOCK = 24 * 32;

struct Frame {
    const uint8_t *in, *out;       // tiles of all layers, as in Layer
    size_t in_stride, out_stride;  // bytes a layer
    const Layer* layers;
    unsigned* counters;            // [9][32], 0 at the start and left so
    uint32_t* maxima;              // [columns][blocks][FINISHERS] largest key of the rows a finisher summed
    int count, columns, tiles;     // layers; columns; tiles of a layer's input
    int steps, head;               // passes; 1: scores and a choice before each of them, 0: one pass alone
    int last_pass;                 // 1: the last step passes through the layers as well, 0: it ends with the choice
    int depth, slots;              // packets under way; slots of the ring
    int first_down;                // packets of down_proj that may start before the last MLP groups are complete
    int pad;
    __device__ __forceinline__ int layers_in(int step) const { return step + 1 < steps || last_pass ? count : 0; }
};
enum Counter { X = 0, QUERIES = 32, MLP_FIRST = 64, MLP_LAST = 96, ROUNDED = 128, ATTENTION = 160, LOGITS = 192, START = 224, FINISHED = 256 };
enum Event { X_READY, MLP_FIRST_READY, MLP_LAST_READY, ATTENTION_READY, LOGITS_READY, START_READY, EVENTS };

#if __CUDA_ARCH__ >= 900
constexpr int CONSUMERS = 16, FINISHERS = 2;                      // warps
constexpr int FIRST_FINISHER = 20, WATCHER = 22, PRODUCER = 23;   // warps 0..3 are the team, 4..19 the consumers
constexpr int PACKET = CONSUMERS * TILE4;   // bytes of a ring slot
constexpr int PARTS = 4;                    // tiles whose partial sums are kept
constexpr int MOST_SLOTS = 12;
constexpr int CHOSEN = 1024;                // rows a choice may have to compare before it takes the slow way

// ---- barriers in shared memory -----------------------------------------------------------------------------------------------
DI uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
DI void barrier_init(uint64_t* b, int arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory"); }
DI void barrier_arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory"); }
DI void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
// Waits for the end of the phase of this parity. A wait of seconds is a fault.
DI void barrier_wait(uint64_t* b, uint32_t parity) {
    uint32_t done = 0;
    for (int spins = 0; !done; spins++) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
        if (spins > 1 << 24) __trap();
    }
}
DI void bulk_copy(void* to, const void* from, int bytes, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "r"(shared_address(b)) : "memory");
}
DI void team_sync() { asm volatile("bar.sync 1, %0;" ::"n"(TEAM) : "memory"); }
DI void consumers_sync() { asm volatile("bar.sync 2, %0;" ::"n"(CONSUMERS * 32) : "memory"); }

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
    double score[CONSUMERS];
    int winner[CONSUMERS];
    float stop[32];
    int total[CONSUMERS];
    int count, bad;
    uint32_t threshold;
};

template <int C, int D> struct Shared {
    static constexpr int NT = (C + 3) / 4;  // tiles of 4 columns
    AttendShared<D> attend;
    float out[2][CONSUMERS][C][ROWS];
    float2 moments[C * WARPS];
    float2 team_moments[2][WARPS];
    float2 stats[4];
    Column columns[C];
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS], part_full[PARTS], part_empty[PARTS], out_full, event[EVENTS];
};

extern __shared__ __align__(128) uint8_t frame_shared[];

// All that a block knows, at the start of its dynamic shared memory: one copy, and addresses that the compiler knows. (Held in
// registers it would spill, and what 768 threads spill does not fit the L1 cache beside the ring.)
template <int C, int D> struct __align__(128) Work {
    static constexpr int NT = (C + 3) / 4;
    static constexpr bool OWN_ROUNDING = C == 1;  // every block rounds the MLP for itself: a trip to L2 less, but more to read
    Shape s;
    Buffers b;
    Frame f;
    Head h;
    HeadBuffers hb;
    Shared<C, D> m;
    int groups, down, o, blocks, row_tiles, n_in, n_head;  // groups of x, MLP and attention; blocks; rows / 16; this block's tiles
    bool has_rows;
    uint32_t layers_at, scales_at, part_at, ring_at;       // bytes from the start

    // Copies of the layers; [column tiles][16 groups][256] digits, or a Choice; their scales; [PARTS][groups][columns][16] partial sums.
    __device__ __forceinline__ const Layer& layer(int l) const { return reinterpret_cast<const Layer*>(frame_shared + layers_at)[l]; }
    __device__ __forceinline__ uint32_t* words() const { return reinterpret_cast<uint32_t*>(frame_shared + sizeof(Work)); }
    __device__ __forceinline__ float2* scales() const { return reinterpret_cast<float2*>(frame_shared + scales_at); }
    __device__ __forceinline__ float* part_of_tile(int slot) const { return reinterpret_cast<float*>(frame_shared + part_at) + slot * groups * f.columns * ROWS; }
    __device__ __forceinline__ uint8_t* packet(int slot) const { return frame_shared + ring_at + slot * PACKET; }
    __device__ __forceinline__ int pairs() const { return (f.columns + 1) / 2; }  // of columns; a finisher ends one after the other
    __device__ __forceinline__ int down_packets() const { return (down + CONSUMERS - 1) / CONSUMERS; }
    __device__ __forceinline__ int first_groups() const { return min(down, f.first_down * CONSUMERS); }
    __device__ __forceinline__ int halves() const { return groups > 1 ? 2 : 1; }  // packets of a head tile
    __device__ __forceinline__ int half_groups(int half) const { return half == 0 ? (groups + 1) / 2 : groups / 2; }
};

template <int C, int D> DI Work<C, D>& work() { return *reinterpret_cast<Work<C, D>*>(frame_shared); }

// Makes the compiler forget where a value came from. What follows from a warp's and a lane's number alone it would compute once,
// before the loops over steps and layers, and keep in more registers than there are; so each phase starts from a fresh number.
DI void forget(int& value) { asm volatile("" : "+r"(value)); }

#define ROLE DI void

// ---- producer ----------------------------------------------------------------------------------------------------------------
template <int C, int D> ROLE produce() {
    Work<C, D>& k = work<C, D>();
    Turn to = {0, 1}, oldest = {0, 0};  // the first lap finds every slot empty
    int under_way = 0;
    auto push = [&](const uint8_t* from, int bytes) {
        if (under_way == k.f.depth) {
            barrier_wait(&k.m.full[oldest.at], oldest.parity);
            oldest.next(k.f.slots);
        } else {
            under_way++;
        }
        barrier_wait(&k.m.empty[to.at], to.parity);
        barrier_expect(&k.m.full[to.at], READS_WEIGHTS ? bytes : 0);
        if (READS_WEIGHTS) bulk_copy(k.packet(to.at), from, bytes, &k.m.full[to.at]);
        to.next(k.f.slots);
    };
    auto push_groups = [&](const uint8_t* from, int groups) {
        for (int g = 0; g < groups; g += CONSUMERS) push(from + (size_t)g * TILE4, min(CONSUMERS, groups - g) * TILE4);
    };
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head)
            for (int i = 0; i < k.n_head; i++) {
                const uint8_t* from = k.h.rows + (size_t)(blockIdx.x + i * k.blocks) * k.groups * TILE8;
                for (int half = 0; half < k.halves(); half++) push(from + (size_t)half * k.half_groups(0) * TILE8, k.half_groups(half) * TILE8);
            }
        for (int l = 0; l < k.f.layers_in(step); l++) {
            for (int i = 0; i < k.n_in; i++) push(k.f.in + l * k.f.in_stride + (size_t)(blockIdx.x + i * k.blocks) * k.groups * TILE4, k.groups * TILE4);
            if (!k.has_rows) continue;
            const uint8_t* from = k.f.out + l * k.f.out_stride + (size_t)blockIdx.x * (k.down + k.o) * TILE4;
            push_groups(from, k.down);
            push_groups(from + (size_t)k.down * TILE4, k.o);
        }
    }
}

// ---- watcher -----------------------------------------------------------------------------------------------------------------
template <int C, int D> ROLE watch() {
    Work<C, D>& k = work<C, D>();
    auto pass_on = [&](Counter counter, unsigned count, Event event) {
        await(k.f.counters + counter, count);
        barrier_arrive(&k.m.event[event]);
    };
    const unsigned x = k.row_tiles * k.pairs(), mlp = k.blocks * FINISHERS, attention = k.o * k.f.columns;
    const unsigned logits = (k.h.count + ROWS - 1) / ROWS + k.h.inner * ((k.f.columns + 3) / 4);
    unsigned layer = 0;  // layers done
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head) {
            if (step) pass_on(X, x * layer, X_READY);
            if (blockIdx.x < k.f.columns) pass_on(LOGITS, logits * (step + 1), LOGITS_READY);
            await(k.f.counters + START, k.f.columns * (step + 1));
            for (int c = 0; c < k.f.columns; c++) {
                const int4 v = __ldcg(reinterpret_cast<const int4*>(k.b.columns + c));
                k.m.columns[c] = {v.x, v.y, v.z, v.w};
            }
            barrier_arrive(&k.m.event[START_READY]);
        }
        for (int l = 0; l < k.f.layers_in(step); l++, layer++) {
            if (l) pass_on(X, x * layer, X_READY);
            if (!k.has_rows) continue;
            if constexpr (Work<C, D>::OWN_ROUNDING) {
                pass_on(MLP_FIRST, mlp * (layer + 1), MLP_FIRST_READY);
                pass_on(MLP_LAST, mlp * (layer + 1), MLP_LAST_READY);
            } else {
                pass_on(ROUNDED, mlp * (layer + 1), MLP_LAST_READY);
            }
            pass_on(ATTENTION, attention * (layer + 1), ATTENTION_READY);
        }
    }
}

// ---- finishers ---------------------------------------------------------------------------------------------------------------
// Logits of a head tile, and the largest keys of this finisher's rows so far.
template <int C, int D> DI void finish_logits(Work<C, D>& k, const float* part, int tile, int lane, uint32_t masked, uint32_t (&best)[(C + 1) / 2]) {
    const int row = tile * ROWS + (lane & 15);
    const bool real = row < k.h.count;
    const float scale = real ? __ldg(k.h.row_scale + row) : 0.f;
#pragma unroll
    for (int i = 0; i < (C + 1) / 2; i++) {
        const int c = 2 * i + (lane >> 4);
        if (c >= k.f.columns || !real) continue;
        const float y = sum_warps(part + c * ROWS + (lane & 15), k.f.columns * ROWS, k.groups) * scale * k.h.logit_scale;
        __stcg(k.hb.logits + (size_t)c * k.h.count + row, y);
        const uint32_t key = row == k.h.end_row && (masked >> c & 1) ? 0u : order(y);
        best[i] = max(best[i], isfinite(y) ? key : 0xFFFFFFFFu);
    }
}

// Rounds this finisher's share of the complete MLP groups of all columns.
template <int C, int D> DI void round_share(Work<C, D>& k, int which, int lane) {
    const int n = k.down * k.f.columns, stride = k.blocks * FINISHERS;
    for (int first = blockIdx.x * FINISHERS + which; first < n; first += 4 * stride) {
        float v[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = first + j * stride;
            if (i < n) load4(k.b.mlp + (size_t)(i % k.f.columns) * k.s.intermediate + i / k.f.columns * GROUP + lane * 4, v[j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = first + j * stride, c = i % k.f.columns, at = (c >> 2) * k.down + i / k.f.columns;
            if (i < n) store_digits(v[j], k.b.inner.words + at * FRAGMENT, k.b.inner.scales + at * 4, c & 3, lane);
        }
    }
}

template <int C, int D> ROLE finish(int which, int lane) {
    Work<C, D>& k = work<C, D>();
    const int last_tiles = first_mlp_tile(k.s) + 16 * k.first_groups();  // from here on
    unsigned layers = 0;  // done
    Turn part = {0, 0};
    uint32_t out_parity = 0, start_parity = 0;
    auto skip = [&](int tiles) {  // to this finisher's next tile
        for (int i = 0; i < tiles; i++) part.next(PARTS);
    };
    // For this finisher's share of `n` tiles, in order: sums(i, partial sums).
    auto each_tile = [&](int n, auto sums) {
        skip(min(which, n));
        for (int i = which; i < n; i += FINISHERS) {
            barrier_wait(&k.m.part_full[part.at], part.parity);
            sums(i, k.part_of_tile(part.at));
            __syncwarp();
            if (lane == 0) barrier_arrive(&k.m.part_empty[part.at]);
            skip(min(FINISHERS, n - i));
        }
    };
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head) {
            uint32_t best[(C + 1) / 2] = {}, masked = 0;
            if (lane < k.f.columns) {
                masked = __ldcg(&k.hb.sequences[k.m.columns[lane].slot].step) < k.h.min_new_tokens;
            }
            masked = __ballot_sync(ALL, masked);
            each_tile(k.n_head, [&](int i, const float* sums) {
                finish_logits(k, sums, blockIdx.x + i * k.blocks, lane, masked, best);
                __syncwarp();
                if (lane == 0 && i + FINISHERS < k.n_head) signal(k.f.counters + LOGITS);
            });
#pragma unroll
            for (int i = 0; i < (C + 1) / 2; i++) {
                for (int o = 8; o; o >>= 1) best[i] = max(best[i], __shfl_xor_sync(ALL, best[i], o));
                const int c = 2 * i + (lane >> 4);
                if ((lane & 15) == 0 && c < k.f.columns && which < k.n_head) __stcg(k.f.maxima + ((size_t)c * k.blocks + blockIdx.x) * FINISHERS + which, best[i]);
            }
            __syncwarp();
            if (lane == 0 && which < k.n_head) signal(k.f.counters + LOGITS);  // for the last tile, and the maxima before it
            barrier_wait(&k.m.event[START_READY], start_parity);
            start_parity ^= 1;
        }
        for (int l = 0; l < k.f.layers_in(step); l++) {
            const Layer& layer = k.layer(l);
            bool early = true;  // before the last MLP groups
            each_tile(k.n_in, [&](int i, const float* sums) {
                const int tile = blockIdx.x + i * k.blocks;
                if (early && tile >= last_tiles) {
                    if (lane == 0) signal(k.f.counters + MLP_FIRST);
                    early = false;
                }
                forget(lane);
                finish_tile(k.s, layer, k.b, k.m.columns, k.f.columns, k.groups, sums, tile, lane);
                __syncwarp();
                if (lane == 0 && tile < first_mlp_tile(k.s)) signal(k.f.counters + QUERIES);
            });
            if (lane == 0) {
                if (early) signal(k.f.counters + MLP_FIRST);
                signal(k.f.counters + MLP_LAST);
            }
            if constexpr (!Work<C, D>::OWN_ROUNDING) {
                if (lane == 0) await(k.f.counters + MLP_LAST, k.blocks * FINISHERS * ++layers);
                __syncwarp();
                round_share(k, which, lane);
                __syncwarp();
                if (lane == 0) signal(k.f.counters + ROUNDED);
            }
            if (!k.has_rows) continue;
            for (int pair = which; pair < k.pairs(); pair += FINISHERS) {
                const int c = 2 * pair + (lane >> 4), row = lane & 15;
                const bool ok = c < k.f.columns && k.m.columns[c].live;
                float* to = k.b.x + (size_t)k.m.columns[ok ? c : 0].row * k.s.hidden + blockIdx.x * ROWS + row;
                const float x = ok ? __ldcg(to) : 0.f;
                barrier_wait(&k.m.out_full, out_parity);
                if (ok) {
                    const int stride = C * ROWS;
                    __stcg(to, (x + sum_warps(&k.m.out[0][0][c][row], stride, WARPS)) + sum_warps(&k.m.out[1][0][c][row], stride, WARPS));
                }
                __syncwarp();
                if (lane == 0) signal(k.f.counters + X);
            }
            out_parity ^= 1;
        }
    }
}

// ---- consumers ---------------------------------------------------------------------------------------------------------------
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

// Fills `m` with rows among which the k best surely are: those not below the k-th largest of the finishers' maxima. False when
// they are too many. All consumers call it.
DI bool collect(Choice& m, const Head& h, const uint32_t* maxima, int classes, const float* logits, int k, bool early, int thread) {
    uint32_t* best = m.key;  // the maxima, until the rows come
    for (int i = thread; i < classes; i += CONSUMERS * 32) {
        best[i] = __ldcg(maxima + i);
        if (best[i] == 0xFFFFFFFFu) m.bad = 1;
    }
    if (thread == 0) m.count = 0, m.threshold = 1;
    consumers_sync();
    uint32_t mine[2] = {};
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = thread + j * CONSUMERS * 32;
        if (i >= classes) continue;
        mine[j] = best[i];
        int rank = 0;
#pragma unroll 8
        for (int other = 0; other < classes; other++) rank += best[other] > mine[j] || (best[other] == mine[j] && other < i);
        if (rank == k - 1) m.threshold = max(1u, mine[j]);
    }
    consumers_sync();
    const uint32_t threshold = m.threshold;
    const int blocks = classes / FINISHERS, tiles = (h.count + ROWS - 1) / ROWS, warp = thread >> 5, lane = thread & 31;
    // A warp looks at the rows of the classes among its own that reach the threshold.
#pragma unroll
    for (int j = 0; j < 2; j++) {
        unsigned hot = __ballot_sync(ALL, mine[j] >= threshold);
        while (hot) {
            const int index = __ffs(hot) - 1 + warp * 32 + j * CONSUMERS * 32, block = index / FINISHERS, which = index % FINISHERS;
            hot &= hot - 1;
            for (int i = which + FINISHERS * (lane >> 4); block + i * blocks < tiles; i += 2 * FINISHERS) {
                const int row = (block + i * blocks) * ROWS + (lane & 15);
                const uint32_t key = key_of(h, logits, row, early);
                if (key < threshold) continue;
                const int at = atomicAdd(&m.count, 1);
                if (at < CHOSEN) m.row[at] = row;
            }
        }
    }
    consumers_sync();
    return m.count <= CHOSEN;
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

// Chooses the next token of column `c` as `choose_token` does, and starts the next pass. All consumers of block c call it.
template <int C, int D> ROLE choose(int c, int thread) {
    Work<C, D>& k = work<C, D>();
    Choice& m = *reinterpret_cast<Choice*>(k.words());
    const Head& h = k.h;
    const Column column = k.m.columns[c];
    Sequence& seq = k.hb.sequences[column.slot];
    const bool live = __ldcg(&k.b.columns[c].live);
    if (live) {
        Sequence now;  // of what the choice depends on
        now.temperature = seq.temperature, now.top_k = seq.top_k, now.seed_low = seq.seed_low, now.seed_high = seq.seed_high, now.sequence = seq.sequence;
        now.step = __ldcg(&seq.step);
        const bool early = now.step < h.min_new_tokens;
        const float* logits = k.hb.logits + (size_t)c * h.count;
        const int warp = thread >> 5, lane = thread & 31, most = min(now.temperature == 0.f ? 1 : now.top_k, h.count - early);
        if (thread == 0) m.bad = 0;
        float z = 0;
        for (int i = thread; i < h.inner; i += 1024) z += __ldcg(k.hb.stop + (size_t)c * h.inner + i);
        float z2 = 0;  // of the second half of choose_token's threads
        for (int i = thread + CONSUMERS * 32; i < h.inner; i += 1024) z2 += __ldcg(k.hb.stop + (size_t)c * h.inner + i);
        consumers_sync();
        z = sum_lanes(z), z2 = sum_lanes(z2);
        if (lane == 0) m.stop[warp] = z, m.stop[CONSUMERS + warp] = z2;
        const bool listed = collect(m, h, k.f.maxima + (size_t)c * k.blocks * FINISHERS, k.blocks * FINISHERS, logits, most, early, thread);
        z = sum_lanes(m.stop[lane]) + h.stop_down_bias;
        const float probability = 1.f / (1.f + expf(-z));
        const bool stop = !early && probability > h.stop_threshold;
        const bool bad = (m.bad && !stop) || (!early && !isfinite(probability));
        double score = -CUDART_INF;
        int row = 1 << 30;
        auto better = [&](double other, int other_row) {
            if (other > score || (other == score && other_row < row)) score = other, row = other_row;
        };
        if (bad || stop) {
            row = h.end_row;
        } else {
            if (listed) {
                const int n = m.count;
                for (int i = thread; i < n; i += CONSUMERS * 32) m.key[i] = key_of(h, logits, m.row[i], early);
                consumers_sync();
                for (int i = thread; i < n; i += CONSUMERS * 32) {
                    const uint32_t key = m.key[i];
                    const int mine = m.row[i];
                    int rank = 0;
#pragma unroll 4
                    for (int j = 0; j < n; j++) rank += m.key[j] > key || (m.key[j] == key && m.row[j] < mine);
                    if (rank < most) better(chance(now, value(key), mine), mine);
                }
            } else {
                const unsigned long long limit = kth(m, h, logits, most, early, thread);
                for (int i = thread; i < h.count; i += CONSUMERS * 32) {
                    const uint32_t key = key_of(h, logits, i, early);
                    if (key && composite(key, i) >= limit) better(chance(now, value(key), i), i);
                }
            }
            for (int o = 16; o; o >>= 1) better(__shfl_xor_sync(ALL, score, o), __shfl_xor_sync(ALL, row, o));
            if (lane == 0) m.score[warp] = score, m.winner[warp] = row;
            consumers_sync();
            score = m.score[lane & 15], row = m.winner[lane & 15];
            for (int o = 8; o; o >>= 1) better(__shfl_xor_sync(ALL, score, o), __shfl_xor_sync(ALL, row, o));
            row = min(row, h.count - 1);
        }
        const float scale = h.embedding_scale[row];
        for (int i = thread * 4; i < h.hidden; i += CONSUMERS * 32 * 4) {
            const char4 e = *reinterpret_cast<const char4*>(h.embedding + (size_t)row * h.hidden + i);
            __stcg(reinterpret_cast<float4*>(k.b.x + (size_t)column.row * h.hidden + i), make_float4(e.x * scale, e.y * scale, e.z * scale, e.w * scale));
        }
        if (thread == 0) {
            FrameOut& out = k.hb.out[c];
            out.stop_probability[out.tokens] = probability;
            record(h, seq, out, h.ids[row]);
            __stcg(&seq.step, now.step + 1);
            const int end = bad ? NOT_FINITE : stop ? STOP_HEAD : row == h.end_row ? AUDIO_END : now.step + 1 >= seq.max_new ? LENGTH : RUNNING;
            out.end = end;
            const Column next = {column.slot, __ldcg(&k.b.columns[c].position) + 1, end == RUNNING, column.row};
            __stcg(reinterpret_cast<int4*>(k.hb.columns + c), make_int4(next.slot, next.position, next.live, next.row));
        }
    }
    consumers_sync();
    if (thread == 0) signal(k.f.counters + START);
}

template <int C, int D> ROLE consume(int w, int lane) {
    Work<C, D>& k = work<C, D>();
    constexpr int NT = Work<C, D>::NT;
    const int slots = k.f.slots;
    auto fresh = [&] { forget(w), forget(lane); };
    Turn slot = {0, 0}, part = {0, 1};
    uint32_t x_parity = 0, start_parity = 0, logits_parity = 0, out_parity = 0;
    auto wait_for = [&](Event event, uint32_t parity) { barrier_wait(&k.m.event[event], parity); };
    auto give = [&] {  // the slot back to the producer
        __syncwarp();
        if (lane == 0) barrier_arrive(&k.m.empty[slot.at]);
        slot.next(slots);
    };
    // LayerNorm of x, and this warp's group of it.
    uint32_t x[NT][8];
    float2 sx[NT];
    auto norm = [&](const float* weight, float eps) {
        norm_digits<C>([] { consumers_sync(); }, k.b.x, k.m.columns, k.f.columns, weight, k.groups, eps, k.m.moments, k.words(), k.scales(), w, lane);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const int at = nt * k.groups + w;
            load_fragment(k.words() + at * FRAGMENT, lane, w < k.groups ? k.f.columns - 4 * nt : 0, x[nt]);
            sx[nt] = w < k.groups && nt * 4 + (lane & 3) < k.f.columns ? k.scales()[at * 4 + (lane & 3)] : make_float2(0, 0);
        }
    };
    // Leaves this warp's partial sums of a tile to the finishers: fold(nt, p).
    auto leave = [&](auto fold) {
        barrier_wait(&k.m.part_empty[part.at], part.parity);
        if (w < k.groups) {
            float* to = k.part_of_tile(part.at) + (w * k.f.columns + (lane & 3)) * ROWS + (lane >> 2);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                float p[2] = {0, 0};
                fold(nt, p);
                if (nt * 4 + (lane & 3) < k.f.columns) to[nt * 4 * ROWS] = p[0], to[nt * 4 * ROWS + 8] = p[1];
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&k.m.part_full[part.at]);
        part.next(PARTS);
    };
    // Folds packets first .. last - 1 of the MLP's activations, which this warp rounds itself, into p. The warp's group of x is in
    // registers, so its place in shared memory is free.
    auto fold_own = [&](int first, int last, float (&p)[NT][2]) {
        constexpr int AHEAD = 3;
        float v[AHEAD][4];
        auto fetch = [&](int i, int d) {
            const int g = i * CONSUMERS + w;
            if (g < k.down) load4(k.b.mlp + g * GROUP + lane * 4, v[d]);
        };
#pragma unroll
        for (int d = 0; d < AHEAD; d++)
            if (first + d < last) fetch(first + d, d);
#pragma unroll 1
        for (int i = first; i < last; i += AHEAD) {
#pragma unroll
            for (int d = 0; d < AHEAD; d++) {
                if (i + d >= last) break;
                const bool mine = (i + d) * CONSUMERS + w < k.down;
                uint32_t y[8];
                float2 sy = make_float2(0, 0);
                if (mine) {
                    store_digits(v[d], k.words() + w * FRAGMENT, k.scales() + w * 4, 0, lane);
                    __syncwarp();
                    load_fragment(k.words() + w * FRAGMENT, lane, 1, y);
                    if ((lane & 3) == 0) sy = k.scales()[w * 4];
                }
                if (i + d + AHEAD < last) fetch(i + d + AHEAD, d);
                barrier_wait(&k.m.full[slot.at], slot.parity);
                const Tile4 tile = tile4_from(k.packet(slot.at) + w * TILE4, lane);
                give();
                if (mine) fold_tile4(tile, y, sy, p[0]);
            }
        }
    };
    // Folds packets first .. last - 1 of rounded activations, whose groups are `from`, into p.
    auto fold_packets = [&](const Digits& from, int first, int last, float (&p)[NT][2]) {
        constexpr int AHEAD = C == 1 ? 3 : C == 4 ? 2 : 1;
        uint32_t y[AHEAD][NT][8];
        float2 sy[AHEAD][NT];
        auto fetch = [&](int i, int d) {
            if (i * CONSUMERS + w >= from.groups) return;
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const int at = nt * from.groups + i * CONSUMERS + w;
                load_fragment_fresh(from.words + at * FRAGMENT, lane, k.f.columns - 4 * nt, y[d][nt]);
                sy[d][nt] = nt * 4 + (lane & 3) < k.f.columns ? __ldcg(from.scales + at * 4 + (lane & 3)) : make_float2(0, 0);
            }
        };
#pragma unroll
        for (int d = 0; d < AHEAD; d++)
            if (first + d < last) fetch(first + d, d);
#pragma unroll 1
        for (int i = first; i < last; i += AHEAD) {
#pragma unroll
            for (int d = 0; d < AHEAD; d++) {
                if (i + d >= last) break;
                barrier_wait(&k.m.full[slot.at], slot.parity);
                const Tile4 tile = tile4_from(k.packet(slot.at) + w * TILE4, lane);
                give();
                if ((i + d) * CONSUMERS + w < from.groups)
#pragma unroll
                    for (int nt = 0; nt < NT; nt++) fold_tile4(tile, y[d][nt], sy[d][nt], p[nt]);
                if (i + d + AHEAD < last) fetch(i + d + AHEAD, d);
            }
        }
    };
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head) {
            if (step) wait_for(X_READY, x_parity), x_parity ^= 1;
            fresh();
            norm(k.h.norm, k.h.eps);
            fresh();
#pragma unroll 1
            for (int i = 0; i < k.n_head; i++) {
                Tile8 tile = {};
                for (int half = 0; half < k.halves(); half++) {
                    barrier_wait(&k.m.full[slot.at], slot.parity);
                    const int g = w - half * k.half_groups(0);
                    if (g >= 0 && g < k.half_groups(half)) tile = tile8_from(k.packet(slot.at) + g * TILE8, lane);
                    give();
                }
                leave([&](int nt, float (&p)[2]) { fold_tile8(tile, x[nt], sx[nt], p); });
            }
            if (blockIdx.x < k.f.columns) {
                consumers_sync();  // everyone has read the digits, where the choice has its memory
                wait_for(LOGITS_READY, logits_parity), logits_parity ^= 1;
                fresh();
                choose<C, D>(blockIdx.x, w * 32 + lane);
            }
            wait_for(START_READY, start_parity), start_parity ^= 1;
        }
        for (int l = 0; l < k.f.layers_in(step); l++) {
            if (l) wait_for(X_READY, x_parity), x_parity ^= 1;
            fresh();
            norm(k.layer(l).norm, k.s.eps);
            fresh();
#pragma unroll 1
            for (int i = 0; i < k.n_in; i++) {
                barrier_wait(&k.m.full[slot.at], slot.parity);
                const Tile4 tile = tile4_from(k.packet(slot.at) + w * TILE4, lane);
                give();
                leave([&](int nt, float (&p)[2]) { fold_tile4(tile, x[nt], sx[nt], p); });
            }
            if (!k.has_rows) continue;
            fresh();
            float p[NT][2] = {};
            auto leave_out = [&](int which) {
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        if (nt * 4 + (lane & 3) < C) k.m.out[which][w][nt * 4 + (lane & 3)][(lane >> 2) + 8 * r] = p[nt][r];
                        p[nt][r] = 0;
                    }
            };
            if constexpr (Work<C, D>::OWN_ROUNDING) {
                wait_for(MLP_FIRST_READY, out_parity);
                fold_own(0, k.f.first_down, p);
                wait_for(MLP_LAST_READY, out_parity);
                fresh();
                fold_own(k.f.first_down, k.down_packets(), p);
            } else {
                wait_for(MLP_LAST_READY, out_parity);
                fold_packets(k.b.inner, 0, k.down_packets(), p);
            }
            leave_out(1);
            wait_for(ATTENTION_READY, out_parity), out_parity ^= 1;
            fresh();
            fold_packets(k.b.attention, 0, (k.o + CONSUMERS - 1) / CONSUMERS, p);
            leave_out(0);
            __syncwarp();
            if (lane == 0) barrier_arrive(&k.m.out_full);
        }
    }
}

// ---- the team ----------------------------------------------------------------------------------------------------------------
// The stop head: LayerNorm of the normed hidden states, then this block's rows of the inner layer.
template <int C, int D> ROLE stop_head(int w, int lane) {
    Work<C, D>& k = work<C, D>();
    constexpr int ROOM = sizeof(AttendShared<D>::k) + sizeof(AttendShared<D>::v);
    float* h = reinterpret_cast<float*>(&k.m.attend);
    const int at_once = min(4, ROOM / (k.h.hidden * 4));
    for (int c0 = 0; c0 < k.f.columns; c0 += 4) {
        for (int c1 = c0; c1 < min(c0 + 4, k.f.columns); c1 += at_once) {
            const int n = min(at_once, min(c0 + 4, k.f.columns) - c1);
            for (int c = 0; c < n; c++) {
                float v[4][4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int g = w + 4 * i;
                    if (g >= k.groups) continue;
                    load4(k.b.x + (size_t)k.m.columns[c1 + c].row * k.h.hidden + g * GROUP + lane * 4, v[i]);
                    const float2 moments = group_moments(v[i]);
                    if (lane == 0) k.m.team_moments[0][g] = moments;
                }
                team_sync();
                const float2 stat = join_moments(k.m.team_moments[0], k.groups, k.h.eps);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int g = w + 4 * i;
                    if (g >= k.groups) continue;
                    normalize(v[i], stat, k.h.norm + g * GROUP + lane * 4);
                    reinterpret_cast<float4*>(h + c * k.h.hidden)[g * 32 + lane] = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
                    const float2 moments = group_moments(v[i]);
                    if (lane == 0) k.m.team_moments[1][g] = moments;
                }
                team_sync();
                if (w == 0 && lane == 0) k.m.stats[c] = join_moments(k.m.team_moments[1], k.groups, 1e-5f);
            }
            team_sync();
            for (int row = blockIdx.x + w * k.blocks; row < k.h.inner; row += 4 * k.blocks) {
                stop_row(k.h, k.hb.stop + (size_t)c1 * k.h.inner, n, h, k.m.stats, row, lane);
                __syncwarp();
                if (lane == 0 && c1 + n == min(c0 + 4, k.f.columns)) signal(k.f.counters + LOGITS);
            }
            team_sync();
        }
    }
}

// Calls work(c, item, chunk, range) for this block's share of all chunks of a layer.
template <int C, int D, class Each> DI void share(Work<C, D>& k, const Layer& layer, Each each) {
    const int n_items = items(k.s);
    int next = blockIdx.x;  // index of the share within the columns from c on
#pragma unroll 1
    for (int c = 0; c < k.f.columns; c++) {
        if (!k.m.columns[c].live) continue;
        const Range range = seen(layer, k.m.columns[c].position);
        const int n = range.chunks() * n_items;
#pragma unroll 1
        for (; next < n; next += k.blocks) each(c, next % n_items, range.first_chunk() + next / n_items, range);
        next -= n;
    }
}

template <int C, int D> ROLE attend_beside(int w, int lane) {
    Work<C, D>& k = work<C, D>();
    const unsigned qkv_tiles = first_mlp_tile(k.s);
    uint32_t start_parity = 0;
    unsigned layer = 0;  // layers done
    for (int step = 0; step < k.f.steps; step++) {
        if (k.f.head) {
            if (step) barrier_wait(&k.m.event[X_READY], (step * k.f.count - 1) & 1);  // of all its phases so far, the last
            stop_head<C, D>(w, lane);
            barrier_wait(&k.m.event[START_READY], start_parity);
            start_parity ^= 1;
        }
        for (int l = 0; l < k.f.layers_in(step); l++, layer++) {
            const Layer& this_layer = k.layer(l);
            bool first = true;
            forget(w), forget(lane);
            share(k, this_layer, [&](int c, int item, int chunk, const Range& range) {
                if (!first) return;
                first = false;
                const int from = begin_of(range, chunk);
                fetch_span<D>(k.m.attend, k.s, this_layer, k.m.columns[c].slot, item_of(k.s, item).kv, from, range.last, w, lane);
            });
            bool waited = false;
            share(k, this_layer, [&](int c, int item, int chunk, const Range& range) {
                if (!waited) {
                    if (w == 0 && lane == 0) await(k.f.counters + QUERIES, qkv_tiles * (layer + 1));
                    team_sync();
                }
                forget(w), forget(lane);
                attend_item<D>(k.m.attend, [] { team_sync(); }, k.s, this_layer, k.b, c, k.m.columns[c].slot, item, range, chunk, !waited, w, lane,
                               [&](int lane) {
                                   if (lane == 0) signal(k.f.counters + ATTENTION);
                               });
                waited = true;
            });
            if (blockIdx.x == 0 && w == 0 && lane == 0)  // nobody works for columns that have ended
                for (int c = 0; c < k.f.columns; c++)
                    if (!k.m.columns[c].live)
                        for (int i = 0; i < k.o; i++) signal(k.f.counters + ATTENTION);
        }
    }
}

// ---- the kernel --------------------------------------------------------------------------------------------------------------
// Grid: one block a multiprocessor, all resident (cooperative launch), at least hidden / 16; block: 768 threads. At most C
// columns. Dynamic shared memory: `Work`, words (or a Choice), scales, layers, part, ring.
template <int C, int D> DI void run(const Shape& s, const Buffers& b, const Frame& f, const Head& h, const HeadBuffers& hb) {
    Work<C, D>& k = work<C, D>();
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31, blocks = gridDim.x, groups = s.hidden / GROUP;
    if (threadIdx.x == 0) {
        auto share_of = [&](int tiles) { return (tiles - (int)blockIdx.x + blocks - 1) / blocks; };
        k.s = s, k.b = b, k.f = f, k.h = h, k.hb = hb;
        k.groups = groups, k.down = b.inner.groups, k.o = b.attention.groups, k.blocks = blocks, k.row_tiles = s.hidden / ROWS;
        k.n_in = share_of(f.tiles), k.n_head = share_of((h.count + ROWS - 1) / ROWS), k.has_rows = (int)blockIdx.x < k.row_tiles;
        k.scales_at = sizeof(k) + max(k.NT * CONSUMERS * FRAGMENT * 4, (int)sizeof(Choice));
        k.layers_at = k.scales_at + k.NT * CONSUMERS * 4 * sizeof(float2);
        k.part_at = k.layers_at + (f.count * sizeof(Layer) + 15) / 16 * 16;
        k.ring_at = (k.part_at + PARTS * groups * f.columns * ROWS * 4 + 127) / 128 * 128;
        for (int i = 0; i < f.slots; i++) barrier_init(k.m.full + i, 1), barrier_init(k.m.empty + i, CONSUMERS);
        for (int i = 0; i < PARTS; i++) barrier_init(k.m.part_full + i, CONSUMERS), barrier_init(k.m.part_empty + i, 1);
        barrier_init(&k.m.out_full, CONSUMERS);
        for (int i = 0; i < EVENTS; i++) barrier_init(k.m.event + i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < f.columns) k.m.columns[threadIdx.x] = b.columns[threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.x; i < f.count * (int)sizeof(Layer) / 8; i += BLOCK)
        reinterpret_cast<uint64_t*>(frame_shared + k.layers_at)[i] = reinterpret_cast<const uint64_t*>(f.layers)[i];
    __syncthreads();
    if (w < 4)
        attend_beside<C, D>(w, lane);
    else if (w < FIRST_FINISHER)
        consume<C, D>(w - 4, lane);
    else if (w < WATCHER)
        finish<C, D>(w - FIRST_FINISHER, lane);
    else if (w == WATCHER && lane == 0)
        watch<C, D>();
    else if (w == PRODUCER && lane == 0)
        produce<C, D>();
    __syncwarp();
    __syncthreads();
    if (threadIdx.x == 0 && arrive_last(f.counters + FINISHED, blocks))
        for (int i = 0; i < FINISHED; i += 32) f.counters[i] = 0;
}
#endif

#if __CUDA_ARCH__ >= 900
#define BODY(C, D) run<C, D>(s, b, f, h, hb);
#else
#define BODY(C, D)  // not launched below compute capability 9.0
#endif
#define KERNEL(C, D)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 1) frame_##C##_##D(const __grid_constant__ Shape s, const __grid_constant__ Buffers b,  \
                                                                           const __grid_constant__ Frame f, const __grid_constant__ Head h,     \
                                                                           const __grid_constant__ HeadBuffers hb) {                            \
        BODY(C, D)                                                                                                                          \
    }
KERNEL(1, 128)
KERNEL(4, 128)
KERNEL(8, 128)
KERNEL(4, 64)
KERNEL(8, 64)

static_assert(sizeof(Frame) == 96, "as in kernels.rs");
#if __CUDA_ARCH__ >= 900
static_assert(sizeof(Work<1, 128>) <= 39936 && sizeof(Work<4, 128>) <= 46464 && sizeof(Work<8, 128>) <= 55168 && sizeof(Work<4, 64>) <= 29056 &&
                  sizeof(Work<8, 64>) <= 37760 && sizeof(Choice) <= 8704,
              "as in decoder/frame.rs");
#endif
