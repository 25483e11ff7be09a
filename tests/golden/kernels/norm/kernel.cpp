// One to four projections of normalised rows. A vector core normalises a block of rows into its own slot of the
// workspace and hands the slot to the cube, which multiplies it with each weight.
#include "kernel_operator.h"
#include "lib/matmul_intf.h"

#include "atcfuse_layer_norm_qkv_tiling.h"

using namespace AscendC;

namespace atcfuse_layer_norm_qkv_impl {

using atcfuse_layer_norm_qkv_tiling::kProjections;
using atcfuse_layer_norm_qkv_tiling::Tiling;

using Element = half;
using GammaType = half;
using BetaType = half;

constexpr bool kSubtractsMean = true;
constexpr bool kHasGamma = true;
constexpr bool kHasBeta = true;
constexpr bool kKeepsNormalized = true;
constexpr float kEpsilon = 9.99999996e-13f;

template <typename A, typename B>
struct SameType {
    static constexpr bool value = false;
};
template <typename A>
struct SameType<A, A> {
    static constexpr bool value = true;
};

/// The cube takes half biases as they are; those of bfloat16 it takes as float.
template <typename T>
struct BiasOf {
    using Type = float;
};
template <>
struct BiasOf<half> {
    using Type = half;
};

constexpr int32_t kLanes = 64;                // floats of a vector instruction
constexpr int32_t kBlockFloats = 8;           // floats of a 32-byte block
constexpr int32_t kTiles = 2;                 // buffers of a queue
constexpr int32_t kSpread = kBlockFloats;     // first float of the spread lanes
constexpr int32_t kDelta = kSpread + kLanes;  // first float of the difference of two means
constexpr int32_t kSmallFloats = kDelta + kBlockFloats;

enum class ColumnOp { kSubtract, kDivide };

struct Arguments {
    GM_ADDR x;
    GM_ADDR gamma;
    GM_ADDR beta;
    GM_ADDR weight[4];
    GM_ADDR bias[4];
    GM_ADDR y[4];
    GM_ADDR normalized;
};

/// Where a group lies among the units of all projections, and how far the walk over the projections has come.
struct Span {
    int32_t from;
    int32_t to;
    int32_t start;    // first unit of the next projection
    int32_t widened;  // floats in front of the next piece's bias in the slot
};

template <typename T>
class Kernel {
    using Bias = typename BiasOf<T>::Type;
    static constexpr bool kWidensBias = !SameType<T, Bias>::value;
    using OperandA = matmul::MatmulType<TPosition::GM, CubeFormat::ND, T>;
    using OperandB = matmul::MatmulType<TPosition::GM, CubeFormat::ND, T, true>;
    using ResultC = matmul::MatmulType<TPosition::GM, CubeFormat::ND, T>;
    using OperandBias = matmul::MatmulType<TPosition::GM, CubeFormat::ND, Bias>;

public:
    matmul::Matmul<OperandA, OperandB, ResultC, OperandBias> product;

    __aicore__ inline void Init(const Arguments& arguments, GM_ADDR workspace, const Tiling* tiling, TPipe* pipe)
    {
        arguments_ = arguments;
        tiling_ = tiling;
        pipe_ = pipe;
        x_.SetGlobalBuffer((__gm__ T*)arguments.x);
        gamma_.SetGlobalBuffer((__gm__ GammaType*)arguments.gamma);
        beta_.SetGlobalBuffer((__gm__ BetaType*)arguments.beta);
        normalized_.SetGlobalBuffer((__gm__ T*)arguments.normalized);
        GM_ADDR slot = workspace + static_cast<uint64_t>(GetBlockIdx()) * tiling->slotBytes;
        slot_.SetGlobalBuffer((__gm__ T*)slot);
        widened_.SetGlobalBuffer((__gm__ float*)(slot + tiling->biasOffset));
        chunk_ = tiling->chunkColumns;
        whole_ = chunk_ >= tiling->hidden;
        const int32_t planes = 2 + (kHasGamma ? 1 : 0) + (kHasBeta ? 1 : 0);
        pipe->InitBuffer(in_, kTiles, chunk_ * sizeof(T));
        pipe->InitBuffer(out_, kTiles, chunk_ * sizeof(T));
        pipe->InitBuffer(planes_, planes * chunk_ * sizeof(float));
        pipe->InitBuffer(small_, kSmallFloats * sizeof(float));
        if (!whole_) {
            pipe->InitBuffer(statistics_, 2 * tiling->rowsPerTask * kBlockFloats * sizeof(float));
        }
    }

