// AtcfuseAttention: attention of 4 heads, half in and out, float32 inside.
//
//   scores   Q K^T * 0.25f
//   bias     added as half
//   result   softmax(scores) V
//   layouts  Q BSH, K BSH, V BSH, result BSH
//
// A task is a tile of queries of one head. The cube computes its products, the vector cores the softmax between them;
// they meet in a ring of workspace slots, one ring for each vector core. Three forms, chosen by the host:
//   flash     keys in tiles, running maximum and sum, partial results added up in UB
//   one tile  all keys in one tile: probabilities are normalised before V, which writes the result itself
//   decode    one query: the vector cores do everything, scores stay in UB
#include "kernel_operator.h"
#include "lib/matmul_intf.h"
#include "atcfuse_attention_tiling.h"

namespace atcfuse_attention_kernel {

using namespace AscendC;
using Tiling = AtcfuseAttentionTiling;
using Element = half;
using BiasElement = half;

constexpr int32_t kHeads = 4;
constexpr int32_t kHeadsPerKey = 1;  // query heads that share a key head
constexpr int32_t kHeadDim = 16;
constexpr int32_t kValueDim = 16;
constexpr int32_t kHeadPitch = (kHeadDim + 15) / 16 * 16;
constexpr int32_t kValuePitch = (kValueDim + 15) / 16 * 16;
constexpr int32_t kLanes = 64;  // floats in a vector instruction
constexpr int32_t kPitchUnit = 64;
constexpr int32_t kBlock = 32;  // bytes of a UB block

// -inf is spelled as the lowest float, so that maxima and differences stay finite.
constexpr float kLowest = -3.4028234663852886e38f;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kEmpty = 2.5521175e38f;  // three quarters of the way: a maximum below -kEmpty is a row of -inf only

/// Waits until everything that the event's first pipe was given is done.
template <HardEvent event>
__aicore__ inline void Sync()
{
    const auto id = static_cast<event_t>(GetTPipePtr()->FetchEventID(event));
    SetFlag<event>(id);
    WaitFlag<event>(id);
}

/// Orders vector instructions that depend on one another. Every function below leaves its results ready.
__aicore__ inline void Barrier() { PipeBarrier<PIPE_V>(); }

__aicore__ inline int32_t RoundUp(int32_t value, int32_t unit) { return (value + unit - 1) / unit * unit; }
__aicore__ inline int32_t Least(int32_t a, int32_t b) { return a < b ? a : b; }
__aicore__ inline int32_t Most(int32_t a, int32_t b) { return a > b ? a : b; }

/// UB blocks between the end of `count` elements and the next row, `pitch` elements after the row's start.
template <typename T>
__aicore__ inline uint32_t Gap(int32_t count, int32_t pitch)
{
    return (pitch * sizeof(T) - RoundUp(count * sizeof(T), kBlock)) / kBlock;
}

/// rows x count elements from global memory, rows `stride` elements apart, to UB rows `pitch` elements apart.
template <typename T>
__aicore__ inline void Load(const LocalTensor<T>& to, const GlobalTensor<T>& from, int32_t rows, int32_t count,
                            int64_t stride, int32_t pitch)
{
    const uint32_t skip = rows == 1 ? 0 : static_cast<uint32_t>((stride - count) * sizeof(T));
    DataCopyPad(to, from, DataCopyExtParams(rows, count * sizeof(T), skip, Gap<T>(count, pitch), 0),
                DataCopyPadExtParams<T>());
}

/// `count` neighbours, padded with zeros to a whole block.
template <typename T>
__aicore__ inline void LoadVector(const LocalTensor<T>& to, const GlobalTensor<T>& from, int32_t count)
{
    const int32_t padding = RoundUp(count * sizeof(T), kBlock) / sizeof(T) - count;
    DataCopyPad(to, from, DataCopyExtParams(1, count * sizeof(T), 0, 0, 0),
                DataCopyPadExtParams<T>(true, 0, padding, T(0)));
}

template <typename T>
__aicore__ inline void Store(const GlobalTensor<T>& to, const LocalTensor<T>& from, int32_t rows, int32_t count,
                             int64_t stride, int32_t pitch)
{
    const uint32_t skip = rows == 1 ? 0 : static_cast<uint32_t>((stride - count) * sizeof(T));
    DataCopyPad(to, from, DataCopyExtParams(rows, count * sizeof(T), Gap<T>(count, pitch), skip, 0));
}

/// Elements `first` to `width` of every row become `value`; T of 4 bytes has 64 lanes, of 2 bytes 128.
template <typename T>
__aicore__ inline void FillFrom(const LocalTensor<T>& x, T value, int32_t first, int32_t rows, int32_t width)
{
    constexpr int32_t lanes = 256 / sizeof(T);
    for (int32_t column = first / lanes * lanes; column < width; column += lanes) {
        const int32_t start = Most(first - column, 0);
        uint64_t mask[2] = {start < 64 ? ~0ULL << start : 0, 0};
        if (lanes == 128) {
            mask[1] = ~0ULL << Most(start - 64, 0);
        }
        Duplicate(x[column], value, mask, rows, 1, width * sizeof(T) / kBlock);
    }
}

/// x[r,:] *= scale[r]; the column `scale` holds each row's value eight times.
__aicore__ inline void ScaleRows(const LocalTensor<float>& x, const LocalTensor<float>& scale, int32_t rows,
                                 int32_t count, int32_t pitch)
{
    for (int32_t column = 0; column < count; column += kLanes) {
        Mul(x[column], x[column], scale, Least(kLanes, count - column), rows,
            BinaryRepeatParams(1, 1, 0, pitch / 8, pitch / 8, 1));
    }
    Barrier();
}

__aicore__ inline void DivideRows(const LocalTensor<float>& x, const LocalTensor<float>& divisor, int32_t rows,
                                  int32_t count, int32_t pitch)
{
    for (int32_t column = 0; column < count; column += kLanes) {
        Div(x[column], x[column], divisor, Least(kLanes, count - column), rows,
            BinaryRepeatParams(1, 1, 0, pitch / 8, pitch / 8, 1));
    }
    Barrier();
}

/// to[r,:] += from[r,:], rows `pitch` floats apart in both.
__aicore__ inline void AddRows(const LocalTensor<float>& to, const LocalTensor<float>& from, int32_t rows,
                               int32_t count, int32_t pitch)
{
    for (int32_t column = 0; column < count; column += kLanes) {
        Add(to[column], to[column], from[column], Least(kLanes, count - column), rows,
            BinaryRepeatParams(1, 1, 1, pitch / 8, pitch / 8, pitch / 8));
    }
    Barrier();
}

/// A rectangle of the score matrix. In UB its rows lie `width` floats apart: whole vector instructions.
struct Tile {
    int32_t row;
    int32_t column;
    int32_t rows;
    int32_t columns;
    int32_t width;
};

/// Turns tiles of Q K^T into exponentials and keeps the rows' running maximum and sum.
class RowSoftmax {
public:
    __aicore__ inline void Init(GM_ADDR bias, const Tiling& tiling, TPipe* pipe)
    {
        tiling_ = &tiling;
        bias_.SetGlobalBuffer((__gm__ BiasElement*)bias);
        pipe->InitBuffer(biasIn_, 1, tiling.biasBytes);
        pipe->InitBuffer(scratch_, tiling.scratchBytes);
        pipe->InitBuffer(bits_, tiling.bitBytes);
        pipe->InitBuffer(columns_, tiling.columnBytes * tiling.columnCount);
        pipe->InitBuffer(fold_, tiling.foldBytes);
        pipe->InitBuffer(row_, tiling.rowBytes);
    }

