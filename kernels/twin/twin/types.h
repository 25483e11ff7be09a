// The small vocabulary of the API: macros, positions, events, and parameter structs.
#pragma once

#include <cstdint>
#include <type_traits>

#include "half.h"

#define __gm__
#define __ubuf__
#define __aicore__
#define __global__
#define GM_ADDR __gm__ uint8_t*

#ifndef __NPU_ARCH__
#define __NPU_ARCH__ 2201
#endif

namespace twin {

template <typename T, typename... Others>
constexpr bool isOneOf = (std::is_same_v<T, Others> || ...);

/// An integer parameter that the chip stores in fewer bits than C++ callers tend to have. It keeps the
/// caller's value, so that a wrap-around is an error here instead of a wrong stride there.
template <typename Stored>
class Narrow {
public:
    template <typename I, typename = std::enable_if_t<std::is_integral_v<I>>>
    constexpr Narrow(I value) : raw_(static_cast<int64_t>(value))
    {
    }
    constexpr operator Stored() const { return static_cast<Stored>(raw_); }
    constexpr int64_t raw() const { return raw_; }
    constexpr bool fits() const { return static_cast<int64_t>(static_cast<Stored>(raw_)) == raw_; }

private:
    int64_t raw_;
};

}  // namespace twin

namespace AscendC {

enum class TPosition : uint8_t { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, TSCM };
using QuePosition = TPosition;

enum class HardEvent : uint8_t {
    MTE2_V, V_MTE2, MTE3_V, V_MTE3, MTE2_MTE3, MTE3_MTE2, MTE2_S, S_MTE2, MTE3_S, S_MTE3, V_S, S_V,
};

using TEventID = int8_t;
enum event_t : int32_t { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5 };

enum class CMPMODE : uint8_t { LT, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class ReduceOrder : uint8_t { ORDER_ONLY_VALUE };

struct BinaryRepeatParams {
    BinaryRepeatParams() = default;
    BinaryRepeatParams(twin::Narrow<uint8_t> dstBlk, twin::Narrow<uint8_t> src0Blk, twin::Narrow<uint8_t> src1Blk,
                       twin::Narrow<uint8_t> dstRep, twin::Narrow<uint8_t> src0Rep, twin::Narrow<uint8_t> src1Rep)
        : dstBlkStride(dstBlk), src0BlkStride(src0Blk), src1BlkStride(src1Blk), dstRepStride(dstRep),
          src0RepStride(src0Rep), src1RepStride(src1Rep)
    {
    }
    twin::Narrow<uint8_t> dstBlkStride = 1;
    twin::Narrow<uint8_t> src0BlkStride = 1;
    twin::Narrow<uint8_t> src1BlkStride = 1;
    twin::Narrow<uint8_t> dstRepStride = 8;
    twin::Narrow<uint8_t> src0RepStride = 8;
    twin::Narrow<uint8_t> src1RepStride = 8;
};

struct UnaryRepeatParams {
    UnaryRepeatParams() = default;
    UnaryRepeatParams(twin::Narrow<uint16_t> dstBlk, twin::Narrow<uint16_t> srcBlk, twin::Narrow<uint8_t> dstRep,
                      twin::Narrow<uint8_t> srcRep)
        : dstBlkStride(dstBlk), srcBlkStride(srcBlk), dstRepStride(dstRep), srcRepStride(srcRep)
    {
    }
    twin::Narrow<uint16_t> dstBlkStride = 1;
    twin::Narrow<uint16_t> srcBlkStride = 1;
    twin::Narrow<uint8_t> dstRepStride = 8;
    twin::Narrow<uint8_t> srcRepStride = 8;
};

struct BrcbRepeatParams {
    BrcbRepeatParams() = default;
    BrcbRepeatParams(twin::Narrow<uint16_t> dstBlk, twin::Narrow<uint16_t> dstRep)
        : dstBlkStride(dstBlk), dstRepStride(dstRep)
    {
    }
    twin::Narrow<uint16_t> dstBlkStride = 1;
    twin::Narrow<uint16_t> dstRepStride = 8;
};

/// Block copy; length and strides (gaps between blocks) in units of 32 bytes.
struct DataCopyParams {
    DataCopyParams() = default;
    DataCopyParams(twin::Narrow<uint16_t> count, twin::Narrow<uint16_t> length, twin::Narrow<uint16_t> srcGap,
                   twin::Narrow<uint16_t> dstGap)
        : blockCount(count), blockLen(length), srcStride(srcGap), dstStride(dstGap)
    {
    }
    twin::Narrow<uint16_t> blockCount = 1;
    twin::Narrow<uint16_t> blockLen = 0;
    twin::Narrow<uint16_t> srcStride = 0;
    twin::Narrow<uint16_t> dstStride = 0;
};

/// Block copy; length in bytes, the global-memory gap in bytes, the on-chip gap in units of 32 bytes.
struct DataCopyExtParams {
    DataCopyExtParams() = default;
    DataCopyExtParams(twin::Narrow<uint16_t> count, twin::Narrow<uint32_t> length, twin::Narrow<uint32_t> srcGap,
                      twin::Narrow<uint32_t> dstGap, uint32_t reserved)
        : blockCount(count), blockLen(length), srcStride(srcGap), dstStride(dstGap), rsv(reserved)
    {
    }
    twin::Narrow<uint16_t> blockCount = 1;
    twin::Narrow<uint32_t> blockLen = 0;
    twin::Narrow<uint32_t> srcStride = 0;
    twin::Narrow<uint32_t> dstStride = 0;
    uint32_t rsv = 0;
};

/// Padding of each block on its way on chip, in elements.
template <typename T>
struct DataCopyPadExtParams {
    DataCopyPadExtParams() = default;
    DataCopyPadExtParams(bool pad, twin::Narrow<uint8_t> left, twin::Narrow<uint8_t> right, T value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value)
    {
    }
    bool isPad = false;
    twin::Narrow<uint8_t> leftPadding = 0;
    twin::Narrow<uint8_t> rightPadding = 0;
    T paddingValue = T(0);
};

}  // namespace AscendC

enum pipe_t : uint8_t { PIPE_V, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };

using AscendC::event_t;
using AscendC::EVENT_ID0;
using AscendC::EVENT_ID1;
using AscendC::EVENT_ID2;
using AscendC::EVENT_ID3;
using AscendC::EVENT_ID4;
using AscendC::EVENT_ID5;
