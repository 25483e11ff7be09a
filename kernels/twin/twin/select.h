// Compare, CompareScalar and Select: one bit an element, least significant bit first.
#pragma once

#include "vector.h"

namespace twin {

inline bool compared(float a, float b, AscendC::CMPMODE mode)
{
    using AscendC::CMPMODE;
    switch (mode) {
        case CMPMODE::LT: return a < b;
        case CMPMODE::GT: return a > b;
        case CMPMODE::EQ: return a == b;
        case CMPMODE::LE: return a <= b;
        case CMPMODE::GE: return a >= b;
        case CMPMODE::NE: break;
    }
    return a != b;
}

/// Compares `count` elements with `other(i)` and writes count/8 bytes of bits.
template <typename T, typename F>
void compareBits(Instruction& instruction, const UbView& dst, const UbView& src, const UbView* second, int64_t count,
                 AscendC::CMPMODE mode, F other)
{
    const At at = instruction.at();
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (count <= 0 || bytes % kVectorBytes != 0) {
        fail(at, "compare-count", "%s: %lld elements are %lld bytes, not a multiple of %d: the rest would be skipped",
             instruction.name(), static_cast<long long>(count), static_cast<long long>(bytes), kVectorBytes);
    }
    checkView(src, bytes, kBlockBytes, "src0", instruction);
    checkView(dst, count / 8, kBlockBytes, "dst", instruction);
    refuseOverlap(dst, count / 8, src, bytes, "the bits lie on the compared elements", instruction);
    instruction.checkUbRead(src.address, bytes);
    if (second != nullptr) {
        checkView(*second, bytes, kBlockBytes, "src1", instruction);
        refuseOverlap(dst, count / 8, *second, bytes, "the bits lie on the compared elements", instruction);
        instruction.checkUbRead(second->address, bytes);
    }
    instruction.checkUbWrite(dst.address, count / 8);
    const T* values = reinterpret_cast<const T*>(instruction.ub(src.address));
    uint8_t* bits = instruction.ub(dst.address);
    for (int64_t i = 0; i < count; i += 8) {
        uint8_t byte = 0;
        for (int bit = 0; bit < 8; ++bit) {
            const bool set = compared(static_cast<float>(values[i + bit]), other(i + bit), mode);
            byte = static_cast<uint8_t>(byte | (set ? 1u << bit : 0u));
        }
        bits[i / 8] = byte;
    }
    instruction.noteUbRead(src.address, bytes);
    if (second != nullptr) {
        instruction.noteUbRead(second->address, bytes);
    }
    instruction.noteUbWrite(dst.address, count / 8);
}

template <typename T, typename F>
void selectBits(Instruction& instruction, const UbView& dst, const UbView& mask, const UbView& src0,
                const UbView* src1, int64_t count, F other)
{
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
    const uint64_t maskBytes = static_cast<uint64_t>(count + 7) / 8;
    if (count <= 0) {
        fail(instruction.at(), "count", "Select: count %lld", static_cast<long long>(count));
    }
    checkView(dst, static_cast<int64_t>(bytes), kBlockBytes, "dst", instruction);
    checkView(src0, static_cast<int64_t>(bytes), kBlockBytes, "src0", instruction);
    checkView(mask, static_cast<int64_t>(maskBytes), kBlockBytes, "selMask", instruction);
    refuseOverlap(dst, bytes, mask, maskBytes, "the bits lie on the destination", instruction);
    instruction.checkUbRead(mask.address, maskBytes);
    for (const UbView* source : {&src0, src1}) {
        if (source == nullptr) {
            continue;
        }
        checkView(*source, static_cast<int64_t>(bytes), kBlockBytes, "src1", instruction);
        if (source->address != dst.address) {
            refuseOverlap(dst, bytes, *source, bytes, "a source overlaps the destination without being the same",
                          instruction);
        }
        instruction.checkUbRead(source->address, bytes);
    }
    instruction.checkUbWrite(dst.address, bytes);
    const uint8_t* bits = instruction.ub(mask.address);
    const T* first = reinterpret_cast<const T*>(instruction.ub(src0.address));
    T* out = reinterpret_cast<T*>(instruction.ub(dst.address));
    for (int64_t i = 0; i < count; ++i) {
        out[i] = (bits[i / 8] >> (i % 8)) & 1 ? first[i] : other(i);
    }
    instruction.noteUbRead(mask.address, maskBytes);
    instruction.noteUbRead(src0.address, bytes);
    if (src1 != nullptr) {
        instruction.noteUbRead(src1->address, bytes);
    }
    instruction.noteUbWrite(dst.address, bytes);
}

}  // namespace twin

namespace AscendC {

template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             uint32_t count, At at = At::here())
{
    static_assert(twin::isFloating<T> && std::is_same_v<U, uint8_t>, "Compare takes half or float and uint8_t bits");
    TWIN_COUNT("Compare");
    twin::Instruction instruction("Compare", twin::Pipe::V, at);
    const auto other = [&](int64_t i) {
        return static_cast<float>(reinterpret_cast<const T*>(instruction.ub(src1.view().address))[i]);
    };
    twin::compareBits<T>(instruction, dst.view(), src0.view(), &src1.view(), count, cmpMode, other);
}

template <typename T, typename U>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   uint32_t count, At at = At::here())
{
    static_assert(twin::isFloating<T> && std::is_same_v<U, uint8_t>, "Compare takes half or float and uint8_t bits");
    TWIN_COUNT("CompareScalar");
    twin::Instruction instruction("CompareScalar", twin::Pipe::V, at);
    twin::compareBits<T>(instruction, dst.view(), src0.view(), nullptr, count, cmpMode,
                         [scalar = static_cast<float>(src1Scalar)](int64_t) { return scalar; });
}

/// The newer name of CompareScalar.
template <typename T, typename U>
void Compares(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
              uint32_t count, At at = At::here())
{
    CompareScalar(dst, src0, src1Scalar, cmpMode, count, at);
}

/// Bit set: src0, else src1.
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint32_t count, At at = At::here())
{
    static_assert(twin::isFloating<T> && std::is_same_v<U, uint8_t>, "Select takes half or float and uint8_t bits");
    TWIN_COUNT("Select");
    twin::Instruction instruction("Select", twin::Pipe::V, at);
    if (selMode != SELMODE::VSEL_TENSOR_TENSOR_MODE) {
        twin::fail(at, "select-mode", "Select of two tensors with a count needs VSEL_TENSOR_TENSOR_MODE");
    }
    twin::selectBits<T>(instruction, dst.view(), selMask.view(), src0.view(), &src1.view(), count, [&](int64_t i) {
        return reinterpret_cast<const T*>(instruction.ub(src1.view().address))[i];
    });
}

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint32_t count, At at = At::here())
{
    static_assert(twin::isFloating<T> && std::is_same_v<U, uint8_t>, "Select takes half or float and uint8_t bits");
    TWIN_COUNT("Select");
    twin::Instruction instruction("Select", twin::Pipe::V, at);
    if (selMode != SELMODE::VSEL_TENSOR_SCALAR_MODE) {
        twin::fail(at, "select-mode", "Select with a scalar needs VSEL_TENSOR_SCALAR_MODE");
    }
    twin::selectBits<T>(instruction, dst.view(), selMask.view(), src0.view(), nullptr, count,
                        [src1](int64_t) { return src1; });
}

}  // namespace AscendC
