// A layer's products for several columns at once (compute capability 9.0, sm_90a): up to 8 slots, prompts, many slots.
//
// What layer.cu does warp by warp, a warpgroup does here on 64 rows: four tiles of codes, one a warp, meet the digits of all
// columns in shared memory (wgmma), group after group, so a row's sum never leaves its lane's registers. Groups are folded in the
// order of layer.cu, so the bits are the same.
//
//   norm_columns ─▶ project_in ─▶ attend ─▶ project_out
//
// A block takes 4 * TILES columns, TILES being the n-tiles that lie beside each other in `Digits`.
#include "bulk.cuh"
#include "layer.cuh"
#include "wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int UNIT_TILES = 4;   // row tiles of a warpgroup
constexpr int CLUSTER = 8;      // blocks that share the columns of project_out
constexpr int PITCH = 136;      // floats between two columns of 128 rows in shared memory, against bank conflicts

// The codes of a tile as bytes, ready for four products.
DI void codes_of(const Tile4& t, uint4 (&a)[4]) {
    constexpr uint32_t LOW = 0x0F0F0F0Fu;
    a[0] = make_uint4(t.a.x & LOW, t.a.y & LOW, t.a.z & LOW, t.a.w & LOW);
    a[1] = make_uint4(t.a.x >> 4 & LOW, t.a.y >> 4 & LOW, t.a.z >> 4 & LOW, t.a.w >> 4 & LOW);
    a[2] = make_uint4(t.b.x & LOW, t.b.y & LOW, t.b.z & LOW, t.b.w & LOW);
    a[3] = make_uint4(t.b.x >> 4 & LOW, t.b.y >> 4 & LOW, t.b.z >> 4 & LOW, t.b.w >> 4 & LOW);
}

// Folds one group into p[n-tile][row g, row g + 8] of columns 4 n-tile + lane % 4, of which there are `count`. `words` and `scales`:
// the group's n-tiles.
template <int TILES> DI void fold_group(const Tile4& t, const uint32_t* words, const float2* scales, int lane, int count, float (&p)[TILES][2]) {
    if (!MULTIPLIES) return;
    uint4 a[4];
    int sum[TILES * 4];
    codes_of(t, a);
    wgmma_fence(a);
    wgmma_u8_first(sum, a[0], digits_at(words));
#pragma unroll
    for (int s = 1; s < 4; s++) wgmma_u8(sum, a[s], digits_at(words + s * 64));
    wgmma_commit();
    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(&t.s.x)), w8 = __half22float2(*reinterpret_cast<const __half2*>(&t.s.y));
    wgmma_wait(sum);
#pragma unroll
    for (int nt = 0; nt < TILES; nt++) {
        if (nt > TILES / 2 && nt * 4 >= count) break;
        const float2 x = scales[nt * 4 + (lane & 3)];
        p[nt][0] = __fmaf_rn(__fmul_rn(w.x, x.x), __int2float_rn(sum[nt * 4] * 256 + sum[nt * 4 + 1]), p[nt][0]);
        p[nt][1] = __fmaf_rn(__fmul_rn(w8.x, x.x), __int2float_rn(sum[nt * 4 + 2] * 256 + sum[nt * 4 + 3]), p[nt][1]);
        p[nt][0] = __fmaf_rn(w.y, x.y, p[nt][0]);
        p[nt][1] = __fmaf_rn(w8.y, x.y, p[nt][1]);
    }
}

// Copies `groups` groups of digits and their scales, from group `from` on, to shared memory; one lane calls it.
template <int TILES> DI void copy_digits(const Digits& d, int block, int from, int groups, uint32_t* words, float2* scales, uint64_t* there) {
    const size_t at = ((size_t)block * d.groups + from) * TILES;
    bulk_copy(words, d.words + at * FRAGMENT, groups * TILES * FRAGMENT * 4, there);
    bulk_copy(scales, d.scales + at * 4, groups * TILES * 4 * 8, there);
}
constexpr int DIGIT_BYTES = FRAGMENT * 4 + 4 * 8;  // of an n-tile and group, with its scales

