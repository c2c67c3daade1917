// Audio head (int8) and stop head for several columns at once (compute capability 9.0, sm_90a).
//
//   norm_head ─▶ scores_wgmma ─▶ choose_token
//
// norm_head rounds the last LayerNorm once for all blocks. Here a warpgroup multiplies 64 rows, four tiles of codes, by the digits of all columns in
// shared memory, as in wgmma.cu. The four warpgroups of a block take the same rows and a quarter of the groups each: a quarter's sum is one of the four of
// `sum_fours`, and they meet in shared memory. So the bits are those of `scores`. A block asks for its first weights before it waits for norm_head.
#include "head.cuh"
#include "wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int STOP_COLUMNS = 8;  // of the stop head at a time
constexpr int STOP_WARPS = 4;    // that do it beside the others
constexpr int ASKED = 8;         // tiles of a warp that are asked for before it waits, into its ring or to L2

DI void prefetch_run(const void* p, int bytes) { asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory"); }

// As Ring, of int8 tiles.
template <int DEPTH> struct Ring8 {
    static constexpr int BYTES = DEPTH * TILE8;
    uint8_t* slots;  // [DEPTH][TILE8], 16-byte aligned
    int slot;        // of the oldest tile

    // Asks for a tile, or for nothing when `tile` is null; either way it is the next to come.
    __device__ __forceinline__ void push(int to_slot, const uint8_t* tile, int lane) const {
        if (tile && READS_WEIGHTS) {
#pragma unroll
            for (int s = 0; s < 4; s++) copy16(slots + to_slot * TILE8 + s * 512 + lane * 16, tile + s * 512 + lane * 16);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    // Takes the oldest tile and asks for `next` in its place.
    __device__ __forceinline__ void take(uint4 (&codes)[4], const uint8_t* next, int lane) {
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
        __syncwarp();
#pragma unroll
        for (int s = 0; s < 4; s++) codes[s] = *reinterpret_cast<const uint4*>(slots + slot * TILE8 + s * 512 + lane * 16);
        __syncwarp();
        push(slot, next, lane);
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
    }
};

// The tiles of a warp, in the order in which it multiplies them: `own` groups of a tile, then those of its tile of the block's next unit.
struct Walk {
    const Tiles& all;
    const uint8_t* rows;       // of the first of its groups
    int groups, own;           // of a tile, and the warp's
    int tiles, step;           // of the launch, and from one to the next
    int tile, group;           // that comes next
    __device__ __forceinline__ const uint8_t* next() {  // null where it has none
        const uint8_t* at = own && tile < tiles ? rows + ((size_t)all.tile(tile) * groups + group) * TILE8 : nullptr;
        if (++group >= own) group = 0, tile += step;
        return at;
    }
};

// Adds one group to four[n-tile][row g, row g + 8] of columns 4 n-tile + lane % 4, of which there are `count`: N of its n-tiles from FROM on. A group is
// a partial sum of its own. `words` and `scales`: the group's n-tiles.
template <int FROM, int N, int TILES>
DI void fold_tiles8(uint4 (&codes)[4], const uint32_t* words, const float2* scales, int lane, int count, float (&four)[TILES][2]) {
    int sum[N * 4];
    multiply_s8(sum, codes, digits_at(words) + FROM * TILE_DIGITS);
    wgmma_wait(sum);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int nt = FROM + i;
        if (nt > TILES / 2 && nt * 4 >= count) break;
        const float scale = scales[nt * 4 + (lane & 3)].x;
#pragma unroll
        for (int r = 0; r < 2; r++)
            four[nt][r] = __fadd_rn(four[nt][r], __fmaf_rn(scale, __int2float_rn(sum[i * 4 + 2 * r] * 256 + sum[i * 4 + 2 * r + 1]), 0.f));
    }
}
template <int TILES> DI void fold_group8(uint4 (&codes)[4], const uint32_t* words, const float2* scales, int lane, int count, float (&four)[TILES][2]) {
    if (!MULTIPLIES) return;
    if constexpr (TILES == 10) {
        fold_tiles8<0, 6>(codes, words, scales, lane, count, four);
        if (count > 24) fold_tiles8<6, 4>(codes, words, scales, lane, count, four);
    } else {
        fold_tiles8<0, TILES>(codes, words, scales, lane, count, four);
    }
}

// Rows first, first + step, ... of the stop head's inner layer for `columns` columns, at most 8, by `warps` warps of which this is number w. Sums in the
// order of `stop_row`. `h`: what they multiply, [8][hidden] in shared memory; `to`: of the first column.
DI void stop_rows(const Head& a, float* to, int columns, const float* h, int first, int step, int w, int warps, int lane) {
    const int groups = a.hidden / GROUP;
#pragma unroll 1
    for (int row = first + w * step; row < a.inner; row += warps * step) {
        const float* from = a.stop_up + (size_t)row * a.hidden + lane * 4;
        float sum[STOP_COLUMNS] = {};
#pragma unroll 1
        for (int at = 0; at < groups; at += 4) {
            uint4 bits[4];
#pragma unroll
            for (int i = 0; i < 4; i++) bits[i] = at + i < groups ? load_stream(from + (at + i) * GROUP) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (at + i >= groups) break;
#pragma unroll
                for (int c = 0; c < STOP_COLUMNS; c++) {  // also those that are not there: branches would keep the loads apart
                    const float4 v = *reinterpret_cast<const float4*>(h + c * a.hidden + (at + i) * GROUP + lane * 4);
                    sum[c] = __fmaf_rn(__uint_as_float(bits[i].x), v.x, sum[c]);
                    sum[c] = __fmaf_rn(__uint_as_float(bits[i].y), v.y, sum[c]);
                    sum[c] = __fmaf_rn(__uint_as_float(bits[i].z), v.z, sum[c]);
                    sum[c] = __fmaf_rn(__uint_as_float(bits[i].w), v.w, sum[c]);
                }
            }
        }
        float own = 0;  // lane c finishes column c
#pragma unroll
        for (int c = 0; c < STOP_COLUMNS; c++) {
            const float all = sum_lanes(sum[c]);
            own = lane == c ? all : own;
        }
        if (lane < columns) __stcg(to + (size_t)lane * a.inner + row, stop_term(a, row, own));
    }
}

DI void multipliers_sync() { asm volatile("bar.sync 1, 512;" ::: "memory"); }

// Grid: (at least TILES / 2 blocks, blocks of columns); block: 512 threads, with BESIDE 640. Units of four tiles of the audio head are dealt to the blocks.
// Of the stop head every block does some rows for 8 columns, with warps of their own (BESIDE) or after the tiles. `stop_in`: its LayerNorm, [columns][hidden].
// `phase`: see Tiles. Dynamic shared memory: words [groups][TILES][256], scales [groups][TILES][4], rings [16 warps][DEPTH] tiles, sums [PART][4
// warpgroups][256] floats, with BESIDE 8 columns of stop_in; without, they come where the words were.
template <int TILES, int DEPTH, bool BESIDE>
DI void scores(const Head& a, const HeadBuffers& b, const Digits& hidden, const float* stop_in, int columns, int phase) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t digits_there, stop_there;
    constexpr int PART = TILES == 10 ? 5 : TILES;  // n-tiles whose sums meet at a time
    const int groups = hidden.groups, w = __shfl_sync(ALL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, quarter = w / 4;
    const int from = blockIdx.y * 4 * TILES, count = min(4 * TILES, columns - from), blocks = gridDim.x;
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);
    float2* scales = reinterpret_cast<float2*>(words + groups * TILES * FRAGMENT);
    uint8_t* rings = reinterpret_cast<uint8_t*>(scales + groups * TILES * 4);
    float* sums = reinterpret_cast<float*>(rings + WARPS * Ring8<DEPTH>::BYTES);
    float* h = BESIDE ? sums + PART * WARPGROUPS * 256 : reinterpret_cast<float*>(shared);
    const Tiles all = {a, phase};
    const int tiles = all.count(), first = quarter * 4, own = max(0, min(4, groups - first));
    Ring8<DEPTH> ring = {rings + w * Ring8<DEPTH>::BYTES, 0};
    Walk walk = {all, a.rows + first * TILE8, groups, own, tiles, blocks * UNIT_TILES, (int)blockIdx.x * UNIT_TILES + (w & 3), 0};
    const int chunks = 4 * TILES <= STOP_COLUMNS ? 1 : (count + STOP_COLUMNS - 1) / STOP_COLUMNS, chunk = blockIdx.x % chunks;
    const int stop_from = from + chunk * STOP_COLUMNS, stop_count = min(STOP_COLUMNS, from + count - stop_from);  // this block's columns of the stop head,
    const int stop_first = blockIdx.x / chunks, stop_step = blocks / chunks;                                      // and its rows
    const bool stops = stop_first < min(stop_step, a.inner);
    launch_dependents();
    if (w < WARPS) {
        for (int i = 0; i < DEPTH; i++) ring.push(i, walk.next(), lane);
        Walk later = walk;
        for (int i = DEPTH; i < ASKED; i++) {
            const uint8_t* tile = later.next();
            if (tile && lane == 0 && READS_WEIGHTS) prefetch_run(tile, TILE8);
        }
    }
    if (stops && lane == 0)
        for (int row = stop_first + w * stop_step; row < a.inner; row += (BESIDE ? WARPS + STOP_WARPS : WARPS) * stop_step)
            prefetch_run(a.stop_up + (size_t)row * a.hidden, a.hidden * 4);
    if (threadIdx.x == 0) {
        barrier_init(&digits_there, 1);
        barrier_init(&stop_there, 1);
        barriers_ready();
    }
    auto ask_stop = [&] {
        barrier_expect(&stop_there, stop_count * a.hidden * 4);
        bulk_copy(h, stop_in + (size_t)stop_from * a.hidden, stop_count * a.hidden * 4, &stop_there);
    };
    auto stop_head = [&](int w, int warps) {
        barrier_wait(&stop_there, 0);
        __syncwarp();
        stop_rows(a, b.stop + (size_t)stop_from * a.inner, stop_count, h, stop_first, stop_step, w, warps, lane);
    };
    __syncwarp();
    wait_prerequisites();
    if (threadIdx.x == 0) {
        barrier_expect(&digits_there, groups * TILES * DIGIT_BYTES);
        copy_digits<TILES>(hidden, blockIdx.y, 0, groups, words, scales, &digits_there);
        if (BESIDE && stops) ask_stop();
    }
    __syncwarp();
    const bool any = __syncthreads_or(threadIdx.x < count && __ldcg(&b.columns[from + threadIdx.x].live));
    if (!any) {
        barrier_wait(&digits_there, 0);
        if (BESIDE && stops) barrier_wait(&stop_there, 0);
        return;
    }
    if (BESIDE && w >= WARPS) {
        if (stops) stop_head(w - WARPS, STOP_WARPS);
        return;
    }
    barrier_wait(&digits_there, 0);
    __syncwarp();
    const int fours = (groups + 3) / 4;
#pragma unroll 1
    for (int unit = blockIdx.x; unit * UNIT_TILES < tiles; unit += blocks) {
        // This thread finishes one row of the unit, of every other n-tile.
        const int tile = unit * UNIT_TILES + (w >> 1 & 3), row = tile < tiles ? all.row(tile, (lane >> 2) + 8 * (w & 1)) : -1;
        const float row_scale = row < 0 ? 0.f : __ldg(a.row_scale + row);
        float four[TILES][2];
#pragma unroll
        for (int nt = 0; nt < TILES; nt++) four[nt][0] = four[nt][1] = -0.f;  // which leaves the first summand as it is, 0 and -0 too
#pragma unroll 1
        for (int g = first; g < first + own; g++) {
            uint4 codes[4];
            ring.take(codes, walk.next(), lane);
            fold_group8<TILES>(codes, words + g * TILES * FRAGMENT, scales + g * TILES * 4, lane, count, four);
        }
#pragma unroll
        for (int part = 0; part < TILES; part += PART) {
            if (part * 4 >= count) break;
            multipliers_sync();  // the sums before these are read
            if (own) {
#pragma unroll
                for (int nt = 0; nt < PART; nt++)
#pragma unroll
                    for (int r = 0; r < 2; r++) sums[((nt * WARPGROUPS + quarter) * UNIT_TILES + (w & 3)) * 64 + r * 32 + lane] = four[part + nt][r];
            }
            multipliers_sync();
#pragma unroll 1
            for (int nt = w >> 3; nt < PART; nt += 2) {
                const int c = (part + nt) * 4 + (lane & 3);
                const float* at = sums + nt * WARPGROUPS * 256 + (threadIdx.x & 255);
                float y = at[0];
#pragma unroll
                for (int i = 1; i < WARPGROUPS; i++)
                    if (i < fours) y += at[i * 256];
                if (row >= 0 && c < count) __stcg(b.logits + (size_t)(from + c) * a.count + row, y * row_scale * a.logit_scale);
            }
        }
    }
    if (BESIDE || !stops) return;
    __syncthreads();  // everyone has used the digits
    if (threadIdx.x == 0) {
        fence_for_copies();
        ask_stop();
    }
    __syncwarp();
    stop_head(w, WARPS);
}
#define BODY(CALL) CALL;
#else
#define BODY(CALL)  // launched on compute capability 9.0 only
#endif

#define SCORES                                                                                                                                  \
    const __grid_constant__ Head a, const __grid_constant__ HeadBuffers b, const __grid_constant__ Digits hidden, const float *stop_in, int columns, \
        int phase
// Registers for norm_head beside it, which it follows early.
extern "C" __global__ void __maxnreg__(64) scores_wgmma_8(SCORES) { BODY((scores<2, 3, true>(a, b, hidden, stop_in, columns, phase))) }
extern "C" __global__ void __launch_bounds__(THREADS, 1) scores_wgmma_40(SCORES) { BODY((scores<10, 1, false>(a, b, hidden, stop_in, columns, phase))) }
