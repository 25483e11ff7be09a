// Global memory: the tensors that the harness registered, their bytes, shadows and traffic counters.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <deque>
#include <string>

#include "report.h"
#include "shadow.h"

namespace twin {

enum class TensorClass { Input, Output, Workspace, System, Tiling };

inline const char* name(TensorClass kind)
{
    constexpr const char* names[] = {"input", "output", "workspace", "system", "tiling"};
    return names[static_cast<int>(kind)];
}

/// Bytes that crossed global memory, by the side that moved them.
struct Traffic {
    uint64_t readByVector = 0;
    uint64_t writtenByVector = 0;
    uint64_t readByCube = 0;
    uint64_t writtenByCube = 0;
};

struct GlobalMemory {
    std::string name;
    TensorClass kind;
    uint8_t* data;
    uint64_t bytes;
    ShadowBlock* blocks;  // null for what no kernel may write
    Traffic traffic;

    bool contains(const void* pointer) const
    {
        const auto* p = static_cast<const uint8_t*>(pointer);
        return p >= data && p < data + bytes;
    }
    Shadow shadow() const { return Shadow(blocks); }
    uint64_t blockCount() const { return (bytes + kBlockBytes - 1) / kBlockBytes; }
};

/// Every registered tensor lies in its own mapping between unmapped guards, so that a pointer that runs off one
/// tensor never lands in another.
class GlobalMemories {
public:
    GlobalMemory& add(const std::string& name, TensorClass kind, uint64_t bytes)
    {
        const uint64_t mapped = (bytes + kPage) / kPage * kPage;
        uint8_t* data = guarded(mapped);
        ShadowBlock* blocks = nullptr;
        if (kind == TensorClass::Output || kind == TensorClass::Workspace) {
            const uint64_t count = (bytes + kBlockBytes - 1) / kBlockBytes + 1;
            void* shadow = mmap(nullptr, count * sizeof(ShadowBlock), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (shadow == MAP_FAILED) {
                harnessError("no memory for the shadow of tensor %s (%llu bytes)", name.c_str(),
                             static_cast<unsigned long long>(bytes));
            }
            blocks = static_cast<ShadowBlock*>(shadow);
        }
        tensors_.push_back(GlobalMemory{name, kind, data, bytes, blocks, {}});
        return tensors_.back();
    }

    GlobalMemory* find(const void* pointer)
    {
        for (GlobalMemory& tensor : tensors_) {
            if (tensor.contains(pointer)) {
                return &tensor;
            }
        }
        return nullptr;
    }

    GlobalMemory* named(const std::string& name)
    {
        for (GlobalMemory& tensor : tensors_) {
            if (tensor.name == name) {
                return &tensor;
            }
        }
        return nullptr;
    }

    /// Forgets who touched what (a new launch is ordered after the one before), but not which bytes hold values.
    void startLaunch()
    {
        for (GlobalMemory& tensor : tensors_) {
            if (tensor.blocks == nullptr) {
                continue;
            }
            for (uint64_t b = 0; b < tensor.blockCount(); ++b) {
                const uint32_t initialised = tensor.blocks[b].initialised;
                if (tensor.blocks[b].core != 0) {
                    tensor.blocks[b] = ShadowBlock{};
                    tensor.blocks[b].initialised = initialised;
                }
            }
        }
    }

    std::deque<GlobalMemory>& all() { return tensors_; }

private:
    static constexpr uint64_t kPage = 4096;
    static constexpr uint64_t kGuard = 1ull << 32;

    static uint8_t* guarded(uint64_t bytes)
    {
        void* area = mmap(nullptr, bytes + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (area == MAP_FAILED) {
            harnessError("no address space for %llu bytes", static_cast<unsigned long long>(bytes));
        }
        auto* data = static_cast<uint8_t*>(area) + kGuard;
        if (mprotect(data, bytes, PROT_READ | PROT_WRITE) != 0) {
            harnessError("no memory for %llu bytes", static_cast<unsigned long long>(bytes));
        }
        return data;
    }

    std::deque<GlobalMemory> tensors_;
};

}  // namespace twin