// Grid: (intermediate / 128 blocks for gate and up, then blocks for keys, values and queries; blocks of columns); block: 512 threads.
// A block of the first kind makes one group of the MLP and rounds it; units of 64 rows of keys, values and queries are dealt to the
// warpgroups of the others. Dynamic shared memory: words [groups][TILES][256], scales [groups][TILES][4], rings [16 warps][DEPTH] tiles
// or the MLP [columns][PITCH].
template <int TILES, int DEPTH> DI void project_in(const Shape& s, const Layer& l, const Buffers& b, int columns) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Column own[4 * TILES];
    __shared__ uint64_t there;
    const int groups = s.hidden / GROUP, w = __shfl_sync(ALL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int from = blockIdx.y * 4 * TILES, count = min(4 * TILES, columns - from);
    const int mlp_group = blockIdx.x, mlp_blocks = b.inner.groups, first_mlp = first_mlp_tile(s);
    const bool is_mlp = mlp_group < mlp_blocks;
    const int unit = (int)blockIdx.x - mlp_blocks + w / 4 * ((int)gridDim.x - mlp_blocks);
    const int tile = is_mlp ? first_mlp + mlp_group * WARPS + w : unit * UNIT_TILES + (w & 3);
    const bool works = is_mlp || tile < first_mlp;
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);
    float2* scales = reinterpret_cast<float2*>(words + groups * TILES * FRAGMENT);
    uint8_t* rest = reinterpret_cast<uint8_t*>(scales + groups * TILES * 4);
    launch_dependents();
    Ring<DEPTH> ring = {rest + w * Ring<DEPTH>::BYTES, 0};
    const uint8_t* mine = l.in + (size_t)tile * groups * TILE4;
    auto tile_at = [&](int i) { return works && i < groups ? mine + i * TILE4 : nullptr; };
    ring.fill(tile_at, lane);
    if (threadIdx.x == 0) {
        barrier_init(&there, 1);
        barriers_ready();
    }
    __syncwarp();
    wait_prerequisites();
    if (threadIdx.x == 0) {
        barrier_expect(&there, groups * TILES * DIGIT_BYTES);
        copy_digits<TILES>(b.hidden, blockIdx.y, 0, groups, words, scales, &there);
    }
    __syncwarp();
    if (threadIdx.x < count) own[threadIdx.x] = b.columns[from + threadIdx.x];
    const bool any = __syncthreads_or(threadIdx.x < count && own[threadIdx.x].live);
    float y[TILES][2] = {};
    const int folds = works ? groups : 0;
    barrier_wait(&there, 0);
    if (!any) return;
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < folds; i++) {
        float p[TILES][2] = {};
        fold_group<TILES>(ring.take(tile_at(i + DEPTH), lane), words + i * TILES * FRAGMENT, scales + i * TILES * 4, lane, count, p);
#pragma unroll
        for (int nt = 0; nt < TILES; nt++)
#pragma unroll
            for (int r = 0; r < 2; r++) y[nt][r] = i ? y[nt][r] + p[nt][r] : p[nt][r];
    }
    if (!works) return;
    if (!is_mlp) {
#pragma unroll
        for (int nt = 0; nt < TILES; nt++) {
            const int c = nt * 4 + t;
            if (nt * 4 >= count) break;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float pair = __shfl_xor_sync(ALL, y[nt][r], 4);  // the row that differs in its lowest bit
                if (c < count) finish_row(place_of(s, l, b, own[c], from + c, tile, g + 8 * r), g + 8 * r, y[nt][r], pair, 0.f);
            }
        }
        return;
    }
    float* mlp = reinterpret_cast<float*>(rest);
    __syncthreads();  // everyone has used the rings
#pragma unroll
    for (int nt = 0; nt < TILES; nt++) {
        const int c = nt * 4 + t;
        if (c < count) mlp[c * PITCH + w * 8 + g] = silu_times(y[nt][0], y[nt][1]);  // a tile has 8 rows of gate, then the same 8 of up
    }
    __syncthreads();
