// Tiling data: computed on the host, read by every core. Strides count elements, sizes named ...Bytes count bytes.
#pragma once

#include <cstdint>

#include "kernel_tiling/kernel_tiling.h"

struct AtcfuseAttentionTiling {
    // Distances between batches, heads and rows (positions) of each operand.
    int64_t queryBatch;
    int64_t queryHead;
    int64_t keyBatch;
    int64_t keyHead;
    int64_t valueBatch;
    int64_t valueHead;
    int64_t outBatch;
    int64_t outHead;
    int64_t biasBatch;
    int64_t biasHead;
    int64_t maskBatch;
    int64_t maskHead;
    int64_t biasEnd;  // elements of the whole tensor
    int64_t maskEnd;
    int32_t queryRow;
    int32_t keyRow;
    int32_t valueRow;
    int32_t outRow;
    int32_t biasRow;  // 0: one row serves all queries
    int32_t maskRow;
    int32_t biasKey;  // 0: one value serves all keys of a query
    int32_t maskKey;

    // The problem and how it is cut: one task is `rows` queries of one head, visited in tiles of `columns` keys.
    int32_t queries;
    int32_t keys;
    int32_t causalOffset;  // query i sees key j if j <= i + causalOffset
    int32_t rows;
    int32_t columns;
    int32_t chunk;  // decode form: keys that are loaded at once
    int32_t queryTiles;
    int32_t keyTiles;
    int32_t tasks;

    // Each vector core's part of the workspace.
    int32_t scoreSlotBytes;
    int32_t probabilitySlotBytes;
    int32_t partialSlotBytes;
    int64_t coreBytes;

    // On-chip buffers; 0 where the form or the node does not need one.
    int32_t loadBuffers;
    int32_t loadBytes;
    int32_t storeBytes;
    int32_t accumulatorBytes;
    int32_t columnBytes;
    int32_t columnCount;
    int32_t foldBytes;
    int32_t rowBytes;
    int32_t biasBytes;
    int32_t maskBytes;
    int32_t scratchBytes;
    int32_t bitBytes;
    int32_t tileBytes;    // decode form: a chunk in float
    int32_t scoreBytes;   // decode form: one row of scores
    int32_t queryBytes;   // decode form: the query in float
    int32_t spreadBytes;  // decode form: a chunk of probabilities, one a block

    AscendC::tiling::TCubeTiling scoreProduct;
    AscendC::tiling::TCubeTiling valueProduct;
};
