// Element-wise vector instructions in count form and in mask/repeat form.
#pragma once

#include <cmath>

#include "lanes.h"

namespace twin {

template <typename T>
constexpr bool isFloating = isOneOf<T, half, float>;

/// half and float are computed in float; integers in their own type.
template <typename T>
using Compute = std::conditional_t<isFloating<T>, float, T>;

template <typename T>
constexpr int lanesOf = kVectorBytes / static_cast<int>(sizeof(T));

/// A half infinity that comes from finite values is a violation, or counted where the harness allows it.
inline void checkOverflow(half stored, float value, bool finiteInputs, const Instruction& instruction)
{
    if (!finiteInputs || (stored.bits & 0x7fffu) != 0x7c00u) {
        return;
    }
    ++world().halfOverflows;
    if (!world().launch.allowHalfOverflow) {
        fail(instruction.at(), "half-overflow", "%s: %g does not fit a half", instruction.name(),
             static_cast<double>(value));
    }
}

/// Rounds a result to its type.
template <typename T>
T store(Compute<T> value, [[maybe_unused]] bool finiteInputs, [[maybe_unused]] const Instruction& instruction)
{
    const T stored = static_cast<T>(value);
    if constexpr (std::is_same_v<T, half>) {
        checkOverflow(stored, value, finiteInputs, instruction);
    }
    return stored;
}

template <typename T>
bool finite(T value)
{
    if constexpr (isFloating<T>) {
        return std::isfinite(static_cast<float>(value));
    } else {
        return true;
    }
}

namespace op {

struct Add { template <typename C> static C of(C a, C b) { return static_cast<C>(a + b); } };
struct Sub { template <typename C> static C of(C a, C b) { return static_cast<C>(a - b); } };
struct Mul { template <typename C> static C of(C a, C b) { return static_cast<C>(a * b); } };
struct Div { template <typename C> static C of(C a, C b) { return a / b; } };
struct Max { template <typename C> static C of(C a, C b) { return a != a ? a : b != b ? b : a > b ? a : b; } };
struct Min { template <typename C> static C of(C a, C b) { return a != a ? a : b != b ? b : a < b ? a : b; } };
struct And { template <typename C> static C of(C a, C b) { return static_cast<C>(a & b); } };
struct Or { template <typename C> static C of(C a, C b) { return static_cast<C>(a | b); } };
struct AddRelu { template <typename C> static C of(C a, C b) { return std::max<C>(a + b, C(0)); } };
struct MulAddDst { template <typename C> static C of(C a, C b, C dst) { return a * b + dst; } };
struct FusedMulAdd { template <typename C> static C of(C a, C b, C dst) { return a * dst + b; } };
struct LeakyRelu { template <typename C> static C of(C a, C slope) { return a >= C(0) ? a : a * slope; } };

struct Exp { template <typename C> static C of(C a) { return std::exp(a); } };
struct Ln { template <typename C> static C of(C a) { return std::log(a); } };
struct Abs { template <typename C> static C of(C a) { return std::fabs(a); } };
struct Sqrt { template <typename C> static C of(C a) { return std::sqrt(a); } };
struct Relu { template <typename C> static C of(C a) { return std::max<C>(a, C(0)); } };
struct Not { template <typename C> static C of(C a) { return static_cast<C>(~a); } };
// The chip's approximations miss about 1e-4 in float and 2e-3 in half: be as far off, always upwards.
struct Rsqrt { template <typename C> static C of(C a) { return 1.0f / std::sqrt(a) * 1.0002f; } };
struct Reciprocal { template <typename C> static C of(C a) { return 1.0f / a * 1.0002f; } };

}  // namespace op

template <typename Op, typename T>
void binary(Instruction& instruction, const Shape& shape, const std::array<Operand, 3>& operands)
{
    execute<3>(instruction, shape, operands, false, [&](const Run<3>& run) {
        T* dst = reinterpret_cast<T*>(instruction.ub(run.address[0]));
        const T* a = reinterpret_cast<const T*>(instruction.ub(run.address[1]));
        const T* b = reinterpret_cast<const T*>(instruction.ub(run.address[2]));
        for (int i = 0; i < run.length; ++i) {
            dst[i] = store<T>(Op::template of<Compute<T>>(a[i], b[i]), finite(a[i]) && finite(b[i]), instruction);
        }
    });
}

/// dst = Op(src0, src1, dst), the fused forms that read their destination.
template <typename Op, typename T>
void fused(Instruction& instruction, const Shape& shape, const std::array<Operand, 3>& operands)
{
    execute<3>(instruction, shape, operands, true, [&](const Run<3>& run) {
        T* dst = reinterpret_cast<T*>(instruction.ub(run.address[0]));
        const T* a = reinterpret_cast<const T*>(instruction.ub(run.address[1]));
        const T* b = reinterpret_cast<const T*>(instruction.ub(run.address[2]));
        for (int i = 0; i < run.length; ++i) {
            const bool inputsFinite = finite(a[i]) && finite(b[i]) && finite(dst[i]);
            dst[i] = store<T>(Op::template of<Compute<T>>(a[i], b[i], dst[i]), inputsFinite, instruction);
        }
    });
}

template <typename F, typename T>
void unary(Instruction& instruction, const Shape& shape, const std::array<Operand, 2>& operands, F of)
{
    execute<2>(instruction, shape, operands, false, [&](const Run<2>& run) {
        T* dst = reinterpret_cast<T*>(instruction.ub(run.address[0]));
        const T* a = reinterpret_cast<const T*>(instruction.ub(run.address[1]));
        for (int i = 0; i < run.length; ++i) {
            dst[i] = store<T>(of(static_cast<Compute<T>>(a[i])), finite(a[i]), instruction);
        }
    });
}

template <typename T>
std::array<Operand, 3> operands3(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
                                 const AscendC::LocalTensor<T>& src1, const AscendC::BinaryRepeatParams& p,
                                 const Instruction& instruction)
{
    return {operandOf(dst, p.dstBlkStride, p.dstRepStride, "dst", instruction),
            operandOf(src0, p.src0BlkStride, p.src0RepStride, "src0", instruction),
            operandOf(src1, p.src1BlkStride, p.src1RepStride, "src1", instruction)};
}

template <typename T, typename U>
std::array<Operand, 2> operands2(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& src,
                                 const AscendC::UnaryRepeatParams& p, const Instruction& instruction)
{
    return {operandOf(dst, p.dstBlkStride, p.dstRepStride, "dst", instruction),
            operandOf(src, p.srcBlkStride, p.srcRepStride, "src", instruction)};
}

template <typename T>
constexpr bool isInt16 = isOneOf<T, int16_t, uint16_t>;
template <typename T>
constexpr bool isArithmetic = isFloating<T> || isOneOf<T, int16_t, int32_t>;

}  // namespace twin

