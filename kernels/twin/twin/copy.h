// DataCopy and DataCopyPad between global memory and UB, and DataCopy inside UB.
#pragma once

#include "tensor.h"

namespace twin {

constexpr int64_t kMaxBlockCount = 4095;
constexpr int64_t kMaxPadBlockBytes = 2097151;
constexpr int64_t kMaxPadBytes = 32;

/// `rows` blocks: bytes moved, distances between block starts on both sides, and what each block takes in UB.
struct CopyPlan {
    int64_t rows;
    int64_t bytes;
    int64_t gmStep;
    int64_t ubStep;
    int64_t leftBytes;   // padding in front of the block in UB
    int64_t rightBytes;  // padding behind it
    int64_t ubRow;       // bytes of UB that the hardware writes or owns for each block
};

inline CopyPlan contiguous(int64_t bytes, const Instruction& instruction)
{
    if (bytes <= 0 || bytes % kBlockBytes != 0) {
        fail(instruction.at(), "copy-length", "%s: %lld bytes, not a positive multiple of 32: the rest is not copied",
             instruction.name(), static_cast<long long>(bytes));
    }
    return CopyPlan{1, bytes, 0, 0, 0, 0, bytes};
}

template <typename N>
void checkFits(const N& value, int64_t low, int64_t high, const char* what, const Instruction& instruction)
{
    if (!value.fits() || value.raw() < low || value.raw() > high) {
        fail(instruction.at(), "copy-params", "%s: %s is %lld, %lld to %lld are possible", instruction.name(), what,
             static_cast<long long>(value.raw()), static_cast<long long>(low), static_cast<long long>(high));
    }
}

inline CopyPlan blocks(const AscendC::DataCopyParams& p, bool toUb, const Instruction& instruction)
{
    checkFits(p.blockCount, 1, kMaxBlockCount, "blockCount", instruction);
    checkFits(p.blockLen, 1, UINT16_MAX, "blockLen", instruction);
    checkFits(p.srcStride, 0, UINT16_MAX, "srcStride", instruction);
    checkFits(p.dstStride, 0, UINT16_MAX, "dstStride", instruction);
    const int64_t bytes = p.blockLen.raw() * kBlockBytes;
    const int64_t source = bytes + p.srcStride.raw() * kBlockBytes;
    const int64_t target = bytes + p.dstStride.raw() * kBlockBytes;
    return CopyPlan{p.blockCount.raw(), bytes, toUb ? source : target, toUb ? target : source, 0, 0, bytes};
}

inline CopyPlan padBlocks(const AscendC::DataCopyExtParams& p, bool toUb, int64_t left, int64_t right,
                          const Instruction& instruction)
{
    checkFits(p.blockCount, 1, kMaxBlockCount, "blockCount", instruction);
    checkFits(p.blockLen, 1, kMaxPadBlockBytes, "blockLen", instruction);
    checkFits(p.srcStride, 0, UINT32_MAX, "srcStride", instruction);
    checkFits(p.dstStride, 0, UINT32_MAX, "dstStride", instruction);
    const int64_t row = (left + p.blockLen.raw() + right + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    const int64_t gmGap = toUb ? p.srcStride.raw() : p.dstStride.raw();
    const int64_t ubGap = (toUb ? p.dstStride.raw() : p.srcStride.raw()) * kBlockBytes;
    return CopyPlan{p.blockCount.raw(), p.blockLen.raw(), p.blockLen.raw() + gmGap, row + ubGap, left, right, row};
}

/// Global memory to UB. Bytes of a row that are neither data nor padding are unknown afterwards.
template <typename T>
void loadUb(Instruction& instruction, const AscendC::LocalTensor<T>& dst, const AscendC::GlobalTensor<T>& src,
            const CopyPlan& plan, T padding)
{
    checkView(dst.view(), (plan.rows - 1) * plan.ubStep + plan.ubRow, kBlockBytes, "dst", instruction);
    for (int64_t row = 0; row < plan.rows; ++row) {
        uint64_t offset = 0;
        GlobalMemory& memory = src.locate(row * plan.gmStep, plan.bytes, instruction, offset);
        instruction.checkGmRead(memory, offset, plan.bytes);
        const uint64_t address = static_cast<uint64_t>(dst.view().address + row * plan.ubStep);
        instruction.checkUbWrite(address, plan.ubRow);
        uint8_t* bytes = instruction.ub(address);
        std::memset(bytes, 0xff, static_cast<size_t>(plan.ubRow));
        for (int64_t i = 0; i < plan.leftBytes; i += sizeof(T)) {
            std::memcpy(bytes + i, &padding, sizeof(T));
        }
        std::memcpy(bytes + plan.leftBytes, memory.data + offset, static_cast<size_t>(plan.bytes));
        for (int64_t i = 0; i < plan.rightBytes; i += sizeof(T)) {
            std::memcpy(bytes + plan.leftBytes + plan.bytes + i, &padding, sizeof(T));
        }
        instruction.noteGmRead(memory, offset, plan.bytes);
        instruction.noteUbWrite(address, plan.ubRow, false);
        instruction.noteUbWrite(address, plan.leftBytes + plan.bytes + plan.rightBytes);
        memory.traffic.readByVector += static_cast<uint64_t>(plan.bytes);
    }
}

template <typename T>
void storeGm(Instruction& instruction, const AscendC::GlobalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
             const CopyPlan& plan)
{
    checkView(src.view(), (plan.rows - 1) * plan.ubStep + plan.bytes, kBlockBytes, "src", instruction);
    for (int64_t row = 0; row < plan.rows; ++row) {
        uint64_t offset = 0;
        GlobalMemory& memory = dst.locate(row * plan.gmStep, plan.bytes, instruction, offset);
        const uint64_t address = static_cast<uint64_t>(src.view().address + row * plan.ubStep);
        instruction.checkUbRead(address, plan.bytes);
        instruction.checkGmWrite(memory, offset, plan.bytes);
        std::memcpy(memory.data + offset, instruction.ub(address), static_cast<size_t>(plan.bytes));
        instruction.noteUbRead(address, plan.bytes);
        instruction.noteGmWrite(memory, offset, plan.bytes);
        memory.traffic.writtenByVector += static_cast<uint64_t>(plan.bytes);
    }
}

/// UB to UB runs on the vector pipe.
template <typename T>
void moveUb(Instruction& instruction, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
            int64_t rows, int64_t bytes, int64_t dstStep, int64_t srcStep)
{
    const int64_t dstBytes = (rows - 1) * dstStep + bytes;
    const int64_t srcBytes = (rows - 1) * srcStep + bytes;
    checkView(dst.view(), dstBytes, kBlockBytes, "dst", instruction);
    checkView(src.view(), srcBytes, kBlockBytes, "src", instruction);
    refuseOverlap(dst.view(), dstBytes, src.view(), srcBytes, "dst overlaps src", instruction);
    for (int64_t row = 0; row < rows; ++row) {
        const uint64_t to = static_cast<uint64_t>(dst.view().address + row * dstStep);
        const uint64_t from = static_cast<uint64_t>(src.view().address + row * srcStep);
        instruction.checkUbRead(from, bytes);
        instruction.checkUbWrite(to, bytes);
        std::memcpy(instruction.ub(to), instruction.ub(from), static_cast<size_t>(bytes));
        instruction.noteUbRead(from, bytes);
        instruction.noteUbWrite(to, bytes);
    }
}

template <typename T>
constexpr bool isCopyable = isOneOf<T, half, bfloat16_t> || (std::is_arithmetic_v<T> && sizeof(T) <= 4);
/// What DataCopyPad moves: 64-bit elements too, padded with zeros.
template <typename T>
constexpr bool isPadCopyable = isCopyable<T> || isOneOf<T, int64_t, uint64_t>;

}  // namespace twin

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count, At at = At::here())
{
    static_assert(twin::isCopyable<T>, "DataCopy has no such element type");
    TWIN_COUNT("DataCopy");
    twin::Instruction instruction("DataCopy", twin::Pipe::MTE2, at);
    twin::loadUb(instruction, dst, src, twin::contiguous(int64_t{count} * sizeof(T), instruction), T(0));
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& params, At at = At::here())
{
    static_assert(twin::isCopyable<T>, "DataCopy has no such element type");
    TWIN_COUNT("DataCopy");
    twin::Instruction instruction("DataCopy", twin::Pipe::MTE2, at);
    twin::loadUb(instruction, dst, src, twin::blocks(params, true, instruction), T(0));
}

template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count, At at = At::here())
{
    static_assert(twin::isCopyable<T>, "DataCopy has no such element type");
    TWIN_COUNT("DataCopy");
    twin::Instruction instruction("DataCopy", twin::Pipe::MTE3, at);
    twin::storeGm(instruction, dst, src, twin::contiguous(int64_t{count} * sizeof(T), instruction));
}

template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params, At at = At::here())
{
    static_assert(twin::isCopyable<T>, "DataCopy has no such element type");
    TWIN_COUNT("DataCopy");
    twin::Instruction instruction("DataCopy", twin::Pipe::MTE3, at);
    twin::storeGm(instruction, dst, src, twin::blocks(params, false, instruction));
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count, At at = At::here())
{
    static_assert(twin::isCopyable<T>, "DataCopy has no such element type");
    TWIN_COUNT("DataCopy");
    twin::Instruction instruction("DataCopy", twin::Pipe::V, at);
    const twin::CopyPlan plan = twin::contiguous(int64_t{count} * sizeof(T), instruction);
    twin::moveUb(instruction, dst, src, 1, plan.bytes, 0, 0);
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params, At at = At::here())
{
    static_assert(twin::isCopyable<T>, "DataCopy has no such element type");
    TWIN_COUNT("DataCopy");
    twin::Instruction instruction("DataCopy", twin::Pipe::V, at);
    const twin::CopyPlan plan = twin::blocks(params, true, instruction);
    twin::moveUb(instruction, dst, src, plan.rows, plan.bytes, plan.ubStep, plan.gmStep);
}