#pragma unroll 1
    for (int c = w; c < count; c += WARPS) {
        if (!own[c].live) continue;
        const float4 four = *reinterpret_cast<const float4*>(mlp + c * PITCH + lane * 4);
        const float v[4] = {four.x, four.y, four.z, four.w};
        const int at = digit_tile(b.inner, from + c, mlp_group);
        store_digits(v, b.inner.words + at * FRAGMENT, b.inner.scales + at * 4, (from + c) & 3, lane, b.inner.beside);
        if (b.mlp) *reinterpret_cast<float4*>(b.mlp + (size_t)(from + c) * s.intermediate + mlp_group * GROUP + lane * 4) = four;
    }
}

DI void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A value at the same place in the shared memory of block `rank` of the cluster.
DI float from_rank(const float* p, int rank) {
    uint32_t at;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}

// Grid: (8 * hidden / 128, blocks of columns), clusters of 8; block: 512 threads. x[row] = (x[row] + o_proj(attention)) + down_proj(inner).
// A cluster makes 128 rows. Its block r multiplies the groups 2r, 2r + 1 and every 16th from there, whose partial sums are those of the
// warps 2r and 2r + 1 of layer.cu, and adds all of them for 16 of the rows: so every activation is fetched by one block of a cluster.
// Dynamic shared memory: words [groups of the block][TILES][256], scales [groups of the block][TILES][4], rings [16 warps][DEPTH] tiles;
// then the partial sums [o, down][2][columns][PITCH].
template <int TILES, int DEPTH> DI void project_out(const Shape& s, const Layer& l, const Buffers& b, int columns) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Column own[4 * TILES];
    __shared__ uint64_t there;
    const int w = __shfl_sync(ALL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, t = lane & 3, warpgroup = w / 4, unit = warpgroup & 1, half = warpgroup >> 1;
    const int from = blockIdx.y * 4 * TILES, count = min(4 * TILES, columns - from);
    const int rank = blockIdx.x % CLUSTER, first = 2 * rank + half, down = b.inner.groups, o = b.attention.groups;
    auto of = [](int groups, int from) { return from < groups ? (groups - from + WARPS - 1) / WARPS : 0; };
    const int n_down = of(down, first), n = n_down + of(o, first);  // groups of this warpgroup
    const int before = half ? of(down, first - 1) + of(o, first - 1) : 0, all = half ? before + n : n + of(down, first + 1) + of(o, first + 1);
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);
    float2* scales = reinterpret_cast<float2*>(words + all * TILES * FRAGMENT);
    uint8_t* rest = reinterpret_cast<uint8_t*>(scales + all * TILES * 4);
    float* part = reinterpret_cast<float*>(shared);
    const int tile = blockIdx.x / CLUSTER * CLUSTER + unit * UNIT_TILES + (w & 3);
    launch_dependents();
    Ring<DEPTH> ring = {rest + w * Ring<DEPTH>::BYTES, 0};
    const uint8_t* mine = l.out + (size_t)tile * (down + o) * TILE4;
    auto tile_at = [&](int i) { return i < n ? mine + (size_t)(i < n_down ? first + i * WARPS : down + first + (i - n_down) * WARPS) * TILE4 : nullptr; };
    ring.fill(tile_at, lane);
    if (threadIdx.x == 0) {
        barrier_init(&there, 1);
        barriers_ready();
    }
    __syncthreads();
    wait_prerequisites();
    if (w == WARPS - 1) {
        if (lane == 0) barrier_expect(&there, all * TILES * DIGIT_BYTES);
        __syncwarp();
        const int even_down = of(down, 2 * rank), even = even_down + of(o, 2 * rank), odd_down = of(down, 2 * rank + 1);
#pragma unroll 1
        for (int i = lane; i < all; i += 32) {  // a lane a group
            const int of_half = i < even ? i : i - even, n_of_down = i < even ? even_down : odd_down, w_of = 2 * rank + (i >= even);
            const bool is_down = of_half < n_of_down;
            copy_digits<TILES>(is_down ? b.inner : b.attention, blockIdx.y, w_of + (is_down ? of_half : of_half - n_of_down) * WARPS, 1,
                               words + i * TILES * FRAGMENT, scales + i * TILES * 4, &there);
        }
    }
    if (threadIdx.x < count) own[threadIdx.x] = b.columns[from + threadIdx.x];
    const bool any = __syncthreads_or(threadIdx.x < count && own[threadIdx.x].live);
    // The first value that this thread will finish.
    const int row = blockIdx.x * ROWS + (threadIdx.x & 15);
    auto residual_of = [&](int c) { return b.x + (size_t)own[c].row * s.hidden + row; };
    const float first_residual = threadIdx.x >> 4 < count ? __ldcg(residual_of(threadIdx.x >> 4)) : 0.f;
    barrier_wait(&there, 0);
    if (!any) return;  // the same for all blocks of a cluster
    float p[TILES][2] = {}, p_down[TILES][2];
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        if (i == n_down) {
#pragma unroll
            for (int nt = 0; nt < TILES; nt++)
#pragma unroll
                for (int r = 0; r < 2; r++) p_down[nt][r] = p[nt][r], p[nt][r] = 0;
        }
        fold_group<TILES>(ring.take(tile_at(i + DEPTH), lane), words + (before + i) * TILES * FRAGMENT, scales + (before + i) * TILES * 4, lane, count, p);
    }
    if (n == n_down) {
#pragma unroll
        for (int nt = 0; nt < TILES; nt++)
#pragma unroll
            for (int r = 0; r < 2; r++) p_down[nt][r] = p[nt][r], p[nt][r] = 0;
    }
    __syncthreads();  // everyone has used digits and rings
    auto place = [&](int which, int half, int c) { return part + ((which * 2 + half) * count + c) * PITCH; };
