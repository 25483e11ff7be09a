// Which bytes a vector instruction touches: `count` elements in a row, or `repeat` times a masked set of lanes in
// 32-byte blocks with strides.
#pragma once

#include "tensor.h"

namespace twin {

constexpr int kVectorBytes = 256;
constexpr int kBlocksPerRepeat = 8;

/// The lanes of an instruction. `repeats` = 0 means the count form.
struct Shape {
    int64_t count = 0;
    int64_t repeats = 0;
    std::vector<std::pair<int, int>> lanes;  // runs of active lanes: first, length

    static Shape counted(int64_t count, At at, const char* name)
    {
        if (count <= 0) {
            fail(at, "count", "%s: count %lld", name, static_cast<long long>(count));
        }
        Shape shape;
        shape.count = count;
        return shape;
    }

    static Shape masked(uint64_t mask, const Narrow<uint8_t>& repeats, int lanesPerRepeat, At at, const char* name)
    {
        if (mask == 0 || mask > static_cast<uint64_t>(lanesPerRepeat)) {
            fail(at, "mask", "%s: mask %llu, 1 to %d lanes are possible", name, static_cast<unsigned long long>(mask),
                 lanesPerRepeat);
        }
        Shape shape = repeated(repeats, at, name);
        shape.lanes.emplace_back(0, static_cast<int>(mask));
        return shape;
    }

    static Shape masked(const uint64_t* mask, const Narrow<uint8_t>& repeats, int lanesPerRepeat, At at,
                        const char* name)
    {
        Shape shape = repeated(repeats, at, name);
        const auto on = [mask](int lane) { return (mask[lane / 64] >> (lane % 64)) & 1; };
        for (int lane = 0; lane < lanesPerRepeat; ++lane) {
            if (!on(lane)) {
                continue;
            }
            const int first = lane;
            while (lane < lanesPerRepeat && on(lane)) {
                ++lane;
            }
            shape.lanes.emplace_back(first, lane - first);
        }
        if (shape.lanes.empty()) {
            fail(at, "mask", "%s: no lane of the bit mask is set", name);
        }
        return shape;
    }

    bool isCounted() const { return repeats == 0; }

    int endLane() const { return lanes.back().first + lanes.back().second; }

private:
    static Shape repeated(const Narrow<uint8_t>& repeats, At at, const char* name)
    {
        if (repeats.raw() < 1 || !repeats.fits()) {
            fail(at, "repeat", "%s: %lld repeats; the chip keeps 8 bits, 1 to 255", name,
                 static_cast<long long>(repeats.raw()));
        }
        Shape shape;
        shape.repeats = repeats.raw();
        return shape;
    }
};

/// One operand's place: a view and, for the repeat form, its strides in 32-byte blocks.
struct Operand {
    UbView view;
    int elementBytes;
    int64_t blockStride;
    int64_t repeatStride;
    const char* name;