    /// Starts the rows of a task.
    __aicore__ inline void Begin(int32_t batch, int32_t head)
    {
        const int32_t count = tiling_->columnBytes / sizeof(float);
        Duplicate(Column(kMaximum), kLowest, count);
        Duplicate(Column(kSum), 0.0f, count);
        Barrier();
        biasStart_ = batch * tiling_->biasBatch + head * tiling_->biasHead;
    }

    /// Raw products to the scores that softmax takes: scaled, masked, padding columns without weight.
    __aicore__ inline void Prepare(const LocalTensor<float>& x, const Tile& tile)
    {
        if (tile.columns < tile.width) {
            FillFrom(x, 0.0f, tile.columns, tile.rows, tile.width);
            Barrier();
        }
        [[maybe_unused]] const int32_t count = tile.rows * tile.width;
        Muls(x, x, 0.25f, count);
        Barrier();
        AddBias(x, tile);
        Maxs(x, x, kLowest, count);
        Barrier();
        if (tile.columns < tile.width) {
            FillFrom(x, kLowest, tile.columns, tile.rows, tile.width);
            Barrier();
        }
    }

    /// x becomes exp(x - maximum); the running maximum and sum follow. The column `factor` (0 or 1) gets what results
    /// of earlier tiles must be multiplied by.
    __aicore__ inline void Update(const LocalTensor<float>& x, const Tile& tile, int32_t factor)
    {
        LocalTensor<float> maximum = Column(kMaximum), sum = Column(kSum), now = Column(kScratch);
        LocalTensor<float> shrink = Column(kFactor + factor);
        const int32_t count = RoundUp(tile.rows, 8) * 8;
        RowMaximum(now, x, tile);
        Max(now, now, maximum, count);
        Barrier();
        Sub(shrink, maximum, now, count);
        Barrier();
        Adds(maximum, now, 0.0f, count);
        Exp(shrink, shrink, count);
        Exponentials(x, now, tile);
        RowSum(now, x, tile);
        Mul(sum, sum, shrink, count);
        Barrier();
        Add(sum, sum, now, count);
        Barrier();
    }

    /// x becomes softmax(x), for rows that are whole in this tile.
    __aicore__ inline void Normalise(const LocalTensor<float>& x, const Tile& tile)
    {
        RowMaximum(Column(kMaximum), x, tile);
        Exponentials(x, Column(kMaximum), tile);
        RowSum(Column(kSum), x, tile);
        Finish(x, tile.rows, tile.width, tile.width);
    }