    __aicore__ inline void Process()
    {
        const Tiling& t = *tiling_;
        // The two vector cores of a cube core come one cube core after another, so that few tasks use all cubes.
        const int32_t blocks = static_cast<int32_t>(GetBlockNum());
        const int32_t ratio = static_cast<int32_t>(GetTaskRation());
        const int32_t core = static_cast<int32_t>(GetBlockIdx());
        bool started = false;
        for (int32_t task = core % ratio * blocks + core / ratio; task < t.tasks; task += blocks * ratio) {
            if (!started) {
                Start();
                started = true;
            }
            const int32_t group = task % t.groups;
            firstRow_ = task / t.groups * t.rowsPerTask;
            rows_ = t.rows - firstRow_ < t.rowsPerTask ? t.rows - firstRow_ : t.rowsPerTask;
            keepsRows_ = kKeepsNormalized && group == 0;
            Normalise();
            ForEachPiece<false>(group);
            Await<HardEvent::MTE3_S>();  // the slot is written before the cube is told to read it
            ForEachPiece<true>(group);
        }
        product.End();
    }

private:
    template <HardEvent event>
    __aicore__ inline void Await()
    {
        const event_t id = static_cast<event_t>(pipe_->FetchEventID(event));
        SetFlag<event>(id);
        WaitFlag<event>(id);
    }

    __aicore__ inline LocalTensor<float> Plane(int32_t index) { return planes_.template Get<float>()[index * chunk_]; }
    __aicore__ inline LocalTensor<float> Values() { return Plane(0); }
    __aicore__ inline LocalTensor<float> Scratch() { return Plane(1); }
    __aicore__ inline LocalTensor<float> Gamma() { return Plane(2); }
    __aicore__ inline LocalTensor<float> Beta() { return Plane(kHasGamma ? 3 : 2); }
    __aicore__ inline LocalTensor<float> Sum() { return small_.template Get<float>(); }
    __aicore__ inline LocalTensor<float> Spread() { return small_.template Get<float>()[kSpread]; }
    __aicore__ inline LocalTensor<float> Delta() { return small_.template Get<float>()[kDelta]; }
    __aicore__ inline LocalTensor<float> Mean(int32_t row)
    {
        return statistics_.template Get<float>()[row * kBlockFloats];
    }
    __aicore__ inline LocalTensor<float> Deviation(int32_t row)
    {
        return statistics_.template Get<float>()[(tiling_->rowsPerTask + row) * kBlockFloats];
    }

    __aicore__ inline void Start()
    {
        Duplicate(Sum(), 0.0f, kBlockFloats);
        PipeBarrier<PIPE_V>();
        if (whole_) {
            LoadAffine(0, tiling_->hidden);
        }
    }

    __aicore__ inline void Normalise()
    {
        if (whole_) {
            for (int32_t row = 0; row < rows_; ++row) {
                NormaliseWholeRow(row);
            }
            return;
        }
        for (int32_t row = 0; row < rows_; ++row) {
            MeasureRow(row);
        }
        Root(Deviation(0), rows_ * kBlockFloats);
        for (int32_t first = 0; first < tiling_->hidden; first += chunk_) {
            const int32_t count = ChunkFrom(first);
            LoadAffine(first, count);
            for (int32_t row = 0; row < rows_; ++row) {
                NormaliseChunk(row, first, count);
            }
        }
    }

    __aicore__ inline void NormaliseWholeRow(int32_t row)
    {
        const int32_t count = tiling_->hidden;
        LoadValues(row, 0, count);
        if constexpr (kSubtractsMean) {
            SpreadSum(Values(), count, 1.0f / count);
            EachColumn<ColumnOp::kSubtract>(Spread(), count);
        }
        SpreadSquares(count);
        Root(Spread(), kBlockFloats);
        EachColumn<ColumnOp::kDivide>(Spread(), count);
        StoreValues(row, 0, count);
    }

    /// First read of a row that does not fit: mean and sum of squared distances of its chunks, merged pairwise.
    __aicore__ inline void MeasureRow(int32_t row)
    {
        Duplicate(Mean(row), 0.0f, kBlockFloats);
        Duplicate(Deviation(row), 0.0f, kBlockFloats);
        PipeBarrier<PIPE_V>();
        for (int32_t first = 0; first < tiling_->hidden; first += chunk_) {
            const int32_t count = ChunkFrom(first);
            LoadValues(row, first, count);
            if constexpr (kSubtractsMean) {
                SpreadSum(Values(), count, 1.0f / count);
                EachColumn<ColumnOp::kSubtract>(Spread(), count);
                MergeMeans(row, first, count);
            }
            SpreadSquares(count);
            Add(Deviation(row), Deviation(row), Spread(), kBlockFloats);
            PipeBarrier<PIPE_V>();
        }
    }

