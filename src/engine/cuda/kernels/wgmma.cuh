// The warpgroup's integer product, `wgmma` (compute capability 9.0): 64 rows of codes by N digits, 32 activations at a time.
//
// Codes come from registers, in the order of mma.sync (a warp's 16 rows are one tile); digits from shared memory in the order
// that `store_digits` calls wgmma's: pieces of 8 digits by 16 activations, 128 bytes; along the activations they lie beside each
// other, n-tiles are 1,024 bytes apart. Sums are exact integers, so they are those of mma.sync, bit for bit.
#pragma once
#include "bulk.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int UNIT_TILES = 4;                      // row tiles of a warpgroup
constexpr int GROUP_UNITS = 2 * GROUP / (UNIT_TILES * ROWS);  // units of a group of the MLP: gate and up
constexpr int WARPGROUPS = 4;                      // of a block
constexpr int DIGIT_BYTES = FRAGMENT * 4 + 4 * 8;  // of an n-tile and group, with its scales

// Of this thread's warp, in a register that all its lanes share, so that addresses made of it are.
DI int warp_number() { return (int)__reduce_max_sync(ALL, threadIdx.x >> 5); }

// Where digits are, as `multiply` takes it: counted in 16 bytes.
DI uint32_t digits_at(const void* p) { return shared_address(p) >> 4; }
constexpr int TILE_DIGITS = FRAGMENT * 4 / 16;  // from an n-tile to the next

#define SUM4(K, I) K(c[I]), K(c[I + 1]), K(c[I + 2]), K(c[I + 3])
#define SUM8(K) SUM4(K, 0), SUM4(K, 4)
#define SUM16(K) SUM8(K), SUM4(K, 8), SUM4(K, 12)
#define SUM24(K) SUM16(K), SUM4(K, 16), SUM4(K, 20)
#define D8 "{%0,%1,%2,%3,%4,%5,%6,%7}, "
#define D16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
#define D24 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, "
#define STEP(TYPE, N, D, CODES, DIGITS, ADDS) "wgmma.mma_async.sync.aligned.m64n" N "k32.s32." #TYPE ".s8 " D CODES ", " DIGITS ", " ADDS ";\n "
// c = codes x digits of a group, TYPE being that of the codes: four steps of 32 activations. Digits are described without swizzling: 128 bytes to the
// next 16 activations, 1,024 to the next n-tile. One statement, so that the descriptors come from one register.
#define WGMMA(TYPE, SUMS, N, D, ALL_SUMS, A0, A1, A2, A3, AT)                                                                     \
    DI void multiply_##TYPE(int (&c)[SUMS], uint4 (&a)[4], uint32_t digits) {                                                     \
        asm volatile("{ .reg .pred first, more;\n .reg .b32 low<4>;\n .reg .b64 x<4>;\n setp.ne.b32 first, 0, 0;\n setp.eq.b32 more, 0, 0;\n " \
                     "or.b32 low0, " AT ", 0x80000;\n add.u32 low1, low0, 16;\n add.u32 low2, low0, 32;\n add.u32 low3, low0, 48;\n "            \
                     "mov.b64 x0, {low0, 64};\n mov.b64 x1, {low1, 64};\n mov.b64 x2, {low2, 64};\n mov.b64 x3, {low3, 64};\n "                \
                     "wgmma.fence.sync.aligned;\n "                                                                                \
                     STEP(TYPE, N, D, A0, "x0", "first") STEP(TYPE, N, D, A1, "x1", "more") STEP(TYPE, N, D, A2, "x2", "more")        \
                     STEP(TYPE, N, D, A3, "x3", "more") "wgmma.commit_group.sync.aligned; }"                                         \
                     : ALL_SUMS("=r")                                                                                             \
                     : "r"(a[0].x), "r"(a[0].y), "r"(a[0].z), "r"(a[0].w), "r"(a[1].x), "r"(a[1].y), "r"(a[1].z), "r"(a[1].w),      \
                       "r"(a[2].x), "r"(a[2].y), "r"(a[2].z), "r"(a[2].w), "r"(a[3].x), "r"(a[3].y), "r"(a[3].z), "r"(a[3].w), "r"(digits) \
                     : "memory");                                                                                                 \
    }
#define WGMMA_WIDTHS(TYPE)                                                                                                           \
    WGMMA(TYPE, 8, "16", D8, SUM8, "{%8,%9,%10,%11}", "{%12,%13,%14,%15}", "{%16,%17,%18,%19}", "{%20,%21,%22,%23}", "%24")            \
    WGMMA(TYPE, 16, "32", D16, SUM16, "{%16,%17,%18,%19}", "{%20,%21,%22,%23}", "{%24,%25,%26,%27}", "{%28,%29,%30,%31}", "%32")       \
    WGMMA(TYPE, 24, "48", D24, SUM24, "{%24,%25,%26,%27}", "{%28,%29,%30,%31}", "{%32,%33,%34,%35}", "{%36,%37,%38,%39}", "%40")
WGMMA_WIDTHS(u8)
WGMMA_WIDTHS(s8)
#undef WGMMA_WIDTHS
#undef WGMMA
// The results may be read from here on.
template <int N> DI void wgmma_wait(int (&c)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(c[i])::"memory");
}

// Copies `groups` groups of digits and their scales, from group `from` on, to shared memory; one lane calls it.
template <int TILES> DI void copy_digits(const Digits& d, int block, int from, int groups, uint32_t* words, float2* scales, uint64_t* there) {
    const size_t at = ((size_t)block * d.groups + from) * TILES;
    bulk_copy(words, d.words + at * FRAGMENT, groups * TILES * FRAGMENT * 4, there);
    bulk_copy(scales, d.scales + at * 4, groups * TILES * 4 * 8, there);
}
#endif
