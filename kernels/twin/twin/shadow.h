// The shadow of a memory: for each 32-byte block, which bytes hold a value and which pipe touched them last.
#pragma once

#include <cstdint>

#include "clock.h"

namespace twin {

constexpr uint32_t kBlockBytes = 32;

struct Touch {
    uint32_t sequence;
    uint32_t bytes;  // one bit a byte of the block
};

struct ShadowBlock {
    uint32_t initialised;
    uint32_t foreignWritten;  // by cores that ran earlier in this launch
    uint32_t foreignRead;
    uint16_t core;            // the core that `writes` and `reads` belong to, plus one
    Touch writes[kPipes];
    Touch reads[kPipes];
};

enum class Fault { None, Uninitialised, Unordered, ForeignWrite, ForeignRead };

/// The outcome of a check; `pipe` is the other party of an unordered pair and `address` the block's start.
struct Finding {
    Fault fault = Fault::None;
    Pipe pipe = Pipe::S;
    uint64_t address = 0;
    bool otherWrote = false;
};

/// One access by one instruction of one core.
struct Access {
    const Clocks* clocks;
    Pipe pipe;
    uint32_t sequence;
    uint16_t core;
};

class Shadow {
public:
    explicit Shadow(ShadowBlock* blocks) : blocks_(blocks) {}

    Finding checkRead(const Access& access, uint64_t address, uint64_t bytes) const
    {
        Finding finding;
        forBlocks(address, bytes, [&](ShadowBlock& block, uint32_t mask, uint64_t at) {
            if ((block.initialised & mask) != mask) {
                finding = {Fault::Uninitialised, access.pipe, at, false};
                return false;
            }
            adopt(block, access.core);
            if (block.foreignWritten & mask) {
                finding = {Fault::ForeignWrite, access.pipe, at, true};
                return false;
            }
            return unordered(access, block.writes, mask, at, true, finding);
        });
        return finding;
    }

    Finding checkWrite(const Access& access, uint64_t address, uint64_t bytes) const
    {
        Finding finding;
        forBlocks(address, bytes, [&](ShadowBlock& block, uint32_t mask, uint64_t at) {
            adopt(block, access.core);
            if (block.foreignWritten & mask) {
                finding = {Fault::ForeignWrite, access.pipe, at, true};
                return false;
            }
            if (block.foreignRead & mask) {
                finding = {Fault::ForeignRead, access.pipe, at, false};
                return false;
            }
            return unordered(access, block.writes, mask, at, true, finding) &&
                   unordered(access, block.reads, mask, at, false, finding);
        });
        return finding;
    }

    void noteRead(const Access& access, uint64_t address, uint64_t bytes)
    {
        forBlocks(address, bytes, [&](ShadowBlock& block, uint32_t mask, uint64_t) {
            Touch& touch = block.reads[index(access.pipe)];
            touch.sequence = access.sequence;
            touch.bytes |= mask;
            return true;
        });
    }

    /// A write that was checked is ordered after all earlier accesses to its bytes, so it replaces them.
    void noteWrite(const Access& access, uint64_t address, uint64_t bytes, bool holdsValue = true)
    {
        forBlocks(address, bytes, [&](ShadowBlock& block, uint32_t mask, uint64_t) {
            for (int q = 0; q < kPipes; ++q) {
                block.writes[q].bytes &= ~mask;
                block.reads[q].bytes &= ~mask;
            }
            Touch& touch = block.writes[index(access.pipe)];
            touch.sequence = access.sequence;
            touch.bytes |= mask;
            block.initialised = holdsValue ? block.initialised | mask : block.initialised & ~mask;
            return true;
        });
    }

    void setInitialised(uint64_t address, uint64_t bytes, bool value)
    {
        forBlocks(address, bytes, [&](ShadowBlock& block, uint32_t mask, uint64_t) {
            block.initialised = value ? block.initialised | mask : block.initialised & ~mask;
            return true;
        });
    }

    static uint32_t byteMask(uint32_t first, uint32_t count)
    {
        return count == kBlockBytes ? ~0u : ((1u << count) - 1) << first;
    }

private:
    template <typename F>
    void forBlocks(uint64_t address, uint64_t bytes, F visit) const
    {
        const uint64_t end = address + bytes;
        while (address < end) {
            const uint32_t first = static_cast<uint32_t>(address % kBlockBytes);
            const uint64_t room = kBlockBytes - first;
            const uint32_t count = static_cast<uint32_t>(end - address < room ? end - address : room);
            if (!visit(blocks_[address / kBlockBytes], byteMask(first, count), address)) {
                return;
            }
            address += count;
        }
    }

    /// Cores run one after another here but at the same time on the chip: what another core did to the block
    /// is kept apart, because no flag of this core can order it.
    static void adopt(ShadowBlock& block, uint16_t core)
    {
        const uint16_t owner = static_cast<uint16_t>(core + 1);
        if (block.core == owner) {
            return;
        }
        if (block.core != 0) {
            for (int q = 0; q < kPipes; ++q) {
                block.foreignWritten |= block.writes[q].bytes;
                block.foreignRead |= block.reads[q].bytes;
                block.writes[q] = Touch{};
                block.reads[q] = Touch{};
            }
        }
        block.core = owner;
    }

    static bool unordered(const Access& access, const Touch (&touches)[kPipes], uint32_t mask, uint64_t at, bool wrote,
                          Finding& finding)
    {
        for (int q = 0; q < kPipes; ++q) {
            const Touch& touch = touches[q];
            if ((touch.bytes & mask) == 0) {
                continue;
            }
            const Pipe other = static_cast<Pipe>(q);
            if (!access.clocks->ordered(access.pipe, other, touch.sequence)) {
                finding = {Fault::Unordered, other, at, wrote};
                return false;
            }
        }
        return true;
    }

    ShadowBlock* blocks_;
};

}  // namespace twin
