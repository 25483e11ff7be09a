// The rules of a Matmul: tiling, calls, order.
#include "cases.h"

namespace {

template <typename T, bool Transposable = false>
using Gm = MatmulType<TPosition::GM, CubeFormat::ND, T, Transposable>;

using HalfMatmul = Matmul<Gm<half>, Gm<half, true>, Gm<float>, Gm<float>>;
using HalfBiasMatmul = Matmul<Gm<half>, Gm<half, true>, Gm<float>, Gm<half>>;

/// 32 x 32 x 32 in one base block.
TCubeTiling small()
{
    TCubeTiling t{};
    t.usedCoreNum = 1;
    t.M = t.N = t.Ka = t.Kb = t.singleCoreM = t.singleCoreN = t.singleCoreK = 32;
    t.baseM = t.baseN = t.baseK = 32;
    t.depthA1 = t.depthB1 = t.stepM = t.stepN = t.stepKa = t.stepKb = t.dbL0C = 1;
    t.dbL0A = t.dbL0B = 2;
    return t;
}

/// Operands in the readable tensor, result in the output.
template <typename Object>
void operands(Object& mm, const Rig& rig)
{
    mm.SetTensorA(rig.x());  // caught
    mm.SetTensorB(rig.x());
}

template <typename Object = HalfMatmul>
void product(const Rig& rig, const TCubeTiling& tiling)
{
    TPipe pipe;
    Object mm;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    operands(mm, rig);
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

}  // namespace

#define MATMUL_CASE(name, rule) CASE_ON(name, rule, Mix, 1)
#define ONE_CORE              \
    if (GetBlockIdx() != 0) { \
        return;               \
    }

/// Runs on the first vector core only; the second just ends.
#define BEGIN(tilingValue)                                       \
    const TCubeTiling tiling = tilingValue;                      \
    TPipe pipe;                                                  \
    HalfMatmul mm;                                               \
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling); \
    if (GetBlockIdx() != 0) {                                    \
        mm.End();                                                \
        return;                                                  \
    }

#define TILING_CASE(name, rule, field, wrong)   \
    MATMUL_CASE(name, rule)                     \
    {                                           \
        ONE_CORE                                \
        TCubeTiling tiling = small();           \
        tiling.field = broken ? wrong : tiling.field; \
        product(rig, tiling);                   \
    }

TILING_CASE(tiling_single_k_zero, "matmul-tiling", singleCoreK, 0)
TILING_CASE(tiling_step_zero, "matmul-tiling", stepKa, 0)
TILING_CASE(tiling_double_buffer_zero, "matmul-tiling", dbL0A, 0)
TILING_CASE(tiling_used_cores_zero, "matmul-tiling", usedCoreNum, 0)
TILING_CASE(tiling_base_not_16, "matmul-tiling", baseM, 60)
TILING_CASE(tiling_base_k_not_16, "matmul-tiling", baseK, 60)
TILING_CASE(tiling_order_two, "matmul-tiling", iterateOrder, 2)
TILING_CASE(tiling_share_mode, "matmul-tiling", shareMode, 1)
TILING_CASE(tiling_depth_not_step, "matmul-tiling", depthA1, 3)
TILING_CASE(tiling_l0a_overflow, "matmul-l0", baseM, 1024)
TILING_CASE(tiling_l0b_overflow, "matmul-l0", baseN, 1024)
TILING_CASE(tiling_bias_without_set_bias, "matmul-bias", isBias, 1)

MATMUL_CASE(tiling_l0c_overflow, "matmul-l0")
{
    ONE_CORE
    TCubeTiling tiling = small();
    tiling.baseM = 256;
    tiling.baseN = broken ? 256 : 128;
    product(rig, tiling);
}

MATMUL_CASE(tiling_l1_overflow, "matmul-l1")
{
    ONE_CORE
    TCubeTiling tiling = small();
    tiling.stepKa = tiling.depthA1 = tiling.singleCoreK = broken ? 256 : 64;
    tiling.singleCoreK = 32;
    product(rig, tiling);
}

MATMUL_CASE(bias_table_overflow, "matmul-bias")
{
    TCubeTiling tiling = small();
    tiling.isBias = 1;
    tiling.baseN = broken ? 272 : 256;
    TPipe pipe;
    HalfMatmul mm;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    mm.End();
}

