// Shapes and tiling of AtcfuseLayerNormQKV, from operand shapes and what the chip has. op_host and the twin include it.
#pragma once

#include "atcfuse_tiling.h"
#include "atcfuse_layer_norm_qkv_tiling.h"

namespace atcfuse_layer_norm_qkv_tiling {

constexpr int32_t kX = 0;  // operands in the order of the kernel's parameters
constexpr int32_t kGamma = 1;
constexpr int32_t kBeta = 2;
constexpr int32_t kFirstWeight = 3;
constexpr int32_t kFirstBias = 7;
constexpr int32_t kOutputs = 5;
constexpr int32_t kNormalized = 4;

constexpr bool kHasGamma = true;
constexpr bool kHasBeta = true;
constexpr bool kKeepsNormalized = true;
constexpr int32_t kElementBytes = 2;
constexpr bool kWidensBias = false;  // the cube takes bfloat16 biases as float
constexpr bool kTransposed[kProjections] = {false, false, false};
constexpr bool kHasBias[kProjections] = {true, true, true};

constexpr int64_t kMaxRows = 128;         // of a task: rows of the cube's base block
constexpr int64_t kMaxUnit = 256;         // columns of the base block; the bias table holds as many
constexpr int64_t kMaxStride = 65535;     // 16-bit field of the cube's loads
constexpr int64_t kMaxCount = INT32_MAX / 2;
constexpr int64_t kMaxElements = int64_t{1} << 36;  // keeps the estimates below within 64 bits
constexpr int64_t kBaseKBytes = 128;
constexpr int64_t kFractal = 16;
constexpr int64_t kVectorLanes = 64;      // floats of a vector instruction
constexpr int64_t kSmallBytes = 320;      // the kernel's lane buffers
constexpr int64_t kStatisticsBytes = 64;  // mean and deviation of a row, eight floats each
constexpr int64_t kSlotAlignment = 512;
constexpr int64_t kL1Reserve = 2048;
/// UB bytes of a column: x and the result double-buffered, two float planes, gamma and beta as float.
constexpr int64_t kBytesPerColumn = 4 * kElementBytes + 4 * (2 + (kHasGamma ? 1 : 0) + (kHasBeta ? 1 : 0));

struct Problem {
    int64_t rows;
    int64_t hidden;
    int64_t columns[kProjections];
    int64_t widest;
    bool anyBias;
};

/// Sizes that are not known yet (-1, while a graph is compiled) agree with everything.
inline bool agree(int64_t a, int64_t b) { return a < 0 || b < 0 || a == b; }

inline int64_t elements(const atcfuse::Shape& shape)
{
    int64_t count = 1;
    for (int32_t axis = 0; axis < shape.rank; ++axis) {
        if (shape.dims[axis] < 0) {
            return -1;
        }
        count *= shape.dims[axis];
    }
    return count;
}

/// Shapes of the outputs, unknown sizes as -1; what is wrong with the inputs', or nullptr.
inline const char* inferShapes(const atcfuse::Shape* inputs, atcfuse::Shape* outputs)
{
    const atcfuse::Shape& x = inputs[kX];
    if (x.rank < 1) {
        return "x needs at least one axis";
    }
    const int64_t hidden = x.fromEnd(0);
    if ((kHasGamma && !agree(elements(inputs[kGamma]), hidden)) ||
        (kHasBeta && !agree(elements(inputs[kBeta]), hidden))) {
        return "gamma and beta need as many elements as x has columns";
    }
    for (int32_t i = 0; i < kOutputs; ++i) {
        outputs[i].rank = -1;
    }
    for (int32_t i = 0; i < kProjections; ++i) {
        const atcfuse::Shape& weight = inputs[kFirstWeight + i];
        if (weight.rank != 2 || !agree(weight.fromEnd(kTransposed[i] ? 0 : 1), hidden)) {
            return "a weight needs two axes, one as long as x has columns";
        }
        const int64_t columns = weight.fromEnd(kTransposed[i] ? 1 : 0);
        if (kHasBias[i] && !agree(elements(inputs[kFirstBias + i]), columns)) {
            return "a bias needs as many elements as its projection has columns";
        }
        outputs[i] = x;
        outputs[i].dims[x.rank - 1] = columns;
    }
    if (kKeepsNormalized) {
        outputs[kNormalized] = x;
    }
    return nullptr;
}

/// Columns on chip at once: the row, or the widest equal chunks of 64 columns where a row does not fit.
inline int64_t chunkColumns(int64_t hidden, const atcfuse::Platform& chip)
{
    const int64_t whole = atcfuse::roundUp(hidden, kFractal);
    if (whole * kBytesPerColumn + kSmallBytes <= chip.ub) {
        return whole;
    }
    const int64_t free = chip.ub - kSmallBytes - kMaxRows * kStatisticsBytes;
    const int64_t most = free / kBytesPerColumn / kVectorLanes * kVectorLanes;
    return atcfuse::roundUp(atcfuse::ceilDiv(hidden, atcfuse::ceilDiv(hidden, most)), kVectorLanes);
}

struct Split {
    int64_t rowsPerTask;
    int64_t groups;
    int64_t cycles;  // estimated, on the busiest core
    int64_t bytes;   // rows and weights into L1, all tasks together
};

/// The estimate weighs cube steps, bytes into L1 and vector instructions, each with a start-up of its own.
inline Split estimate(const Problem& p, const atcfuse::Platform& chip, int64_t rows, int64_t groups, int64_t columns)
{
    constexpr int64_t macsPerCycle = kElementBytes == 2 ? 4096 : 1024;
    constexpr int64_t loadBytesPerCycle = 32;
    constexpr int64_t instructionsPerRow = 25;
    constexpr int64_t startUp = 16;
    const int64_t tasks = atcfuse::ceilDiv(p.rows, rows) * groups;
    const int64_t cube = rows * columns * p.hidden / macsPerCycle;
    const int64_t loaded = (rows + columns) * p.hidden * kElementBytes;
    const int64_t rowCycles = instructionsPerRow * (atcfuse::ceilDiv(p.hidden, kVectorLanes) + startUp);
    const int64_t cycles =
        atcfuse::ceilDiv(tasks, chip.cubeCores) * atcfuse::most(cube, loaded / loadBytesPerCycle) +
        atcfuse::ceilDiv(tasks, 2 * chip.cubeCores) * atcfuse::least(rows, p.rows) * rowCycles;
    return Split{rows, groups, cycles, tasks * loaded};
}

/// Blocks of rows and groups of columns: the fewest bytes among what is at most a quarter slower than the fastest.
/// More groups repeat the normalisation, fewer rows reload the weights.
inline Split chooseSplit(const Problem& p, const atcfuse::Platform& chip, int64_t units, int64_t unit)
{
    const int64_t mostGroups = atcfuse::least(units, 2 * chip.cubeCores);
    int64_t fastest = INT64_MAX;
    Split best{};
    for (int32_t pass = 0; pass < 2; ++pass) {
        for (int64_t rows = kMaxRows; rows >= kFractal; rows -= kFractal) {
            for (int64_t groups = 1; groups <= mostGroups; ++groups) {
                const Split split = estimate(p, chip, rows, groups, atcfuse::ceilDiv(units, groups) * unit);
                if (pass == 0) {
                    fastest = atcfuse::least(fastest, split.cycles);
                } else if (split.cycles <= fastest + fastest / 4 &&
                           (best.rowsPerTask == 0 || split.bytes < best.bytes)) {
                    best = split;
                }
            }
        }
    }
    return best;
}

/// The largest divisor of `number` that is at most `limit`.
inline int64_t divisorUpTo(int64_t number, int64_t limit)
{
    int64_t divisor = atcfuse::most(1, atcfuse::least(number, limit));
    while (number % divisor != 0) {
        --divisor;
    }
    return divisor;
}

/// One base block of rows, columns swept along N. A stays in L1 over the whole K where two thirds of L1 hold it.
inline AscendC::tiling::TCubeTiling cubeTiling(const Problem& p, const atcfuse::Platform& chip, const Tiling& t)
{
    const int64_t l1 = chip.l1 - kL1Reserve;
    const int64_t baseM = atcfuse::roundUp(t.rowsPerTask, kFractal);
    const int64_t baseN = t.unitColumns;
    const int64_t baseK = atcfuse::least(kBaseKBytes / kElementBytes, atcfuse::roundUp(p.hidden, kFractal));
    const int64_t steps = atcfuse::ceilDiv(p.hidden, baseK);
    const int64_t tileA = baseM * baseK * kElementBytes;
    const int64_t tileB = baseN * baseK * kElementBytes;
    const bool keepsA = steps * tileA <= l1 * 2 / 3;
    const int64_t stepKa = keepsA ? steps : atcfuse::least(4, steps);
    const int64_t depthA = keepsA ? stepKa : 2 * stepKa;
    const int64_t biasBytes = p.anyBias ? baseN * 4 : 0;
    const int64_t stepKb = divisorUpTo(stepKa, (l1 - depthA * tileA - biasBytes) / (2 * tileB));
    AscendC::tiling::TCubeTiling cube{};
    cube.usedCoreNum = 1;
    cube.M = t.rowsPerTask;
    cube.N = static_cast<int32_t>(p.widest);
    cube.Ka = t.slotPitch;
    cube.Kb = t.hidden;
    cube.singleCoreM = t.rowsPerTask;
    cube.singleCoreN = static_cast<int32_t>(p.widest);
    cube.singleCoreK = t.hidden;
    cube.baseM = static_cast<int32_t>(baseM);
    cube.baseN = static_cast<int32_t>(baseN);
    cube.baseK = static_cast<int32_t>(baseK);
    cube.depthA1 = static_cast<int32_t>(depthA);
    cube.depthB1 = static_cast<int32_t>(2 * stepKb);
    cube.stepM = 1;
    cube.stepN = 1;
    cube.stepKa = static_cast<int32_t>(stepKa);
    cube.stepKb = static_cast<int32_t>(stepKb);
    cube.isBias = p.anyBias ? 1 : 0;
    cube.iterateOrder = keepsA ? 1 : 0;
    cube.dbL0A = 2;
    cube.dbL0B = 2;
    cube.dbL0C = baseM * baseN * 4 * 2 <= chip.l0c ? 2 : 1;
    return cube;
}

/// Reads the sizes; what the kernel cannot take, or nullptr.
inline const char* readProblem(const atcfuse::Shape* inputs, Problem& p)
{
    const atcfuse::Shape& x = inputs[kX];
    p.hidden = x.fromEnd(0);
    if (p.hidden < 1 || p.hidden > kMaxStride - kFractal) {
        return "the hidden size must be 1 to 65519: a row stride of the cube has 16 bits";
    }
    p.rows = elements(x) / p.hidden;
    if (p.rows < 0 || p.rows > kMaxCount || p.rows * p.hidden > kMaxElements) {
        return "x must have fewer than 2^30 rows and at most 2^36 elements";
    }
    for (int32_t i = 0; i < kProjections; ++i) {
        p.columns[i] = inputs[kFirstWeight + i].fromEnd(kTransposed[i] ? 1 : 0);
        if (p.columns[i] < 1 || p.columns[i] > (kTransposed[i] ? kMaxCount : kMaxStride)) {
            return "a projection must have 1 to 65535 columns: a row stride of the cube has 16 bits";
        }
        p.widest = atcfuse::most(p.widest, p.columns[i]);
        p.anyBias = p.anyBias || kHasBias[i];
    }
    return nullptr;
}

/// The tiling and the launch for these shapes; why the kernel cannot take them, or nullptr.
inline const char* computeTiling(const atcfuse::Platform& chip, const atcfuse::Shape* inputs, Tiling& t,
                                 atcfuse::Launch& launch)
{
    Problem p{};
    const char* refused = readProblem(inputs, p);
    if (refused != nullptr) {
        return refused;
    }
    t = Tiling{};
    const int64_t unit = atcfuse::least(kMaxUnit, atcfuse::roundUp(p.widest, 2 * kFractal));
    for (int32_t i = 0; i < kProjections; ++i) {
        t.columns[i] = static_cast<int32_t>(p.columns[i]);
        t.units[i] = static_cast<int32_t>(atcfuse::ceilDiv(p.columns[i], unit));
        t.allUnits += t.units[i];
    }
    const Split split = chooseSplit(p, chip, t.allUnits, unit);
    t.rows = static_cast<int32_t>(p.rows);
    t.hidden = static_cast<int32_t>(p.hidden);
    t.rowsPerTask = static_cast<int32_t>(split.rowsPerTask);
    t.groups = static_cast<int32_t>(split.groups);
    t.tasks = static_cast<int32_t>(atcfuse::ceilDiv(p.rows, split.rowsPerTask) * split.groups);
    t.unitColumns = static_cast<int32_t>(unit);
    t.slotPitch = static_cast<int32_t>(atcfuse::roundUp(p.hidden, kFractal));
    t.chunkColumns = static_cast<int32_t>(chunkColumns(p.hidden, chip));
    const int64_t rowsBytes = split.rowsPerTask * t.slotPitch * kElementBytes;
    const int64_t biasColumns = kWidensBias ? atcfuse::ceilDiv(t.allUnits, split.groups) * unit : 0;
    t.biasOffset = static_cast<uint64_t>(rowsBytes);
    t.slotBytes = static_cast<uint64_t>(atcfuse::roundUp(rowsBytes + 4 * biasColumns, kSlotAlignment));
    t.cube = cubeTiling(p, chip, t);
    launch.blocks = static_cast<int32_t>(atcfuse::most(1, atcfuse::least(chip.cubeCores, t.tasks)));
    launch.tilingKey = 0;
    launch.workspaceBytes = 2 * launch.blocks * static_cast<int64_t>(t.slotBytes);
    return nullptr;
}

}  // namespace atcfuse_layer_norm_qkv_tiling
