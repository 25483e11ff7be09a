// Duplicate, Axpy, Brcb and Cast: vector instructions whose operands differ in kind.
#pragma once

#include <limits>

#include "vector.h"

namespace twin {

template <typename T>
void duplicate(Instruction& instruction, const Shape& shape, const Operand& dst, T value)
{
    execute<1>(instruction, shape, {dst}, false, [&](const Run<1>& run) {
        std::fill_n(reinterpret_cast<T*>(instruction.ub(run.address[0])), run.length, value);
    });
}

template <typename T, typename U>
void axpy(Instruction& instruction, const Shape& shape, const std::array<Operand, 2>& operands, U scalar)
{
    execute<2>(instruction, shape, operands, true, [&](const Run<2>& run) {
        T* dst = reinterpret_cast<T*>(instruction.ub(run.address[0]));
        const U* src = reinterpret_cast<const U*>(instruction.ub(run.address[1]));
        for (int i = 0; i < run.length; ++i) {
            const bool inputsFinite = finite(src[i]) && finite(dst[i]);
            dst[i] = store<T>(static_cast<float>(src[i]) * static_cast<float>(scalar) + static_cast<float>(dst[i]),
                              inputsFinite, instruction);
        }
    });
}

template <typename T>
constexpr bool isDuplicable = isArithmetic<T> || isInt16<T> || isOneOf<T, uint32_t, bfloat16_t>;

template <typename T, typename U>
constexpr bool axpyExists = isFloating<T> && (isOneOf<U, T> || (isOneOf<T, float> && isOneOf<U, half>));

/// Rounds to an integer value. CAST_ODD does not exist for integers.
inline double roundTo(double value, RoundMode mode)
{
    switch (mode) {
        case RoundMode::CAST_FLOOR: return std::floor(value);
        case RoundMode::CAST_CEIL: return std::ceil(value);
        case RoundMode::CAST_ROUND: return std::round(value);
        case RoundMode::CAST_TRUNC: return std::trunc(value);
        default: return std::nearbyint(value);
    }
}

template <typename D, typename S>
D castTo(S value, RoundMode mode, const Instruction& instruction)
{
    if constexpr (std::is_same_v<D, half>) {
        half stored;
        stored.bits = floatToHalfBits(static_cast<float>(value), mode);
        checkOverflow(stored, static_cast<float>(value), finite(value), instruction);
        return stored;
    } else if constexpr (std::is_same_v<D, bfloat16_t>) {
        bfloat16_t stored;
        stored.bits = floatToBfloatBits(static_cast<float>(value), mode);
        return stored;
    } else if constexpr (std::is_integral_v<D>) {
        const double rounded = roundTo(static_cast<double>(static_cast<float>(value)), mode);
        const double low = static_cast<double>(std::numeric_limits<D>::min());
        const double high = static_cast<double>(std::numeric_limits<D>::max());
        if (!(rounded >= low && rounded <= high)) {
            fail(instruction.at(), "cast-range", "Cast: %g does not fit the integer type", rounded);
        }
        return static_cast<D>(rounded);
    } else if constexpr (std::is_same_v<D, S>) {
        return static_cast<D>(roundTo(static_cast<double>(value), mode));
    } else {
        return static_cast<D>(value);
    }
}

/// The type pairs of Cast that are modelled.
template <typename D, typename S>
constexpr bool castExists =
    (isOneOf<D, float> && isOneOf<S, half, bfloat16_t, int32_t, int16_t, int64_t, float>) ||
    (isOneOf<D, half> && isOneOf<S, float, uint8_t, int8_t, int16_t>) ||
    (isOneOf<D, bfloat16_t> && isOneOf<S, float>) || (isOneOf<D, int32_t, int16_t> && isOneOf<S, float, half>) ||
    (isOneOf<D, uint8_t, int8_t> && isOneOf<S, half>);

/// Exact conversions take CAST_NONE only; conversions to integers must name a rounding.
template <typename D, typename S>
void checkCastMode(RoundMode mode, const Instruction& instruction)
{
    const At at = instruction.at();
    constexpr bool inPlace = std::is_same_v<D, S>;
    constexpr bool fromInt64 = std::is_same_v<S, int64_t>;
    constexpr bool widens = std::is_same_v<D, float> && !std::is_same_v<S, int32_t> && !fromInt64 && !inPlace;
    constexpr bool fromByte = sizeof(S) == 1;
    if ((widens || fromByte) && mode != RoundMode::CAST_NONE) {
        fail(at, "cast-mode", "Cast: an exact conversion takes CAST_NONE");
    }
    constexpr bool fromWideInteger = isOneOf<D, float> && isOneOf<S, int32_t>;
    if (fromWideInteger && mode != RoundMode::CAST_NONE && mode != RoundMode::CAST_RINT) {
        fail(at, "cast-mode", "Cast: int32 to float is modelled with CAST_NONE and CAST_RINT");
    }
    if ((inPlace || fromInt64) && (mode == RoundMode::CAST_NONE || mode == RoundMode::CAST_ODD)) {
        fail(at, "cast-mode", "Cast: this conversion needs RINT, FLOOR, CEIL, ROUND or TRUNC");
    }
    if (fromInt64 && mode != RoundMode::CAST_RINT) {
        fail(at, "cast-mode", "Cast: int64 to float is modelled with CAST_RINT");
    }
    if ((inPlace || fromInt64) && !device().castRounds) {
        fail(at, "not-on-device", "Cast of int64, and of float to float, does not exist on %s", device().family);
    }
    constexpr bool toWideInteger = std::is_same_v<D, int32_t> || std::is_same_v<D, int16_t>;
    const bool named = mode != RoundMode::CAST_NONE && mode != RoundMode::CAST_ODD;
    if ((toWideInteger || std::is_same_v<D, bfloat16_t>) && !named) {
        fail(at, "cast-mode", "Cast: this conversion needs RINT, FLOOR, CEIL, ROUND or TRUNC");
    }
    constexpr bool odd = std::is_same_v<D, half> && std::is_same_v<S, float>;
    if (mode == RoundMode::CAST_ODD && !odd) {
        fail(at, "cast-mode", "Cast: CAST_ODD exists for float to half only");
    }
    if (odd && !device().castRounds && mode != RoundMode::CAST_NONE && mode != RoundMode::CAST_ODD) {
        fail(at, "not-on-device", "Cast float to half has CAST_NONE and CAST_ODD only on %s", device().family);
    }
    if (std::is_same_v<D, bfloat16_t> || std::is_same_v<S, bfloat16_t>) {
        require(device().bfloat16, at, "Cast", "no bfloat16 on this chip");
    }
}

template <typename D, typename S>
void cast(Instruction& instruction, const Shape& shape, const std::array<Operand, 2>& operands, RoundMode mode)
{
    checkCastMode<D, S>(mode, instruction);
    execute<2>(instruction, shape, operands, false, [&](const Run<2>& run) {
        D* dst = reinterpret_cast<D*>(instruction.ub(run.address[0]));
        const S* src = reinterpret_cast<const S*>(instruction.ub(run.address[1]));
        for (int i = 0; i < run.length; ++i) {
            dst[i] = castTo<D, S>(src[i], mode, instruction);
        }
    });
}

}  // namespace twin

