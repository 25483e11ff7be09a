// y = a + b over a flat tensor; double-buffered queues, the last tile shorter.
#include "kernel_operator.h"

using namespace AscendC;

struct AddTiling {
    int32_t total;
    int32_t tile;
};

class AddKernel {
public:
    __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, GM_ADDR y, const AddTiling& tiling, TPipe* pipe)
    {
        total_ = tiling.total;
        tile_ = tiling.tile;
        a_.SetGlobalBuffer((__gm__ half*)a, total_);
        b_.SetGlobalBuffer((__gm__ half*)b, total_);
        y_.SetGlobalBuffer((__gm__ half*)y, total_);
        pipe->InitBuffer(in_, 2, 2 * tile_ * sizeof(half));
        pipe->InitBuffer(out_, 2, tile_ * sizeof(half));
    }

    __aicore__ inline void Process()
    {
        const int32_t tiles = (total_ + tile_ - 1) / tile_;
        for (int32_t t = GetBlockIdx(); t < tiles; t += GetBlockNum()) {
            const int32_t count = total_ - t * tile_ < tile_ ? total_ - t * tile_ : tile_;
            const DataCopyExtParams copy(1, count * sizeof(half), 0, 0, 0);
            LocalTensor<half> loaded = in_.AllocTensor<half>();
            DataCopyPad(loaded, a_[t * tile_], copy, DataCopyPadExtParams<half>());
            DataCopyPad(loaded[tile_], b_[t * tile_], copy, DataCopyPadExtParams<half>());
            in_.EnQue(loaded);
            LocalTensor<half> x = in_.DeQue<half>();
            LocalTensor<half> sum = out_.AllocTensor<half>();
            Add(sum, x, x[tile_], count);
            out_.EnQue(sum);
            in_.FreeTensor(x);
            LocalTensor<half> y = out_.DeQue<half>();
            DataCopyPad(y_[t * tile_], y, copy);
            out_.FreeTensor(y);
        }
    }

private:
    int32_t total_ = 0;
    int32_t tile_ = 0;
    GlobalTensor<half> a_;
    GlobalTensor<half> b_;
    GlobalTensor<half> y_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
};

extern "C" __global__ __aicore__ void add(GM_ADDR a, GM_ADDR b, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    REGISTER_TILING_DEFAULT(AddTiling);
    GET_TILING_DATA(data, tiling);
    TPipe pipe;
    AddKernel kernel;
    kernel.Init(a, b, y, data, &pipe);
    kernel.Process();
}
