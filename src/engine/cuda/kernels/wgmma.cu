// A layer's products for several columns at once (compute capability 9.0, sm_90a): up to 8 slots, prompts, many slots.
//
// What layer.cu does warp by warp, a warpgroup does here on 64 rows: four tiles of codes, one a warp, meet the digits of all
// columns in shared memory (wgmma), group after group, so a row's sum never leaves its lane's registers. Groups are folded in the
// order of layer.cu, so the bits are the same.
//
//   norm_columns ─▶ project_in: keys, values, queries ─▶ attend ─────▶ project_out: o_proj
//                           └──▶ gate, up, rounding ──────────────────▶              down_proj first
//
// project_out leaves partial sums; the next layer's norm_columns adds them to the residual stream, after the last layer add_partial_sums.
// A block takes 4 * TILES columns, TILES being the n-tiles that lie beside each other in `Digits`.
#include "bulk.cuh"
#include "layer.cuh"
#include "wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int PITCH = 136;      // floats between two columns of 128 rows in shared memory, against bank conflicts
constexpr int UNIT_PITCH = 72;  // of 64 rows

// The codes of a tile as bytes, ready for four products.
DI void codes_of(const Tile4& t, uint4 (&a)[4]) {
    constexpr uint32_t LOW = 0x0F0F0F0Fu;
    a[0] = make_uint4(t.a.x & LOW, t.a.y & LOW, t.a.z & LOW, t.a.w & LOW);
    a[1] = make_uint4(t.a.x >> 4 & LOW, t.a.y >> 4 & LOW, t.a.z >> 4 & LOW, t.a.w >> 4 & LOW);
    a[2] = make_uint4(t.b.x & LOW, t.b.y & LOW, t.b.z & LOW, t.b.w & LOW);
    a[3] = make_uint4(t.b.x >> 4 & LOW, t.b.y >> 4 & LOW, t.b.z >> 4 & LOW, t.b.w >> 4 & LOW);
}

// Folds one group into p[n-tile][row g, row g + 8] of columns 4 n-tile + lane % 4, of which there are `count`: N of its n-tiles from FROM on. ALONE: it is the
// only group of its partial sum, which is added to p. `digits`: where those of the group are (`digits_at`), `scales`: of its columns lane % 4; `w`, `w8`: scale
// and minimum of the rows; `meanwhile` runs while the tensor cores are at work.
template <bool ALONE, int FROM, int N, int TILES, class Meanwhile>
DI void fold_tiles(uint4 (&a)[4], float2 w, float2 w8, uint32_t digits, const float2* scales, int count, float (&p)[TILES][2], Meanwhile meanwhile) {
    int sum[N * 4];
    multiply_u8(sum, a, digits + FROM * TILE_DIGITS);
    meanwhile();
    wgmma_wait(sum);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int nt = FROM + i;
        if (nt > TILES / 2 && nt * 4 >= count) break;
        const float2 x = scales[nt * 4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 of_row = r ? w8 : w;
            float q = __fmaf_rn(__fmul_rn(of_row.x, x.x), __int2float_rn(sum[i * 4 + 2 * r] * 256 + sum[i * 4 + 2 * r + 1]), ALONE ? 0.f : p[nt][r]);
            q = __fmaf_rn(of_row.y, x.y, q);
            p[nt][r] = ALONE ? p[nt][r] + q : q;
        }
    }
}
// All n-tiles of a group; ten of them in two parts, to leave registers to other blocks.
template <bool ALONE, int TILES, class Meanwhile>
DI void fold_group(const Tile4& t, uint32_t digits, const float2* scales, int count, float (&p)[TILES][2], Meanwhile meanwhile) {
    if (!MULTIPLIES) return meanwhile();
    uint4 a[4];
    codes_of(t, a);
    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(&t.s.x)), w8 = __half22float2(*reinterpret_cast<const __half2*>(&t.s.y));
    if constexpr (TILES == 10) {
        fold_tiles<ALONE, 0, 6>(a, w, w8, digits, scales, count, p, [] {});
        meanwhile();  // during the products it would cost registers
        if (count > 24) fold_tiles<ALONE, 6, 4>(a, w, w8, digits, scales, count, p, [] {});
    } else {
        fold_tiles<ALONE, 0, TILES>(a, w, w8, digits, scales, count, p, meanwhile);
    }
}

