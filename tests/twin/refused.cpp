// Each CASE is something the twin does not model, or types that the chip does not take: none may compile.
// CASE 0 is the same file without any of them and must compile.
#include "kernel_operator.h"
#include "lib/matmul_intf.h"

using namespace AscendC;

using Nd = MatmulType<TPosition::GM, CubeFormat::ND, half>;

void refused(TPipe& pipe, TQue<TPosition::VECIN, 1>& queue, LocalTensor<half> h, LocalTensor<float> f,
             LocalTensor<bfloat16_t> b, LocalTensor<int64_t> wide, GlobalTensor<half> g)
{
    Add(h, h, h, 16);
    queue.FreeTensor(h);
    (void)pipe, (void)f, (void)b, (void)wide, (void)g;
#if CASE == 1
    Add(h, h, f, 16);  // mixed types
#elif CASE == 2
    Muls(h, h, 2.0f, 16);  // a float scalar for halves
#elif CASE == 3
    Add(b, b, b, 16);  // no bfloat16 arithmetic
#elif CASE == 4
    Cast(wide, f, RoundMode::CAST_RINT, 16);  // no 64-bit integers
#elif CASE == 5
    WholeReduceMax(f, f, 64, 1, 1, 1, 8);  // value and index pairs
#elif CASE == 6
    SyncAll();  // cores run one after another
#elif CASE == 7
    queue.FreeTensor(queue.DeQue<half>());  // a temporary
#elif CASE == 8
    g.SetValue(0, half(1.0f));  // scalar writes to global memory
#elif CASE == 9
    CrossCoreSetFlag<2, PIPE_MTE3>(0);  // clashes with Matmul's own flags
#elif CASE == 10
    Matmul<MatmulType<TPosition::GM, CubeFormat::ND, half>, MatmulType<TPosition::GM, CubeFormat::ND, float>,
           MatmulType<TPosition::GM, CubeFormat::ND, float>> mixed;
#elif CASE == 11
    TQue<TPosition::A1, 1> inL1;
    pipe.InitBuffer(inL1, 1, 64);
#elif CASE == 12
    SoftMax(f, f, f, f, f.ReinterpretCast<uint8_t>(), {}, {});  // build it from basic instructions
#elif CASE == 13
    Matmul<Nd, Nd, Nd> m1, m2, m3, m4, m5;
    TCubeTiling t{};
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), m1, &t, m2, &t, m3, &t, m4, &t, m5, &t);  // five objects
#elif CASE == 14
    Matmul<Nd, Nd, MatmulType<TPosition::VECCALC, CubeFormat::NZ, half>> inUb;  // 910B has no way from L0C to UB
#elif CASE == 15
    Select(h, f.ReinterpretCast<uint8_t>(), h, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 128);  // a float among halves
#endif
}
