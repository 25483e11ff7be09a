// The tiling data of AtcfuseLayerNormQKV: computed on the host (atcfuse_layer_norm_qkv_host.h), read by every core.
#pragma once

#include <cstdint>

#include "kernel_tiling/kernel_tiling.h"

namespace atcfuse_layer_norm_qkv_tiling {

constexpr int32_t kProjections = 3;

/// A task is a block of rows and a group of columns; columns are dealt out in units of `unitColumns` that never span
/// two projections. Group g of G takes units [g * U / G, (g + 1) * U / G) of the U units of all projections.
struct Tiling {
    int32_t rows;          // rows of x
    int32_t hidden;        // K, columns of x
    int32_t rowsPerTask;   // the last block of rows may have fewer
    int32_t groups;        // G
    int32_t tasks;         // blocks of rows times groups
    int32_t unitColumns;
    int32_t allUnits;      // U
    int32_t slotPitch;     // elements from one normalised row in the workspace to the next
    int32_t chunkColumns;  // columns of a row that are on chip at once; K or more where the row fits whole
    int32_t reserved;      // zero; what follows is aligned to 8 bytes
    uint64_t slotBytes;    // workspace of a vector core
    uint64_t biasOffset;   // bytes from a slot's start to its widened biases
    int32_t columns[kProjections];  // N of each projection
    int32_t units[kProjections];
    AscendC::tiling::TCubeTiling cube;
};

}  // namespace atcfuse_layer_norm_qkv_tiling
