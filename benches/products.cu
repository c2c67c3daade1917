// Cycles that a warpgroup's products of a group take when nothing has to be waited for: weights and digits are in shared memory, one to four
// warpgroups on a multiprocessor. What project_in needs beyond 16 times that is waiting. Compute capability 9.0.
//
//   $CUDA_HOME/bin/nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -I src/engine/cuda/kernels -L $CUDA_HOME/lib -o target/products benches/products.cu
//   target/products
#include "wgmma.cu"

#include <cstdio>
#include <cuda_runtime.h>

enum Part { PRODUCTS, FOLDED, WHOLE };  // tensor cores alone; with codes taken apart and sums folded; with the tile read from shared memory
constexpr int GROUPS = 16, STAGES = 3, REPEATS = 4096, MOST_BLOCKS = 132;

template <int TILES, Part PART> __global__ void products(long long* cycles, float* sink, int count) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(128) uint8_t shared[];
    const int w = warp_number(), lane = threadIdx.x & 31;
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);
    float2* scales = reinterpret_cast<float2*>(words + GROUPS * TILES * FRAGMENT);
    uint8_t* tiles = reinterpret_cast<uint8_t*>(scales + GROUPS * TILES * 4) + w * STAGES * TILE4;
    for (int i = threadIdx.x; i < GROUPS * TILES * FRAGMENT; i += blockDim.x) words[i] = 0x01010101 * (i & 7);
    for (int i = threadIdx.x; i < GROUPS * TILES * 4; i += blockDim.x) scales[i] = make_float2(1e-3f, 1e-3f);
    for (int i = lane; i < STAGES * TILE4 / 4; i += 32) reinterpret_cast<uint32_t*>(tiles)[i] = i & 3;
    __syncthreads();
    float sums[TILES][2] = {};
    int bits = 0;
    Tile4 tile = {make_uint4(lane, 1, 2, 3), make_uint4(4, 5, lane, 7), make_uint2(0x00010001, 0x00010002)};
    const long long begin = clock64();
#pragma unroll 1
    for (int i = 0; i < REPEATS; i++) {
        const int group = i % GROUPS;
        const uint32_t digits = digits_at(words) + group * TILES * TILE_DIGITS;
        if constexpr (PART == PRODUCTS) {
            uint4 codes[4] = {tile.a, tile.b, tile.a, tile.b};
            constexpr int FIRST = TILES == 10 ? 6 : TILES, SECOND = TILES - FIRST;
            int sum[FIRST * 4];
            multiply_u8(sum, codes, digits);
            wgmma_wait(sum);
            for (int j = 0; j < FIRST * 4; j++) bits ^= sum[j];
            if constexpr (SECOND > 0) {
                int more[SECOND * 4];
                multiply_u8(more, codes, digits + FIRST * TILE_DIGITS);
                wgmma_wait(more);
                for (int j = 0; j < SECOND * 4; j++) bits ^= more[j];
            }
        } else {
            const uint8_t* from = tiles + i % STAGES * TILE4;
            if (PART == WHOLE)
                tile = {*reinterpret_cast<const uint4*>(from + lane * 16), *reinterpret_cast<const uint4*>(from + 512 + lane * 16),
                        *reinterpret_cast<const uint2*>(from + 1024 + (lane >> 2) * 8)};
            else
                tile.a.x += i;
            fold_group<true, TILES>(tile, digits, scales + group * TILES * 4 + (lane & 3), count, sums, [] {});
        }
    }
    const long long end = clock64();
    float all = bits;
    for (int i = 0; i < TILES; i++) all += sums[i][0] + sums[i][1];
    sink[blockIdx.x * blockDim.x + threadIdx.x] = all;
    if (blockIdx.x == 0 && threadIdx.x == 0) *cycles = end - begin;
#endif
}

#define CHECK(CALL)                                                                                \
    if (const cudaError_t error = CALL) {                                                          \
        fprintf(stderr, "%s: %s\n", #CALL, cudaGetErrorString(error));                             \
        return 1;                                                                                  \
    }

template <int TILES, Part PART> int measure(const char* name, int columns) {
    constexpr int BYTES = GROUPS * TILES * 1056 + 16 * STAGES * TILE4;
    long long *cycles, found = 0;
    float* sink;
    CHECK(cudaMalloc(&cycles, sizeof *cycles));
    CHECK(cudaMalloc(&sink, MOST_BLOCKS * 512 * sizeof *sink));
    CHECK(cudaFuncSetAttribute(products<TILES, PART>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    printf("%2d columns, %-28s", columns, name);
    for (int warpgroups = 1; warpgroups <= 4; warpgroups++) {
        for (int turn = 0; turn < 2; turn++) products<TILES, PART><<<MOST_BLOCKS, warpgroups * 128, BYTES>>>(cycles, sink, columns);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(&found, cycles, sizeof found, cudaMemcpyDeviceToHost));
        printf("  %d: %5.0f", warpgroups, (double)found / REPEATS);
    }
    printf("\n");
    return 0;
}

int main() {
    printf("cycles a group, with 1 to 4 warpgroups on a multiprocessor\n");
    return measure<2, PRODUCTS>("products", 8) || measure<2, FOLDED>("products, folded", 8) || measure<2, WHOLE>("products, folded, tile read", 8) ||
           measure<10, PRODUCTS>("products", 34) || measure<10, FOLDED>("products, folded", 34) || measure<10, WHOLE>("products, folded, tile read", 34);
}