    /// Takes the mean of `count` more columns, now in the spread lanes, into the mean of `before` columns.
    __aicore__ inline void MergeMeans(int32_t row, int32_t before, int32_t count)
    {
        const float share = static_cast<float>(count) / static_cast<float>(before + count);
        const LocalTensor<float> delta = Delta();
        const LocalTensor<float> step = Sum();
        Sub(delta, Spread(), Mean(row), kBlockFloats);
        PipeBarrier<PIPE_V>();
        Muls(step, delta, share, kBlockFloats);
        PipeBarrier<PIPE_V>();
        Add(Mean(row), Mean(row), step, kBlockFloats);
        Mul(delta, delta, step, kBlockFloats);
        PipeBarrier<PIPE_V>();
        Muls(delta, delta, static_cast<float>(before), kBlockFloats);
        PipeBarrier<PIPE_V>();
        Add(Deviation(row), Deviation(row), delta, kBlockFloats);
        PipeBarrier<PIPE_V>();
    }

    /// Second read of a row that does not fit.
    __aicore__ inline void NormaliseChunk(int32_t row, int32_t first, int32_t count)
    {
        LoadValues(row, first, count);
        if constexpr (kSubtractsMean) {
            EachColumn<ColumnOp::kSubtract>(Mean(row), count);
        }
        EachColumn<ColumnOp::kDivide>(Deviation(row), count);
        StoreValues(row, first, count);
    }

    __aicore__ inline int32_t ChunkFrom(int32_t first)
    {
        return tiling_->hidden - first < chunk_ ? tiling_->hidden - first : chunk_;
    }

    /// Columns of gamma and beta as float. The scratch plane holds them while they are narrower.
    __aicore__ inline void LoadAffine(int32_t first, int32_t count)
    {
        if constexpr (kHasGamma) {
            LoadFloats(Gamma(), gamma_[first], count);
        }
        if constexpr (kHasBeta) {
            LoadFloats(Beta(), beta_[first], count);
        }
    }

    template <typename G>
    __aicore__ inline void LoadFloats(const LocalTensor<float>& target, const GlobalTensor<G>& source, int32_t count)
    {
        const DataCopyExtParams copy(1, static_cast<uint32_t>(count * sizeof(G)), 0, 0, 0);
        Await<HardEvent::V_MTE2>();
        if constexpr (SameType<G, float>::value) {
            DataCopyPad(target, source, copy, DataCopyPadExtParams<G>());
            Await<HardEvent::MTE2_V>();
        } else {
            const LocalTensor<G> narrow = Scratch().template ReinterpretCast<G>();
            DataCopyPad(narrow, source, copy, DataCopyPadExtParams<G>());
            Await<HardEvent::MTE2_V>();
            PipeBarrier<PIPE_V>();
            Cast(target, narrow, RoundMode::CAST_NONE, count);
            PipeBarrier<PIPE_V>();
        }
    }

    __aicore__ inline void LoadValues(int32_t row, int32_t first, int32_t count)
    {
        const uint64_t offset = static_cast<uint64_t>(firstRow_ + row) * tiling_->hidden + first;
        LoadWidened(x_[offset], count);
    }

    /// `count` elements of a tensor into the values plane, as float.
    __aicore__ inline void LoadWidened(const GlobalTensor<T>& source, int32_t count)
    {
        LocalTensor<T> loaded = in_.template AllocTensor<T>();
        DataCopyPad(loaded, source, DataCopyExtParams(1, static_cast<uint32_t>(count * sizeof(T)), 0, 0, 0),
                    DataCopyPadExtParams<T>());
        in_.EnQue(loaded);
        LocalTensor<T> narrow = in_.template DeQue<T>();
        PipeBarrier<PIPE_V>();
        if constexpr (SameType<T, float>::value) {
            Adds(Values(), narrow, 0.0f, count);
        } else {
            Cast(Values(), narrow, RoundMode::CAST_NONE, count);
        }
        PipeBarrier<PIPE_V>();
        in_.FreeTensor(narrow);
    }

