// What the modelled chips can hold, and which API parts they have.
#pragma once

#include <cstdint>
#include <cstring>

#include "report.h"

namespace twin {

/// Capacities in bytes. `ubBudget` is what a kernel may ask of InitBuffer: the rest of UB belongs to the
/// framework, to API scratch (Select, CompareScalar) and to the Matmul messages.
struct Device {
    const char* family;
    int arch;
    uint32_t ubBudget;
    uint32_t l1;
    uint32_t l0a;
    uint32_t l0b;
    uint32_t l0c;
    uint64_t systemWorkspace;
    bool splitCores;   // cube and vector are separate cores that meet only in global memory
    bool padCopy;      // DataCopyPad
    bool bfloat16;
    bool mixKernels;   // KERNEL_TYPE_MIX_AIC_1_*
    bool castRounds;   // float -> half with a chosen rounding mode
};

constexpr uint32_t kUbBytes = 256 * 1024;  // modelled address space, at least every chip's UB

inline const Device& deviceOf(const char* soc)
{
    static const Device a2{"910B", 2201, 188160, 512 * 1024 - 256, 64 * 1024, 64 * 1024, 128 * 1024,
                           16u * 1024 * 1024, true, true, true, true, true};
    static const Device p300{"310P", 2002, 253952, 1024 * 1024, 64 * 1024, 64 * 1024, 256 * 1024,
                             2u * 1024 * 1024, false, false, false, false, false};
    const auto is = [soc](const char* prefix) { return std::strncmp(soc, prefix, std::strlen(prefix)) == 0; };
    if (is("Ascend910B") || is("Ascend910_93")) {
        return a2;
    }
    if (is("Ascend310P")) {
        return p300;
    }
    fail(running().last, "device-unsupported",
         "%s is not modelled: generated kernels run on Ascend910B*, Ascend910_93* and Ascend310P*", soc);
}

}  // namespace twin
