// y = half(x * w1) * w2 on 310P: the intermediate stays in UB, in the cube's layout, and never reaches memory.
#include "kernel_operator.h"
#include "lib/matmul_intf.h"

using namespace AscendC;

struct ChainTiling {
    int32_t rows;   // a task's, a multiple of 16
    int32_t total;
    int32_t k;
    int32_t n;
    int32_t p;
    TCubeTiling first;
    TCubeTiling second;
};

using Nd = MatmulType<TPosition::GM, CubeFormat::ND, half>;
using NzIn = MatmulType<TPosition::VECCALC, CubeFormat::NZ, half>;
using NzOut = MatmulType<TPosition::VECCALC, CubeFormat::NZ, float>;
using NdOut = MatmulType<TPosition::GM, CubeFormat::ND, float>;

extern "C" __global__ __aicore__ void chain(GM_ADDR x, GM_ADDR w1, GM_ADDR w2, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AICORE);
    GET_TILING_DATA_WITH_STRUCT(ChainTiling, t, tiling);
    TPipe pipe;
    Matmul<Nd, Nd, NzOut, NdOut> first;
    Matmul<NzIn, Nd, NdOut, NdOut> second;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), first, &t.first, second, &t.second);
    TBuf<TPosition::VECCALC> sums, halves, scratch;
    pipe.InitBuffer(sums, t.rows * t.n * sizeof(float));
    pipe.InitBuffer(halves, t.rows * t.n * sizeof(half));
    pipe.InitBuffer(scratch, 2 * t.first.transLength);
    first.SetLocalWorkspace(scratch.Get<uint8_t>());
    second.SetLocalWorkspace(scratch.Get<uint8_t>());
    GlobalTensor<half> xGm, w1Gm, w2Gm;
    GlobalTensor<float> yGm;
    xGm.SetGlobalBuffer((__gm__ half*)x);
    w1Gm.SetGlobalBuffer((__gm__ half*)w1);
    w2Gm.SetGlobalBuffer((__gm__ half*)w2);
    yGm.SetGlobalBuffer((__gm__ float*)y);
    first.SetOrgShape(t.rows, t.n, t.k, t.k);
    second.SetOrgShape(t.rows, t.p, t.n, t.n);
    for (int32_t task = GetBlockIdx(); task * t.rows < t.total; task += GetBlockNum()) {
        first.SetTensorA(xGm[task * t.rows * t.k]);
        first.SetTensorB(w1Gm);
        while (first.Iterate()) {
            first.GetTensorC(sums.Get<float>());
        }
        Cast(halves.Get<half>(), sums.Get<float>(), RoundMode::CAST_NONE, t.rows * t.n);
        const TEventID done = pipe.FetchEventID(HardEvent::V_S);
        SetFlag<HardEvent::V_S>(done);
        WaitFlag<HardEvent::V_S>(done);
        second.SetTensorA(halves.Get<half>());
        second.SetTensorB(w2Gm);
        second.IterateAll(yGm[task * t.rows * t.p]);
    }
    first.End();
    second.End();
}
