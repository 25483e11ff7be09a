// How a Matmul walks its output blocks, and what it reads from global memory on the way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiling_types.h"

namespace twin {

inline int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// One output block and the operand elements that are loaded into L1 for it.
struct Tile {
    int64_t m;
    int64_t n;
    int64_t rows;
    int64_t columns;
    int64_t loadedA;
    int64_t loadedB;
};

/// iterateOrder 0 moves along M inside a group of stepN columns of blocks: the group's B blocks stay in L1 if the
/// buffers hold them over the whole K, and a row of A serves the group. iterateOrder 1 is the mirror image.
/// What does not fit whole is loaded again for every block.
class TileWalk {
public:
    TileWalk(const TCubeTiling& tiling, int64_t m, int64_t n, int64_t k)
        : tiling_(tiling), m_(m), n_(n), k_(k), mTiles_(ceilDiv(m, tiling.baseM)), nTiles_(ceilDiv(n, tiling.baseN))
    {
        const int64_t kTiles = ceilDiv(k, tiling.baseK);
        byColumns_ = tiling.iterateOrder == 0;
        const bool panelA = tiling.stepKa >= kTiles;
        const bool panelB = tiling.stepKb >= kTiles;
        const int64_t groupA = byColumns_ ? 1 : tiling.stepM;
        const int64_t groupB = byColumns_ ? tiling.stepN : 1;
        keepsA_ = panelA && tiling.depthA1 >= groupA * kTiles;
        keepsB_ = panelB && tiling.depthB1 >= groupB * kTiles;
        group_ = byColumns_ ? tiling.stepN : tiling.stepM;
    }

    bool done() const { return next_ >= mTiles_ * nTiles_; }

    Tile next()
    {
        const int64_t inner = byColumns_ ? nTiles_ : mTiles_;  // the axis that is cut into groups
        const int64_t outer = byColumns_ ? mTiles_ : nTiles_;  // the axis swept for each group
        const int64_t first = next_ / (group_ * outer) * group_;
        const int64_t width = std::min<int64_t>(group_, inner - first);
        const int64_t within = next_ - first * outer;
        const int64_t swept = within / width;
        const int64_t member = within % width;
        ++next_;
        const int64_t mIndex = byColumns_ ? swept : first + member;
        const int64_t nIndex = byColumns_ ? first + member : swept;
        Tile tile{mIndex * tiling_.baseM, nIndex * tiling_.baseN, 0, 0, 0, 0};
        tile.rows = std::min<int64_t>(tiling_.baseM, m_ - tile.m);
        tile.columns = std::min<int64_t>(tiling_.baseN, n_ - tile.n);
        const bool firstOfSweep = swept == 0;    // the group's own operand comes in
        const bool firstMember = member == 0;    // the swept operand comes in
        const bool loadA = !keepsA_ || (byColumns_ ? firstMember : firstOfSweep);
        const bool loadB = !keepsB_ || (byColumns_ ? firstOfSweep : firstMember);
        tile.loadedA = loadA ? tile.rows * k_ : 0;
        tile.loadedB = loadB ? tile.columns * k_ : 0;
        return tile;
    }

private:
    TCubeTiling tiling_;
    int64_t m_;
    int64_t n_;
    int64_t k_;
    int64_t mTiles_;
    int64_t nTiles_;
    int64_t group_ = 1;
    int64_t next_ = 0;
    bool byColumns_ = true;
    bool keepsA_ = false;
    bool keepsB_ = false;
};

#if defined(__GNUC__) && !defined(__clang__)
#define TWIN_FAST __attribute__((optimize("O3")))
#else
#define TWIN_FAST
#endif

/// c[m,n] += a[m,k] * b[k,n], row-major floats; rows of c are `pitch` apart, those of a and b are dense.
TWIN_FAST inline void multiply(float* c, int64_t pitch, const float* a, const float* b, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; ++i) {
        float* row = c + i * pitch;
        const float* factor = a + i * k;
        int64_t p = 0;
        for (; p + 4 <= k; p += 4) {  // four rows of b at a time: c is loaded and stored a quarter as often
            const float* b0 = b + p * n;
            const float *b1 = b0 + n, *b2 = b1 + n, *b3 = b2 + n;
            for (int64_t j = 0; j < n; ++j) {
                row[j] += factor[p] * b0[j] + factor[p + 1] * b1[j] + factor[p + 2] * b2[j] + factor[p + 3] * b3[j];
            }
        }
        for (; p < k; ++p) {
            for (int64_t j = 0; j < n; ++j) {
                row[j] += factor[p] * b[p * n + j];
            }
        }
    }
}

}  // namespace twin
