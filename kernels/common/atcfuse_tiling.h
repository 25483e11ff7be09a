// What every generated kernel's tiling is computed from, and what it says about the launch. Shared by op_host, the
// kernel's own tiling header and the twin; plain structs, no toolkit types.
#pragma once

#include <cstdint>

namespace atcfuse {

constexpr int32_t kMaxRank = 8;

/// A chip as PlatformAscendC describes it; sizes in bytes. `ub` is what InitBuffer may ask for: the unified buffer
/// less 8 KB of API scratch at its end. `tileRows` is no property of the chip: the query rows that an attention's tiles
/// were asked to have at most (the widest that fit are taken), 0 where the tiling chooses.
struct Platform {
    int32_t cubeCores;
    int32_t vectorCores;
    int64_t ub;
    int64_t l1;
    int64_t l0a;
    int64_t l0b;
    int64_t l0c;
    int32_t tileRows = 0;
};

/// An operand's shape; rank -1 for an optional operand that is absent.
struct Shape {
    int32_t rank;
    int64_t dims[kMaxRank];

    bool present() const { return rank >= 0; }

    /// Axis counted from the last one (0); 1 where a broadcast operand has no such axis.
    int64_t fromEnd(int32_t axis) const { return axis < rank ? dims[rank - 1 - axis] : 1; }
};

/// What the host sets for a launch: SetBlockDim, SetTilingKey, and the workspace beyond the system's part.
struct Launch {
    int32_t blocks;
    uint64_t tilingKey;
    int64_t workspaceBytes;
};

constexpr int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t roundUp(int64_t a, int64_t unit) { return ceilDiv(a, unit) * unit; }
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace atcfuse