// A warp's ring of int4 tiles in shared memory, AT_ONCE of them (which lie beside each other in memory) by one bulk copy: a lane asks, and no registers hold
// them or their addresses.
template <int STAGES, int AT_ONCE> struct BulkRing {
    static constexpr int STAGE = AT_ONCE * TILE4, BYTES = STAGES * STAGE;
    uint8_t* slots;   // [STAGES][AT_ONCE][TILE4], 16-byte aligned
    uint64_t* there;  // [STAGES]
    int slot, parity; // of the oldest tiles

    __device__ __forceinline__ void start(uint8_t* slots, uint64_t* there, int lane) {
        this->slots = slots, this->there = there, slot = parity = 0;
        if (lane == 0)
            for (int i = 0; i < STAGES; i++) barrier_init(there + i, 1);
        barriers_ready();
        __syncwarp();
    }
    // Waits until tiles that were asked for first, at `slot`, are there.
    __device__ __forceinline__ void wait_first(int slot) const {
        if (READS_WEIGHTS) barrier_wait(there + slot, 0);
        __syncwarp();
    }
    // Asks for a stage of them, at `tiles`.
    __device__ __forceinline__ void ask(int to, const uint8_t* tiles, int lane) const {
        if (!READS_WEIGHTS || lane != 0) return;
        barrier_expect(there + to, STAGE);
        bulk_copy(slots + to * STAGE, tiles, STAGE, there + to);
    }
    // Waits for the oldest ones.
    __device__ __forceinline__ void wait() const {
        if (READS_WEIGHTS) barrier_wait(there + slot, parity);
        __syncwarp();
    }
    __device__ __forceinline__ Tile4 tile(int i, int lane) const {
        const uint8_t* from = slots + slot * STAGE + i * TILE4;
        return {*reinterpret_cast<const uint4*>(from + lane * 16), *reinterpret_cast<const uint4*>(from + 512 + lane * 16),
                *reinterpret_cast<const uint2*>(from + 1024 + (lane >> 2) * 8)};
    }
    __device__ __forceinline__ void next() {
        slot++;
        if (slot == STAGES) slot = 0, parity ^= 1;
    }
};

// What the blocks of project_in make: the first `whole` one group of the MLP each, the others units of 64 rows, dealt in turn: those of keys, values and
// queries, then four of each group of the MLP that is left.
struct Units {
    int whole, attended, count, stride;  // groups of the first kind; units of keys, values and queries; units; blocks of the second kind
    __device__ __forceinline__ int at(int entry) const { return entry < attended ? entry : entry + whole * GROUP_UNITS; }  // in the matrix
    __device__ __forceinline__ int group(int entry) const { return whole + (entry - attended) / GROUP_UNITS; }
    __device__ __forceinline__ int quarter(int entry) const { return (entry - attended) % GROUP_UNITS; }
};

// Values of a group of the MLP pass between the blocks that share it as (1, bits): what is 0 is not there yet.
DI void give(uint64_t* to, float v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"((uint64_t)1 << 32 | __float_as_uint(v)) : "memory");
}
// Takes four of them away.
DI void take4(uint64_t* from, float (&v)[4]) {
    uint64_t of[4];
    for (int spins = 0;; spins++) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(of[i]), "=l"(of[i + 1]) : "l"(from + i) : "memory");
        if (of[0] && of[1] && of[2] && of[3]) break;
        if (spins > 1 << 23) __trap();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __uint_as_float((uint32_t)of[i]), from[i] = 0;
}