    int lanesPerBlock() const { return static_cast<int>(kBlockBytes) / elementBytes; }
};

template <typename T, typename B, typename R>
Operand operandOf(const AscendC::LocalTensor<T>& tensor, const Narrow<B>& blockStride, const Narrow<R>& repeatStride,
                  const char* name, const Instruction& instruction)
{
    if (!blockStride.fits() || !repeatStride.fits()) {
        fail(instruction.at(), "stride", "%s: %s has block stride %lld and repeat stride %lld; they wrap at %d bits",
             instruction.name(), name, static_cast<long long>(blockStride.raw()),
             static_cast<long long>(repeatStride.raw()), static_cast<int>(8 * sizeof(R)));
    }
    return Operand{tensor.view(), static_cast<int>(sizeof(T)), blockStride.raw(), repeatStride.raw(), name};
}

template <typename T>
Operand operandOf(const AscendC::LocalTensor<T>& tensor, const char* name)
{
    return Operand{tensor.view(), static_cast<int>(sizeof(T)), 1, 8, name};
}

/// A stretch of elements that is contiguous in every operand.
template <int K>
struct Run {
    int length;
    std::array<uint32_t, K> address;
};

/// Bytes from the operand's start to the end of its last active lane.
inline int64_t extent(const Shape& shape, const Operand& operand)
{
    if (shape.isCounted()) {
        return shape.count * operand.elementBytes;
    }
    int64_t end = 0;
    for (const auto& [first, length] : shape.lanes) {
        for (const int lane : {first + length - 1, first}) {
            const int64_t block = lane / operand.lanesPerBlock();
            const int64_t inBlock = (lane % operand.lanesPerBlock() + 1) * operand.elementBytes;
            end = std::max(end, block * operand.blockStride * kBlockBytes + inBlock);
        }
        if (length > operand.lanesPerBlock()) {
            const int64_t block = (first + length - 1) / operand.lanesPerBlock() - 1;
            end = std::max(end, block * operand.blockStride * kBlockBytes + kBlockBytes);
        }
    }
    return end + (shape.repeats - 1) * operand.repeatStride * kBlockBytes;
}

/// Cuts the lanes into runs: a run ends where any operand leaves a block whose neighbour is not next to it.
template <int K>
std::vector<Run<K>> runsOf(const Shape& shape, const std::array<Operand, K>& operands)
{
    std::vector<Run<K>> runs;
    if (shape.isCounted()) {
        Run<K> run{static_cast<int>(shape.count), {}};
        for (int k = 0; k < K; ++k) {
            run.address[k] = static_cast<uint32_t>(operands[k].view.address);
        }
        runs.push_back(run);
        return runs;
    }
    int cut = 1 << 20;
    for (const Operand& operand : operands) {
        if (operand.blockStride != 1) {
            cut = std::min(cut, operand.lanesPerBlock());
        }
    }
    for (int64_t repeat = 0; repeat < shape.repeats; ++repeat) {
        for (const auto& [first, length] : shape.lanes) {
            for (int lane = first; lane < first + length;) {
                const int end = std::min(first + length, (lane / cut + 1) * cut);
                Run<K> run{end - lane, {}};
                for (int k = 0; k < K; ++k) {
                    const Operand& o = operands[k];
                    run.address[k] = static_cast<uint32_t>(
                        o.view.address +
                        (repeat * o.repeatStride + lane / o.lanesPerBlock() * o.blockStride) * kBlockBytes +
                        lane % o.lanesPerBlock() * o.elementBytes);
                }
                runs.push_back(run);
                lane = end;
            }
        }
    }
    return runs;
}

/// Repeats or blocks of a destination must not fall on one another: the chip does not promise which one stays.
inline void checkDestinationStrides(const Shape& shape, const Operand& dst, const Instruction& instruction)
{
    if (shape.isCounted()) {
        return;
    }
    const bool manyBlocks = shape.endLane() > dst.lanesPerBlock();
    Shape once = shape;
    once.repeats = 1;
    const bool repeatsOverlap =
        shape.repeats > 1 && dst.blockStride <= 1 && dst.repeatStride * kBlockBytes < extent(once, dst);
    if ((manyBlocks && dst.blockStride == 0) || repeatsOverlap) {
        fail(instruction.at(), "destination-overlap",
             "%s: block stride %lld and repeat stride %lld of %s write the same bytes again", instruction.name(),
             static_cast<long long>(dst.blockStride), static_cast<long long>(dst.repeatStride), dst.name);
    }
}

/// A source may lie exactly on the destination, or beside it, but not partly on it.
template <int K>
void checkInPlace(const std::vector<Run<K>>& runs, const std::array<Operand, K>& operands, int source,
                  const Instruction& instruction)
{
    const Operand& dst = operands[0];
    const Operand& src = operands[source];
    bool same = dst.elementBytes == src.elementBytes;
    int64_t dstLow = INT64_MAX, dstHigh = 0, srcLow = INT64_MAX, srcHigh = 0;
    for (const Run<K>& run : runs) {
        same = same && run.address[0] == run.address[source];
        dstLow = std::min<int64_t>(dstLow, run.address[0]);
        dstHigh = std::max<int64_t>(dstHigh, run.address[0] + int64_t{run.length} * dst.elementBytes);
        srcLow = std::min<int64_t>(srcLow, run.address[source]);
        srcHigh = std::max<int64_t>(srcHigh, run.address[source] + int64_t{run.length} * src.elementBytes);
    }
    if (same || dstHigh <= srcLow || srcHigh <= dstLow) {
        return;
    }
    std::vector<bool> written(static_cast<size_t>(dstHigh - dstLow));
    for (const Run<K>& run : runs) {
        std::fill_n(written.begin() + (run.address[0] - dstLow), run.length * dst.elementBytes, true);
    }
    for (const Run<K>& run : runs) {
        for (int64_t b = run.address[source]; b < run.address[source] + int64_t{run.length} * src.elementBytes; ++b) {
            if (b >= dstLow && b < dstHigh && written[static_cast<size_t>(b - dstLow)]) {
                fail(instruction.at(), "partial-overlap", "%s: %s overlaps the destination without being the same",
                     instruction.name(), src.name);
            }
        }
    }
}

/// Checks all operands of an element-wise instruction, computes, and records the accesses.
/// Operand 0 is the destination. `body(run)` gets addresses into UB. With `readsDst` the destination is read too.
template <int K, typename F>
void execute(Instruction& instruction, const Shape& shape, const std::array<Operand, K>& operands, bool readsDst,
             F body)
{
    for (const Operand& operand : operands) {
        checkView(operand.view, extent(shape, operand), kBlockBytes, operand.name, instruction);
    }
    checkDestinationStrides(shape, operands[0], instruction);
    const std::vector<Run<K>> runs = runsOf<K>(shape, operands);
    const int firstRead = readsDst ? 0 : 1;
    for (int k = 1; k < K; ++k) {
        checkInPlace<K>(runs, operands, k, instruction);
    }
    for (const Run<K>& run : runs) {
        for (int k = firstRead; k < K; ++k) {
            instruction.checkUbRead(run.address[k], static_cast<uint64_t>(run.length) * operands[k].elementBytes);
        }
        instruction.checkUbWrite(run.address[0], static_cast<uint64_t>(run.length) * operands[0].elementBytes);
    }
    for (const Run<K>& run : runs) {
        body(run);
    }
    for (const Run<K>& run : runs) {
        for (int k = firstRead; k < K; ++k) {
            instruction.noteUbRead(run.address[k], static_cast<uint64_t>(run.length) * operands[k].elementBytes);
        }
    }
    for (const Run<K>& run : runs) {
        instruction.noteUbWrite(run.address[0], static_cast<uint64_t>(run.length) * operands[0].elementBytes);
    }
}

}  // namespace twin
