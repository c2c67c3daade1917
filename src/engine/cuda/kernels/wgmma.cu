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
// only group of its partial sum, which is added to p. `words` and `scales`: the group's n-tiles; `w`, `w8`: scale and minimum of the rows.
template <bool ALONE, int FROM, int N, int TILES>
DI void fold_tiles(uint4 (&a)[4], float2 w, float2 w8, const uint32_t* words, const float2* scales, int lane, int count, float (&p)[TILES][2]) {
    int sum[N * 4];
    wgmma_fence(a);
    wgmma_u8_first(sum, a[0], digits_at(words + FROM * FRAGMENT));
#pragma unroll
    for (int s = 1; s < 4; s++) wgmma_u8(sum, a[s], digits_at(words + FROM * FRAGMENT + s * 64));
    wgmma_commit();
    wgmma_wait(sum);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int nt = FROM + i;
        if (nt > TILES / 2 && nt * 4 >= count) break;
        const float2 x = scales[nt * 4 + (lane & 3)];
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
template <bool ALONE, int TILES> DI void fold_group(const Tile4& t, const uint32_t* words, const float2* scales, int lane, int count, float (&p)[TILES][2]) {
    if (!MULTIPLIES) return;
    uint4 a[4];
    codes_of(t, a);
    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(&t.s.x)), w8 = __half22float2(*reinterpret_cast<const __half2*>(&t.s.y));
    if constexpr (TILES == 10) {
        fold_tiles<ALONE, 0, 6>(a, w, w8, words, scales, lane, count, p);
        if (count > 24) fold_tiles<ALONE, 6, 4>(a, w, w8, words, scales, lane, count, p);
    } else {
        fold_tiles<ALONE, 0, TILES>(a, w, w8, words, scales, lane, count, p);
    }
}

// Grid: (intermediate / 128 blocks for gate and up, then blocks for keys, values and queries; blocks of columns); block: 512 threads.
// A block of the first kind makes one group of the MLP, 64 rows a warpgroup, and rounds it. The others take units of 64 rows of keys, values and
// queries, each warpgroup a quarter of the groups, because attention waits for them, and count them.
// Dynamic shared memory: words [groups][TILES][256], scales [groups][TILES][4], rings [16 warps][DEPTH] tiles
// or the MLP [gate, up][columns][PITCH] or sums [4 warpgroups][columns][UNIT_PITCH]; of few columns these lie behind the rings, so that the
// next unit's tiles may come meanwhile.
template <int TILES, int DEPTH> DI void project_in(const Shape& s, const Layer& l, const Buffers& b, int columns) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Column own[4 * TILES];
    __shared__ uint64_t there;
    const int groups = s.hidden / GROUP, w = __shfl_sync(ALL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int from = blockIdx.y * 4 * TILES, count = min(4 * TILES, columns - from);
    const int mlp_group = blockIdx.x, mlp_blocks = b.inner.groups, first_mlp = first_mlp_tile(s);
    const bool is_mlp = mlp_group < mlp_blocks;
    int unit = (int)blockIdx.x - mlp_blocks;
    const int first = is_mlp ? 0 : w / 4 * (WARPS / WARPGROUPS);                           // of this warp's groups
    const int folds = is_mlp ? groups : max(0, min(WARPS / WARPGROUPS, groups - first));  // and how many they are
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);
    float2* scales = reinterpret_cast<float2*>(words + groups * TILES * FRAGMENT);
    uint8_t* rest = reinterpret_cast<uint8_t*>(scales + groups * TILES * 4);
    Ring<DEPTH> ring = {rest + w * Ring<DEPTH>::BYTES, 0};
    constexpr bool FEW = TILES == 2;  // columns
    const int stride = (int)gridDim.x - mlp_blocks;
    const uint8_t* mine = l.in + ((size_t)(is_mlp ? first_mlp + mlp_group * WARPS + w : unit * UNIT_TILES + (w & 3)) * groups + first) * TILE4;
    const size_t to_next = ((size_t)stride * UNIT_TILES * groups - folds) * TILE4;  // from behind a unit's tiles
    int left = folds, units = is_mlp || !FEW ? 0 : max(0, (first_mlp / UNIT_TILES - unit - 1) / stride);
    auto next = [&]() -> const uint8_t* {
        if (left == 0) {
            if (units == 0 || folds == 0) return nullptr;
            units--, left = folds, mine += to_next;
        }
        const uint8_t* tile = mine;
        mine += TILE4, left--;
        return tile;
    };
    ring.fill([&](int) { return next(); }, lane);
    if (threadIdx.x == 0) {
        barrier_init(&there, 1);
        barriers_ready();
    }
    __syncwarp();
    wait_prerequisites();
    launch_dependents();
    if (threadIdx.x == 0) {
        barrier_expect(&there, groups * TILES * DIGIT_BYTES);
        copy_digits<TILES>(b.hidden, blockIdx.y, 0, groups, words, scales, &there);
    }
    __syncwarp();
    if (threadIdx.x < count) own[threadIdx.x] = b.columns[from + threadIdx.x];
    const bool any = __syncthreads_or(threadIdx.x < count && own[threadIdx.x].live);
    barrier_wait(&there, 0);
    if (!any) {
        if (threadIdx.x == 0 && !is_mlp)
            for (; unit * UNIT_TILES < first_mlp; unit += stride) signal(b.inner_ready + UNITS_READY);
        return;
    }
    __syncwarp();
    float* sums = reinterpret_cast<float*>(FEW ? rest + WARPS * Ring<DEPTH>::BYTES : rest);
    float y[TILES][2];
