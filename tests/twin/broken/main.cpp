// broken --list | around WHAT | NAME broken|fixed SOC. One process a case: a violation ends it with exit code 3.
#include "copies.cpp"
#include "matmul.cpp"
#include "queues.cpp"
#include "shared_core.cpp"
#include "sync.cpp"
#include "system.cpp"
#include "vector.cpp"

#include <iostream>

#include "harness.h"

namespace {

const Case* chosen = nullptr;
bool breakIt = false;

void kernel(GM_ADDR halves, GM_ADDR floats, GM_ADDR out, GM_ADDR workspace, GM_ADDR tiling)
{
#if __NPU_ARCH__ == 2002
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AICORE);
#else
    if (chosen->kind == Case::Mix) {
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    } else if (chosen->kind == Case::Cube) {
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    } else {
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    }
#endif
    chosen->body(Rig{halves, floats, out, workspace, tiling}, breakIt);
}

void run(const char* soc)
{
    twin::Harness h(soc);
    std::vector<half> halves(kElements);
    std::vector<float> floats(kElements);
    for (int i = 0; i < kElements; ++i) {
        floats[i] = static_cast<float>(i % 17) * 0.125f;
        halves[i] = half(floats[i]);
    }
    const RightTiling tiling{};
    h.launch(chosen->name, kernel, static_cast<uint32_t>(chosen->blocks),
             h.input("halves", halves.data(), kElements * sizeof(half)),
             h.input("floats", floats.data(), kElements * sizeof(float)), h.output("out", kElements * sizeof(float)),
             h.workspace(twin::libApiWorkSpaceSize(soc) + kElements * sizeof(float)), h.tiling(tiling));
}

/// What only the program around a kernel can get wrong, or only it can see.
void undeclared(GM_ADDR) {}

void writesNothing(GM_ADDR) { KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY); }

/// Each core fills its 64 bytes of y; in the next launch it reads its neighbour's.
void fillOwn(GM_ADDR y)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<float> t = filled(pipe, buffer, 16, 1.0f * GetBlockIdx());
    DataCopy(Rig::global<float>(y)[GetBlockIdx() * 16], t, 16);
}

void readNeighbour(GM_ADDR y)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 64);
    DataCopy(buffer.Get<float>(), Rig::global<float>(y)[(GetBlockNum() - 1 - GetBlockIdx()) * 16], 16);
}

void overflow(GM_ADDR)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TBuf<TPosition::VECCALC> from, to;
    LocalTensor<float> f = filled(pipe, from, 48, 1.0e6f);
    LocalTensor<half> h = filled(pipe, to, 48, half(0.0f));
    Cast(h, f, RoundMode::CAST_RINT, 48);
}

void around(const std::string& what)
{
    twin::Harness h(what == "unsupported_chip" ? "Ascend910A" : "Ascend910B1");
    if (what == "outside_kernel") {
        TPipe pipe;
    } else if (what == "undeclared_kernel") {
        h.launch("undeclared", undeclared, 1, nullptr);
    } else if (what == "unwritten_output") {
        h.launch("nothing", writesNothing, 1, h.output("y", 64));
        h.save("y", "/dev/null");
    } else if (what == "missing_file") {
        h.input("x", "no/such/file.bin");
    } else if (what == "workspace_without_system_part") {
        h.workspace(4096);
    } else if (what == "two_launches") {
        GM_ADDR y = h.output("y", 256);
        h.launch("fill_own", fillOwn, 4, y);
        h.launch("read_neighbour", readNeighbour, 4, y);
        h.report(std::cout);
    } else if (what == "allowed_overflow") {
        h.allowHalfOverflow();
        h.launch("overflow", overflow, 1, nullptr);
        h.report(std::cout);
    }
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc == 2 && std::string(argv[1]) == "--list") {
        for (const Case& c : cases()) {
            const bool here = (c.kind == Case::Shared) == (__NPU_ARCH__ == 2002);
            if (here) {
                std::printf("%s %s\n", c.name, c.rule);
            }
        }
        return 0;
    }
    if (argc == 3 && std::string(argv[1]) == "around") {
        around(argv[2]);
        return 0;
    }
    for (const Case& c : cases()) {
        if (argc == 4 && std::string(argv[1]) == c.name) {
            chosen = &c;
        }
    }
    if (chosen == nullptr) {
        std::fprintf(stderr, "usage: broken --list | around WHAT | NAME broken|fixed SOC\n");
        return 2;
    }
    breakIt = std::string(argv[2]) == "broken";
    run(argv[3]);
    return 0;
}
