// Every copy form once: rows with gaps and padding in, moved inside UB, out again with gaps.
#include "kernel_operator.h"

using namespace AscendC;

struct CopiesTiling {
    int32_t rows;
    int32_t columns;  // halves of a row in memory, moved
    int32_t gap;      // halves between rows in memory
    int32_t left;
    int32_t right;
    int32_t blocks;   // 32-byte blocks between rows in UB
};

/// y1: what lies in UB after the padded load, gaps as -1; y2: the rows alone, stored with a gap of 3 halves;
/// y3: every second 32-byte block of y1, by DataCopyParams both ways.
extern "C" __global__ __aicore__ void copies(GM_ADDR x, GM_ADDR y1, GM_ADDR y2, GM_ADDR y3, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GET_TILING_DATA_WITH_STRUCT(CopiesTiling, t, tiling);
    GlobalTensor<half> in, whole, rows, half_;
    in.SetGlobalBuffer((__gm__ half*)x);
    whole.SetGlobalBuffer((__gm__ half*)y1);
    rows.SetGlobalBuffer((__gm__ half*)y2);
    half_.SetGlobalBuffer((__gm__ half*)y3);
    const int32_t used = (t.left + t.columns + t.right + 15) / 16 * 16;
    const int32_t pitch = used + t.blocks * 16;
    TPipe pipe;
    TBuf<TPosition::VECCALC> first, second, third;
    pipe.InitBuffer(first, t.rows * pitch * sizeof(half));
    pipe.InitBuffer(second, t.rows * pitch * sizeof(half));
    pipe.InitBuffer(third, t.rows * pitch / 2 * sizeof(half));
    const LocalTensor<half> a = first.Get<half>(), b = second.Get<half>(), c = third.Get<half>();
    Duplicate(a, half(-1.0f), t.rows * pitch);
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(a, in, DataCopyExtParams(t.rows, t.columns * sizeof(half), t.gap * sizeof(half), t.blocks, 0),
                DataCopyPadExtParams<half>(true, t.left, t.right, half(7.0f)));
    PipeBarrier<PIPE_ALL>();
    DataCopy(b, a, t.rows * pitch);
    DataCopy(c, a, DataCopyParams(t.rows * pitch / 32, 1, 1, 0));
    PipeBarrier<PIPE_ALL>();
    DataCopy(whole, b, t.rows * pitch);
    DataCopy(half_, c, DataCopyParams(t.rows * pitch / 32, 1, 0, 1));
    if (t.left == 0) {
        const uint32_t skipped = (pitch * 2 - (t.columns * 2 + 31) / 32 * 32) / 32;
        DataCopyPad(rows, b, DataCopyExtParams(t.rows, t.columns * sizeof(half), skipped, 3 * sizeof(half), 0));
    }
}