namespace AscendC {

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count, At at = At::here())
{
    static_assert(twin::isDuplicable<T>, "Duplicate has no such element type");
    TWIN_COUNT("Duplicate");
    twin::Instruction instruction("Duplicate", twin::Pipe::V, at);
    twin::duplicate<T>(instruction, twin::Shape::counted(count, at, "Duplicate"), twin::operandOf(dst, "dst"),
                       scalarValue);
}

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask, twin::Narrow<uint8_t> repeatTime,
               twin::Narrow<uint16_t> dstBlockStride, twin::Narrow<uint8_t> dstRepeatStride, At at = At::here())
{
    static_assert(twin::isDuplicable<T>, "Duplicate has no such element type");
    TWIN_COUNT("Duplicate");
    twin::Instruction instruction("Duplicate", twin::Pipe::V, at);
    twin::duplicate<T>(instruction, twin::Shape::masked(mask, repeatTime, twin::lanesOf<T>, at, "Duplicate"),
                       twin::operandOf(dst, dstBlockStride, dstRepeatStride, "dst", instruction), scalarValue);
}

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask[], twin::Narrow<uint8_t> repeatTime,
               twin::Narrow<uint16_t> dstBlockStride, twin::Narrow<uint8_t> dstRepeatStride, At at = At::here())
{
    static_assert(twin::isDuplicable<T>, "Duplicate has no such element type");
    TWIN_COUNT("Duplicate");
    twin::Instruction instruction("Duplicate", twin::Pipe::V, at);
    const uint64_t* bits = mask;
    twin::duplicate<T>(instruction, twin::Shape::masked(bits, repeatTime, twin::lanesOf<T>, at, "Duplicate"),
                       twin::operandOf(dst, dstBlockStride, dstRepeatStride, "dst", instruction), scalarValue);
}

/// dst += src * scalar.
template <typename T, typename U>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, const int32_t& count,
          At at = At::here())
{
    static_assert(twin::axpyExists<T, U>, "Axpy has no such element types");
    TWIN_COUNT("Axpy");
    twin::Instruction instruction("Axpy", twin::Pipe::V, at);
    twin::axpy<T, U>(instruction, twin::Shape::counted(count, at, "Axpy"),
                     twin::operands2(dst, src, UnaryRepeatParams(), instruction), scalarValue);
}

