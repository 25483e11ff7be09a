// Runs one of the test kernels: run KERNEL DIR BLOCKS NUMBERS... Inputs are DIR/<name>.bin, outputs too.
#include "kernels/add.cpp"
#include "kernels/attention.cpp"
#include "kernels/copies.cpp"
#include "kernels/layer_norm.cpp"
#include "kernels/linear.cpp"
#include "kernels/softmax.cpp"
#include "kernels/units.cpp"

#include "harness.h"

namespace {

constexpr const char* kSoc = "Ascend910B1";

struct Arguments {
    std::string kernel;
    std::string directory;
    uint32_t blocks;
    std::vector<double> numbers;

    int32_t integer(size_t i) const { return static_cast<int32_t>(numbers.at(i)); }
    std::string path(const char* name) const { return directory + "/" + name + ".bin"; }
};

int32_t up16(int32_t value) { return (value + 15) / 16 * 16; }

TCubeTiling cube(int32_t m, int32_t n, int32_t k, int32_t baseM, int32_t baseN, int32_t baseK)
{
    TCubeTiling t{};
    t.usedCoreNum = 1;
    t.M = t.singleCoreM = m;
    t.N = t.singleCoreN = n;
    t.Ka = t.Kb = t.singleCoreK = k;
    t.baseM = baseM;
    t.baseN = baseN;
    t.baseK = baseK;
    t.depthA1 = t.depthB1 = t.stepM = t.stepN = t.stepKa = t.stepKb = t.dbL0C = 1;
    t.dbL0A = t.dbL0B = 2;
    return t;
}

void runAdd(twin::Harness& h, const Arguments& a)
{
    const AddTiling tiling{a.integer(0), a.integer(1)};
    GM_ADDR y = h.output("y", tiling.total * sizeof(half));
    h.launch("add", add, a.blocks, h.input("a", a.path("a")), h.input("b", a.path("b")), y, nullptr, h.tiling(tiling));
}

void runLayerNorm(twin::Harness& h, const Arguments& a)
{
    const LayerNormTiling tiling{a.integer(0), a.integer(1), static_cast<float>(a.numbers.at(2))};
    GM_ADDR y = h.output("y", static_cast<uint64_t>(tiling.rows) * tiling.columns * sizeof(half));
    h.launch("layer_norm", layer_norm, a.blocks, h.input("x", a.path("x")), h.input("gamma", a.path("gamma")),
             h.input("beta", a.path("beta")), y, nullptr, h.tiling(tiling));
}

void runSoftmax(twin::Harness& h, const Arguments& a)
{
    const SoftmaxTiling tiling{a.integer(0), a.integer(1), a.integer(2)};
    GM_ADDR y = h.output("y", static_cast<uint64_t>(tiling.rows) * tiling.columns * sizeof(float));
    h.launch("softmax", softmax, a.blocks, h.input("x", a.path("x")), y, nullptr, h.tiling(tiling));
}

/// NUMBERS: rows, n, k, rows a task, base m n k, whole K in one step, iterateOrder, stepM, stepN, transposed, bias,
/// blockwise
void runLinear(twin::Harness& h, const Arguments& a)
{
    const int32_t rows = a.integer(0), n = a.integer(1), k = a.integer(2), task = a.integer(3);
    TCubeTiling t = cube(task, n, k, a.integer(4), a.integer(5), a.integer(6));
    if (a.integer(7) != 0) {
        t.stepKa = t.stepKb = (k + t.baseK - 1) / t.baseK;
    }
    t.iterateOrder = a.integer(8);
    t.stepM = a.integer(9);
    t.stepN = a.integer(10);
    t.depthA1 = t.stepM * t.stepKa;
    t.depthB1 = t.stepN * t.stepKb;
    t.isBias = a.integer(12);
    const LinearTiling tiling{rows, task, k + 3, n + 5, a.integer(11), a.integer(13), t};
    GM_ADDR y = h.output("y", (static_cast<uint64_t>(rows - 1) * (n + 5) + n) * sizeof(float));
    GM_ADDR bias = t.isBias != 0 ? h.input("bias", a.path("bias")) : nullptr;
    h.launch("linear", linear, a.blocks, h.input("x", a.path("x")), h.input("w", a.path("w")), bias, y,
             h.workspace(twin::libApiWorkSpaceSize(kSoc)), h.tiling(tiling));
}

/// NUMBERS: heads, queries, keys, dim, m, n, causal, scale
void runAttention(twin::Harness& h, const Arguments& a)
{
    AttentionTiling t{};
    t.heads = a.integer(0);
    t.queries = a.integer(1);
    t.keys = a.integer(2);
    t.dim = a.integer(3);
    t.stride = t.heads * t.dim;
    t.m = a.integer(4);
    t.n = a.integer(5);
    t.causal = a.integer(6);
    t.scale = static_cast<float>(a.numbers.at(7));
    const int32_t d = up16(t.dim);
    t.scores = cube(t.m, t.n, t.dim, up16(t.m), t.n, d < 64 ? d : 64);
    t.values = cube(t.m, t.dim, t.n, up16(t.m), d, 64);
    const uint64_t slot = (t.m * t.n * 6ull + t.m * t.dim * 4ull + 511) / 512 * 512;
    GM_ADDR out = h.output("y", static_cast<uint64_t>(t.queries) * t.stride * sizeof(half));
    h.launch("attention", attention, a.blocks, h.input("q", a.path("q")), h.input("k", a.path("k")),
             h.input("v", a.path("v")), out, h.workspace(twin::libApiWorkSpaceSize(kSoc) + 2 * a.blocks * slot),
             h.tiling(t));
}

/// NUMBERS: unit, count, scalar, 1 for half
void runUnits(twin::Harness& h, const Arguments& a)
{
    const UnitTiling tiling{a.integer(0), a.integer(1), static_cast<float>(a.numbers.at(2))};
    const uint64_t bytes = tiling.count * (a.integer(3) != 0 ? sizeof(half) : sizeof(float));
    GM_ADDR y = h.output("y", bytes);
    h.tilingKey(static_cast<uint64_t>(a.integer(3)));
    h.launch("units", units, 1, h.input("x", a.path("x")), h.input("z", a.path("z")), y, nullptr, h.tiling(tiling));
}

/// NUMBERS: rounding mode, count, tiling key of the type pair, bytes of a result
void runCasts(twin::Harness& h, const Arguments& a)
{
    const CastTiling tiling{a.integer(0), a.integer(1)};
    GM_ADDR y = h.output("y", static_cast<uint64_t>(tiling.count) * static_cast<uint64_t>(a.integer(3)));
    h.tilingKey(static_cast<uint64_t>(a.integer(2)));
    h.launch("casts", casts, 1, h.input("x", a.path("x")), y, nullptr, h.tiling(tiling));
}

/// NUMBERS: rows, columns, gap, left, right, blocks
void runCopies(twin::Harness& h, const Arguments& a)
{
    const CopiesTiling t{a.integer(0), a.integer(1), a.integer(2), a.integer(3), a.integer(4), a.integer(5)};
    const uint64_t pitch = static_cast<uint64_t>(up16(t.left + t.columns + t.right) + t.blocks * 16);
    GM_ADDR y1 = h.output("y", pitch * t.rows * 2);
    GM_ADDR y2 = h.output("y2", static_cast<uint64_t>(t.rows) * (t.columns + 3) * 2);
    GM_ADDR y3 = h.output("y3", pitch * t.rows * 2);
    h.launch("copies", copies, 1, h.input("x", a.path("x")), y1, y2, y3, nullptr, h.tiling(t));
    h.saveWithGaps("y2", a.path("y2"));
    h.saveWithGaps("y3", a.path("y3"));
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc < 4) {
        std::fprintf(stderr, "usage: run KERNEL DIR BLOCKS NUMBERS...\n");
        return 2;
    }
    Arguments arguments{argv[1], argv[2], static_cast<uint32_t>(std::atoi(argv[3])), {}};
    for (int i = 4; i < argc; ++i) {
        arguments.numbers.push_back(std::atof(argv[i]));
    }
    const std::map<std::string, void (*)(twin::Harness&, const Arguments&)> kernels = {
        {"add", runAdd}, {"layer_norm", runLayerNorm}, {"softmax", runSoftmax}, {"linear", runLinear},
        {"attention", runAttention}, {"units", runUnits}, {"casts", runCasts}, {"copies", runCopies}};
    twin::Harness harness(kSoc);
    kernels.at(arguments.kernel)(harness, arguments);
    if (arguments.kernel != "linear") {  // its rows have gaps that nobody writes
        harness.save("y", arguments.path("y"));
    } else {
        harness.saveWithGaps("y", arguments.path("y"));
    }
    harness.report(arguments.directory + "/report.json");
    return 0;
}