// Grid: (`whole` blocks, then blocks for units; blocks of columns); block: 512 threads.
// A block of the first kind makes a group of the MLP, 64 rows a warpgroup, and rounds it. The others take units, each warpgroup a quarter of the groups, because
// attention waits for the first of them: keys, values and queries are counted. The values of an MLP group whose units are different blocks' go through
// `exchange`; the block of the last unit rounds them, after its other units. That needs all blocks resident, and 8 columns or fewer.
// Dynamic shared memory: words [groups][TILES][256], scales [groups][TILES][4], rings [16 warps]
// or the MLP [gate, up][columns][PITCH] or sums [4 warpgroups][columns][UNIT_PITCH]; of few columns these lie behind the rings, so that the
// next unit's tiles may come meanwhile.
// A warp's tiles are a multiple of AT_ONCE.
template <int TILES, int STAGES, int AT_ONCE> DI void project_in(const Shape& s, const Layer& l, const Buffers& b, int columns, int whole) {
    using Ring = BulkRing<STAGES, AT_ONCE>;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Column own[4 * TILES];
    __shared__ uint64_t there, tiles_there[WARPS][STAGES];
    constexpr bool FEW = TILES == 2;  // columns
    const int groups = s.hidden / GROUP, w = warp_number(), lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int from = blockIdx.y * 4 * TILES, count = min(4 * TILES, columns - from);
    const int attended = first_mlp_tile(s) / UNIT_TILES;
    const Units units = {whole, attended, attended + GROUP_UNITS * (b.inner.groups - whole), (int)gridDim.x - whole};
    const bool is_whole = (int)blockIdx.x < whole;
    int entry = (int)blockIdx.x - whole;
    const int first = is_whole ? 0 : w / 4 * (WARPS / WARPGROUPS);                           // of this warp's groups
    const int folds = is_whole ? groups : max(0, min(WARPS / WARPGROUPS, groups - first));  // and how many they are
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);
    float2* scales = reinterpret_cast<float2*>(words + groups * TILES * FRAGMENT);
    uint8_t* rest = reinterpret_cast<uint8_t*>(scales + groups * TILES * 4);
    Ring ring;
    ring.start(rest + w * Ring::BYTES, tiles_there[w], lane);
    auto tiles_of = [&](int entry) {
        const int tile = is_whole ? (attended + (int)blockIdx.x * GROUP_UNITS) * UNIT_TILES + w : units.at(entry) * UNIT_TILES + (w & 3);
        return l.in + ((size_t)tile * groups + first) * TILE4;
    };
    const uint8_t* mine = tiles_of(entry);
    int left = folds, ahead = entry;  // tiles that are still to be asked for, and of which entry
    auto ask = [&](int slot) {
        if (left == 0) {
            if (!FEW || is_whole || folds == 0 || ahead + units.stride >= units.count) return false;
            ahead += units.stride, mine = tiles_of(ahead), left = folds;
        }
        ring.ask(slot, mine, lane);
        mine += Ring::STAGE, left -= AT_ONCE;
        return true;
    };
    bool asked = ask(0);
    if (threadIdx.x == 0) {
        barrier_init(&there, 1);
        barriers_ready();
    }
    // Others when those before are there: norm is at work, and what it loads must not wait behind all of these.
#pragma unroll 1
    for (int i = 1; i < STAGES && asked; i++) {
        if (FEW) ring.wait_first(i - 1);
        asked = ask(i);
    }
    if (threadIdx.x < 4 * TILES) own[threadIdx.x] = {};
    __syncthreads();
    float y[TILES][2];
    // Of few columns the first turn is a rehearsal of what comes after the products, on whatever is there and for nobody (as in norm).
