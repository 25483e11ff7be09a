// 310P: cube and vector share a core; operands and results of a Matmul may lie in UB.
#include "cases.h"

#if __NPU_ARCH__ == 2002

namespace {

using NdIn = MatmulType<TPosition::GM, CubeFormat::ND, half>;
using NzIn = MatmulType<TPosition::VECCALC, CubeFormat::NZ, half>;
using NzOut = MatmulType<TPosition::VECCALC, CubeFormat::NZ, float>;
using NdOut = MatmulType<TPosition::GM, CubeFormat::ND, float>;
using HalfBias = MatmulType<TPosition::GM, CubeFormat::ND, half>;

TCubeTiling tiling32()
{
    TCubeTiling t{};
    t.usedCoreNum = 1;
    t.M = t.N = t.Ka = t.Kb = t.singleCoreM = t.singleCoreN = t.singleCoreK = t.baseM = t.baseN = t.baseK = 32;
    t.depthA1 = t.depthB1 = t.stepM = t.stepN = t.stepKa = t.stepKb = t.dbL0A = t.dbL0B = t.dbL0C = 1;
    t.transLength = 4096;
    return t;
}

}  // namespace

#define SHARED_CASE(name, rule) CASE_ON(name, rule, Shared, 1)
#define OBJECT(AType, CType)                                                \
    const TCubeTiling tiling = tiling32();                                  \
    TPipe pipe;                                                             \
    Matmul<AType, NdIn, CType, NdOut> mm;                                   \
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);            \
    TBuf<TPosition::VECCALC> scratch;                                       \
    pipe.InitBuffer(scratch, 8192)

SHARED_CASE(no_local_workspace, "matmul-local-workspace")
{
    OBJECT(NdIn, NdOut);
    if (!broken) {
        mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    }
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

SHARED_CASE(local_workspace_too_small, "matmul-local-workspace")
{
    OBJECT(NdIn, NdOut);
    mm.SetLocalWorkspace(scratch.Get<uint8_t>(broken ? 8160 : 8192));
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

SHARED_CASE(row_stride_not_16, "matmul-nd-alignment")
{
    OBJECT(NdIn, NdOut);
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    mm.SetOrgShape(32, 32, broken ? 40 : 48, 32);
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

SHARED_CASE(result_row_not_32_bytes, "matmul-nd-alignment")
{
    OBJECT(NdIn, NdOut);
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    mm.SetOrgShape(32, 32, 32, 32, broken ? 36 : 40);
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

SHARED_CASE(nz_matrix_of_20_rows, "matmul-nz")
{
    OBJECT(NzIn, NdOut);
    TBuf<TPosition::VECCALC> buffer;
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    LocalTensor<half> a = filled(pipe, buffer, 1024, half(1.0f));
    mm.SetOrgShape(broken ? 20 : 32, 32, 32, 32);
    mm.SetSingleShape(20, 32, 32);
    mm.SetTensorA(a);
    mm.SetTensorB(rig.x());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

SHARED_CASE(operand_still_being_computed, "matmul-sync")
{
    OBJECT(NzIn, NdOut);
    TBuf<TPosition::VECCALC> buffer;
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    LocalTensor<half> a = filled(pipe, buffer, 1024, half(1.0f));
    Adds(a, a, half(1.0f), 1024);
    if (!broken) {
        order<HardEvent::V_S>();
    }
    mm.SetTensorA(a);
    mm.SetTensorB(rig.x());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

SHARED_CASE(result_larger_than_buffer, "ub-range")
{
    OBJECT(NdIn, NzOut);
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 4096);
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    while (mm.Iterate()) {
        mm.GetTensorC(buffer.Get<float>(broken ? 1016 : 1024));  // caught
    }
    mm.End();
}

SHARED_CASE(rows_that_fill_a_block_up, "uninitialised-read")
{
    OBJECT(NdIn, NzOut);
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 4096);
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    mm.SetSingleShape(broken ? 31 : 32, 32, 32);
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    while (mm.Iterate()) {
        mm.GetTensorC(buffer.Get<float>());
    }
    Adds(buffer.Get<float>(), buffer.Get<float>(), 1.0f, 1024);  // caught
    mm.End();
}

SHARED_CASE(asynchronous_on_310p, "not-on-device")
{
    OBJECT(NdIn, NdOut);
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    if (broken) {
        mm.IterateAll<false>(rig.yf(), 0, false, true);  // caught
    } else {
        mm.IterateAll(rig.yf());
    }
    mm.End();
}

SHARED_CASE(atomic_result_in_ub, "matmul-atomic")
{
    OBJECT(NdIn, NzOut);
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 4096);
    mm.SetLocalWorkspace(scratch.Get<uint8_t>());
    mm.SetTensorA(rig.x());
    mm.SetTensorB(rig.x());
    while (mm.Iterate()) {
        mm.GetTensorC(buffer.Get<float>(), broken ? 1 : 0);  // caught
    }
    mm.End();
}

SHARED_CASE(half_bias_on_310p, "not-on-device")
{
    const TCubeTiling tiling = tiling32();
    TPipe pipe;
    Matmul<NdIn, NdIn, NdOut, HalfBias> mm;
    if (broken) {
        REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    }
}

#endif
