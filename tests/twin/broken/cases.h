// Small kernels that break one rule each. With `broken` false the same kernel is right and must pass, so a case
// proves that its rule, and nothing else, is what stops it. The line that must be reported ends in "// caught".
#pragma once

#include "kernel_operator.h"
#include "lib/matmul_intf.h"

using namespace AscendC;

/// What every case gets: two readable tensors, an output and a workspace, 4096 elements each.
struct Rig {
    GM_ADDR halves;
    GM_ADDR floats;
    GM_ADDR out;
    GM_ADDR workspace;
    GM_ADDR tiling;

    GlobalTensor<half> x() const { return global<half>(halves); }
    GlobalTensor<float> f() const { return global<float>(floats); }
    GlobalTensor<half> y() const { return global<half>(out); }
    GlobalTensor<float> yf() const { return global<float>(out); }
    template <typename T>
    GlobalTensor<T> ring() const
    {
        return global<T>(GetUserWorkspace(workspace));
    }

    template <typename T>
    static GlobalTensor<T> global(GM_ADDR address)
    {
        GlobalTensor<T> tensor;
        tensor.SetGlobalBuffer((__gm__ T*)address);
        return tensor;
    }
};

constexpr int kElements = 4096;

/// One case: a name, the rule it must meet, and how the kernel is launched.
struct Case {
    const char* name;
    const char* rule;
    void (*body)(const Rig& rig, bool broken);
    enum Kind { Vector, Mix, Cube, Shared } kind;  // Shared: AICORE, on 310P
    int blocks;
};

inline std::vector<Case>& cases()
{
    static std::vector<Case> all;
    return all;
}

struct Registered {
    Registered(const char* name, const char* rule, void (*body)(const Rig&, bool), Case::Kind kind, int blocks)
    {
        cases().push_back({name, rule, body, kind, blocks});
    }
};

#define CASE_ON(name, rule, kind, blocks)                                                     \
    static void name(const Rig& rig, bool broken);                                            \
    static const Registered registered_##name(#name, rule, name, Case::kind, blocks);         \
    static void name([[maybe_unused]] const Rig& rig, [[maybe_unused]] bool broken)
#define CASE(name, rule) CASE_ON(name, rule, Vector, 1)

/// A UB buffer with known contents and nothing pending.
template <typename T>
LocalTensor<T> filled(TPipe& pipe, TBuf<TPosition::VECCALC>& buffer, int32_t count, T value)
{
    pipe.InitBuffer(buffer, count * sizeof(T));
    LocalTensor<T> tensor = buffer.Get<T>(count);
    Duplicate(tensor, value, count);
    PipeBarrier<PIPE_ALL>();
    return tensor;
}

template <HardEvent event>
void order()
{
    const TEventID id = GetTPipePtr()->FetchEventID(event);
    SetFlag<event>(id);
    WaitFlag<event>(id);
}