#pragma unroll 1
    for (int turn = FEW ? 0 : 1; turn < 2; turn++) {
        const bool real = turn == 1;
        if (real) {
            wait_prerequisites();
            launch_dependents();
            if (threadIdx.x == 0) {
                barrier_expect(&there, groups * TILES * DIGIT_BYTES);
                copy_digits<TILES>(b.hidden, blockIdx.y, 0, groups, words, scales, &there);
            }
            __syncwarp();
            if (threadIdx.x < count) own[threadIdx.x] = column_of(b.columns + from + threadIdx.x);
            const bool any = __syncthreads_or(threadIdx.x < count && own[threadIdx.x].live);
            barrier_wait(&there, 0);
            if (!any) {
                if (threadIdx.x == 0 && !is_whole)
                    for (int i = entry; i < attended; i += units.stride) signal(b.inner_ready + UNITS_READY);
                // What was asked for must be there before the block's shared memory is another's.
                const int stages = folds / AT_ONCE * (FEW && !is_whole ? (units.count - entry + units.stride - 1) / units.stride : 1);
                for (int i = 0; i < min(STAGES, stages); i++) ring.wait(), ring.next();
                return;
            }
            __syncwarp();
        }
        float* sums = reinterpret_cast<float*>(FEW ? rest + WARPS * Ring::BYTES : rest);
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int nt = 0; nt < TILES; nt++) y[nt][0] = y[nt][1] = 0;
            uint32_t digits = digits_at(words) + first * TILES * TILE_DIGITS;
            const float2* x = scales + first * TILES * 4 + t;
#pragma unroll 1
            for (int i4 = 0; i4 < (real ? folds : 0); i4 += 4) {
                float four[TILES][2] = {};
#pragma unroll 1
                for (int i = i4; i < min(i4 + 4, folds); i += AT_ONCE) {
                    ring.wait();
#pragma unroll
                    for (int j = 0; j < AT_ONCE; j++) {
                        const Tile4 tile = ring.tile(j, lane);
                        fold_group<true, TILES>(tile, digits, x, count, four, [&] {
                            if (j == AT_ONCE - 1) {
                                __syncwarp();
                                ask(ring.slot);
                            }
                        });
                        digits += TILES * TILE_DIGITS, x += TILES * 4;
                    }
                    ring.next();
                }
#pragma unroll
                for (int nt = 0; nt < TILES; nt++) y[nt][0] += four[nt][0], y[nt][1] += four[nt][1];
            }
            if (!FEW) __syncthreads();  // everyone has used the rings
            if (is_whole) break;
#pragma unroll
            for (int nt = 0; nt < TILES; nt++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (nt * 4 < count && real) sums[(w / 4 * 4 * TILES + nt * 4 + t) * UNIT_PITCH + (w & 3) * ROWS + g + 8 * r] = y[nt][r];
            __syncthreads();
            auto sum_of = [&](int c, int row) {
                float v = 0;
#pragma unroll
                for (int j = 0; j < WARPGROUPS; j++) v += sums[(j * 4 * TILES + c) * UNIT_PITCH + row];
                return v;
            };
            if (entry < attended) {
#pragma unroll 1
                for (int i = threadIdx.x; i < count * 64; i += THREADS) {
                    const int c = i >> 6, row = i & 63;
                    const float v = sum_of(c, row), pair = __shfl_xor_sync(ALL, v, 1);  // the row that differs in its lowest bit
                    finish_row(place_of(s, l, b, own[c], from + c, entry * UNIT_TILES + row / ROWS, row % ROWS), row % ROWS, v, pair, 0.f);
                }
            } else if (FEW) {
                for (int c = w; c < count; c += WARPS) {
                    const int gate = lane / 8 * ROWS + lane % 8, at = units.group(entry) * GROUP + units.quarter(entry) * (GROUP / GROUP_UNITS) + lane;
                    const float v = silu_times(sum_of(c, gate), sum_of(c, gate + 8));
                    if (real) give(b.exchange + (size_t)c * s.intermediate + at, v);
                }
            }
            __syncthreads();
            if (!real) break;
            if (threadIdx.x == 0 && entry < attended) signal(b.inner_ready + UNITS_READY);
            entry += units.stride;
            if (entry >= units.count) break;
            if (FEW) continue;
            fence_for_copies();
            mine = tiles_of(entry), left = folds, ahead = entry;
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < STAGES; i++) ask((ring.slot + i) % STAGES);
        }
        auto round = [&](int c, int group, const float (&v)[4]) {
            const int at = digit_tile(b.inner, from + c, group);
            store_digits(v, b.inner.words + at * FRAGMENT, b.inner.scales + at * 4, (from + c) & 3, lane, b.inner.beside, own[c].live);
            if (b.mlp && own[c].live)
                *reinterpret_cast<float4*>(b.mlp + (size_t)(from + c) * s.intermediate + group * GROUP + lane * 4) = make_float4(v[0], v[1], v[2], v[3]);
        };
        if (!is_whole) {
            if (FEW && real)
                for (int of = (int)blockIdx.x - whole; of < units.count; of += units.stride) {
                    if (of < attended || units.quarter(of) != GROUP_UNITS - 1) continue;
                    for (int c = w; c < count; c += WARPS) {
                        float v[4];
                        take4(b.exchange + (size_t)c * s.intermediate + units.group(of) * GROUP + lane * 4, v);
                        round(c, units.group(of), v);
                    }
                }
            continue;
        }
        // Of many columns gate and up meet in shared memory: code for all of a lane's n-tiles takes longer to come than to run.
        auto place = [&](int which, int c) { return sums + (which * 4 * TILES + c) * PITCH; };
