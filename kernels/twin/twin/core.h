// The state of the core that runs now, of the launch around it, and the checks every instruction goes through.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "memory.h"

namespace twin {

enum class KernelType { None, AivOnly, AicOnly, Mix11, Mix12, AiCore };

/// On-chip high-water marks in bytes, over all cores of all launches.
struct Peaks {
    uint64_t ub = 0;
    uint64_t l1 = 0;
    uint64_t l0a = 0;
    uint64_t l0b = 0;
    uint64_t l0c = 0;
};

enum class BufferState : uint8_t { Free, Allocated, Queued, Dequeued, Always };

/// One UB buffer that TPipe handed out. `generation` grows with each AllocTensor, so that stale tensors show.
struct Buffer {
    uint32_t address;
    uint32_t bytes;
    BufferState state;
    uint32_t generation;
    int queue;  // -1 for a TBuf
    int freeEvent;
    Clock freed;
    At changed;
};

struct EventSlot {
    bool claimed = false;   // by a queue
    bool reserved = false;  // by AllocEventID
    bool fetched = false;   // handed out by FetchEventID at some time
    bool set = false;
    Clock clock{};
    At at{};
};

struct Core {
    int block = 0;
    Clocks clocks;
    std::vector<uint8_t> ub = std::vector<uint8_t>(kUbBytes, 0xff);
    std::vector<ShadowBlock> ubBlocks = std::vector<ShadowBlock>(kUbBytes / kBlockBytes, ShadowBlock{});
    std::vector<Buffer> buffers;
    uint32_t ubUsed = 0;
    uint32_t queueBuffers[16] = {};  // by TPosition
    bool pipeMade = false;
    EventSlot events[kHardEvents][kEventIds];
    uint64_t l1Used = 0;
    std::vector<std::function<void(At)>> exitChecks;

    Shadow shadow() { return Shadow(ubBlocks.data()); }
};

struct Launch {
    const Device* device = nullptr;
    std::string soc;
    std::string kernel;
    uint32_t blocks = 0;
    KernelType type = KernelType::None;
    uint64_t tilingKey = 0;
    bool allowHalfOverflow = false;
    bool allowInfiniteExtrema = false;
};

/// Everything that outlives one core: memories, counters, the current launch.
struct World {
    GlobalMemories memories;
    Launch launch;
    std::unique_ptr<Core> core;
    std::map<std::string, uint64_t> calls;
    Peaks peaks;
    uint64_t messages = 0;
    uint64_t messageBytes = 0;
    uint64_t halfOverflows = 0;
};

inline World& world()
{
    static World state;
    return state;
}

/// The running core. API calls outside a launch are refused.
inline Core& core(At at)
{
    running().last = at;
    if (!world().core) {
        fail(at, "outside-kernel", "an API function was called while no kernel runs");
    }
    return *world().core;
}

inline const Device& device() { return *world().launch.device; }

inline void require(bool holds, At at, const char* feature, const char* what)
{
    if (!holds) {
        fail(at, "not-on-device", "%s: %s (%s)", feature, what, world().launch.soc.c_str());
    }
}

/// A counter an API function keeps in a static; one addition a call.
class CallCounter {
public:
    explicit CallCounter(const char* name) : count_(world().calls[name]) {}
    void operator++() { ++count_; }

private:
    uint64_t& count_;
};

/// One instruction on one pipe: it checks accesses against the shadows and then records them.
class Instruction {
public:
    Instruction(const char* name, Pipe pipe, At at) : core_(core(at)), name_(name), at_(at)
    {
        if (world().launch.type == KernelType::AicOnly && (pipe == Pipe::V || pipe == Pipe::MTE3)) {
            fail(at, "kernel-type", "%s needs a vector core; the kernel is AIC_ONLY", name);
        }
        access_ = Access{&core_.clocks, pipe, core_.clocks.issue(pipe), static_cast<uint16_t>(core_.block)};
    }

    At at() const { return at_; }
    const char* name() const { return name_; }
    uint32_t sequence() const { return access_.sequence; }
    uint8_t* ub(uint64_t address) const { return core_.ub.data() + address; }

