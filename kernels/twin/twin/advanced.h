// Activation functions of the advanced API, in the form that names its temporary buffer.
#pragma once

#include "vector.h"

namespace twin {

/// `F` per element. The temporary buffer is overwritten; `overlapAllowed` says whether dst may be src.
template <typename T, typename F>
void activation(Instruction& instruction, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                const AscendC::LocalTensor<uint8_t>& temporary, int64_t count, int64_t minimum, bool overlapAllowed,
                F of)
{
    const At at = instruction.at();
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (count <= 0) {
        fail(at, "count", "%s: count %lld", instruction.name(), static_cast<long long>(count));
    }
    const int64_t room = temporary.view().length;
    if (room < minimum) {
        fail(at, "work-size", "%s: the temporary buffer has %lld bytes, %lld are needed", instruction.name(),
             static_cast<long long>(room), static_cast<long long>(minimum));
    }
    checkView(dst.view(), bytes, kBlockBytes, "dst", instruction);
    checkView(src.view(), bytes, kBlockBytes, "src", instruction);
    checkView(temporary.view(), room, kBlockBytes, "the temporary buffer", instruction);
    if (!overlapAllowed || dst.view().address != src.view().address) {
        refuseOverlap(dst.view(), bytes, src.view(), bytes, "dst overlaps src", instruction);
    }
    refuseOverlap(temporary.view(), room, src.view(), bytes, "the temporary buffer overlaps src", instruction);
    refuseOverlap(temporary.view(), room, dst.view(), bytes, "the temporary buffer overlaps dst", instruction);
    instruction.checkUbRead(src.view().address, bytes);
    instruction.checkUbWrite(dst.view().address, bytes);
    instruction.checkUbWrite(temporary.view().address, room);
    const T* values = reinterpret_cast<const T*>(instruction.ub(src.view().address));
    T* results = reinterpret_cast<T*>(instruction.ub(dst.view().address));
    for (int64_t i = 0; i < count; ++i) {
        results[i] = store<T>(of(static_cast<float>(values[i])), finite(values[i]), instruction);
    }
    instruction.noteUbRead(src.view().address, bytes);
    std::memset(instruction.ub(temporary.view().address), 0xff, static_cast<size_t>(room));
    instruction.noteUbWrite(temporary.view().address, room, false);
    instruction.noteUbWrite(dst.view().address, bytes);
}

/// Nothing is promised for angles beyond the largest half.
inline float periodic(float angle, float value)
{
    return std::fabs(angle) <= 65504.0f ? value : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace twin

namespace AscendC {

#define TWIN_ACTIVATION(Name, minimum, overlapAllowed, expression)                                                     \
    template <typename T>                                                                                              \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint8_t>& sharedTmpBuffer,       \
              const uint32_t calCount, At at = At::here())                                                             \
    {                                                                                                                  \
        static_assert(twin::isFloating<T>, #Name " takes half or float");                                              \
        TWIN_COUNT(#Name);                                                                                             \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                       \
        twin::activation(instruction, dst, src, sharedTmpBuffer, calCount, minimum, overlapAllowed,                    \
                         [](float x) { return expression; });                                                          \
    }

// The smallest temporary buffers that the toolkit accepts, in bytes.
TWIN_ACTIVATION(Erf, 384, false, std::erf(x))
TWIN_ACTIVATION(Tanh, 256, true, std::tanh(x))
TWIN_ACTIVATION(Sigmoid, 64, true, 1.0f / (1.0f + std::exp(-x)))
TWIN_ACTIVATION(Sin, (sizeof(T) == sizeof(float) ? 768 : 2048), false, twin::periodic(x, std::sin(x)))
TWIN_ACTIVATION(Cos, (sizeof(T) == sizeof(float) ? 768 : 2048), false, twin::periodic(x, std::cos(x)))
#undef TWIN_ACTIVATION

}  // namespace AscendC
