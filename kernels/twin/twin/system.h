// What a kernel asks about itself: block numbers, kernel type, workspace and tiling data.
#pragma once

#include "tpipe.h"

namespace twin {

inline const char* name(KernelType type)
{
    constexpr const char* names[] = {"none", "AIV_ONLY", "AIC_ONLY", "MIX_AIC_1_1", "MIX_AIC_1_2", "AICORE"};
    return names[static_cast<int>(type)];
}

/// Vector cores per block: what GetTaskRation returns.
inline int64_t vectorCoresPerBlock(KernelType type) { return type == KernelType::Mix12 ? 2 : 1; }

inline bool isMix(KernelType type) { return type == KernelType::Mix11 || type == KernelType::Mix12; }

inline void declareKernelType(KernelType type, At at)
{
    core(at);
    Launch& launch = world().launch;
    if (isMix(type)) {
        require(device().mixKernels, at, name(type), "this chip has no such kernel type");
    }
    if (type == KernelType::AivOnly || type == KernelType::AicOnly) {
        require(device().splitCores, at, name(type), "this chip's cores hold cube and vector");
    }
    if (type == KernelType::AiCore) {
        require(!device().splitCores, at, name(type), "this chip's cube and vector cores are separate");
    }
    if (launch.type != KernelType::None && launch.type != type) {
        fail(at, "kernel-type", "declared %s after %s", name(type), name(launch.type));
    }
    launch.type = type;
}

inline KernelType kernelType(At at)
{
    core(at);
    if (world().launch.type == KernelType::None) {
        fail(at, "kernel-type", "the kernel must start with KERNEL_TASK_TYPE_DEFAULT");
    }
    return world().launch.type;
}

/// Copies the tiling bytes that the harness registered; sizes must agree exactly.
inline void readTiling(const void* address, void* to, uint64_t bytes, At at)
{
    core(at);
    GlobalMemory* memory = world().memories.find(address);
    if (memory == nullptr || memory->kind != TensorClass::Tiling || memory->data != address) {
        fail(at, "tiling-address", "the tiling argument is not the registered tiling data");
    }
    if (memory->bytes != bytes) {
        fail(at, "tiling-size", "the kernel's tiling struct has %llu bytes, the host wrote %llu",
             static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(memory->bytes));
    }
    std::memcpy(to, address, bytes);
}

inline bool tilingKeyIs(uint64_t key, At at)
{
    core(at);
    return world().launch.tilingKey == key;
}

}  // namespace twin

namespace AscendC {

inline int64_t GetBlockIdx(At at = At::here()) { return twin::core(at).block; }

/// The number of blocks of the launch: cube cores in a MIX kernel.
inline int64_t GetBlockNum(At at = At::here())
{
    twin::core(at);
    return twin::world().launch.blocks;
}

inline int64_t GetTaskRation(At at = At::here()) { return twin::vectorCoresPerBlock(twin::kernelType(at)); }

inline int64_t GetSubBlockIdx(At at = At::here()) { return GetBlockIdx(at) % GetTaskRation(at); }

/// The user's part of the workspace; the system's part lies in front of it.
inline GM_ADDR GetUserWorkspace(GM_ADDR workspace, At at = At::here())
{
    twin::core(at);
    twin::GlobalMemory* memory = twin::world().memories.find(workspace);
    if (memory == nullptr || memory->kind != twin::TensorClass::System || memory->data != workspace) {
        twin::fail(at, "workspace-address", "GetUserWorkspace takes the kernel's workspace argument");
    }
    twin::GlobalMemory* user = twin::world().memories.named("workspace");
    return user == nullptr ? nullptr : user->data;
}

inline GM_ADDR GetSysWorkSpacePtr(At at = At::here())
{
    twin::core(at);
    twin::GlobalMemory* system = twin::world().memories.named("system workspace");
    if (system == nullptr) {
        twin::fail(at, "workspace-address", "GetSysWorkSpacePtr: the launch has no workspace");
    }
    return system->data;
}

}  // namespace AscendC

#define KERNEL_TYPE_AIV_ONLY ::twin::KernelType::AivOnly
#define KERNEL_TYPE_AIC_ONLY ::twin::KernelType::AicOnly
#define KERNEL_TYPE_MIX_AIC_1_1 ::twin::KernelType::Mix11
#define KERNEL_TYPE_MIX_AIC_1_2 ::twin::KernelType::Mix12
#define KERNEL_TYPE_AICORE ::twin::KernelType::AiCore
#define KERNEL_TASK_TYPE_DEFAULT(type) ::twin::declareKernelType(type, ::twin::At::here())

#define TILING_KEY_IS(key) (::twin::tilingKeyIs((key), ::twin::At::here()))
#define REGISTER_TILING_DEFAULT(Type) using TwinDefaultTiling = Type
#define GET_TILING_DATA_WITH_STRUCT(Type, data, address) \
    Type data;                                           \
    ::twin::readTiling((address), &data, sizeof(Type), ::twin::At::here())
#define GET_TILING_DATA(data, address) GET_TILING_DATA_WITH_STRUCT(TwinDefaultTiling, data, address)

#define ASCEND_IS_AIV (::twin::world().launch.type != ::twin::KernelType::AicOnly)
#define ASCEND_IS_AIC (::twin::world().launch.type == ::twin::KernelType::AicOnly)
