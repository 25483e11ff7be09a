// Runs the 310P test kernel: run310p DIR BLOCKS ROWS TOTAL K N P.
#include "kernels/chain310p.cpp"

#include "harness.h"

namespace {

TCubeTiling cube(int32_t m, int32_t n, int32_t k, int32_t transLength)
{
    TCubeTiling t{};
    t.usedCoreNum = 1;
    t.M = t.singleCoreM = t.baseM = m;
    t.N = t.singleCoreN = t.baseN = n;
    t.Ka = t.Kb = t.singleCoreK = k;
    t.baseK = 16;
    t.depthA1 = t.depthB1 = t.stepM = t.stepN = t.stepKa = t.stepKb = t.dbL0A = t.dbL0B = t.dbL0C = 1;
    t.transLength = transLength;
    return t;
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc != 8) {
        std::fprintf(stderr, "usage: run310p DIR BLOCKS ROWS TOTAL K N P\n");
        return 2;
    }
    const std::string directory = argv[1];
    const auto number = [argv](int i) { return std::atoi(argv[i]); };
    ChainTiling t{number(3), number(4), number(5), number(6), number(7), {}, {}};
    const int32_t widest = t.n > t.p ? t.n : t.p;
    t.first = cube(t.rows, t.n, t.k, t.rows * widest * 4);
    t.second = cube(t.rows, t.p, t.n, t.rows * widest * 4);
    twin::Harness h("Ascend310P3");
    GM_ADDR y = h.output("y", static_cast<uint64_t>(t.total) * t.p * sizeof(float));
    h.launch("chain", chain, static_cast<uint32_t>(number(2)), h.input("x", directory + "/x.bin"),
             h.input("w1", directory + "/w1.bin"), h.input("w2", directory + "/w2.bin"), y,
             h.workspace(twin::libApiWorkSpaceSize("Ascend310P3")), h.tiling(t));
    h.save("y", directory + "/y.bin");
    h.report(directory + "/report.json");
    return 0;
}