    /// Scales and shifts the values, rounds them, and writes them to the slot.
    __aicore__ inline void StoreValues(int32_t row, int32_t first, int32_t count)
    {
        const LocalTensor<float> values = Values();
        if constexpr (kHasGamma) {
            Mul(values, values, Gamma(), count);
            PipeBarrier<PIPE_V>();
        }
        if constexpr (kHasBeta) {
            Add(values, values, Beta(), count);
            PipeBarrier<PIPE_V>();
        }
        LocalTensor<T> rounded = out_.template AllocTensor<T>();
        if constexpr (SameType<T, float>::value) {
            Adds(rounded, values, 0.0f, count);
        } else {
            Cast(rounded, values, RoundMode::CAST_RINT, count);
        }
        PipeBarrier<PIPE_V>();
        out_.EnQue(rounded);
        LocalTensor<T> result = out_.template DeQue<T>();
        const DataCopyExtParams copy(1, static_cast<uint32_t>(count * sizeof(T)), 0, 0, 0);
        DataCopyPad(slot_[static_cast<uint64_t>(row) * tiling_->slotPitch + first], result, copy);
        if (keepsRows_) {
            DataCopyPad(normalized_[static_cast<uint64_t>(firstRow_ + row) * tiling_->hidden + first], result, copy);
        }
        out_.FreeTensor(result);
    }

    /// Spread lanes = the sum of `count` elements times `factor`.
    __aicore__ inline void SpreadSum(const LocalTensor<float>& elements, int32_t count, float factor)
    {
        const LocalTensor<float> sum = Sum();
        ReduceSum(sum, elements, Scratch(), count);
        PipeBarrier<PIPE_V>();
        Muls(sum, sum, factor, kBlockFloats);
        PipeBarrier<PIPE_V>();
        Brcb(Spread(), sum, 1, BrcbRepeatParams(1, 8));
        PipeBarrier<PIPE_V>();
    }

    /// Spread lanes = the sum of the squared values.
    __aicore__ inline void SpreadSquares(int32_t count)
    {
        Mul(Scratch(), Values(), Values(), count);
        PipeBarrier<PIPE_V>();
        SpreadSum(Scratch(), count, 1.0f);
    }

    /// lanes = sqrt(lanes / K + epsilon).
    __aicore__ inline void Root(const LocalTensor<float>& lanes, int32_t count)
    {
        Muls(lanes, lanes, 1.0f / tiling_->hidden, count);
        PipeBarrier<PIPE_V>();
        Adds(lanes, lanes, kEpsilon, count);
        PipeBarrier<PIPE_V>();
        Sqrt(lanes, lanes, count);
        PipeBarrier<PIPE_V>();
    }

    /// values = values (op) eight equal lanes, over `count` columns. A column takes at least 16 bytes of UB, so `count`
    /// stays below the 255 repeats of an instruction.
    template <ColumnOp op>
    __aicore__ inline void EachColumn(const LocalTensor<float>& lanes, int32_t count)
    {
        const int32_t full = count / kLanes;
        if (full != 0) {
            Apply<op>(lanes, 0, kLanes, full);
        }
        if (count % kLanes != 0) {
            Apply<op>(lanes, full * kLanes, count % kLanes, 1);
        }
        PipeBarrier<PIPE_V>();
    }

    template <ColumnOp op>
    __aicore__ inline void Apply(const LocalTensor<float>& lanes, int32_t first, uint64_t mask, int32_t repeats)
    {
        const LocalTensor<float> values = Values()[first];
        const BinaryRepeatParams strides(1, 1, 0, 8, 8, 0);
        if constexpr (op == ColumnOp::kSubtract) {
            Sub(values, values, lanes, mask, repeats, strides);
        } else {
            Div(values, values, lanes, mask, repeats, strides);
        }
    }

    /// The columns of every projection that belong to a group: their biases widened, or the products issued.
    template <bool multiplies>
    __aicore__ inline void ForEachPiece(int32_t group)
    {
        Span span{group * tiling_->allUnits / tiling_->groups, (group + 1) * tiling_->allUnits / tiling_->groups, 0, 0};
        OnePiece<multiplies, 0, false, true>(span);
        OnePiece<multiplies, 1, false, true>(span);
        OnePiece<multiplies, 2, false, true>(span);
    }