template <typename T, typename U>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, uint64_t mask,
          twin::Narrow<uint8_t> repeatTime, const UnaryRepeatParams& params, At at = At::here())
{
    static_assert(twin::axpyExists<T, U>, "Axpy has no such element types");
    TWIN_COUNT("Axpy");
    twin::Instruction instruction("Axpy", twin::Pipe::V, at);
    twin::axpy<T, U>(instruction, twin::Shape::masked(mask, repeatTime, twin::lanesOf<T>, at, "Axpy"),
                     twin::operands2(dst, src, params, instruction), scalarValue);
}

template <typename D, typename S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& roundMode, const uint32_t count,
          At at = At::here())
{
    static_assert(twin::castExists<D, S>, "this Cast is not modelled");
    TWIN_COUNT("Cast");
    twin::Instruction instruction("Cast", twin::Pipe::V, at);
    twin::cast<D, S>(instruction, twin::Shape::counted(count, at, "Cast"),
                     twin::operands2(dst, src, UnaryRepeatParams(), instruction), roundMode);
}

template <typename D, typename S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& roundMode, const uint64_t mask,
          twin::Narrow<uint8_t> repeatTime, const UnaryRepeatParams& params, At at = At::here())
{
    static_assert(twin::castExists<D, S>, "this Cast is not modelled");
    TWIN_COUNT("Cast");
    twin::Instruction instruction("Cast", twin::Pipe::V, at);
    constexpr int lanes = twin::kVectorBytes / static_cast<int>(std::max(sizeof(D), sizeof(S)));
    twin::cast<D, S>(instruction, twin::Shape::masked(mask, repeatTime, lanes, at, "Cast"),
                     twin::operands2(dst, src, params, instruction), roundMode);
}

/// Broadcast: each of 8 elements a repeat fills one 32-byte block of dst.
template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, twin::Narrow<uint8_t> repeatTime,
          const BrcbRepeatParams& params, At at = At::here())
{
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Brcb moves 16- or 32-bit elements");
    TWIN_COUNT("Brcb");
    twin::Instruction instruction("Brcb", twin::Pipe::V, at);
    if (repeatTime.raw() < 1 || !repeatTime.fits()) {
        twin::fail(at, "repeat", "Brcb: %lld repeats, 1 to 255 are possible", static_cast<long long>(repeatTime.raw()));
    }
    if (!params.dstBlkStride.fits() || !params.dstRepStride.fits() || params.dstBlkStride.raw() < 1) {
        twin::fail(at, "stride", "Brcb: block stride %lld, repeat stride %lld",
                   static_cast<long long>(params.dstBlkStride.raw()),
                   static_cast<long long>(params.dstRepStride.raw()));
    }
    const int64_t blocks = params.dstBlkStride.raw() * 7 + params.dstRepStride.raw() * (repeatTime.raw() - 1) + 1;
    if (repeatTime.raw() > 1 && params.dstBlkStride.raw() == 1 && params.dstRepStride.raw() < 8) {
        twin::fail(at, "destination-overlap", "Brcb: repeat stride %lld writes blocks again",
                   static_cast<long long>(params.dstRepStride.raw()));
    }
    const uint64_t sourceBytes = static_cast<uint64_t>(repeatTime.raw()) * 8 * sizeof(T);
    twin::checkView(dst.view(), blocks * twin::kBlockBytes, twin::kBlockBytes, "dst", instruction);
    twin::checkView(src.view(), static_cast<int64_t>(sourceBytes), twin::kBlockBytes, "src", instruction);
    instruction.checkUbRead(src.view().address, sourceBytes);
    std::vector<T> values(static_cast<size_t>(repeatTime.raw()) * 8);
    std::memcpy(values.data(), instruction.ub(src.view().address), sourceBytes);
    const auto target = [&](size_t i) {
        return static_cast<uint64_t>(dst.view().address +
                                     (static_cast<int64_t>(i / 8) * params.dstRepStride.raw() +
                                      static_cast<int64_t>(i % 8) * params.dstBlkStride.raw()) * twin::kBlockBytes);
    };
    for (size_t i = 0; i < values.size(); ++i) {
        const uint64_t at0 = target(i);
        const auto source = static_cast<uint64_t>(src.view().address);
        if (at0 < source + sourceBytes && source < at0 + twin::kBlockBytes) {
            twin::fail(at, "partial-overlap", "Brcb: dst overlaps src");
        }
        instruction.checkUbWrite(at0, twin::kBlockBytes);
    }
    instruction.noteUbRead(src.view().address, sourceBytes);
    for (size_t i = 0; i < values.size(); ++i) {
        std::fill_n(reinterpret_cast<T*>(instruction.ub(target(i))), twin::kBlockBytes / sizeof(T), values[i]);
        instruction.noteUbWrite(target(i), twin::kBlockBytes);
    }
}

}  // namespace AscendC