    /// Divides results by the rows' sums. A row whose scores are all -inf becomes NaN, as softmax has it.
    __aicore__ inline void Finish(const LocalTensor<float>& x, int32_t rows, int32_t count, int32_t pitch)
    {
        LocalTensor<float> keep = Column(kMaximum);  // exp(min(maximum + kEmpty, 0)) is exactly 0 or 1
        const int32_t lanes = RoundUp(rows, 8) * 8;
        Adds(keep, keep, kEmpty, lanes);
        Barrier();
        Mins(keep, keep, 0.0f, lanes);
        Barrier();
        Exp(keep, keep, lanes);
        Barrier();
        ScaleRows(x, keep, rows, count, pitch);
        Mul(Column(kSum), Column(kSum), keep, lanes);
        Barrier();
        DivideRows(x, Column(kSum), rows, count, pitch);
    }

    /// What results so far must be multiplied by, as `Update` left it.
    __aicore__ inline LocalTensor<float> Factor(int32_t factor) { return Column(kFactor + factor); }

private:
    // Columns: one value a row, eight times over. The last three exist in the flash and decode forms only.
    static constexpr int32_t kMaximum = 0;
    static constexpr int32_t kSum = 1;
    static constexpr int32_t kScratch = 2;
    static constexpr int32_t kFactor = 3;

    __aicore__ inline LocalTensor<float> Column(int32_t index)
    {
        const int32_t floats = tiling_->columnBytes / sizeof(float);
        return columns_.Get<float>()[index * floats];
    }

    /// x += bias; the sum is rounded to the bias's element type, as the model did.
    __aicore__ inline void AddBias(const LocalTensor<float>& x, const Tile& tile)
    {
        if (tiling_->biasKey == 0) {
            AddRowBias(x, tile);
        } else {
            AddTileBias(x, tile);
        }
        RoundToBias(x, tile.rows * tile.width);
    }

    __aicore__ inline void AddTileBias(const LocalTensor<float>& x, const Tile& tile)
    {
        const int32_t rows = tiling_->biasRow == 0 ? 1 : tile.rows;
        const int64_t start = biasStart_ + int64_t{tile.row} * tiling_->biasRow + tile.column;
        LocalTensor<BiasElement> bias = biasIn_.AllocTensor<BiasElement>();
        Load(bias, bias_[start], rows, tile.columns, tiling_->biasRow, tile.width);
        biasIn_.EnQue(bias);
        bias = biasIn_.DeQue<BiasElement>();
        LocalTensor<float> wide = scratch_.Get<float>();
        for (int32_t column = 0; column < tile.columns; column += kLanes) {
            Cast(wide[column], bias[column], RoundMode::CAST_NONE, Least(kLanes, tile.columns - column), rows,
                 UnaryRepeatParams(1, 1, tile.width / 8, tile.width / 16));
        }
        Barrier();
        const int32_t step = rows == 1 ? 0 : tile.width / 8;  // one row serves all
        for (int32_t column = 0; column < tile.columns; column += kLanes) {
            Add(x[column], x[column], wide[column], Least(kLanes, tile.columns - column), tile.rows,
                BinaryRepeatParams(1, 1, 1, tile.width / 8, tile.width / 8, step));
        }
        Barrier();
        biasIn_.FreeTensor(bias);
    }

    /// A bias that is one value for all keys of a query: each value is spread over a block, then added along its row.
    __aicore__ inline void AddRowBias(const LocalTensor<float>& x, const Tile& tile)
    {
        const int32_t rows = tiling_->biasRow == 0 ? 1 : tile.rows;
        LocalTensor<BiasElement> bias = biasIn_.AllocTensor<BiasElement>();
        LoadVector(bias, bias_[biasStart_ + int64_t{tile.row} * tiling_->biasRow], rows);
        biasIn_.EnQue(bias);
        bias = biasIn_.DeQue<BiasElement>();
        LocalTensor<float> wide = scratch_.Get<float>();
        Cast(wide, bias, RoundMode::CAST_NONE, RoundUp(rows, 8));
        Barrier();
        LocalTensor<float> spread = fold_.Get<float>();
        Brcb(spread, wide, RoundUp(rows, 8) / 8, BrcbRepeatParams(1, 8));
        Barrier();
        for (int32_t column = 0; column < tile.width; column += kLanes) {
            Add(x[column], x[column], spread, kLanes, tile.rows,
                BinaryRepeatParams(1, 1, 0, tile.width / 8, tile.width / 8, rows == 1 ? 0 : 1));
        }
        Barrier();
        biasIn_.FreeTensor(bias);
    }