    template <bool multiplies, int32_t projection, bool transposed, bool hasBias>
    __aicore__ inline void OnePiece(Span& span)
    {
        const Tiling& t = *tiling_;
        const int32_t units = t.units[projection];
        const int32_t first = (span.from > span.start ? span.from - span.start : 0) * t.unitColumns;
        const int32_t end =
            span.to - span.start < units ? (span.to - span.start) * t.unitColumns : t.columns[projection];
        span.start += units;
        if (end <= first) {
            return;
        }
        if constexpr (multiplies) {
            Multiply<projection, transposed, hasBias>(first, end - first, span.widened);
        } else if constexpr (kWidensBias && hasBias) {
            WidenBias(arguments_.bias[projection], first, end - first, span.widened);
        }
        span.widened += (end - first + kBlockFloats - 1) / kBlockFloats * kBlockFloats;
    }

    __aicore__ inline void WidenBias(GM_ADDR source, int32_t column, int32_t count, int32_t target)
    {
        GlobalTensor<T> bias;
        bias.SetGlobalBuffer((__gm__ T*)source);
        for (int32_t done = 0; done < count; done += chunk_) {
            const int32_t part = count - done < chunk_ ? count - done : chunk_;
            LoadWidened(bias[column + done], part);
            Await<HardEvent::V_MTE3>();
            DataCopyPad(widened_[target + done], Values(),
                        DataCopyExtParams(1, static_cast<uint32_t>(part * sizeof(float)), 0, 0, 0));
            Await<HardEvent::MTE3_V>();
        }
    }

    template <int32_t projection, bool transposed, bool hasBias>
    __aicore__ inline void Multiply(int32_t column, int32_t count, int32_t widened)
    {
        const Tiling& t = *tiling_;
        const int32_t columns = t.columns[projection];
        GlobalTensor<T> weight;
        weight.SetGlobalBuffer((__gm__ T*)arguments_.weight[projection]);
        GlobalTensor<T> y;
        y.SetGlobalBuffer((__gm__ T*)arguments_.y[projection]);
        if (columns != shapedFor_) {  // a message of its own, so only when it changes
            product.SetOrgShape(t.rowsPerTask, columns, t.slotPitch, t.hidden, columns);
            shapedFor_ = columns;
        }
        product.SetTensorA(slot_);
        product.SetTensorB(weight[static_cast<uint64_t>(column) * (transposed ? t.hidden : 1)], transposed);
        if constexpr (!hasBias) {
            if (t.cube.isBias != 0) {
                product.ClearBias();
            }
        } else if constexpr (kWidensBias) {
            product.SetBias(widened_[widened]);
        } else {
            GlobalTensor<Bias> bias;
            bias.SetGlobalBuffer((__gm__ Bias*)arguments_.bias[projection]);
            product.SetBias(bias[column]);
        }
        product.SetSingleShape(rows_, count, t.hidden);
        product.IterateAll(y[static_cast<uint64_t>(firstRow_) * columns + column]);
    }

    Arguments arguments_{};
    const Tiling* tiling_ = nullptr;
    TPipe* pipe_ = nullptr;
    GlobalTensor<T> x_;
    GlobalTensor<GammaType> gamma_;
    GlobalTensor<BetaType> beta_;
    GlobalTensor<T> normalized_;
    GlobalTensor<T> slot_;
    GlobalTensor<float> widened_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> planes_;
    TBuf<TPosition::VECCALC> small_;
    TBuf<TPosition::VECCALC> statistics_;
    int32_t chunk_ = 0;
    int32_t firstRow_ = 0;
    int32_t rows_ = 0;
    int32_t shapedFor_ = 0;
    bool whole_ = true;
    bool keepsRows_ = false;
};

}  // namespace atcfuse_layer_norm_qkv_impl

extern "C" __global__ __aicore__ void atcfuse_layer_norm_qkv(
    GM_ADDR x, GM_ADDR gamma, GM_ADDR beta, GM_ADDR w1, GM_ADDR w2, GM_ADDR w3, GM_ADDR w4, GM_ADDR b1, GM_ADDR b2,
    GM_ADDR b3, GM_ADDR b4, GM_ADDR y1, GM_ADDR y2, GM_ADDR y3, GM_ADDR normalized, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(atcfuse_layer_norm_qkv_tiling::Tiling);
    GET_TILING_DATA(data, tiling);
    TPipe pipe;
    atcfuse_layer_norm_qkv_impl::Kernel<atcfuse_layer_norm_qkv_impl::Element> kernel;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), kernel.product, &data.cube);
    const atcfuse_layer_norm_qkv_impl::Arguments arguments{
        x, gamma, beta, {w1, w2, w3, w4}, {b1, b2, b3, b4},
        {y1, y2, y3}, normalized};
    kernel.Init(arguments, GetUserWorkspace(workspace), &data, &pipe);
    kernel.Process();
}
