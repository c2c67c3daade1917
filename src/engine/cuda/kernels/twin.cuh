// Twins of the kernels, for measurements: the same source compiled with TWIN=1 reads all weights and multiplies none, with TWIN=2
// multiplies and reads none. Everything else (waiting, LayerNorm, attention, sums) is as in the product, so that the time of a
// kernel over that of its read twin tells what its arithmetic costs beyond its bytes. Their results are meaningless.
//
// build.rs compiles them under the feature `twins`; a kernel takes part by guarding what fetches weights with READS_WEIGHTS and
// what multiplies them with MULTIPLIES.
#pragma once

#ifndef TWIN
#define TWIN 0
#endif
constexpr bool READS_WEIGHTS = TWIN != 2;
constexpr bool MULTIPLIES = TWIN != 1;
