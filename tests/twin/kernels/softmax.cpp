// Row softmax from basic instructions: tiles of rows, the width padded to 64 with a very low constant.
#include "kernel_operator.h"

using namespace AscendC;

struct SoftmaxTiling {
    int32_t rows;
    int32_t columns;
    int32_t tileRows;  // a multiple of 8
};

class SoftmaxKernel {
public:
    __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, const SoftmaxTiling& tiling, TPipe* pipe)
    {
        tiling_ = tiling;
        width_ = (tiling.columns + 63) / 64 * 64;
        x_.SetGlobalBuffer((__gm__ float*)x);
        y_.SetGlobalBuffer((__gm__ float*)y);
        const uint32_t bytes = tiling.tileRows * width_ * sizeof(float);
        pipe->InitBuffer(in_, 1, bytes);
        pipe->InitBuffer(out_, 1, bytes);
        pipe->InitBuffer(fold_, tiling.tileRows * 64 * sizeof(float));
        pipe->InitBuffer(row_, tiling.tileRows * sizeof(float));
        pipe->InitBuffer(column_, tiling.tileRows * 32);
    }

    __aicore__ inline void Process()
    {
        const int32_t tiles = (tiling_.rows + tiling_.tileRows - 1) / tiling_.tileRows;
        for (int32_t t = GetBlockIdx(); t < tiles; t += GetBlockNum()) {
            first_ = t * tiling_.tileRows;
            rows_ = tiling_.rows - first_ < tiling_.tileRows ? tiling_.rows - first_ : tiling_.tileRows;
            Tile();
        }
    }

private:
    __aicore__ inline void CopyIn()
    {
        LocalTensor<float> x = in_.AllocTensor<float>();
        const uint32_t bytes = tiling_.columns * sizeof(float);
        const uint32_t gap = width_ / 8 - (bytes + 31) / 32;
        DataCopyPad(x, x_[static_cast<uint64_t>(first_) * tiling_.columns],
                    DataCopyExtParams(rows_, bytes, 0, gap, 0), DataCopyPadExtParams<float>());
        in_.EnQue(x);
    }

    __aicore__ inline void Pad(const LocalTensor<float>& x)
    {
        const int32_t used = tiling_.columns % 64;
        if (used == 0) {
            return;
        }
        uint64_t mask[2] = {~0ULL << used, 0};
        Duplicate(x[width_ - 64], -3.0e38f, mask, rows_, 1, width_ / 8);
        PipeBarrier<PIPE_V>();
    }

    /// x = x (op) the column, row by row.
    template <typename Op>
    __aicore__ inline void EachRow(const LocalTensor<float>& x, Op op)
    {
        for (int32_t c = 0; c < width_; c += 64) {
            op(x[c], column_.Get<float>(), BinaryRepeatParams(1, 1, 0, width_ / 8, width_ / 8, 1));
        }
        PipeBarrier<PIPE_V>();
    }

    /// Folds 64-column groups into the first and leaves the rows' results, spread over blocks, in the column.
    template <typename Fold, typename Reduce>
    __aicore__ inline void RowReduce(const LocalTensor<float>& x, Fold fold, Reduce reduce)
    {
        LocalTensor<float> t = fold_.Get<float>(), row = row_.Get<float>();
        Adds(t, x, 0.0f, 64, rows_, UnaryRepeatParams(1, 1, 8, width_ / 8));
        Duplicate(row, 0.0f, (rows_ + 7) / 8 * 8);
        PipeBarrier<PIPE_V>();
        for (int32_t c = 64; c < width_; c += 64) {
            fold(t, x[c], BinaryRepeatParams(1, 1, 1, 8, 8, width_ / 8));
            PipeBarrier<PIPE_V>();
        }
        reduce(row, t);
        PipeBarrier<PIPE_V>();
        Brcb(column_.Get<float>(), row, (rows_ + 7) / 8, BrcbRepeatParams(1, 8));
        PipeBarrier<PIPE_V>();
    }

    __aicore__ inline void Tile()
    {
        CopyIn();
        LocalTensor<float> x = in_.DeQue<float>();
        LocalTensor<float> y = out_.AllocTensor<float>();
        const int32_t rows = rows_;
        Pad(x);
        RowReduce(
            x, [rows](auto t, auto v, const BinaryRepeatParams& p) { Max(t, t, v, 64, rows, p); },
            [rows](auto row, auto t) { WholeReduceMax(row, t, 64, rows, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE); });
        EachRow(x, [rows](auto v, auto c, const BinaryRepeatParams& p) { Sub(v, v, c, 64, rows, p); });
        Exp(y, x, rows * width_);
        PipeBarrier<PIPE_V>();
        RowReduce(
            y, [rows](auto t, auto v, const BinaryRepeatParams& p) { Add(t, t, v, 64, rows, p); },
            [rows](auto row, auto t) { WholeReduceSum(row, t, 64, rows, 1, 1, 8); });
        EachRow(y, [rows](auto v, auto c, const BinaryRepeatParams& p) { Div(v, v, c, 64, rows, p); });
        in_.FreeTensor(x);
        out_.EnQue(y);
        CopyOut();
    }

    __aicore__ inline void CopyOut()
    {
        LocalTensor<float> y = out_.DeQue<float>();
        const uint32_t bytes = tiling_.columns * sizeof(float);
        const uint32_t gap = width_ / 8 - (bytes + 31) / 32;
        DataCopyPad(y_[static_cast<uint64_t>(first_) * tiling_.columns], y, DataCopyExtParams(rows_, bytes, gap, 0, 0));
        out_.FreeTensor(y);
    }

    SoftmaxTiling tiling_{};
    int32_t width_ = 0;
    int32_t first_ = 0;
    int32_t rows_ = 0;
    GlobalTensor<float> x_;
    GlobalTensor<float> y_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> fold_;
    TBuf<TPosition::VECCALC> row_;
    TBuf<TPosition::VECCALC> column_;
};

extern "C" __global__ __aicore__ void softmax(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GET_TILING_DATA_WITH_STRUCT(SoftmaxTiling, data, tiling);
    TPipe pipe;
    SoftmaxKernel kernel;
    kernel.Init(x, y, data, &pipe);
    kernel.Process();
}