    /// Rounds to half and back. Sums beyond half's range become -inf, as they did in the model, whatever the chip's
    /// overflow mode is; so large positive sums stay at its limit.
    __aicore__ inline void RoundToBias(const LocalTensor<float>& x, int32_t count)
    {
        LocalTensor<half> narrow = scratch_.Get<half>();
        LocalTensor<uint8_t> inRange = bits_.Get<uint8_t>();
        CompareScalar(inRange, x, -65520.0f, CMPMODE::GT, count);
        Barrier();
        Maxs(x, x, -65504.0f, count);
        Barrier();
        Mins(x, x, 65504.0f, count);
        Barrier();
        Cast(narrow, x, RoundMode::CAST_RINT, count);
        Barrier();
        Cast(x, narrow, RoundMode::CAST_NONE, count);
        Barrier();
        Select(x, inRange, x, kMinusInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
        Barrier();
    }

    /// x = exp(x - maximum), padding columns to 0.
    __aicore__ inline void Exponentials(const LocalTensor<float>& x, const LocalTensor<float>& maximum,
                                        const Tile& tile)
    {
        const int32_t pitch = tile.width / 8;
        for (int32_t column = 0; column < tile.width; column += kLanes) {
            Sub(x[column], x[column], maximum, kLanes, tile.rows, BinaryRepeatParams(1, 1, 0, pitch, pitch, 1));
        }
        Barrier();
        Exp(x, x, tile.rows * tile.width);
        Barrier();
    }

    __aicore__ inline void RowMaximum(const LocalTensor<float>& column, const LocalTensor<float>& x, const Tile& tile)
    {
        LocalTensor<float> fold = fold_.Get<float>(), row = row_.Get<float>();
        const int32_t pitch = tile.width / 8;
        Duplicate(row, 0.0f, RoundUp(tile.rows, 8));  // Brcb reads whole eights
        Barrier();
        if (tile.width == kLanes) {
            WholeReduceMax(row, x, kLanes, tile.rows, 1, 1, pitch, ReduceOrder::ORDER_ONLY_VALUE);
        } else {
            Max(fold, x, x[kLanes], kLanes, tile.rows, BinaryRepeatParams(1, 1, 1, 8, pitch, pitch));
            Barrier();
            for (int32_t next = 2 * kLanes; next < tile.width; next += kLanes) {
                Max(fold, fold, x[next], kLanes, tile.rows, BinaryRepeatParams(1, 1, 1, 8, 8, pitch));
                Barrier();
            }
            WholeReduceMax(row, fold, kLanes, tile.rows, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
        }
        Barrier();
        Brcb(column, row, RoundUp(tile.rows, 8) / 8, BrcbRepeatParams(1, 8));
        Barrier();
    }

    __aicore__ inline void RowSum(const LocalTensor<float>& column, const LocalTensor<float>& x, const Tile& tile)
    {
        LocalTensor<float> fold = fold_.Get<float>(), row = row_.Get<float>();
        const int32_t pitch = tile.width / 8;
        Duplicate(row, 0.0f, RoundUp(tile.rows, 8));
        Barrier();
        if (tile.width == kLanes) {
            WholeReduceSum(row, x, kLanes, tile.rows, 1, 1, pitch);
        } else {
            Add(fold, x, x[kLanes], kLanes, tile.rows, BinaryRepeatParams(1, 1, 1, 8, pitch, pitch));
            Barrier();
            for (int32_t next = 2 * kLanes; next < tile.width; next += kLanes) {
                Add(fold, fold, x[next], kLanes, tile.rows, BinaryRepeatParams(1, 1, 1, 8, 8, pitch));
                Barrier();
            }
            WholeReduceSum(row, fold, kLanes, tile.rows, 1, 1, 8);
        }
        Barrier();
        Brcb(column, row, RoundUp(tile.rows, 8) / 8, BrcbRepeatParams(1, 8));
        Barrier();
    }

    const Tiling* tiling_ = nullptr;
    int64_t biasStart_ = 0;
    GlobalTensor<BiasElement> bias_;
    TQue<TPosition::VECIN, 1> biasIn_;
    TBuf<TPosition::VECCALC> scratch_;
    TBuf<TPosition::VECCALC> bits_;
    TBuf<TPosition::VECCALC> columns_;
    TBuf<TPosition::VECCALC> fold_;
    TBuf<TPosition::VECCALC> row_;
};

/// The operands in global memory and where a task finds its part.
class Operands {
public:
    __aicore__ inline void Init(GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR out, const Tiling& tiling)
    {
        tiling_ = &tiling;
        q_.SetGlobalBuffer((__gm__ Element*)q);
        k_.SetGlobalBuffer((__gm__ Element*)k);
        v_.SetGlobalBuffer((__gm__ Element*)v);
        out_.SetGlobalBuffer((__gm__ Element*)out);
    }

    /// Task numbers run over the query tiles of a head first: neighbours read the same keys at the same time.
    __aicore__ inline void SetTask(int32_t task)
    {
        row_ = task % tiling_->queryTiles * tiling_->rows;
        head_ = task / tiling_->queryTiles % kHeads;
        batch_ = task / tiling_->queryTiles / kHeads;
    }

    __aicore__ inline int32_t Batch() const { return batch_; }
    __aicore__ inline int32_t Head() const { return head_; }

    __aicore__ inline GlobalTensor<Element> Query() const
    {
        const int64_t start = batch_ * tiling_->queryBatch + head_ * tiling_->queryHead;
        return q_[start + int64_t{row_} * tiling_->queryRow];
    }

    __aicore__ inline GlobalTensor<Element> Key(int32_t column) const
    {
        const int64_t start = batch_ * tiling_->keyBatch + head_ / kHeadsPerKey * tiling_->keyHead;
        return k_[start + int64_t{column} * tiling_->keyRow];
    }

    __aicore__ inline GlobalTensor<Element> Value(int32_t column) const
    {
        const int64_t start = batch_ * tiling_->valueBatch + head_ / kHeadsPerKey * tiling_->valueHead;
        return v_[start + int64_t{column} * tiling_->valueRow];
    }

    __aicore__ inline GlobalTensor<Element> Out() const
    {
        const int64_t start = batch_ * tiling_->outBatch + head_ * tiling_->outHead;
        return out_[start + int64_t{row_} * tiling_->outRow];
    }

    /// The tile of scores of this task that starts at key `column`.
    __aicore__ inline Tile At(int32_t column) const
    {
        Tile tile;
        tile.row = row_;
        tile.column = column;
        tile.rows = Least(tiling_->rows, tiling_->queries - row_);
        tile.columns = Least(tiling_->columns, tiling_->keys - column);
        tile.width = RoundUp(tile.columns, kPitchUnit);
        return tile;
    }

    /// Tiles of keys that the task's rows see.
    __aicore__ inline int32_t KeyTiles() const
    {
        return tiling_->keyTiles;
    }

private:
    const Tiling* tiling_ = nullptr;
    int32_t row_ = 0;
    int32_t head_ = 0;
    int32_t batch_ = 0;
    GlobalTensor<Element> q_;
    GlobalTensor<Element> k_;
    GlobalTensor<Element> v_;
    GlobalTensor<Element> out_;
};

using InGm = matmul::MatmulType<TPosition::GM, CubeFormat::ND, Element>;
using KeysInGm = matmul::MatmulType<TPosition::GM, CubeFormat::ND, Element, true>;
using FloatInGm = matmul::MatmulType<TPosition::GM, CubeFormat::ND, float>;
using ScoreProduct = matmul::Matmul<InGm, KeysInGm, FloatInGm, FloatInGm>;
using PartialProduct = matmul::Matmul<InGm, InGm, FloatInGm, FloatInGm>;
using ResultProduct = matmul::Matmul<InGm, InGm, InGm, FloatInGm>;

__aicore__ inline void SetScoreShape(ScoreProduct& product, const Tiling& t)
{
    product.SetOrgShape(t.queries, t.keys, t.queryRow, t.keyRow, t.columns);
}

/// Workspace slots of this vector core.
class Ring {
public:
    __aicore__ inline void Init(GM_ADDR workspace, const Tiling& tiling, int32_t slots)
    {
        tiling_ = &tiling;
        scores_ = GetUserWorkspace(workspace) + GetBlockIdx() * tiling.coreBytes;
        probabilities_ = scores_ + slots * tiling.scoreSlotBytes;
        partials_ = probabilities_ + slots * tiling.probabilitySlotBytes;
    }

    __aicore__ inline GlobalTensor<float> Scores(int32_t slot) const
    {
        GlobalTensor<float> tensor;
        tensor.SetGlobalBuffer((__gm__ float*)(scores_ + slot * tiling_->scoreSlotBytes));
        return tensor;
    }

    __aicore__ inline GlobalTensor<Element> Probabilities(int32_t slot) const
    {
        GlobalTensor<Element> tensor;
        tensor.SetGlobalBuffer((__gm__ Element*)(probabilities_ + slot * tiling_->probabilitySlotBytes));
        return tensor;
    }

    __aicore__ inline GlobalTensor<float> Partial(int32_t slot) const
    {
        GlobalTensor<float> tensor;
        tensor.SetGlobalBuffer((__gm__ float*)(partials_ + slot * tiling_->partialSlotBytes));
        return tensor;
    }

private:
    const Tiling* tiling_ = nullptr;
    GM_ADDR scores_ = nullptr;
    GM_ADDR probabilities_ = nullptr;
    GM_ADDR partials_ = nullptr;
};

/// What the flash and the one-tile form share: score tiles in, probability tiles out.
class TileIo {
public:
    __aicore__ inline void Init(const Tiling& tiling, TPipe* pipe)
    {
        tiling_ = &tiling;
        pipe->InitBuffer(load_, tiling.loadBuffers, tiling.loadBytes);
        pipe->InitBuffer(store_, 1, tiling.storeBytes);
    }

    __aicore__ inline LocalTensor<float> LoadScores(const GlobalTensor<float>& from, const Tile& tile)
    {
        return LoadFloats(from, tile.rows, tile.columns, tiling_->columns, tile.width);
    }

    __aicore__ inline LocalTensor<float> LoadFloats(const GlobalTensor<float>& from, int32_t rows, int32_t count,
                                                    int32_t stride, int32_t pitch)
    {
        LocalTensor<float> x = load_.AllocTensor<float>();
        Load(x, from, rows, count, stride, pitch);
        load_.EnQue(x);
        return load_.DeQue<float>();
    }

    __aicore__ inline void Free(LocalTensor<float>& x) { load_.FreeTensor(x); }

    __aicore__ inline void StoreProbabilities(const GlobalTensor<Element>& to, const LocalTensor<float>& x,
                                              const Tile& tile)
    {
        LocalTensor<Element> narrow = store_.AllocTensor<Element>();
        const int32_t count = tile.rows * tile.width;
        Cast(narrow, x, RoundMode::CAST_RINT, count);

        store_.EnQue(narrow);
        narrow = store_.DeQue<Element>();
        Store(to, narrow, tile.rows, tile.columns, tiling_->columns, tile.width);
        store_.FreeTensor(narrow);
    }

    /// rows x kValueDim results, kValuePitch apart in UB.
    __aicore__ inline void StoreResult(const GlobalTensor<Element>& to, const LocalTensor<float>& x, int32_t rows)
    {
        LocalTensor<Element> narrow = store_.AllocTensor<Element>();
        for (int32_t column = 0; column < kValueDim; column += kLanes) {
            const int32_t lanes = Least(kLanes, kValueDim - column);
            Cast(narrow[column], x[column], RoundMode::CAST_RINT, lanes, rows,
                 UnaryRepeatParams(1, 1, kValuePitch / 16, kValuePitch / 8));
        }
        store_.EnQue(narrow);
        narrow = store_.DeQue<Element>();
        Store(to, narrow, rows, kValueDim, tiling_->outRow, kValuePitch);
        store_.FreeTensor(narrow);
    }

private:
    const Tiling* tiling_ = nullptr;
    TQue<TPosition::VECIN, 1> load_;
    TQue<TPosition::VECOUT, 1> store_;
};

/// Online softmax over tiles of keys. The cube computes the scores of tile j + 1 and the partial result of tile j - 1
/// while the vector core works on tile j.
class FlashAttention {
public:
    __aicore__ inline void Init(const Operands& operands, GM_ADDR bias, GM_ADDR workspace,
                                const Tiling& tiling, TPipe* pipe)
    {
        tiling_ = &tiling;
        operands_ = operands;
        ring_.Init(workspace, tiling, 2);
        io_.Init(tiling, pipe);
        softmax_.Init(bias, tiling, pipe);
        pipe->InitBuffer(accumulator_, tiling.accumulatorBytes);
    }

    __aicore__ inline void Process()
    {
        SetScoreShape(scoreProduct, *tiling_);
        valueProduct.SetOrgShape(tiling_->rows, tiling_->valueRow, tiling_->columns, tiling_->columns, kValueDim);
        for (int32_t task = GetBlockIdx(); task < tiling_->tasks; task += GetBlockNum() * GetTaskRation()) {
            operands_.SetTask(task);
            Run();
        }
        scoreProduct.End();
        valueProduct.End();
    }

    ScoreProduct scoreProduct;
    PartialProduct valueProduct;

private:
    __aicore__ inline void Run()
    {
        const int32_t tiles = operands_.KeyTiles();
        softmax_.Begin(operands_.Batch(), operands_.Head());
        Duplicate(accumulator_.Get<float>(), 0.0f, tiling_->rows * kValuePitch);
        Barrier();
        StartScores(0);
        for (int32_t j = 0; j < tiles; ++j) {
            scoreProduct.WaitIterateAll();
            if (j + 1 < tiles) {
                StartScores(j + 1);
            }
            Exponentials(j);
            if (j > 0) {
                valueProduct.WaitIterateAll();
                Accumulate(j - 1);
            }
            StartValues(j);
        }
        valueProduct.WaitIterateAll();
        Accumulate(tiles - 1);
        const int32_t rows = TileAt(0).rows;
        softmax_.Finish(accumulator_.Get<float>(), rows, kValueDim, kValuePitch);
        io_.StoreResult(operands_.Out(), accumulator_.Get<float>(), rows);
    }

    __aicore__ inline Tile TileAt(int32_t j) const { return operands_.At(j * tiling_->columns); }

    /// The slot's last reader was tile j - 2, which StartValues waited for.
    __aicore__ inline void StartScores(int32_t j)
    {
        const Tile tile = TileAt(j);
        scoreProduct.SetSingleShape(tile.rows, tile.columns, kHeadDim);
        scoreProduct.SetTensorA(operands_.Query());
        scoreProduct.SetTensorB(operands_.Key(tile.column), true);
        scoreProduct.IterateAll<false>(ring_.Scores(j % 2), 0, false, true);
    }

    __aicore__ inline void Exponentials(int32_t j)
    {
        const Tile tile = TileAt(j);
        LocalTensor<float> x = io_.LoadScores(ring_.Scores(j % 2), tile);
        softmax_.Prepare(x, tile);
        softmax_.Update(x, tile, j % 2);
        io_.StoreProbabilities(ring_.Probabilities(j % 2), x, tile);
        io_.Free(x);
    }

    /// The cube may only read probabilities that have arrived. Their store came after everything that the vector unit
    /// did for tile j, so this also tells that the slots of tile j - 2 have been read.
    __aicore__ inline void StartValues(int32_t j)
    {
        const Tile tile = TileAt(j);
        Sync<HardEvent::MTE3_S>();
        valueProduct.SetSingleShape(tile.rows, kValueDim, tile.columns);
        valueProduct.SetTensorA(ring_.Probabilities(j % 2));
        valueProduct.SetTensorB(operands_.Value(tile.column));
        valueProduct.IterateAll<false>(ring_.Partial(j % 2), 0, false, true);
    }

    __aicore__ inline void Accumulate(int32_t j)
    {
        const int32_t rows = TileAt(j).rows;
        LocalTensor<float> partial = io_.LoadFloats(ring_.Partial(j % 2), rows, kValueDim, kValueDim, kValuePitch);
        LocalTensor<float> sum = accumulator_.Get<float>();
        ScaleRows(sum, softmax_.Factor(j % 2), rows, kValueDim, kValuePitch);
        AddRows(sum, partial, rows, kValueDim, kValuePitch);
        io_.Free(partial);
    }

    const Tiling* tiling_ = nullptr;
    Operands operands_;
    Ring ring_;
    TileIo io_;
    RowSoftmax softmax_;
    TBuf<TPosition::VECCALC> accumulator_;
};

/// All keys in one tile: no running state, and the second product is the result.
class OneTileAttention {
public:
    __aicore__ inline void Init(const Operands& operands, GM_ADDR bias, GM_ADDR workspace,
                                const Tiling& tiling, TPipe* pipe)
    {
        tiling_ = &tiling;
        operands_ = operands;
        ring_.Init(workspace, tiling, 1);
        io_.Init(tiling, pipe);
        softmax_.Init(bias, tiling, pipe);
    }

    __aicore__ inline void Process()
    {
        SetScoreShape(scoreProduct, *tiling_);
        valueProduct.SetOrgShape(tiling_->rows, tiling_->valueRow, tiling_->columns, tiling_->columns, tiling_->outRow);
        for (int32_t task = GetBlockIdx(); task < tiling_->tasks; task += GetBlockNum() * GetTaskRation()) {
            operands_.SetTask(task);
            Run(operands_.At(0));
        }
        scoreProduct.End();
        valueProduct.End();
    }

    ScoreProduct scoreProduct;
    ResultProduct valueProduct;

private:
    __aicore__ inline void Run(const Tile& tile)
    {
        scoreProduct.SetSingleShape(tile.rows, tile.columns, kHeadDim);
        scoreProduct.SetTensorA(operands_.Query());
        scoreProduct.SetTensorB(operands_.Key(0), true);
        scoreProduct.IterateAll(ring_.Scores(0));
        softmax_.Begin(operands_.Batch(), operands_.Head());
        LocalTensor<float> x = io_.LoadScores(ring_.Scores(0), tile);
        softmax_.Prepare(x, tile);
        softmax_.Normalise(x, tile);
        io_.StoreProbabilities(ring_.Probabilities(0), x, tile);
        io_.Free(x);
        Sync<HardEvent::MTE3_S>();  // the cube may only read what has arrived
        valueProduct.SetSingleShape(tile.rows, kValueDim, tile.columns);
        valueProduct.SetTensorA(ring_.Probabilities(0));
        valueProduct.SetTensorB(operands_.Value(0));
        valueProduct.IterateAll(operands_.Out());
    }

    const Tiling* tiling_ = nullptr;
    Operands operands_;
    Ring ring_;
    TileIo io_;
    RowSoftmax softmax_;
};

/// One query a head: keys and values stream through UB in chunks, scores never leave it.
class DecodeAttention {
public:
    __aicore__ inline void Init(const Operands& operands, GM_ADDR bias, const Tiling& tiling,
                                TPipe* pipe)
    {
        tiling_ = &tiling;
        operands_ = operands;
        pipe->InitBuffer(load_, tiling.loadBuffers, tiling.loadBytes);
        pipe->InitBuffer(store_, 1, tiling.storeBytes);
        pipe->InitBuffer(accumulator_, tiling.accumulatorBytes);
        pipe->InitBuffer(scores_, tiling.scoreBytes);
        pipe->InitBuffer(query_, tiling.queryBytes);
        pipe->InitBuffer(spread_, tiling.spreadBytes);
        pipe->InitBuffer(tile_, tiling.tileBytes);
        softmax_.Init(bias, tiling, pipe);
    }

    __aicore__ inline void Process()
    {
        for (int32_t task = GetBlockIdx(); task < tiling_->tasks; task += GetBlockNum() * GetTaskRation()) {
            operands_.SetTask(task);
            Run();
        }
    }

private:
    __aicore__ inline void Run()
    {
        LocalTensor<float> x = scores_.Get<float>(), sum = accumulator_.Get<float>();
        softmax_.Begin(operands_.Batch(), operands_.Head());
        LoadQuery();
        Duplicate(sum, 0.0f, kValuePitch);
        Barrier();
        for (int32_t j = 0; j < operands_.KeyTiles(); ++j) {
            const Tile tile = operands_.At(j * tiling_->columns);
            for (int32_t start = 0; start < tile.columns; start += tiling_->chunk) {
                Multiply(x, tile, start);
            }
            softmax_.Prepare(x, tile);
            softmax_.Update(x, tile, 0);
            ScaleRows(sum, softmax_.Factor(0), 1, kValueDim, kValuePitch);
            for (int32_t start = 0; start < tile.columns; start += tiling_->chunk) {
                AddValues(sum, x, tile, start);
            }
        }
        softmax_.Finish(sum, 1, kValueDim, kValuePitch);
        StoreResult(sum);
    }

    __aicore__ inline void LoadQuery()
    {
        LocalTensor<Element> q = load_.AllocTensor<Element>();
        Load(q, operands_.Query(), 1, kHeadDim, 0, kHeadPitch);
        load_.EnQue(q);
        q = load_.DeQue<Element>();
        Cast(query_.Get<float>(), q, RoundMode::CAST_NONE, kHeadDim);
        Barrier();
        load_.FreeTensor(q);
    }

    /// A chunk of rows in float, `pitch` apart. The caller frees `raw`.
    __aicore__ inline LocalTensor<float> LoadChunk(LocalTensor<Element>& raw, const GlobalTensor<Element>& from,
                                                   int32_t rows, int32_t count, int64_t stride, int32_t pitch)
    {
        raw = load_.AllocTensor<Element>();
        Load(raw, from, rows, count, stride, pitch);
        load_.EnQue(raw);
        raw = load_.DeQue<Element>();
        LocalTensor<float> wide = tile_.Get<float>();
        for (int32_t column = 0; column < count; column += kLanes) {
            Cast(wide[column], raw[column], RoundMode::CAST_NONE, Least(kLanes, count - column), rows,
                 UnaryRepeatParams(1, 1, pitch / 8, pitch / 16));
        }
        Barrier();
        return wide;
    }

    /// x[start + r] = query . key row r
    __aicore__ inline void Multiply(const LocalTensor<float>& x, const Tile& tile, int32_t start)
    {
        const int32_t rows = Least(tiling_->chunk, tile.columns - start);
        constexpr int32_t pitch = kHeadPitch / 8;
        LocalTensor<Element> raw;
        LocalTensor<float> keys =
            LoadChunk(raw, operands_.Key(tile.column + start), rows, kHeadDim, tiling_->keyRow, kHeadPitch);
        LocalTensor<float> query = query_.Get<float>();
        for (int32_t column = 0; column < kHeadDim; column += kLanes) {
            Mul(keys[column], keys[column], query[column], Least(kLanes, kHeadDim - column), rows,
                BinaryRepeatParams(1, 1, 1, pitch, pitch, 0));
        }
        Barrier();
        for (int32_t column = kLanes; column < kHeadDim; column += kLanes) {
            Add(keys, keys, keys[column], Least(kLanes, kHeadDim - column), rows,
                BinaryRepeatParams(1, 1, 1, pitch, pitch, pitch));
            Barrier();
        }
        WholeReduceSum(x[start], keys, Least(kLanes, kHeadDim), rows, 1, 1, pitch);
        Barrier();
        load_.FreeTensor(raw);
    }

    /// sum += x[start...] . value rows
    __aicore__ inline void AddValues(const LocalTensor<float>& sum, const LocalTensor<float>& x, const Tile& tile,
                                     int32_t start)
    {
        const int32_t rows = Least(tiling_->chunk, tile.columns - start);
        LocalTensor<Element> raw;
        LocalTensor<float> values =
            LoadChunk(raw, operands_.Value(tile.column + start), rows, kValueDim, tiling_->valueRow, kValuePitch);
        LocalTensor<float> weights = spread_.Get<float>();
        Brcb(weights, x[start], RoundUp(rows, 8) / 8, BrcbRepeatParams(1, 8));
        Barrier();
        ScaleRows(values, weights, rows, kValueDim, kValuePitch);
        for (int32_t left = rows; left > 1; left = (left + 1) / 2) {  // halves are added until one row is left
            const int32_t half = (left + 1) / 2;
            AddRows(values, values[half * kValuePitch], left - half, kValueDim, kValuePitch);
        }
        AddRows(sum, values, 1, kValueDim, kValuePitch);
        load_.FreeTensor(raw);
    }

    __aicore__ inline void StoreResult(const LocalTensor<float>& sum)
    {
        LocalTensor<Element> narrow = store_.AllocTensor<Element>();
        Cast(narrow, sum, RoundMode::CAST_RINT, kValueDim);
        store_.EnQue(narrow);
        narrow = store_.DeQue<Element>();
        Store(operands_.Out(), narrow, 1, kValueDim, 0, kValuePitch);
        store_.FreeTensor(narrow);
    }

    const Tiling* tiling_ = nullptr;
    Operands operands_;
    RowSoftmax softmax_;
    TQue<TPosition::VECIN, 1> load_;
    TQue<TPosition::VECOUT, 1> store_;
    TBuf<TPosition::VECCALC> accumulator_;
    TBuf<TPosition::VECCALC> scores_;
    TBuf<TPosition::VECCALC> query_;
    TBuf<TPosition::VECCALC> spread_;
    TBuf<TPosition::VECCALC> tile_;
};

}  // namespace atcfuse_attention_kernel

extern "C" __global__ __aicore__ void atcfuse_attention(
    GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR bias, GM_ADDR, GM_ADDR out, GM_ADDR workspace, GM_ADDR tiling)
{
    using namespace AscendC;
    using namespace atcfuse_attention_kernel;
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(AtcfuseAttentionTiling);
    GET_TILING_DATA(data, tiling);
    TPipe pipe;
    Operands operands;
    operands.Init(q, k, v, out, data);
    if (TILING_KEY_IS(0)) {
        FlashAttention attention;
        REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), attention.scoreProduct, &data.scoreProduct,
                          attention.valueProduct, &data.valueProduct);
        attention.Init(operands, bias, workspace, data, &pipe);
        attention.Process();
    } else if (TILING_KEY_IS(1)) {
        OneTileAttention attention;
        REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), attention.scoreProduct, &data.scoreProduct,
                          attention.valueProduct, &data.valueProduct);
        attention.Init(operands, bias, workspace, data, &pipe);
        attention.Process();
    } else if (TILING_KEY_IS(2)) {
        if ASCEND_IS_AIV {  // the cube cores have nothing to do
            DecodeAttention attention;
            attention.Init(operands, bias, data, &pipe);
            attention.Process();
        }
    }
}
