// Bulk copies into shared memory and the barriers they report to (compute capability 9.0).
#pragma once
#include "common.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
DI uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
DI void barrier_init(uint64_t* b, int arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory"); }
// After the last of them, so that bulk copies find them.
DI void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DI void barrier_arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory"); }
DI void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
// Waits for the end of the phase of this parity. A wait of seconds is a fault.
#define BARRIER_WAIT(NAME, HOW)                                                                                                     \
    DI void NAME(uint64_t* b, uint32_t parity) {                                                                                    \
        uint32_t done = 0;                                                                                                          \
        for (int spins = 0; !done; spins++) {                                                                                       \
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity." HOW ".b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"                 \
                         : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");                                            \
            if (spins > 1 << 24) __trap();                                                                                          \
        }                                                                                                                           \
    }
BARRIER_WAIT(barrier_wait, "shared")
BARRIER_WAIT(barrier_wait_for_peer, "acquire.cluster.shared::cta")  // what another block of the cluster sent
DI void bulk_copy(void* to, const void* from, int bytes, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "r"(shared_address(b)) : "memory");
}
// ---- clusters of blocks
// Where `p`, an address in this block's shared memory, lies in that of the block of this rank.
DI uint32_t address_in(const void* p, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
    return there;
}
// Writes to another block's shared memory and counts the bytes at its barrier.
DI void send(uint32_t to, uint2 v, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to), "r"(v.x), "r"(v.y), "r"(barrier) : "memory");
}
DI void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Between what threads read or wrote and bulk copies of it or over it.
// The fence for all kinds of memory at once would wait for the whole GPU.
DI void fence_for_copies() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif
