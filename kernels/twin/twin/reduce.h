// Reductions: whole vector, one value a repeat, one value a block.
#pragma once

#include "vector.h"

namespace twin {

enum class Reduction { Sum, Max, Min };

/// Pairwise, as the chip's adder tree; halves are rounded after each addition.
template <typename T>
float sumTree(std::vector<float> values)
{
    while (values.size() > 1) {
        const size_t half = (values.size() + 1) / 2;
        for (size_t i = 0; i + half < values.size(); ++i) {
            values[i] = static_cast<float>(static_cast<T>(values[i] + values[i + half]));
        }
        values.resize(half);
    }
    return values[0];
}

template <typename T>
float reduceValues(const std::vector<float>& values, Reduction kind, const Instruction& instruction)
{
    if (kind == Reduction::Sum) {
        return sumTree<T>(values);
    }
    float best = values[0];
    for (const float value : values) {
        if (std::isinf(value) && !world().launch.allowInfiniteExtrema) {
            fail(instruction.at(), "infinite-extremum",
                 "%s: an infinity reaches the reduction; a row of them turns to NaN later. Use finite constants",
                 instruction.name());
        }
        best = kind == Reduction::Max ? op::Max::of(best, value) : op::Min::of(best, value);
    }
    return best;
}

/// One result for each group of `groupLanes` lanes a repeat; `outStep` elements between the repeats' results.
template <typename T>
void reduceRepeats(Instruction& instruction, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                   const Shape& shape, const Narrow<uint16_t>& dstStep, const Narrow<uint16_t>& srcBlk,
                   const Narrow<uint8_t>& srcRep, int groupLanes, Reduction kind)
{
    const At at = instruction.at();
    if (!dstStep.fits() || dstStep.raw() < 1) {
        fail(at, "stride", "%s: destination repeat stride %lld", instruction.name(),
             static_cast<long long>(dstStep.raw()));
    }
    const Operand source = operandOf(src, srcBlk, srcRep, "src", instruction);
    checkView(src.view(), extent(shape, source), kBlockBytes, "src", instruction);
    const int active = shape.endLane();
    const int groups = (active + groupLanes - 1) / groupLanes;
    const int perRepeat = lanesOf<T> / groupLanes;
    const int64_t outputs = (shape.repeats - 1) * dstStep.raw() * perRepeat + groups;
    const uint32_t alignment = std::min<uint32_t>(kBlockBytes, static_cast<uint32_t>(perRepeat * sizeof(T)));
    checkView(dst.view(), outputs * static_cast<int64_t>(sizeof(T)), alignment, "dst", instruction);
    const auto outAddress = [&](int64_t repeat, int group) {
        return static_cast<uint64_t>(dst.view().address) +
               static_cast<uint64_t>((repeat * dstStep.raw() * perRepeat + group) * static_cast<int64_t>(sizeof(T)));
    };
    const std::vector<Run<1>> runs = runsOf<1>(shape, {source});
    for (const Run<1>& run : runs) {
        const uint64_t bytes = static_cast<uint64_t>(run.length) * sizeof(T);
        instruction.checkUbRead(run.address[0], bytes);
        const uint64_t first = outAddress(0, 0);
        if (run.address[0] < first + static_cast<uint64_t>(outputs) * sizeof(T) && first < run.address[0] + bytes) {
            fail(at, "partial-overlap", "%s: dst overlaps src", instruction.name());
        }
    }
    std::vector<T> results;
    for (int64_t repeat = 0; repeat < shape.repeats; ++repeat) {
        std::vector<std::vector<float>> values(static_cast<size_t>(groups));
        for (const auto& [firstLane, length] : shape.lanes) {
            for (int lane = firstLane; lane < firstLane + length; ++lane) {
                const int64_t block = lane / source.lanesPerBlock();
                const int64_t address = source.view.address +
                                        (repeat * source.repeatStride + block * source.blockStride) * kBlockBytes +
                                        lane % source.lanesPerBlock() * static_cast<int64_t>(sizeof(T));
                values[static_cast<size_t>(lane / groupLanes)].push_back(
                    static_cast<float>(*reinterpret_cast<const T*>(instruction.ub(address))));
            }
        }
        for (int group = 0; group < groups; ++group) {
            const auto& lane = values[static_cast<size_t>(group)];
            if (lane.empty()) {
                fail(at, "mask", "%s: a block without active lanes has no result", instruction.name());
            }
            results.push_back(static_cast<T>(reduceValues<T>(lane, kind, instruction)));
            instruction.checkUbWrite(outAddress(repeat, group), sizeof(T));
        }
    }
    for (const Run<1>& run : runs) {
        instruction.noteUbRead(run.address[0], static_cast<uint64_t>(run.length) * sizeof(T));
    }
    for (size_t i = 0; i < results.size(); ++i) {
        const uint64_t address = outAddress(static_cast<int64_t>(i) / groups, static_cast<int>(i) % groups);
        std::memcpy(instruction.ub(address), &results[i], sizeof(T));
        instruction.noteUbWrite(address, sizeof(T));
    }
}

/// The count form with its work tensor of `workElements` elements, which holds nothing useful afterwards.
template <typename T>
void reduceCount(Instruction& instruction, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                 const AscendC::LocalTensor<T>& work, int64_t count, int64_t workElements, bool usesWork,
                 Reduction kind)
{
    if (count <= 0) {
        fail(instruction.at(), "count", "%s: count %lld", instruction.name(), static_cast<long long>(count));
    }
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    const int64_t workBytes =
        (workElements * static_cast<int64_t>(sizeof(T)) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    checkView(src.view(), bytes, kBlockBytes, "src", instruction);
    checkView(dst.view(), sizeof(T), sizeof(T), "dst", instruction);
    if (workBytes > work.view().length) {
        fail(instruction.at(), "work-size", "%s: the work tensor has %lld bytes, %lld are needed", instruction.name(),
             static_cast<long long>(work.view().length), static_cast<long long>(workBytes));
    }
    checkView(work.view(), workBytes, kBlockBytes, "work", instruction);
    instruction.checkUbRead(src.view().address, bytes);
    if (usesWork) {
        refuseOverlap(src.view(), bytes, work.view(), workBytes, "the work tensor lies on the source", instruction);
        instruction.checkUbWrite(work.view().address, workBytes);
    }
    instruction.checkUbWrite(dst.view().address, sizeof(T));
    const T* values = reinterpret_cast<const T*>(instruction.ub(src.view().address));
    std::vector<float> lanes(values, values + count);
    const T result = static_cast<T>(reduceValues<T>(lanes, kind, instruction));
    instruction.noteUbRead(src.view().address, bytes);
    if (usesWork) {
        std::memset(instruction.ub(work.view().address), 0xff, static_cast<size_t>(workBytes));
        instruction.noteUbWrite(work.view().address, workBytes, false);
    }
    std::memcpy(instruction.ub(dst.view().address), &result, sizeof(T));
    instruction.noteUbWrite(dst.view().address, sizeof(T));
}

}  // namespace twin

namespace AscendC {

/// Sum of `count` elements into dst[0]. 910B does not use the work tensor here, 310P does.
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t count, At at = At::here())
{
    static_assert(twin::isFloating<T>, "ReduceSum takes half or float");
    TWIN_COUNT("ReduceSum");
    twin::Instruction instruction("ReduceSum", twin::Pipe::V, at);
    const int64_t work = (count + twin::lanesOf<T> - 1) / twin::lanesOf<T>;
    twin::reduceCount(instruction, dst, src, sharedTmpBuffer, count, work, !twin::device().splitCores,
                      twin::Reduction::Sum);
}

#define TWIN_REDUCE_EXTREMUM(Name, kind)                                                                           \
    template <typename T>                                                                                          \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,         \
              const int32_t count, At at = At::here())                                                             \
    {                                                                                                              \
        static_assert(twin::isFloating<T>, #Name " takes half or float");                                          \
        TWIN_COUNT(#Name);                                                                                         \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                   \
        const int64_t work = 2 * ((count + twin::lanesOf<T> - 1) / twin::lanesOf<T>);                              \
        twin::reduceCount(instruction, dst, src, sharedTmpBuffer, count, work, true, twin::Reduction::kind);       \
    }

TWIN_REDUCE_EXTREMUM(ReduceMax, Max)
TWIN_REDUCE_EXTREMUM(ReduceMin, Min)
#undef TWIN_REDUCE_EXTREMUM

/// One result a repeat; results lie `dstRepStride` elements apart.
template <typename T>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
                    twin::Narrow<uint8_t> repeatTime, twin::Narrow<uint16_t> dstRepStride,
                    twin::Narrow<uint16_t> srcBlkStride, twin::Narrow<uint8_t> srcRepStride, At at = At::here())
{
    static_assert(twin::isFloating<T>, "WholeReduceSum takes half or float");
    TWIN_COUNT("WholeReduceSum");
    twin::Instruction instruction("WholeReduceSum", twin::Pipe::V, at);
    const auto shape =
        twin::Shape::masked(static_cast<uint64_t>(mask), repeatTime, twin::lanesOf<T>, at, "WholeReduceSum");
    twin::reduceRepeats(instruction, dst, src, shape, dstRepStride, srcBlkStride, srcRepStride, twin::lanesOf<T>,
                        twin::Reduction::Sum);
}

#define TWIN_WHOLE_REDUCE(Name, kind)                                                                              \
    template <typename T>                                                                                          \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,                            \
              twin::Narrow<uint8_t> repeatTime, twin::Narrow<uint16_t> dstRepStride,                               \
              twin::Narrow<uint16_t> srcBlkStride, twin::Narrow<uint8_t> srcRepStride, ReduceOrder,                \
              At at = At::here())                                                                                  \
    {                                                                                                              \
        static_assert(twin::isFloating<T>, #Name " takes half or float");                                          \
        TWIN_COUNT(#Name);                                                                                         \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                   \
        const auto shape =                                                                                         \
            twin::Shape::masked(static_cast<uint64_t>(mask), repeatTime, twin::lanesOf<T>, at, #Name);             \
        twin::reduceRepeats(instruction, dst, src, shape, dstRepStride, srcBlkStride, srcRepStride,                \
                            twin::lanesOf<T>, twin::Reduction::kind);                                              \
    }

TWIN_WHOLE_REDUCE(WholeReduceMax, Max)
TWIN_WHOLE_REDUCE(WholeReduceMin, Min)
#undef TWIN_WHOLE_REDUCE

// One result a group of lanes; results of a repeat lie side by side, `dstRepStride` counts repeats' worth of results.
#define TWIN_GROUP_REDUCE(Name, kind, lanes)                                                                       \
    template <typename T>                                                                                          \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, twin::Narrow<uint8_t> repeatTime,              \
              const int32_t mask, twin::Narrow<uint16_t> dstRepStride, twin::Narrow<uint16_t> srcBlkStride,        \
              twin::Narrow<uint8_t> srcRepStride, At at = At::here())                                              \
    {                                                                                                              \
        static_assert(twin::isFloating<T>, #Name " takes half or float");                                          \
        TWIN_COUNT(#Name);                                                                                         \
        twin::Instruction instruction(#Name, twin::Pipe::V, at);                                                   \
        const auto shape =                                                                                         \
            twin::Shape::masked(static_cast<uint64_t>(mask), repeatTime, twin::lanesOf<T>, at, #Name);             \
        twin::reduceRepeats(instruction, dst, src, shape, dstRepStride, srcBlkStride, srcRepStride,                \
                            lanes, twin::Reduction::kind);                                                         \
    }

TWIN_GROUP_REDUCE(BlockReduceSum, Sum, twin::lanesOf<T> / twin::kBlocksPerRepeat)
TWIN_GROUP_REDUCE(BlockReduceMax, Max, twin::lanesOf<T> / twin::kBlocksPerRepeat)
TWIN_GROUP_REDUCE(BlockReduceMin, Min, twin::lanesOf<T> / twin::kBlocksPerRepeat)
TWIN_GROUP_REDUCE(PairReduceSum, Sum, 2)
#undef TWIN_GROUP_REDUCE

}  // namespace AscendC
