// The warpgroup's integer product, `wgmma` (compute capability 9.0): 64 rows of codes by N digits, 32 activations at a time.
//
// Codes come from registers, in the order of mma.sync (a warp's 16 rows are one tile); digits from shared memory in the order
// that `store_digits` calls wgmma's: pieces of 8 digits by 16 activations, 128 bytes; along the activations they lie beside each
// other, n-tiles are 1,024 bytes apart. Sums are exact integers, so they are those of mma.sync, bit for bit.
#pragma once
#include "bulk.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int UNIT_TILES = 4;                      // row tiles of a warpgroup
constexpr int WARPGROUPS = 4;                      // of a block
constexpr int DIGIT_BYTES = FRAGMENT * 4 + 4 * 8;  // of an n-tile and group, with its scales

// Describes the digits at `p` (without swizzling): 128 bytes to the next 16 activations, 1,024 to the next n-tile.
DI uint64_t digits_at(const void* p) {
    const uint64_t address = shared_address(p);
    return (address >> 4) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32;
}
// Before the products of `a`, whose registers are complete here: the compiler would otherwise wait after each of them.
DI void wgmma_fence(uint4 (&a)[4]) {
#pragma unroll
    for (int s = 0; s < 4; s++) asm volatile("" : "+r"(a[s].x), "+r"(a[s].y), "+r"(a[s].z), "+r"(a[s].w)::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DI void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

#define SUM4(K, I) K(c[I]), K(c[I + 1]), K(c[I + 2]), K(c[I + 3])
#define SUM8(K) SUM4(K, 0), SUM4(K, 4)
#define SUM16(K) SUM8(K), SUM4(K, 8), SUM4(K, 12)
#define SUM24(K) SUM16(K), SUM4(K, 16), SUM4(K, 20)
#define D8 "{%0,%1,%2,%3,%4,%5,%6,%7}, "
#define D16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
#define D24 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, "
// c = codes x digits; then c += codes x digits. TYPE: of the codes.
#define WGMMA(TYPE, SUMS, N, OPERANDS, D, ALL_SUMS)                                                                               \
    DI void wgmma_##TYPE##_first(int (&c)[SUMS], const uint4& a, uint64_t digits) {                                               \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0;\n wgmma.mma_async.sync.aligned.m64n" N "k32.s32." #TYPE ".s8 " D OPERANDS \
                     : ALL_SUMS("=r")                                                                                             \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(digits));                                                      \
    }                                                                                                                             \
    DI void wgmma_##TYPE(int (&c)[SUMS], const uint4& a, uint64_t digits) {                                                       \
        asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0;\n wgmma.mma_async.sync.aligned.m64n" N "k32.s32." #TYPE ".s8 " D OPERANDS \
                     : ALL_SUMS("+r")                                                                                             \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(digits));                                                      \
    }
#define WGMMA_WIDTHS(TYPE)                                                  \
    WGMMA(TYPE, 8, "16", "{%8,%9,%10,%11}, %12, p; }", D8, SUM8)            \
    WGMMA(TYPE, 16, "32", "{%16,%17,%18,%19}, %20, p; }", D16, SUM16)       \
    WGMMA(TYPE, 24, "48", "{%24,%25,%26,%27}, %28, p; }", D24, SUM24)
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
