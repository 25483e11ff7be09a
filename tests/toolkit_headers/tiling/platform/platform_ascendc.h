// platform_ascendc: what a chip has; the sizes are those of a 910B.
#pragma once

#include <cstdint>

#include "register/op_def_registry.h"

namespace platform_ascendc {

enum class CoreMemType { L0_A = 0, L0_B = 1, L0_C = 2, L1 = 3, L2 = 4, UB = 5, HBM = 6 };

class PlatformAscendC {
public:
    PlatformAscendC() = delete;
    explicit PlatformAscendC(fe::PlatFormInfos* info) : info_(info) {}
    uint32_t GetCoreNumAic() const { return info_->recordedCubeCores; }
    uint32_t GetCoreNumAiv() const { return info_->recordedVectorCores; }
    uint32_t GetLibApiWorkSpaceSize() const { return 16u << 20; }
    void GetCoreMemSize(const CoreMemType& type, uint64_t& size) const
    {
        const uint64_t kib[] = {64, 64, 128, 512, 192 << 10, 192, 32 << 20};
        size = kib[static_cast<int>(type)] << 10;
    }

private:
    fe::PlatFormInfos* info_;
};

}  // namespace platform_ascendc
