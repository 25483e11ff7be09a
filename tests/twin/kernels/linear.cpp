// y = x * w (+ bias), rows of x split over the vector cores of a MIX kernel; w as [K,N] or [N,K]; strided rows.
#include "kernel_operator.h"
#include "lib/matmul_intf.h"

using namespace AscendC;

struct LinearTiling {
    int32_t rows;
    int32_t rowsPerTask;
    int32_t strideX;
    int32_t strideY;
    int32_t transposeW;
    int32_t blockwise;  // 1: Iterate and GetTensorC instead of IterateAll
    TCubeTiling cube;
};

using LinearA = MatmulType<TPosition::GM, CubeFormat::ND, half>;
using LinearB = MatmulType<TPosition::GM, CubeFormat::ND, half, true>;
using LinearC = MatmulType<TPosition::GM, CubeFormat::ND, float>;

extern "C" __global__ __aicore__ void linear(GM_ADDR x, GM_ADDR w, GM_ADDR bias, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    GET_TILING_DATA_WITH_STRUCT(LinearTiling, t, tiling);
    TPipe pipe;
    Matmul<LinearA, LinearB, LinearC, LinearC> mm;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &t.cube);
    GlobalTensor<half> xGm, wGm;
    GlobalTensor<float> biasGm, yGm;
    xGm.SetGlobalBuffer((__gm__ half*)x);
    wGm.SetGlobalBuffer((__gm__ half*)w);
    yGm.SetGlobalBuffer((__gm__ float*)y);
    biasGm.SetGlobalBuffer((__gm__ float*)bias);
    const int32_t n = t.cube.N, k = t.cube.Ka;
    const int32_t tasks = (t.rows + t.rowsPerTask - 1) / t.rowsPerTask;
    for (int32_t task = GetBlockIdx(); task < tasks; task += GetBlockNum() * GetTaskRation()) {
        const int32_t first = task * t.rowsPerTask;
        const int32_t rows = t.rows - first < t.rowsPerTask ? t.rows - first : t.rowsPerTask;
        mm.SetOrgShape(rows, n, t.strideX, k, t.strideY);
        mm.SetTensorA(xGm[static_cast<uint64_t>(first) * t.strideX]);
        mm.SetTensorB(wGm, t.transposeW != 0);
        if (t.cube.isBias != 0) {
            mm.SetBias(biasGm);
        }
        mm.SetSingleShape(rows, n, k);
        const GlobalTensor<float> out = yGm[static_cast<uint64_t>(first) * t.strideY];
        if (t.blockwise == 0) {
            mm.IterateAll(out);
            continue;
        }
        while (mm.Iterate()) {
            mm.GetTensorC(out);
        }
    }
    mm.End();
}
