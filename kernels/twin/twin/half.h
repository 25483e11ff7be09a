// IEEE binary16 and bfloat16 with the chip's rounding modes. Values are computed in float and rounded once.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace AscendC {

enum class RoundMode {
    CAST_NONE = 0,
    CAST_RINT,
    CAST_FLOOR,
    CAST_CEIL,
    CAST_ROUND,
    CAST_TRUNC,
    CAST_ODD,
};

}  // namespace AscendC

namespace twin {

using AscendC::RoundMode;

inline uint32_t floatBits(float value)
{
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float bitsFloat(uint32_t bits)
{
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/// Drops `shift` low bits of a magnitude, rounding as `mode` asks. CAST_NONE rounds to nearest even.
inline uint32_t roundShift(uint32_t magnitude, int shift, bool negative, RoundMode mode)
{
    const uint32_t kept = shift > 31 ? 0 : magnitude >> shift;
    const uint32_t rest = shift > 31 ? magnitude : magnitude & ((1u << shift) - 1);
    if (rest == 0) {
        return kept;
    }
    const bool above = shift <= 31 && rest > (1u << (shift - 1));
    const bool tie = shift <= 31 && rest == (1u << (shift - 1));
    switch (mode) {
        case RoundMode::CAST_FLOOR: return kept + (negative ? 1 : 0);
        case RoundMode::CAST_CEIL: return kept + (negative ? 0 : 1);
        case RoundMode::CAST_ROUND: return kept + (above || tie ? 1 : 0);
        case RoundMode::CAST_TRUNC: return kept;
        case RoundMode::CAST_ODD: return kept | 1;
        case RoundMode::CAST_NONE:
        case RoundMode::CAST_RINT: break;
    }
    return kept + (above || (tie && (kept & 1)) ? 1 : 0);
}

inline uint16_t floatToHalfBits(float value, RoundMode mode = RoundMode::CAST_RINT)
{
    const uint32_t bits = floatBits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return static_cast<uint16_t>(sign | 0x7e00u);
    }
    if (magnitude >= 0x7f800000u) {
        return static_cast<uint16_t>(sign | 0x7c00u);
    }
    const int exponent = static_cast<int>(magnitude >> 23);
    uint32_t rounded;
    if (exponent >= 113) {  // 2^-14, the smallest normal half
        rounded = roundShift(magnitude - (112u << 23), 13, sign != 0, mode);
    } else {
        const uint32_t significand = exponent == 0 ? magnitude : (magnitude & 0x7fffffu) | 0x800000u;
        rounded = roundShift(significand, 126 - (exponent == 0 ? 1 : exponent), sign != 0, mode);
    }
    return static_cast<uint16_t>(sign | (rounded > 0x7c00u ? 0x7c00u : rounded));
}

inline float halfBitsToFloat(uint16_t bits)
{
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 31u;
    const uint32_t fraction = bits & 0x3ffu;
    if (exponent == 31) {
        return bitsFloat(sign | 0x7f800000u | (fraction << 13));
    }
    if (exponent == 0) {
        const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24
        return sign ? -magnitude : magnitude;
    }
    return bitsFloat(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

inline uint16_t floatToBfloatBits(float value, RoundMode mode = RoundMode::CAST_RINT)
{
    const uint32_t bits = floatBits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return static_cast<uint16_t>(sign | 0x7fc0u);
    }
    return static_cast<uint16_t>(sign | roundShift(magnitude, 16, sign != 0, mode));
}

inline float bfloatBitsToFloat(uint16_t bits) { return bitsFloat(static_cast<uint32_t>(bits) << 16); }

}  // namespace twin

/// The chip's 16-bit float. Arithmetic happens in float; storing rounds to nearest even.
struct half {
    uint16_t bits;

    half() = default;
    template <typename N, typename = std::enable_if_t<std::is_arithmetic_v<N>>>
    half(N value) : bits(twin::floatToHalfBits(static_cast<float>(value)))
    {
    }
    operator float() const { return twin::halfBitsToFloat(bits); }
};

/// bfloat16: the upper half of a float, rounded to nearest even.
struct bfloat16_t {
    uint16_t bits;

    bfloat16_t() = default;
    template <typename N, typename = std::enable_if_t<std::is_arithmetic_v<N>>>
    bfloat16_t(N value) : bits(twin::floatToBfloatBits(static_cast<float>(value)))
    {
    }
    operator float() const { return twin::bfloatBitsToFloat(bits); }
};