/// Rows of any byte length from global memory; each row starts a new 32-byte block in UB.
template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& params,
                 const DataCopyPadExtParams<T>& pad, At at = At::here())
{
    static_assert(twin::isPadCopyable<T>, "DataCopyPad has no such element type");
    TWIN_COUNT("DataCopyPad");
    twin::Instruction instruction("DataCopyPad", twin::Pipe::MTE2, at);
    twin::require(twin::device().padCopy, at, "DataCopyPad", "does not exist on this chip");
    const int64_t left = pad.leftPadding.raw() * static_cast<int64_t>(sizeof(T));
    const int64_t right = pad.rightPadding.raw() * static_cast<int64_t>(sizeof(T));
    if (left < 0 || right < 0 || left > twin::kMaxPadBytes || right > twin::kMaxPadBytes) {
        twin::fail(at, "pad-size", "DataCopyPad: %lld bytes left, %lld right; at most 32 each",
                   static_cast<long long>(left), static_cast<long long>(right));
    }
    if (!pad.isPad && (left != 0 || right != 0)) {
        twin::fail(at, "pad-size", "DataCopyPad: padding lengths without isPad have no defined value");
    }
    if (sizeof(T) == 8 && pad.paddingValue != T(0)) {
        twin::fail(at, "pad-size", "DataCopyPad: 64-bit elements are padded with 0 only");
    }
    twin::loadUb(instruction, dst, src, twin::padBlocks(params, true, left, right, instruction), pad.paddingValue);
}

template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& params,
                 At at = At::here())
{
    static_assert(twin::isPadCopyable<T>, "DataCopyPad has no such element type");
    TWIN_COUNT("DataCopyPad");
    twin::Instruction instruction("DataCopyPad", twin::Pipe::MTE3, at);
    twin::require(twin::device().padCopy, at, "DataCopyPad", "does not exist on this chip");
    twin::storeGm(instruction, dst, src, twin::padBlocks(params, false, 0, 0, instruction));
}

}  // namespace AscendC