#pragma unroll
        for (int nt = 0; nt < TILES; nt++) {
            const int c = nt * 4 + t, of = w * 8 + g;  // a tile has 8 rows of gate, then the same 8 of up
            if (c >= count) continue;
            const float v = FEW ? silu_times(y[nt][0], y[nt][1]) : y[nt][0];
            if (real) place(0, c)[of] = v;
            if (!FEW && real) place(1, c)[of] = y[nt][1];
        }
        __syncthreads();
#pragma unroll 1
        for (int c = w; c < count; c += WARPS) {
            float4 four = *reinterpret_cast<const float4*>(place(0, c) + lane * 4);
            if (!FEW) {
                const float4 up = *reinterpret_cast<const float4*>(place(1, c) + lane * 4);
                four = make_float4(silu_times(four.x, up.x), silu_times(four.y, up.y), silu_times(four.z, up.z), silu_times(four.w, up.w));
            }
            const float v[4] = {four.x, four.y, four.z, four.w};
            round(c, (int)blockIdx.x, v);
        }
        __syncthreads();
    }
}

// A block without rows: it keeps its multiprocessor until the blocks of the next norm_columns, which come early, are placed. Four of them in one
// multiprocessor take twice as long as one.
DI void stay(const Buffers& b, const Layer& l, int early) {
    launch_dependents();
    if (!early) return;
    if (threadIdx.x == 0) await_layer(b.inner_ready, l.number);
    __syncthreads();
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun)::"memory");
    do {
        __nanosleep(200);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
    } while (now - begun < 2000);
}
// Grid: (4 * hidden / 64 or more, blocks of columns); block: 512 threads. Leaves sums of o_proj(attention) and down_proj(inner) in `out_partial`: four
// blocks share 64 rows; warpgroup j of block r multiplies the groups 4r + j and every 16th from there, whose partial sums are those
// of warp 4r + j in layer.cu. `early`: attend was launched right before; it tells when project_in is complete, and down_proj is
// multiplied while it is at work.
// Dynamic shared memory: digits and scales [4 warpgroups][SLOTS] or sums [4 warpgroups][2][columns][UNIT_PITCH], rings [16 warps][DEPTH] tiles.
template <int TILES, int DEPTH, int SLOTS> DI void project_out(const Shape& s, const Layer& l, const Buffers& b, int columns, int early) {
    extern __shared__ __align__(128) uint8_t shared[];
    using Ring = BulkRing<DEPTH, 1>;
    __shared__ uint64_t there[WARPGROUPS][SLOTS], used[WARPGROUPS][SLOTS], through[WARPGROUPS], tiles_there[WARPS][DEPTH];
    constexpr int SLOT = TILES * DIGIT_BYTES;
    const int w = warp_number(), lane = threadIdx.x & 31, warpgroup = w / 4;
    const int from = blockIdx.y * 4 * TILES, count = min(4 * TILES, columns - from);
    const int split = blockIdx.x % OUT_SPLITS, unit = blockIdx.x / OUT_SPLITS, down = b.inner.groups, o = b.attention.groups;
    if (unit >= s.hidden / 64) return stay(b, l, early);
    const int first = split * WARPGROUPS + warpgroup;
    auto of = [&](int groups) { return first < groups ? (groups - first + WARPS - 1) / WARPS : 0; };
    const int n_down = of(down), n = n_down + of(o);  // groups of this warpgroup
    uint8_t* digits = shared + warpgroup * SLOTS * SLOT;
    launch_dependents();
    Ring ring;
    ring.start(shared + WARPGROUPS * SLOTS * SLOT + w * Ring::BYTES, tiles_there[w], lane);
    const uint8_t* mine = l.out + (size_t)(unit * UNIT_TILES + (w & 3)) * (down + o) * TILE4;
    auto group_of = [&](int i) { return first + (i < n_down ? i : i - n_down) * WARPS; };
    auto ask_tile = [&](int slot, int i) {
        if (i < n) ring.ask(slot, mine + (group_of(i) + (i < n_down ? 0 : down)) * TILE4, lane);
    };
    if (threadIdx.x < WARPGROUPS * SLOTS) {
        barrier_init(&there[0][threadIdx.x], 1);
        barrier_init(&used[0][threadIdx.x], WARPS / WARPGROUPS);
        if (threadIdx.x < WARPGROUPS) barrier_init(&through[threadIdx.x], WARPS / WARPGROUPS);
        barriers_ready();
    }
#pragma unroll 1
    for (int i = 0; i < DEPTH; i++) ask_tile(i, i);
    __syncthreads();
    // Asks for the digits of every `step`-th group of from .. last - 1, whose places are free; one lane calls it.
    auto ask = [&](int from, int last, int step) {
        for (int i = from; i < last; i += step) {
            uint8_t* to = digits + i % SLOTS * SLOT;
            uint64_t* full = &there[warpgroup][i % SLOTS];
            barrier_expect(full, SLOT);
            copy_digits<TILES>(i < n_down ? b.inner : b.attention, blockIdx.y, group_of(i), 1, reinterpret_cast<uint32_t*>(to),
                               reinterpret_cast<float2*>(to + TILES * FRAGMENT * 4), full);
        }
    };
    if (early) {
        if (threadIdx.x == 0) await_layer(b.inner_ready, l.number);
        __syncthreads();
    } else {
        wait_prerequisites();
    }
    if (lane == 0) {
        fence_for_copies();
        ask(w & 3, min(SLOTS, early ? n_down : n), 4);
    }
    __syncwarp();
    float p[TILES][2] = {}, p_down[TILES][2];
    auto end_of_down = [&] {
#pragma unroll
        for (int nt = 0; nt < TILES; nt++)
#pragma unroll
            for (int r = 0; r < 2; r++) p_down[nt][r] = p[nt][r], p[nt][r] = 0;
    };
    uint32_t turns = 0;  // of each place, the parity of its next phase of `used`
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        if (i == n_down) {
            end_of_down();
            if (early) {
                wait_prerequisites();
                __syncwarp();
                if (lane == 0) barrier_arrive(&through[warpgroup]);
                barrier_wait(&through[warpgroup], 0);  // all warps have used the digits before
                if (lane == 0) ask(i + (w & 3), min(n, i + SLOTS), 4);
                __syncwarp();
            }
        }
        ring.wait();
        const Tile4 tile = ring.tile(0, lane);
        uint8_t* slot = digits + i % SLOTS * SLOT;
        barrier_wait(&there[warpgroup][i % SLOTS], i / SLOTS & 1);
        __syncwarp();
        fold_group<false, TILES>(tile, digits_at(slot), reinterpret_cast<float2*>(slot + TILES * FRAGMENT * 4) + (lane & 3), count, p, [&] {
            __syncwarp();
            ask_tile(ring.slot, i + DEPTH);
            ring.next();
        });
        const int next = i + SLOTS, place = i % SLOTS;
        if (next < (early && i < n_down ? n_down : n)) {
            __syncwarp();  // a lane speaks for all
            if (lane == 0) barrier_arrive(&used[warpgroup][place]);
            if ((w & 3) == 0) {
                barrier_wait(&used[warpgroup][place], turns >> place & 1);
                if (lane == 0) ask(next, next + 1, 1);
                __syncwarp();
            }
            turns ^= 1u << place;
        }
    }
    if (n == n_down) {
        end_of_down();
        if (early) wait_prerequisites();
    }
    __syncthreads();  // everyone has used the digits
    auto place = [&](int warpgroup, int which, int c) {
        return reinterpret_cast<float*>(shared + warpgroup * SLOTS * SLOT) + (which * 4 * TILES + c) * UNIT_PITCH;
    };
    static_assert(2 * 4 * TILES * UNIT_PITCH * 4 <= SLOTS * SLOT, "sums fit where the digits were");
