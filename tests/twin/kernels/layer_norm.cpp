// LayerNorm of rows of any width that fits UB: statistics in float, without reading a scalar.
#include "kernel_operator.h"

using namespace AscendC;

struct LayerNormTiling {
    int32_t rows;
    int32_t columns;
    float epsilon;
};

class LayerNormKernel {
public:
    __aicore__ inline void Init(GM_ADDR x, GM_ADDR gamma, GM_ADDR beta, GM_ADDR y, const LayerNormTiling& tiling,
                                TPipe* pipe)
    {
        tiling_ = tiling;
        pitch_ = (tiling.columns + 15) / 16 * 16;
        x_.SetGlobalBuffer((__gm__ half*)x);
        y_.SetGlobalBuffer((__gm__ half*)y);
        gammaGm_.SetGlobalBuffer((__gm__ float*)gamma, tiling.columns);
        betaGm_.SetGlobalBuffer((__gm__ float*)beta, tiling.columns);
        pipe->InitBuffer(in_, 2, pitch_ * sizeof(half));
        pipe->InitBuffer(out_, 2, pitch_ * sizeof(half));
        pipe->InitBuffer(floats_, 4 * pitch_ * sizeof(float));
        pipe->InitBuffer(column_, 32);
        pipe->InitBuffer(spread_, 8 * 32);
        pipe_ = pipe;
    }

    __aicore__ inline void Process()
    {
        Load();
        for (int32_t row = GetBlockIdx(); row < tiling_.rows; row += GetBlockNum()) {
            CopyIn(row);
            Compute();
            CopyOut(row);
        }
    }

private:
    __aicore__ inline LocalTensor<float> Plane(int32_t index)
    {
        return floats_.Get<float>()[index * pitch_];
    }

    __aicore__ inline void Load()
    {
        const DataCopyExtParams copy(1, tiling_.columns * sizeof(float), 0, 0, 0);
        DataCopyPad(Plane(2), gammaGm_, copy, DataCopyPadExtParams<float>());
        DataCopyPad(Plane(3), betaGm_, copy, DataCopyPadExtParams<float>());
        const TEventID loaded = pipe_->FetchEventID(HardEvent::MTE2_V);
        SetFlag<HardEvent::MTE2_V>(loaded);
        WaitFlag<HardEvent::MTE2_V>(loaded);
        Duplicate(column_.Get<float>(), 0.0f, 8);
        PipeBarrier<PIPE_V>();
    }

    __aicore__ inline void CopyIn(int32_t row)
    {
        LocalTensor<half> x = in_.AllocTensor<half>();
        DataCopyPad(x, x_[static_cast<uint64_t>(row) * tiling_.columns],
                    DataCopyExtParams(1, tiling_.columns * sizeof(half), 0, 0, 0), DataCopyPadExtParams<half>());
        in_.EnQue(x);
    }

    /// target = target (op) the eight equal lanes of `lanes`, over all columns.
    template <typename Op>
    __aicore__ inline void EachColumn(const LocalTensor<float>& target, const LocalTensor<float>& lanes, Op op)
    {
        const int32_t full = tiling_.columns / 64;
        for (int32_t done = 0; done < full; done += 255) {
            const int32_t repeats = full - done < 255 ? full - done : 255;
            op(target[done * 64], lanes, 64, repeats, BinaryRepeatParams(1, 1, 0, 8, 8, 0));
        }
        if (tiling_.columns % 64 != 0) {
            op(target[full * 64], lanes, tiling_.columns % 64, 1, BinaryRepeatParams(1, 1, 0, 8, 8, 0));
        }
    }

    /// Every lane of the first block of the spread buffer = the sum * factor.
    __aicore__ inline void Spread(float factor)
    {
        const LocalTensor<float> sum = column_.Get<float>();
        PipeBarrier<PIPE_V>();
        Muls(sum, sum, factor, 8);
        PipeBarrier<PIPE_V>();
        Brcb(spread_.Get<float>(), sum, 1, BrcbRepeatParams(1, 8));
        PipeBarrier<PIPE_V>();
    }

    __aicore__ inline void Compute()
    {
        LocalTensor<half> x = in_.DeQue<half>();
        LocalTensor<half> y = out_.AllocTensor<half>();
        LocalTensor<float> v = Plane(0), t = Plane(1), sum = column_.Get<float>();
        const int32_t n = tiling_.columns;
        Cast(v, x, RoundMode::CAST_NONE, n);
        PipeBarrier<PIPE_V>();
        Adds(t, v, 0.0f, n);
        PipeBarrier<PIPE_V>();
        ReduceSum(sum, t, t, n);
        Spread(-1.0f / n);
        EachColumn(v, spread_.Get<float>(), [](auto d, auto l, uint64_t mask, int32_t n, const BinaryRepeatParams& p) {
            Add(d, d, l, mask, n, p);
        });
        PipeBarrier<PIPE_V>();
        Mul(t, v, v, n);
        PipeBarrier<PIPE_V>();
        ReduceSum(sum, t, t, n);
        PipeBarrier<PIPE_V>();
        Muls(sum, sum, 1.0f / n, 8);
        PipeBarrier<PIPE_V>();
        Adds(sum, sum, tiling_.epsilon, 8);
        PipeBarrier<PIPE_V>();
        Sqrt(sum, sum, 8);
        Spread(1.0f);
        EachColumn(v, spread_.Get<float>(), [](auto d, auto l, uint64_t mask, int32_t n, const BinaryRepeatParams& p) {
            Div(d, d, l, mask, n, p);
        });
        PipeBarrier<PIPE_V>();
        Mul(v, v, Plane(2), n);
        PipeBarrier<PIPE_V>();
        Add(v, v, Plane(3), n);
        PipeBarrier<PIPE_V>();
        Cast(y, v, RoundMode::CAST_RINT, n);
        PipeBarrier<PIPE_V>();
        out_.EnQue(y);
        in_.FreeTensor(x);
    }

    __aicore__ inline void CopyOut(int32_t row)
    {
        LocalTensor<half> y = out_.DeQue<half>();
        DataCopyPad(y_[static_cast<uint64_t>(row) * tiling_.columns], y,
                    DataCopyExtParams(1, tiling_.columns * sizeof(half), 0, 0, 0));
        out_.FreeTensor(y);
    }

    LayerNormTiling tiling_{};
    int32_t pitch_ = 0;
    TPipe* pipe_ = nullptr;
    GlobalTensor<half> x_;
    GlobalTensor<half> y_;
    GlobalTensor<float> gammaGm_;
    GlobalTensor<float> betaGm_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> floats_;
    TBuf<TPosition::VECCALC> column_;
    TBuf<TPosition::VECCALC> spread_;
};

extern "C" __global__ __aicore__ void layer_norm(GM_ADDR x, GM_ADDR gamma, GM_ADDR beta, GM_ADDR y, GM_ADDR,
                                                 GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GET_TILING_DATA_WITH_STRUCT(LayerNormTiling, data, tiling);
    TPipe pipe;
    LayerNormKernel kernel;
    kernel.Init(x, gamma, beta, y, data, &pipe);
    kernel.Process();
}
