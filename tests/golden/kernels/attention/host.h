// Shapes and tiling, computed from operand shapes and what PlatformAscendC says about the chip. op_host and the twin
// include this same file; the toolkit's tiling classes are not used.
#pragma once

#include "atcfuse_tiling.h"
#include "atcfuse_attention_tiling.h"

namespace atcfuse_attention_tiling {

using Tiling = AtcfuseAttentionTiling;
using atcfuse::ceilDiv;
using atcfuse::least;
using atcfuse::most;
using atcfuse::roundUp;

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 4;
constexpr int64_t kHeadDim = 16;
constexpr int64_t kValueDim = 16;
constexpr int64_t kElementBytes = 2;
constexpr int64_t kBiasElementBytes = 2;  // 0: no bias
constexpr bool kHasMask = false;
constexpr bool kHasSoftcap = false;
constexpr bool kKeysTransposed = false;  // keys lie as [head dim, positions]
constexpr int64_t kPitchUnit = kHasMask ? 128 : 64;  // columns: whole vector instructions of half or float
constexpr int64_t kHeadPitch = (kHeadDim + 15) / 16 * 16;
constexpr int64_t kValuePitch = (kValueDim + 15) / 16 * 16;
constexpr int64_t kMaxRowStride = 65535;  // of a Matmul operand, in elements

struct Sizes {
    int64_t batch = 1;
    int64_t queries = 1;
    int64_t keys = 1;
};

inline bool hasShape(const atcfuse::Shape& shape, const int64_t* dims, int32_t rank)
{
    if (shape.rank != rank) {
        return false;
    }
    for (int32_t axis = 0; axis < rank; ++axis) {
        if (shape.dims[axis] != dims[axis]) {
            return false;
        }
    }
    return true;
}

/// Whether a bias or mask broadcasts to [batch, heads, queries, keys].
inline bool broadcasts(const atcfuse::Shape& shape, const Sizes& sizes)
{
    const int64_t scores[] = {sizes.keys, sizes.queries, kHeads, sizes.batch};
    for (int32_t axis = 0; axis < 4; ++axis) {
        const int64_t size = shape.fromEnd(axis);
        if (size != 1 && size != scores[axis]) {
            return false;
        }
    }
    return shape.rank <= 4;
}

/// Reads batch, queries and keys from the operands' shapes and holds every shape against its layout.
inline const char* readSizes(const atcfuse::Shape* inputs, Sizes& sizes)
{
    if (inputs[0].rank != 3) {
        return "q does not have the rank of its layout BSH";
    }
    if (inputs[1].rank != 3) {
        return "k does not have the rank of its layout BSH";
    }
    if (inputs[2].rank != 3) {
        return "v does not have the rank of its layout BSH";
    }
    sizes.batch = inputs[0].dims[0];
    sizes.queries = inputs[0].dims[1];
    sizes.keys = inputs[1].dims[1];
    if (sizes.batch < 1 || sizes.queries < 1 || sizes.keys < 1) {
        return "an operand is empty";
    }
    const int64_t q[] = {sizes.batch, sizes.queries, kHeads * kHeadDim};
    if (!hasShape(inputs[0], q, 3)) {
        return "q does not have the shape BSH that the other operands ask for";
    }
    const int64_t k[] = {sizes.batch, sizes.keys, kKvHeads * kHeadDim};
    if (!hasShape(inputs[1], k, 3)) {
        return "k does not have the shape BSH that the other operands ask for";
    }
    const int64_t v[] = {sizes.batch, sizes.keys, kKvHeads * kValueDim};
    if (!hasShape(inputs[2], v, 3)) {
        return "v does not have the shape BSH that the other operands ask for";
    }
    if (!broadcasts(inputs[3], sizes)) {
        return "bias does not broadcast to [batch, heads, queries, keys]";
    }
    return nullptr;
}

/// The result's shape, for the operator's shape inference.
inline const char* inferShapes(const atcfuse::Shape* inputs, atcfuse::Shape* outputs)
{
    Sizes sizes;
    const char* refusal = readSizes(inputs, sizes);
    if (refusal != nullptr) {
        return refusal;
    }
    outputs[0].rank = 3;
    outputs[0].dims[0] = sizes.batch;
    outputs[0].dims[1] = sizes.queries;
    outputs[0].dims[2] = kHeads * kValueDim;
    return nullptr;
}

/// q: BSH
inline void setQueryStrides(Tiling& tiling, const Sizes& sizes)
{
    tiling.queryBatch = sizes.queries * kHeads * kHeadDim;
    tiling.queryHead = kHeadDim;
    // A single row has no neighbour: its stride is not limited by anything.
    tiling.queryRow = static_cast<int32_t>(sizes.queries == 1 ? kHeadDim : kHeads * kHeadDim);
}

/// k: BSH
inline void setKeyStrides(Tiling& tiling, const Sizes& sizes)
{
    tiling.keyBatch = sizes.keys * kKvHeads * kHeadDim;
    tiling.keyHead = kHeadDim;
    // A single row has no neighbour: its stride is not limited by anything.
    tiling.keyRow = static_cast<int32_t>(sizes.keys == 1 ? kHeadDim : kKvHeads * kHeadDim);
}

/// v: BSH
inline void setValueStrides(Tiling& tiling, const Sizes& sizes)
{
    tiling.valueBatch = sizes.keys * kKvHeads * kValueDim;
    tiling.valueHead = kValueDim;
    // A single row has no neighbour: its stride is not limited by anything.
    tiling.valueRow = static_cast<int32_t>(sizes.keys == 1 ? kValueDim : kKvHeads * kValueDim);
}

/// out: BSH
inline void setOutStrides(Tiling& tiling, const Sizes& sizes)
{
    tiling.outBatch = sizes.queries * kHeads * kValueDim;
    tiling.outHead = kValueDim;
    // A single row has no neighbour: its stride is not limited by anything.
    tiling.outRow = static_cast<int32_t>(sizes.queries == 1 ? kValueDim : kHeads * kValueDim);
}

/// Dims of size 1 are read again for every index: stride 0.
inline void setBiasStrides(Tiling& tiling, const atcfuse::Shape& shape)
{
    const int64_t row = shape.fromEnd(0);
    const int64_t head = row * shape.fromEnd(1);
    tiling.biasKey = row == 1 ? 0 : 1;
    tiling.biasRow = static_cast<int32_t>(shape.fromEnd(1) == 1 ? 0 : row);
    tiling.biasHead = shape.fromEnd(2) == 1 ? 0 : head;
    tiling.biasBatch = shape.fromEnd(3) == 1 ? 0 : head * shape.fromEnd(2);
    tiling.biasEnd = head * shape.fromEnd(2) * shape.fromEnd(3);
}

/// A tiling of C[m,n] = A[m,k] B[k,n] in base blocks, K double buffered from L1 to L0.
inline void setProduct(AscendC::tiling::TCubeTiling& product, int64_t m, int64_t n, int64_t k)
{
    const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
    product = {};
    product.usedCoreNum = 1;
    product.M = narrow(m);
    product.N = narrow(n);
    product.Ka = narrow(k);
    product.Kb = narrow(k);
    product.singleCoreM = narrow(m);
    product.singleCoreN = narrow(n);
    product.singleCoreK = narrow(k);
    product.baseM = narrow(roundUp(m, 16));
    product.baseN = narrow(roundUp(n, 16));
    product.baseK = narrow(least(roundUp(k, 16), 128 / kElementBytes));  // two of 256 columns fill L0B
    product.depthA1 = 2;
    product.depthB1 = 2;
    product.stepM = 1;
    product.stepN = 1;
    product.stepKa = 1;
    product.stepKb = 1;
    product.dbL0A = 2;
    product.dbL0B = 2;
    product.dbL0C = 1;
}

inline void setTasks(Tiling& tiling, const Sizes& sizes)
{
    tiling.queryTiles = static_cast<int32_t>(ceilDiv(sizes.queries, tiling.rows));
    tiling.keyTiles = static_cast<int32_t>(ceilDiv(sizes.keys, tiling.columns));
    tiling.tasks = static_cast<int32_t>(sizes.batch * kHeads * tiling.queryTiles);
}

enum Form : uint64_t { kFlash = 0, kOneTile = 1, kDecode = 2 };

/// The buffers that turning a tile of scores into exponentials needs, in every form.
inline void setScoreBuffers(Tiling& t)
{
    const int64_t tile = int64_t{t.rows} * t.columns;
    const int64_t biasTile = (t.biasRow == 0 ? 1 : t.rows) * int64_t{t.columns};
    const int64_t maskTile = (t.maskRow == 0 ? 1 : t.rows) * int64_t{t.columns};
    int64_t scratch = kHasSoftcap ? 8192 : 0;
    if (kHasMask) {
        scratch = most(scratch, tile * 2);  // the mask as half
    }
    if (kBiasElementBytes == 2) {
        scratch = most(scratch, most(biasTile * 4, tile * 2));  // the bias in float, then the sum in its type
    }
    t.columnBytes = static_cast<int32_t>(roundUp(t.rows, 8) * 32);
    t.foldBytes = static_cast<int32_t>(int64_t{t.rows} * 256);
    t.rowBytes = static_cast<int32_t>(roundUp(t.rows, 8) * 4);
    t.biasBytes = static_cast<int32_t>(biasTile * kBiasElementBytes);
    t.maskBytes = kHasMask ? static_cast<int32_t>(maskTile) : 0;
    t.scratchBytes = static_cast<int32_t>(scratch);
    t.bitBytes = kHasMask || kBiasElementBytes == 2 ? static_cast<int32_t>(tile / 8) : 0;
}

inline void setTileBuffers(Tiling& t, Form form)
{
    const int64_t tile = int64_t{t.rows} * t.columns;
    const int64_t result = form == kOneTile ? 0 : t.rows * kValuePitch;
    t.loadBytes = static_cast<int32_t>(most(tile, result) * 4);
    t.storeBytes = static_cast<int32_t>(most(tile, result) * kElementBytes);
    t.accumulatorBytes = static_cast<int32_t>(result * 4);
    t.columnCount = form == kOneTile ? 2 : 5;
    setScoreBuffers(t);
}

/// What InitBuffer will be asked for in all.
inline int64_t onChipBytes(const Tiling& t)
{
    const int32_t buffers[] = {t.storeBytes,   t.accumulatorBytes, t.columnBytes * t.columnCount, t.foldBytes,
                               t.rowBytes,     t.biasBytes,        t.maskBytes,                   t.scratchBytes,
                               t.bitBytes,     t.tileBytes,        t.scoreBytes,                  t.queryBytes,
                               t.spreadBytes};
    int64_t sum = t.loadBuffers * roundUp(t.loadBytes, 32);
    for (const int32_t bytes : buffers) {
        sum += roundUp(bytes, 32);
    }
    return sum;
}

/// An estimate to choose tiles by: bytes that the busiest core's tasks move through global memory. A single load
/// buffer cannot overlap with computing; that is taken as a quarter slower.
inline int64_t estimate(const Tiling& t, Form form, int64_t heads, int64_t cores)
{
    const int64_t rows = least(t.rows, t.queries);
    const int64_t rounds = ceilDiv(heads * ceilDiv(t.queries, t.rows), cores);
    const int64_t operands = t.keys * (kHeadDim + kValueDim) * kElementBytes;
    const int64_t scores = rows * t.keys * (8 + 2 * kElementBytes);
    const int64_t perTile = kHeadDim * kElementBytes + kValueDim * (form == kOneTile ? kElementBytes : 8);
    const int64_t bytes = operands + scores + ceilDiv(t.keys, t.columns) * rows * perTile;
    return rounds * bytes * (t.loadBuffers == 2 ? 4 : 5);
}

/// Chooses the tile sizes and the form, the smaller ones where it makes no difference; where rows were asked for, the
/// widest tile up to them that fits. False where nothing fits.
inline bool chooseTiles(const atcfuse::Platform& platform, int64_t heads, Tiling& tiling, Form& form)
{
    int64_t best = 0;
    for (const int32_t rows : {16, 32, 64, 128}) {
        if (platform.tileRows != 0 && rows > platform.tileRows) {
            break;
        }
        for (const int32_t columns : {128, 256}) {
            for (const int32_t buffers : {2, 1}) {
                Tiling t = tiling;
                t.rows = rows;
                t.columns = columns;
                t.loadBuffers = buffers;
                const Form candidate = t.keys <= columns ? kOneTile : kFlash;
                setTileBuffers(t, candidate);
                const int64_t cost = estimate(t, candidate, heads, int64_t{platform.cubeCores} * 2);
                const bool wider = platform.tileRows != 0 && rows > tiling.rows;
                if (onChipBytes(t) <= platform.ub && (best == 0 || wider || cost < best)) {
                    best = cost;
                    tiling = t;
                    form = candidate;
                }
            }
        }
    }
    return best != 0;
}

/// One query a head: keys and values stream through the vector cores, nothing goes through the workspace.
inline void setDecodeTiles(Tiling& t)
{
    const int64_t pitch = most(kHeadPitch, kValuePitch);
    t.rows = 1;
    t.columns = static_cast<int32_t>(least(512, roundUp(t.keys, 128)));
    t.chunk = pitch <= 128 ? 128 : 64;
    t.loadBuffers = 2;
    t.loadBytes = static_cast<int32_t>(t.chunk * pitch * kElementBytes);
    t.storeBytes = static_cast<int32_t>(kValuePitch * kElementBytes);
    t.accumulatorBytes = static_cast<int32_t>(kValuePitch * 4);
    t.columnCount = 5;
    t.tileBytes = kElementBytes == 2 ? static_cast<int32_t>(t.chunk * pitch * 4) : 0;
    t.scoreBytes = t.columns * 4;
    t.queryBytes = static_cast<int32_t>(kHeadPitch * 4);
    t.spreadBytes = t.chunk * 32;
    setScoreBuffers(t);
}

/// Scores, probabilities and partial results of a vector core: rings of two slots, so that the cube works ahead.
inline void setWorkspace(Tiling& t, Form form)
{
    const int64_t tile = int64_t{t.rows} * t.columns;
    const int64_t slots = form == kOneTile ? 1 : 2;
    t.scoreSlotBytes = static_cast<int32_t>(roundUp(tile * 4, 512));
    t.probabilitySlotBytes = static_cast<int32_t>(roundUp(tile * kElementBytes, 512));
    t.partialSlotBytes = form == kOneTile ? 0 : static_cast<int32_t>(roundUp(t.rows * kValueDim * 4, 512));
    t.coreBytes = slots * (int64_t{t.scoreSlotBytes} + t.probabilitySlotBytes + t.partialSlotBytes);
}

/// Row strides that a Matmul operand can have.
inline const char* checkStrides(const Tiling& t)
{
    if (t.queryRow > kMaxRowStride || t.keyRow > kMaxRowStride || t.valueRow > kMaxRowStride) {
        return "rows of q, k or v lie more than 65535 elements apart";
    }
    return nullptr;
}

/// Form, tiles, workspace and launch. Returns why these sizes cannot run, or nullptr.
inline const char* setTiles(const atcfuse::Platform& platform, const Sizes& sizes, Tiling& tiling,
                            atcfuse::Launch& launch)
{
    Form form = kDecode;
    const char* refusal = nullptr;
    if (sizes.queries == 1 && !kKeysTransposed) {
        setDecodeTiles(tiling);
    } else if (!chooseTiles(platform, sizes.batch * kHeads, tiling, form)) {
        return "no tile fits the unified buffer";
    }
    if (form != kDecode) {
        refusal = checkStrides(tiling);
        setWorkspace(tiling, form);
        setProduct(tiling.scoreProduct, tiling.rows, tiling.columns, kHeadDim);
        setProduct(tiling.valueProduct, tiling.rows, kValueDim, tiling.columns);
    }
    setTasks(tiling, sizes);
    launch.blocks = static_cast<int32_t>(least(platform.cubeCores, ceilDiv(tiling.tasks, 2)));
    launch.tilingKey = form;
    launch.workspaceBytes = tiling.coreBytes * launch.blocks * 2;
    return onChipBytes(tiling) <= platform.ub ? refusal : "the decode form does not fit the unified buffer";
}

/// Everything the kernel must know. Returns nullptr, or why these shapes cannot run.
inline const char* computeTiling(const atcfuse::Platform& platform, const atcfuse::Shape* inputs, Tiling& tiling,
                                 atcfuse::Launch& launch)
{
    Sizes sizes;
    const char* refusal = readSizes(inputs, sizes);
    if (refusal != nullptr) {
        return refusal;
    }
    tiling = {};
    tiling.queries = static_cast<int32_t>(sizes.queries);
    tiling.keys = static_cast<int32_t>(sizes.keys);
    tiling.causalOffset = 0;
    setQueryStrides(tiling, sizes);
    setKeyStrides(tiling, sizes);
    setValueStrides(tiling, sizes);
    setOutStrides(tiling, sizes);
    setBiasStrides(tiling, inputs[3]);
    return setTiles(platform, sizes, tiling, launch);
}

}  // namespace atcfuse_attention_tiling
