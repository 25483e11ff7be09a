// The kernel's own declarations.
#include "cases.h"

namespace {

struct RightTiling {
    int32_t values[4];
};

struct WrongTiling {
    int32_t values[5];
};

}  // namespace

CASE(second_kernel_type, "kernel-type")
{
    KERNEL_TASK_TYPE_DEFAULT(broken ? KERNEL_TYPE_MIX_AIC_1_2 : KERNEL_TYPE_AIV_ONLY);  // caught
}

CASE_ON(mix_kernel_on_310p, "not-on-device", Shared, 1)
{
    if (broken) {
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);  // caught
    }
}

CASE(tiling_of_another_size, "tiling-size")
{
    if (broken) {
        GET_TILING_DATA_WITH_STRUCT(WrongTiling, data, rig.tiling);  // caught
        (void)data;
    } else {
        GET_TILING_DATA_WITH_STRUCT(RightTiling, data, rig.tiling);
        (void)data;
    }
}

CASE(tiling_from_another_argument, "tiling-address")
{
    GET_TILING_DATA_WITH_STRUCT(RightTiling, data, broken ? rig.halves : rig.tiling);  // caught
    (void)data;
}

CASE_ON(vector_instruction_on_a_cube_core, "kernel-type", Cube, 1)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 64);
    if (broken) {
        Duplicate(buffer.Get<half>(), half(1.0f), 16);  // caught
    }
}
