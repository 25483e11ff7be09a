// Limits of vector instructions and of their numbers.
#include "cases.h"

namespace {

/// Two float buffers and one half buffer of 4096 elements, all known.
struct Values {
    TPipe pipe;
    TBuf<TPosition::VECCALC> first, second, third, fourth;
    LocalTensor<float> a, b;
    LocalTensor<half> h;
    LocalTensor<uint8_t> bits;

    Values()
    {
        a = filled(pipe, first, kElements, 1.0f);
        b = filled(pipe, second, kElements, 2.0f);
        h = filled(pipe, third, kElements, half(3.0f));
        pipe.InitBuffer(fourth, 1024);
        bits = fourth.Get<uint8_t>();
    }
};

}  // namespace

CASE(mask_of_65_floats, "mask")
{
    Values u;
    Add(u.a, u.a, u.b, broken ? 65 : 64, 2, BinaryRepeatParams(1, 1, 1, 8, 8, 8));  // caught
}

CASE(empty_bit_mask, "mask")
{
    Values u;
    uint64_t mask[2] = {broken ? 0ull : 5ull, 0};
    Duplicate(u.a, 0.0f, mask, 1, 1, 8);  // caught
}

CASE(repeat_of_300, "repeat")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> t = filled(pipe, buffer, 300 * 16, half(1.0f));
    Adds(t, t, half(1.0f), 16, broken ? 300 : 255, UnaryRepeatParams(1, 1, 1, 1));  // caught
}

CASE(repeat_stride_of_256, "stride")
{
    Values u;
    Adds(u.a, u.a, 1.0f, 64, 2, UnaryRepeatParams(1, 1, broken ? 256 : 255, broken ? 256 : 255));  // caught
}

CASE(count_of_zero, "count")
{
    Values u;
    Adds(u.a, u.b, 1.0f, broken ? 0 : 1);  // caught
}

CASE(count_beyond_tensor, "ub-range")
{
    Values u;
    Adds(u.a[64], u.b, 1.0f, broken ? 4033 : 4032);  // caught
}

CASE(repeats_beyond_tensor, "ub-range")
{
    Values u;
    Adds(u.a, u.b, 1.0f, 64, broken ? 65 : 64, UnaryRepeatParams());  // caught
}

CASE(destination_repeats_overlap, "destination-overlap")
{
    Values u;
    Adds(u.a, u.b, 1.0f, 64, 2, UnaryRepeatParams(1, 1, broken ? 0 : 8, 8));  // caught
}

CASE(source_partly_on_destination, "partial-overlap")
{
    Values u;
    Add(u.a, u.a[broken ? 8 : 64], u.b, 64);  // caught
}

CASE(vector_operand_at_odd_address, "ub-alignment")
{
    Values u;
    Add(u.a, u.b[broken ? 4 : 8], u.b, 8);  // caught
}

CASE(compare_of_odd_count, "compare-count")
{
    Values u;
    CompareScalar(u.bits, u.a, 0.0f, CMPMODE::NE, broken ? 96 : 128);  // caught
}

CASE(bits_on_the_compared_tile, "overlap")
{
    Values u;
    LocalTensor<uint8_t> bits = broken ? u.a.ReinterpretCast<uint8_t>() : u.bits;
    CompareScalar(bits, u.a, 0.0f, CMPMODE::NE, 128);  // caught
}

CASE(select_with_cmpmask, "select-mode")
{
    Values u;
    Duplicate(u.bits.ReinterpretCast<uint16_t>(), uint16_t(0x5555), 64);
    PipeBarrier<PIPE_V>();
    Select(u.a, u.bits, u.a, u.b, broken ? SELMODE::VSEL_CMPMASK_SPR : SELMODE::VSEL_TENSOR_TENSOR_MODE, 64);  // caught
}

CASE(bits_overwritten_by_scratch, "uninitialised-read")
{
    Values u;
    CompareScalar(u.bits, u.a, 0.0f, CMPMODE::NE, 1024);
    PipeBarrier<PIPE_V>();
    Tanh(u.a, u.b, broken ? u.bits : u.h.ReinterpretCast<uint8_t>(), 64);
    PipeBarrier<PIPE_V>();
    Select(u.b, u.bits, u.b, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 1024);  // caught
}

CASE(half_overflows, "half-overflow")
{
    Values u;
    Muls(u.a, u.a, broken ? 70000.0f : 65000.0f, 64);
    PipeBarrier<PIPE_V>();
    Cast(u.h, u.a, RoundMode::CAST_RINT, 64);  // caught
}