#pragma unroll
    for (int nt = 0; nt < TILES; nt++) {
        const int c = nt * 4 + t, at = unit * 64 + (w & 3) * 16 + (lane >> 2);
        if (c >= count) continue;
#pragma unroll
        for (int r = 0; r < 2; r++) place(0, half, c)[at + 8 * r] = p[nt][r], place(1, half, c)[at + 8 * r] = p_down[nt][r];
    }
    __syncwarp();
    cluster_sync();
#pragma unroll 1
    for (int c = threadIdx.x >> 4; c < count; c += THREADS / 16) {
        if (!own[c].live) continue;
        float* to = residual_of(c);
        const float x = c == threadIdx.x >> 4 ? first_residual : __ldcg(to);
        float sum[2][WARPS];
#pragma unroll
        for (int which = 0; which < 2; which++)
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum[which][i] = from_rank(place(which, i & 1, c) + rank * ROWS + (threadIdx.x & 15), i >> 1);
#pragma unroll
        for (int which = 0; which < 2; which++)
#pragma unroll
            for (int i = 1; i < WARPS; i++) sum[which][0] += sum[which][i];
        __stcg(to, (x + sum[0][0]) + sum[1][0]);
    }
    __syncwarp();
    cluster_sync();  // the others may still read this block's sums
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define BODY(CALL) CALL;
#define CLUSTERS __cluster_dims__(8, 1, 1)
#else
#define BODY(CALL)  // launched on compute capability 9.0 only
#define CLUSTERS
#endif
#define LAYER const __grid_constant__ Shape s, const __grid_constant__ Layer l, const __grid_constant__ Buffers b, int columns
#define WGMMA_IN(NAME, TILES, DEPTH)                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) project_in_wgmma_##NAME(LAYER) { \
        BODY((project_in<TILES, DEPTH>(s, l, b, columns)))                                    \
    }
#define WGMMA_OUT(NAME, TILES, DEPTH)                                                                   \
    extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS, 1) project_out_wgmma_##NAME(LAYER) { \
        BODY((project_out<TILES, DEPTH>(s, l, b, columns)))                                             \
    }
WGMMA_IN(8, 2, 6)
WGMMA_IN(40, 10, 3)
WGMMA_OUT(8, 2, 3)