#pragma unroll 1
    for (;;) {
#pragma unroll
        for (int nt = 0; nt < TILES; nt++) y[nt][0] = y[nt][1] = 0;
#pragma unroll 1
        for (int i4 = 0; i4 < folds; i4 += 4) {
            float four[TILES][2] = {};
#pragma unroll 1
            for (int i = i4; i < min(i4 + 4, folds); i++)
                fold_group<true, TILES>(ring.take(next(), lane), words + (first + i) * TILES * FRAGMENT, scales + (first + i) * TILES * 4, lane, count,
                                        four);
#pragma unroll
            for (int nt = 0; nt < TILES; nt++) y[nt][0] += four[nt][0], y[nt][1] += four[nt][1];
        }
        if (!FEW) __syncthreads();  // everyone has used the rings
        if (is_mlp) break;
#pragma unroll
        for (int nt = 0; nt < TILES; nt++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (nt * 4 < count) sums[(w / 4 * 4 * TILES + nt * 4 + t) * UNIT_PITCH + (w & 3) * ROWS + g + 8 * r] = y[nt][r];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < count * 64; i += THREADS) {
            const int c = i >> 6, row = i & 63;
            float v = 0;
#pragma unroll
            for (int j = 0; j < WARPGROUPS; j++) v += sums[(j * 4 * TILES + c) * UNIT_PITCH + row];
            const float pair = __shfl_xor_sync(ALL, v, 1);  // the row that differs in its lowest bit
            finish_row(place_of(s, l, b, own[c], from + c, unit * UNIT_TILES + row / ROWS, row % ROWS), row % ROWS, v, pair, 0.f);
        }
        __syncthreads();
        if (threadIdx.x == 0) signal(b.inner_ready + UNITS_READY);
        unit += stride;
        if (unit * UNIT_TILES >= first_mlp) return;
        if (FEW) continue;
        mine += to_next, left = folds;
        ring = {rest + w * Ring<DEPTH>::BYTES, 0};
        ring.fill([&](int) { return next(); }, lane);
    }
    // Of many columns gate and up meet in shared memory: code for all of a lane's n-tiles takes longer to come than to run.
    auto place = [&](int which, int c) { return sums + (which * 4 * TILES + c) * PITCH; };
#pragma unroll
    for (int nt = 0; nt < TILES; nt++) {
        const int c = nt * 4 + t, of = w * 8 + g;  // a tile has 8 rows of gate, then the same 8 of up
        if (c >= count) continue;
        place(0, c)[of] = FEW ? silu_times(y[nt][0], y[nt][1]) : y[nt][0];
        if (!FEW) place(1, c)[of] = y[nt][1];
    }
    __syncthreads();
#pragma unroll 1
    for (int c = w; c < count; c += WARPS) {
        if (!own[c].live) continue;
        float4 four = *reinterpret_cast<const float4*>(place(0, c) + lane * 4);
        if (!FEW) {
            const float4 up = *reinterpret_cast<const float4*>(place(1, c) + lane * 4);
            four = make_float4(silu_times(four.x, up.x), silu_times(four.y, up.y), silu_times(four.z, up.z), silu_times(four.w, up.w));
        }
        const float v[4] = {four.x, four.y, four.z, four.w};
        const int at = digit_tile(b.inner, from + c, mlp_group);
        store_digits(v, b.inner.words + at * FRAGMENT, b.inner.scales + at * 4, (from + c) & 3, lane, b.inner.beside);
        if (b.mlp) *reinterpret_cast<float4*>(b.mlp + (size_t)(from + c) * s.intermediate + mlp_group * GROUP + lane * 4) = four;
    }
}