CASE(half_product_overflows, "half-overflow")
{
    Values u;
    Muls(u.h, u.h, half(broken ? 30000.0f : 20000.0f), 64);  // caught
}

CASE(integer_overflows, "cast-range")
{
    Values u;
    Muls(u.h, u.h, half(broken ? 100.0f : 10.0f), 64);
    PipeBarrier<PIPE_V>();
    Cast(u.bits, u.h, RoundMode::CAST_NONE, 64);  // caught
}

CASE(integer_cast_without_rounding, "cast-mode")
{
    Values u;
    Cast(u.a.ReinterpretCast<int32_t>(), u.b, broken ? RoundMode::CAST_NONE : RoundMode::CAST_TRUNC, 64);  // caught
}

CASE(widening_cast_with_rounding, "cast-mode")
{
    Values u;
    Cast(u.a, u.h, broken ? RoundMode::CAST_RINT : RoundMode::CAST_NONE, 64);  // caught
}

CASE(bfloat16_cast_without_rounding, "cast-mode")
{
    Values u;
    const RoundMode mode = broken ? RoundMode::CAST_NONE : RoundMode::CAST_RINT;
    Cast(u.h.ReinterpretCast<bfloat16_t>(), u.a, mode, 64);  // caught
}

CASE(odd_cast_of_integers, "cast-mode")
{
    Values u;
    Cast(u.a.ReinterpretCast<int32_t>(), u.b, broken ? RoundMode::CAST_ODD : RoundMode::CAST_RINT, 64);  // caught
}

CASE(floor_cast_from_wide_integers, "cast-mode")
{
    Values u;
    Cast(u.b, u.a.ReinterpretCast<int64_t>(), broken ? RoundMode::CAST_FLOOR : RoundMode::CAST_RINT, 32);  // caught
}

CASE(float_to_float_without_rounding, "cast-mode")
{
    Values u;
    Cast(u.b, u.a, broken ? RoundMode::CAST_NONE : RoundMode::CAST_FLOOR, 64);  // caught
}

CASE(floor_cast_from_integers, "cast-mode")
{
    Values u;
    Cast(u.a.ReinterpretCast<int32_t>(), u.b, RoundMode::CAST_RINT, 64);
    PipeBarrier<PIPE_V>();
    Cast(u.b, u.a.ReinterpretCast<int32_t>(), broken ? RoundMode::CAST_FLOOR : RoundMode::CAST_NONE, 64);  // caught
}

CASE(ceiling_overflows_half, "half-overflow")
{
    Values u;
    Muls(u.a, u.a, 65505.0f, 64);
    PipeBarrier<PIPE_V>();
    Cast(u.h, u.a, broken ? RoundMode::CAST_CEIL : RoundMode::CAST_FLOOR, 64);  // caught
}

CASE(infinite_mask_reaches_maximum, "infinite-extremum")
{
    Values u;
    Duplicate(u.a, broken ? -INFINITY : -1.0e30f, 64);
    PipeBarrier<PIPE_V>();
    WholeReduceMax(u.b, u.a, 64, 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);  // caught
}

CASE(reduce_max_work_too_small, "work-size")
{
    Values u;
    ReduceMax(u.b, u.a, u.b[broken ? 4032 : 3968], kElements);  // caught
}

CASE(erf_scratch_too_small, "work-size")
{
    Values u;
    Erf(u.b, u.a, u.bits[broken ? 1024 - 352 : 1024 - 384], 64);  // caught
}

CASE(erf_in_place, "overlap")
{
    Values u;
    Erf(broken ? u.a : u.b, u.a, u.bits, 64);  // caught
}

CASE(broadcast_of_unknown_lanes, "uninitialised-read")
{
    Values u;
    TBuf<TPosition::VECCALC> row;
    u.pipe.InitBuffer(row, 32);
    if (!broken) {
        Duplicate(row.Get<float>(), 0.0f, 8);
        PipeBarrier<PIPE_V>();
    }
    WholeReduceSum(row.Get<float>(), u.a, 64, 5, 1, 1, 8);
    PipeBarrier<PIPE_V>();
    Brcb(u.b, row.Get<float>(), 1, BrcbRepeatParams(1, 8));  // caught
}

CASE(wrong_lane_mask, "uninitialised-read")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> from, to;
    LocalTensor<float> a = filled(pipe, from, 64, 1.0f);
    pipe.InitBuffer(to, 256);
    LocalTensor<float> b = to.Get<float>();
    Adds(b, a, 1.0f, broken ? 63 : 64, 1, UnaryRepeatParams());
    PipeBarrier<PIPE_V>();
    Adds(b, b, 1.0f, 64);  // caught
}