namespace AscendC {

#define TWIN_BINARY(Name, allowed, function)                                                                           \
    template <typename T>                                                                                              \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, const int32_t& count, \
              At at = At::here())                                                                                      \
    {                                                                                                                  \
        static_assert(allowed<T>, #Name " has no such element type");                                                  \
        TWIN_COUNT(#Name);                                                                                             \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                       \
        twin::function<twin::op::Name, T>(instruction, twin::Shape::counted(count, at, #Name),                         \
                                        twin::operands3(dst, src0, src1, BinaryRepeatParams(), instruction));          \
    }                                                                                                                  \
    template <typename T>                                                                                              \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask,        \
              twin::Narrow<uint8_t> repeatTime, const BinaryRepeatParams& params, At at = At::here())                  \
    {                                                                                                                  \
        static_assert(allowed<T>, #Name " has no such element type");                                                  \
        TWIN_COUNT(#Name);                                                                                             \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                       \
        twin::function<twin::op::Name, T>(instruction,                                                                 \
                                        twin::Shape::masked(mask, repeatTime, twin::lanesOf<T>, at, #Name),            \
                                        twin::operands3(dst, src0, src1, params, instruction));                        \
    }                                                                                                                  \
    template <typename T>                                                                                              \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask[],      \
              twin::Narrow<uint8_t> repeatTime, const BinaryRepeatParams& params, At at = At::here())                  \
    {                                                                                                                  \
        static_assert(allowed<T>, #Name " has no such element type");                                                  \
        TWIN_COUNT(#Name);                                                                                             \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                       \
        const uint64_t* bits = mask;                                                                                   \
        twin::function<twin::op::Name, T>(instruction,                                                                 \
                                        twin::Shape::masked(bits, repeatTime, twin::lanesOf<T>, at, #Name),            \
                                        twin::operands3(dst, src0, src1, params, instruction));                        \
    }

TWIN_BINARY(Add, twin::isArithmetic, binary)
TWIN_BINARY(Sub, twin::isArithmetic, binary)
TWIN_BINARY(Mul, twin::isArithmetic, binary)
TWIN_BINARY(Div, twin::isFloating, binary)
TWIN_BINARY(Max, twin::isArithmetic, binary)
TWIN_BINARY(Min, twin::isArithmetic, binary)
TWIN_BINARY(And, twin::isInt16, binary)
TWIN_BINARY(Or, twin::isInt16, binary)
TWIN_BINARY(AddRelu, twin::isFloating, binary)
TWIN_BINARY(MulAddDst, twin::isFloating, fused)
TWIN_BINARY(FusedMulAdd, twin::isFloating, fused)
#undef TWIN_BINARY

#define TWIN_UNARY_FORMS(Name, allowed, parameters, function)                                                          \
    template <typename T>                                                                                              \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, parameters const int32_t& count,                   \
              At at = At::here())                                                                                      \
    {                                                                                                                  \
        static_assert(allowed<T>, #Name " has no such element type");                                                  \
        TWIN_COUNT(#Name);                                                                                             \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                       \
        const auto of = function;                                                                                      \
        twin::unary<decltype(of), T>(instruction, twin::Shape::counted(count, at, #Name),                              \
                                     twin::operands2(dst, src, UnaryRepeatParams(), instruction), of);                 \
    }                                                                                                                  \
    template <typename T>                                                                                              \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, parameters uint64_t mask,                          \
              twin::Narrow<uint8_t> repeatTime, const UnaryRepeatParams& params, At at = At::here())                   \
    {                                                                                                                  \
        static_assert(allowed<T>, #Name " has no such element type");                                                  \
        TWIN_COUNT(#Name);                                                                                             \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                       \
        const auto of = function;                                                                                      \
        twin::unary<decltype(of), T>(instruction, twin::Shape::masked(mask, repeatTime, twin::lanesOf<T>, at, #Name),  \
                                     twin::operands2(dst, src, params, instruction), of);                              \
    }                                                                                                                  \
    template <typename T>                                                                                              \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, parameters uint64_t mask[],                        \
              twin::Narrow<uint8_t> repeatTime, const UnaryRepeatParams& params, At at = At::here())                   \
    {                                                                                                                  \
        static_assert(allowed<T>, #Name " has no such element type");                                                  \
        TWIN_COUNT(#Name);                                                                                             \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                       \
        const auto of = function;                                                                                      \
        const uint64_t* bits = mask;                                                                                   \
        twin::unary<decltype(of), T>(instruction, twin::Shape::masked(bits, repeatTime, twin::lanesOf<T>, at, #Name),  \
                                     twin::operands2(dst, src, params, instruction), of);                              \
    }

#define TWIN_NOTHING
#define TWIN_UNARY(Name, allowed)                                                                                      \
    TWIN_UNARY_FORMS(Name, allowed, TWIN_NOTHING, [](twin::Compute<T> a) { return twin::op::Name::of(a); })
#define TWIN_COMMA ,
#define TWIN_SCALAR(Name, Op, allowed)                                                                                 \
    TWIN_UNARY_FORMS(Name, allowed, const T& scalarValue TWIN_COMMA,                                                   \
                     [s = static_cast<twin::Compute<T>>(scalarValue)](twin::Compute<T> a) {                            \
                         return twin::op::Op::template of<twin::Compute<T>>(a TWIN_COMMA s);                           \
                     })

TWIN_UNARY(Exp, twin::isFloating)
TWIN_UNARY(Ln, twin::isFloating)
TWIN_UNARY(Abs, twin::isFloating)
TWIN_UNARY(Sqrt, twin::isFloating)
TWIN_UNARY(Relu, twin::isFloating)
TWIN_UNARY(Rsqrt, twin::isFloating)
TWIN_UNARY(Reciprocal, twin::isFloating)
TWIN_UNARY(Not, twin::isInt16)
TWIN_SCALAR(Adds, Add, twin::isArithmetic)
TWIN_SCALAR(Muls, Mul, twin::isArithmetic)
TWIN_SCALAR(Maxs, Max, twin::isArithmetic)
TWIN_SCALAR(Mins, Min, twin::isArithmetic)
TWIN_SCALAR(LeakyRelu, LeakyRelu, twin::isFloating)
#undef TWIN_SCALAR
#undef TWIN_UNARY
#undef TWIN_UNARY_FORMS
#undef TWIN_NOTHING
#undef TWIN_COMMA

}  // namespace AscendC