// ---- barriers of some warps ----------------------------------------------------------------------------------------------------
// With its number in a register a kernel would reserve all sixteen.
DI void warpgroup_sync(int warpgroup) {
    switch (warpgroup) {
        case 0: asm volatile("bar.sync 1, 128;" ::: "memory"); break;
        case 1: asm volatile("bar.sync 2, 128;" ::: "memory"); break;
        case 2: asm volatile("bar.sync 3, 128;" ::: "memory"); break;
        default: asm volatile("bar.sync 4, 128;" ::: "memory"); break;
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
    __shared__ uint64_t there[WARPGROUPS][SLOTS];
    constexpr int SLOT = TILES * DIGIT_BYTES;
    const int w = __shfl_sync(ALL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, warpgroup = w / 4;
    const int from = blockIdx.y * 4 * TILES, count = min(4 * TILES, columns - from);
    const int split = blockIdx.x % OUT_SPLITS, unit = blockIdx.x / OUT_SPLITS, down = b.inner.groups, o = b.attention.groups;
    if (unit >= s.hidden / 64) return stay(b, l, early);
    const int first = split * WARPGROUPS + warpgroup;
    auto of = [&](int groups) { return first < groups ? (groups - first + WARPS - 1) / WARPS : 0; };
    const int n_down = of(down), n = n_down + of(o);  // groups of this warpgroup
    uint8_t* digits = shared + warpgroup * SLOTS * SLOT;
    launch_dependents();
    Ring<DEPTH> ring = {shared + WARPGROUPS * SLOTS * SLOT + w * Ring<DEPTH>::BYTES, 0};
    const uint8_t* mine = l.out + (size_t)(unit * UNIT_TILES + (w & 3)) * (down + o) * TILE4;
    auto group_of = [&](int i) { return first + (i < n_down ? i : i - n_down) * WARPS; };
    auto tile_at = [&](int i) { return i < n ? mine + (size_t)(group_of(i) + (i < n_down ? 0 : down)) * TILE4 : nullptr; };
    if (threadIdx.x < WARPGROUPS * SLOTS) {
        barrier_init(&there[0][threadIdx.x], 1);
        barriers_ready();
    }
    ring.fill(tile_at, lane);
    __syncthreads();
    // Asks for the digits of every `step`-th group of from .. last - 1; one lane calls it.
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
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        if (i == n_down) {
            end_of_down();
            if (early) {
                wait_prerequisites();
                warpgroup_sync(warpgroup);  // all slots are free
                if (lane == 0) ask(i + (w & 3), min(n, i + SLOTS), 4);
                __syncwarp();
            }
        }
        const Tile4 tile = ring.take(tile_at(i + DEPTH), lane);
        uint8_t* slot = digits + i % SLOTS * SLOT;
        barrier_wait(&there[warpgroup][i % SLOTS], i / SLOTS & 1);
        __syncwarp();
        fold_group<false, TILES>(tile, reinterpret_cast<uint32_t*>(slot), reinterpret_cast<float2*>(slot + TILES * FRAGMENT * 4), lane, count, p);
        const int next = i + SLOTS;
        if (next < (early && i < n_down ? n_down : n)) {
            warpgroup_sync(warpgroup);
            if ((w & 3) == 0 && lane == 0) ask(next, next + 1, 1);
            __syncwarp();
        }
    }
    if (n == n_down) {
        end_of_down();
        if (early) wait_prerequisites();
    }
    warpgroup_sync(warpgroup);  // everyone has used the digits
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
#define WGMMA(NAME, TILES, REGISTERS_IN, DEPTH_IN, REGISTERS_OUT, DEPTH_OUT, SLOTS)                        \
    extern "C" __global__ void __maxnreg__(REGISTERS_IN) project_in_wgmma_##NAME(LAYER) {                  \
        BODY((project_in<TILES, DEPTH_IN>(s, l, b, columns)))                                              \
    }                                                                                                      \
    extern "C" __global__ void __maxnreg__(REGISTERS_OUT) project_out_wgmma_##NAME(LAYER, int early) {     \
        BODY((project_out<TILES, DEPTH_OUT, SLOTS>(s, l, b, columns, early)))                              \
    }
WGMMA(8, 2, 64, 6, 64, 4, 7)
WGMMA(40, 10, 96, 3, 96, 4, 3)