#pragma unroll
    for (int nt = 0; nt < TILES; nt++) {
        const int c = nt * 4 + (lane & 3), row = (w & 3) * ROWS + (lane >> 2);
        if (c >= count) continue;
#pragma unroll
        for (int r = 0; r < 2; r++) place(warpgroup, 0, c)[row + 8 * r] = p[nt][r], place(warpgroup, 1, c)[row + 8 * r] = p_down[nt][r];
    }
    __syncthreads();
    static_assert(WARPGROUPS == 4, "one of the four sums of sum_fours");
#pragma unroll 1
    for (int i = threadIdx.x; i < count * 128; i += THREADS) {
        const int c = i >> 7, which = i >> 6 & 1, row = i & 63;
        const float sum = ((place(0, which, c)[row] + place(1, which, c)[row]) + place(2, which, c)[row]) + place(3, which, c)[row];
        __stcg(b.out_partial + (((size_t)(from + c) * 2 + which) * OUT_SPLITS + split) * s.hidden + unit * 64 + row, sum);
    }
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define BODY(CALL) CALL;
#else
#define BODY(CALL)  // launched on compute capability 9.0 only
#endif
#define LAYER const __grid_constant__ Shape s, const __grid_constant__ Layer l, const __grid_constant__ Buffers b, int columns
// project_in and project_out leave registers for norm_columns, which one follows early and which follows the other early; of 8 columns also for attend.
#define WGMMA(NAME, TILES, REGISTERS_IN, STAGES_IN, AT_ONCE, REGISTERS_OUT, DEPTH_OUT, SLOTS)              \
    extern "C" __global__ void __maxnreg__(REGISTERS_IN) project_in_wgmma_##NAME(LAYER, int whole) {       \
        BODY((project_in<TILES, STAGES_IN, AT_ONCE>(s, l, b, columns, whole)))                             \
    }                                                                                                      \
    extern "C" __global__ void __maxnreg__(REGISTERS_OUT) project_out_wgmma_##NAME(LAYER, int early) {     \
        BODY((project_out<TILES, DEPTH_OUT, SLOTS>(s, l, b, columns, early)))                              \
    }
WGMMA(8, 2, 64, 3, 2, 64, 4, 7)
WGMMA(40, 10, 96, 3, 1, 96, 4, 3)