    void checkUbRead(uint64_t address, uint64_t bytes) const
    {
        report(core_.shadow().checkRead(access_, address, bytes), "UB", false);
    }
    void checkUbWrite(uint64_t address, uint64_t bytes) const
    {
        report(core_.shadow().checkWrite(access_, address, bytes), "UB", true);
    }
    void noteUbRead(uint64_t address, uint64_t bytes) { core_.shadow().noteRead(access_, address, bytes); }
    void noteUbWrite(uint64_t address, uint64_t bytes, bool holdsValue = true)
    {
        core_.shadow().noteWrite(access_, address, bytes, holdsValue);
    }

    void checkGmRead(const GlobalMemory& memory, uint64_t offset, uint64_t bytes) const
    {
        range(memory, offset, bytes, "reads");
        if (memory.kind == TensorClass::System || memory.kind == TensorClass::Tiling) {
            fail(at_, "gm-reserved", "%s reads the %s area, which is not the kernel's", name_, twin::name(memory.kind));
        }
        if (memory.blocks != nullptr) {
            report(memory.shadow().checkRead(access_, offset, bytes), memory.name.c_str(), false);
        }
    }
    void checkGmWrite(const GlobalMemory& memory, uint64_t offset, uint64_t bytes) const
    {
        range(memory, offset, bytes, "writes");
        if (memory.kind == TensorClass::System || memory.kind == TensorClass::Tiling) {
            fail(at_, "gm-reserved", "%s writes to the %s area; go through GetUserWorkspace", name_,
                 twin::name(memory.kind));
        }
        if (memory.blocks == nullptr) {
            fail(at_, "gm-write-input", "%s writes to input tensor %s", name_, memory.name.c_str());
        }
        report(memory.shadow().checkWrite(access_, offset, bytes), memory.name.c_str(), true);
    }
    void noteGmRead(GlobalMemory& memory, uint64_t offset, uint64_t bytes)
    {
        if (memory.blocks != nullptr) {
            memory.shadow().noteRead(access_, offset, bytes);
        }
    }
    void noteGmWrite(GlobalMemory& memory, uint64_t offset, uint64_t bytes)
    {
        memory.shadow().noteWrite(access_, offset, bytes);
    }

private:
    void range(const GlobalMemory& memory, uint64_t offset, uint64_t bytes, const char* verb) const
    {
        if (offset > memory.bytes || bytes > memory.bytes - offset) {
            fail(at_, "gm-range", "%s %s bytes %llu..%llu of tensor %s, which has %llu", name_, verb,
                 static_cast<unsigned long long>(offset), static_cast<unsigned long long>(offset + bytes),
                 memory.name.c_str(), static_cast<unsigned long long>(memory.bytes));
        }
    }

    void report(const Finding& finding, const char* where, bool writes) const
    {
        const char* verb = writes ? "writes" : "reads";
        const auto address = static_cast<unsigned long long>(finding.address);
        switch (finding.fault) {
            case Fault::None: return;
            case Fault::Uninitialised:
                fail(at_, "uninitialised-read", "%s reads byte %llu of %s or later in its block, never written", name_,
                     address, where);
            case Fault::ForeignWrite:
                fail(at_, writes ? "cross-core-write" : "cross-core-read",
                     "%s %s byte %llu of %s, which another core wrote in this launch", name_, verb, address, where);
            case Fault::ForeignRead:
                fail(at_, "cross-core-write", "%s writes byte %llu of %s, which another core read in this launch",
                     name_, address, where);
            case Fault::Unordered: break;
        }
        const char* rule = "missing-sync";
        if (finding.pipe == access_.pipe) {
            rule = "missing-barrier";
        } else if (finding.pipe == Pipe::CUBE || access_.pipe == Pipe::CUBE) {
            rule = "matmul-sync";
        }
        fail(at_, rule, "%s (%s) %s byte %llu of %s that a %s instruction %s before, and nothing makes it wait", name_,
             twin::name(access_.pipe), verb, address, where, twin::name(finding.pipe),
             finding.otherWrote ? "wrote" : "read");
    }

    Core& core_;
    const char* name_;
    At at_;
    Access access_{};
};

}  // namespace twin

/// Counts a call of an API function by its name.
#define TWIN_COUNT(name)                          \
    do {                                          \
        static ::twin::CallCounter counter(name); \
        ++counter;                                \
    } while (false)