MATMUL_CASE(half_bias_of_48_columns, "matmul-bias")
{
    TCubeTiling tiling = small();
    tiling.isBias = 1;
    tiling.baseN = broken ? 48 : 64;
    TPipe pipe;
    HalfBiasMatmul mm;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    mm.End();
}

MATMUL_CASE(bias_not_in_tiling, "matmul-bias")
{
    TCubeTiling t = small();
    t.isBias = broken ? 0 : 1;
    BEGIN(t)
    operands(mm, rig);
    mm.SetBias(rig.f());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(transpose_not_declared, "matmul-transpose")
{
    BEGIN(small())
    mm.SetTensorA(rig.x(), broken);  // caught
    mm.SetTensorB(rig.x(), true);
    mm.IterateAll(rig.yf());
    mm.End();
}

MATMUL_CASE(org_shape_after_tensor, "matmul-org-shape")
{
    BEGIN(small())
    if (broken) {
        operands(mm, rig);
    }
    mm.SetOrgShape(32, 32, 32, 32, 32);  // caught
    operands(mm, rig);
    mm.IterateAll(rig.yf());
    mm.End();
}

MATMUL_CASE(org_shape_zero, "matmul-org-shape")
{
    BEGIN(small())
    mm.SetOrgShape(32, 32, broken ? 0 : 32, 32, 32);  // caught
    mm.End();
}

MATMUL_CASE(row_stride_65536, "matmul-stride")
{
    BEGIN(small())
    mm.SetOrgShape(1, 32, broken ? 65536 : 65535, 32, 32);
    operands(mm, rig);
    mm.SetSingleShape(1, 32, 32);
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(row_stride_too_small, "matmul-stride")
{
    BEGIN(small())
    mm.SetOrgShape(32, 32, broken ? 31 : 32, 32, 32);
    operands(mm, rig);
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(result_stride_too_small, "matmul-stride")
{
    BEGIN(small())
    mm.SetOrgShape(32, 32, 32, 32, broken ? 16 : 32);
    operands(mm, rig);
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(k_beyond_tiling, "matmul-single-k")
{
    BEGIN(small())
    mm.SetOrgShape(32, 32, 64, 64, 32);
    mm.SetSingleShape(32, 32, broken ? 64 : 32);
    operands(mm, rig);
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(tail_forgotten, "gm-range")
{
    BEGIN(small())
    mm.SetTensorA(rig.x()[kElements - 31 * 32]);
    mm.SetTensorB(rig.x());
    mm.SetTail(broken ? 32 : 31);
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(operand_not_set, "matmul-operand")
{
    BEGIN(small())
    mm.SetTensorA(rig.x());
    if (!broken) {
        mm.SetTensorB(rig.x());
    }
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(registered_after_init_buffer, "matmul-regist")
{
    const TCubeTiling tiling = small();
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    HalfMatmul mm;
    if (broken) {
        pipe.InitBuffer(buffer, 64);
    }
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    mm.End();
}

MATMUL_CASE(registered_with_user_workspace, "matmul-regist")
{
    const TCubeTiling tiling = small();
    TPipe pipe;
    HalfMatmul mm;
    GM_ADDR system = broken ? GetUserWorkspace(rig.workspace) : GetSysWorkSpacePtr();
    REGIST_MATMUL_OBJ(&pipe, system, mm, &tiling);  // caught
    mm.End();
}

MATMUL_CASE(object_not_registered, "matmul-regist")
{
    BEGIN(small())
    HalfMatmul other;
    HalfMatmul& used = broken ? other : mm;
    operands(used, rig);
    mm.IterateAll(rig.yf());
    mm.End();
}

CASE(matmul_in_a_vector_kernel, "kernel-type")
{
    const TCubeTiling tiling = small();
    TPipe pipe;
    HalfMatmul mm;
    if (broken) {
        REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    }
}

MATMUL_CASE(end_missing, "matmul-end")
{
    const TCubeTiling tiling = small();
    TPipe pipe;
    HalfMatmul mm;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    if (!broken || GetBlockIdx() == 0) {
        mm.End();
    }
}

MATMUL_CASE(asynchronous_call_not_waited, "matmul-wait")
{
    const TCubeTiling tiling = small();
    TPipe pipe;
    HalfMatmul mm;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    if (GetBlockIdx() == 0) {
        operands(mm, rig);
        mm.IterateAll<false>(rig.yf(), 0, false, true);
        if (!broken) {
            mm.WaitIterateAll();
        }
    }
    mm.End();
}

MATMUL_CASE(wait_too_often, "matmul-wait")
{
    BEGIN(small())
    operands(mm, rig);
    mm.IterateAll<false>(rig.yf(), 0, false, true);
    mm.WaitIterateAll();
    if (broken) {
        mm.WaitIterateAll();  // caught
    }
    mm.End();
}

MATMUL_CASE(asynchronous_call_without_wait_flag, "matmul-wait")
{
    BEGIN(small())
    operands(mm, rig);
    mm.IterateAll<false>(rig.yf(), 0, false, !broken);  // caught
    mm.WaitIterateAll();
    mm.End();
}

MATMUL_CASE(result_read_before_wait, "matmul-sync")
{
    BEGIN(small())
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 256);
    operands(mm, rig);
    mm.IterateAll<false>(rig.yf(), 0, false, true);
    if (!broken) {
        mm.WaitIterateAll();
    }
    DataCopy(buffer.Get<float>(), rig.yf(), 64);  // caught
    mm.End();
}

MATMUL_CASE(undrained_workspace_write, "matmul-sync")
{
    BEGIN(small())
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> rows = filled(pipe, buffer, 1024, half(0.5f));
    DataCopy(rig.ring<half>(), rows, 1024);
    if (!broken) {
        order<HardEvent::MTE3_S>();
    }
    mm.SetTensorA(rig.ring<half>());
    mm.SetTensorB(rig.x());
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(slot_overwritten_too_early, "matmul-sync")
{
    BEGIN(small())
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> rows = filled(pipe, buffer, 1024, half(0.5f));
    DataCopy(rig.ring<half>(), rows, 1024);
    order<HardEvent::MTE3_S>();
    mm.SetTensorA(rig.ring<half>());
    mm.SetTensorB(rig.x());
    mm.IterateAll<false>(rig.yf(), 0, false, true);
    if (!broken) {
        mm.WaitIterateAll();
    }
    DataCopy(rig.ring<half>(), rows, 1024);  // caught
    mm.End();
}

MATMUL_CASE(atomic_add_to_nothing, "uninitialised-read")
{
    BEGIN(small())
    operands(mm, rig);
    mm.IterateAll(rig.yf(), broken ? 1 : 0);  // caught
    operands(mm, rig);
    mm.IterateAll(rig.yf(), 1);
    mm.End();
}

MATMUL_CASE(atomic_maximum, "matmul-atomic")
{
    BEGIN(small())
    operands(mm, rig);
    mm.IterateAll(rig.yf(), broken ? 2 : 0);  // caught
    mm.End();
}

MATMUL_CASE(sequential_result, "matmul-sequential")
{
    BEGIN(small())
    operands(mm, rig);
    mm.IterateAll(rig.yf(), 0, broken);  // caught
    mm.End();
}

MATMUL_CASE(block_fetched_twice, "matmul-sequential")
{
    BEGIN(small())
    operands(mm, rig);
    while (mm.Iterate()) {
        mm.GetTensorC(rig.yf());
        if (broken) {
            mm.GetTensorC(rig.yf());  // caught
        }
    }
    mm.End();
}

MATMUL_CASE(partial_sums, "matmul-partial")
{
    BEGIN(small())
    operands(mm, rig);
    while (mm.Iterate(broken)) {  // caught
        mm.GetTensorC(rig.yf());
    }
    mm.End();
}

MATMUL_CASE(no_rows, "matmul-single-shape")
{
    BEGIN(small())
    mm.SetSingleShape(broken ? 0 : 1, 32, 32);
    operands(mm, rig);
    mm.IterateAll(rig.yf());  // caught
    mm.End();
}

MATMUL_CASE(local_workspace_on_910b, "not-on-device")
{
    BEGIN(small())
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 64);
    if (broken) {
        mm.SetLocalWorkspace(buffer.Get<uint8_t>());  // caught
    }
    mm.End();
}

CASE_ON(cube_kernel_without_its_macro, "kernel-type", Cube, 1)
{
    const TCubeTiling tiling = small();
    TPipe pipe;
    HalfMatmul mm;
    if (broken) {
        REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    }
}

MATMUL_CASE(float_base_k_with_transpose, "matmul-tiling")
{
    TCubeTiling tiling = small();
    tiling.baseK = broken ? 8 : 16;
    TPipe pipe;
    Matmul<Gm<float>, Gm<float, true>, Gm<float>> mm;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), mm, &tiling);  // caught
    mm.End();
}
